// One input on its way through the networks, and what they make of it up to every time step.

const entropy = (p) => p.reduce((sum, v) => (v > 0 ? sum - v * Math.log(v) : sum), 0);

// Softmax of each member's logits (K, C), in place.
function softmax(y, outputs) {
  for (let first = 0; first < y.length; first += outputs) {
    const row = y.subarray(first, first + outputs), top = Math.max(...row);
    let sum = 0;
    for (let c = 0; c < outputs; c++) sum += row[c] = Math.exp(row[c] - top);
    for (let c = 0; c < outputs; c++) row[c] /= sum;
  }
  return y;
}

class Run {
  // trains: the input's words at every time step, one list for each encoding of a point.
  constructor(about, networks, trains) {
    this.about = about;
    this.networks = networks;
    this.trains = trains;
    this.length = trains[0].length;
    this.states = trains.map(() => networks.map((network) => network.start()));
    this.steps = []; // of each time step and encoding, what every network gave
    this.sums = networks.map((network) => new Float64Array(network.members * about.outputs));
    this.counts = new Float64Array(networks[0].members * about.outputs);
    this.views = []; // of each time step, of each network: see `look`
    this.sets = []; // looks so far: time step, members, classes
    this.stop = null; // the look that was small enough
    this.costs = []; // up to each time step, of each network: operations and joules
  }

  get time() {
    return this.steps.length;
  }

  get done() {
    return this.time === this.length;
  }

  advance() {
    const t = this.time;
    const step = this.trains.map((train, e) =>
      this.networks.map((network, i) => network.step(this.states[e][i], train[t])));
    this.steps.push(step);
    if (t <= this.about.burn_in) this.sums.forEach((sum) => sum.fill(0));
    this.views.push(this.networks.map((network, i) => this.look(network, i, step)));
    this.costs.push(this.networks.map((network, i) => this.cost(network, i, step)));
    for (const parts of step) parts[0].counts.forEach((count, n) => { this.counts[n] += count; });
    if (this.about.sets) this.lookAtSets();
  }

  // The mean over the time steps so far without the burn-in; until that is over, the step alone.
  look(network, i, step) {
    const { outputs, task, burn_in } = this.about, sum = this.sums[i], K = network.members;
    for (const parts of step) {
      const y = Float64Array.from(network.logits(parts[i].counts));
      if (task === "classification") softmax(y, outputs);
      y.forEach((v, n) => { sum[n] += v; });
    }
    const seen = Math.max(1, this.time - burn_in) * this.trains.length;
    const members = sum.map((v) => v / seen), mean = new Float64Array(outputs);
    members.forEach((v, n) => { mean[n % outputs] += v / K; });
    if (task === "regression") {
      const { target_mean, target_scale } = this.about, square = new Float64Array(outputs);
      const inUnits = (v) => target_mean + target_scale * v;
      members.forEach((v, n) => { square[n % outputs] += (v - mean[n % outputs]) ** 2 / K; });
      const spread = square.map((v) => target_scale * Math.sqrt(v));
      return { mean: mean.map(inUnits), members: members.map(inUnits), spread };
    }
    const total = entropy(mean);
    let expected = 0;
    for (let first = 0; first < K * outputs; first += outputs)
      expected += entropy(members.subarray(first, first + outputs)) / K;
    return { mean, members, total, disagreement: Math.max(0, total - expected) };
  }

  // By the prices of the ledger: of a member's time step without a spike, and of each operation.
  cost(network, i, step) {
    const before = this.time > 1 ? this.costs.at(-1)[i] : { operations: 0, joules: 0 };
    let { operations, joules } = before;
    const n = this.about.prices.operation.length;
    for (const parts of step)
      for (let k = 0; k < network.members; k++) {
        joules += this.about.prices.idle[k ? 1 : 0];
        for (let part = 0; part < n; part++) {
          const some = parts[i].operations[k * n + part];
          operations += some;
          joules += some * this.about.prices.operation[part];
        }
      }
    return { operations, joules };
  }

  // Prediction sets: as `ConformalSets.at`, on the counts of the members that a look asks.
  lookAtSets() {
    const { sets, outputs } = this.about;
    sets.path.forEach(([t, k], look) => {
      if (t !== this.time) return;
      const sums = new Float64Array(outputs);
      for (let n = 0; n < k * outputs; n++) sums[n % outputs] += this.counts[n];
      const top = Math.max(...sums);
      const inside = Array.from(sums, (sum, c) => top - sum <= sets.thresholds[look][c]);
      if (!inside.includes(true)) inside[sums.indexOf(top)] = true;
      const decided = inside.filter(Boolean).length <= sets.most;
      this.sets.push({ time: t, members: k, inside, decided });
      if (decided || look === sets.path.length - 1) this.stop ??= this.sets.at(-1);
    });
  }
}

// Fingerprints of the input, every layer and the logits at each time step, in the order of the
// golden ones: (encodings, networks, T, parts).
function fingerprints(run) {
  return run.trains.flatMap((train, e) =>
    run.networks.flatMap((network, i) =>
      run.steps.flatMap((step, t) => [
        fingerprint(train[t]),
        ...step[e][i].spikes.map(fingerprint),
        fingerprint(new Int32Array(network.logits(step[e][i].counts).buffer)),
      ])));
}
