"""A record that this version would not have written is none, whatever stands in it."""

import json
from pathlib import Path

import pytest

from int8cal.batch.record import Record, read_record, write_record
from int8cal.inputs import JobInputs, Source

INPUTS = JobInputs(
    "m.onnx", "a" * 64, Source(3, 5, "l", "c"), Source(1, 2, "l"), {"data.samples": None}, {"numpy": "2"}
)
RECORDS = {
    "done": Record("one", "../batch.yaml", "done", INPUTS, {"report.json": "b" * 64}, seconds=1.5),
    "failed": Record("one", "../batch.yaml", "done", INPUTS, {"report.json": "b" * 64}, 7, "gate: no", 2),
    "started": Record("one", "../batch.yaml", "started", None),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_what_was_written_is_read(tmp_path, record):
    write_record(record, tmp_path)
    assert read_record(tmp_path) == record


CHANGES = {
    "format": ["int8cal/report", None],
    "version": [2, "1"],
    "job": [["x"], 5, "\ud800", None],
    "config": [3, None],
    "state": ["over", 1, [], None],
    "outputs": [[], None, {"report.json": 5}, {"../../d.npy": "00"}, {"/etc/x": "00"}, {"a\0b": "00"}, {"..": "0"}],
    "exit_code": [99, -1, 1.0, True, "0", float("inf"), None, 7],  # 7 without an error
    "error": [5, None, "one without a code"],
    "seconds": ["abc", -1, True, float("inf"), float("nan"), [1]],
    "inputs": [5, [], {}, "x"],
    "inputs.model": [1],
    "inputs.sha256": [None],
    "inputs.settings": [[], None, 5],
    "inputs.versions": [5, [], {"numpy": 2}],
    "inputs.data": [None, 5, {}, [1]],
    "inputs.evaluation": [5, "x", [], {}],
    "inputs.data.size": ["z", -1, True],
    "inputs.data.files": [None],
    "inputs.data.listing": [5, None],
    "inputs.data.content": [3],
    "inputs.data.more": [3],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in CHANGES.items() for value in values])
def test_any_other_value_makes_it_none(tmp_path, key, value):
    write_record(RECORDS["done"], tmp_path)
    path = tmp_path / "job.json"
    document = json.loads(path.read_text())
    part = document
    *parents, last = key.split(".")
    for parent in parents:
        part = part[parent]
    part[last] = value
    path.write_text(json.dumps(document))
    assert read_record(tmp_path) is None
    if last != "more":
        del part[last]
        path.write_text(json.dumps(document))
        assert read_record(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", "5", "null", "[" * 100_000, "\xff", '{"exit_code": 1e999}', "1" * 5000])
def test_what_is_no_record_is_none(tmp_path: Path, text):
    (tmp_path / "job.json").write_text(text, encoding="latin-1")
    assert read_record(tmp_path) is None
