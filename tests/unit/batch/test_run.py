"""What becomes of a job whose process ended without a result."""

from pathlib import Path

import pytest

from int8cal.batch import run
from int8cal.batch.jobs import Task
from int8cal.batch.up_to_date import Decision
from int8cal.job import DataSettings, Job


@pytest.mark.parametrize(
    ("exit_code", "station", "error"), [(3, "internal", "exit code 3"), (-9, "killed", "out of memory?")]
)
def test_a_worker_without_a_result_has_failed(exit_code, station, error):
    task = Task(Job(Path("m.onnx"), DataSettings("d"), name="a"), Path("b.yaml"))
    result = run._died(task, Decision(False, "", Path("out")), exit_code)
    assert (result.status, result.exit_code, result.station) == ("failed", 1, station)
    assert error in result.error
