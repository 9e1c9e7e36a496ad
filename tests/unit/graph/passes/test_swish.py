"""What exporters write of a hard swish and a hard sigmoid becomes HardSigmoid; the outputs stay."""

import collections

import numpy as np
import onnx
import pytest

HEAD = "g (float[N,4,6,6] x) => (float[A,B,C,D] y)"
THREE, SIX, ZERO = np.float32(3), np.float32(6), np.float32(0)
VALUES = {"c3": THREE, "c6": SIX, "c0": ZERO, "sixth": np.float32(1 / 6), "W": (4, 4, 1, 1)}
LINE = "c = Conv(x, W) a = Add(c, c3) k = Clip(a, c0, c6)"

BOUNDS = {"far": np.float32(3e30), "tiny": np.float32(1e-8), "small": np.float32(2e-8)}

# name -> (body, other constants, ops behind the Conv)
BECOME = {
    "swish, divided at last": (f"{LINE} m = Mul(c, k) y = Div(m, c6)", {}, "HardSigmoid Mul"),
    "swish, divided at once": (f"{LINE} d = Div(k, c6) y = Mul(d, c)", {}, "HardSigmoid Mul"),
    "times a sixth": (f"{LINE} m = Mul(k, c) y = Mul(sixth, m)", {}, "HardSigmoid Mul"),
    "times another factor": (
        f"{LINE} m = Mul(c, k) d = Div(m, c6) f = Mul(d, f2) g = Add(f, c3) e = Exp(g) y = Mul(e, c)",
        {"f2": np.float32(1.7)},
        "HardSigmoid Mul Mul Add Exp Mul",
    ),
    "divided before": (f"{LINE} s = Mul(c, sixth) y = Mul(s, k)", {}, "HardSigmoid Mul"),
    "divided before, in float16": (
        f"{LINE} s = Mul(half, c) m = Mul(k, s) y = Tanh(m)",
        {"half": np.float32(np.float16(1 / 6))},
        "HardSigmoid Mul Mul Tanh",
    ),
    "a gate in float16": (
        f"{LINE} d = Mul(k, half) y = Mul(x, d)",
        {"half": np.float32(np.float16(1 / 6))},
        "HardSigmoid Mul Mul",
    ),
    "a gate": (f"{LINE} d = Div(k, c6) y = Mul(x, d)", {}, "HardSigmoid Mul"),
    "a Relu and a Min": (
        "c = Conv(x, W) a = Add(c3, c) r = Relu(a) k = Min(r, c6) m = Mul(c, k) y = Div(m, c6)",
        {},
        "HardSigmoid Mul",
    ),
    "other numbers": (
        "c = Conv(x, W) a = Add(c, c2) k = Clip(a, c0, c4) m = Mul(c, k) y = Div(m, c4)",
        {"c2": np.float32(1), "c4": np.float32(4)},
        "HardSigmoid Mul",
    ),
}
STAY = {
    "ReLU6 of a sum": f"{LINE} e = Exp(k) y = Mul(e, c)",
    "the sum is read": f"{LINE} m = Mul(c, k) d = Div(m, c6) y = Add(d, a)",
    "the line is read": f"{LINE} m = Mul(c, k) d = Div(m, c6) y = Add(d, k)",
    "the divided tensor is read": f"{LINE} s = Mul(c, sixth) m = Mul(s, k) y = Add(m, s)",
    "another tensor was divided": f"{LINE} s = Mul(x, sixth) y = Mul(s, k)",
    "not divided": f"{LINE} m = Mul(c, k) y = Tanh(m)",
    "times another tensor": f"{LINE} m = Mul(x, k) y = Div(m, c6)",
    "two lower bounds": "c = Conv(x, W) a = Add(c, c3) k = Clip(a, c3, c6) m = Mul(c, k) y = Div(m, c6)",
    "a constant per channel": "c = Conv(x, W) a = Add(c, R) k = Clip(a, c0, c6) m = Mul(c, k) y = Div(m, c6)",
    "a bound beyond any sum": "c = Conv(x, W) a = Add(c, c3) k = Clip(a, c0, far) m = Mul(c, k) y = Div(m, far)",
    "a bound that makes a step": "c = Conv(x, W) a = Add(c, tiny) k = Clip(a, c0, small) m = Mul(c, k) y = Div(m, small)",
    "divided by less": f"{LINE} d = Div(k, c3) e = Exp(d) y = Mul(e, c)",
}


def folded(bench, body, constants):
    before, after = bench.folded(bench.text(f"{HEAD} {{ {body} }}", **VALUES, **constants))
    onnx.checker.check_model(after, full_check=True)
    feed = {"x": np.random.default_rng(1).normal(0, 6, (3, 4, 6, 6)).astype(np.float32)}
    expected, actual = (bench.run(model, feed)["y"] for model in (before, after))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    return [node for node in after.graph.node if node.op_type != "Conv"]


@pytest.mark.parametrize("name", BECOME)
def test_it_becomes_a_hard_sigmoid(bench, name):
    body, constants, ops = BECOME[name]
    assert collections.Counter(node.op_type for node in folded(bench, body, constants)) == collections.Counter(
        ops.split()
    )


@pytest.mark.parametrize("name", STAY)
def test_what_is_something_else_stays(bench, name):
    row = np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1)
    assert "HardSigmoid" not in {node.op_type for node in folded(bench, STAY[name], {"R": row, **BOUNDS})}
