// Inputs: examples that the page brings, drawings, and points moved by sliders or on a plane.

const PEN = 0.055; // radius, of the drawing area's edge
const ANOTHER_MS = 350; // after a stroke, in which another one may follow

// The input's words at every time step, a list for each encoding.
function trainsOf(example) {
  if (CODE) return trainsOfPoint(example.features);
  const all = wordsOf(bytesOf(example.bits)), n = INPUT_WORDS, length = stepsOf(example);
  return [Array.from({ length }, (_, t) => all.subarray(t * n, (t + 1) * n))];
}

function trainsOfPoint(features) {
  return Array.from({ length: CODE.encodings }, (_, draw) => encode(CODE, features, draw));
}

function placeIn(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const place = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  return place.map((v) => between(0, v, 1));
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Call back with the place of the first pointer that is held down on a canvas, by the first button
// of a mouse, and once it is let go.
function onDrag(canvas, begin, move, end) {
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (held !== null || event.button !== 0) return;
    held = event.pointerId;
    canvas.setPointerCapture(held);
    begin(placeIn(canvas, event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId === held) move(placeIn(canvas, event));
  });
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, (event) => {
      if (event.pointerId !== held) return;
      held = null;
      end();
    });
}

// Drawing

function setUpPad() {
  const canvas = $("drawing");
  let waiting = 0;
  $("pad").hidden = false;
  onDrag(
    canvas,
    (place) => {
      clearTimeout(waiting);
      page.pen = null;
      beginStroke(place);
    },
    (place) => {
      page.strokes.at(-1)?.push(place); // unless keys have cleared it meanwhile
      drawPad();
    },
    () => { waiting = setTimeout(showDrawing, ANOTHER_MS); },
  );
  canvas.addEventListener("keydown", keyOnPad);
  canvas.addEventListener("blur", drawPad);
  $("clear").addEventListener("click", clearPad);
}

function beginStroke(place) {
  const strokes = page.source === "drawing" ? page.strokes : [];
  halt({ source: "drawing", strokes: [...strokes, [place]] });
  drawPad();
  show();
}

// Forget the drawing; whoever draws by keys has to put the pen down again.
function wipe() {
  page.strokes = [];
  if (page.pen) page.pen.down = false;
  drawPad();
}

function clearPad() {
  halt({ source: null });
  wipe();
  show();
}

// Let the camera look at the drawing, and the network at what the camera saw.
function showDrawing() {
  if (!page.strokes.length) return;
  const image = reduced(page.strokes, PEN, DATA.sketchpad.grid);
  start([record(DATA.sketchpad, DATA.input_shape, image)], "drawing");
}

function drawPad() {
  const [g, width] = surface($("drawing")), { pen, strokes } = page;
  g.strokeStyle = g.fillStyle = colour("ink");
  g.lineWidth = 2 * PEN * width;
  g.lineCap = g.lineJoin = "round";
  for (const stroke of strokes) {
    g.beginPath();
    g.moveTo(stroke[0][0] * width, stroke[0][1] * width);
    for (const [x, y] of stroke) g.lineTo(x * width, y * width);
    g.stroke();
  }
  if (!strokes.length) {
    g.fillStyle = colour("soft");
    g.textAlign = "center";
    g.font = "15px system-ui, sans-serif";
    g.fillText(pen ? "space puts the pen down" : "draw here", width / 2, width / 2);
  }
  if (pen && document.activeElement === $("drawing")) {
    g.fillStyle = colour(pen.down ? "s2" : "s6");
    g.beginPath();
    g.arc(pen.at[0] * width, pen.at[1] * width, 5, 0, 7);
    g.fill();
  }
}

// Arrow keys move the pen, space puts it down and lifts it.
function keyOnPad(event) {
  page.pen ??= { at: [0.3, 0.2], down: false };
  const { pen } = page, move = ARROWS[event.key];
  if (event.key === "Enter") showDrawing();
  else if (["Delete", "Backspace", "Escape"].includes(event.key)) clearPad();
  else if (event.key === " ") {
    pen.down = !pen.down;
    if (pen.down) beginStroke(pen.at);
    const next = "Pen up; Enter shows the drawing to the network";
    $("spoken").textContent = pen.down ? "Pen down" : next;
  } else if (move) {
    pen.at = pen.at.map((v, i) => between(0.05, v + 0.04 * move[i], 0.95));
    if (pen.down) page.strokes.at(-1).push(pen.at);
  } else return;
  event.preventDefault();
  drawPad();
}

// Points

function setPoint(features, source = "point") {
  page.features = features;
  for (const control of $("features").querySelectorAll("input, select")) control.refresh();
  start(trainsOfPoint(features), source, false);
}

// Set some features, from the first on.
function setFeatures(first, values) {
  const put = (v, i) => (i >= first && i < first + values.length ? values[i - first] : v);
  setPoint(page.features.map(put));
}

function setUpFeatures() {
  const unnamed = CODE.low.map((_, i) => ({ name: `feature ${i + 1}`, categories: [] }));
  $("features").hidden = false;
  let first = 0;
  for (const column of DATA.columns.length ? DATA.columns : unnamed) {
    const add = column.categories.length ? addCategories : addSlider;
    first += add(column, first);
  }
}

function addLabelled(name, ...controls) {
  const title = element("span", { textContent: name });
  $("features").append(element("label", { className: "feature" }, title, ...controls));
}

// A column's controls; how many features it has.
function addCategories({ name, categories }, first) {
  const option = (category) => element("option", { textContent: category || "blank" });
  const select = element("select", {}, ...categories.map(option));
  select.refresh = () => {
    select.selectedIndex = categories.findIndex((_, i) => page.features[first + i] === 1);
  };
  select.addEventListener("change", () => {
    setFeatures(first, categories.map((_, i) => Number(i === select.selectedIndex)));
  });
  addLabelled(name, select);
  return categories.length;
}

function addSlider({ name, blanks, fill }, first) {
  const [min, max] = [CODE.low[first], CODE.high[first]], value = element("span", { className: "value" });
  const range = { type: "range", min, max, step: (max - min) / 200 };
  const slider = element("input", { ...range, ariaLabel: name });
  slider.refresh = () => {
    slider.value = page.features[first];
    value.textContent = brief(page.features[first]);
  };
  slider.addEventListener("input", () => {
    setFeatures(first, blanks ? [Number(slider.value), 0] : [Number(slider.value)]);
  });
  addLabelled(name, value, slider);
  if (!blanks) return 1;
  const box = element("input", { type: "checkbox" });
  box.refresh = () => { box.checked = page.features[first + 1] === 1; };
  box.addEventListener("change", () => {
    setFeatures(first, [box.checked ? fill : page.features[first], Number(box.checked)]);
  });
  $("features").append(element("label", { className: "blank" }, box, ` ${name} is blank`));
  return 2;
}

function setUpPlane() {
  const canvas = $("plane-canvas"), { low, high } = CODE;
  const drag = ([x, y]) => setPoint(low.map((v, i) => v + [x, 1 - y][i] * (high[i] - v)));
  $("plane").hidden = false;
  if (!CLASSIFIES) {
    canvas.ariaLabel = "The output over the feature. Arrow keys move the point.";
    $("plane-help").textContent = "Drag the point. Blue: what the network says over the feature, " +
      "and two deviations between its members on either side; dots: test points.";
  }
  onDrag(canvas, drag, drag, () => {});
  canvas.addEventListener("keydown", (event) => {
    if (!ARROWS[event.key]) return;
    const [x, y] = ARROWS[event.key], step = (v, i) => v + ([x, -y][i] * (high[i] - low[i])) / 50;
    event.preventDefault();
    setPoint(page.features.map((v, i) => between(low[i], step(v, i), high[i])));
  });
}

// Examples

function choose(example) {
  if (DATA.sketchpad) wipe();
  if (CODE) setPoint(example.features, example);
  else start(trainsOf(example), example);
}

function setUpExamples() {
  const what = CODE ? "Test point" : "Test recording";
  $("examples-title").textContent = `${what}s`;
  const items = DATA.examples.map((example, i) => {
    const title = `${what} ${i + 1}, labelled ${example.label}`;
    const button = element("button", { type: "button", title, ariaLabel: title, example });
    if (IMAGES) button.append(element("canvas"));
    button.append(example.label);
    button.addEventListener("click", () => choose(example));
    return element("li", {}, button);
  });
  $("examples").replaceChildren(...items);
}

// A recording's first quarter, on its button.
function drawThumbnails() {
  for (const canvas of $("examples").querySelectorAll("canvas")) {
    const [train] = trainsOf(canvas.parentElement.example);
    const some = train.slice(0, Math.ceil(train.length / 4));
    const events = (n) => some.reduce((sum, x) => sum + isSet(x, n), 0);
    drawEvents(canvas, DATA.input_shape, ON, (n) => Math.min(1, (2 * events(n)) / some.length));
  }
}
