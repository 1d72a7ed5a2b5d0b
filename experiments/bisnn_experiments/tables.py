"""The tables of measured numbers in the documents, held to the files that the measurements wrote.

    python -m bisnn_experiments.tables [--write]

Run it in the root of the repository. It compares every cell and says where one differs
(`make results-check`), or writes the tables anew (`make results-write`). A comment in front of a
table says what stands in it:

    <!-- table results/figures_tuned.json figures/fig2/summary
    | {method} | {predictor} | {accuracy:.4f} | {memory_bytes/mean:bytes} |
    -->

The file is relative to the document. The path behind it leads to a list or mapping with an entry
for each row; the line with bars is what each row shows. In braces stand the path of a value within
the entry and its format. Under a line with bars may stand the paths of the rows, one on each line,
where not all are shown; another line with bars may follow. `{.}` is the row's name in a mapping, or
what stands behind its path: `rate_hz -> events per second`.

Path: names, divided by `/`; `[method=st&predictor=sign]` picks the one entry of a list with these
values, `[0]` its first. Where the entry is itself a number, `{:.1f}` shows it.

Format: one of Python's, or a name in `NAMED`; `*1000 .1f` multiplies first. What has a mean and a
deviation is shown as `mean +- std`, what has an interval as `value [low, high]`, what has a range
as `lowest to highest`, each number in the format.

A number within prose is marked as `<!--v FILE {PATH:FORMAT}-->0.123<!--/v-->`, and does not begin a
line: Markdown would end the paragraph there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisnn.shipping.energy import si

DOCUMENTS = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "RESULTS",
            "NOTEBOOK",
            "PERFORMANCE",
            "EQUATIONS",
            "EVENTS",
            "SERIES",
            "SHIPPING",
            "TUNING",
            "SKLEARN",
            "explanations/bits",
            "explanations/guarantee",
            "explanations/paper",
            "explanations/report",
            "explanations/time",
        )
    ),
)

# Tables whose numbers are no measurements, by document and heading.
NOT_MEASURED = {
    ("README.md", "| | |"): "an overview of the package",
    ("docs/SKLEARN.md", "| | |"): "an overview of methods and settings",
    ("docs/EQUATIONS.md", "| paper | code | meaning |"): "symbols",
    ("docs/EQUATIONS.md", "| equation | function | test |"): "names of functions and tests",
    (
        "docs/EVENTS.md",
        "| kind | strengths 1 to 5 | |",
    ): "settings, held to the code by tests/test_corruption.py",
    ("docs/EVENTS.md", "| layout | split |"): "layouts of folders",
    ("docs/EVENTS.md", "| format | suffix | read by | sensor's size |"): "formats of files",
    ("docs/SERIES.md", "| given | what it holds |"): "kinds of files",
    ("docs/SERIES.md", "| code | inputs per channel | a spike |"): "what the code does",
    ("docs/SHIPPING.md", "| tensor | type | what |"): "the file format",
    (
        "docs/SHIPPING.md",
        "| file | what counts towards the budget | further limits |",
    ): "limits that the code sets",
    (
        "docs/RESULTS.md",
        "| config | rule | weights in training | gradient | learning rate | slope | readout gain |",
    ): ("settings, held to the configs by tests/test_tables.py"),
}

# What the files call methods and predictors by the names of rules or weights.
NAMES = {"full": "full precision", "st": "ST-BiSNN", "bayes": "Bayes-BiSNN"}
PREDICTORS = {
    "sign": "ST-BiSNN",
    "real weights": "full precision",
    "ensemble": "the ensemble",
    "MAP": "MAP",
}

OPENING = re.compile(r"<!-- table (\S+)(?: +(.*?))?\s*$")
INLINE = re.compile(r"<!--v (\S+) (.+?)-->(.*?)<!--/v-->")
PLACE = re.compile(r"\{([^{}]+)\}")
SELECTION = re.compile(r"\[([^\[\]]*)\]/?")
RULE = re.compile(r"\|[\s:|-]+\|\s*$")


class Missing(ValueError):
    """A comment that asks for what its file does not have, or that cannot be read."""


@dataclass(frozen=True)
class Problem:
    """A place in a document that differs from its file."""

    document: str
    line: int
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.document}:{self.line}: {self.place}"
        return f"{where}: expected {self.expected!r}, found {self.found!r}"


@dataclass(frozen=True)
class Spec:
    """What a comment says: the file, where its rows are, and for each template which of them (none:
    all).
    """

    line: int
    file: str
    path: str
    blocks: list[tuple[str, list[str]]]


# ---- values ----


def find(data: Any, path: str) -> Any:
    """The value at a path. Names may contain slashes: the longest that fits is taken."""
    while path:
        if selection := SELECTION.match(path):
            data, path = pick(data, selection[1]), path[selection.end() :]
            continue
        names = (
            [name for name in data if re.match(re.escape(name) + r"(/|\[|$)", path)]
            if isinstance(data, dict)
            else []
        )
        if not names:
            raise Missing(f"there is no {path!r}")
        name = max(names, key=len)
        data, path = data[name], path[len(name) :].removeprefix("/")
    return data


def pick(entries: Any, selection: str) -> Any:
    if selection.isdigit() and isinstance(entries, list) and int(selection) < len(entries):
        return entries[int(selection)]
    pairs = [pair.split("=", 1) for pair in selection.split("&")]
    if not isinstance(entries, list) or not all(len(pair) == 2 for pair in pairs):
        raise Missing(
            f"[{selection}] must be [name=value&...] or the number of an entry, behind a list"
        )
    chosen = [
        entry for entry in entries if all(str(entry.get(name)) == value for name, value in pairs)
    ]
    if len(chosen) != 1:
        raise Missing(f"[{selection}] fits {len(chosen)} entries, and must fit one")
    return chosen[0]


NAMED: dict[str, Callable[[Any], str]] = {
    "ms": lambda value: f"{value:.1f}" if value < 99.95 else f"{value:,.0f}",
    "bytes": lambda value: si(value, "B"),
    "joules": lambda value: si(value, "J"),
    "count": lambda value: si(value, "").strip(),
    "method": lambda value: ":".join([NAMES[value.split(":")[0]], *value.split(":")[1:]]),
    "predictor": lambda value: PREDICTORS[value],
}


def show(value: Any, form: str) -> str:
    if isinstance(value, dict) and "mean" in value and "std" in value:
        return f"{show(value['mean'], form)} +- {show(value['std'], form)}"
    if isinstance(value, dict) and {"value", "low", "high"} <= set(value):
        middle, low, high = (show(value[name], form) for name in ("value", "low", "high"))
        return f"{middle} [{low}, {high}]"
    if isinstance(value, dict) and {"lowest", "highest"} <= set(value):
        return " to ".join(dict.fromkeys(show(value[end], form) for end in ("lowest", "highest")))
    if factor := re.match(r"\*(\S+) ", form):
        return show(value * float(factor[1]), form[factor.end() :])
    if form in NAMED:
        return NAMED[form](value)
    try:
        text = format(value, form)
    except (TypeError, ValueError) as error:
        raise Missing(f"the format {form!r} does not fit {value!r}") from error
    return text.replace("-", "+" if "+" in form else "") if re.fullmatch(r"-0\.?0*", text) else text


def fill(template: str, entry: Any, name: str) -> str:
    def value(place: re.Match[str]) -> str:
        path, _, form = place[1].rpartition(":") if ":" in place[1] else (place[1], "", "")
        return show(name if path == "." else find(entry, path), form)

    return PLACE.sub(value, template)


# ---- tables ----


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]


def read(folder: Path, file: str) -> Any:
    try:
        return json.loads((folder / file).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise Missing(f"{file} cannot be read ({error})") from error


def parse(lines: list[str], line: int) -> Spec:
    """A comment's lines, the first of which has the number `line`."""
    opening = OPENING.match(lines[0])
    if not opening:
        raise Missing(f"a comment begins as '<!-- table FILE PATH', not {lines[0]!r}")
    blocks: list[tuple[str, list[str]]] = []
    for text in lines[1:]:
        if text.startswith("|"):
            blocks.append((text, []))
        elif not blocks:
            raise Missing(f"the line with bars comes before the paths of rows, not {text!r}")
        else:
            blocks[-1][1].append(text)
    return Spec(line, opening[1], opening[2] or "", blocks)


def render(spec: Spec, folder: Path) -> list[str]:
    """The rows that a comment asks for."""
    data = find(read(folder, spec.file), spec.path)
    rows = []
    for template, chosen in spec.blocks:
        if chosen:
            named = [(row.partition(" -> ")[2] or row, row.partition(" -> ")[0]) for row in chosen]
            entries = [(name, find(data, path)) for name, path in named]
        else:
            entries = (
                list(data.items()) if isinstance(data, dict) else [("", entry) for entry in data]
            )
        rows += [fill(template, entry, name) for name, entry in entries]
    return rows


def compare(
    document: str, line: int, heading: str, expected: list[str], found: list[str]
) -> Iterator[Problem]:
    """The rows of a table, the first of which is at `line`, with those of its file."""
    columns = cells(heading)
    for i in range(max(len(expected), len(found))):
        if i >= len(expected) or i >= len(found):
            wanted, there = (
                rows[i] if i < len(rows) else "no such row" for rows in (expected, found)
            )
            yield Problem(document, line + min(i, len(found)), f"row {i + 1}", wanted, there)
            continue
        wanted_cells, found_cells = cells(expected[i]), cells(found[i])
        if not len(wanted_cells) == len(found_cells) == len(columns):
            yield Problem(document, line + i, f"row {i + 1}", expected[i], found[i])
            continue
        for column, wanted, there in zip(columns, wanted_cells, found_cells, strict=True):
            if wanted != there:
                yield Problem(
                    document, line + i, f"row {found_cells[0]!r}, column {column!r}", wanted, there
                )


def refresh_inline(
    text: str, document: str, line: int, folder: Path, problems: list[Problem]
) -> str:
    if text.lstrip().startswith("<!--v"):
        expected = "a word before it: at the start of a line, a comment ends the paragraph"
        problems.append(Problem(document, line, "value", expected, text.strip()))

    def value(match: re.Match[str]) -> str:
        try:
            wanted = fill(match[2], read(folder, match[1]), "")
        except Missing as error:
            problems.append(
                Problem(
                    document,
                    line,
                    f"value of {match[1]}",
                    f"a value of the file: {error}",
                    match[3],
                )
            )
            return match[0]
        if wanted != match[3]:
            problems.append(Problem(document, line, match[2], wanted, match[3]))
        return f"<!--v {match[1]} {match[2]}-->{wanted}<!--/v-->"

    return INLINE.sub(value, text)


def refresh(text: str, document: str, folder: Path) -> tuple[str, list[Problem]]:
    """A document as it should be, and where it was not. What cannot be made stays as it is."""
    lines, result = text.split("\n"), list[str]()
    problems: list[Problem] = []
    spec: Spec | None = None
    i, code = 0, False
    while i < len(lines):
        line = lines[i]
        if line.startswith("<!-- table"):
            end = next((j for j in range(i, len(lines)) if "-->" in lines[j]), len(lines) - 1)
            comment = [*lines[i:end], *filter(None, [lines[end].partition("-->")[0].strip()])]
            try:
                spec = parse(comment, i + 1)
            except Missing as error:
                problems.append(Problem(document, i + 1, "comment", str(error), line))
            result += lines[i : end + 1]
            i = end + 1
            if spec and (i + 1 >= len(lines) or not RULE.match(lines[i + 1])):
                problems.append(
                    Problem(
                        document,
                        i + 1,
                        "comment",
                        "a table behind it",
                        lines[i] if i < len(lines) else "",
                    )
                )
                spec = None
            continue
        code ^= line.startswith("```")
        if not code and line.startswith("|") and i + 1 < len(lines) and RULE.match(lines[i + 1]):
            end = next(
                (j for j in range(i + 2, len(lines)) if not lines[j].startswith("|")), len(lines)
            )
            rows = lines[i + 2 : end]
            result += lines[i : i + 2]
            result += refresh_table(spec, document, i + 1, line, rows, folder, problems)
            i, spec = end, None
            continue
        result.append(refresh_inline(line, document, i + 1, folder, problems))
        i += 1
    return "\n".join(result), problems


def refresh_table(
    spec: Spec | None,
    document: str,
    line: int,
    heading: str,
    rows: list[str],
    folder: Path,
    problems: list[Problem],
) -> list[str]:
    if spec is None:
        if re.search(r"\d", "".join(rows)) and (document, heading) not in NOT_MEASURED:
            problems.append(
                Problem(
                    document, line, heading, "a comment that names the file of its numbers", "none"
                )
            )
        return rows
    try:
        expected = render(spec, folder)
    except Missing as error:
        problems.append(
            Problem(document, spec.line, heading, f"rows of {spec.file}: {error}", "a table")
        )
        return rows
    problems.extend(compare(document, line + 2, heading, expected, rows))
    return expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the tables anew")
    write, left = parser.parse_args().write, []
    if missing := [name for name in DOCUMENTS if not Path(name).is_file()]:
        parser.error(f"there is no {missing[0]} here; run this in the root of the repository")
    for name in DOCUMENTS:
        path = Path(name)
        old = path.read_text()
        new, problems = refresh(old, name, path.parent)
        if write and new != old:
            path.write_text(new)
            print(f"{name}: written anew ({len(problems)} cells or rows)")
            _, problems = refresh(new, name, path.parent)
        left += problems
    print(
        "\n".join(map(str, left)) if left else f"{len(DOCUMENTS)} documents agree with their files"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
