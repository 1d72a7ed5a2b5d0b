"use strict";
// The engine: a packed network in plain JavaScript, with the spikes and logits of `bisnn.packed`
// bit for bit. Weights and spikes are bits in 32-bit words, currents are whole numbers, and every
// float operation is rounded to float32 by Math.fround, in the order that `bisnn.neuron` gives.
//
// Bit n of a vector is bit n % 32 of word n / 32. An image (C, H, W) lies flat, as in Python:
// n = (c H + y) W + x. What several inputs of a layer bring lies side by side, each from a word on.

const INPUT = -1; // among the inputs of a layer: the network's own input
const FLUSH = 2 ** -64; // a float trace at or below this is 0
const fround = Math.fround;

const words = (bits) => (bits + 31) >>> 5;
const product = (shape) => shape.reduce((a, b) => a * b, 1);

function popcount(v) {
  v = (v - ((v >>> 1) & 0x55555555)) | 0;
  v = (v & 0x33333333) + ((v >>> 2) & 0x33333333);
  return Math.imul((v + (v >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

function countBits(x, first = 0, last = x.length) {
  let total = 0;
  for (let w = first; w < last; w++) total += popcount(x[w]);
  return total;
}

// Call f(n) for every bit n of the words x that is 1.
function forEachBit(x, f) {
  for (let w = 0; w < x.length; w++)
    for (let left = x[w]; left !== 0; left &= left - 1) f(32 * w + 31 - Math.clz32(left & -left));
}

const bitOf = (bytes, n) => (bytes[n >>> 3] >>> (n & 7)) & 1;
const setBit = (x, n) => { x[n >>> 5] |= 1 << (n & 31); };

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Bytes of packed bits as words.
function wordsOf(bytes) {
  const whole = new Uint8Array(4 * Math.ceil(bytes.length / 4));
  whole.set(bytes);
  return new Int32Array(whole.buffer);
}

// FNV-1a over words: what golden vectors are compared by.
function fingerprint(x) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < x.length; i++) hash = Math.imul(hash ^ x[i], 0x01000193);
  return hash >>> 0;
}

// The tensors of a safetensors file, as bytes by name.
function tensorsOf(file) {
  const size = new DataView(file.buffer, file.byteOffset).getUint32(0, true); // of the header
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + size)));
  const tensors = {};
  for (const [name, { data_offsets: place }] of Object.entries(header))
    if (place) tensors[name] = file.subarray(8 + size + place[0], 8 + size + place[1]);
  return tensors;
}

// Neurons: `fires` from the state alone, then `advance` with the current I: see bisnn/neuron.py.

const NEURONS = {
  srm: {
    traces: (n) => [new Float32Array(n), new Float32Array(n), new Float32Array(n)],
    fire(fired, [P, Q, R], [, , , theta], [kappa], apart) {
      for (let j = 0; j < fired.length; j++)
        fired[j] = fround(fround(kappa[j * apart] * fround(P[j] - Q[j])) - R[j]) > theta ? 1 : 0;
    },
    advance(I, fired, [P, Q, R], [a_m, a_s, a_r]) {
      for (let j = 0; j < fired.length; j++) {
        const p = fround(a_m * fround(P[j] + I[j]));
        const q = fround(a_s * fround(Q[j] + I[j]));
        const r = fround(a_r * fround(R[j] + fired[j]));
        P[j] = Math.abs(p) <= FLUSH ? 0 : p;
        Q[j] = Math.abs(q) <= FLUSH ? 0 : q;
        R[j] = Math.abs(r) <= FLUSH ? 0 : r;
      }
    },
  },
  fixed: { // 32-bit integers; products stay below 2^53, which a double holds exactly
    traces: (n) => [new Int32Array(n), new Int32Array(n), new Int32Array(n)],
    fire(fired, [P, Q, R], shared, [, theta], apart) {
      for (let j = 0; j < fired.length; j++)
        fired[j] = P[j] - Q[j] - R[j] > theta[j * apart] ? 1 : 0;
    },
    advance(I, fired, [P, Q, R], [a_m, a_s, a_r, fraction], [feedback], apart) {
      const unit = 2 ** fraction;
      for (let j = 0; j < fired.length; j++) {
        P[j] = Math.trunc(((P[j] + unit * I[j]) * a_m) / 65536);
        Q[j] = Math.trunc(((Q[j] + unit * I[j]) * a_s) / 65536);
        R[j] = Math.trunc(((R[j] + (fired[j] ? feedback[j * apart] : 0)) * a_r) / 65536);
      }
    },
  },
};

// One layer of K members.
class Layer {
  constructor(about, tensors, i, members) {
    Object.assign(this, about);
    this.members = members;
    this.step = NEURONS[about.neuron];
    this.size = product(about.current_shape); // neurons, before pooling
    this.leaving = product(about.output_shape);
    this.apart = about.each[0].length > 1 ? 1 : 0; // constants of each neuron, or of all
    const own = about.kind === "recurrent" ? [about.neurons] : [];
    const parts = about.kind === "conv" ? [about.fan_in] : [...about.parts.map(product), ...own];
    this.starts = [0]; // the words at which the inputs begin, and their end
    for (const n of parts) this.starts.push(this.starts.at(-1) + words(n));
    const bitsOf = (n, p) => [...Array(n).keys()].map((j) => 32 * this.starts[p] + j);
    const columns = parts.flatMap(bitsOf); // the bit of each input
    const mask = tensors[`${i}.mask`];
    this.words = this.starts.at(-1);
    this.mask = mask ? this.rows(mask, 1, columns) : null;
    this.weights = this.rows(tensors[`${i}.weights`], members * about.planes, columns, mask);
    this.reach = about.neurons; // synapses of an input of a layer without a mask
    if (mask) {
      this.reach = new Int32Array(32 * this.words);
      for (let n = 0; n < about.neurons * about.fan_in; n++)
        this.reach[columns[n % about.fan_in]] += bitOf(mask, n);
    }
    const windows = about.kind === "conv" ? this.size / about.neurons : 1;
    this.window = new Int32Array(windows * this.words);
    this.current = new Int32Array(this.size);
    this.fired = new Uint8Array(this.size);
  }

  // Bits without gaps as rows (count, neurons, words), 0 for synapses that a mask leaves out.
  rows(bytes, count, columns, mask = null) {
    const rows = new Int32Array(count * this.neurons * this.words);
    let at = 0;
    for (let row = 0; row < count * this.neurons; row++)
      for (let j = 0; j < columns.length; j++) {
        if (mask && !bitOf(mask, (row % this.neurons) * columns.length + j)) continue;
        if (bitOf(bytes, at++)) setBit(rows, 32 * row * this.words + columns[j]);
      }
    return rows;
  }

  start() {
    return Array.from({ length: this.members }, () => this.step.traces(this.size));
  }

  // One time step of member k, from what it reads to what leaves it, the words `out`; returns the
  // synaptic operations.
  run(k, inputs, traces, out) {
    const { shared, each, apart, step } = this;
    step.fire(this.fired, traces, shared, each, apart);
    const operations = this.kind === "conv" ? this.gather(inputs) : this.place(inputs);
    this.count(k);
    step.advance(this.current, this.fired, traces, shared, each, apart);
    this.pack(out);
    return operations * this.planes;
  }

  // Inputs side by side, and a recurrent layer's own spikes.
  place(inputs) {
    const x = this.window;
    inputs.forEach((part, p) => x.set(part, this.starts[p]));
    if (this.kind === "recurrent") {
      const own = this.starts.at(-2);
      x.fill(0, own);
      for (let j = 0; j < this.neurons; j++) if (this.fired[j]) setBit(x, 32 * own + j);
    }
    if (!this.mask) return this.reach * countBits(x);
    let operations = 0;
    forEachBit(x, (n) => { operations += this.reach[n]; });
    return operations;
  }

  // The bits under the kernel (channel, row, column) at each of its places: spikes look for places.
  gather(inputs) {
    const [[k0, k1], [s0, s1], [p0, p1]] = [this.kernel, this.stride, this.padding];
    const [, height, width] = this.current_shape;
    let channels = 0, reached = 0;
    this.window.fill(0);
    inputs.forEach((part, p) => {
      const [, H, W] = this.parts[p];
      forEachBit(part, (n) => {
        const c = channels + Math.floor(n / (H * W));
        const y = Math.floor((n / W) % H) + p0, x = (n % W) + p1;
        const top = Math.max(0, Math.ceil((y - k0 + 1) / s0));
        const left = Math.max(0, Math.ceil((x - k1 + 1) / s1));
        for (let v = top; v < height && v * s0 <= y; v++)
          for (let u = left; u < width && u * s1 <= x; u++, reached++) {
            const tap = (c * k0 + y - v * s0) * k1 + x - u * s1;
            setBit(this.window, 32 * (v * width + u) * this.words + tap);
          }
      });
      channels += this.parts[p][0];
    });
    return this.neurons * reached;
  }

  // Currents: low popcount(s) + gap sum_k 2^k popcount(b_k & s), whole numbers.
  count(k) {
    const { window: x, weights, mask, words: n, neurons, planes, low, gap, current } = this;
    const places = x.length / n;
    for (let place = 0; place < places; place++) {
      const first = place * n, all = countBits(x, first, first + n);
      for (let j = 0; j < neurons; j++) {
        let active = all, up = 0;
        if (mask) {
          active = 0;
          for (let w = 0; w < n; w++) active += popcount(x[w] & mask[j * n + w]);
        }
        for (let plane = 0; plane < planes && active; plane++) {
          const row = ((k * planes + plane) * neurons + j) * n;
          let common = 0;
          for (let w = 0; w < n; w++) common += popcount(x[first + w] & weights[row + w]);
          up += common * 2 ** plane;
        }
        current[j * places + place] = low * active + gap * up;
      }
    }
  }

  // What leaves the layer: pooling is the OR of a window's spikes.
  pack(out) {
    out.fill(0);
    const { fired, pool } = this;
    if (this.outputs) return this.outputs.forEach((j, n) => { if (fired[j]) setBit(out, n); });
    if (pool === 1) {
      for (let j = 0; j < fired.length; j++) if (fired[j]) out[j >>> 5] |= 1 << (j & 31);
      return undefined;
    }
    const [, H, W] = this.current_shape, [, h, w] = this.output_shape;
    for (let j = 0; j < fired.length; j++) {
      const y = Math.floor(Math.floor((j / W) % H) / pool), x = Math.floor((j % W) / pool);
      if (fired[j] && y < h && x < w) setBit(out, (Math.floor(j / (H * W)) * h + y) * w + x);
    }
    return undefined;
  }
}

// The members of one predictor.
class Network {
  constructor(about, file) {
    const tensors = tensorsOf(bytesOf(file.packed));
    this.name = file.name;
    this.members = file.members;
    this.layers = about.layers.map((layer, i) => new Layer(layer, tensors, i, file.members));
    this.outputs = about.outputs;
    this.scale = about.readout_scale;
    const n = this.layers.at(-1).leaving;
    this.V = new Int32Array(about.outputs * words(n));
    for (let c = 0; c < about.outputs; c++)
      for (let j = 0; j < n; j++)
        if (bitOf(tensors.readout, c * n + j)) setBit(this.V, 32 * c * words(n) + j);
  }

  start() {
    return this.layers.map((layer) => layer.start());
  }

  // One time step from the words x of the input; the state moves on. Of each layer the spikes of
  // all members (K, words), the readout's whole counts (K, outputs), and each member's synaptic
  // operations (K, layers and readout).
  step(state, x) {
    const spikes = this.layers.map((layer) => new Int32Array(this.members * words(layer.leaving)));
    const counts = new Int32Array(this.members * this.outputs);
    const parts = this.layers.length + 1;
    const operations = new Float64Array(this.members * parts);
    for (let k = 0; k < this.members; k++) {
      const of = (i) => {
        if (i === INPUT) return x;
        const n = words(this.layers[i].leaving);
        return spikes[i].subarray(k * n, (k + 1) * n);
      };
      this.layers.forEach((layer, i) => {
        operations[k * parts + i] = layer.run(k, layer.inputs.map(of), state[i][k], of(i));
      });
      const last = of(this.layers.length - 1), n = last.length, active = countBits(last);
      operations[k * parts + parts - 1] = this.outputs * active;
      for (let c = 0; c < this.outputs; c++) {
        let common = 0;
        for (let w = 0; w < n; w++) common += popcount(last[w] & this.V[c * n + w]);
        counts[k * this.outputs + c] = 2 * common - active;
      }
    }
    return { spikes, counts, operations };
  }

  logits(counts) {
    return Float32Array.from(counts, (count) => fround(this.scale * count));
  }
}

// From features to spikes: as bisnn/packed/encoding.py, to the same bits.

function highWord(a, b) { // of the product of two 32-bit words
  const [al, ah, bl, bh] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const upper = (v) => Math.floor(v / 65536), middle = ah * bl + upper(al * bl);
  return (ah * bh + upper(middle) + upper(al * bh + (middle % 65536))) >>> 0;
}

function philox([c0, c1, c2, c3], k0, k1) {
  for (let round = 0; round < 10; round++) {
    const [high0, low0] = [highWord(c0, 0xd2511f53), Math.imul(c0, 0xd2511f53) >>> 0];
    const [high2, low2] = [highWord(c2, 0xcd9e8d57), Math.imul(c2, 0xcd9e8d57) >>> 0];
    [c0, c1, c2, c3] = [(high2 ^ c1 ^ k0) >>> 0, low2, (high0 ^ c3 ^ k1) >>> 0, low0];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1, c2, c3];
}

const between = (low, x, high) => Math.min(Math.max(x, low), high);

function raisedCosine(r, cosine) {
  const z = r * r, n = cosine.length;
  let q = z * cosine[n - 1] + cosine[n - 2];
  for (let i = n - 3; i >= 0; i--) q = q * z + cosine[i];
  const half = (1 - z) * q;
  return half * half;
}

// Rates of the neurons of a scaled feature.
function rates({ code, neurons, width, cosine }, v) {
  if (code !== "population") return [between(0, v, 1)];
  const gaps = neurons - 1;
  const distance = (j) => between(-1, (v - j / gaps) / (width / gaps), 1);
  return [...Array(neurons).keys()].map((j) => raisedCosine(distance(j), cosine));
}

// What the spikes of a point are numbered by, three words of its float32 values; -0 counts as 0.
function digest(x, draw, seed, purpose) {
  const bits = new Uint32Array(x.map((v) => v + 0).buffer);
  let found = philox([draw, x.length, 0, 0], seed, purpose);
  for (let i = 0; i < x.length; i += 4)
    found = philox(found.map((word, j) => (word ^ (bits[i + j] ?? 0)) >>> 0), seed, purpose);
  return found.slice(0, 3);
}

// The input's words at every time step, for raw features and the number of the encoding.
function encode(code, features, draw) {
  const { low, high, farthest, seed, purposes } = code;
  const scaled = (v, i) => between(-farthest, (v - low[i]) / (high[i] - low[i]), farthest);
  const x = Float32Array.from(features, scaled);
  const point = digest(x, draw, seed, purposes.points);
  const limits = [...x].flatMap((v) => rates(code, v)).map((rate) => Math.ceil(rate * 2 ** 24));
  const steps = [], M = limits.length;
  let block = [0, 0, 0, 0];
  for (let t = 0; t < code.steps; t++) {
    const out = new Int32Array(words(M));
    for (let m = 0; m < M; m++) {
      const index = t * M + m;
      if (index % 4 === 0) block = philox([index / 4, ...point], seed, purposes.encoding);
      if (block[index % 4] >>> 8 < limits[m]) setBit(out, m);
    }
    steps.push(out);
  }
  return steps;
}
