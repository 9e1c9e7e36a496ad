"""What became of gates and of speed, between two reports."""

import copy

import pytest
from made_reports import compared

from int8cal.report.regressions import gates_gone, judge_limits, judge_regressions, parse_limit

MACHINE = {
    "cpu": "Fast CPU",
    "flags": ["avx2"],
    "physical_cores": 4,
    "logical_cores": 8,
    "threads": 8,
    "system": "Linux",
    "python": "3.11.7",
    "runtimes": {},
}


def gate(text, *, passed=True):
    return {"gate": text, "value": 31.0, "passed": passed}


@pytest.mark.parametrize("texts", [[], ["cosine>=0.9"], ["sqnr_db<=40"], ["outputs.y.sqnr_db>=30"]])
def test_a_gate_that_the_new_report_lacks_is_gone(old, new, texts):
    new["gates"] = [gate(text) for text in texts]
    (verdict,) = gates_gone(compared(old, new))
    assert (verdict.gate, verdict.passed) == ("gate sqnr_db>=30", False)


@pytest.mark.parametrize("text", ["sqnr_db >= 30.0", "sqnr_db>=30", "sqnr_db>=35", "sqnr_db>=29"])
def test_a_gate_is_there_still_however_it_is_written(old, new, text):
    new["gates"] = [gate("cosine>=0.5"), gate(text)]
    assert gates_gone(compared(old, new)) == ()


@pytest.mark.parametrize(
    ("texts", "loosened"),
    [(["sqnr_db>=29"], True), (["sqnr_db>=31"], False), (["sqnr_db>=20", "sqnr_db>=30.5"], False)],
)
def test_a_loosened_gate_is_told_and_a_regression(old, new, texts, loosened):
    new["gates"] = [gate(text) for text in texts]
    found = compared(old, new)
    told = 'the gate "sqnr_db>=30" was loosened to "sqnr_db>=29"'
    assert (told in found.warnings) == loosened
    failed = [verdict.gate for verdict in judge_regressions(found) if not verdict.passed]
    assert failed == (["gate sqnr_db>=30"] if loosened else [])


def test_a_gate_of_an_unknown_figure_is_known_by_its_text(old, new):
    old["gates"] = [gate("hits>=3")]
    new["gates"] = [gate("hits>=3")]
    assert gates_gone(compared(old, new)) == ()
    new["gates"] = []
    assert len(gates_gone(compared(old, new))) == 1


@pytest.mark.parametrize(
    ("change", "elsewhere"),
    [({}, False), ({"cpu": "Slow CPU"}, True), ({"threads": 2}, True), ({"flags": []}, True), ({"python": "3"}, False)],
)
def test_speed_from_another_machine_is_no_regression_unless_asked(old, new, change, elsewhere):
    for document, machine in ((old, MACHINE), (new, MACHINE | change)):
        document["origin"] = {"date": "2026-01-01T00:00:00Z", "command": "", "machine": copy.deepcopy(machine)}
    new["latency_ms"].update(speedup=1.0, speedup_ci95=[0.9, 1.1])
    found = compared(old, new)
    assert (
        any(text.startswith("speed was measured on Fast CPU, 8 threads and ") for text in found.warnings) == elsewhere
    )
    failed = [verdict.gate for verdict in judge_regressions(found) if not verdict.passed]
    assert failed == ([] if elsewhere else ["latency.speedup not worse"])
    assert not judge_limits([parse_limit("latency.speedup.ratio>=0.9")], found)[0].passed


def test_speed_without_a_machine_is_compared_as_ever(old, new):
    new["latency_ms"].update(speedup=1.0, speedup_ci95=[0.9, 1.1])
    new["origin"] = {"date": "", "command": "", "machine": MACHINE}
    assert not all(verdict.passed for verdict in judge_regressions(compared(old, new)))
