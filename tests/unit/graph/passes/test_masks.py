"""Masks that leave denormal probabilities become deeper; the outputs stay, and so does what anybody else could see."""

import numpy as np
import onnx
import pytest
from onnx import shape_inference

from int8cal.graph.index import Index
from int8cal.graph.prepare import fold, normalize
from int8cal.runtime.machine import cpu_flags

HEAD = "g (float[N,2,4,4] x, bool[4,4] far) => (float[A,B,C,D] y)"
MASK = np.where(np.tri(4, dtype=bool), 0.0, -100.0).astype(np.float32)
LOW = np.float32(-100)
TINY = np.finfo(np.float32).tiny

# name -> (body, constants)
DEEPER = {
    "a constant": ("a = Add(x, M) y = Softmax(a)", {"M": MASK}),
    "a constant behind a reshape": (
        "a = Add(M, x) s = Shape(x) r = Reshape(a, s) y = Softmax(r)",
        {"M": MASK.reshape(1, 1, 4, 4)},
    ),
    "one that is chosen": ("m = Where(far, low, nil) a = Add(x, m) y = Softmax(a)", {"low": LOW, "nil": np.float32(0)}),
    "scores that are replaced": ("a = Where(far, low, x) y = Softmax(a)", {"low": LOW}),
    "one for two": ("m = Where(far, low, nil) a = Add(x, m) s = Softmax(a) b = Add(s, m) y = Softmax(b)",
        {"low": LOW, "nil": np.float32(0)}),
}  # fmt: skip
KEPT = {
    "its logarithm is read": ("a = Add(x, M) y = LogSoftmax(a)", {"M": MASK}),
    "the sum is given out": ("y = Add(x, M) s = Softmax(y)", {"M": MASK}),
    "another node reads the sum": ("a = Add(x, M) s = Softmax(a) r = Relu(a) y = Add(s, r)", {"M": MASK}),
    "exp of it is 0": ("a = Add(x, M) y = Softmax(a)", {"M": MASK * 100}),
    "it is a bias": ("a = Add(x, M) y = Softmax(a)", {"M": MASK / 10}),
    "no constant": ("a = Where(far, x, x) y = Softmax(a)", {}),
}


def prepared(bench, body, constants):
    before = shape_inference.infer_shapes(normalize(bench.text(f"{HEAD} {{ {body} }}", **constants), "net"))
    after = onnx.ModelProto()
    after.CopyFrom(before)
    return before, after, fold(after)


def feed():
    random = np.random.default_rng(0)
    far = ~np.tri(4, dtype=bool)
    far[3] = True  # one row is masked as a whole
    return {"x": random.normal(0, 4, (3, 2, 4, 4)).astype(np.float32), "far": far}


@pytest.mark.parametrize("name", DEEPER)
def test_a_mask_that_leaves_denormal_probabilities_becomes_deeper(bench, name):
    before, after, changed = prepared(bench, *DEEPER[name])
    assert changed
    onnx.checker.check_model(after, full_check=True)
    expected, actual = (bench.run(model, feed())["y"] for model in (before, after))
    # the kernel for AVX2 makes zeros of them
    assert ((expected > 0) & (expected < TINY)).any() or "avx512f" not in cpu_flags()
    assert not ((actual > 0) & (actual < TINY)).any()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("name", KEPT)
def test_what_anybody_else_could_see_stays(bench, name):
    before, after, changed = prepared(bench, *KEPT[name])
    assert not changed
    assert after == before


def test_a_constant_that_others_read_keeps_its_value(bench):
    body = "a = Add(x, M) s = Softmax(a) y = Add(s, M)"
    before, after, changed = prepared(bench, body, {"M": MASK})
    assert changed
    np.testing.assert_array_equal(Index(after).constant("M"), MASK)
    np.testing.assert_allclose(*(bench.run(model, feed())["y"] for model in (after, before)), rtol=1e-4, atol=1e-6)
