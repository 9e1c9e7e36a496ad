"""A budget in memory: what the API gives, what is remembered, and what is refused."""

import json
import math

import numpy as np
import pytest

import int8cal
from int8cal.errors import DataError, UsageError
from int8cal.evaluation.result import Drop, Metrics, OutputMetrics
from int8cal.quantization.corrections.residual_codes import ResidualCodes
from int8cal.search.goals.gate_figures import Figures, GateEvaluator
from int8cal.search.goals.mixed import PrecisionMix
from int8cal.search.goals.reach_gates import outcome_of

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


@pytest.mark.parametrize("fallback", ["float", "planes"])
def test_the_table_alone_gives_a_model_for_which_the_gate_holds(case, plain_db, fallback):
    table, reached = calibrated(case, f"sqnr_db>={plain_db + 3}", 1000.0, fallback=fallback)
    assert reached >= plain_db + 3
    assert table.settings.left("left_for_gates") if fallback == "float" else ResidualCodes.of(table)
    assert table.warnings == ()


def test_what_the_budget_cannot_reach_is_a_warning_of_the_table(case, plain_db):
    table, reached = calibrated(case, f"sqnr_db>={plain_db + 200}", 1000.0)
    assert reached > plain_db
    assert any("does not suffice" in line for line in table.warnings)


def test_a_budget_for_all_layers_keeps_what_makes_an_int8_model(bench):
    """The first convolution makes less noise, and would be the last: beside floats it is faster in float."""
    padded = "Conv<pads = [1, 1, 1, 1]>"
    body = f"a = {padded}(x, A) b = Relu(a) c = {padded}(b, C) y = GlobalAveragePool(c)"
    exact = np.where(np.random.default_rng(0).normal(size=(16, 3, 3, 3)) > 0, 0.5, -0.5)
    model = bench.text(f"g (float[N,3,16,16] x) => (float[N,16,1,1] y) {{ {body} }}", A=exact, C=(16, 16, 3, 3))
    case = model, [each.feed for each in bench.samples(model, 8)]
    table, _ = calibrated(case, "sqnr_db>=200", 1e5)
    assert any("does not suffice" in line for line in table.warnings)


def test_data_that_can_be_read_only_once_is_refused(case):
    model, data = case
    with pytest.raises(UsageError, match="more than once"):
        int8cal.calibrate(model, iter(data), gates=["sqnr_db>=1"], budget=10.0)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (lambda data: data[:9], "ends after 9 samples, and had 12"),
        (lambda data: [*data, data[0]], r"data\[12\]: is not the sample that it was"),
        (lambda data: [*data[:5], {"x": data[5]["x"] + 1}, *data[6:]], r"data\[5\]: is not the sample that it was"),
    ],
    ids=["fewer", "more", "others"],
)
def test_a_function_that_yields_other_samples_at_a_later_call_is_refused(case, later, told):
    model, data = case
    calls = []

    def feeds():
        calls.append(1)
        return data if len(calls) < 3 else later(data)  # the pass that calibrates, and the FP32 model's

    with pytest.raises(DataError, match=told):
        int8cal.calibrate(model, feeds, gates=["sqnr_db>=60"], budget=100.0, threads=1)


def test_gates_without_a_budget_are_refused(case):
    model, data = case
    with pytest.raises(UsageError, match="without a budget"):
        int8cal.calibrate(model, data, gates=["sqnr_db>=1"])


def test_the_evaluator_gives_the_figures_of_an_evaluation(case, bench, monkeypatch):
    model, data = case
    samples = bench.samples(model, 12)
    int8 = int8cal.quantize(model, int8cal.calibrate(model, data, threads=1))
    expected = int8cal.evaluate(model, int8, data, threads=1, latency=False).evaluation.metrics
    evaluator = GateEvaluator(model, samples, threads=1)
    assert evaluator.figures(int8).metrics == expected
    monkeypatch.setattr("int8cal.search.goals.gate_figures.KEPT_BYTES", 100)
    again = GateEvaluator(model, samples, threads=1)
    assert again.figures(int8).metrics == expected
    assert again.fingerprint() == evaluator.fingerprint()
    assert GateEvaluator(model, samples[1:], threads=1).fingerprint() != evaluator.fingerprint()


METRICS = Metrics(
    sqnr_db=31.5,
    cosine=0.99,
    max_abs_error=0.25,
    agreement=1.0,
    top1=Drop(0.9, 0.8, 10.0, (5.0, 15.0), 40),
    top5=None,
    sqnr_db_ci95=(30.0, 33.0),
    agreement_ci95=(0.9, 1.0),
)
FIGURES = Figures(
    METRICS,
    {
        "logits": OutputMetrics(sqnr_db=31.5, cosine=0.99, sqnr_db_ci95=(30.0, 33.0)),
        "empty": OutputMetrics(sqnr_db=None, cosine=None),
    },
)


class Counted(GateEvaluator):
    """Does not measure, but counts how often it would."""

    measured = 0

    def _measure(self, int8):
        self.measured += 1
        return FIGURES


@pytest.fixture
def memory(case, bench, tmp_path):
    model, _ = case
    samples = bench.samples(model, 2)

    def evaluator(sha256="a", count=2):
        path = tmp_path / "net.search.json"
        return Counted(model, samples[:count], sha256=sha256, path=path, threads=1)

    return model, tmp_path / "net.search.json", evaluator


def test_figures_are_remembered_for_the_same_model_and_samples_only(memory, bench):
    model, _, evaluator = memory
    first, second = evaluator(), evaluator()
    assert first.figures(model) == first.figures(model) == second.figures(model) == FIGURES
    assert (first.measured, second.measured) == (1, 0)
    second.figures(bench.text(f"{NET} {{ {BODY} }}", **{**WEIGHTS, "A": np.ones((16, 12))}))
    assert second.measured == 1
    for other in (evaluator("b"), evaluator(count=1)):
        assert other.figures(model) == FIGURES
        assert other.measured == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "int8cal/search"}', '{"format": 3, "key": {}}'])
def test_a_damaged_memory_is_measured_again(memory, text):
    model, path, evaluator = memory
    path.write_text(text, encoding="utf-8")
    again = evaluator()
    assert again.figures(model) == FIGURES
    assert again.measured == 1


def test_figures_in_a_damaged_row_are_measured_again(memory):
    model, path, evaluator = memory
    evaluator().figures(model)
    document = json.loads(path.read_text(encoding="utf-8"))
    (row,) = document["measured"].values()
    del row["metrics"]["top1"]["fp32"]
    path.write_text(json.dumps(document), encoding="utf-8")
    again = evaluator()
    again.figures(model)
    assert again.measured == 1


@pytest.mark.parametrize("holds", [True, False])
def test_time_is_said_to_be_an_estimate(holds):
    taken = PrecisionMix(floats=("a", "b"), residual=("c",), percent=58.4)
    text = outcome_of(taken, 60.0, 90.0, taken, holds=holds)
    assert "2 layers in float and 1 layer with residual codes, an estimated 58.4 % more time" in text
    assert holds or text.endswith("; by estimate about 90 % would")


@pytest.mark.parametrize("kept", [PrecisionMix(), PrecisionMix(floats=("a",), percent=4.2)])
@pytest.mark.parametrize(
    ("needed", "most", "more"),
    [
        (5.3, 80.0, "by estimate about 6 % would"),
        (math.inf, 80.0, "by estimate not even 2 layers would, 80.0 % more time"),
        (math.inf, 4.9, "no number of layers does"),
        (None, 80.0, "how much would cannot be estimated from the noise"),
    ],
)
def test_a_budget_that_does_not_suffice_is_never_said_to_be_the_one_that_would(kept, needed, most, more):
    text = outcome_of(kept, 5.0, needed, PrecisionMix(floats=("a", "b"), percent=most), holds=False)
    assert text.startswith("a budget of 5 % does not suffice for the gates: ")
    assert text.endswith(f"; {more}")
