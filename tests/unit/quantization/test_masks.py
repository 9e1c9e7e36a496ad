"""Masks on attention scores: values so low that Softmax gives 0 there cost the other scores nothing."""

import numpy as np
import pytest

import int8cal
from int8cal.errors import NonFiniteError, StatisticsError
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.runtime.machine import exact_products

LOW = [-np.inf, float(np.finfo(np.float32).min), -1e4]
KEYS = "float[1,4,6] x"
CONV = {"W": (5, 4, 1), "V": (4, 5, 1)}
BY_CONV = "s = Conv(x, W{bias}) {mask} p = Softmax <axis = 1> (m) y = Conv(p, V)"


def attention(bench):
    """Scaled dot-product attention with an additive mask that is fed."""
    body = """q = MatMul(x, Q) k = MatMul(x, K) v = MatMul(x, V) t = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul(q, t) m = Add(s, mask) p = Softmax <axis = -1> (m) o = MatMul(p, v) y = MatMul(o, O)"""
    weights = dict.fromkeys("QKVO", (8, 8))
    return bench.text(f"g (float[1,6,8] x, float[1,1,6] mask) => (float[1,6,8] y) {{ {body} }}", **weights)


def masked(model, low, count=10):
    """Make feeds; keys behind a random length are masked."""
    rng = np.random.default_rng(1)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    for _ in range(count):
        feed = {"x": rng.normal(size=shapes["x"]).astype(np.float32)}
        if "mask" in shapes:
            dead = np.arange(shapes["mask"][-1]) >= rng.integers(2, shapes["mask"][-1] + 1)
            feed["mask"] = np.broadcast_to(np.where(dead, np.float32(low), np.float32(0)), shapes["mask"]).copy()
        yield feed


def report_on(model, low, **settings):
    feeds = list(masked(model, low, 36))
    int8 = int8cal.quantize(model, int8cal.calibrate(model, feeds, threads=1, **settings))
    return int8cal.evaluate(model, int8, feeds, threads=1, latency=False)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("target", ["portable", "openvino", "tensorrt"])
def test_a_mask_that_is_fed_costs_nothing(bench, low, target):
    report = report_on(attention(bench), low, target=target)
    # weights for TensorRT are s8, whose sums saturate on a CPU without exact products
    assert report.evaluation.metrics.sqnr_db > (28 if target != "tensorrt" or exact_products() else 20)
    assert report.warnings == ()


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("target", ["portable", "tensorrt"])
def test_a_mask_on_scores_of_a_layer_costs_nothing(bench, low, target):
    text = BY_CONV.format(bias="", mask="m = Add(s, mask)").replace("axis = 1", "axis = 2")
    model = bench.text(f"g ({KEYS}, float[1,1,6] mask) => (float[1,4,6] y) {{ {text} }}", **CONV)
    assert report_on(model, low, target=target).evaluation.metrics.sqnr_db > 28


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("body", [{"bias": "", "mask": "m = Add(s, M)"}, {"bias": ", B", "mask": "m = Identity(s)"}])
def test_a_constant_mask_costs_nothing(bench, low, body):
    mask = np.array([0, 0, 0, low, low], np.float32)
    constants = {"M": mask.reshape(1, 5, 1)} if not body["bias"] else {"B": mask}
    model = bench.text(f"g ({KEYS}) => (float[1,4,6] y) {{ {BY_CONV.format(**body)} }}", **CONV, **constants)
    assert report_on(model, low).evaluation.metrics.sqnr_db > 28


def test_a_sum_of_codes_in_front_of_softmax_stays_float_and_says_why(bench):
    text = BY_CONV.format(bias="", mask="n = Conv(mask, U) a = Add(s, n) m = Reshape(a, R)")
    weights = {**CONV, "U": (5, 1, 1), "R": np.array([1, 5, 6], np.int64)}
    model = bench.text(f"g ({KEYS}, float[1,1,6] mask) => (float[1,4,6] y) {{ {text} }}", **weights)
    prepared = bench.prepared(model)
    left = {each.op_type: each.reason for each in make_plan(prepared.model, Selection()).unquantized}
    assert left["Add"] == "it may mask scores that Softmax reads"
    assert report_on(model, -1e9).evaluation.metrics.sqnr_db > 28


def test_a_bias_of_ordinary_scores_is_no_mask(bench):
    text = BY_CONV.format(bias=", B", mask="m = Identity(s)")
    model = bench.text(f"g ({KEYS}) => (float[1,4,6] y) {{ {text} }}", **CONV, B=np.linspace(-50, 50, 5))
    plan = make_plan(bench.prepared(model).model, Selection())
    assert [layer.op_type for layer in plan.layers] == ["Conv", "Conv"]


def test_an_infinity_that_codes_would_have_to_stand_for_is_an_error(bench):
    model = bench.text("g (float[1,6,8] mask) => (float[1,6,8] y) { y = MatMul(mask, W) }", W=(8, 8))
    feed = np.zeros((1, 6, 8), np.float32)
    feed[0, 0, 3] = -np.inf
    with pytest.raises(StatisticsError, match="'mask' holds infinity") as caught:
        int8cal.calibrate(model, [{"mask": feed}])
    assert caught.value.exit_code == 5


MASKED = "g (float[1,6,8] x, float[1,1,5] mask) => (float[1,6,5] y) { s = MatMul(x, W) y = Add(s, mask) }"


@pytest.mark.parametrize("low", [-np.inf, -1e9, np.finfo(np.float32).min])
def test_a_mask_that_reaches_an_output_is_left_out_of_its_figures(bench, low):
    report, plain = (report_on(bench.text(MASKED, W=(8, 5)), each) for each in (low, 0.0))
    # of the other values, which are the same
    assert report.evaluation.metrics.sqnr_db == pytest.approx(plain.evaluation.metrics.sqnr_db, abs=3)
    (told,) = [each for each in report.warnings if "is masked" in each]
    assert told.startswith(f'output "y" is masked, with {low:g} for ')


def test_an_infinity_above_that_reaches_an_output_is_an_error(bench):
    with pytest.raises(NonFiniteError, match='output "y" of the FP32 model holds infinity') as caught:
        report_on(bench.text(MASKED.replace("Add", "Sub"), W=(8, 5)), -np.inf)
    assert caught.value.exit_code == 5
