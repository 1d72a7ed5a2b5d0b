"""The page of a search for settings, `bisnn tune`: one self-contained HTML file."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import bisnn
from bisnn.files import write_atomic
from bisnn.reporting.charts import styled
from bisnn.reporting.charts.canvas import decimals
from bisnn.reporting.charts.tuning import Searched, parts_of
from bisnn.reporting.page import template
from bisnn.runs.config import Config


def write_page(path: Path, name: str, found: Searched, best: Config) -> Path:
    """Draw what a search found; at least one of its trials has a loss.

    Args:
        path: the file.
        name: of the study.
        found: its trials.
        best: the config of the best one.
    """
    seconds = sum(trial.seconds for trial in found.trials)
    facts = {
        "trials": f"{len(found.trials)}, and {len(found.pruned)} that were stopped early",
        "best on validation points": f"{found.unit} {decimals(found.trials[0].loss)}",
        "settings searched": str(len(found.space)),
        "time of a whole trial": f"{seconds / len(found.trials):.1f} s",
        "data": best.data.title(),
        "rule": best.rule.title(),
    }
    with styled():
        parts = parts_of(found)
    text = template("tuning.html").render(
        name=name,
        facts=facts,
        parts=parts,
        why=Counter(found.pruned).most_common(),
        toml=best.to_toml(),
        number=itertools.count(1).__next__,
        version=bisnn.__version__,
    )
    write_atomic(path, text.encode())
    return path
