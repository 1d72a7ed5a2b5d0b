"""The simulated event camera beside real recordings: 100 zeros of MNIST-DVS at scale 4, and the
same images simulated.

    python -m bisnn_experiments.camera --data FOLDER

writes docs/results/camera.json and docs/camera.png. FOLDER holds `mnist/`, the idx files, and
`scale04/`, the recordings `mnist_0_scale04_NNNN.aedat`.
Number NNNN shows the NNNN-th 0 of MNIST's training images, as matching shows: each recording is
compared with a simulation of its own image, cut to its length. The yardstick beside each distance
is the same distance between the recordings at odd and at even places of the list.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import ks_2samp

from bisnn.data.camera import MNIST_DVS, MNIST_DVS_MOTION, Camera, binned, record
from bisnn.data.events import read_aedat
from bisnn.data.motion import Motion
from bisnn.runs.results import Finding
from bisnn_experiments import results

BIN_US = 5000
# In bins: up to three refreshes of the display, then half a round and a whole round of the path
LAGS = (*range(1, 9), 125, 250)
# In pixels: the size at which maps are compared, as every sensor has a mismatch of its own
BLOCK = 4
CROP = (48, 48, 26, 26)


def zeros(folder: Path) -> np.ndarray:
    """MNIST's training images of the digit 0, in order."""
    images = np.frombuffer(
        gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    labels = np.frombuffer(
        gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    )
    return images.reshape(-1, 28, 28)[labels == 0]


def real_and_simulated(folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The recordings of the folder, and for each a simulation of its image, cut to its length."""
    files = sorted((folder / "scale04").glob("mnist_0_scale04_*.aedat"))
    if not files:
        raise SystemExit(
            f"--data: {folder} has no scale04/mnist_0_scale04_*.aedat; unpack the recordings there"
        )
    real = []
    for file in files:
        recording = read_aedat(file)
        events = recording.events.copy()
        events["t"] -= recording.start_us
        real.append(events)
    numbers = [int(file.stem[-4:]) for file in files]
    images = torch.from_numpy(zeros(folder / "mnist")[np.array(numbers) - 1]).float() / 255
    longest = max(int(events["t"][-1]) for events in real) + 1
    simulated = record(
        images,
        MNIST_DVS,
        dataclasses.replace(MNIST_DVS_MOTION, duration_us=longest),
        seed=0,
        samples=numbers,
    )
    return real, [s[s["t"] <= r["t"][-1]] for r, s in zip(real, simulated, strict=True)]


def intervals(events: np.ndarray, same: bool) -> np.ndarray:
    """Times between successive events of a pixel, in us; of the same polarity, or of opposite."""
    e = events[np.lexsort((events["t"], events["x"], events["y"]))]
    pairs = (np.diff(e["x"]) == 0) & (np.diff(e["y"]) == 0) & ((e["p"][1:] == e["p"][:-1]) == same)
    return np.diff(e["t"])[pairs]


def statistics(recordings: list[np.ndarray], lengths_us: list[int]) -> dict[str, np.ndarray]:
    """The statistics that are compared; p = 0 is ON in these files."""
    counts = [
        np.bincount(e["t"] // BIN_US, minlength=n // BIN_US)[: n // BIN_US]
        for e, n in zip(recordings, lengths_us, strict=True)
    ]
    maps = np.zeros((2, 128, 128))
    for e in recordings:
        np.add.at(maps, (e["p"].astype(int), e["y"], e["x"]), 1 / len(recordings))
    refresh = 2j * np.pi / MNIST_DVS_MOTION.refresh_us
    return {
        "events": np.array([len(e) for e in recordings]),
        "rate_hz": np.array(
            [len(e) / n * 1e6 for e, n in zip(recordings, lengths_us, strict=True)]
        ),
        "on_share": np.array([1 - e["p"].mean() for e in recordings]),
        "in_crop": np.array([_in_crop(e).mean() for e in recordings]),
        "counts": np.concatenate(counts),
        "autocorrelation": np.mean(
            [[np.corrcoef(c[:-lag], c[lag:])[0, 1] for lag in LAGS] for c in counts], axis=0
        ),
        "locking": np.mean(
            [
                [abs(np.exp(refresh * e["t"][e["p"] == p]).mean()) for p in (0, 1)]
                for e in recordings
            ],
            axis=0,
        ),
        "same_us": np.concatenate([intervals(e, True) for e in recordings]),
        "opposite_us": np.concatenate([intervals(e, False) for e in recordings]),
        "maps": maps,
    }


def _in_crop(e: np.ndarray) -> np.ndarray:
    left, top, width, height = CROP
    return (e["x"] >= left) & (e["x"] < left + width) & (e["y"] >= top) & (e["y"] < top + height)


def total_variation(a: np.ndarray, b: np.ndarray, block: int) -> float:
    """The distance of two maps (2, H, W) as distributions over polarity and blocks of pixels."""
    a, b = (
        m.reshape(2, 128 // block, block, 128 // block, block).sum((2, 4)) / m.sum() for m in (a, b)
    )
    return float(0.5 * np.abs(a - b).sum())


def distances(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, float]:
    """How far two sets of statistics lie apart, 0 if they are alike: Kolmogorov-Smirnov for
    distributions, total variation for maps, the largest difference for the rest.
    """
    ks = {
        f"{name} (KS)": float(ks_2samp(a[name], b[name]).statistic)
        for name in ("rate_hz", "on_share", "counts", "same_us", "opposite_us")
    }
    return ks | {
        f"map, {BLOCK}x{BLOCK} pixels (total variation)": total_variation(
            a["maps"], b["maps"], BLOCK
        ),
        "map, single pixels (total variation)": total_variation(a["maps"], b["maps"], 1),
        "autocorrelation of counts (largest difference)": float(
            np.abs(a["autocorrelation"] - b["autocorrelation"]).max()
        ),
        "locking to the display (largest difference)": float(
            np.abs(a["locking"] - b["locking"]).max()
        ),
    }


class Percentiles(Finding):
    p10: float
    p50: float
    p90: float


class CameraStatistics(Finding):
    """The statistics in a few numbers each."""

    events: Percentiles
    rate_hz: Percentiles
    on_share: Percentiles
    in_crop: Percentiles
    counts: Percentiles
    same_us: Percentiles
    opposite_us: Percentiles
    autocorrelation: dict[int, float]  # by lag, in bins
    locking: tuple[float, float]  # of ON and of OFF events


class Distance(Finding):
    simulated_to_real: float
    real_to_real: float


class CameraResults(Finding):
    """The file of this study."""

    recordings: int
    camera: Camera
    motion: Motion
    distances: dict[str, Distance]
    rate_correlation: float  # of paired recordings
    real: CameraStatistics
    simulated: CameraStatistics
    recordings_per_second: dict[str, dict[str, float]]  # by device, and what is made


def summary(s: dict[str, np.ndarray]) -> CameraStatistics:
    """The statistics in a few numbers each."""
    spread = {
        name: dict(
            zip(
                Percentiles.model_fields,
                np.percentile(s[name], [10, 50, 90]).round(4).tolist(),
                strict=True,
            )
        )
        for name, field in CameraStatistics.model_fields.items()
        if field.annotation is Percentiles
    }
    return CameraStatistics.model_validate(
        spread
        | {
            "autocorrelation": dict(zip(LAGS, s["autocorrelation"].round(3).tolist(), strict=True)),
            "locking": s["locking"].round(3).tolist(),
        }
    )


def speed(image: torch.Tensor, device: str, pixels: int) -> dict[str, float]:
    """How many recordings of 2 s are made per second, in batches with so many pixels."""
    motion, found = dataclasses.replace(MNIST_DVS_MOTION, duration_us=2_000_000), {}
    windows: dict[str, tuple[int, int, int, int]] = {"128x128": (0, 0, 128, 128), "26x26": CROP}
    for name, window in windows.items():
        B = pixels // (window[2] * window[3])
        batch = image.to(device).expand(B, -1, -1)
        record(batch[:2], MNIST_DVS, motion, seed=0, window=window)  # warms up
        start = time.perf_counter()
        record(batch, MNIST_DVS, motion, seed=0, window=window)
        found[f"record, {name}"] = round(B / (time.perf_counter() - start), 2)
        start = time.perf_counter()
        bins = binned(batch, MNIST_DVS, motion, bin_us=20_000, seed=0, window=window)
        float(bins.sum())  # waits for the device
        found[f"binned, {name}"] = round(B / (time.perf_counter() - start), 2)
    return found


def draw(
    real: list[np.ndarray],
    simulated: list[np.ndarray],
    a: dict[str, np.ndarray],
    b: dict[str, np.ndarray],
    path: Path,
) -> None:
    """Draw real and simulated recordings with their statistics, a and b, side by side."""
    figure = Figure(figsize=(15, 10.5), layout="constrained")
    axes = figure.subplots(3, 4)
    for column, i in enumerate((0, len(real) // 2)):
        for row, (name, events) in enumerate((("real", real[i]), ("simulated", simulated[i]))):
            _draw_events(axes[row, column], name, events)
    darkest = np.percentile(a["maps"].sum(0), 99.9)
    for row, (name, s) in enumerate((("real", a), ("simulated", b))):
        shade = axes[row, 2].imshow(s["maps"].sum(0), cmap="Greys", vmax=darkest)
        axes[row, 2].set(title=f"{name}, mean of {len(real)}", **WINDOW)
        figure.colorbar(shade, ax=axes[row, 2], label="events per pixel", shrink=0.8)
    _draw_statistics(axes, "real", "#1b1b1b", real[0], a)
    _draw_statistics(axes, "simulated", "#d1495b", simulated[0], b)
    axes[2, 3].axline((7000, 7000), slope=1, color="#999")
    axes[2, 3].scatter(a["rate_hz"], b["rate_hz"], s=8, color="#d1495b")
    _label(axes)
    figure.savefig(path, dpi=80)


WINDOW: dict[str, Any] = {
    "xlim": (40, 92),
    "ylim": (90, 38),
    "xlabel": "x / pixel",
    "ylabel": "y / pixel",
}


def _draw_events(axis: Any, name: str, events: np.ndarray) -> None:
    image, shown = np.zeros((128, 128)), events[events["t"] < 100_000]
    np.add.at(image, (shown["y"], shown["x"]), np.where(shown["p"], -1, 1))
    axis.imshow(image, cmap="RdBu_r", vmin=-5, vmax=5)
    axis.set(title=f"{name}, 0 to 100 ms: ON red, OFF blue", **WINDOW)


def _draw_statistics(
    axes: np.ndarray, name: str, colour: str, events: np.ndarray, s: dict[str, np.ndarray]
) -> None:
    """The rate of one recording, and the distributions of all."""
    style: dict[str, Any] = {"color": colour, "label": name}
    rate = np.bincount(events["t"] // BIN_US) / (BIN_US * 1e-3)
    axes[2, 0].plot(np.arange(len(rate)) * BIN_US * 1e-3, rate, lw=0.7, **style)
    axes[2, 1].hist(s["counts"], bins=np.arange(0, 110, 2), density=True, histtype="step", **style)
    for axis, kind in ((axes[0, 3], "same_us"), (axes[1, 3], "opposite_us")):
        axis.hist(
            s[kind] * 1e-3,
            bins=np.geomspace(0.5, 2500, 70),
            weights=np.full(len(s[kind]), 1 / len(s[kind])),
            histtype="step",
            **style,
        )
    axes[2, 2].plot(LAGS[:8], s["autocorrelation"][:8], "o-", **style)


def _label(axes: np.ndarray) -> None:
    for axis, polarity in ((axes[0, 3], "same"), (axes[1, 3], "opposite")):
        axis.set(title=f"a pixel's intervals, {polarity} polarity", xscale="log")
        axis.set(xlabel="interval / ms", ylabel="share")
    milliseconds = f"{BIN_US // 1000} ms"
    axes[2, 0].set(title="event rate of one recording", xlabel="time / ms", ylabel="events / ms")
    axes[2, 1].set(title=f"events in {milliseconds}", xlabel="events", ylabel="density")
    axes[2, 2].set(title="autocorrelation of the counts", ylabel="correlation")
    axes[2, 2].set(xlabel=f"lag / {milliseconds}")
    axes[2, 3].set(title="event rate, each recording")
    axes[2, 3].set(xlabel="real / (events/s)", ylabel="simulated / (events/s)")
    for axis in (axes[0, 3], axes[1, 3], axes[2, 0], axes[2, 1], axes[2, 2]):
        axis.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist/ and scale04/")
    parser.add_argument(
        "--docs",
        type=Path,
        default=Path("docs"),
        help="the folder of results/ and of the figure (default: docs)",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    real, simulated = real_and_simulated(arguments.data)
    lengths = [int(events["t"][-1]) + 1 for events in real]
    a, b = statistics(real, lengths), statistics(simulated, lengths)
    halves = distances(statistics(real[::2], lengths[::2]), statistics(real[1::2], lengths[1::2]))
    apart = distances(a, b)
    image = torch.from_numpy(zeros(arguments.data / "mnist")[0]).float() / 255
    speeds = {"one CPU core": speed(image, "cpu", 2**18)}
    if torch.cuda.is_available():
        speeds[torch.cuda.get_device_name()] = speed(image, "cuda", 2**24)
    result = CameraResults(
        recordings=len(real),
        camera=MNIST_DVS,
        motion=MNIST_DVS_MOTION,
        distances={
            name: Distance(
                simulated_to_real=round(apart[name], 4), real_to_real=round(halves[name], 4)
            )
            for name in apart
        },
        rate_correlation=round(float(np.corrcoef(a["rate_hz"], b["rate_hz"])[0, 1]), 3),
        real=summary(a),
        simulated=summary(b),
        recordings_per_second=speeds,
    )
    results.write(arguments.docs / "results" / "camera.json", result)
    draw(real, simulated, a, b, arguments.docs / "camera.png")
    print(result.model_dump_json(indent=1))


if __name__ == "__main__":
    main()
