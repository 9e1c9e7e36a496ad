"""Files of text, line by line; what becomes of a row is another's business (test_text.py)."""

import csv
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.data.lines import columns_of, open_lines
from int8cal.errors import DataError

PLAN = SimpleNamespace(
    label=None, require=lambda _row, _where: None, fitted=lambda row, where: {"row": row, "at": where}
)
CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=8)


def read(path, rows=None, plan=PLAN):
    part = open_lines(path, plan, skip_bad=False)
    return [(feed["row"], feed["at"]) for feed in part.read(range(part.rows) if rows is None else rows)]


@given(rows=st.lists(st.tuples(CELLS, CELLS).filter(lambda row: any(map(str.strip, row))), max_size=6))
def test_a_csv_gives_back_what_was_written_and_the_lines_it_stands_in(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("one", "two"), *rows])
    found = read(path)
    assert [tuple(row.values()) for row, _ in found] == rows
    breaks = [1 + sum(cell.count("\n") for cell in row) for row in (("one", "two"), *rows)]
    assert [place for _, place in found] == [
        f"{path.as_posix()}, line {1 + sum(breaks[: index + 1])}" for index in range(len(rows))
    ]


def test_blank_lines_of_a_txt_are_no_samples_and_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n   \nsecond \nthird")
    places = [f"{path.as_posix()}, line {line}" for line in (1, 4, 5)]
    assert read(path) == [
        ({"text": text}, place) for text, place in zip(("first", "second ", "third"), places, strict=True)
    ]
    assert [row["text"] for row, _ in read(path, [1])] == ["second "]
    assert [row["text"] for row, _ in read(path, [0, 2, 2])] == ["first", "third", "third"]


def test_a_txt_whose_lines_end_in_carriage_returns_is_not_one_sample(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\rtwo\rthree\r")
    with pytest.raises(DataError, match=r"a\.txt: its lines end in carriage returns alone, expected line feeds"):
        read(tmp_path / "a.txt")


def test_a_carriage_return_inside_a_line_is_text_and_an_escaped_pair_is_a_character(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "a.jsonl"
    path.write_bytes(b"one\rtwo\r\nthree\r")
    other.write_bytes(b'{"text": "\\ud83d\\ude00"}')
    assert [row["text"] for row, _ in read(path)] == ["one\rtwo", "three"]
    assert [row["text"] for row, _ in read(other)] == ["\U0001f600"]


def test_objects_of_a_jsonl_keep_their_values(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "n": [1, 2.5]}\n\n{"text": "\\n", "n": []}\n', encoding="utf-8")
    assert [row for row, _ in read(path)] == [{"text": "a", "n": [1, 2.5]}, {"text": "\n", "n": []}]
    assert columns_of([path], skip_bad=False) == {"text": "text", "n": "numbers"}


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", b'{"text": "a"}\nnot json\n', "line 2: cannot be read: it is no JSON"),
        ("a.jsonl", b'{"text": "\\ud800 waves"}\n', r"line 1: cannot be read: it has half a surrogate pair, \ud800"),
        ("a.jsonl", b'{"n": [{"\\uDfff": 1}]}\n', r"line 1: cannot be read: it has half a surrogate pair, \udfff"),
        ("a.jsonl", b'{"text": "a"}\n["a"]\n', "line 2: cannot be read: it is no JSON object"),
        ("a.txt", b"a\n\xff\xfe\n", "line 2: cannot be read: it is not UTF-8"),
        ("a.csv", b"x,y\n1,2\n\n3\n", "line 4: cannot be read: 1 cells, the columns are 2: x, y"),
        ("a.tsv", b"x\ty\na\tb\nc\n", "line 3: cannot be read: 1 cells"),
        ("a.csv", b'x,y\n"a,b\n', "line 2: cannot be read: unexpected end of data"),
        (
            "a.csv",
            b"text;label\na, b;1\n",
            "line 1: the first line is one column, \"text;label\": cells seem to end with ';'",
        ),
        ("a.tsv", b"text,label\na,1\n", "line 1: the first line is one column"),
        ("a.csv", b"x,x\n1,2\n", "line 1: the first line must name the columns, each by a name of its own"),
    ],
)
def test_a_bad_line_is_named(tmp_path, name, content, what):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert f"{path.as_posix()}, {what}" in str(caught.value)


def test_skip_bad_leaves_out_lines_not_files(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\nnot json\n{"text": "b"}\n', encoding="utf-8")
    part = open_lines(path, PLAN, skip_bad=True)
    assert (part.rows, part.left_out) == (2, (f"{path.as_posix()}, line 2",))
    assert [feed["row"]["text"] for feed in part.read([0, 1])] == ["a", "b"]


def test_a_file_that_changed_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n", encoding="utf-8")
    part = open_lines(path, PLAN, skip_bad=False)
    path.write_text("a\n", encoding="utf-8")
    with pytest.raises(DataError, match="it changed while it was in use"):
        list(part.read([0, 1]))


def test_no_more_than_a_line_is_in_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "a.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(2000):
            stream.write(json.dumps({"text": "x" * 10_000}) + "\n")
    tracemalloc.start()
    part = open_lines(path, PLAN, skip_bad=False)
    count = sum(1 for _ in part.read(range(part.rows)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2000
    assert most < path.stat().st_size / 10
