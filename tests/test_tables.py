"""bisnn_experiments.tables: documents agree with their files, and disagreements are found."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bisnn.runs.config import load, shipped
from bisnn_experiments import interval_coverage, tables

ROOT = Path(__file__).parents[1]

NUMBERS = {
    "runs": {
        "summary": [
            {
                "method": "st",
                "accuracy": {"mean": 0.98765, "std": 0.0012},
                "gain": {"value": -0.00004, "low": -0.25, "high": 0.5},
            },
            {
                "method": "bayes",
                "accuracy": {"mean": 0.9, "std": 0.02},
                "gain": {"value": 0.1, "low": 0.05, "high": 0.155},
            },
        ]
    },
    "times, 10/50/90 %": {"ours: local": {"ms": 1234.4}, "theirs": {"ms": 12.34}},
    "coverage": {
        "n = 100": {"lowest": 0.9412, "highest": 0.9951},
        "n = 400": {"lowest": 0.9549, "highest": 0.9551},
    },
    "sizes": [2048, 1_513_120],
}

DOCUMENT = """# Title

<!-- table results/numbers.json runs/summary
| {method:method} | {accuracy:.3f} | {gain:+.2f} |
-->
| method | accuracy | gain |
|---|---|---|
| ST-BiSNN | 0.988 +- 0.001 | +0.00 [-0.25, +0.50] |
| Bayes-BiSNN | 0.900 +- 0.020 | +0.10 [+0.05, +0.15] |

In all, \
<!--v results/numbers.json {runs/summary[method=st]/accuracy/mean:*100 .1f}-->98.8<!--/v--> \
% are right.

<!-- table results/numbers.json times, 10/50/90 %
| {.} | {ms:ms} |
theirs
ours: local -> this library
-->
| | ms |
|---|---|
| theirs | 12.3 |
| this library | 1,234 |

<!-- table results/numbers.json coverage
| {.} | {:.3f} |
-->
| | coverage |
|---|---|
| n = 100 | 0.941 to 0.995 |
| n = 400 | 0.955 |

Bytes: <!--v results/numbers.json {sizes[0]:,} and {sizes[1]:bytes}-->2,048 and 1.51 MB<!--/v-->.
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "numbers.json").write_text(json.dumps(NUMBERS))
    return tmp_path


def problems(text: str, folder: Path) -> list[tables.Problem]:
    return tables.refresh(text, "page.md", folder)[1]


def test_documents_agree_with_their_files():
    for name in tables.DOCUMENTS:
        path = ROOT / name
        text, found = tables.refresh(path.read_text(), name, path.parent)
        assert not found, "\n".join(map(str, found))
        assert text == path.read_text()


def test_every_document_with_measurements_is_looked_at():
    """Every document that names a file of results is checked, and each file is named by one."""
    named = re.compile(r"results/[\w]+\.json")
    documents = [
        path
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if named.search(path.read_text())
    ]
    assert {str(path.relative_to(ROOT)) for path in documents} <= set(tables.DOCUMENTS)
    text = "".join((ROOT / name).read_text() for name in tables.DOCUMENTS)
    for folder in ("docs/results", "benchmarks/results"):
        for file in (ROOT / folder).glob("*.json"):
            assert f"results/{file.name}" in text


def test_exceptions_are_tables_that_exist():
    for (name, heading), reason in tables.NOT_MEASURED.items():
        assert heading in (ROOT / name).read_text().splitlines()
        assert reason


def settings(name: str) -> list[str]:
    """A config's row in the table of settings."""
    config = load(name)
    rule = config.rule
    method = {"st": "ST-BiSNN", "bayes": "Bayes-BiSNN", "full": "full precision"}[rule.name]
    how = rule.optimizer if rule.name == "full" else rule.precondition.replace("none", "plain")
    weights = {"st": "signs", "full": "real"}.get(rule.name)
    weights = weights or f"{'hard' if rule.straight_through else 'relaxed'}, tau = {rule.tau:g}"
    network = config.network
    learning = [network.gradient, config.train.schedule]
    return [
        f"`{name}`",
        f"{method}, {how}",
        weights,
        *learning,
        f"{config.neuron.slope:g}",
        f"{network.readout_gain:g}",
    ]


def test_what_stands_behind_each_table_is_what_the_configs_say():
    lines = (ROOT / "docs" / "RESULTS.md").read_text().splitlines()
    start = (
        lines.index(
            "| config | rule | weights in training | gradient | learning rate | slope | readout "
            "gain |"
        )
        + 2
    )
    rows = [
        tables.cells(line)
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    ]
    assert rows == [settings(name) for name in sorted(shipped())]


def test_the_summary_of_coverages_is_that_of_its_cells():
    """And no cell covers less than what docs/RESULTS.md claims of every one."""
    found = json.loads((ROOT / "docs" / "results" / "coverage.json").read_text())
    for part in (interval_coverage.summary, interval_coverage.widths, interval_coverage.misses):
        assert part(found) == found[part.__name__]
    assert found["misses"] == []


@pytest.mark.parametrize("data", ["mnist", "nmnist", "digits"])
def test_differences_are_those_of_the_seeds(data):
    """The means, from the rows of the same file."""
    file = {"mnist": "camera"}.get(data, data)
    path = ROOT / "docs" / "results" / f"table1_{file}.json"
    found = json.loads(path.read_text())["figures"][f"table1_{data}"]
    for pair in found["differences"]:
        a, b = (
            [row for row in found["rows"] if row["predictor"].split(" of ")[0] == pair[side]]
            for side in ("a", "b")
        )
        assert [row["seed"] for row in a] == [row["seed"] for row in b] == found["seeds"]
        for name in ("accuracy", "nll"):
            gains = [p[name] - q[name] for p, q in zip(a, b, strict=True)]
            assert pair[name]["value"] == pytest.approx(statistics.fmean(gains), abs=1e-6)


def test_a_page_that_agrees(folder):
    assert tables.refresh(DOCUMENT, "page.md", folder) == (DOCUMENT, [])


@pytest.mark.parametrize(
    ("right", "wrong", "line", "expected", "found"),
    [
        ("0.988 +- 0.001", "0.987 +- 0.001", 8, "0.988 +- 0.001", "0.987 +- 0.001"),  # a digit
        (
            "[+0.05, +0.15]",
            "[+0.06, +0.15]",
            9,
            "+0.10 [+0.05, +0.15]",
            "+0.10 [+0.06, +0.15]",
        ),  # an interval
        ("| Bayes-BiSNN |", "| Bayes |", 9, "Bayes-BiSNN", "Bayes"),  # a name
        ("98.8<", "98.7<", 11, "98.8", "98.7"),  # a number in prose
        ("| 1,234 |", "| 1,235 |", 21, "1,234", "1,235"),
    ],
)
def test_a_wrong_cell_is_found_and_mended(folder, right, wrong, line, expected, found):
    assert DOCUMENT.count(right) == 1
    page = DOCUMENT.replace(right, wrong)
    (problem,) = problems(page, folder)
    assert (problem.document, problem.line, problem.expected, problem.found) == (
        "page.md",
        line,
        expected,
        found,
    )
    assert str(problem).startswith(f"page.md:{line}: ")
    assert tables.refresh(page, "page.md", folder)[0] == DOCUMENT


def test_rows_of_another_place_too_many_and_too_few(folder):
    first, second = DOCUMENT.splitlines()[7:9]
    swapped = DOCUMENT.replace(f"{first}\n{second}", f"{second}\n{first}")
    missing = DOCUMENT.replace(f"{second}\n", "")
    added = DOCUMENT.replace(
        f"{second}\n", f"{second}\n| Bop | 0.500 +- 0.000 | +0.00 [+0.00, +0.00] |\n"
    )
    shorter = DOCUMENT.replace("| theirs | 12.3 |", "| theirs |")
    for page, line in ((swapped, 8), (missing, 9), (added, 10), (shorter, 20)):
        assert problems(page, folder)[0].line == line
        assert tables.refresh(page, "page.md", folder)[0] == DOCUMENT


def test_what_the_file_does_not_have(folder):
    for right, wrong in (
        ("runs/summary\n", "runs/sum\n"),
        ("{ms:ms}", "{us:ms}"),
        ("[method=st]", "[method=bop]"),
        ("{ms:ms}", "{ms:.1k}"),
    ):
        page = DOCUMENT.replace(right, wrong)
        assert problems(page, folder)
        assert tables.refresh(page, "page.md", folder)[0] == page  # nothing is half-written
    (folder / "results" / "numbers.json").unlink()
    found = problems(DOCUMENT, folder)
    assert [problem.line for problem in found] == [3, 11, 13, 23, 31]
    assert all("numbers.json" in str(problem) for problem in found)


def test_a_table_of_numbers_without_a_comment(folder):
    plain = "| a | b |\n|---|---|\n| x | 1 |\n"
    assert problems(plain, folder)[0].line == 1
    assert not problems(plain.replace("1", "one"), folder)
    assert not problems(f"```\n{plain}```\n", folder)
    # A comment with no table behind it
    assert problems(DOCUMENT.replace("| | ms |\n", "\n| | ms |\n"), folder)


def test_a_value_at_the_start_of_a_line(folder):
    page = DOCUMENT.replace("Bytes: <!--v", "Bytes:\n<!--v")
    (found,) = problems(page, folder)
    assert found.line == DOCUMENT[: DOCUMENT.index("Bytes:")].count("\n") + 2
    assert "ends the paragraph" in found.expected


def test_the_command_exits_with_1(tmp_path):
    """In a copy, with a digit changed."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs").mkdir()
    for name in tables.DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in ("docs/results", "benchmarks/results"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "bisnn_experiments.tables"]

    def run(*options: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options], cwd=folder, capture_output=True, text=True, check=False
        )

    assert run().returncode == 0
    page = tmp_path / "docs" / "SHIPPING.md"
    right = page.read_text()
    page.write_text(right.replace("| 71,168 |", "| 71,169 |", 1))
    result = run()
    assert result.returncode == 1
    assert "docs/SHIPPING.md:" in result.stdout
    assert "'71,168', found '71,169'" in result.stdout
    assert run("--write").returncode == 0
    assert page.read_text() == right
    elsewhere = run(folder=tmp_path / "docs")
    assert elsewhere.returncode == 2
    assert "there is no README.md here; run this in the root" in elsewhere.stderr
