"""Tables of one's own: columns by name, blanks and categories; in files and in the engine."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

import bisnn.packed
from bisnn.data import table
from bisnn.packed import BadFile
from bisnn.packed.columns import BadSchema, Column, Schema
from bisnn.runs import exporting, model, training
from bisnn.runs.folder import Damaged, load_tree, save_tree
from bisnn.runs.inputs import load_dataset
from runs import small

TOWNS = ("Rom", "Ulm", "Wien")
HEADER = ["id", "age", "town", "floor", "kind"]


def made_rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows whose class is a matter of age and town; some cells are blank, and id says nothing."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        age, town, floor = rng.uniform(20, 60), TOWNS[rng.integers(3)], rng.integers(1, 4)
        kind = "old" if age > 40 or town == "Ulm" else "young"
        cells = [
            str(i),
            "NA" if rng.random() < 0.1 else f"{age:.3f}",
            "" if rng.random() < 0.1 else town,
            str(floor),
            kind,
        ]
        rows.append(dict(zip(HEADER, cells, strict=True)))
    return rows


def write(path, rows, header=HEADER, delimiter=",", named=True):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header] if named else [])
        writer.writerows([row[name] for name in header] for row in rows)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table with everything: blanks, categories as words and numbers, a drop."""
    folder = tmp_path_factory.mktemp("table")
    data = {
        "name": "table",
        "train": str(write(folder / "train.csv", made_rows(120, 0))),
        "drop": ["id"],
        "categorical": ["floor"],
    }
    return training.train(
        small("bayes", {"data": data}, **{"rule.lr": 0.1, "train.epochs": 8}),
        folder / "run",
        show=False,
    )


def test_features_are_those_of_scikit_learn(tmp_path):
    rows = made_rows(80, 1)
    path = write(tmp_path / "a.csv", rows)
    read = table.read(path)
    training_rows = np.arange(0, 80, 2)
    schema = table.learned_schema(
        read, read.names[-1], drop=["id"], categorical=["floor"], training=training_rows
    )
    x, _ = schema.encode(table.matched(read, schema)[0])
    ages = np.array([[np.nan if row["age"] == "NA" else float(row["age"])] for row in rows])
    words = np.array([[row["town"], row["floor"]] for row in rows], dtype=object)
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(ages[training_rows])
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(words[training_rows])
    np.testing.assert_array_equal(
        x, np.concatenate([imputer.transform(ages), encoder.transform(words)], 1)
    )
    assert schema.features[:4] == ["age", "age is blank", "town = blank", "town = Rom"]
    new = schema.encode({"age": [33, None], "town": ["Bonn", "Ulm"], "floor": [2, "9"]})
    wanted = [imputer.transform([[33], [np.nan]]), encoder.transform([["Bonn", "2"], ["Ulm", "9"]])]
    np.testing.assert_array_equal(new[0], np.concatenate(wanted, 1))
    assert new[1] == [
        "column 'town': 1 cells are of no category of the training rows, e.g. 'Bonn', and "
        "count as none",
        "column 'floor': 1 cells are of no category of the training rows, e.g. '9', and count "
        "as none",
    ]


def test_blanks_where_training_rows_had_none():
    schema = Schema((Column("a", 2.5),), ("a", "y"), "y")
    x, notes = schema.encode(np.array([[1.0], [np.nan]]))
    assert x.tolist() == [[1.0], [2.5]]
    assert notes == ["column 'a': 1 blanks, where no training row had any, are taken as 2.5"]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"a": 1}, "x: has no column 'b', which the model takes; it has a"),
        ({"a": 1, "b": "u", "c": 3}, "x: column 'c' was not in the training file; leave it out"),
        ({"a": [1, 2], "b": ["u"]}, "every column must have as many values"),
        (
            {"a": "ten", "b": "u"},
            "x: row 1, column 'a': must be a number, as others of its column are; got 'ten'",
        ),
        ({"a": np.inf, "b": "u"}, "x: row 1, column 'a': must be a finite number; got inf"),
        (
            np.zeros((2, 3)),
            r"x: must be \(N, 2\) with N >= 1, the columns a, b; got shape \(2, 3\)",
        ),
        (np.zeros((0, 2)), "x: must be"),
    ],
)
def test_bad_points(x, message):
    schema = Schema((Column("a"), Column("b", categories=("u", "v"))), ("a", "b", "y"), "y")
    with pytest.raises(ValueError, match=message):
        schema.encode(x)


# By name


def test_columns_are_matched_by_name(run, tmp_path, bisnn_):
    rows = made_rows(30, 2)
    answers = []
    orders = (HEADER, HEADER[::-1], ["town", "floor", "age"], ["kind", "floor", "town", "age"])
    for i, order in enumerate(orders):
        for delimiter in ",;\t":
            code, out, error = bisnn_(
                "predict", run, write(tmp_path / f"{i}.csv", rows, order, delimiter)
            )
            assert code == 0
            answers.append(out)
            assert ("accuracy" in error) == ("kind" in order)
    assert len(set(answers)) == 1
    predicted = [row["class"] for row in csv.DictReader(answers[0].splitlines())]
    right = np.mean([a == row["kind"] for a, row in zip(predicted, rows, strict=True)])
    assert right > 0.5
    _, _, error = bisnn_("predict", run, write(tmp_path / "all.csv", rows))
    assert f"all.csv: accuracy {right:.4f} on 30 rows that have their class or target\n" in error


def test_labels_that_are_blank_or_unknown(run, tmp_path, bisnn_):
    rows = made_rows(4, 3)
    _, out, _ = bisnn_("predict", run, write(tmp_path / "a.csv", rows, HEADER[:-1]))
    said = [row["class"] for row in csv.DictReader(out.splitlines())]
    kinds = [said[0], "", "unheard of", "old" if said[3] == "young" else "young"]
    rows = [{**row, "kind": kind} for row, kind in zip(rows, kinds, strict=True)]
    _, again, error = bisnn_("predict", run, write(tmp_path / "b.csv", rows))
    assert again == out
    assert (
        "accuracy 0.3333 on 3 rows that have their class or target; "
        "1 of a class that the model does not know" in error
    )


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            ["age", "town", "kind"],
            "has no column 'floor', which the model takes; it has age, town, kind",
        ),
        (["age", "id", "kind"], "has no column 'town', 'floor', which the model takes"),
        ([*HEADER, "more"], "column 'more' was not in the training file; leave it out"),
    ],
)
def test_other_columns_are_an_error(run, tmp_path, bisnn_, order, message):
    rows = [{**row, "more": "1"} for row in made_rows(3, 2)]
    code, out, error = bisnn_("predict", run, write(tmp_path / "a.csv", rows, order))
    assert (code, out) == (1, "")
    assert message in error
    assert error.count("\n") == 1


def test_without_a_header_columns_are_taken_by_position(run, tmp_path, bisnn_):
    rows = made_rows(10, 4)
    _, wanted, _ = bisnn_("predict", run, write(tmp_path / "a.csv", rows))
    assert (
        bisnn_("predict", run, write(tmp_path / "b.csv", rows, HEADER[1:4], named=False))[1]
        == wanted
    )
    code, out, error = bisnn_("predict", run, write(tmp_path / "c.csv", rows, named=False))
    assert out == wanted
    assert "accuracy" in error, "laid out as the training file, with its target"
    code, _, error = bisnn_(
        "predict", run, write(tmp_path / "d.csv", rows, HEADER[:4], named=False)
    )
    assert code == 1
    assert (
        "must have 3 columns, the model's features in their order, or 5, as the training file has; "
        "got 4" in error
    )


def test_a_model_without_names_takes_any_header(tmp_path, bisnn_):
    rng = np.random.default_rng(0)
    x = rng.random((40, 2))
    np.savez(tmp_path / "train.npz", x=x, y=(x[:, 0] > 0.5).astype(int))
    np.savez(
        tmp_path / "named.npz",
        x=x[:, ::-1],
        y=(x[:, 0] > 0.5).astype(int),
        names=np.array(["b", "a"]),
    )
    folders = []
    for name in ("train", "named"):
        data = {"name": "table", "train": str(tmp_path / f"{name}.npz")}
        folders.append(training.train(small("st", {"data": data}), tmp_path / name, show=False))
    np.save(tmp_path / "x.npy", x[:5])
    (tmp_path / "x.csv").write_text("a,b\n" + "\n".join(f"{a!r},{b!r}" for a, b in x[:5].tolist()))
    _, wanted, error = bisnn_("predict", folders[0], tmp_path / "x.npy")
    assert error == ""
    _, out, error = bisnn_("predict", folders[0], tmp_path / "x.csv")
    assert out == wanted
    assert "its columns are taken by position, as the training file gave them no names" in error
    trained = model.load(folders[1])
    assert [column.name for column in trained.schema.columns] == ["b", "a"]
    _, out, error = bisnn_("predict", folders[1], tmp_path / "x.csv")
    assert error == ""
    probs = [float(row["p(0)"]) for row in csv.DictReader(out.splitlines())]
    np.testing.assert_allclose(probs, trained.predict(x[:5, ::-1]).mean[:, 0], rtol=1e-5)


# Learned from training rows alone, kept with the model, the same everywhere


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_nothing_is_learned_from_held_out_rows(tmp_path, task):
    rng = np.random.default_rng(5)
    rows = [
        {"a": f"{rng.normal():.3f}", "b": "uv"[rng.integers(2)], "y": str(rng.integers(1, 4))}
        for _ in range(60)
    ]
    data = {
        "name": "table",
        "task": task,
        "train": str(write(tmp_path / "a.csv", rows, ["a", "b", "y"])),
        "validation": 0.25,
    }
    if task == "classification":
        data["test_share"] = 0.2
    else:
        data["test"] = str(write(tmp_path / "test.csv", rows[:9], ["a", "b", "y"]))
    config = small("st", {"data": data})
    before = load_dataset(config)
    held = {float(value) for part in (before.validation, before.test) for value in part.x[:, 0]}
    kept = {float(value) for value in before.train.x[:, 0]}
    read = table.read(tmp_path / "a.csv")
    a = (np.array([float(v) for v in read.column("a")]) - float(before.low[0])) / float(
        before.high[0] - before.low[0]
    )
    chosen = [
        i
        for i in range(60)
        if float(np.float32(a[i])) not in kept and float(np.float32(a[i])) in held
    ]
    assert len(chosen) >= 10
    for i in chosen:
        rows[i] |= {"a": "1000", "b": "w", **({"y": "77"} if task == "regression" else {})}
    write(tmp_path / "a.csv", rows, ["a", "b", "y"])
    after = load_dataset(config)
    assert after.schema == before.schema
    assert torch.equal(after.low, before.low)
    assert torch.equal(after.high, before.high)
    assert (after.target_mean, after.target_scale) == (before.target_mean, before.target_scale)
    assert torch.equal(after.train.x, before.train.x)
    assert float(after.validation.x.max()) > 100


def test_model_file_array_and_packed_engine_agree(run, tmp_path, recwarn):
    trained = model.load(run)
    rows = made_rows(20, 6)
    columns = {name: [row[name] for row in rows] for name in HEADER}
    wanted = trained.predict(columns)
    array = np.array([[row[name] for name in HEADER[1:4]] for row in rows])
    assert torch.equal(trained.predict(array).members, wanted.members)
    assert not recwarn.list
    exporting.export(run, "packed", tmp_path / "p.safetensors")
    engine = bisnn.packed.load(tmp_path / "p.safetensors")
    assert engine.network.schema == trained.schema
    for x in (columns, array):
        np.testing.assert_allclose(engine.predict_features(x).mean, wanted.mean, atol=1e-5)
    with pytest.warns(UserWarning, match="of no category of the training rows, e.g. 'Bonn'"):
        one = engine.predict_features({"age": "31", "town": "Bonn", "floor": "1"})
    np.testing.assert_allclose(
        one.mean, trained.predict({"age": 31, "town": "Bonn", "floor": 1}).mean, atol=1e-5
    )


def changes(about):
    """Descriptions of a table that are none."""
    yield {**about, "columns": []}
    yield {**about, "columns": about["columns"][1:]}  # fewer features than the network takes
    yield {**about, "layout": about["layout"][2:]}
    yield {**about, "target": "age"}
    yield {**about, "more": 1}
    for part in (
        {"name": 3},
        {"fill": float("nan")},
        {"fill": True},
        {"blanks": 1},
        {"categories": ["a", "a"]},
        {"x": 0},
    ):
        yield {**about, "columns": [{**about["columns"][0], **part}, *about["columns"][1:]]}
    yield from ([], "table", 3)


def test_bad_descriptions_are_refused(run, tmp_path):
    about = model.load(run).schema.to_json()
    features = model.load(run).features
    again = json.loads(json.dumps(about))
    assert Schema.from_json(again, features).to_json() == about
    tree = load_tree(run / "model.safetensors", "model")
    for bad in changes(again):
        with pytest.raises(BadSchema):
            Schema.from_json(bad, features)
        save_tree(tmp_path / "bad.safetensors", {**tree, "schema": bad}, "model")
        with pytest.raises(Damaged, match="is no model of this version"):
            model.load(tmp_path / "bad.safetensors")
    for bad in (
        {"mean": "0", "scale": 1.0},
        {"mean": 0.0, "scale": 0.0},
        {"mean": float("nan"), "scale": 1.0},
    ):
        save_tree(tmp_path / "bad.safetensors", {**tree, "target": bad}, "model")
        with pytest.raises(Damaged, match="is no model of this version"):
            model.load(tmp_path / "bad.safetensors")
    network = exporting.describe_model(model.load(run))
    for name, value in (
        ("target_scale", 0.0),
        ("target_scale", "1"),
        ("target_mean", float("inf")),
    ):
        bisnn.packed.write(
            bisnn.packed.file.replace(network, **{name: value}), tmp_path / "bad.safetensors"
        )
        with pytest.raises(BadFile, match=name):
            bisnn.packed.read(tmp_path / "bad.safetensors")


def test_blanks_in_arrays_are_filled_in(tmp_path):
    """NaN in an NPZ is a blank like an empty cell of a CSV."""
    x = np.array([[1.0, 5.0], [np.nan, 6.0], [3.0, 7.0]] * 10)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(30) % 2)
    (tmp_path / "a.csv").write_text(
        "".join(f"{'' if np.isnan(a) else a},{b},{i % 2}\n" for i, (a, b) in enumerate(x))
    )
    arrays, text = (
        load_dataset(small("st", {"data": {"name": "table", "train": str(tmp_path / name)}}))
        for name in ("a.npz", "a.csv")
    )
    assert torch.equal(arrays.train.x, text.train.x)
    assert arrays.train.x.shape[1] == 3, "and an indicator"


def test_a_blank_label_is_named_by_its_line(tmp_path):
    rows = [f"{i},{'' if i == 17 else i % 2}" for i in range(30)]
    (tmp_path / "a.csv").write_text("age,kind\n" + "\n".join(rows))
    with pytest.raises(ValueError, match=r"a\.csv: line 19, column 'kind': has no class or target"):
        load_dataset(small("st", {"data": {"name": "table", "train": str(tmp_path / "a.csv")}}))
