"""DynamicQuantizeLSTM on a CPU without VNNI: s7 gives the same states, s8 does not where large weights meet."""

import numpy as np
import onnx
import pytest
from harness import Case
from onnx import helper, numpy_helper
from recurrent_cells import Cell, dynamic_products, run_cell

from int8cal.numerics.affine import S7, S8
from int8cal.numerics.weights import gate_scales, quantize_gates

pytestmark = pytest.mark.emulated

INPUTS, HIDDEN, STEPS = 32, 16, 3
RANGES = {"s7": S7, "s8": S8}


def gates(dtype, *, worst):
    rng = np.random.default_rng(7)
    result = []
    for width in (INPUTS, HIDDEN):
        weight = rng.normal(scale=0.3, size=(1, 4 * HIDDEN, width))
        if worst:  # all of a row at the end of the range, every other row negative
            weight = np.where(np.arange(4 * HIDDEN) % 2, -1.0, 1.0)[None, :, None] * np.full_like(weight, 1 / width)
        result.append(quantize_gates(weight.astype(np.float32), gate_scales(weight, dtype), dtype))
    return result


def case(parts, x):
    tensors = []
    for name, each in zip("WR", parts, strict=True):
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(each.codes.transpose(0, 2, 1)), name))
        tensors.append(numpy_helper.from_array(each.scales.astype(np.float32), f"{name}s"))
        tensors.append(numpy_helper.from_array(np.zeros(each.scales.shape, np.int8), f"{name}z"))
    inputs = ["x", "W", "R", *[""] * 5, "Ws", "Wz", "Rs", "Rz"]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=HIDDEN)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([node], "cell", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return Case(helper.make_model(graph, opset_imports=opsets, ir_version=8), {"x": x})


def inputs(*, worst):
    shape = (2, STEPS, 1, INPUTS)
    values = np.ones(shape) if worst else np.random.default_rng(8).normal(size=shape)
    return values.astype(np.float32)


def expected(parts, x):
    cell = Cell("LSTM", *map(dynamic_products, parts), np.zeros((1, 8 * HIDDEN)))
    return np.stack([run_cell(cell, each)[0] for each in x])


@pytest.fixture(scope="module")
def states(native, haswell):
    """(range, worst) -> the numpy cell's, the native and the emulated outputs."""
    keys = [(name, worst) for name in RANGES for worst in (False, True)]
    parts = {key: gates(RANGES[key[0]], worst=key[1]) for key in keys}
    cases = [case(parts[key], inputs(worst=key[1])) for key in keys]
    results = [[result.first for result in machine.run(cases)] for machine in (native, haswell)]
    return {
        key: (expected(parts[key], inputs(worst=key[1])), *found) for key, *found in zip(keys, *results, strict=True)
    }


@pytest.mark.parametrize("worst", [False, True])
def test_s7_gives_the_same_states_without_vnni(states, worst):
    exact, native, old = states["s7", worst]
    assert np.abs(old - exact).max() < 3e-6
    assert np.abs(old - native).max() < 3e-6


def test_s8_saturates_where_large_weights_meet(states, vnni):
    exact, native, old = states["s8", True]
    assert np.abs(native - exact).max() < 3e-6
    assert np.abs(old - exact).max() > 0.1
