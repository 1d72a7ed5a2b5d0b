// A simplified event camera that looks at a drawing: the drawing moves along the path on which the
// training images moved, and a pixel reports when the logarithm of its light has changed by a
// threshold. No noise, no mismatch between pixels, no dead time: bisnn/data/camera.py has all that.

// Strokes, lists of points (x, y) in [0, 1], as a grey image (grid x grid) that fills its box.
function reduced(strokes, pen, grid) {
  const points = strokes.flat();
  const [left, right, top, bottom] = [0, 1].flatMap((axis) => {
    const values = points.map((point) => point[axis]);
    return [Math.min(...values) - pen, Math.max(...values) + pen];
  });
  const edge = Math.max(right - left, bottom - top, 1e-6), fine = 4 * grid;
  const along = (v, a, b) => fine * ((v - (a + b) / 2) / edge + 0.5);
  const at = ([x, y]) => [along(x, left, right), along(y, top, bottom)];
  const radius = (fine * pen) / edge, image = new Float32Array(grid * grid);
  const lines = strokes.map((stroke) => stroke.map(at));
  for (let y = 0; y < fine; y++)
    for (let x = 0; x < fine; x++) {
      const ink = lines.some((line) => near(line, x + 0.5, y + 0.5, radius));
      if (ink) image[(y >> 2) * grid + (x >> 2)] += 1 / 16;
    }
  return image;
}

// Whether a point is within a radius of a line of points.
function near(line, x, y, radius) {
  for (let i = 0; i < line.length; i++) {
    const [ax, ay] = line[Math.max(0, i - 1)], [bx, by] = line[i];
    const [dx, dy] = [bx - ax, by - ay], length = dx * dx + dy * dy;
    const along = length ? between(0, ((x - ax) * dx + (y - ay) * dy) / length, 1) : 0;
    if ((x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2 <= radius * radius) return true;
  }
  return false;
}

// Bilinear value of a grey image at (x, y) in pixels, 0 around it or, clamped, as at its edge.
function sample(image, size, x, y, clamped) {
  if (clamped) [x, y] = [between(0, x, size - 1), between(0, y, size - 1)];
  const left = Math.floor(x), top = Math.floor(y), u = x - left, v = y - top;
  const at = (i, j) => (i < 0 || j < 0 || i >= size || j >= size ? 0 : image[j * size + i]);
  const row = (j) => (1 - u) * at(left, j) + u * at(left + 1, j);
  return (1 - v) * row(top) + v * row(top + 1);
}

// The recording of a grey image (grid x grid): the input's words at every time step.
function record(camera, shape, small) {
  const [C, H, W] = shape, { grid, box, threshold_on, threshold_off } = camera;
  const [on, off] = C > 1 ? [camera.on, 1 - camera.on] : [0, 0];
  const image = new Float32Array(box * box);
  const from = (v) => ((v + 0.5) * grid) / box - 0.5;
  for (let y = 0; y < box; y++) // grown as the training images were
    for (let x = 0; x < box; x++) image[y * box + x] = sample(small, grid, from(x), from(y), true);
  const shown = ([cx, cy]) => {
    const light = new Float64Array(H * W);
    for (let y = 0; y < H; y++)
      for (let x = 0; x < W; x++) {
        const [u, v] = [(x - cx) / camera.scale[0], (y - cy) / camera.scale[1]];
        const grey = sample(image, box, u + (box - 1) / 2, v + (box - 1) / 2, false);
        light[y * W + x] = between(0, 0.5 + camera.contrast * (grey - camera.level), 1);
      }
    return light;
  };
  const steps = [], change = new Float64Array(H * W);
  const light = shown(camera.path[0]), level = light.map((v) => Math.log(v + camera.dark));
  for (let frame = 1; frame < camera.path.length; frame++) {
    if ((frame - 1) % camera.frames === 0) steps.push(new Int32Array(words(C * H * W)));
    const target = shown(camera.path[frame]), out = steps.at(-1);
    for (let n = 0; n < H * W; n++) {
      light[n] += camera.follow * (target[n] - light[n]); // a display takes its time
      const now = Math.log(light[n] + camera.dark);
      change[n] += now - level[n];
      level[n] = now;
      for (; change[n] >= threshold_on; change[n] -= threshold_on) setBit(out, on * H * W + n);
      for (; change[n] <= -threshold_off; change[n] += threshold_off) setBit(out, off * H * W + n);
    }
  }
  return steps;
}
