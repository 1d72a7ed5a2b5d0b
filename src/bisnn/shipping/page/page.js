// The page itself: it checks its bits, runs an input through the networks, and plays the run.

const SLICE_MS = 12; // of work between two chances for the page to react
const STEP_MS = 220; // that a time step is shown, at most ...
const SHOWN_MS = 4000; // ... and a whole recording
const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

const pause = () => new Promise((resolve) => { setTimeout(resolve); });

// Run for a while; the milliseconds it took.
function work(run) {
  const begun = performance.now();
  while (!run.done && performance.now() - begun < SLICE_MS) run.advance();
  return performance.now() - begun;
}

// Every example through every network, against the fingerprints of Python's engine.
async function check() {
  const found = { wrong: 0, bits: 0, logits: 0, rate: 0 };
  let [steps, busy] = [0, 0];
  for (const example of DATA.examples) {
    const run = new Run(DATA, NETWORKS, trainsOf(example));
    while (!run.done) {
      busy += work(run);
      await pause();
    }
    const golden = new Uint32Array(wordsOf(bytesOf(example.golden)).buffer);
    const ours = fingerprints(run);
    if (ours.length !== golden.length) throw new Error("other golden vectors than time steps");
    found.wrong += ours.filter((value, i) => value !== golden[i]).length;
    const passes = run.length * run.trains.length;
    const rows = passes * NETWORKS.reduce((sum, network) => sum + network.members, 0);
    found.bits += rows * NETWORKS[0].layers.reduce((sum, layer) => sum + layer.leaving, 0);
    found.logits += rows * DATA.outputs;
    steps += passes;
  }
  found.rate = Math.round((1000 * steps) / busy);
  return found;
}

function showCheck({ wrong, bits, logits, rate }) {
  $("check").className = `check ${wrong ? "bad" : "good"}`;
  const [failed, spikes, values, speed] = [wrong, bits, logits, rate].map((n) => whole.format(n));
  $("check").textContent = wrong
    ? `${failed} checks failed: these are not the network’s own spikes`
    : `${spikes} bits of spikes and ${values} logits are Python’s, bit for bit; ` +
      `${speed} time steps a second here`;
}

// Show nothing, for the time being.
function halt(changes) {
  Object.assign(page, { run: null, time: 0, playing: false }, changes);
}

// Run an input, and play it from its first step on, or show its end.
async function start(trains, source, played = true) {
  const run = new Run(DATA, NETWORKS, trains);
  Object.assign(page, { run, source, time: 0, playing: played && !still });
  while (!run.done) {
    work(run);
    await pause();
    if (page.run !== run) return; // another one has been started
  }
  if (!page.playing) page.time = run.stop && played ? run.stop.time : run.length;
  show();
  if (page.playing) playFrom(performance.now());
  else speak();
}

// Show the next time steps when they are due; halt where the network is decided, and at the end.
function playFrom(begun) {
  const { run } = page, first = page.time, each = Math.min(STEP_MS, SHOWN_MS / run.length);
  const stop = run.stop && first < run.stop.time ? run.stop.time : run.length;
  const tick = (now) => {
    if (!page.playing || page.run !== run) return;
    const due = Math.min(stop, first + Math.floor((now - begun) / each));
    if (due > page.time) {
      page.time = due;
      page.playing = due < stop;
      show();
      if (!page.playing) speak();
    }
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

function playOrPause() {
  if (!page.run || !page.run.done) return;
  page.playing = !page.playing;
  if (page.playing && page.time === page.run.length) page.time = 0;
  show();
  if (page.playing) playFrom(performance.now());
}

// What does not change

function setUpLayers() {
  const kinds = { conv: "convolutional", dense: "dense", recurrent: "recurrent" };
  const titles = NETWORKS[0].layers.map((layer, i) => `Layer ${i + 1}, ${kinds[layer.kind]}`);
  const input = CODE ? "Input, a row for each feature" : "Input";
  const figures = [IMAGES ? "Events of the camera" : input, ...titles].map((title) => {
    const name = element("b", { textContent: title });
    const caption = element("figcaption", {}, name, element("span"));
    return element("figure", {}, caption, element("canvas", { role: "img" }));
  });
  $("layers").replaceChildren(...figures);
  const options = NETWORKS.flatMap((network, i) => {
    if (network.members === 1) return [[network.name, `${i} 0`]];
    const each = (k) => [`${network.name}, number ${k + 1}`, `${i} ${k}`];
    return [[`${network.name}, all`, `${i} -1`], ...[...Array(network.members).keys()].map(each)];
  });
  const option = ([textContent, value]) => element("option", { textContent, value });
  $("shown").replaceChildren(...options.map(option));
  $("shown").addEventListener("change", show);
}

function setUpTexts() {
  const { layers, members } = NETWORKS[0];
  const neurons = whole.format(layers.reduce((sum, layer) => sum + layer.size, 0));
  const bits = layers.every((layer) => layer.planes === 1) ? "single bits" : "a few bits each";
  const many = ENSEMBLE
    ? ` ${members} such networks together know how sure they are.`
    : "";
  $("lead").textContent =
    `${DATA.title}: a network of ${neurons} spiking neurons, whose ${whole.format(DATA.weights)} ` +
    `weights are ${bits}: ${si(DATA.bytes, "B")}.${many} All of it runs in this page, on your ` +
    "machine.";
  const choices = CODE ? "Choose a point" : "Choose a recording";
  $("input-title").textContent = DATA.sketchpad ? "Draw, or choose a recording" : choices;
  $("input-note").textContent = DATA.sketchpad
    ? "An event camera sees changes alone, so drawings move in front of it: blue gets brighter, " +
      "orange darker. For drawings it is a simplified camera, without noise; on the test " +
      "recordings every bit is Python’s."
    : "On these, every bit is Python’s.";
  $("chart-title").textContent = CLASSIFIES ? "Probabilities over time" : "Output over time";
  const from = DATA.burn_in ? ` from step ${DATA.burn_in + 1} on; before, each step by itself` : "";
  $("chart-note").textContent = `A prediction is the mean over time${from}.`;
  $("doubt").hidden = !CLASSIFIES;
  $("doubt-legend").hidden = !ENSEMBLE;
  $("cost-note").textContent =
    "Up to the time step shown: a spike at a synapse is one addition and no multiplication. " +
    `Energy by the prices of ${DATA.prices.source}; an estimate, not a measurement.`;
  $("footer").textContent =
    `Written by bisnn ${DATA.version} from the model ${DATA.source.slice(0, 12)}. This page asks ` +
    "for nothing from any network: its Content-Security-Policy forbids it.";
  if (DATA.sets) setUpSets(DATA.sets);
}

function setUpSets({ coverage, recordings, most }) {
  $("sets").hidden = false;
  $("sets-note").textContent =
    `The classes that cannot be ruled out yet. In ${percent(coverage)} of all cases like the ` +
    `${recordings} that it was calibrated on, the true class is inside at every look at once, so ` +
    `the network may stop as soon as ${most > 1 ? `${most} are` : "one is"} left.` +
    (DATA.sketchpad ? " Drawings are other cases: for them nothing is promised." : "");
}

function setUp() {
  setUpTexts();
  setUpLayers();
  setUpExamples();
  if (DATA.sketchpad) setUpPad();
  if (CODE) setUpFeatures();
  if (DATA.plane) setUpPlane();
  $("play").addEventListener("click", playOrPause);
  $("time").addEventListener("input", () => {
    page.playing = false;
    page.time = page.run ? Math.min(Number($("time").value), page.run.time) : 0;
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
}

setUp();
$("check").textContent = "Comparing every spike with Python’s…";
page.ready = check().then((found) => {
  page.checked = found;
  showCheck(found);
  if (!page.source) choose(DATA.examples[0]); // unless the visitor was quicker
}).catch((error) => {
  $("check").className = "check bad";
  $("check").textContent = `This browser cannot run the network: ${error.message}`;
});
