// What the page knows, and small helpers: numbers as text, elements.

const $ = (id) => document.getElementById(id);
const DATA = JSON.parse($("data").textContent);
const NETWORKS = DATA.networks.map((file) => new Network(DATA, file)); // the first one answers
const CODE = DATA.encoding; // of points; null where recordings come in
const INPUT_WORDS = words(product(DATA.input_shape));
const stepsOf = (example) => bytesOf(example.bits).length / 4 / INPUT_WORDS;
const STEPS = CODE ? CODE.steps : Math.max(...DATA.examples.map(stepsOf)); // of the longest input
const IMAGES = DATA.input_shape.length === 3;
const CLASSIFIES = DATA.task === "classification";
const ENSEMBLE = NETWORKS[0].members > 1;
const ON = DATA.sketchpad ? DATA.sketchpad.on : 1; // the channel of ON events

const page = {
  run: null, // what is shown, up to `time`
  time: 0,
  playing: false,
  source: null, // an example, "drawing" or "point", or null before there is any
  strokes: [],
  pen: null, // for keys: its place, and whether it is down
  features: DATA.examples[0].features,
  checked: null,
};

const whole = new Intl.NumberFormat("en");
const brief = (value) => String(Number(value.toPrecision(4)));

function percent(p) {
  if (p > 0.9995) return "100 %";
  return `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
}

// Three digits and a prefix.
function si(value, unit) {
  const rounded = Number(value.toPrecision(3));
  const power = rounded ? between(-4, Math.floor(Math.log10(rounded) / 3), 3) : 0;
  const prefix = ["p", "n", "µ", "m", "", "k", "M", "G"][power + 4];
  return `${Number((rounded / 1000 ** power).toPrecision(3))} ${prefix}${unit}`;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// What the networks say at the time that is shown; null before the first step.
const viewsNow = () => (page.run && page.time ? page.run.views[page.time - 1] : null);
const viewsSoFar = () => (page.run ? page.run.views.slice(0, page.time) : []);
const looksSoFar = () => (page.run ? page.run.sets.filter((look) => look.time <= page.time) : []);
const lengthNow = () => (page.run ? page.run.length : STEPS);
const likeliest = (p) => p.indexOf(Math.max(...p));
const namesIn = (look) => DATA.classes.filter((_, c) => look.inside[c]);

// The look at which it stopped, once that is shown.
function stopNow() {
  const stop = page.run && page.run.stop;
  return stop && page.time >= stop.time ? stop : null;
}

// The three classes that are likeliest on the whole: they have the same colours throughout a run.
function leaders() {
  if (!viewsNow()) return [];
  const shares = new Float64Array(DATA.outputs);
  for (const [first] of page.run.views) first.mean.forEach((p, c) => { shares[c] += p; });
  return [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 3);
}

// A class's colour: the one that it has on the plane; where there is none, that of its rank among
// the leaders.
function toneOf(c, rank) {
  if (DATA.plane) return planeTone(c);
  return rank < 0 ? "s6" : `s${rank + 1}`;
}
