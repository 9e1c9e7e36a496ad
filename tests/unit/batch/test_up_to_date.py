"""Which jobs run, and which directories they may replace; what is said of it is asserted with the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

from int8cal.batch.jobs import Task
from int8cal.batch.record import Record, relative_config, write_record
from int8cal.batch.up_to_date import decide, job_to_run
from int8cal.inputs import FileCache, file_digest, inputs_of, with_contents
from int8cal.job import CalibrationSettings, DataSettings, OutputSettings


@pytest.fixture
def task(job, tmp_path):
    return Task(replace(job, output=OutputSettings(tmp_path / "out")), tmp_path / "b.yaml")


@pytest.fixture
def done(task, tmp_path):
    """The record of the job in its directory, with one file of results."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "result").write_text("1")
    inputs = with_contents(inputs_of(task.job, FileCache()), task.job, FileCache())
    config = relative_config(task, out)
    record = Record(task.job.name, config, "done", inputs, {"result": file_digest(out / "result")})
    write_record(record, out)
    return record


def found(task, *, rerun=False):
    decision = decide(task, FileCache(), rerun=rerun)
    assert job_to_run(task, decision).output.overwrite == (decision.owned or task.job.output.overwrite)
    return decision.up_to_date, decision.owned, decision.error is None


def test_what_is_there_unchanged_and_of_the_same_inputs_is_up_to_date(task, done):
    assert found(task) == (True, True, True)
    assert found(task, rerun=True) == (False, True, True)


def test_without_a_record_only_an_empty_directory_may_be_replaced(task, tmp_path):
    assert found(task) == (False, False, True)
    (tmp_path / "out").mkdir()
    assert found(task) == (False, True, True)
    (tmp_path / "out" / "notes").touch()
    assert found(task) == (False, False, True)


def test_other_settings_or_a_missing_result_make_it_run(task, done, tmp_path):
    other = replace(task, job=replace(task.job, calibration=CalibrationSettings("max")))
    assert found(other) == (False, True, True)
    (tmp_path / "out" / "result").unlink()
    assert found(task) == (False, True, True)


def test_a_result_that_was_edited_is_replaced_only_with_overwrite(task, done, tmp_path):
    (tmp_path / "out" / "result").write_text("2")
    assert found(task) == (False, True, False)
    overwriting = replace(task, job=replace(task.job, output=OutputSettings(tmp_path / "out", overwrite=True)))
    assert found(overwriting) == (False, True, True)


def test_another_jobs_results_count_when_they_are_the_same_and_are_not_replaced(task, done):
    other = replace(task, config=Path("elsewhere.yaml"))
    assert found(other) == (True, False, True)
    assert found(other, rerun=True) == (False, False, False)


def test_a_job_that_did_not_end_runs_again(task, done, tmp_path):
    write_record(replace(done, state="started"), tmp_path / "out")
    assert found(task) == (False, True, True)


def test_inputs_that_cannot_be_read_are_the_jobs_to_tell(task, done, tmp_path):
    other = replace(task, job=replace(task.job, data=DataSettings(str(tmp_path / "nowhere"))))
    decision = decide(other, FileCache())
    assert (decision.up_to_date, decision.inputs) == (False, None)
