"""The page that runs a network, in Chromium: its bits, answers, sets and energy, what one does with
mouse and keys, that nothing leaves it; and what is refused.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
from bisnn import Linear, Network, packed, weights
from bisnn.packed import encoding
from bisnn.packed.network import words
from bisnn.packing import describe
from bisnn.runs import model as models
from bisnn.runs import training
from bisnn.runs import web as pages
from bisnn.runs.config import parse
from bisnn.runs.exporting import describe_model
from bisnn.runs.inputs import load_dataset
from bisnn.shipping import energy, web
from browser import Tab, tab
from conftest import seeded, spikes
from networks import EVERY, build, drawn
from runs import SMALL
from test_own_neuron import Leaky

RUN = """(() => {
  const run = new Run(DATA, NETWORKS, trainsOf(DATA.examples[%d]));
  while (!run.done) run.advance();
  return %s;
})()"""
BITS = """run.steps.map((step) => step.map((parts) => parts.map(({ spikes, counts }, i) => ({
  spikes: spikes.map((s) => [...s]), logits: [...NETWORKS[i].logits(counts)] }))))"""
SEVEN = [(0.25, 0.2), (0.5, 0.19), (0.75, 0.2), (0.6, 0.5), (0.45, 0.85)]
BAR = [(0.35, 0.52), (0.7, 0.52)]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with tab(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """The page of `bisnn try`."""
    path = tmp_path_factory.mktemp("digits") / "try.html"
    web.write(web.digits(), path)
    return path


def opened(chrome: Tab, page: Path, **options) -> dict:
    """What the page found when it checked itself."""
    chrome.open(page, **options)
    chrome.value("page.ready.then(() => 1)")
    return chrome.value("page.checked")


def recording(net: Network, steps: int = 12) -> np.ndarray:
    return spikes(steps, *net.input_shape, density=0.4).numpy().astype(np.uint8)


def page_of(network: packed.PackedNetwork, x: np.ndarray, path: Path, **more) -> Path:
    """A page of a network and another of its first member."""
    first = replace(
        network, layers=tuple(replace(z, weights=z.weights[:1]) for z in network.layers)
    )
    predictors = {"ensemble": network, "MAP": first}
    web.write(web.describe(predictors, [web.Example("any", x)], title="a net", **more), path)
    return path


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_layer_gives_pythons_bits(chrome, tmp_path, kind):
    net = build(kind, dtype=torch.float32)
    x, network = recording(net), describe(net, drawn(net, 3))
    found = opened(chrome, page_of(network, x, tmp_path / "page.html"))
    assert found["wrong"] == 0
    result = packed.Engine(network).run(x[:, None], spikes=True)
    assert result.spikes[0].any()
    for t, step in enumerate(chrome.value(RUN % (0, BITS))):
        ensemble = step[0][0]
        for ours, theirs in zip(ensemble["spikes"], result.spikes, strict=True):
            expected = words(theirs[:, t, 0].reshape(3, -1))
            assert np.array_equal(np.array(ours, np.int32).view(np.uint32), expected.ravel())
        assert ensemble["logits"] == result.logits[:, t, 0].ravel().tolist()


@pytest.mark.parametrize("code", ["population", "rate"])
def test_points_have_pythons_spikes(chrome, tmp_path, code):
    inputs = 15 if code == "population" else 3
    net = Network(Linear(inputs, 8), readout=2)
    about = {"code": code, "steps": 9, "neurons": 5, "width": 1.5, "seed": 2**32 - 5}
    about |= {"low": [0.0, -3.0, 1e-3], "high": [1.0, 4.5, 1e6], "encodings": 2}
    network = replace(describe(net, drawn(net, 2)), encoding=about, classes=("a", "b"))
    points = [(-0.0, 0.1, 7.0), (0.3, -9e9, 1e6), (1.0, 4.5, 123.456)]
    examples = [web.Example("a", features=point) for point in points]
    path = tmp_path / "page.html"
    web.write(web.describe({"ensemble": network}, examples, title="points"), path)
    assert opened(chrome, path)["wrong"] == 0
    for i, point in enumerate(points):
        trains = chrome.value(RUN % (i, "run.trains.map((train) => train.map((x) => [...x]))"))
        for draw, train in enumerate(trains):
            expected = words(encoding.spikes(about, np.array([point]), draw)[:, 0])
            assert np.array_equal(np.array(train, np.int32).view(np.uint32), expected)


@pytest.mark.parametrize("kind", ["deep", "pooled", "masked", "skip mixed", "fixed", "levels"])
def test_energy_is_the_ledgers(chrome, tmp_path, kind):
    net = build(kind, dtype=torch.float32)
    x, members = recording(net), 3
    network = describe(net, weights.draw_members([z.weight for z in net.layers], members, 0))
    opened(chrome, page_of(network, x, tmp_path / "page.html"))
    cost = chrome.value(RUN % (0, "run.costs.at(-1)[0]"))
    row = energy.ledger(net, torch.from_numpy(x[:, None]).float(), {"them": members}).rows["them"]
    assert cost["operations"] == row.synaptic_operations > 0
    assert cost["joules"] == pytest.approx(row.joules, rel=1e-9)


def test_the_digits_of_the_package_answer_and_stop_as_the_engine_does(chrome, digits):
    found = opened(chrome, digits)
    assert found["wrong"] == 0
    assert found["rate"] >= 30, "time steps per second, of ten members and MAP"
    content = web.digits()
    network = packed.file.parse(content.files["ensemble of 10"], "digits")
    size = int(np.prod(network.input_shape))
    bits = [base64.b64decode(example["bits"]) for example in content.about["examples"]]
    rows = np.stack([np.frombuffer(some, np.uint8).reshape(20, -1) for some in bits], 1)
    x = np.unpackbits(rows, axis=-1, count=size, bitorder="little")
    x = x.reshape(20, -1, *network.input_shape)
    engine = packed.Engine(network)
    sets, answers = engine.predict_sets(x), engine.predict(x)
    assert len(set(sets.steps.tolist())) > 1
    for i in range(len(bits)):
        view = "{...run.views.at(-1)[0], mean: [...run.views.at(-1)[0].mean]}"
        stop, view = chrome.value(RUN % (i, f"[run.stop, {view}]"))
        assert stop["time"] == sets.steps[i]
        assert stop["inside"] == sets.sets[i].tolist()
        assert stop["decided"] == sets.decided[i]
        assert view["mean"] == pytest.approx(answers.mean[i].tolist(), abs=1e-5)
        assert view["total"] == pytest.approx(answers.entropy[i], abs=1e-4)
        assert view["disagreement"] == pytest.approx(answers.mutual_information[i], abs=1e-4)


def test_a_look_at_some_members_is_the_engines(chrome, tmp_path):
    """Paths of looks that begin with few members, and thresholds of several sizes."""
    net = build("deep", dtype=torch.float32)
    x, network = recording(net, 12), describe(net, drawn(net, 3))
    path = ((3, 1), (6, 1), (6, 3), (12, 3))
    for threshold in (0, 4, 10**6):
        rule = packed.network.ConformalSets(path, ((threshold,) * 3,) * 4, 0.9, recordings=9)
        one = replace(network, sets=rule, classes=("a", "b", "c"))
        opened(chrome, page_of(one, x, tmp_path / "page.html"))
        stop = chrome.value(RUN % (0, "run.stop"))
        found = packed.Engine(one).predict_sets(x[:, None])
        assert (stop["time"], stop["members"]) == (found.steps[0], found.members[0])
        assert stop["inside"] == found.sets[0].tolist()


def test_one_weight_that_is_changed_is_noticed(chrome, tmp_path):
    content = web.digits()
    network = packed.file.parse(content.files["MAP"], "digits")
    network.layers[0].weights[0, 0, 24] *= -1  # in the middle of a kernel
    files = {**content.files, "MAP": packed.file.file_content(network)}
    web.write(replace(content, files=files), tmp_path / "bad.html")
    assert opened(chrome, tmp_path / "bad.html")["wrong"] > 0
    assert "checks failed" in chrome.value("$('check').textContent")


def place(chrome: Tab, canvas: str, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of a canvas, in [0, 1], as places on the screen."""
    box = chrome.value(f"(({{x, y, width, height}}) => [x, y, width, height])"
                       f"($('{canvas}').getBoundingClientRect())")  # fmt: skip
    return [(box[0] + a * box[2], box[1] + b * box[3]) for a, b in points]


def test_a_seven_that_is_drawn_is_seen_and_the_player_stops(chrome, digits):
    opened(chrome, digits)
    for stroke in (SEVEN, BAR):
        chrome.drag(place(chrome, "drawing", stroke))
    chrome.wait("page.source === 'drawing' && page.run && page.run.done && !page.playing")
    assert chrome.value("$('says').textContent") == "7"
    stop = chrome.value("page.run.stop.time")
    assert chrome.value("page.time") == stop < 20
    assert f"Decided after {stop} of 20 time steps: 7" in chrome.value("$('stop').textContent")
    assert chrome.value("Number($('time').value)") == stop
    assert f"At time step {stop} of 20: 7" in chrome.value("$('spoken').textContent")
    chrome.value("$('play').click()")  # and on to the end
    chrome.wait("!page.playing")
    assert chrome.value("page.time") == 20
    assert chrome.value("$('says').textContent") == "7"
    cost = chrome.value("$('cost').textContent")
    assert re.search(r"ensemble of 10[\d,]+\d+\.?\d* µJ", cost), cost
    chrome.value("$('clear').click()")
    assert chrome.value("page.run") is None
    assert chrome.complaints() == []


def test_keys_draw_and_scrub(chrome, digits):
    opened(chrome, digits)
    chrome.value("$('drawing').focus()")
    chrome.key(" ")
    for keys in (["ArrowRight"] * 10, ["ArrowDown", "ArrowDown", "ArrowLeft"] * 7):
        for key in keys:
            chrome.key(key)
    chrome.key(" ")
    assert "Pen up" in chrome.value("$('spoken').textContent")
    chrome.key("Enter")
    chrome.wait("page.source === 'drawing' && page.run && page.run.done && !page.playing")
    assert chrome.value("$('says').textContent") == "7"
    chrome.value("$('time').focus()")
    before = chrome.value("page.time")
    chrome.key("ArrowLeft")
    assert chrome.value("page.time") == before - 1
    assert (
        chrome.value("$('time').getAttribute('aria-valuetext')") == f"time step {before - 1} of 20"
    )
    assert chrome.complaints() == []


@pytest.mark.parametrize("clear", ["Delete", "the button", "a recording"])
def test_the_pen_is_up_after_a_drawing_is_cleared(chrome, digits, clear):
    opened(chrome, digits)
    chrome.value("$('drawing').focus()")
    for key in (" ", "ArrowDown", "ArrowDown"):
        chrome.key(key)
    if clear == "Delete":
        chrome.key(clear)
    else:
        button = "$('clear')" if clear == "the button" else "$('examples').querySelector('button')"
        chrome.value(f"{button}.click()")
        chrome.value("$('drawing').focus()")
    for key in ("ArrowDown", "ArrowRight"):
        chrome.key(key)
    assert chrome.value("page.strokes.length") == 0
    chrome.key(" ")
    chrome.key("ArrowDown")
    assert chrome.value("page.strokes.map((stroke) => stroke.length)") == [2]
    assert chrome.complaints() == []


def test_one_pointer_draws_at_a_time_and_by_the_first_button(chrome, digits):
    opened(chrome, digits)
    (x, y), *_, far = place(chrome, "drawing", [(0.2, 0.2), (0.5, 0.5), (0.8, 0.8)])

    def touch(kind, *places):
        points = [{"x": a, "y": b, "id": i} for i, (a, b) in enumerate(places)]
        chrome.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", (x, y))
    touch("touchStart", (x, y), far)  # another finger
    touch("touchMove", (x, y + 20), far)
    touch("touchMove", (x, y + 20), (far[0], far[1] - 20))
    touch("touchEnd")
    (stroke,) = chrome.value("page.strokes")
    assert [round(a, 1) for a, _ in stroke] == [0.2] * len(stroke)
    assert len(stroke) == 2
    chrome.wait("page.source === 'drawing' && page.run && page.run.done && !page.playing")
    chrome.call("Input.dispatchMouseEvent", type="mousePressed", x=far[0], y=far[1], button="right")
    assert chrome.value("page.strokes.length") == 1
    assert chrome.complaints() == []


def controls(chrome) -> list[str]:
    """What a screen reader calls the page's controls and pictures, each by a name of its own."""
    nodes = chrome.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "combobox", "checkbox", "image", "img", "application"}
    found = [node for node in nodes if node.get("role", {}).get("value") in roles]
    for node in found:
        assert node.get("name", {}).get("value"), node
    return [node["name"]["value"] for node in found]


@pytest.mark.parametrize(
    ("dark", "back"), [(False, "rgb(244, 246, 248)"), (True, "rgb(14, 17, 21)")]
)
def test_it_fits_a_phone_follows_the_theme_and_names_its_controls(chrome, digits, dark, back):
    opened(chrome, digits, width=400, dark=dark)
    assert chrome.value("document.documentElement.scrollWidth") == 400
    assert chrome.value("getComputedStyle(document.body).backgroundColor") == back
    chrome.wait("page.time && !page.playing")
    assert len(controls(chrome)) > 20
    chrome.value("$('examples').querySelector('button').focus()")
    chrome.key("Enter")
    chrome.wait("page.source === DATA.examples[0]")


def test_nothing_leaves_the_page_even_if_it_tried(chrome, digits):
    opened(chrome, digits)
    assert chrome.requests() == [digits.resolve().as_uri()]
    assert chrome.complaints() == []
    tried = chrome.value("fetch('http://127.0.0.1:9/x').then(() => 'sent', (error) => error.name)")
    assert tried == "TypeError"
    refused = chrome.value(
        """new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation", (e) => resolve(e.blockedURI));
            new Image().src = "http://127.0.0.1:9/y";
        })"""
    )
    assert refused == "http://127.0.0.1:9/y"


def test_names_are_text(chrome, tmp_path):
    hostile = '</script><script>window.owned = 1</script><img src=x onerror="window.owned=1">'
    net = build("dense", dtype=torch.float32)
    network = replace(describe(net), classes=(hostile, "b & c", "<b>"))
    path = tmp_path / "page.html"
    web.write(
        web.describe({hostile: network}, [web.Example(hostile, recording(net))], title=hostile),
        path,
    )
    assert opened(chrome, path)["wrong"] == 0
    assert chrome.value("window.owned") is None
    assert chrome.value("document.title") == f"{hostile} · bisnn"
    assert chrome.value("$('bars').querySelector('span').textContent") == hostile
    assert chrome.complaints() == []


def test_pages_of_runs(chrome, small_runs, bisnn_, tmp_path):
    """Two moons with their plane, a curve, tables with sliders, targets, one set of weights."""
    for name in ("moons", "line", "rare", "prices", "sign"):
        path = tmp_path / f"{name}.html"
        code, out, err = bisnn_("export", small_runs[name], "--to", "web", "--out", path)
        assert code == 0, err
        assert f"{path.stat().st_size:,} bytes in {path}" in out
        assert opened(chrome, path)["wrong"] == 0
        chrome.wait("page.time === STEPS")
        network = packed.file.parse(
            base64.b64decode(chrome.value("DATA.networks[0].packed")), "page"
        )
        engine = packed.Engine(network)
        assert "Spikes of" in controls(chrome)
        if name in ("moons", "line", "sign"):  # drag the point to a corner
            chrome.drag(place(chrome, "plane-canvas", [(0.5, 0.5), (0.2, 0.3), (0.75, 0.9)]))
            there = [0.75, 0.1][: len(chrome.value("page.features"))]
            assert chrome.value("page.features") == pytest.approx(there, abs=0.02)
        if name == "moons":  # a class has one colour, on the plane and beside it
            tones = chrome.value("[...$('bars').querySelectorAll('b')].map((b) => b.className)")
            assert tones == [chrome.value(f"planeTone({c})") for c in range(2)]
        else:
            chrome.value(
                "(() => { const s = $('features').querySelector('input'); s.value = s.max;"
                " s.dispatchEvent(new Event('input')); })()"
            )
            assert chrome.value("page.features[0] === DATA.encoding.high[0]")
        chrome.wait("page.run.done && page.time === STEPS")
        ours = chrome.value("[...page.run.views.at(-1)[0].mean]")
        theirs = engine.predict_features(np.array([chrome.value("page.features")])).mean[0]
        assert ours == pytest.approx(theirs.tolist(), rel=1e-5, abs=1e-5)
        assert chrome.complaints() == []


def test_series_end_where_they_end(chrome, bisnn_, tmp_path):
    """Recordings of several lengths: the page's answers are the model's; labels of time steps are
    refused.
    """
    lengths = np.random.default_rng(0).integers(8, 30, 60)
    x, y = (np.random.default_rng(1).random((60, 30, 5)) < 0.3), np.arange(60) % 2
    np.savez(tmp_path / "x.npz", x=x.astype(np.uint8), y=y, lengths=lengths)
    data = {"name": "series", "train": str(tmp_path / "x.npz"), "code": "spikes", "steps": 30}
    sections = {name: section for name, section in SMALL.items() if name != "encode"}
    settings = {**sections, "data": data, "network": {**SMALL["network"], "layers": [24]}}
    run = training.train(parse(settings, "x"), tmp_path / "run", show=False)
    path = tmp_path / "try.html"
    code, _, err = bisnn_("export", run, "--to", "web", "--as", "map", "--out", path)
    assert code == 0, err
    assert opened(chrome, path)["wrong"] == 0
    model, test = bisnn.load(run), load_dataset(parse(settings, "x")).test
    seen = [words(s.numpy().reshape(len(s), -1)) for s in test.x.spikes().movedim(1, 0)]
    ends, found = test.x.mask().sum(0).tolist(), model.predict_points(test.x, None).mean
    count = len(chrome.value("DATA.examples"))
    assert len({chrome.value(RUN % (i, "run.length")) for i in range(count)}) > 1
    for i in range(count):
        train = np.array(chrome.value(RUN % (i, "run.trains[0].map((x) => [...x])")), np.int32)
        (n,) = [
            n
            for n, (s, end) in enumerate(zip(seen, ends, strict=True))
            if end == len(train) and np.array_equal(s[:end], train.view(np.uint32))
        ]
        ours = chrome.value(RUN % (i, "[...run.views.at(-1)[0].mean]"))
        assert ours == pytest.approx(found[n].tolist(), abs=1e-5)
    chrome.value("choose(DATA.examples[1])")
    chrome.wait("page.run?.done && page.time === page.run.length")
    assert chrome.value("$('clock').textContent") == chrome.value("`${page.time} of ${page.time}`")
    more = np.random.default_rng(2).random((40, 30, 5)) < 0.3
    np.savez(tmp_path / "more.npz", x=more.astype(np.uint8), y=np.arange(40) % 2, lengths=[20] * 40)
    bisnn.calibrate(run, tmp_path / "more.npz", 0.8, samples=None, show=False)
    code, _, err = bisnn_("export", run, "--to", "web", "--as", "map", "--out", path)
    assert code == 0, err
    assert "prediction sets look beyond the end of recordings" in err
    assert opened(chrome, path)["wrong"] == 0
    assert chrome.value("DATA.sets") is None
    np.savez(tmp_path / "x.npz", x=x.astype(np.uint8), y=x[:, :, 0].astype(int), lengths=lengths)
    settings["data"] = {**data, "labels": "step"}
    run = training.train(parse(settings, "x"), tmp_path / "steps", show=False)
    code, _, err = bisnn_("export", run, "--to", "web", "--as", "map")
    assert code == 1
    assert "a page has one answer for a recording, and this model was trained on labels of" in err


@pytest.mark.parametrize("column", ["blanks", "categories"])
def test_a_column_of_two_features_has_no_plane(chrome, bisnn_, tmp_path, column):
    rng = np.random.default_rng(0)
    x = rng.random(80)
    cells = {
        "blanks": [f"{v:.3f}" if v > 0.2 else "" for v in x],
        "categories": ["low" if v < 0.5 else "high" for v in x],
    }[column]
    rows = [f"{cell},{'ab'[int(v > 0.5)]}" for cell, v in zip(cells, x, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["size,class", *rows]) + "\n")
    settings = {**SMALL, "data": {"name": "table", "train": str(tmp_path / "t.csv")}}
    run = training.train(parse(settings, "x"), tmp_path / "run", show=False)
    assert bisnn.load(run).features == 2
    code, _, err = bisnn_("export", run, "--to", "web", "--out", tmp_path / "try.html")
    assert code == 0, err
    assert opened(chrome, tmp_path / "try.html")["wrong"] == 0
    assert chrome.value("$('plane').hidden")
    assert chrome.value("document.querySelectorAll('#features input, #features select').length")
    assert chrome.complaints() == []


def test_the_chart_of_targets_can_be_read(chrome, small_runs, bisnn_, tmp_path):
    """Ticks that differ, and all lines within them, named."""
    path = tmp_path / "prices.html"
    assert bisnn_("export", small_runs["prices"], "--to", "web", "--out", path)[0] == 0
    opened(chrome, path)
    chrome.wait("page.run?.done && page.time === STEPS")
    low, high, ticks = chrome.value(
        """(() => {
            const drawn = axes, said = [];
            axes = (canvas, steps, burn, low, high, ticks, text) => {
              if (canvas.id === "chart") said.push(low, high, ticks.map(text));
              return drawn(canvas, steps, burn, low, high, ticks, text);
            };
            show();
            axes = drawn;
            return said;
        })()"""
    )
    assert len(set(ticks)) == 3
    assert float(ticks[0]) == pytest.approx(low, abs=0.05 * (high - low))
    lines = chrome.value("viewsSoFar().flatMap((v) => v.map((one) => one.mean[0]))")
    assert low <= min(lines) <= max(lines) <= high
    legend = chrome.value("[...$('chart-legend').children].map((e) => e.textContent)")
    assert legend == ["ensemble of 3", "members", "MAP"]


def test_whoever_is_quicker_than_the_check_keeps_the_point(chrome, small_runs, bisnn_, tmp_path):
    path = tmp_path / "moons.html"
    assert bisnn_("export", small_runs["moons"], "--to", "web", "--out", path)[0] == 0
    chrome.open(path)
    chrome.value("setPoint([0.123, 0.456])")
    chrome.value("page.ready.then(() => 1)")
    chrome.wait("page.run.done")
    assert chrome.value("page.features") == [0.123, 0.456]


def test_what_changes_at_every_step_is_not_read_out(chrome, digits):
    """Live regions: what the check found, and one sentence where the player halts."""
    opened(chrome, digits)
    chrome.wait("page.time && !page.playing")
    live = chrome.value(
        "[...document.querySelectorAll('output, [role=status], [role=alert], [aria-live]')]"
        ".map((e) => e.id)"
    )
    assert live == ["check", "spoken"]


def test_a_page_without_the_runs_data_is_checked_on_made_up_inputs(
    chrome, report_runs, tmp_path, capsys
):
    trained = models.load(models.file_of(report_runs["recordings"]))
    gone = trained.config.updated(**{"data.root": str(tmp_path / "gone")})
    for config, labels in ((trained.config, {"3", "7"}), (gone, {"noise"})):
        path = tmp_path / "try.html"
        pages.write(describe_model(trained, "members"), None, replace(trained, config=config), path)
        assert opened(chrome, path)["wrong"] == 0
        assert set(chrome.value("DATA.examples.map((example) => example.label)")) == labels
    said = "inputs are made up, as the run's own are not read: data.root"
    assert said in capsys.readouterr().err


def test_neurons_in_integers_go_into_both_predictors(chrome, small_runs, bisnn_, tmp_path):
    path = tmp_path / "try.html"
    options = ("--to", "web", "--as", "members", "--neuron", "fixed", "--out", path)
    assert bisnn_("export", small_runs["moons"], *options)[0] == 0
    assert opened(chrome, path)["wrong"] == 0
    assert chrome.value("NETWORKS.length") == 2
    assert set(chrome.value("DATA.layers.map((layer) => layer.neuron)")) == {"fixed"}


def test_try_writes_the_page_without_pytorch_or_a_compiler(tmp_path):
    code = (
        "import sys; from bisnn import cli; sys.argv = ['bisnn', 'try', '--no-open', '--out', "
        f"{str(tmp_path / 'try.html')!r}]\ntry: cli.main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "try.html").stat().st_size > 10**6


def test_the_packages_network_is_a_packed_file():
    content = web.digits()
    for name, members in (("ensemble of 10", 10), ("MAP", 1)):
        network = packed.file.parse(content.files[name], name)
        assert network.count == members
        assert sum(layer.synapses for layer in network.layers) == content.about["weights"]
        assert network.source == content.about["source"] or name == "MAP"
    assert (10 * content.about["bytes"], 62_502) == (625_020, content.about["bytes"])


def test_what_a_page_cannot_run_is_refused_by_name(tmp_path):
    x = np.zeros((5, 6), np.uint8)
    net = Network(Linear(6, 4), readout=2, neuron=Leaky())
    with pytest.raises(ValueError, match=r"SRM and FixedSRM; got Leaky in layer 0; .* packed"):
        page_of(describe(net), x, tmp_path / "page.html")
    with pytest.raises(ValueError, match="the ensemble has none; build it with readout"):
        page_of(describe(Network(Linear(6, 4), readout=None)), x, tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"'posterior' .* use 'members'"):
        page_of(
            describe(Network(Linear(6, 4), readout=2), posterior=True), x, tmp_path / "page.html"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_is_too_large_for_a_page_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "MOST_BYTES", 1000)
    net = Network(Linear(6, 4), readout=2)
    with pytest.raises(ValueError, match=r"at most 1,000 bytes .* got [\d,]+; use fewer members"):
        page_of(describe(net), np.zeros((5, 6), np.uint8), tmp_path / "page.html")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page.txt", r"out: must end in \.html; got .*page\.txt"),
        ("folder.html", r"out: .*folder\.html is a folder"),
        ("none/page.html", "there is no folder .*none"),
        ("report.html", r"report\.html is there and is no page of a network, and would be lost"),
    ],
)
def test_targets_that_are_refused(bisnn_, small_runs, tmp_path, name, message):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "report.html").write_text("<!doctype html><p>mine")
    for command in (["export", small_runs["moons"], "--to", "web"], ["try", "--no-open"]):
        code, out, err = bisnn_(*command, "--out", tmp_path / name)
        assert (code, out) == (1, "")
        assert re.fullmatch(f"bisnn: .*{message}.*\n", err), err
    assert (tmp_path / "report.html").read_text() == "<!doctype html><p>mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "report.html"]


def test_a_page_replaces_a_page(tmp_path, bisnn_):
    for _ in range(2):
        assert bisnn_("try", "--no-open", "--out", tmp_path / "try.html")[0] == 0


def test_options_that_are_of_no_page_are_refused(bisnn_, small_runs, tmp_path):
    run, out = small_runs["moons"], tmp_path / "try.html"
    for option in (["--prefix", "a"], ["--profile", "cubalif"], ["--as", "posterior"]):
        code, _, err = bisnn_("export", run, "--to", "web", "--out", out, *option)
        assert code == 1
        assert err.count("\n") <= 2
        assert not out.exists()


def test_the_policy_names_script_and_style(digits):
    page = digits.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r'(src|href)="(?!data:,")', page.partition("<script")[0])
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert json.loads(data)["title"] == "digits"


def test_fingerprints_tell_words_apart():
    some = torch.randint(0, 2**31, (200, 5), generator=seeded(0)).numpy().astype(np.uint32)
    assert len(set(web.fingerprint(some).tolist())) == 200
    expected = 0x811C9DC5
    for word in some[0].tolist():
        expected = (expected ^ word) * 0x01000193 % 2**32
    assert web.fingerprint(some)[0] == expected
