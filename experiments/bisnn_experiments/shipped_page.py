"""The trained digits' network that comes with the package, for `bisnn try`.

    python -m bisnn_experiments.shipped_page [--run out/shipped_page]
    python -m bisnn_experiments.shipped_page --judge docs/results/shipped_page.json

Trains configs/digits_bayes.toml, unless the run is there, and writes src/bisnn/shipping/digits.
Half of the test recordings, at random, calibrate its prediction sets: they were written by people
other than those who wrote the training recordings, as others will draw. The page shows some of the
other half.

--judge trains nothing: it asks the network that comes with the package about the test recordings,
and writes what it found.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.conformal import ConformalSets
from bisnn.data.loading import Split
from bisnn.files import file_digest
from bisnn.packed import Engine, file
from bisnn.runs import config, guarantee, model, web
from bisnn.runs.exporting import describe_model
from bisnn.runs.inputs import load_dataset
from bisnn.runs.results import Finding
from bisnn.runs.training import train
from bisnn.shipping import web as page
from bisnn_experiments import results

COVERAGE = 0.97  # of the sets
# The time step at which they are looked at first, and from then on after every one: spikes have
# passed both layers by then
FIRST = 6


def halves(test: Split) -> list[Split]:
    """The recordings that calibrate the sets, and those that may be shown."""
    order = torch.from_numpy(philox.permutation(len(test.y), 0, Purpose.CALIBRATION_SPLIT))
    return [Split(test.x[rows], test.y[rows]) for rows in order.chunk(2)]


class ShippedPage(Finding):
    """How the network that comes with the package does."""

    command: str
    recordings: int  # of the test
    accuracy: float  # of the ensemble on these
    coverage_asked: float
    judged: int  # recordings that calibrated nothing
    held: int  # sets of these that hold the truth
    time_steps: float  # until the answer


def judged() -> ShippedPage:
    """By the packed engine."""
    content = page.digits()
    name, packed = next(iter(content.files.items()))
    engine = Engine(file.parse(packed, name))
    test = load_dataset(config.load("digits_bayes")).test
    recordings = lambda split: split.x.spikes().numpy()  # noqa: E731
    found = engine.predict(recordings(test)).mean.argmax(-1)
    _, others = halves(test)
    sets, y = engine.predict_sets(recordings(others)), others.y.numpy()
    assert engine.network.sets is not None
    return ShippedPage(
        command=results.command(),
        recordings=len(test.y),
        accuracy=float((found == test.y.numpy()).mean()),
        coverage_asked=engine.network.sets.coverage,
        judged=len(y),
        held=int(sets.hold(y).sum()),
        time_steps=float(sets.steps.mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("out/shipped_page"))
    parser.add_argument("--judge", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.judge:
        results.write(options.judge, judged())
        return
    run = options.run
    if not run.exists():
        train(config.load("digits_bayes"), run)
    source = model.file_of(run)
    trained = model.load(source)
    data = load_dataset(trained.config)
    some, others = halves(data.test)
    members, steps = trained.members or 1, trained.config.steps
    found = guarantee.calibrated(
        trained,
        some.x,
        some.y.numpy(),
        COVERAGE,
        samples=members,
        looks=[(t, members) for t in range(FIRST, steps + 1)],
    )
    sets = found.rule
    assert isinstance(sets, ConformalSets)
    packed = replace(describe_model(trained, "members"), source=file_digest(source), sets=sets)
    shown = replace(data, test=others)
    folder = Path(page.__file__).parent / "digits"
    web.content(packed, describe_model(trained, "map"), trained, shown).save(folder)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
