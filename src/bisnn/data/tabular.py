"""From a table's rows to a dataset: which rows train, what is learned from them, the labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data import table
from bisnn.data.loading import LoadedData, Split, ranges, rescaled, units, validation_rows
from bisnn.packed.columns import Schema, is_blank


def load(
    train: str,
    test: str | None,
    *,
    test_share: float,
    task: str,
    target: str | None,
    drop: Sequence[str],
    categorical: Sequence[str],
    rescale: bool,
    validation: float,
    seed: int,
) -> LoadedData:
    """A table's points. Everything that is learned (fills, categories, ranges, the targets' scale)
    comes from the training rows alone.

    The arguments are the keys of the section `data` of a config.
    """
    rows, classify = table.read(train), task == "classification"
    target = rows.names[-1] if target is None else target
    kept, tested = np.arange(len(rows)), None if test is None else table.read(test)
    if tested is None:
        known = classify and target in rows.names  # else `learned_schema` says what is wrong
        texts = rows.texts(target) if known else [""] * len(rows)
        kept, held_out = kept_and_tested(train, texts, test_share, seed)
        tested = rows.at(held_out)
    parts = [kept]
    if validation:
        parts = [kept[part.numpy()] for part in validation_rows(len(kept), validation, seed)]
    schema = table.learned_schema(rows, target, drop, categorical, parts[0])
    learning, *validated = (rows.at(part) for part in parts)
    classes, y = _labels(rows.at(kept), [learning, tested, *validated], schema, task)
    x = [
        schema.encode(table.matched(part, schema)[0])[0] for part in (learning, tested, *validated)
    ]
    features = x[0].shape[1]
    bounds = (
        ranges(x[0]) if rescale else (torch.zeros(features).double(), torch.ones(features).double())
    )
    first, second, *third = (
        Split(rescaled(some, *bounds), torch.from_numpy(of)) for some, of in zip(x, y, strict=True)
    )
    scale = (0.0, 1.0) if classify else units(y[0], f"{train}: column {target!r}")
    return LoadedData(first, third[0] if third else None, second, classes, *bounds, schema, *scale)


def kept_and_tested(
    path: str, classes: list[str], share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training file to train on, and to test on."""
    held_out = _held_out(classes, share, seed)
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"{path}: has {len(classes)} rows, too few to hold out data.test_share = {share:g} of "
            "them"
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _labels(
    training: table.Rows, parts: list[table.Rows], schema: Schema, task: str
) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The classes of the training and held-out rows, and the labels or targets of each part."""
    columns = [table.matched(part, schema)[1] for part in parts]
    for part, column in zip(parts, columns, strict=True):
        if column is None:
            raise ValueError(
                f"{part.path}: has no column {schema.target!r} with the classes or targets; add it"
            )
        blank = next((i for i, text in enumerate(column) if is_blank(text)), None)
        if blank is not None:
            name = schema.target if schema.target in part.names else part.names[-1]
            raise ValueError(
                f"{part.where(name or '', blank)}: has no class or target; "
                "fill it in or drop the row"
            )
    texts = [
        (part.path, column)
        for part, column in zip(parts, columns, strict=True)
        if column is not None
    ]
    if task == "regression":
        return (), [table.targets(path, column) for path, column in texts]
    _, classes = table.labels(training.path, training.texts(schema.target or ""))
    return classes, [table.labels(path, column, classes)[0] for path, column in texts]


def _held_out(classes: list[str], share: float, seed: int) -> np.ndarray:
    """Which rows are test rows: a random share of each class, so that all classes stay."""
    order = philox.permutation(len(classes), seed, Purpose.TEST_SPLIT)
    chosen = np.zeros(len(classes), dtype=bool)
    for name in sorted(set(classes)):
        members = [i for i in order if classes[i] == name]
        chosen[members[: round(share * len(members))]] = True
    return chosen
