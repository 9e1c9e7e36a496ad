"""What a job is made from: which changes count, and which do not."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from int8cal import inputs
from int8cal.batch.record import Record, read_record, write_record
from int8cal.inputs import FileCache, describe_changes, inputs_of, with_contents
from int8cal.job import CalibrationSettings, DataSettings, EvaluationSettings, OutputSettings


def taken(job):
    return with_contents(inputs_of(job, FileCache()), job, FileCache())


def changed(before, job):
    return describe_changes(before, inputs_of(job, FileCache()), job, FileCache())


def test_nothing_changes_by_itself_and_a_record_reads_back(job, tmp_path):
    before = taken(job)
    write_record(Record("a", "batch.yaml", "started", before), tmp_path)
    assert read_record(tmp_path).inputs == before
    assert changed(before, job) == ()


@pytest.mark.parametrize(
    "other",
    [
        lambda job: replace(job, name="b", quiet=True),
        lambda job: replace(job, output=OutputSettings(Path("elsewhere"), overwrite=True)),
        lambda job: replace(job, calibration=CalibrationSettings(batch_size=99)),
    ],
)
def test_what_no_result_depends_on_does_not_count(job, other):
    assert changed(taken(job), other(job)) == ()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda job: replace(job, calibration=CalibrationSettings("max")), "calibration.method auto -> max"),
        (lambda job: replace(job, data=replace(job.data, samples=3)), "data.samples none -> 3"),
        (lambda job: replace(job, evaluation=EvaluationSettings(gates=("sqnr_db>=1",))), "evaluation.gates"),
        (lambda job: replace(job, evaluation=EvaluationSettings(data=job.data)), "the evaluation data"),
        (lambda job: replace(job, data=replace(job.data, labels=str(job.model.with_name("l.csv")))), "the data"),
    ],
)
def test_what_results_depend_on_counts(job, other, told):
    assert any(each.startswith(told) for each in changed(taken(job), other(job)))


def test_a_file_that_was_only_touched_is_the_same_and_one_byte_is_not(job):
    before = taken(job)
    file = next(Path(job.data.path).rglob("*.png"))
    os.utime(file, (1, 1))
    assert changed(before, job) == ()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert changed(before, job) == ("the data",)


def test_a_file_that_moved_to_another_class_counts(job):
    before = taken(job)
    file = next(Path(job.data.path, "0").iterdir())
    file.rename(Path(job.data.path, "1", "moved.png"))
    assert changed(before, job) == ("the data",)


def test_an_empty_class_folder_and_a_label_file_beside_the_data_count(job):
    before = taken(job)
    (Path(job.data.path) / "00").mkdir()
    assert changed(before, job) == ("the data",)
    (Path(job.data.path) / "00").rmdir()
    assert changed(before, job) == ()
    (Path(job.data.path) / "labels.csv").write_text("file,label\n")
    assert changed(before, job) == ("the data",)


def test_beyond_the_limit_times_alone_decide(job, monkeypatch):
    monkeypatch.setattr(inputs, "CONTENT_LIMIT", 10)
    before = taken(job)
    assert before.data.content == ""
    assert changed(before, job) == ()
    os.utime(next(Path(job.data.path).rglob("*.png")), (1, 1))
    assert changed(before, job) == ("the data",)


def test_a_function_is_never_the_same(job):
    other = replace(job, data=DataSettings("package.module:function"))
    assert taken(other).data.listing == ""


def test_a_folder_beside_a_single_file_does_not_count(job, tmp_path):
    single = replace(job, data=DataSettings(str(next(path for path in (tmp_path / "d").rglob("*") if path.is_file()))))
    before = taken(single)
    (Path(single.data.path).parent / "results").mkdir()
    assert changed(before, single) == ()
