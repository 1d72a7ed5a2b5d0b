"""Results as tables on the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from bisnn.display import console, visible

if TYPE_CHECKING:
    from bisnn.data.survey import Survey
    from bisnn.intervals import Interval
    from bisnn.reporting.page import Written
    from bisnn.runs.exporting import Exported
    from bisnn.runs.guarantee import Guarantee
    from bisnn.runs.microcontrollers import Microcontrollers
    from bisnn.runs.model import Model
    from bisnn.runs.results import Evaluation, Kept, OtherData, Verdict
    from bisnn.runs.robustness import Robustness
    from bisnn.shipping.conversion import Changes
    from bisnn.shipping.energy import Ledger

# Names of metrics that are read as letters
SHORT = {
    "nll": "NLL",
    "ece": "ECE",
    "rmse": "RMSE",
    "mae": "MAE",
}


def print_verdict(folder: Path, found: Verdict) -> None:
    """Print what `evaluate` found: every metric of every predictor with its interval."""
    title = f"{folder}: {found.points} test points; value and 95 % interval"
    if found.temperature != 1:
        title += f"; at temperature {found.temperature:.3g}"
    table = Table(title=title, box=box.SIMPLE)
    # Six columns of intervals fit into 80 characters
    table.collapse_padding = True
    table.pad_edge = False
    table.add_column("predictor")
    names = list(next(iter(found.metrics.values())))
    for name in names:
        table.add_column(SHORT.get(name, name.replace("_", " ")))
    for predictor, values in (found.metrics | found.baseline).items():
        table.add_row(
            predictor, *(_interval(values[name]) if name in values else "" for name in names)
        )
    out = console()
    out.print(table)
    calibration = (
        "ECE {ece:.4f}; if its confidences were calibrated: "
        "{calibrated_mean:.4f}, in 95 of 100 up to {calibrated_high:.4f}"
    )
    for predictor, ece in found.calibration.items():
        out.print(f"{predictor}: {calibration.format(**ece.model_dump())}")
    if found.guarantee is not None:
        _print_kept(found.guarantee)
    if found.ood is not None:
        _print_told_apart(found.ood)
    out.print(
        "{weights:,} weights: {bytes:,} bytes at {bits} bit, {bytes_32_bit:,} at 32".format(
            **found.memory.model_dump()
        ),
    )


def print_classes(found: Evaluation, most: int = 20) -> None:
    """Print how many test points of each class every predictor gets right, the worst first."""
    if not found.classes or found.y.ndim != 1:
        return
    right = {name: some.mean.argmax(-1) == found.y for name, some in found.predictors.items()}
    rows = []
    for number, name in enumerate(found.classes):
        of = found.y == number
        count = int(of.sum())
        shares = [float(hits[of].double().mean()) if count else math.nan for hits in right.values()]
        rows.append((name, count, shares))
    rows.sort(key=lambda row: (not row[1], row[2][-1]))  # classes without a test point last
    table = [["class", "test points", *right]]
    for name, count, shares in rows[:most]:
        cells = ("" if math.isnan(share) else f"{share:.3f}" for share in shares)
        table.append([name, f"{count:,}", *cells])
    print_table(table)
    if len(rows) > most:
        console().print(f"and {len(rows) - most} more classes; `bisnn report` has all of them")


def _print_kept(found: Kept) -> None:
    """Print how the guarantee of a calibrated run holds."""
    by = f", {found.correction}" if found.correction else ""
    what = "prediction sets" if found.correction else "intervals"
    table = Table(
        title=f"{what} of {found.predictor}, to hold the truth in {found.coverage:.10g} of all "
        f"cases (calibrated on {found.recordings:,}{by}); time steps of {found.steps}",
        box=box.SIMPLE,
    )
    for name in found.metrics:
        table.add_column(name.replace("_", " "))
    table.add_row(*map(_interval, found.metrics.values()))
    console().print(table)
    if found.doubt():
        console().print(found.doubt())


def _print_told_apart(found: OtherData) -> None:
    """Print how well other data are told apart from the test recordings."""
    table = Table(title=f"{found.folder}: told apart from the test recordings", box=box.SIMPLE)
    for name in ("set", "predictor", "score", "AUROC", "AUPR", "FPR95"):
        table.add_column(name, justify="right" if name[0].isupper() else "left")
    for other in found.sets:
        first = f"{other.name}, {other.recordings}" + ", control" * other.control
        for predictor, scores in other.scores.items():
            for score, row in scores.items():
                numbers = (f"{value:.3f}" for value in (row.auroc, row.aupr, row.fpr95))
                table.add_row(first, predictor, score, *numbers)
                first = ""
    out = console()
    out.print(table)
    if any(other.control for other in found.sets):
        out.print("control: the run's own classes there; how they were recorded tells them apart")


def _interval(found: Interval) -> str:
    """A value over its interval; large ones with fewer digits behind the point."""
    digits = max(0, 3 - max(0, math.floor(math.log10(max(abs(found.high), 1)))))
    return f"{found.value:.{digits + 1}f}\n{found.low:.{digits}f}-{found.high:.{digits}f}"


def print_ledger(found: Ledger) -> None:
    """Print what an inference takes, by predictor and layer."""
    # Loads PyTorch, which other tables do without
    from bisnn.shipping.energy import ANN, HYPOTHETICAL, LayerExpenses, si

    title = f"One inference of {found.steps} time steps, mean over {found.recordings} test points"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("predictor")
    for name in (
        "weights\nin bits",
        "synaptic\noperations",
        "neuron\nupdates",
        "memory\ntraffic",
        "energy",
        "ratio\nto ANN",
    ):
        table.add_column(name, justify="right")
    for name, row in found.rows.items():
        for layer in (row, *row.layers):
            counts = (
                f"{getattr(layer, key):,.0f}"
                for key in ("weight_bits", "synaptic_operations", "neuron_updates")
            )
            share = f"{row.ratio:.2f}" if layer is row else ""
            cells = (*counts, si(layer.bytes, "B"), si(layer.joules, "J"), share)
            table.add_row(
                f"  {layer.layer}" if isinstance(layer, LayerExpenses) else name,
                *cells,
                style="" if layer is row else "dim",
            )
    out = console()
    out.print(table)
    costs = ", ".join(f"{name} {value:g}" for name, value in asdict(found.costs).items())
    out.print(f"Picojoules an operation, or an access of 64 bits: {costs}. Usual: {found.source}.")
    where = ", ".join(f"{name} in {row.memory}" for name, row in found.rows.items())
    out.print(f"The smallest memory that holds weights and state: {where}.")
    out.print(
        "Every synaptic operation is one accumulate; "
        "the last readout is included, pooling and softmax are not."
    )
    if HYPOTHETICAL in found.rows:
        out.print(f"{HYPOTHETICAL}: 32-bit weights at the same spikes.")
    out.print(
        f"{ANN}: the same layers in one pass of 32-bit multiply-accumulates, not one for every "
        "time step."
    )


def print_robustness(folder: Path, found: Robustness) -> None:
    """Print accuracy, NLL and ECE of every predictor under each corruption, by strength."""
    out = console()
    for predictor, clean in found.clean.items():
        title = f"{folder}: {predictor} on {found.points} test recordings, by strength"
        # Fits 80 characters
        table = Table(title=title, box=box.SIMPLE, collapse_padding=True, pad_edge=False)
        for name in ("corruption", "", "clean", "1", "2", "3", "4", "5", "mean"):
            table.add_column(name, justify="left" if name in ("corruption", "") else "right")
        for kind in dict.fromkeys(row.kind for row in found.corrupted):
            rows = [row.predictors[predictor] for row in found.corrupted if row.kind == kind]
            for place, metric in enumerate(type(clean).model_fields):
                values = [getattr(row, metric) for row in rows]
                cells = [getattr(clean, metric), *values, sum(values) / len(values)]
                first = "" if place else kind.replace("_", " ")
                table.add_row(first, SHORT.get(metric, metric), *(f"{v:.3f}" for v in cells))
        out.print(table)
        means = found.mean[predictor].model_dump().items()
        text = ", ".join(f"{SHORT.get(metric, metric)} {value:.4f}" for metric, value in means)
        out.print(f"{predictor}, mean over the suite: {text}")


def print_report(written: Written) -> None:
    """Print where a report is, and its line on decisions."""
    console().print(f"report: {written.path}")
    if written.decisions:
        console().print(written.decisions, soft_wrap=True)


def print_exported(to: str, done: Exported) -> None:
    """Print what `export` wrote, and how to use it."""
    out = console()
    if done.changes is not None:
        out.print(f"neuron {done.neuron}: {_changes_text(done.changes)}")
    if to == "packed":
        each = f"{done.planes} bit{'s' * (done.planes > 1)}"
        bits = f"{done.members} x {each}" if done.members else "the posterior at 8 bits"
        out.print(f"{done.weights:,} weights, {bits} each: {done.bytes:,} bytes in {done.path}")
        out.print(f'run it without PyTorch: bisnn.packed.load("{done.path}").{done.call}')
        if done.sets_call:
            early = "" if "intervals" in done.sets_call else ", which stops early"
            out.print(f"with the guarantee of its calibration{early}: .{done.sets_call}")
    elif to == "c":
        out.print(
            f"C99 in {done.path}: {done.flash:,} bytes of tables (flash), {done.ram:,} of state "
            "(RAM)"
        )
        out.print(f"check every bit: make -C {shlex.quote(str(done.path))} test")
        if done.sets_call:
            out.print(f"with the guarantee of its calibration, stopping early: {done.sets_call}")
        if done.chips is not None:
            _print_chips(done.chips)
    elif to == "web":
        out.print(f"a page that runs the network: {done.bytes:,} bytes in {done.path}")
        out.print("open it in a browser: it needs no server and loads nothing")
    elif ":" in to:
        out.print(f"{to} wrote {done.path}")
    else:
        out.print(f"NIR graph ({done.profile}): {done.bytes:,} bytes in {done.path}")
        if done.disagreement is not None:
            classes = done.disagreement.predictions
            of_classes = "" if classes is None else f", {classes:.2%} of the predicted classes"
            out.print(
                f"not the network's own spikes: {done.disagreement.spikes:.1%} of them "
                f"differ{of_classes}, on the inputs that were tried"
            )


def _print_chips(chips: Microcontrollers) -> None:
    """Print what the code takes on each microcontroller, and why that is not known of others."""
    table, out = Table(box=box.SIMPLE), console()
    table.add_column("")
    for name in ("flash, bytes", "RAM, bytes", "instructions per step"):
        table.add_column(name, justify="right")
    for cost in chips.costs:
        if cost.reason:
            out.print(f"{cost.target}: {cost.reason}")
        else:
            numbers = (cost.flash, cost.ram, cost.instructions)
            table.add_row(cost.target, *(f"{number:,}" for number in numbers))
    if not table.row_count:
        return
    out.print(table)
    out.print(
        "flash: code and tables. RAM: state and stack. Instructions, by QEMU's counter, are not "
        "cycles: a chip takes one to several for each"
    )


def _changes_text(changes: Changes) -> str:
    spikes, of, n = changes.changed_spikes, changes.spikes, changes.recordings
    decided = changes.changed_decisions
    text = f"{spikes:,} spikes differ on the test set, where the network has {of:,}"
    return text if decided is None else f"{text}; {decided} of {n:,} decisions change"


def print_guarantee(found: Guarantee, path: Path) -> None:
    """Print what `calibrate` found."""
    from bisnn.conformal import ConformalIntervals
    from bisnn.prediction import TEMPERATURES

    out, rule = console(), found.rule
    members = found.samples or 1
    if not isinstance(rule, ConformalIntervals):
        members = rule.path[-1][1]
    by = "the one set of weights" if members == 1 else f"{members} members"
    promise = f"hold the truth in {rule.coverage:.10g} of all cases like these"
    on = f"calibrated on {rule.recordings} by {by}"
    if isinstance(rule, ConformalIntervals):
        unit = " deviations" if rule.scaled else ""
        out.print(f"intervals of the mean +- {rule.width:.4g}{unit} {promise}; {on}")
    else:
        looks = f"{len(rule.path)} looks from time step {rule.path[0][0]} to {rule.path[-1][0]}"
        out.print(f"sets {promise}, at all of {looks}; {on}, {rule.correction}")
    if found.temperature is not None:
        low, high = TEMPERATURES
        bound = ""
        if not 1.01 * low < found.temperature < high / 1.01:
            bound = ": the end of what is tried, so do not use it"
        out.print(f"temperature {found.temperature:.3g}, for --tempered{bound}")
    out.print(f"calibration: {path}")


def set_columns(model: Model, found: Any) -> tuple[list[str], list[list[Any]]]:
    """Header and cells of each prediction's set, its size and the time step; or its interval."""
    if not model.classes:
        return ["low", "high"], [list(ends) for ends in zip(*map(list, found), strict=True)]
    pairs = (zip(model.classes, inside, strict=True) for inside in found.sets.tolist())
    sets = ("|".join(name for name, inside in row if inside) for row in pairs)
    rows = zip(sets, found.sizes.tolist(), found.steps.tolist(), strict=True)
    return ["set", "set_size", "time_steps"], [list(row) for row in rows]


def prediction_rows(model: Model, result: Any) -> tuple[list[str], list[list[Any]]]:
    """Header and one row for each prediction."""
    if not model.classes:
        return ["mean", "deviation"], [
            [m, s]
            for m, s in zip(result.mean[:, 0].tolist(), result.std[:, 0].tolist(), strict=True)
        ]
    header = [
        "class",
        "confidence",
        *(f"p({name})" for name in model.classes),
        "entropy",
        "mutual_information",
    ]
    confidence, best = result.mean.max(-1)
    columns = zip(best.tolist(), confidence.tolist(), result.mean.tolist(), strict=True)
    unsure = zip(result.entropy.tolist(), result.mutual_information.tolist(), strict=True)
    return header, [
        [model.classes[i], c, *p, *u] for (i, c, p), u in zip(columns, unsure, strict=True)
    ]


def csv_text(header: list[str], rows: list[list[Any]]) -> str:
    """A CSV file in which no cell is a formula to a spreadsheet, or a command to a terminal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(
        [_no_formula(visible(cell)) if isinstance(cell, str) else cell for cell in row]
        for row in (header, *rows)
    )
    # Bytes of file names that are no UTF-8
    return text.getvalue().encode(errors="backslashreplace").decode()


def _no_formula(cell: str) -> str:
    """Quote a name that a spreadsheet would run, such as "=cmd|...", but no number like "-1"."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def print_rows(header: list[str], found: list[list[Any]], most: int = 20) -> None:
    """Print the first rows of predictions as a table."""
    table = Table()
    for name in header:
        # A path is known by its end
        table.add_column(name, overflow="fold" if name == "file" else "ellipsis")
    for row in found[:most]:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    out = console()
    out.print(table)
    if len(found) > most:
        out.print(f"and {len(found) - most} more; --out FILE.csv writes them all")


def print_facts(facts: dict[str, str], title: str | None = None) -> None:
    """Print names and values."""
    table = Table(title=title, show_header=False)
    for name, value in facts.items():
        table.add_row(name, value)
    console().print(table)


def print_table(rows: list[list[str]]) -> None:
    """Print rows of text, the first of which is the head."""
    table = Table(box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    for place, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if place else "left")
    for row in rows[1:]:
        table.add_row(*row)
    console().print(table)


def survey_rows(found: Survey) -> list[list[str]]:
    """What a folder has of each class, the head first."""
    rows = [["class", "recordings", "seconds", "events", "events/s"]]
    parts = sorted({entry.part for entry in found.listing.entries if entry.part}, reverse=True)
    rows[0][2:2] = parts
    for label in found.listing.classes:
        looks = found.of_class(label)
        seconds = [look.duration_us / 1e6 for look in looks]
        rates = [look.events / s for look, s in zip(looks, seconds, strict=True) if s]
        counts = [f"{sum(look.entry.part == part for look in looks):,}" for part in parts]
        spans = _span(seconds, 2), _span([look.events for look in looks], 0)
        rate = f"{statistics.median(rates):,.0f}" if rates else ""
        rows.append([label, f"{len(looks):,}", *counts, *spans, rate])
    return rows


def _span(values: Sequence[float], digits: int) -> str:
    """The median, and the lowest and highest value."""
    if not values:
        return ""
    low, high, usual = min(values), max(values), statistics.median(values)
    return f"{usual:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def survey_facts(found: Survey) -> dict[str, str]:
    """What is to know of a folder of recordings, and settings to begin with."""
    from collections import Counter

    from bisnn.data.survey import suggested

    formats = Counter(look.format for look in found.looks)
    way, (width, height) = suggested(found), found.size
    least = "" if found.size_stated else "; no file says it: the least that holds all events"
    window = f"steps = {way.steps}, bin_us = {way.bin_us}"
    if way.crop is not None:
        window += f", crop = {list(way.crop)}"
    if way.downsample > 1:
        window += f", downsample = {way.downsample}, min_events = {way.min_events}"
    facts = {
        "classes": f"{len(found.listing.classes)}",
        "recordings": f"{len(found.looks):,}",
        "formats": ", ".join(f"{name}: {count:,}" for name, count in formats.most_common()),
        "sensor": f"{width} x {height} pixels{least}",
        "groups": f"{len({e.group for e in found.listing.entries if e.group})}",
        "of no class, left out": f"{len(found.listing.unlisted)}",
        "cannot be used": f"{len(found.damaged)}",
        "to begin with": window,
    }
    return {name: value for name, value in facts.items() if value != "0"}
