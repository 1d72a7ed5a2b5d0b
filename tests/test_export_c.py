"""The exported C code against the PyTorch network: compiled in many ways, to the bit."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import networks
from bisnn import Conv2d, Linear, Network, Recurrent
from bisnn.packing import describe
from bisnn.shipping import c, c_golden
from conftest import seeded, spikes

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
pytestmark = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler: gcc or clang")

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
STRICT = ("-std=c99", *WARNINGS)
SANITIZED = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS = (("-O0",), ("-O2",), ("-O3",), SANITIZED)


def features() -> list[str]:
    """Of the CPU, where Linux says."""
    path = Path("/proc/cpuinfo")
    return path.read_text().split() if path.exists() else []


def build(
    folder: Path,
    *flags: str,
    compiler: str = COMPILERS[0] if COMPILERS else "",
    sources: str = "model.c model_check.c main.c",
    last: tuple[str, ...] = (),
) -> None:
    """Of the folder's C files, with the encoder of points beside a network that has one."""
    if (folder / "model_encode.c").exists() and "-c" not in flags:
        sources = sources.replace("model.c", "model.c model_encode.c")
    command = [compiler, *flags, *sources.split(), "-o", "program", *last]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def outcome(folder: Path) -> tuple[int, str]:
    done = subprocess.run([folder / "program"], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def drawn(net: Network, count: int, seed: int = 1) -> list[list[torch.Tensor]]:
    """Members whose weights are any of the levels."""
    g, levels = seeded(seed), torch.tensor(net.alphabet.levels).float()
    shapes = [spec.weight_shape for spec in net.spec]
    draw = lambda shape: levels[torch.randint(len(levels), shape, generator=g)]  # noqa: E731
    return [[draw(shape) for shape in shapes] for _ in range(count)]


def expected(
    net: Network, members: list[list[torch.Tensor]], x: torch.Tensor
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Spikes of each layer (K, T, ...) and logits (K, T, outputs), from PyTorch."""
    with torch.no_grad():
        outputs = [net(x[:, None], weights=member) for member in members]
    of_layers = [
        np.stack([o.spikes[i][:, 0].numpy() for o in outputs]) for i in range(len(net.layers))
    ]
    if outputs[0].readouts[-1] is None:
        return of_layers, None
    return of_layers, np.stack([o.logits[:, 0].numpy() for o in outputs])


def exported(
    net: Network,
    count: int,
    folder: Path,
    *,
    steps: int = 30,
    density: float = 0.3,
) -> dict[str, int]:
    """Write the code of a network with `count` members; its golden vectors are PyTorch's."""
    members, x = drawn(net, count), spikes(steps, *net.input_shape, density=density)
    network = describe(net, members)
    sizes = c.write(network, folder, x.numpy().astype(np.uint8))
    of_layers, logits = expected(net, members, x)
    golden, golden_logits = c_golden.golden(network, x.numpy().astype(np.uint8))
    for s, wanted in zip(golden, of_layers, strict=True):
        assert s.shape == wanted.shape
        assert np.array_equal(s, wanted)
    if logits is None:
        assert golden_logits is None
    else:
        assert golden_logits is not None
        assert golden_logits.dtype == logits.dtype == np.float32
        assert np.array_equal(golden_logits, logits)
    return sizes


@pytest.mark.parametrize("kind", networks.EVERY)
@pytest.mark.parametrize("count", [1, 3])
def test_every_kind_is_exact_however_it_is_compiled(kind, count, tmp_path):
    net = networks.build(kind, dtype=torch.float32)
    sizes = exported(net, count, tmp_path)
    for compiler in COMPILERS:
        for flags in FLAGS if count == 3 else (("-O2",),):
            build(tmp_path, *STRICT, *flags, compiler=compiler)
            code, text = outcome(tmp_path)
            assert (code, text[:4]) == (0, "ok: "), text
            assert int(re.search(r"state (\d+) bytes", text)[1]) == sizes["ram"]


@pytest.mark.parametrize("kind", networks.EVERY)
def test_the_recordings_make_the_layers_fire(kind):
    net = networks.build(kind, dtype=torch.float32)
    for s in expected(net, drawn(net, 3), spikes(30, *net.input_shape, density=0.3))[0]:
        assert 0.01 < s.mean() < 0.99


FUSED = r"\bv?fn?m(add|sub|la)\w*\b"
FUSING = ("-std=gnu99", "-O3", "-mfma", "-ffp-contract=fast")
needs_fma = pytest.mark.skipif("fma" not in features(), reason="needs a CPU with fused operations")


@needs_fma
def test_products_are_never_fused(tmp_path):
    exported(networks.build("deep", dtype=torch.float32), 3, tmp_path)
    for compiler in COMPILERS:
        build(tmp_path, *FUSING, "-Wall", "-Wextra", "-Werror", compiler=compiler)
        assert outcome(tmp_path)[0] == 0
        build(tmp_path, *FUSING, "-S", compiler=compiler, sources="model.c")
        assert not re.search(FUSED, (tmp_path / "program").read_text())


@needs_fma
@pytest.mark.parametrize("kind", ["deep", "pooled", "masked"])
def test_a_fused_product_fails_the_golden_test(kind, tmp_path):
    """Without the barrier these options fuse, and the golden test says so for any network."""
    exported(networks.build(kind, dtype=torch.float32), 1, tmp_path, steps=1)
    path = tmp_path / "model.c"
    text = path.read_text()
    assert "bits ^= zero;" in text
    path.write_text(text.replace("bits ^= zero;", "(void)zero;"))
    for compiler in COMPILERS:
        build(tmp_path, *FUSING, compiler=compiler)
        code, printed = outcome(tmp_path)
        assert code == 1
        got = int(re.search(r"got (\w+)", printed)[1], 16)
        assert (
            printed
            == "different: run 0, step 0, layer 0 at its threshold, where a product was not "
            f"rounded, word 0: got {got:08x}, wanted {1 - got:08x}\n"
        )
        build(tmp_path, "-std=c99", "-O3", "-ffp-contract=off", compiler=compiler)
        assert outcome(tmp_path)[0] == 0


REFUSED = {
    "-ffast-math": "exact only without -ffast-math",
    "-Ofast": "exact only without -ffast-math",
    "-ffinite-math-only": "exact only without -ffinite-math-only",
    # GCC's -fassociative-math with what it needs
    "-D__ASSOCIATIVE_MATH__": "exact only without -ffast-math",
    "-U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=1": "options that make FLT_EVAL_METHOD 0",
    "-U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=1 -D__s390__": (
        "GCC for s390 needs -std=gnu99 or -fexcess-precision=fast"
    ),
    "-U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=2 -D__i386__": "-msse2 -mfpmath=sse",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_other_arithmetic_is_refused(flags, tmp_path):
    exported(networks.build("dense", dtype=torch.float32), 1, tmp_path, steps=1)
    compiler = "gcc" if "gcc" in COMPILERS else "clang"
    options = ("-std=c99", *flags.split(), "-c")
    with pytest.raises(AssertionError, match=REFUSED[flags]):
        build(tmp_path, *options, sources="model.c", compiler=compiler)


@pytest.mark.skipif(not shutil.which("s390x-linux-gnu-gcc"), reason="needs a cross compiler")
def test_what_is_advised_on_s390_helps(tmp_path):
    exported(networks.build("dense", dtype=torch.float32), 1, tmp_path, steps=1)
    with pytest.raises(AssertionError, match="-std=gnu99 or -fexcess-precision=fast"):
        build(tmp_path, "-std=c99", "-c", sources="model.c", compiler="s390x-linux-gnu-gcc")
    for flags in ("-std=gnu99", "-std=c99 -fexcess-precision=fast"):
        build(tmp_path, *flags.split(), "-c", sources="model.c", compiler="s390x-linux-gnu-gcc")


@pytest.mark.parametrize("what", ["spikes of layer 0", "spikes of layer 1", "logits"])
def test_a_wrong_golden_vector_is_found(what, tmp_path):
    exported(networks.build("pooled", dtype=torch.float32), 3, tmp_path)
    path = tmp_path / "model_golden.h"
    text = path.read_text()
    start = (
        text.index(
            "{\n", text.index(" golden_logits[" if what == "logits" else f" golden_s{what[-1]}[")
        )
        + 2
    )
    end = text.index("}", start)
    numbers = text[start:end].replace("\n", "").split(",")
    numbers[-1] = "0x1p-3f" if what == "logits" else hex(int(numbers[-1], 16) ^ 1)
    path.write_text(text[:start] + ",\n".join(numbers) + text[end:])
    build(tmp_path, *STRICT)
    code, printed = outcome(tmp_path)
    assert code == 1
    # And nothing before the last step
    assert printed.startswith(f"different: run 0, step 29, {what}, word ")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("flags", [("-O0",), ("-Os",), ("-O3",)])
def test_the_object_needs_nothing_and_the_tables_have_the_stated_size(flags, tmp_path):
    sizes = exported(networks.build("mixed", dtype=torch.float32), 3, tmp_path)
    for compiler in COMPILERS:
        build(tmp_path, *STRICT, *flags, "-c", compiler=compiler, sources="model.c")
        symbols = [
            line.split()
            for line in subprocess.check_output(
                ["nm", "-S", tmp_path / "program"], text=True
            ).splitlines()
        ]
        assert {symbol[-1] for symbol in symbols if symbol[-2] == "U"} <= {"memset", "memcpy"}
        assert {symbol[-1] for symbol in symbols if symbol[-2] == "T"} == {
            "model_reset",
            "model_step",
        }
        assert not [symbol for symbol in symbols if symbol[-2] in "bBdDC"]  # no state of its own
        if flags == ("-O0",):
            # Clang also has constants of no size
            tables = [symbol for symbol in symbols if symbol[-2] == "r" and len(symbol) == 4]
            assert sum(int(symbol[1], 16) for symbol in tables) == sizes["flash"]
    header = (tmp_path / "model.h").read_text()
    assert f"#define MODEL_FLASH_BYTES {sizes['flash']}\n" in header
    assert f"#define MODEL_RAM_BYTES {sizes['ram']}\n" in header


def test_sizes_of_a_network_counted_by_hand(tmp_path):
    net = Network(Linear(20, 256), Linear(256, 256), readout=2, seed=0)
    sizes = exported(net, 1, tmp_path, steps=3)
    assert sizes == {"flash": 4 * (20 * 8 + 256 * 8 + 2 * 8), "ram": 2 * 4 * (3 * 256 + 8)}


def test_traces_end_at_zero(tmp_path):
    """After a long silence all state is 0, as in training: no denormal numbers are left."""
    exported(networks.build("deep", dtype=torch.float32), 1, tmp_path, steps=20)
    (tmp_path / "silence.c").write_text("""
        #include "model.h"
        #include "model_golden.h"
        static model_state state;
        static int moved(void) {
            unsigned long k, n = 0;
            for (k = 0; k < sizeof state; k++) n += ((const unsigned char *)&state)[k] != 0;
            return n != 0;
        }
        int main(void) {
            static const uint32_t none[MODEL_INPUT_WORDS];
            int t, before;
            for (t = 0; t < 20; t++) model_step(&state, golden_x + t * MODEL_INPUT_WORDS, 0);
            before = moved();
            for (t = 0; t < 300; t++) model_step(&state, none, 0);
            return before ? moved() : 2;
        }""")
    build(tmp_path, "-std=c99", "-O2", sources="model.c silence.c")
    assert outcome(tmp_path)[0] == 0


def test_at_the_threshold_a_neuron_does_not_fire(tmp_path):
    network = describe(Network(Linear(1, 1), readout=None, seed=0), [[torch.tensor([[True]])]])
    a_m, a_s, a_r, _ = network.layers[0].constants
    x = np.array([[1], [0]], np.uint8)  # u = a_m - a_s in the second step
    for theta, fires in ((a_m - a_s, 0), (np.nextafter(a_m - a_s, np.float32(0)), 1)):
        layer = replace(network.layers[0], constants=np.array([a_m, a_s, a_r, theta], np.float32))
        folder = tmp_path / str(fires)
        c.write(replace(network, layers=(layer,)), folder, x)
        assert re.search(
            r"golden_s0\[2\] = {\s*0x0,(\w+)}", (folder / "model_golden.h").read_text()
        )[1] == hex(fires)
        build(folder, *STRICT)
        assert outcome(folder)[0] == 0


@st.composite
def shapes(draw) -> tuple[list, tuple[int, ...], int | None]:
    """Layers of any kind, input shape, readout; a layer is a function that makes a fresh one."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(2, 7)), draw(st.integers(2, 7)))
    n_in, layers = int(np.prod(shape)), []
    if draw(st.booleans()):
        kernel = (draw(st.integers(1, shape[1])), draw(st.integers(1, shape[2])))
        stride, padding = (
            draw(st.tuples(*[st.integers(1, 3)] * 2)),
            draw(st.tuples(*[st.integers(0, 4)] * 2)),
        )
        n_out = draw(st.integers(1, 40))
        size = [
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True)
        ]
        pool = draw(st.integers(1, min(3, *size)))
        layers.append(
            partial(Conv2d, shape[0], n_out, kernel, stride=stride, padding=padding, pool=pool)
        )
        n_in = n_out * (size[0] // pool) * (size[1] // pool)
    if draw(st.booleans()):
        n = draw(st.integers(1, 70))
        mask = networks.mask(n, n_in, draw(st.integers(0, 99))) if draw(st.booleans()) else None
        outputs = draw(st.none() | st.permutations(range(n)).map(lambda order: order[: n // 2 + 1]))
        layers.append(partial(Recurrent, n_in, n, mask=mask, outputs=outputs))
        n_in = n if outputs is None else len(outputs)
    if not layers or draw(st.booleans()):
        layers.append(partial(Linear, n_in, draw(st.integers(1, 70))))
    return layers, shape, draw(st.none() | st.integers(1, 40))


FULL = partial(Recurrent, 1100, 33, mask=torch.ones(33, 1133, dtype=torch.bool), outputs=[32, 1])
WIDE = partial(Recurrent, 600, 320, mask=networks.mask(320, 600, 0), outputs=range(0, 320, 3))


@settings(max_examples=8)
@given(shapes(), st.integers(1, 2), st.sampled_from([0.1, 0.5, 1.0]))
@example(([FULL], (1100,), 33), 2, 1.0)  # more bits than a byte can count
@example(([WIDE, partial(Linear, 107, 300)], (600,), 3), 2, 0.9)  # rows by input, many at once
@example(
    ([partial(Conv2d, 3, 35, 2, stride=3, padding=4, pool=2)], (3, 3, 3), None), 1, 0.5
)  # windows of nothing but padding
def test_any_network_is_exact(tmp_path_factory, about, count, density):
    layers, shape, outputs = about
    options = {"input_shape": shape, "readout": outputs, "neuron": networks.NEURON}
    net = Network(*(make() for make in layers), **options)
    folder = tmp_path_factory.mktemp("any")
    exported(net, count, folder, steps=12, density=density)
    for vectors in ((), ("-mavx2",)) if "avx2" in features() else ((),):  # of 4 words, of 8
        build(folder, *STRICT, *SANITIZED, *vectors)
        code, text = outcome(folder)
        assert code == 0, text


def test_a_name_goes_into_everything(tmp_path):
    net = networks.build("masked", dtype=torch.float32)
    network, x = describe(net), np.ones((5, 6), np.uint8)
    with pytest.raises(ValueError, match=r"out: there is no folder .*new; make it first"):
        c.write(network, tmp_path / "new" / "folder", x)
    folder = tmp_path / "new" / "folder"
    folder.parent.mkdir()
    for name in ("Other", "reflex_2"):  # the second takes the place of the first
        c.write(network, folder, x, prefix=name)
        made = {path.name for path in folder.iterdir()}
        ends = (".c", ".h", "_golden.h", "_check.c", "_check.h")
        around = {"main.c", "stream.c", "Makefile", "CMakeLists.txt", "README.md"}
        assert made == {name + end for end in ends} | around
    c.write(network, tmp_path / "other", x, prefix="Other")
    both = "reflex_2.c reflex_2_check.c main.c ../../other/Other.c"  # in one program
    build(folder, *STRICT, sources=both)
    assert outcome(folder)[0] == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        5,
        "2nd",
        "a-b",
        "a b",
        "_x",
        "größe",
        "string",
        "Math",
        "features",
        "a\n",
        "../a",
        "main",
        "test",
    ],
)
def test_bad_names(name, tmp_path):
    network = describe(networks.build("dense", dtype=torch.float32))
    with pytest.raises(ValueError, match=r"prefix: must be a C identifier.*; got .*; use"):
        c.write(network, tmp_path, np.zeros((3, 6), np.uint8), prefix=name)
    with pytest.raises(ValueError, match="prefix: must have at most 63 letters; got 300"):
        c.check_prefix("a" * 300)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "x",
    [np.zeros((0, 6)), np.zeros((3, 7)), np.zeros(6), np.full((3, 6), 2), np.full((3, 6), np.nan)],
)
def test_bad_recordings(x, tmp_path):
    network = describe(networks.build("dense", dtype=torch.float32))
    with pytest.raises(
        ValueError, match=r"x: must be a recording of 0 and 1, \(T, 6\); got .*; encode"
    ):
        c.write(network, tmp_path, x)
