"""A table with rescaled channels, taken back to the FP32 model."""

from dataclasses import replace

import numpy as np
import pytest

from int8cal.errors import TableError
from int8cal.graph.chains import find_chains
from int8cal.numerics.affine import SMALLEST_SCALE
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.integers import Bias
from int8cal.quantization.derived_tables import unscaled

NET = """net (float[N,3,8,8] x) => (float[N,2,8,8] y)
{ a = Conv (x, W1)
  b = Relu (a)
  y = Conv (b, W2) }"""
EXPONENTS = [3.0, 0.0, -2.0, 1.5]


@pytest.fixture
def case(bench):
    prepared, plan, table, _ = bench.quantized(bench.text(NET, W1=(4, 3, 1, 1), W2=(2, 4, 1, 1)))
    (chain,) = find_chains(prepared.model, plan)
    rescaled = replace(table, corrections=(Equalization({chain.tensor: EXPONENTS}), Bias()))
    return prepared.model, plan, with_weights(rescaled, plan, build_model(prepared.model, plan, rescaled)), table


def test_the_range_covers_the_channel_that_was_shrunk_most(case):
    model, plan, table, _ = case
    result, wider = unscaled(model, plan, table)
    assert wider == {"b": 4.0}
    before, after = table.tensors["b"], result.tensors["b"]
    assert (after.scale, after.zero_point, after.high) == (4 * before.scale, before.zero_point, 4 * before.high)
    assert result.tensors["x"] == table.tensors["x"]


def test_weights_are_those_of_the_fp32_model(case):
    model, plan, table, plain = case
    result, _ = unscaled(model, plan, table)
    built = build_model(model, plan, replace(plain, tensors=result.tensors))
    expected = with_weights(plain, plan, built).weights
    assert result.weights == expected
    assert result.weights["W2"] != table.weights["W2"]


def test_other_corrections_stay_to_be_told(case):
    model, plan, table, _ = case
    assert unscaled(model, plan, table)[0].corrections == (Bias(),)


def test_factors_of_one_change_nothing(case):
    model, plan, _, table = case
    (name,) = [chain.tensor for chain in find_chains(model, plan)]
    result, wider = unscaled(model, plan, replace(table, corrections=(Equalization({name: (0.0,) * 4}),)))
    assert (wider, result.tensors) == ({}, table.tensors)


def test_a_range_beyond_float32_is_refused(case):
    model, plan, table, _ = case
    huge = replace(table.tensors["b"], scale=2.0**126)
    assert huge.scale > SMALLEST_SCALE
    broken = replace(table, tensors={**table.tensors, "b": huge})
    with pytest.raises(TableError, match="does not fit float32"):
        unscaled(model, plan, broken)


def test_ranges_hold_what_the_fp32_model_computes(case, bench):
    from int8cal.runtime.sessions import Session

    model, plan, table, plain = case
    # a table that calibration made of the rescaled model: its range is that of x * 2**e
    exponents = np.array(EXPONENTS)
    values = np.concatenate([np.maximum(_hidden(Session, model, sample.feed), 0) for sample in bench.samples(model)])
    scaled = values * np.exp2(exponents)[None, :, None, None]
    scale = float(np.float32(scaled.max() / 255))
    entry = replace(plain.tensors["b"], scale=scale, low=0.0, high=255 * scale, zero_point=0)
    result, _ = unscaled(model, plan, replace(table, tensors={**table.tensors, "b": entry}))
    assert values.max() <= result.tensors["b"].high * (1 + 1e-6)


def _hidden(session, model, feed):
    import onnx

    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    inner.graph.output.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None))
    return session(inner).run(feed, ["a"])["a"]
