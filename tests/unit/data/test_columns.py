"""Which columns feed which inputs, where nothing is made of text: tables, and lines of JSON."""

import pickle

import numpy as np
import pytest

from int8cal.errors import DataError
from int8cal.job import DataSettings
from int8cal.preprocess import Preprocess

I64, TEXT = np.int64, np.dtype(object)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a file into the working directory, a line for each word; "|" stands between its cells, "~" for a blank."""
    monkeypatch.chdir(tmp_path)

    def write(lines, name="t.csv"):
        mark = "\t" if name.endswith(".tsv") else ","
        (tmp_path / name).write_text(
            "".join(line.replace("|", mark).replace("~", " ") + "\n" for line in lines.split())
        )
        return name

    return write


def values(opened):
    return [{name: array.tolist() for name, array in sample.feed.items()} for sample in opened]


def refused(feeds, *args, **settings):
    with pytest.raises(DataError) as caught:
        list(feeds(*args, **settings))
    return str(caught.value)


@pytest.mark.parametrize(("shape", "nested"), [(("N", 1), 2), ((None, 1), 2), (("N",), 1), ((4, 1), 2), ((1, 1, 1), 3)])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_columns_feed_the_inputs_of_their_names(table, signature, feeds, shape, nested, name):
    model = signature(a=shape, b=(shape, I64))
    found = values(feeds(table("b|more|a 1|x|0.5 2|y|-3", name), model))
    boxed = [{"a": 0.5, "b": 1}, {"a": -3.0, "b": 2}]
    for _ in range(nested):
        boxed = [{key: [value] for key, value in row.items()} for row in boxed]
    assert found == boxed


def test_numbers_of_json_feed_inputs_of_one_value(table, signature, feeds):
    model = signature(a=("N", 1), b=(("N", 1), np.bool_))
    lines = '{"a":1,"b":true} {"a":0.5,"b":false}'
    assert values(feeds(table(lines, "t.jsonl"), model)) == [
        {"a": [[1]], "b": [[True]]},
        {"a": [[0.5]], "b": [[False]]},
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_text_feeds_inputs_of_text(table, signature, feeds, name):
    model = signature(a=("N", 1), s=(("N", 1), TEXT))
    lines = "a|s 1|red 2|7" if name == "t.csv" else '{"a":1,"s":"red"} {"a":2,"s":"7"}'
    assert values(feeds(table(lines, name), model)) == [{"a": [[1]], "s": [["red"]]}, {"a": [[2]], "s": [["7"]]}]


def test_the_only_text_feeds_the_only_input_of_text(table, signature, feeds):
    model = signature(s=(("N",), TEXT))
    assert values(feeds(table("red 7", "t.txt"), model)) == [{"s": ["red"]}, {"s": ["7"]}]
    assert values(feeds(table("text|n red|1"), model)) == [{"s": ["red"]}]


@pytest.mark.parametrize(
    "lines",
    [
        "a|b|c 1|2|3 4|5|6",
        "1|2|3 4|5|6",  # without names
        "0|1|2 1|2|3 4|5|6",  # the names that pandas writes
        "a|label|b|c 1|0|2|3 4|1|5|6",
    ],
)
@pytest.mark.parametrize("shape", [("N", 3), (3,), (1, 3)])
def test_columns_of_numbers_feed_the_only_input_in_their_order(table, signature, feeds, lines, shape):
    found = [sample.feed["x"].ravel().tolist() for sample in feeds(table(lines), signature(x=shape))]
    assert found == [[1, 2, 3], [4, 5, 6]]


def test_lines_are_named_and_labels_are_no_values(table, vector, feeds):
    opened = feeds(table("1|2|3|0 4|5|6|1"), vector, labels="column:4")
    assert [(each.origin, each.label) for each in opened] == [("t.csv, line 1", 0), ("t.csv, line 2", 1)]
    opened = feeds(table("a|label|b|c 1|0|2|3 4|1|5|6"), vector, labels="none")
    assert [each.feed["x"].tolist() for each in opened] == [[[1, 2, 3]], [[4, 5, 6]]]
    assert not opened.labelled


def test_declared_columns_feed_the_only_input_in_their_order(table, vector, signature, feeds):
    path = table("a|b|c|d 1|2|3|4")
    assert values(feeds(path, vector, columns=("d", "a", "b"))) == [{"x": [[4, 1, 2]]}]
    assert values(feeds(path, signature(x=("N", None)), columns=("d", "a"))) == [{"x": [[4, 1]]}]


def test_float64_is_read_and_then_made_the_inputs_dtype(table, vector, feeds):
    (sample,) = feeds(table("a|b|c 0.1|16777217|1e-3"), vector)
    assert sample.feed["x"].dtype == np.float32
    np.testing.assert_array_equal(sample.feed["x"], np.array([[0.1, 16777217, 1e-3]]).astype(np.float32))
    with pytest.raises(DataError, match="holds values that float32 cannot hold"):
        list(feeds(table("a|b|c 1|2|1e300"), vector))


@pytest.mark.parametrize(
    ("lines", "settings", "what"),
    [
        (
            "a|b|c|the~d 1|2|3|4",
            {},
            (
                'nothing of the columns ("a", "b", "c", "the d") feeds input "x" of shape (N, 3): it takes 3 numbers of a row, '
                "and 4 hold numbers; if one holds labels, --labels 'column:the d' (data.labels in a YAML), or say which are "
                "read, in their order, by --column a and so on, or give .npy files"
            ),
        ),
        ("a|b 1|2", {}, "it takes 3 numbers of a row, and 2 hold numbers; give .npy files"),
        ("a|b|c|s 1|2|3|red", {}, '3 hold numbers, 1 text ("s"); if one holds labels, --labels column:s '),
        ("a|b|s 1|2|red", {}, '2 hold numbers, 1 text ("s"); give .npy files'),
        ("a|b|c 1|2|3", {"columns": ("a", "b")}, "it takes 3 numbers of a row, and 2 hold numbers"),
        ("s red", {}, "holds text, and no tokenizer is declared"),
        ("|a|b|c 0|1|2|3", {}, "or leave out the column of row numbers (index=False of pandas)"),
    ],
)
def test_tables_of_other_columns_are_refused(table, vector, feeds, lines, settings, what):
    assert what in refused(feeds, table(lines), vector, **settings)


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({"x": ("N", "C")}, "it does not say how many numbers of a row it takes, and 3 hold numbers; say which"),
        ({"x": ("N", 3, 8, 8)}, "it is no row of numbers, and 3 hold numbers; give .npy files"),
        ({"x": None}, 'feeds input "x" of any shape: it is no row of numbers, and 3 hold numbers; give .npy files'),
        ({"x": ("N", 2), "y": ("N", 1)}, 'fed by columns of their names; name columns like the inputs ("x", "y"), or'),
        # c is left over, and may be anything
        ({"a": ("N", 1), "b": ("N", 1), "y": ("N", 1)}, 'name columns like the inputs ("y"), or give .npz files'),
    ],
)
def test_inputs_that_no_table_feeds_are_told(table, signature, feeds, inputs, what):
    assert what in refused(feeds, table("a|b|c 1|2|3"), signature(**inputs))


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("a|b 1|2 3|", 't.csv, line 3: cannot be read: column "b" is empty'),
        ("a|b 1| 3|4", 't.csv, line 2: cannot be read: column "b" is empty'),
        ("a|b 1|NA 3|4", 't.csv, line 2: cannot be read: column "b" holds "NA", expected a number'),
        ("a|b 1|2 3|nan", 't.csv, line 3: cannot be read: column "b" holds "nan", expected a number'),
        ("a|b 1|2 3|word", 't.csv, line 3: cannot be read: column "b" holds "word", expected a number'),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_missing_values_are_told_by_line_and_column_and_can_be_skipped(table, signature, feeds, lines, what, named):
    model = signature(a=("N", 1), b=("N", 1)) if named else signature(x=("N", 2))
    assert what in refused(feeds, table(lines), model)
    opened = feeds(table(lines), model, skip_bad=True)
    assert len(list(opened)) == 1
    assert len(opened.skipped) == 1


@pytest.mark.parametrize(
    ("line", "what"), [('{"a":null}', 'column "a" is empty'), ('{"a":NaN}', 'column "a" holds NaN, expected a number')]
)
@pytest.mark.parametrize("first", [True, False])
def test_missing_values_of_json_are_told_by_line(table, signature, feeds, line, what, first):
    lines = f'{line} {{"a":1}}' if first else f'{{"a":1}} {line}'
    said = refused(feeds, table(lines, "t.jsonl"), signature(a=("N", 1)))
    assert f"t.jsonl, line {1 if first else 2}: cannot be read: {what}" in said


def test_rows_of_numbers_are_arrays_and_can_be_sent(table, vector, feeds):
    opened = feeds(table("1|2|3 4|5|6"), vector)
    assert not opened.prepared
    assert opened.preprocess is None
    assert [each.feed["x"].tolist() for each in opened.neighbours(2)] == [[[1, 2, 3]], [[4, 5, 6]]]
    sent = pickle.loads(pickle.dumps(opened.files.only([1])))  # noqa: S301 - what was just written
    assert [each.feed["x"].tolist() for each in sent.read([])] == [[[4, 5, 6]]]


def test_inputs_that_hold_one_number_need_no_column(table, signature, feeds):
    model = signature(x=("N", 2), t=((1,), I64))
    assert values(feeds(table("1|2"), model, preprocess=Preprocess(fill={"t": 7}))) == [{"x": [[1, 2]], "t": [7]}]


def test_calibration_data_have_the_column_of_labels_that_the_other_data_have(table, vector, model_of_rows):
    from int8cal.evaluating import open_samples

    data, judged = DataSettings(table("a|b|c|d 1|2|3|4")), DataSettings("other.csv", labels="column:d")
    opened = open_samples(data, model_of_rows, vector, None, None, threads=1, judged=judged)
    assert values(opened) == [{"x": [[1, 2, 3]]}]
    with pytest.raises(DataError, match="it takes 3 numbers of a row, and 4 hold numbers"):
        open_samples(data, model_of_rows, vector, None, None, threads=1)


@pytest.fixture
def model_of_rows():
    import onnx

    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }'
    )
