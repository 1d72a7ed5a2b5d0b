"""Files of points from outside: what is read, and what each kind of bad file says."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn.data import table


def features(path, count):
    return table.read_points(path, None, count)[0]


def write(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    elif isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def damaged_archive():
    file = io.BytesIO()
    np.savez_compressed(file, x=np.random.default_rng(0).random((50, 2)))
    content = bytearray(file.getvalue())
    content[150:200] = bytes(50)
    return bytes(content)


DAMAGED = damaged_archive()
HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999, 2), }".ljust(117)
    + b"\n"
    + bytes(16)
)
X = np.array([[0.25, 1.0], [-3.0, 2e-3], [7.0, 0.5]])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "0.25,1\n-3,2e-3\n7,.5\n"),
        ("a.csv", "x1,x2\r\n0.25,1\r\n-3,2e-3\r\n\r\n7,.5"),
        ("a.CSV", "\ufeffx1;x2\n0.25;1\n -3 ; 2e-3\n7;.5\n"),
        ("a.csv", "0.25\t1\n-3\t2e-3\n7\t.5\n"),
        ("a.tsv", "x1\tx2\n0.25\t1\n-3\t2e-3\n7\t.5\n"),
        ("a.csv", "x1;x2\n0,25;1\n-3;2e-3\n7;,5\n"),
        ("a.csv", "0,25;1,0\n-3,0;0,002\n7;0,5\n"),
        ("a.tsv", "0,25\t1\n-3\t2e-3\n7\t0,5\n"),
        ("a.csv", '"x;1","x\t2"\n0.25,1\n-3,2e-3\n7,.5\n'),
        ("a.npy", X),
        ("a.npz", {"x": X}),
    ],
)
def test_features(tmp_path, name, content):
    np.testing.assert_array_equal(features(write(tmp_path, name, content), 2), X)


BAD = {
    "no numbers at all": ("a.csv", "a,b\n", "is empty"),
    "empty": ("a.csv", "", "is empty"),
    "nan": (
        "a.csv",
        "x,y\n1,2\n1,nan\n",
        "line 3, column 'y': must be a finite number; it is blank",
    ),
    "infinite": ("a.csv", "1,2\ninf,2\n", "line 2, column 1"),
    "a word": (
        "a.csv",
        "1,2\n1,two\n",
        "line 2, column 2: must be a number, as others of its column are; got 'two'",
    ),
    "a hole": ("a.csv", "1,2\n1,\n", "line 2, column 2"),
    "ragged": ("a.csv", "1,2\n1,2,3\n", "line 2 has 3 columns, the first 2"),
    "one column too many": (
        "a.csv",
        "1,2,0\n",
        "must have 2 columns, the model's features in their order; got 3",
    ),
    "too few": ("a.csv", "1\n", "must have 2 columns, the model's features in their order; got 1"),
    "two names alike": ("a.csv", "x,x\n1,2\n", "two columns are named 'x'; rename one"),
    "no name": (
        "a.csv",
        ",x\n1,2\n",
        "column 1 has no name; give it one, or leave it out if it numbers the rows",
    ),
    "point and comma": (
        "a.csv",
        "1.000;2,5\n",
        "line 1: '1.000' has a decimal point where other numbers have a comma",
    ),
    "underscores": ("a.csv", "1,2\n1_000,2\n", "line 2, column 1: must be a number"),
    "binary": ("a.csv", b"\xff\xfe\x01\x02", "is no CSV text"),
    "line number after blank lines": ("a.csv", "x,y\n\n1,2\n\n\n1,two\n", "line 6, column 'y'"),
    "missing values are no empty line": (
        "a.csv",
        "1,2\n,\n3,4\n",
        "line 2, column 1: must be a finite number; it is blank",
    ),
    "missing values are no header": ("a.csv", "NA,NA\n1,2\n", "line 1, column 1"),
    "npy nan": (
        "a.npy",
        np.array([[1.0, np.nan]]),
        "row 1, column 2: must be a finite number; it is blank",
    ),
    "npy one axis": ("a.npy", np.array([1.0, 2.0]), r"must have rows and columns.*\(2,\)"),
    "npy empty": ("a.npy", np.zeros((0, 2)), "not be empty"),
    "npy text": ("a.npy", np.array([["a", "b"]]), "must hold real numbers"),
    "npy complex": ("a.npy", np.array([[1j, 2]]), "must hold real numbers"),
    "npy pickled": ("a.npy", np.array([[{}, 1]], dtype=object), "pickled"),
    "npz pickled": ("a.npz", {"x": np.array([[{}, 1]], dtype=object)}, "pickled"),
    "npz without x": ("a.npz", {"z": X}, "needs an array named x.*got z"),
    "bare pickle": ("a.npy", pickle.dumps(X), "pickled|damaged"),
    "npy cut short": (
        "a.npy",
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }",
        "damaged",
    ),
    "npz garbage": ("a.npz", b"PK\x03\x04nonsense", "damaged|pickled"),
    "npz compressed and damaged": ("a.npz", DAMAGED, "damaged"),
    "npy of no axis": ("a.npy", np.array(1.0), "must have rows and columns"),
    "npy too large": ("a.npy", HUGE, "damaged"),
    "other suffix": ("a.txt", "1,2\n", "must be one of .csv, .tsv, .npy, .npz"),
    "npz names": (
        "a.npz",
        {"x": X, "names": np.array(["a"])},
        "names must be 2 texts, one for each column of x",
    ),
    "npz names alike": (
        "a.npz",
        {"x": X, "names": np.array(["a", "a"])},
        "two columns are named 'a'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, case):
    name, content, message = BAD[case]
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=message) as error:
        features(path, 2)
    assert str(path) in str(error.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        features(tmp_path / "a.csv", 2)
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        features(tmp_path / "b.csv", 2)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("code from the file ran",))


def test_no_code_runs(tmp_path):
    with pytest.raises(ValueError, match="pickled"):
        features(write(tmp_path, "trap.npy", np.array([[Trap(), 1]], dtype=object)), 2)


@given(st.binary(max_size=200))
def test_any_bytes_give_numbers_or_a_message(tmp_path_factory, content):
    for name in ("a.csv", "a.npy", "a.npz"):
        path = write(tmp_path_factory.mktemp("any"), name, content)
        try:
            x = features(path, 1)
        except ValueError:
            continue
        assert np.isfinite(x).all()


def labelled(path, target=None, drop=(), categorical=()):
    """The features and the class or target of each row, as text, by a schema of all rows."""
    rows = table.read(path)
    target = target or rows.names[-1]
    schema = table.learned_schema(rows, target, drop, categorical, np.arange(len(rows)))
    values, texts = table.matched(rows, schema)
    return schema.encode(values)[0], texts


def test_labelled_rows(tmp_path):
    x, texts = labelled(
        write(tmp_path, "a.csv", "length,kind\n1,setosa\n2,virginica\n3,setosa\n4,virginica\n")
    )
    assert x[:, 0].tolist() == [1, 2, 3, 4]
    y, classes = table.labels("a.csv", texts)
    assert (y.tolist(), classes) == ([0, 1, 0, 1], ("setosa", "virginica"))
    with pytest.raises(ValueError, match="class 'x' does not occur in the training rows"):
        table.labels("b.csv", ["x"], classes)


def test_numbers_as_classes_are_sorted_by_value(tmp_path):
    x, texts = labelled(
        write(tmp_path, "a.npy", np.array([[0.5, 10.0], [0.1, 9.0], [0.1, 9.0], [0.3, 10.0]]))
    )
    assert table.labels("a.npy", texts)[1] == ("9", "10")
    assert table.labels("a.npy", ["²", "1", "²", "1"])[1] == ("1", "²")
    assert x.shape == (4, 1)
    _, again = labelled(write(tmp_path, "a.npz", {"x": x, "y": np.array([[10], [9], [9], [10]])}))
    assert again == texts


TABLE = "id,age,town,rooms,kind\n1,10,Rom,2,a\n2,NA,Ulm,3,b\n3,30,?,2,a\n4,40,Rom,4,b\n"


def test_target_drop_and_categorical(tmp_path):
    path = write(tmp_path, "a.csv", TABLE)
    x, texts = labelled(path, target="town", drop=["id", "kind"], categorical=["rooms"])
    assert texts == ["Rom", "Ulm", "?", "Rom"]
    # age, is blank, rooms 2, 3, 4
    assert x.tolist() == [
        [10, 0, 1, 0, 0],
        [30, 1, 0, 1, 0],
        [30, 0, 1, 0, 0],
        [40, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("1\n2\n", {}, "needs at least one feature beside the class or target"),
        (
            TABLE,
            {"target": "knd"},
            "data.target: .*a.csv has no column 'knd'; it has id, age, town, rooms, kind",
        ),
        (TABLE, {"drop": ["ID"]}, "data.drop: .*a.csv has no column 'ID'"),
        (TABLE, {"drop": ["kind"]}, "data.drop: column 'kind' is the target or dropped already"),
        (
            TABLE,
            {"drop": ["id"], "categorical": ["id"]},
            "data.categorical: column 'id' is the target or dropped already",
        ),
        ("a,y\nNA,1\n,2\n", {}, "column 'a' is blank in all training rows; name it in data.drop"),
        (
            "a,y\n1,1\n2,2\nx,1\n",
            {},
            "line 4, column 'a': must be a number, as others of its column are; got 'x'",
        ),
        (
            "a,y\nq,1\nr,2\ns,1\n",
            {},
            "column 'a' has 3 different words in 3 training rows; name it in data.drop",
        ),
    ],
)
def test_bad_columns(tmp_path, content, settings, message):
    with pytest.raises(ValueError, match=message):
        labelled(write(tmp_path, "a.csv", content), **settings)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", {"x": np.array(1.0), "y": np.zeros(2)}, "must have rows and columns"),
        ("a.npz", {"x": X, "y": np.array([0, np.nan, 1])}, "row 2 of y is not finite"),
        ("a.npy", X[:, :1], "needs at least one feature beside the class or target"),
        (
            "a.npz",
            {"x": X, "y": np.zeros(2)},
            r"one entry for each of the 3 rows of x; got shape \(2,\)",
        ),
    ],
)
def test_bad_labelled_files(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        labelled(write(tmp_path, name, content))


def test_bad_classes_and_targets(tmp_path):
    with pytest.raises(ValueError, match="row 2 has no class"):
        table.labels("a.csv", ["a", "", "b"])
    with pytest.raises(ValueError, match="for real-valued targets"):
        table.labels("a.csv", ["0.1", "0.2", "0.3"])
    path = write(tmp_path, "a.csv", "1,2\n")
    with pytest.raises(ValueError, match="target of row 2: must be a finite number; got 'x'"):
        table.targets(path, ["1", "x"])
