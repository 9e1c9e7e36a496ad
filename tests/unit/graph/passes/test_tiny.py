"""Weights of 1e-40 beside others become 0; what is small as a whole, or no weight, stays."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from int8cal.graph.passes.tiny import without_tiny_weights

DEAD = np.array([0.0, 1e-40, -3e-39, 2e-33, -3e-20], np.float32)
ALIVE = np.array([2e-19, -1e-6, 0.5, 2.0], np.float32)
WEIGHT = np.concatenate([DEAD, ALIVE, -ALIVE, DEAD, [0, 0]]).astype(np.float32).reshape(4, 5)
BODIES = {
    "MatMul": "y = MatMul (x, W)",
    "MatMul from the left": "y = MatMul (W, x)",
    "Gemm": "y = Gemm <transB = 1> (x, W)",
    "a bias": "y = Gemm (x, x, W)",
    "a body": """y = If (flag) < then_branch = one () => (float[A,B] a) { a = MatMul (x, W) },
                                 else_branch = two () => (float[C,D] b) { b = Relu (x) } >""",
}


def changed(bench, body, **weights):
    model = bench.text(f"g (float[4,4] x, bool flag) => (float[E,F] y) {{ {body} }}", **weights)
    without_tiny_weights(model)
    onnx.checker.check_model(model)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("name", BODIES)
def test_what_no_sum_can_tell_from_0_is_0(bench, name):
    expected = np.where(np.abs(WEIGHT) < 1e-19, np.float32(0), WEIGHT)
    assert 0 < np.count_nonzero(expected) < np.count_nonzero(WEIGHT)
    np.testing.assert_array_equal(changed(bench, BODIES[name], W=WEIGHT)["W"], expected)


@pytest.mark.parametrize("largest", [1e-38, 1e-25, 1e-13])
def test_a_tensor_that_is_small_as_a_whole_keeps_its_values(bench, largest):
    weight = (np.array([1.0, -1e-3, 1e-17]) * largest)[None].astype(np.float32)
    np.testing.assert_array_equal(changed(bench, BODIES["MatMul"], W=weight)["W"], weight)


def test_what_is_no_weight_stays(bench):
    body = "s = Add (x, K) m = Mul (s, K) y = Gather (W, at)"
    found = changed(bench, body, K=WEIGHT[:, :4], W=WEIGHT, at=np.array([0]))
    np.testing.assert_array_equal(found["K"], WEIGHT[:, :4])
    np.testing.assert_array_equal(found["W"], WEIGHT)


def test_a_weight_that_something_else_reads_stays(bench):
    found = changed(bench, "a = MatMul (x, V) b = Mul (a, V) y = Add (b, b)", V=WEIGHT[:, :4])
    np.testing.assert_array_equal(found["V"], WEIGHT[:, :4])


def test_what_is_not_finite_stays_and_hinders_nothing(bench):
    weight = np.array([[np.inf, 1e-40, 1.0], [np.nan, 1e-40, 1.0]], np.float32)
    found = changed(bench, "a = MatMul (x, V) b = MatMul (x, W) y = Add (a, b)", V=weight[:1], W=weight[1:])
    np.testing.assert_array_equal(found["V"], [[np.inf, 0, 1]])
    np.testing.assert_array_equal(found["W"], [[np.nan, 0, 1]])
