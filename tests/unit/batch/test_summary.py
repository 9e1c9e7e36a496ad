from pathlib import Path

from int8cal.batch.jobs import JobResult
from int8cal.batch.summary import junit_suite
from int8cal.evaluation.result_parts import Gate


def outcomes(result, gates=()):
    return [(case.name, case.outcome, case.message) for case in junit_suite(result, gates).cases]


def test_every_gate_of_a_job_is_a_case():
    gates = (
        Gate(gate="sqnr_db>=30", value=31.5, passed=True, ci95=(30.0, 33.0)),
        Gate(gate="top1.drop<=1", value=None, passed=False),
    )
    result = JobResult("bert", "gate failed", Path("out"), "bert.onnx", True, 7, gates=gates, seconds=2.5)
    assert outcomes(result) == [
        ("run", "passed", "results are in out"),
        ("sqnr_db>=30", "passed", "value 31.5, 95 % interval 30 to 33"),
        ("top1.drop<=1", "failure", "value not measured"),
    ]
    assert junit_suite(result).name == "bert"
    assert junit_suite(result).cases[0].seconds == 2.5


def test_a_job_that_ended_well_says_where_its_results_are_and_not_why_it_ran():
    ran = JobResult("a", "done", Path("out"), "a.onnx", ran=True, why="no results yet")
    assert outcomes(ran) == [("run", "passed", "results are in out")]
    kept = JobResult("a", "up to date", Path("out"), "a.onnx", why="up to date")
    assert outcomes(kept) == [("run", "passed", "up to date, results are in out")]


def test_a_job_that_failed_is_an_error_and_one_that_did_not_run_is_skipped():
    error = "data: photos: does not exist"
    failed = JobResult("a", "failed", Path("out"), "a.onnx", error=error, station="data", error_type="DataError")
    assert outcomes(failed) == [("run", "error", error)]
    assert junit_suite(failed).cases[0].kind == "DataError"
    left = JobResult("b", "not run", Path("out"), "b.onnx", why='job "a" failed')
    assert outcomes(left) == [("run", "skipped", 'job "a" failed')]
    assert outcomes(left, ["cosine>=1"])[1] == ("cosine>=1", "skipped", 'not judged: job "a" failed')
    assert outcomes(failed, ["cosine>=1"])[1] == ("cosine>=1", "skipped", "not judged: run stopped")
