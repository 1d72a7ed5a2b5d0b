// The page: an input, a run through the networks, and a player that shows it step by step.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const NETWORKS = DATA.networks.map((file) => new Network(DATA, file));
const STEPS = DATA.encoding ? DATA.encoding.steps : bytesOf(DATA.examples[0].bits).length / 4 / words(product(DATA.input_shape));
const IMAGES = DATA.input_shape.length === 3;
const CLASSIFIES = DATA.task === "classification";
const ON = DATA.sketchpad ? DATA.sketchpad.on : 1;
const PEN = 0.055; // radius, of the drawing area's edge
const SLICE_MS = 12; // of work between two chances for the page to react
const SHOWN_MS = 4000; // that a recording takes to be shown, at most
const MOST_BARS = 12;

const page = { run: null, time: 0, playing: false, source: null, strokes: [], features: [] };
const steady = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

// Numbers as text

const whole = new Intl.NumberFormat("en");
const percent = (p) => (p > 0.9995 ? "100 %" : p < 0.0995 ? `${(100 * p).toFixed(1)} %` : `${(100 * p).toFixed(0)} %`);
const brief = (v) => String(Number(v.toPrecision(4)));

function si(value, unit) {
  const power = value > 0 ? Math.min(3, Math.max(-4, Math.floor(Math.log10(Number(value.toPrecision(3))) / 3))) : 0;
  const prefix = { "-4": "p", "-3": "n", "-2": "µ", "-1": "m", 0: "", 1: "k", 2: "M", 3: "G" }[power];
  return `${Number((value / 1000 ** power).toPrecision(3))} ${prefix}${unit}`;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const pause = () => new Promise((resolve) => { setTimeout(resolve); });

// Inputs

function trainsOf(example) {
  if (DATA.encoding) return trainsOfPoint(example.features);
  const all = wordsOf(bytesOf(example.bits)), n = words(product(DATA.input_shape));
  return [Array.from({ length: STEPS }, (_, t) => all.subarray(t * n, (t + 1) * n))];
}

function trainsOfPoint(features) {
  return Array.from({ length: DATA.encoding.encodings }, (_, draw) => encode(DATA.encoding, features, draw));
}

// The check: every example through every network, against the fingerprints of Python's engine

async function check() {
  const begun = performance.now();
  let [wrong, bits, logits, steps, busy] = [0, 0, 0, 0, 0];
  for (const example of DATA.examples) {
    const run = new Run(DATA, NETWORKS, trainsOf(example));
    while (!run.done) {
      const start = performance.now();
      while (!run.done && performance.now() - start < SLICE_MS) run.advance();
      busy += performance.now() - start;
      await pause();
    }
    const golden = new Uint32Array(wordsOf(bytesOf(example.golden)).buffer), found = fingerprints(run);
    wrong += found.length === golden.length ? found.filter((value, i) => value !== golden[i]).length : golden.length;
    const rows = NETWORKS.reduce((sum, network) => sum + network.members, 0) * run.length * run.trains.length;
    bits += rows * NETWORKS[0].layers.reduce((sum, layer) => sum + layer.leaving, 0);
    logits += rows * DATA.outputs;
    steps += run.length * run.trains.length;
  }
  const rate = Math.round((1000 * steps) / busy);
  page.checked = { wrong, bits, logits, rate, seconds: (performance.now() - begun) / 1000 };
  $("check").className = `check ${wrong ? "bad" : "good"}`;
  $("check").textContent = wrong
    ? `${whole.format(wrong)} checks failed: this browser does not give the network's own spikes`
    : `${whole.format(bits)} spikes and ${whole.format(logits)} logits are Python's, bit for bit; ${whole.format(rate)} time steps a second here`;
}

// Running and playing

async function start(trains, source, shown = "play") {
  const run = new Run(DATA, NETWORKS, trains);
  Object.assign(page, { run, source, time: 0, playing: shown === "play" && !steady, since: null });
  if (shown === "play") show();
  while (!run.done && page.run === run) {
    const begun = performance.now();
    while (!run.done && performance.now() - begun < SLICE_MS) run.advance();
    if (page.playing) requestAnimationFrame(tick);
    await pause();
  }
  if (page.run !== run) return;
  if (!page.playing && page.time === 0) {
    page.time = run.stop && steady ? run.stop.time : run.length;
    show();
    speak();
  }
}

// Shows the time steps one after the other, and halts where the network is decided.
function tick(now) {
  const { run } = page;
  if (!page.playing || page.ticking === now) return;
  page.ticking = now;
  const each = Math.min(220, SHOWN_MS / run.length);
  page.since ??= now;
  const due = Math.min(run.time, page.time + Math.floor((now - page.since) / each));
  if (due > page.time) {
    const stop = run.stop && page.time < run.stop.time && due >= run.stop.time ? run.stop.time : null;
    page.since = now;
    page.time = stop ?? due;
    if (stop || page.time === run.length) page.playing = false;
    show();
    if (!page.playing) speak();
  }
  if (page.playing) requestAnimationFrame(tick);
}

function play() {
  if (!page.run) return;
  page.playing = !page.playing;
  if (page.playing && page.time === page.run.length) page.time = 0;
  page.since = null;
  show();
  requestAnimationFrame(tick);
}

// Showing

function show() {
  const { run, time } = page;
  $("play").textContent = page.playing ? "⏸" : "▶";
  $("play").setAttribute("aria-label", page.playing ? "Pause" : "Play");
  $("time").max = STEPS;
  $("time").value = time;
  $("clock").textContent = `${time} of ${STEPS}`;
  $("time").setAttribute("aria-valuetext", `time step ${time} of ${STEPS}`);
  for (const button of $("examples").querySelectorAll("button")) button.setAttribute("aria-pressed", button.example === page.source);
  showAnswer();
  showLayers();
  showChart();
  if (DATA.sets) showSets();
  if (CLASSIFIES) showDoubt();
  showCost();
  if (DATA.plane) drawPlane($("plane-canvas"), DATA.plane, DATA.encoding.low, DATA.encoding.high, page.features);
  if (!run) $("stop").textContent = "";
}

const best = (p) => p.indexOf(Math.max(...p));
const lookAt = (run, time) => (run && time ? run.views[time - 1] : null);
const stopped = () => (page.run && page.run.stop && page.time >= page.run.stop.time ? page.run.stop : null);
const lastLook = () => (page.run ? page.run.sets.filter((look) => look.time <= page.time).at(-1) : null);

function showAnswer() {
  const views = lookAt(page.run, page.time), stop = stopped();
  $("others").textContent = $("glance").textContent = "";
  $("sure").textContent = page.run ? "…" : hintOfInput();
  $("says").textContent = "–";
  $("stop").textContent = stop ? sentenceOfStop(stop) : "";
  if (CLASSIFIES) showBars(views, stop);
  if (!views) return;
  const [first, second] = views, warming = page.time <= DATA.burn_in;
  if (!CLASSIFIES) {
    $("says").className = "long";
    $("says").textContent = brief(first.mean[0]);
    $("sure").textContent = NETWORKS[0].members > 1 ? `± ${brief(first.spread[0])} between members` : "";
    $("others").textContent = second ? `MAP: ${brief(second.mean[0])}` : "";
    return;
  }
  const c = best(first.mean), name = DATA.classes[c];
  $("says").textContent = name;
  $("says").className = `${name.length > 3 ? "long" : ""} ${first.mean[c] < 0.5 ? "unsure" : ""}`;
  $("sure").textContent = `${percent(first.mean[c])} sure${warming ? " at this step" : ""}`;
  $("glance").textContent = `${name} · ${percent(first.mean[c])}`;
  if (second) $("others").textContent = `${NETWORKS[0].name}; the one most probable network says ${DATA.classes[best(second.mean)]}, ${percent(Math.max(...second.mean))} sure`;
}

function hintOfInput() {
  if (DATA.sketchpad) return "Draw something, or choose a recording.";
  return DATA.encoding ? "Move a slider, or choose a point." : "Choose a recording.";
}

function sentenceOfStop(stop) {
  const names = stop.inside.flatMap((inside, c) => (inside ? [DATA.classes[c]] : []));
  const which = names.length > 1 ? `one of ${names.join(", ")}` : names[0];
  return stop.decided ? `Decided after ${stop.time} of ${STEPS} time steps: ${which}.` : `Undecided to the end: ${which}.`;
}

function showBars(views, stop) {
  const look = stop || lastLook(), [first, second] = views || [null, null];
  const order = DATA.classes.map((_, c) => c);
  if (order.length > MOST_BARS && first) order.sort((a, b) => first.mean[b] - first.mean[a]).splice(MOST_BARS);
  $("bars").replaceChildren(...order.slice(0, MOST_BARS).map((c) => {
    const p = first ? first.mean[c] : 0, bar = element("b"), track = element("div", { className: "track" }, bar);
    bar.style.width = `${100 * p}%`;
    const rank = page.leading ? page.leading.indexOf(c) : -1;
    bar.className = rank < 0 ? "s6" : `s${rank + 1}`;
    if (second) {
      const mark = element("i", { title: "MAP" });
      mark.style.left = `${100 * second.mean[c]}%`;
      track.append(mark);
    }
    const inside = Boolean(look && look.inside[c]);
    const item = element("li", { className: inside ? "in" : "" }, element("span", { textContent: DATA.classes[c], title: DATA.classes[c] }), track, element("output", { textContent: first ? percent(p) : "" }));
    if (inside) item.append(element("span", { className: "visually-hidden", textContent: "in the prediction set" }));
    return item;
  }));
}

// How bright a neuron is: the share of the members shown that fire now, or a little while ago.
function glow(time, read) {
  const recent = [];
  for (let age = 0; age < 3 && time - age > 0; age++) recent.push([0.42 ** age, ...read(time - age - 1)]);
  return (n) => recent.reduce((most, [weight, rows]) => {
    let fired = 0;
    for (const row of rows) fired += isSet(row, n);
    return Math.max(most, (weight * fired) / rows.length);
  }, 0);
}

function showLayers() {
  const [i, k] = $("shown").value.split(" ").map(Number), { run, time } = page;
  const network = NETWORKS[i], parts = [INPUT, ...network.layers.keys()];
  parts.forEach((part) => {
    const figure = $("layers").children[part + 1], [caption, canvas] = figure.children;
    const rowsAt = (t) => {
      if (part === INPUT) return run.trains[0][t] ? [run.trains[0][t]] : [];
      const all = run.steps[t][0][i].spikes[part], n = all.length / network.members;
      const chosen = k < 0 ? [...Array(network.members).keys()] : [k];
      return chosen.map((member) => all.subarray(member * n, (member + 1) * n));
    };
    const level = run && time ? glow(time, (t) => [rowsAt(t)]) : () => 0;
    const shape = part === INPUT ? DATA.input_shape : network.layers[part].output_shape;
    if (part === INPUT && IMAGES) drawEvents(canvas, shape, ON, level);
    else if (part === INPUT && DATA.encoding) drawNeurons(canvas, [1, DATA.encoding.low.length, shape[0] / DATA.encoding.low.length], level);
    else drawNeurons(canvas, shape, level);
    const rows = run && time ? rowsAt(time - 1) : [], active = rows.reduce((sum, row) => sum + countBits(row), 0) / (rows.length || 1);
    caption.lastElementChild.textContent = time ? ` ${whole.format(Math.round(active))} of ${whole.format(product(shape))} now` : ` ${whole.format(product(shape))}`;
    canvas.setAttribute("aria-label", `${caption.firstElementChild.textContent}: ${Math.round(active)} of ${product(shape)} fire at time step ${time}`);
  });
}

function showChart() {
  const { run, time } = page, views = run ? run.views.slice(0, time) : [];
  const canvas = $("chart"), stop = stopped();
  if (!CLASSIFIES) return showOutputs(canvas, views);
  const chart = axes(canvas, STEPS, DATA.burn_in, 0, 1, [0, 0.25, 0.5, 0.75, 1], (v) => `${100 * v}%`);
  markTimes(chart, time, stop && stop.time);
  page.leading = null;
  if (views.length) {
    const order = DATA.classes.map((_, c) => [Math.max(...run.views.map((view) => view[0].mean[c])), c]).sort(([a], [b]) => b - a).map(([, c]) => c);
    page.leading = order.slice(0, 3); // the same colours at all times of a run
    for (const c of order.reverse()) {
      const rank = page.leading.indexOf(c), style = colour(rank < 0 ? "s6" : `s${rank + 1}`);
      drawLine(chart, views.map((view) => view[0].mean[c]), style, { wide: rank < 0 ? 1 : 2.5, alpha: rank < 0 ? 0.6 : 1 });
      if (NETWORKS.length > 1 && rank >= 0) drawLine(chart, views.map((view) => view[1].mean[c]), style, { wide: 1.5, dash: [4, 3] });
    }
  }
  const names = (page.leading || []).map((c, rank) => element("li", {}, element("i", { className: `s${rank + 1}` }), DATA.classes[c]));
  const lines = NETWORKS.length > 1 ? [element("li", {}, element("i", { className: "ink" }), NETWORKS[0].name), element("li", {}, element("i", { className: "dash" }), NETWORKS[1].name)] : [];
  $("chart-legend").replaceChildren(...names, ...lines);
  showBars(lookAt(run, time), stop);
  const said = views.length ? views.at(-1)[0].mean : null;
  canvas.setAttribute("aria-label", said ? `At time step ${time}: ${page.leading.map((c) => `${DATA.classes[c]} ${percent(said[c])}`).join(", ")}` : "Nothing shown yet");
  return undefined;
}

function showOutputs(canvas, views) {
  const values = views.flatMap((view) => [...view[0].members]), [low, high] = [Math.min(...values, 0), Math.max(...values, 0)];
  const middle = (low + high) / 2, chart = axes(canvas, STEPS, DATA.burn_in, low, high, [low, middle, high], (v) => brief(Number(v.toPrecision(2))));
  markTimes(chart, page.time, null);
  for (let k = 0; k < NETWORKS[0].members; k++) drawLine(chart, views.map((view) => view[0].members[k * DATA.outputs]), colour("s6"), { wide: 1, alpha: 0.7 });
  drawLine(chart, views.map((view) => view[0].mean[0]), colour("s1"), { wide: 2.5 });
  if (NETWORKS.length > 1) drawLine(chart, views.map((view) => view[1].mean[0]), colour("s2"), { wide: 1.5, dash: [4, 3] });
  canvas.setAttribute("aria-label", views.length ? `Output ${brief(views.at(-1)[0].mean[0])} at time step ${page.time}` : "Nothing shown yet");
}

function showSets() {
  const seen = page.run ? page.run.sets.filter((look) => look.time <= page.time) : [], stop = stopped();
  drawSets($("sets-chart"), DATA.classes, { seen, total: DATA.sets.path.length }, STEPS, page.time, stop);
  const names = seen.length ? seen.at(-1).inside.flatMap((inside, c) => (inside ? [DATA.classes[c]] : [])) : [];
  $("sets-chart").setAttribute("aria-label", names.length ? `Prediction set at time step ${seen.at(-1).time}: ${names.join(", ")}` : "No look yet");
}

function showDoubt() {
  const views = page.run ? page.run.views.slice(0, page.time).map((view) => view[0]) : [], most = Math.log(DATA.outputs);
  const chart = axes($("doubt-chart"), STEPS, DATA.burn_in, 0, most, [0, most / 2, most], (v) => v.toFixed(1));
  const total = views.map((view) => view.total), own = views.map((view) => view.total - view.disagreement);
  drawArea(chart, own.map(() => 0), own, colour("s5"));
  drawArea(chart, own, total, colour("s4"));
  const stop = stopped(), last = views.at(-1);
  markTimes(chart, page.time, stop && stop.time);
  const text = last ? `${last.total.toFixed(2)} nats of at most ${most.toFixed(2)}: ${(last.total - last.disagreement).toFixed(2)} because the input could be several things, ${last.disagreement.toFixed(2)} because the members disagree.` : `In nats; ${most.toFixed(2)} is knowing nothing.`;
  $("doubt-note").textContent = text;
  $("doubt-chart").setAttribute("aria-label", text);
}

function showCost() {
  const { run, time } = page;
  $("cost").replaceChildren(...NETWORKS.map((network, i) => {
    const cost = run && time ? run.costs[time - 1][i] : { operations: 0, joules: 0 };
    const whole_ = run && run.done ? run.costs.at(-1)[i] : null;
    const share = whole_ && time && time < run.length ? ` ${Math.round((100 * cost.joules) / whole_.joules)} % of all` : "";
    return element("tr", {}, element("th", { scope: "row", textContent: network.name }), element("td", { textContent: whole.format(cost.operations) }), element("td", {}, si(cost.joules, "J"), element("small", { textContent: share })));
  }));
}

// For screen readers: once, where the player halts.
function speak() {
  const views = lookAt(page.run, page.time), stop = stopped();
  if (!views) return;
  const says = CLASSIFIES ? `${DATA.classes[best(views[0].mean)]}, ${percent(Math.max(...views[0].mean))} sure` : brief(views[0].mean[0]);
  $("spoken").textContent = `At time step ${page.time} of ${STEPS}: ${says}. ${stop ? sentenceOfStop(stop) : ""}`;
}

// Drawing

const seenDrawing = () => (page.strokes.length ? start([record(DATA.sketchpad, DATA.input_shape, reduced(page.strokes, PEN, DATA.sketchpad.grid))], "drawing") : clear());

function clear() {
  Object.assign(page, { strokes: [], run: null, time: 0, playing: false, source: null });
  drawPad();
  show();
}

function drawPad() {
  const [g, width] = surface($("drawing"));
  g.strokeStyle = g.fillStyle = colour("ink");
  g.lineWidth = 2 * PEN * width;
  g.lineCap = g.lineJoin = "round";
  for (const stroke of page.strokes) {
    g.beginPath();
    stroke.forEach(([x, y], i) => (i ? g.lineTo(x * width, y * width) : g.moveTo(x * width, y * width)));
    g.lineTo(stroke.at(-1)[0] * width, stroke.at(-1)[1] * width);
    g.stroke();
  }
  if (!page.strokes.length) {
    g.fillStyle = colour("soft");
    g.textAlign = "center";
    g.font = "15px system-ui, sans-serif";
    g.fillText(page.pen ? "space puts the pen down" : "draw here", width / 2, width / 2);
  }
  if (page.pen && document.activeElement === $("drawing")) {
    g.fillStyle = colour(page.pen.down ? "s2" : "s6");
    g.beginPath();
    g.arc(page.pen.at[0] * width, page.pen.at[1] * width, 5, 0, 7);
    g.fill();
  }
}

const placeIn = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [between(0, (event.clientX - box.left) / box.width, 1), between(0, (event.clientY - box.top) / box.height, 1)];
};

function setUpPad() {
  const canvas = $("drawing");
  let waiting = 0, last = null;
  $("pad").hidden = false;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    clearTimeout(waiting);
    if (page.source !== "drawing") page.strokes = [];
    page.pen = null;
    last = [placeIn(canvas, event)];
    page.strokes.push(last);
    Object.assign(page, { run: null, time: 0, playing: false, source: "drawing" });
    drawPad();
    show();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    last.push(placeIn(canvas, event));
    drawPad();
  });
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, () => {
      if (!last) return;
      last = null;
      waiting = setTimeout(seenDrawing, 350); // another stroke may follow
    });
  canvas.addEventListener("keydown", keyOnPad);
  canvas.addEventListener("blur", drawPad);
  $("clear").addEventListener("click", clear);
}

// Arrow keys move the pen, space puts it down and lifts it.
function keyOnPad(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  page.pen ??= { at: [0.3, 0.2], down: false };
  const { pen } = page;
  if (event.key === "Enter") return seenDrawing();
  if (event.key === "Delete" || event.key === "Backspace" || event.key === "Escape") return clear();
  if (event.key === " ") {
    if (page.source !== "drawing") clear();
    page.source = "drawing";
    pen.down = !pen.down;
    if (pen.down) page.strokes.push([[...pen.at]]);
    $("spoken").textContent = pen.down ? "Pen down" : "Pen up; Enter shows the drawing to the network";
  } else if (moves[event.key]) {
    pen.at = pen.at.map((v, i) => between(0.05, v + 0.04 * moves[event.key][i], 0.95));
    if (pen.down) page.strokes.at(-1).push([...pen.at]);
  } else return undefined;
  event.preventDefault();
  return drawPad();
}

// Points

function setPoint(features, source = null) {
  page.features = features;
  for (const control of $("features").querySelectorAll("input, select")) control.refresh();
  return start(trainsOfPoint(features), source, "end");
}

function setUpFeatures() {
  const { low, high } = DATA.encoding, host = $("features");
  const columns = DATA.columns.length ? DATA.columns : low.map((_, i) => ({ name: `feature ${i + 1}`, categories: [], blanks: false }));
  host.hidden = false;
  let first = 0;
  for (const column of columns) {
    const at = first, put = (values) => setPoint(page.features.map((v, i) => (i >= at && i < at + values.length ? values[i - at] : v)));
    const title = element("span", { textContent: column.name }), value = element("output");
    const label = element("label", { className: "feature" }, title, value);
    if (column.categories.length) {
      const select = element("select", {}, ...column.categories.map((name) => element("option", { textContent: name || "blank" })));
      select.refresh = () => { select.selectedIndex = column.categories.findIndex((_, i) => page.features[at + i] === 1); };
      select.addEventListener("change", () => put(column.categories.map((_, i) => Number(i === select.selectedIndex))));
      label.append(select);
      first += column.categories.length;
    } else {
      const slider = element("input", { type: "range", min: low[at], max: high[at], step: (high[at] - low[at]) / 200 });
      slider.refresh = () => {
        slider.value = page.features[at];
        value.textContent = brief(page.features[at]);
      };
      slider.addEventListener("input", () => put([Number(slider.value)]));
      label.append(slider);
      first += 1;
      if (column.blanks) {
        const box = element("input", { type: "checkbox" }), blank = at + 1;
        box.refresh = () => { box.checked = page.features[blank] === 1; };
        box.addEventListener("change", () => put([box.checked ? column.fill : page.features[at], Number(box.checked)]));
        host.append(label, element("label", { className: "feature" }, element("span", { className: "blank" }, box, ` ${column.name} is blank`)));
        first += 1;
        continue;
      }
    }
    host.append(label);
  }
}

function setUpPlane() {
  const canvas = $("plane-canvas"), { low, high } = DATA.encoding;
  let dragging = false;
  $("plane").hidden = false;
  const drag = (event) => {
    const [x, y] = placeIn(canvas, event);
    setPoint([low[0] + x * (high[0] - low[0]), low[1] + (1 - y) * (high[1] - low[1])]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    dragging = true;
    drag(event);
  });
  canvas.addEventListener("pointermove", (event) => { if (dragging) drag(event); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { dragging = false; });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!move) return;
    event.preventDefault();
    setPoint(page.features.map((v, i) => between(low[i], v + (move[i] * (high[i] - low[i])) / 50, high[i])));
  });
}

// What the network brings

function setUpExamples() {
  $("examples-title").textContent = DATA.encoding ? "Test points" : "Test recordings";
  $("examples").replaceChildren(...DATA.examples.map((example) => {
    const button = element("button", { type: "button", title: `labelled ${example.label}` });
    button.example = example;
    if (IMAGES && !DATA.encoding) {
      const canvas = element("canvas");
      canvas.setAttribute("aria-hidden", "true");
      button.append(canvas);
    }
    button.append(example.label);
    button.setAttribute("aria-label", `${DATA.encoding ? "Test point" : "Test recording"} labelled ${example.label}`);
    button.addEventListener("click", () => {
      page.strokes = [];
      if (DATA.sketchpad) drawPad();
      if (DATA.encoding) setPoint(example.features, example);
      else start(trainsOf(example), example);
    });
    return element("li", {}, button);
  }));
}

function drawThumbnails() {
  for (const button of $("examples").querySelectorAll("button")) {
    const canvas = button.querySelector("canvas");
    if (!canvas) continue;
    const [train] = trainsOf(button.example);
    const some = train.slice(0, Math.max(1, Math.round(STEPS / 4))); // the first leg of a path
    drawEvents(canvas, DATA.input_shape, ON, (n) => Math.min(1, (2 * some.reduce((sum, x) => sum + isSet(x, n), 0)) / some.length));
  }
}

function setUpLayers() {
  const name = (layer, i) => `Layer ${i + 1}, ${layer.kind === "conv" ? "convolutional" : layer.kind}`;
  const titles = [IMAGES ? "Events of the camera" : DATA.encoding ? "Input, a row for each feature" : "Input", ...NETWORKS[0].layers.map(name)];
  $("layers").replaceChildren(...titles.map((title) => {
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    return element("figure", {}, element("figcaption", {}, element("b", { textContent: title }), element("span")), canvas);
  }));
  const options = NETWORKS.flatMap((network, i) => {
    if (network.members === 1) return [[network.name === "network" ? "the network" : network.name, `${i} 0`]];
    return [[`all ${network.members} members`, `${i} -1`], ...Array.from({ length: network.members }, (_, k) => [`member ${k + 1}`, `${i} ${k}`])];
  });
  $("shown").replaceChildren(...options.map(([text, value]) => element("option", { textContent: text, value })));
  $("shown").addEventListener("change", show);
}

function setUpTexts() {
  const layers = NETWORKS[0].layers, neurons = layers.reduce((sum, layer) => sum + layer.size, 0);
  const bits = layers.every((layer) => layer.planes === 1) ? "single bits" : "a few bits each";
  const members = NETWORKS[0].members > 1 ? ` ${NETWORKS[0].members} such networks, drawn from what was learned, know together how sure they are.` : "";
  $("lead").textContent = `${DATA.title}: a network of ${whole.format(neurons)} spiking neurons, whose ${whole.format(DATA.weights)} weights are ${bits}: ${si(DATA.bytes, "B")}.${members} All of it runs in this page, on your machine.`;
  $("input-title").textContent = DATA.sketchpad ? "Draw, or choose a recording" : DATA.encoding ? "Choose a point" : "Choose a recording";
  $("input-note").textContent = DATA.sketchpad
    ? "An event camera sees changes alone, so drawings move in front of it: blue gets brighter, orange darker. For drawings it is a simplified camera, without noise; on the test recordings every bit is Python’s."
    : "On these, every bit is Python’s.";
  const burnt = DATA.burn_in ? ` A prediction is the mean over time from step ${DATA.burn_in + 1} on; before, each step by itself.` : " A prediction is the mean over time.";
  $("chart-title").textContent = CLASSIFIES ? "Probabilities over time" : "Output over time";
  $("chart-note").textContent = (CLASSIFIES ? "" : "Grey: members. ") + burnt.trim();
  if (DATA.sets) {
    const { coverage, recordings, most } = DATA.sets;
    $("sets").hidden = false;
    $("sets-note").textContent = `The classes that cannot be ruled out yet. In ${percent(coverage)} of all cases like the ${recordings} that it was calibrated on, the true class is inside at every look at once, so the network may stop as soon as ${most > 1 ? `${most} are` : "one is"} left.${DATA.sketchpad ? " Drawings are other cases: for them nothing is promised." : ""}`;
  }
  $("doubt").hidden = !CLASSIFIES;
  $("cost-note").textContent = `Up to the time step shown: a spike at a synapse is one addition and no multiplication. Energy by the prices of ${DATA.prices.source}; an estimate, not a measurement.`;
  $("footer").textContent = `Written by bisnn ${DATA.version} from a model with the digest ${DATA.source.slice(0, 12)}. This page asks for nothing from any network: its Content-Security-Policy forbids it.`;
}

function setUp() {
  page.features = DATA.examples[0].features;
  setUpTexts();
  setUpLayers();
  setUpExamples();
  if (DATA.sketchpad) setUpPad();
  if (DATA.encoding) setUpFeatures();
  if (DATA.plane) setUpPlane();
  $("play").addEventListener("click", play);
  $("time").addEventListener("input", () => {
    Object.assign(page, { playing: false, time: page.run ? Math.min(Number($("time").value), page.run.time) : 0 });
    show();
  });
  $("time").addEventListener("change", speak);
  const redraw = () => {
    show();
    drawThumbnails();
    if (DATA.sketchpad) drawPad();
  };
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
  $("check").textContent = "Comparing every spike with Python’s…";
  const first = DATA.examples[0];
  page.ready = check().then(() => {
    if (page.run || page.strokes.length) return;
    if (DATA.encoding) setPoint(first.features, first);
    else start(trainsOf(first), first);
  });
}

setUp();
