// Drawings on canvases, in the colours of the page.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A cleared canvas at the screen's resolution: context, width and height in CSS pixels.
function surface(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "12px system-ui, sans-serif";
  return [g, width, height];
}

const isSet = (x, n) => (x[n >>> 5] >>> (n & 31)) & 1;

// Events of an input (C, H, W), each pixel as bright as `level(n)` of its bits says: ON blue, OFF
// orange.
function drawEvents(canvas, shape, on, level) {
  const [g, width, height] = surface(canvas), [C, H, W] = shape;
  const edge = Math.min(width / W, height / H);
  const [left, top] = [(width - edge * W) / 2, (height - edge * H) / 2];
  for (let c = 0; c < C; c++) {
    g.fillStyle = colour(C === 1 || c === on ? "s1" : "s2");
    for (let n = 0; n < H * W; n++) {
      const [x, y] = [left + edge * (n % W), top + edge * Math.floor(n / W)];
      g.globalAlpha = level(c * H * W + n);
      if (g.globalAlpha) g.fillRect(x, y, edge + 0.3, edge + 0.3);
    }
  }
  g.globalAlpha = 1;
}

// Neurons of a layer, each as bright as `level(n)`: images tiled channel by channel, others in
// rows.
function drawNeurons(canvas, shape, level) {
  const [g, width, height] = surface(canvas);
  const [C, H, W] = shape.length === 3 ? shape : [shape[0], 1, 1], gap = H * W > 1 ? 1 : 0;
  let [columns, edge] = [1, 0];
  for (let n = 1; n <= C; n++) { // the tiling with the largest neurons
    const fits = Math.min(width / (n * (W + gap)), height / (Math.ceil(C / n) * (H + gap)));
    if (fits > edge) [columns, edge] = [n, fits];
  }
  const left = (width - edge * (columns * (W + gap) - gap)) / 2;
  const top = (height - edge * (Math.ceil(C / columns) * (H + gap) - gap)) / 2;
  const dot = edge * (gap ? 0.92 : 0.8), [idle, lit] = [colour("line"), colour("s3")];
  for (let n = 0; n < C * H * W; n++) {
    const c = Math.floor(n / (H * W)), value = level(n);
    const x = left + edge * ((c % columns) * (W + gap) + (n % W));
    const y = top + edge * (Math.floor(c / columns) * (H + gap) + Math.floor((n / W) % H));
    g.globalAlpha = value ? 0.25 + 0.75 * value : gap ? 0.5 : 0.8;
    g.fillStyle = value ? lit : idle;
    g.fillRect(x, y, dot, dot);
  }
  g.globalAlpha = 1;
}

// Axes of a chart over time, with the burn-in shaded: x(t) and y(v) in pixels for values from low
// to high.
function axes(canvas, steps, burnIn, low, high, ticks, text) {
  const [g, width, height] = surface(canvas);
  const [left, right, top, bottom] = [44, width - 14, 8, height - 22];
  const x = (t) => left + ((right - left) * t) / steps;
  const y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low || 1);
  g.fillStyle = colour("back");
  g.fillRect(left, top, x(burnIn) - left, bottom - top);
  g.strokeStyle = colour("line");
  g.fillStyle = colour("soft");
  g.lineWidth = 1;
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const v of ticks) {
    g.beginPath();
    g.moveTo(left, y(v));
    g.lineTo(right, y(v));
    g.stroke();
    g.fillText(text(v), left - 6, y(v));
  }
  g.textBaseline = "alphabetic";
  g.textAlign = "center";
  const every = Math.max(1, Math.ceil(steps / 10 / 5) * 5);
  for (let t = 0; t <= steps; t += steps > 10 ? every : 1) g.fillText(t, x(t), height - 5);
  return { g, x, y, left, right, top, bottom };
}

// The time step that is shown, and the stop.
function markTimes({ g, x, top, bottom }, now, stop) {
  for (const [t, name, dash] of [[now, "ink", []], [stop, "s3", [5, 4]]]) {
    if (!t) continue;
    g.strokeStyle = colour(name);
    g.lineWidth = t === stop && name === "s3" ? 2 : 1;
    g.setLineDash(dash);
    g.beginPath();
    g.moveTo(x(t), top);
    g.lineTo(x(t), bottom);
    g.stroke();
    g.setLineDash([]);
  }
}

function drawLine({ g, x, y }, values, style, { wide = 2, dash = [], alpha = 1 } = {}) {
  g.strokeStyle = style;
  g.lineWidth = wide;
  g.globalAlpha = alpha;
  g.setLineDash(dash);
  g.lineJoin = "round";
  g.beginPath();
  values.forEach((v, t) => (t ? g.lineTo(x(t + 1), y(v)) : g.moveTo(x(1), y(v))));
  g.stroke();
  g.setLineDash([]);
  g.globalAlpha = 1;
}

function drawArea({ g, x, y }, lower, upper, style) {
  if (!upper.length) return;
  g.fillStyle = style;
  g.beginPath();
  upper.forEach((v, t) => (t ? g.lineTo(x(t + 1), y(v)) : g.moveTo(x(1), y(v))));
  for (let t = lower.length - 1; t >= 0; t--) g.lineTo(x(t + 1), y(lower[t]));
  g.fill();
}

// Sets of classes at the looks so far: a row for each class, a column for each look; what lies
// before the first look, or behind the stop, is pale.
function drawSets(canvas, names, seen, path, steps, now, stop) {
  const chart = axes(canvas, steps, 0, -0.5, names.length - 0.5, [], String);
  const { g, x, y, left } = chart, first = path[0][0];
  const tall = Math.min(18, 0.8 * (y(0) - y(1)));
  const wide = Math.min(22, (0.7 * (x(steps) - x(first - 1))) / path.length);
  const block = (t, row, [w, h], name, alpha) => {
    g.fillStyle = colour(name);
    g.globalAlpha = alpha;
    g.beginPath();
    g.roundRect(x(t) - w / 2, row - h / 2, w, h, 3);
    g.fill();
    g.globalAlpha = 1;
  };
  markTimes(chart, now, stop && stop.time);
  names.forEach((name, c) => {
    const row = y(names.length - 1 - c);
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = colour("soft");
    g.fillText(name.length > 5 ? `${name.slice(0, 4)}…` : name, left - 6, row);
    const before = Math.min(now, first - 1); // looks have not begun
    if (before > 0) block((1 + before) / 2, row, [Math.max(4, x(before) - x(1)), tall], "s3", 0.2);
    for (const { time, inside } of seen) {
      const alpha = stop && time > stop.time ? 0.35 : 1;
      if (inside[c]) block(time, row, [wide, tall], "s3", alpha);
      else block(time, row, [4, 4], "s6", alpha);
    }
  });
}

const planeTone = (c) => `s${(c % 5) + 1}`;

// The plane of two features: what the network says there, test points, and the point.
function drawPlane(canvas, plane, { low, high }, point) {
  const [g, width, height] = surface(canvas), edge = width / plane.size;
  const style = (c) => colour(planeTone(c)), at = (i, v) => (v - low[i]) / (high[i] - low[i]);
  const place = (i) => Math.round(edge * i); // whole pixels: no seams
  plane.classes.forEach((c, n) => {
    const x = n % plane.size, y = plane.size - 1 - Math.floor(n / plane.size);
    g.fillStyle = style(c);
    g.globalAlpha = 0.06 + 0.4 * Math.max(0, 2 * (plane.sure[n] / 255) - 1);
    g.fillRect(place(x), place(y), place(x + 1) - place(x), place(y + 1) - place(y));
  });
  for (const [a, b, c] of plane.dots) {
    g.fillStyle = style(c);
    g.globalAlpha = 0.8;
    g.beginPath();
    g.arc(width * at(0, a), height * (1 - at(1, b)), 2.5, 0, 7);
    g.fill();
  }
  g.globalAlpha = 1;
  drawPoint(g, width * at(0, point[0]), height * (1 - at(1, point[1])));
}

// The output over one feature, two deviations of the members on either side, test points, and the
// point.
function drawCurve(canvas, curve, point) {
  const [g, width, height] = surface(canvas), { x, mean, spread, dots } = curve;
  const [lower, upper] = [-2, 2].map((n) => mean.map((m, i) => m + n * spread[i]));
  const values = [...lower, ...upper, ...dots.map((dot) => dot[1])];
  const [low, high] = [Math.min(...values), Math.max(...values)], first = x[0], last = x.at(-1);
  const across = (v) => (width * (v - first)) / (last - first);
  const up = (v) => height * (0.95 - (0.9 * (v - low)) / (high - low || 1));
  const trace = (line) => line.forEach((v, i) => g.lineTo(across(x[i]), up(v)));
  g.fillStyle = g.strokeStyle = colour("s1");
  g.globalAlpha = 0.25;
  g.beginPath();
  trace(upper);
  for (let i = x.length - 1; i >= 0; i--) g.lineTo(across(x[i]), up(lower[i]));
  g.fill();
  g.globalAlpha = 1;
  g.lineWidth = 2;
  g.beginPath();
  trace(mean);
  g.stroke();
  g.fillStyle = colour("s6");
  for (const [a, b] of dots) g.fillRect(across(a) - 1.5, up(b) - 1.5, 3, 3);
  const next = x.findIndex((v) => v >= point);
  drawPoint(g, across(point), up(mean.at(next)));
}

function drawPoint(g, x, y) {
  g.lineWidth = 3;
  g.strokeStyle = colour("card");
  g.fillStyle = colour("ink");
  g.beginPath();
  g.arc(x, y, 9, 0, 7);
  g.fill();
  g.stroke();
}
