"""summary.json and job.json in the terminal."""

import json

import pytest

from int8cal.errors import ConfigError
from int8cal.report.file_lines import batch_file_lines, figure_cells, load_batch_file
from int8cal.report.screen import Screen

FIGURES = {"sqnr_db": 31.5, "top1.drop": 1.0, "size.fp32_bytes": 4000, "size.int8_bytes": 1000, "latency.speedup": 2.0}
GATE = {"gate": "sqnr_db>=40", "value": 31.5, "passed": False}


def a_job(name, status, **changes):
    job = {"name": name, "status": status, "ran": True, "why": "", "exit_code": 0, "error": None}
    return job | {"metrics": {}, "gates": [], "seconds": None} | changes


SUMMARY = {
    "format": "int8cal/summary",
    "version": 1,
    "configs": ["batch.yaml"],
    "exit_code": 7,
    "counts": {"done": 1, "gate failed": 1, "not run": 1},
    "jobs": [
        a_job("one", "done", metrics=FIGURES, seconds=1.5),
        a_job("two", "gate failed", metrics=FIGURES, gates=[GATE], exit_code=7, error="gate: sqnr_db\x1b[31m"),
        a_job("three", "not run", why='job "two" failed'),
    ],
}
SOURCE = {"files": 3, "size": 1152, "listing": "ab", "content": ""}
RECORD = {
    "format": "int8cal/job",
    "version": 1,
    "job": "one",
    "config": "../batch.yaml",
    "state": "done",
    "inputs": {
        "model": "net.onnx",
        "sha256": "cd" * 32,
        "data": SOURCE,
        "evaluation": SOURCE | {"listing": ""},
        "settings": {"calibration.method": "kl", "data.samples": None},
        "versions": {"onnx": "1.22"},
    },
    "outputs": {"net.int8.onnx": "ef" * 32},
    "exit_code": 0,
    "error": "",
    "seconds": 2.0,
}


@pytest.mark.parametrize(("low", "shown"), [(1.8, "2.00x"), (None, "perhaps 2.00x")])
def test_a_speedup_without_an_interval_is_not_told_for_sure(low, shown):
    assert figure_cells({**FIGURES, "latency.speedup_ci95.lo": low})[-1] == shown
    assert figure_cells({**FIGURES, "latency.speedup": None, "latency.speedup_ci95.lo": None})[-1] != shown


@pytest.fixture
def show(tmp_path):
    def show(document, screen=None):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(document))
        return batch_file_lines(path, load_batch_file(path), screen or Screen())

    return show


def test_a_summary_shows_status_figures_and_errors(show):
    lines = show(SUMMARY)
    assert lines[1] == "jobs     3: 1 done, 1 gate failed, 1 not run; exit code 7"
    rows = {line.split()[0]: line for line in lines[4:7]}
    assert rows["one"].split("  ")[1:3] != ["", ""]
    assert "31.50 dB" in rows["one"]
    assert rows["one"].endswith("1.50 s  done")
    assert "0 of 1 passed" in rows["two"]
    assert rows["three"].split() == ["three", "not", "run"]
    assert lines[-1] == 'three  job "two" failed'
    assert not any("\x1b" in line for line in lines)
    assert len(show(SUMMARY, Screen(only="t*"))) == len(lines) - 1


def test_a_record_shows_what_a_job_was_made_of(show):
    text = "\n".join(show(RECORD))
    for part in ("job one in ../batch.yaml", "net.onnx (sha256 cdcdcdcdcdcd)", "3 files, 1.15 kB", "a Python function"):
        assert part in text
    assert "settings    calibration.method kl\n" in text
    assert "files       net.int8.onnx" in text
    assert "runs, or was killed" in "\n".join(show(RECORD | {"state": "started", "seconds": None}))
    assert "model" not in "\n".join(show(RECORD | {"inputs": None}))


@pytest.mark.parametrize(
    "damaged",
    [
        {"format": "int8cal/summary", "version": 1},
        {"format": "int8cal/job", "version": 2},
        {"format": "other", "version": 1},
        SUMMARY | {"jobs": [None]},
        SUMMARY | {"jobs": [a_job("one", "done", metrics={"sqnr_db": 1})]},
        RECORD | {"inputs": {}},
        RECORD | {"inputs": {"settings": 7}},
        [],
    ],
)
def test_a_damaged_file_is_refused(show, damaged):
    with pytest.raises(ConfigError, match=r"file\.json"):
        show(damaged)
