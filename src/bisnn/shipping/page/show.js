// Everything that changes with the time step that is shown.

const MOST_BARS = 12;
const DASHED = { wide: 1.5, dash: [4, 3] }; // lines of MAP, beside the ensemble's
const LINGER = 0.42; // what is left of a spike's light after a time step

function show() {
  $("play").classList.toggle("playing", page.playing);
  $("play").ariaLabel = page.playing ? "Pause" : "Play";
  $("time").max = lengthNow();
  $("time").value = page.time;
  $("time").ariaValueText = `time step ${page.time} of ${lengthNow()}`;
  $("clock").textContent = `${page.time} of ${lengthNow()}`;
  for (const button of $("examples").querySelectorAll("button"))
    button.ariaPressed = button.example === page.source;
  showAnswer();
  showLayers();
  if (CLASSIFIES) {
    showBars();
    showProbabilities();
    showDoubt();
  } else showOutputs();
  if (DATA.sets) showSets();
  showCost();
  if (DATA.plane) {
    if (CLASSIFIES) drawPlane($("plane-canvas"), DATA.plane, CODE, page.features);
    else drawCurve($("plane-canvas"), DATA.plane, page.features[0]);
  }
}

function showAnswer() {
  const views = viewsNow(), stop = stopNow();
  const says = { name: "–", sure: page.run ? "…" : hintOfInput(), others: "", glance: "" };
  if (views && CLASSIFIES) Object.assign(says, answerOf(...views));
  else if (views) Object.assign(says, outputOf(...views));
  $("says").textContent = says.name;
  $("says").classList.toggle("long", says.name.length > 3);
  $("says").classList.toggle("unsure", Boolean(says.unsure));
  $("sure").textContent = says.sure;
  $("others").textContent = says.others;
  $("glance").textContent = says.glance;
  $("stop").textContent = stop ? sentenceOfStop(stop) : "";
  $("stop").classList.toggle("open", Boolean(stop && !stop.decided));
}

function hintOfInput() {
  if (DATA.sketchpad) return "Draw something, or choose a recording.";
  return CODE ? "Move a slider, or choose a point." : "Choose a recording.";
}

function answerOf(first, second) {
  const c = likeliest(first.mean), p = first.mean[c], name = DATA.classes[c];
  const others = second
    ? `${NETWORKS[0].name}; ${NETWORKS[1].name} says ${DATA.classes[likeliest(second.mean)]}, ` +
      `${percent(Math.max(...second.mean))} sure`
    : "";
  return {
    name,
    sure: `${percent(p)} sure${page.time <= DATA.burn_in ? " at this step" : ""}`,
    others,
    glance: `${name} · ${percent(p)}`,
    unsure: p < 0.5,
  };
}

function outputOf(first, second) {
  return {
    name: brief(first.mean[0]),
    sure: ENSEMBLE ? `± ${brief(first.spread[0])} between members` : "",
    others: second ? `${NETWORKS[1].name}: ${brief(second.mean[0])}` : "",
  };
}

function sentenceOfStop(stop) {
  const names = namesIn(stop), which = `${names.length > 1 ? "one of " : ""}${names.join(", ")}`;
  if (!stop.decided) return `Undecided to the end: ${which}.`;
  return `Decided after ${stop.time} of ${lengthNow()} time steps: ${which}.`;
}

// A bar for each class: the ensemble's probability, a mark for MAP's, a frame if it is in the set.
function showBars() {
  const [first, second] = viewsNow() || [], look = stopNow() || looksSoFar().at(-1);
  const order = DATA.classes.map((_, c) => c), leading = leaders();
  if (first && order.length > MOST_BARS) order.sort((a, b) => first.mean[b] - first.mean[a]);
  const items = order.slice(0, MOST_BARS).map((c) => {
    const rank = leading.indexOf(c), p = first ? first.mean[c] : 0, name = DATA.classes[c];
    const bar = element("b", { className: toneOf(c, rank) });
    const track = element("div", { className: "track" }, bar);
    bar.style.width = `${100 * p}%`;
    if (second) {
      const mark = element("i", { title: NETWORKS[1].name });
      mark.style.left = `${100 * second.mean[c]}%`;
      track.append(mark);
    }
    const label = element("span", { textContent: name, title: name });
    const value = element("span", { className: "value", textContent: first ? percent(p) : "" });
    const item = element("li", {}, label, track, value);
    if (look && look.inside[c]) {
      item.className = "in";
      item.append(element("span", { className: "visually-hidden", textContent: "in the set" }));
    }
    return item;
  });
  $("bars").replaceChildren(...items);
}

// The spikes (words) that are shown of the input or of a layer at a time step, a row per member.
function rowsAt(t, part) {
  const { run } = page, [i, k] = $("shown").value.split(" ").map(Number);
  if (part === INPUT) return [run.trains[0][t]];
  const all = run.steps[t][0][i].spikes[part], { members } = NETWORKS[i], n = all.length / members;
  const chosen = k < 0 ? [...Array(members).keys()] : [k];
  return chosen.map((member) => all.subarray(member * n, (member + 1) * n));
}

// How bright neuron n is: the share of the members shown that fire now, or did a little while ago.
function glowOf(part) {
  const recent = [];
  for (let age = 0; age < 3 && age < page.time; age++)
    recent.push([LINGER ** age, rowsAt(page.time - age - 1, part)]);
  return (n) => recent.reduce((most, [light, rows]) => {
    let fired = 0;
    for (const row of rows) fired += isSet(row, n);
    return Math.max(most, (light * fired) / rows.length);
  }, 0);
}

function showLayers() {
  [INPUT, ...NETWORKS[0].layers.keys()].forEach((part) => {
    const [caption, canvas] = $("layers").children[part + 1].children;
    const shape = part === INPUT ? DATA.input_shape : NETWORKS[0].layers[part].output_shape;
    const there = page.run && page.time, level = there ? glowOf(part) : () => 0;
    const rowsOf = (d) => [1, d, product(shape) / d]; // of a coded point: a row for each feature
    if (part === INPUT && IMAGES) drawEvents(canvas, shape, ON, level);
    else drawNeurons(canvas, part === INPUT && CODE ? rowsOf(CODE.low.length) : shape, level);
    const rows = there ? rowsAt(page.time - 1, part) : [], all = whole.format(product(shape));
    const active = rows.reduce((sum, row) => sum + countBits(row), 0) / (rows.length || 1);
    const text = `${whole.format(Math.round(active))} of ${all}`;
    caption.lastElementChild.textContent = there ? ` ${text} now` : ` ${all}`;
    canvas.ariaLabel = `${caption.firstElementChild.textContent}: ${text} fire`;
  });
}

function showProbabilities() {
  const views = viewsSoFar(), leading = leaders(), canvas = $("chart"), stop = stopNow();
  const others = [...DATA.classes.keys()].filter((c) => !leading.includes(c));
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const chart = axes(canvas, STEPS, DATA.burn_in, 0, 1, ticks, (v) => `${100 * v}%`);
  const line = (i, c) => views.map((view) => view[i].mean[c]);
  markTimes(chart, page.time, stop && stop.time);
  for (const c of others) drawLine(chart, line(0, c), colour("s6"), { wide: 1, alpha: 0.6 });
  leading.forEach((c, rank) => {
    const style = colour(toneOf(c, rank));
    drawLine(chart, line(0, c), style, { wide: 2.5 });
    if (NETWORKS.length > 1) drawLine(chart, line(1, c), style, DASHED);
  });
  const entries = leading.map((c, rank) => [toneOf(c, rank), DATA.classes[c]]);
  if (NETWORKS.length > 1) entries.push(["ink", NETWORKS[0].name], ["dash", NETWORKS[1].name]);
  showLegend(entries);
  const now = viewsNow();
  const said = leading.map((c) => `${DATA.classes[c]} ${percent(now[0].mean[c])}`).join(", ");
  canvas.ariaLabel = now ? `At time step ${page.time}: ${said}` : "Nothing yet";
}

function showLegend(entries) {
  const entry = ([className, name]) => element("li", {}, element("i", { className }), name);
  $("chart-legend").replaceChildren(...entries.map(entry));
}

function showOutputs() {
  const views = viewsSoFar(), now = viewsNow(), canvas = $("chart");
  const values = views.flatMap((view) => [...view[0].members, ...(view[1] ? view[1].mean : [])]);
  let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const ticks = [low, (low + high) / 2, high];
  const digits = between(0, 1 - Math.floor(Math.log10(high - low)), 9); // that tell ticks apart
  const chart = axes(canvas, STEPS, DATA.burn_in, low, high, ticks, (v) => v.toFixed(digits));
  markTimes(chart, page.time, null);
  for (let k = 0; k < NETWORKS[0].members; k++) {
    const line = views.map((view) => view[0].members[k * DATA.outputs]);
    drawLine(chart, line, colour("s6"), { wide: 1, alpha: 0.7 });
  }
  drawLine(chart, views.map((view) => view[0].mean[0]), colour("s1"), { wide: 2.5 });
  const second = NETWORKS.length > 1 ? views.map((view) => view[1].mean[0]) : [];
  drawLine(chart, second, colour("ink"), DASHED);
  const entries = ENSEMBLE ? [["s6", "members"]] : [];
  showLegend([["s1", NETWORKS[0].name], ...entries, ...NETWORKS.slice(1).map((n) => ["dash", n.name])]);
  canvas.ariaLabel = now ? `At time step ${page.time}: ${brief(now[0].mean[0])}` : "Nothing yet";
}

function showSets() {
  const seen = looksSoFar(), last = seen.at(-1), canvas = $("sets-chart");
  drawSets(canvas, DATA.classes, seen, DATA.sets.path, STEPS, page.time, stopNow());
  const text = last ? `At time step ${last.time}: ${namesIn(last).join(", ")}` : "No look yet";
  canvas.ariaLabel = text;
}

function showDoubt() {
  const views = viewsSoFar().map((view) => view[0]), last = views.at(-1), stop = stopNow();
  const most = Math.log(DATA.outputs), canvas = $("doubt-chart");
  const ticks = [0, most / 2, most];
  const chart = axes(canvas, STEPS, DATA.burn_in, 0, most, ticks, (v) => v.toFixed(1));
  const total = views.map((view) => view.total);
  const own = views.map((view) => view.total - view.disagreement);
  drawArea(chart, own.map(() => 0), own, colour("s5"));
  drawArea(chart, own, total, colour("s4"));
  markTimes(chart, page.time, stop && stop.time);
  let text = `In nats; ${most.toFixed(2)} is knowing nothing.`;
  if (last) text = `${last.total.toFixed(2)} nats of at most ${most.toFixed(2)}.`;
  if (last && ENSEMBLE)
    text += ` ${own.at(-1).toFixed(2)} of it because the input could be several things, ` +
      `${last.disagreement.toFixed(2)} because the members disagree.`;
  $("doubt-note").textContent = canvas.ariaLabel = text;
}

function showCost() {
  const { run, time } = page;
  const rows = NETWORKS.map((network, i) => {
    const cost = run && time ? run.costs[time - 1][i] : { operations: 0, joules: 0 };
    const partly = run && run.done && time && time < run.length;
    const share = partly ? Math.round((100 * cost.joules) / run.costs.at(-1)[i].joules) : 100;
    const small = element("small", { textContent: partly ? `${share} % of all` : "" });
    return element(
      "tr",
      {},
      element("th", { scope: "row", textContent: network.name }),
      element("td", { textContent: whole.format(cost.operations) }),
      element("td", {}, si(cost.joules, "J"), small),
    );
  });
  $("cost").replaceChildren(...rows);
}

// For screen readers: once, where the player halts.
function speak() {
  const views = viewsNow(), stop = stopNow();
  if (!views) return;
  const says = CLASSIFIES ? answerOf(...views) : outputOf(...views);
  const text = `At time step ${page.time} of ${lengthNow()}: ${says.name}, ${says.sure}.`;
  $("spoken").textContent = stop ? `${text} ${sentenceOfStop(stop)}` : text;
}
