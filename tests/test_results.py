"""The experiments' typed results: the published files, their summaries, and damaged files."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from bisnn_experiments import results, series
from bisnn_experiments.alphabets import Alphabets
from bisnn_experiments.camera import CameraResults
from bisnn_experiments.estimators import Choice, Judgement
from bisnn_experiments.fixed_point import FixedPoint
from bisnn_experiments.microcontrollers import ChipStudy
from bisnn_experiments.other_writers import OtherWriters
from bisnn_experiments.posterior_choice import Choice as PosteriorChoice
from bisnn_experiments.posterior_table import Posterior
from bisnn_experiments.prediction_sets import Sets
from bisnn_experiments.results import Figures, Mean, Row, Study, Summary, over_seeds, summarise
from bisnn_experiments.robustness import Robust
from bisnn_experiments.series import SeriesStudy
from bisnn_experiments.shipped_page import ShippedPage
from bisnn_experiments.tuning import TuningStudy
from bisnn_experiments.uncertainty import Uncertainty

PUBLISHED = Path(__file__).parents[1] / "docs" / "results"
KINDS = {
    "alphabets": Alphabets,
    "camera": CameraResults,
    "estimators": Judgement,
    "estimators_choice": Choice,
    "figures_*": Figures,
    "fixed_point": FixedPoint,
    "microcontrollers": ChipStudy,
    "other_writers": OtherWriters,
    "posterior": Posterior,
    "posterior_choice": PosteriorChoice,
    "prediction_sets_*": Sets,
    "recording_options*": Study,
    "robustness_*": Robust,
    "rule_options": Study,
    "series": SeriesStudy,
    "shipped_page": ShippedPage,
    "table1_*": Figures,
    "tuning": TuningStudy,
    "uncertainty_*": Uncertainty,
}
# By other commands, or by commands that are gone
OTHERS = (
    *("coverage", "energy", "gradient_bias", "guarantee", "loading", "loading_gpu"),
    *("readouts", "two_moons_earlier_settings", "posterior_half_width"),
)
FILES = {
    file: kind
    for file in sorted(PUBLISHED.glob("*.json"))
    for name, kind in KINDS.items()
    if fnmatch(file.stem, name)
}


def test_every_published_file_is_of_a_known_kind():
    assert {file.stem for file in PUBLISHED.glob("*.json")} == {f.stem for f in FILES} | {*OTHERS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_published_files_are_what_the_types_say(file, tmp_path):
    """Read and written again they hold the same, no more and no less."""
    results.write(tmp_path / "again.json", results.read(file, FILES[file]))
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(file.read_text())


def numbers(node: Any, path: str = "") -> dict[str, float]:
    """All numbers of nested dicts and lists, by their path."""
    if isinstance(node, (int, float)):
        return {path: node}
    entries = node.items() if isinstance(node, dict) else enumerate(node or ())
    found = (numbers(value, f"{path}/{key}") for key, value in entries if not isinstance(node, str))
    return {key: value for part in found for key, value in part.items()}


def studies(found: Any) -> list[Any]:
    """All parts of a file that have rows and their summary."""
    if isinstance(found, Figures):
        return list(found.figures.values())
    return list(found.data.values()) if isinstance(found, Alphabets) else [found]


WITHOUT_SUMMARY = (
    *(CameraResults, ChipStudy, Choice, FixedPoint, Judgement, Posterior, PosteriorChoice),
    *(OtherWriters, Robust, Sets, SeriesStudy, ShippedPage, TuningStudy),
)


@pytest.mark.parametrize(
    "file",
    [file for file, kind in FILES.items() if kind not in WITHOUT_SUMMARY],
    ids=lambda file: file.stem,
)
def test_published_summaries_follow_from_their_rows(file):
    for study in studies(results.read(file, FILES[file])):
        again = summarise(study.rows, type(study.summary[0]))
        assert [(e.method, e.predictor) for e in again] == [
            (e.method, e.predictor) for e in study.summary
        ]
        wanted, found = (
            numbers([entry.model_dump() for entry in summary]) for summary in (study.summary, again)
        )
        assert len(found) >= 3 * len(again)
        assert found == pytest.approx(wanted, rel=1e-12)


def test_the_published_summary_of_series_follows_from_its_rows():
    study = results.read(PUBLISHED / "series.json", SeriesStudy)
    assert series.summarised(study.rows) == study.summary


def test_summary_is_mean_and_deviation():
    rows = [
        Row(method="a", predictor="MAP", seed=seed, ece=value, deviation_ratio=None)
        for seed, value in enumerate((1.0, 3.0, 5.0))
    ]
    first, second = summarise([*rows, Row(method="b", predictor="MAP", seed=0, ece=7.0)], Summary)
    mean = Mean(mean=3.0, std=2.0)
    assert first == Summary(method="a", predictor="MAP", seeds=3, ece=mean)
    alone = Mean(mean=7.0, std=None)
    assert second == Summary(method="b", predictor="MAP", seeds=1, ece=alone)


def test_numbers_that_some_seeds_lack():
    assert over_seeds([1.0, None, 2.0]) == Mean(mean=1.5, std=0.5**0.5, seeds=2)
    assert over_seeds([1.0]) == Mean(mean=1.0, std=None), "a single number has no deviation"
    assert over_seeds([{"a": {"b": 1}, "c": None}] * 2) == {
        "a": {"b": Mean(mean=1.0, std=0.0)},
        "c": None,
    }


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("nonsense", "the file: Invalid JSON"),
        ("[]", "the file: Input should be an object"),
        ("{}", "figures: Field required"),
        ('{"figures": 3}', "figures: Input should be"),
        ('{"figures": {"fig1": {"recipe": "tuned"}}}', "figures/fig1/command: Field required"),
        ('{"figures": {}, "more": 1}', "more: Extra inputs are not permitted"),
        ("[" * 100_000, "the file: Invalid JSON"),
        ("\xff", "the file: "),
    ],
    ids=["text", "list", "empty", "number", "incomplete", "more", "deep", "bytes"],
)
def test_damaged_files_are_one_line(tmp_path, content, place):
    file = tmp_path / "results.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="remove it or give another --out") as raised:
        results.read(file, Figures)
    assert str(raised.value).startswith(f"{file}: is damaged or of another version ({place}")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="is a folder; give a file"):
        results.read(tmp_path, Figures)
