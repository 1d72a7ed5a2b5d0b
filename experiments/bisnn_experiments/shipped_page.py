"""The trained digits' network that comes with the package, for `bisnn try`.

    python -m bisnn_experiments.shipped_page [--run out/shipped_page]

Trains configs/digits_bayes.toml with a tenth of the training recordings held out, unless the run is
there, calibrates its prediction sets on those, and writes src/bisnn/shipping/digits.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bisnn.conformal import ConformalSets
from bisnn.files import file_digest
from bisnn.runs import config, model, web
from bisnn.runs.calibration import calibrate
from bisnn.runs.exporting import describe_model
from bisnn.runs.training import train
from bisnn.shipping import web as page

COVERAGE = 0.98  # of the sets, at a look after every time step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("out/shipped_page"))
    run = parser.parse_args().run
    if not run.exists():
        train(config.load("digits_bayes", ["data.validation=0.1"]), run)
    steps = model.load(model.file_of(run)).config.steps
    calibrate(run, coverage=COVERAGE, looks=steps)
    source = model.file_of(run)
    trained = model.load(source)
    assert trained.guarantee is not None
    assert isinstance(trained.guarantee.rule, ConformalSets)
    packed = replace(
        describe_model(trained, "members"),
        source=file_digest(source),
        sets=trained.guarantee.rule,
    )
    folder = Path(page.__file__).parent / "digits"
    web.content(packed, describe_model(trained, "map"), trained).save(folder)
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
