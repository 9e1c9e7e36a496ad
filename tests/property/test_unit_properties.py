"""A model in another unit, its values times a power of two, is quantized to the same codes with the same decibels."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import int8cal

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,2,6,6] x) => (float[N,5] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, A, AB)
    b = Relu(a)
    c = Conv(b, C, CB)
    d = Relu(c)
    e = Flatten(d)
    y = Gemm(e, E, EB)
}"""
WEIGHTS = {"A": (6, 2, 3, 3), "AB": (6,), "C": (4, 6, 3, 3), "CB": (4,), "E": (64, 5), "EB": (5,)}
DATA = [{"x": row} for row in np.random.default_rng(1).normal(size=(12, 1, 2, 6, 6)).astype(np.float32)]


def model(scaled):
    """Build the net; `scaled` is weight -> exponent of the power of two that multiplies it."""
    rng = np.random.default_rng(0)
    result = onnx.parser.parse_model(NET)
    for name, shape in WEIGHTS.items():
        value = np.ldexp(rng.normal(scale=0.3, size=shape), scaled.get(name, 0))
        result.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return result


def quantized(recipe, scaled):
    fp32 = model(scaled)
    data = [{"x": np.ldexp(feed["x"], scaled.get("x", 0))} for feed in DATA]
    table = int8cal.calibrate(fp32, data, recipe=recipe, threads=1)
    int8 = int8cal.quantize(fp32, table)
    report = int8cal.evaluate(fp32, int8, data, threads=1, latency=False)
    codes = {
        each.name: numpy_helper.to_array(each).tobytes()
        for each in int8.graph.initializer
        if each.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.INT32, onnx.TensorProto.UINT8)
    }
    return table, report, codes


@pytest.fixture(scope="module")
def plain():
    return {recipe: quantized(recipe, {}) for recipe in ("fast", "balanced", "accurate")}


def require_same(plain, recipe, scaled):
    table, report, codes = quantized(recipe, scaled)
    _, expected, expected_codes = plain[recipe]
    assert codes == expected_codes
    assert report.evaluation.metrics.sqnr_db == pytest.approx(expected.evaluation.metrics.sqnr_db, abs=0.1)
    assert report.evaluation.metrics.sqnr_db_ci95 == pytest.approx(expected.evaluation.metrics.sqnr_db_ci95, abs=0.1)
    assert not table.warnings


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
@pytest.mark.parametrize("exponent", [-100, -53, 60])
def test_a_last_layer_in_another_unit_has_the_same_codes(plain, recipe, exponent):
    require_same(plain, recipe, {"E": exponent, "EB": exponent})


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
@pytest.mark.parametrize("exponent", [-100, 60])
def test_a_layer_that_the_next_one_undoes_has_the_same_codes(plain, recipe, exponent):
    require_same(plain, recipe, {"A": exponent, "AB": exponent, "C": -exponent})


@pytest.mark.parametrize("recipe", ["fast", "balanced", "accurate"])
@pytest.mark.parametrize("exponent", [-90, 100])
def test_data_in_another_unit_has_the_same_codes(plain, recipe, exponent):
    require_same(plain, recipe, dict.fromkeys(("x", "AB", "CB", "EB"), exponent))


@settings(max_examples=5, deadline=None)
@given(exponent=st.integers(-100, 60))
def test_any_unit_has_the_same_codes(plain, exponent):
    require_same(plain, "fast", {"E": exponent, "EB": exponent})
    require_same(plain, "fast", {"C": exponent, "CB": exponent, "E": -exponent})


@pytest.mark.parametrize("unit", [1e-16, 1e-22, 1e-30, 1e16])
def test_units_that_are_no_power_of_two_have_the_true_decibels(plain, unit):
    fp32 = model({})
    for each in fp32.graph.initializer:
        if each.name in ("E", "EB"):
            value = numpy_helper.to_array(each).astype(np.float64) * unit
            each.CopyFrom(numpy_helper.from_array(value.astype(np.float32), each.name))
    int8 = int8cal.quantize(fp32, int8cal.calibrate(fp32, DATA, threads=1))
    reported = int8cal.evaluate(fp32, int8, DATA, threads=1, latency=False).evaluation.metrics.sqnr_db
    first, second = (int8cal_outputs(each) / unit for each in (fp32, int8))
    true = 10 * np.log10(np.square(first).sum() / np.square(first - second).sum())
    assert reported == pytest.approx(true, abs=1e-3)
    assert reported == pytest.approx(plain["fast"][1].evaluation.metrics.sqnr_db, abs=1.0)


def int8cal_outputs(each):
    """Run a model with plain onnxruntime; float64."""
    import onnxruntime

    session = onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["y"], feed)[0] for feed in DATA]).astype(np.float64)


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
@pytest.mark.parametrize("exponent", [-118, -124, -130])
def test_where_float32_ends_a_warning_names_the_node(recipe, exponent):
    table, report, _ = quantized(recipe, {"E": exponent, "EB": exponent})
    assert any("'Gemm_" in line and "float32 ends" in line for line in table.warnings)
    assert np.isfinite(report.evaluation.metrics.sqnr_db)
    for entry in table.weights.values():
        assert all(np.isfinite(1 / np.float32(scale)) for scale in entry.scales)


def test_where_float32_ends_a_warning_names_the_tensor():
    table, _, _ = quantized("fast", {"C": -122, "CB": -122})
    assert any("tensor 'd'" in line and "float32 ends" in line for line in table.warnings)
