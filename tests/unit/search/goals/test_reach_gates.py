"""A budget in memory: what the API gives, what is remembered, and what is refused."""

import json

import numpy as np
import pytest

import int8cal
from int8cal.errors import UsageError
from int8cal.evaluation.result import Drop, Metrics, OutputMetrics
from int8cal.search.goals.gate_evaluator import GateEvaluator
from int8cal.search.goals.search_state import Figures, SearchState

NET = "g (float[N,6,16] x) => (float[N,6,8] y)"
BODY = "a = MatMul(x, A) b = Tanh(a) c = MatMul(b, C) d = Sigmoid(c) y = MatMul(d, E)"
WEIGHTS = {"A": (16, 12), "C": (12, 12), "E": (12, 8)}


@pytest.fixture(scope="module")
def case(bench):
    model = bench.text(f"{NET} {{ {BODY} }}", **WEIGHTS)
    return model, [each.feed for each in bench.samples(model, 12)]


def calibrated(case, gate, budget, **more):
    model, data = case
    table = int8cal.calibrate(model, data, gates=[gate], budget=budget, latency_allowance=0.0, threads=1, **more)
    report = int8cal.evaluate(model, int8cal.quantize(model, table), data, threads=1, latency=False)
    return table, report.evaluation.metrics.sqnr_db


@pytest.fixture(scope="module")
def plain_db(case):
    model, data = case
    table = int8cal.calibrate(model, data, latency_allowance=0.0, threads=1)
    report = int8cal.evaluate(model, int8cal.quantize(model, table), data, threads=1, latency=False)
    return report.evaluation.metrics.sqnr_db


@pytest.mark.parametrize(("fallback", "setting"), [("float", "settings"), ("planes", "corrections")])
def test_the_table_alone_gives_a_model_for_which_the_gate_holds(case, plain_db, fallback, setting):
    table, reached = calibrated(case, f"sqnr_db>={plain_db + 3}", 1000.0, fallback=fallback)
    assert reached >= plain_db + 3
    assert getattr(table, setting)["left_for_gates" if fallback == "float" else "remainder"]
    assert table.warnings == ()


def test_what_the_budget_cannot_reach_is_a_warning_of_the_table(case, plain_db):
    table, reached = calibrated(case, f"sqnr_db>={plain_db + 200}", 1000.0)
    assert reached > plain_db
    assert any("does not suffice" in line for line in table.warnings)


def test_data_that_can_be_read_only_once_is_refused(case):
    model, data = case
    with pytest.raises(UsageError, match="more than once"):
        int8cal.calibrate(model, iter(data), gates=["sqnr_db>=1"], budget=10.0)


def test_gates_without_a_budget_are_refused(case):
    model, data = case
    with pytest.raises(UsageError, match="without a budget"):
        int8cal.calibrate(model, data, gates=["sqnr_db>=1"])


def test_the_judge_gives_the_figures_of_an_evaluation(case, bench, monkeypatch):
    model, data = case
    samples = bench.samples(model, 12)
    int8 = int8cal.quantize(model, int8cal.calibrate(model, data, threads=1))
    expected = int8cal.evaluate(model, int8, data, threads=1, latency=False).evaluation.metrics
    evaluator = GateEvaluator(model, lambda: samples, threads=1)
    assert evaluator.evaluate(int8).metrics == expected
    monkeypatch.setattr("int8cal.search.goals.gate_evaluator.KEPT_BYTES", 100)
    again = GateEvaluator(model, lambda: samples, threads=1)
    assert again.evaluate(int8).metrics == expected
    assert again.fingerprint() == evaluator.fingerprint()
    assert GateEvaluator(model, lambda: samples[1:], threads=1).fingerprint() != evaluator.fingerprint()


METRICS = Metrics(31.5, 0.99, 0.25, 1.0, Drop(0.9, 0.8, 10.0, (5.0, 15.0), 40), None, (30.0, 33.0), (0.9, 1.0))
FIGURES = Figures(METRICS, {"logits": OutputMetrics(31.5, 0.99, (30.0, 33.0)), "empty": OutputMetrics(None, None)})


def test_figures_are_remembered_for_the_same_model_and_samples_only(tmp_path):
    path = tmp_path / "net.search.json"
    SearchState(path, {"model": "a"}).put("x", FIGURES)
    assert SearchState(path, {"model": "a"}).get("x") == FIGURES
    assert SearchState(path, {"model": "a"}).get("y") is None
    assert SearchState(path, {"model": "b"}).get("x") is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "int8cal/search"}', '{"format": 3, "key": {}}'])
def test_a_damaged_memory_is_measured_again(tmp_path, text):
    path = tmp_path / "net.search.json"
    path.write_text(text, encoding="utf-8")
    assert SearchState(path, {}).get("x") is None


def test_figures_in_a_damaged_row_are_measured_again(tmp_path):
    path = tmp_path / "net.search.json"
    SearchState(path, {}).put("x", FIGURES)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["measured"]["x"]["metrics"]["top1"]["fp32"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert SearchState(path, {}).get("x") is None
    assert np.isfinite(METRICS.sqnr_db)
