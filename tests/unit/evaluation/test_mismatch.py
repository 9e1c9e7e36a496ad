"""Outputs under each other's names, and weights of another model; tests/verdict has whole jobs."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from int8cal.data.sample import Sample
from int8cal.evaluation.mismatch import exchanged_outputs, other_weights
from int8cal.evaluation.result import LayerMetrics, OutputMetrics
from int8cal.runtime.sessions import Session

OUTPUTS = ("a", "b", "c", "wide")


def model(order):
    """x (n, 4) -> a, b, c (n, 4) and wide (n, 8), which names the outputs in another order."""
    first, second, third, wide = order
    text = f"""<ir_version: 9, opset_import: ["" : 19]>
        net (float[N,4] x) => (float[N,4] a, float[N,4] b, float[N,4] c, float[N,8] wide) {{
            {first} = Sin(x)
            {second} = Abs(x)
            {third} = Neg(x)
            {wide} = Concat <axis = 1> (x, x)
        }}"""
    made = onnx.parser.parse_model(text)
    onnx.checker.check_model(made)
    return made


def said(order, poor):
    models = (model(OUTPUTS), model(order))
    samples = [Sample({"x": row[None]}, "") for row in np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)]
    figures = {name: OutputMetrics(sqnr_db=0.0 if name in poor else 30.0, cosine=0.0) for name in OUTPUTS}
    names = tuple((name, name) for name in OUTPUTS)
    return exchanged_outputs([Session(each) for each in models], models, names, samples, figures)


def test_outputs_in_a_ring_are_told_each():
    first, second, third = said(("b", "c", "a", "wide"), {"a", "b", "c", "wide"})
    assert '"a" of the int8 model follows "c" of the FP32 model' in first
    assert '"b" of the int8 model follows "a" of the FP32 model' in second
    assert '"c" of the int8 model follows "b" of the FP32 model' in third


@pytest.mark.parametrize("poor", [(), ("a",), ("a", "b")])
def test_outputs_in_their_places_are_not_exchanged_however_bad(poor):
    assert said(OUTPUTS, poor) == ()


def test_nothing_is_run_for_one_bad_output():
    figures = {name: OutputMetrics(sqnr_db=0.0 if name == "a" else 30.0, cosine=0.0) for name in OUTPUTS}
    assert exchanged_outputs((), (), tuple((name, name) for name in OUTPUTS), (), figures) == ()


def layers(*ratios, op="Conv"):
    given = LayerMetrics("x", "", "Input", ratios[0], None)
    return (given, *(LayerMetrics(f"t{k}", f"n{k}", op, ratio, None) for k, ratio in enumerate(ratios[1:])))


def test_a_first_layer_unlike_that_of_the_fp32_model_is_told():
    (line,) = other_weights(layers(40.0, -0.7, 5.0))
    assert '"t0" (Conv n0)' in line


@pytest.mark.parametrize(
    "ratios",
    [
        pytest.param((40.0, 25.0, -1.0), id="a later layer is bad"),
        pytest.param((8.0, -0.7), id="the input is bad already"),
        pytest.param((40.0, None), id="the first layer has no figure"),
        pytest.param((40.0,), id="only the input is quantized"),
    ],
)
def test_other_weights_are_not_suspected_without_reason(ratios):
    assert other_weights(layers(*ratios)) == ()


def test_a_first_layer_that_is_clipped_for_its_data_is_not_taken_for_another_models():
    given, first = layers(40.0, -0.7)
    assert other_weights((given, replace(first, outside=0.05))) != ()
    assert other_weights((given, replace(first, outside=0.38))) == ()
