"""Each rule of the folding passes on a graph of its own: what is left, and that the outputs stay."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, shape_inference

from int8cal.graph.index import Index
from int8cal.graph.prepare import fold, normalize

IMAGE = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
ROWS = "g (float[N,4] x) => (float[A,C] y)"
STEPS = "g (float[N,5,4] x) => (float[A,C,D] y)"
CONV = {"W": (6, 4, 3, 3), "B": (6,)}
S, T = np.array([0.5, 2, 3, 0.25, 1.5, 4]), np.array([0.1, -2, 3, 0, 1, -0.5])  # factors and shifts of six channels
C6 = {"S": S.reshape(6, 1, 1), "T": T.reshape(1, 6, 1, 1)}
NORM = {"g": S, "b": T, "m": T[::-1].copy(), "v": S + 1}
SIX, ZERO, TWO = np.float32(6), np.float32(0), np.float32(2)
PADDED_MEAN = "p = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (c)"
SPLIT_HEADS = "r = Reshape(c, shape) t = Transpose <perm = [0, 2, 1, 3]> (r)"

# name -> (head, body, constants, ops that are left)
FOLDED = {
    "a factor behind a convolution": (IMAGE, "c = Conv(x, W, B) y = Mul(c, S)", CONV | C6, "Conv"),
    "a quotient behind a convolution": (IMAGE, "c = Conv(x, W) y = Div(c, S)", CONV | C6, "Conv"),
    "a sum gives a convolution its bias": (IMAGE, "c = Conv(x, W) y = Add(T, c)", CONV | C6, "Conv"),
    "a difference": (IMAGE, "c = Conv(x, W, B) y = Sub(c, T)", CONV | C6, "Conv"),
    "a constant minus a convolution": (IMAGE, "c = Conv(x, W, B) y = Sub(T, c)", CONV | C6, "Conv"),
    "a sign": (IMAGE, "c = Conv(x, W, B) y = Neg(c)", CONV, "Conv"),
    "a grouped convolution": (
        IMAGE,
        "c = Conv <group = 2> (x, W, B) y = Mul(c, S)",
        {**C6, "W": (6, 2, 3, 3), "B": (6,)},
        "Conv",
    ),
    "a transposed convolution": (
        IMAGE,
        "c = ConvTranspose(x, W, B) y = Mul(c, S)",
        {**C6, "W": (4, 6, 2, 2), "B": (6,)},
        "ConvTranspose",
    ),
    "a grouped transposed convolution": (
        IMAGE,
        "c = ConvTranspose <group = 2> (x, W) m = Mul(c, S) y = Add(m, T)",
        {**C6, "W": (4, 3, 2, 2)},
        "ConvTranspose",
    ),
    "batch norm behind a transposed convolution": (
        IMAGE,
        "c = ConvTranspose(x, W) y = BatchNormalization(c, g, b, m, v)",
        {**NORM, "W": (4, 6, 2, 2)},
        "ConvTranspose",
    ),
    "batch norm behind convolutions side by side": (
        IMAGE,
        "c = Conv(x, W, B) d = Conv(x, V) j = Concat <axis = 1> (c, d) y = BatchNormalization(j, g, b, m, v)",
        {**NORM, "W": (4, 4, 3, 3), "B": (4,), "V": (2, 4, 3, 3)},
        "Conv Conv Concat",
    ),
    "the same, channels counted from the end": (
        IMAGE,
        "c = Conv(x, W) d = Conv(x, V) j = Concat <axis = -3> (c, d) y = Mul(j, S)",
        {**C6, "W": (4, 4, 3, 3), "V": (2, 4, 3, 3)},
        "Conv Conv Concat",
    ),
    "a factor per channel behind rows side by side": (
        IMAGE,
        "c = Conv(x, W) d = Conv(x, V) j = Concat <axis = 2> (c, d) y = Mul(j, S)",
        {**C6, "W": (6, 4, 3, 3), "V": (6, 4, 3, 3)},
        "Conv Conv Concat",
    ),
    "batch norm behind a Gemm": (
        ROWS,
        "c = Gemm(x, W, B) y = BatchNormalization(c, g, b, m, v)",
        {**NORM, "W": (4, 6), "B": (6,)},
        "Gemm",
    ),
    "a transposed Gemm without bias": (
        ROWS,
        "c = Gemm <transB = 1> (x, W) m = Mul(c, S) y = Sub(m, T)",
        {"S": S, "T": T, "W": (6, 4)},
        "Gemm",
    ),
    "a product takes factors and leaves the shift": (
        STEPS,
        "c = MatMul(x, W) a = Add(c, T) y = Mul(a, S)",
        {"S": S, "T": T, "W": (4, 6)},
        "MatMul Add",
    ),
    "batch norm behind a product": (
        ROWS,
        "c = MatMul(x, W) y = BatchNormalization(c, g, b, m, v)",
        {**NORM, "W": (4, 6)},
        "MatMul Add",
    ),
    "a chain of four": (
        IMAGE,
        "c = Conv(x, W, B) a = Mul(c, S) b = Add(a, T) d = Div(b, S) y = Sub(d, T)",
        CONV | C6,
        "Conv",
    ),
    "a chain on the input becomes two": (
        IMAGE,
        "a = Div(x, p) b = Sub(a, q) c = Div(b, r) y = Conv(c, W, B)",
        {**CONV, "p": np.float32(255), "q": (4, 1, 1), "r": np.full((4, 1, 1), 0.2)},
        "Mul Add Conv",
    ),
    "through a Relu": (IMAGE, "c = Conv(x, W, B) r = Relu(c) y = Mul(r, S)", CONV | C6, "Conv Relu"),
    "through a leaky Relu": (IMAGE, "c = Conv(x, W, B) r = LeakyRelu(c) y = Mul(r, S)", CONV | C6, "Conv LeakyRelu"),
    "through a PRelu": (
        IMAGE,
        "c = Conv(x, W, B) r = PRelu(c, p) y = Div(r, S)",
        {**CONV, **C6, "p": (6, 1, 1)},
        "Conv PRelu",
    ),
    "through Relu and pooling": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (r) y = Mul(p, S)",
        CONV | C6,
        "Conv Relu MaxPool",
    ),
    "through a pooling mean with padding": (
        IMAGE,
        f"c = Conv(x, W, B) {PADDED_MEAN} y = Mul(p, S)",
        CONV | C6,
        "Conv AveragePool",
    ),
    "a shift through the mean of everything": (
        IMAGE,
        "c = Conv(x, W, B) p = GlobalAveragePool(c) m = Mul(p, S) y = Add(m, T)",
        CONV | C6,
        "Conv GlobalAveragePool",
    ),
    "one factor through a Clip": (
        IMAGE,
        "c = Conv(x, W, B) r = Clip(c, lo, hi) y = Mul(r, f)",
        {**CONV, "lo": ZERO, "hi": SIX, "f": np.float32(0.125)},
        "Conv Clip",
    ),
    "one factor through a change of shape": (
        STEPS,
        f"c = MatMul(x, W) {SPLIT_HEADS} q = Mul(t, f) y = ReduceSum <keepdims = 0> (q, axes)",
        {"W": (4, 6), "shape": np.array([0, 0, 2, 3]), "f": np.float32(0.577), "axes": np.array([3])},
        "MatMul Reshape Transpose ReduceSum",
    ),
    "a sum of two layers": (
        IMAGE,
        "c = Conv(x, W, B) d = Conv <dilations = [2, 2], pads = [1, 1, 1, 1]> (x, V) s = Add(c, d) m = Mul(s, S) y = Add(m, T)",
        {**CONV, **C6, "V": (6, 4, 3, 3)},
        "Conv Conv Add",
    ),
    "a difference of two layers": (
        IMAGE,
        "c = Conv(x, W, B) d = Conv <dilations = [2, 2], pads = [1, 1, 1, 1]> (x, V) s = Sub(c, d) m = Mul(s, S) y = Add(m, T)",
        {**CONV, **C6, "V": (6, 4, 3, 3)},
        "Conv Conv Sub",
    ),
    "the scale of attention": (
        STEPS,
        "q = MatMul(x, Q) k = MatMul(x, K) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) y = Div(s, f)",
        {"Q": (4, 6), "K": (4, 6), "f": np.float32(2.449)},
        "MatMul MatMul Transpose MatMul",
    ),
    "a gate takes the factor on one side": (
        IMAGE,
        "c = Conv(x, W, B) d = Conv(x, V) e = Sigmoid(d) s = Mul(c, e) y = Mul(s, S)",
        {**CONV, **C6, "V": (6, 4, 3, 3)},
        "Conv Conv Sigmoid Mul",
    ),
    "times one and plus zero": (
        IMAGE,
        "a = Mul(x, one) c = Conv(a, W, B) b = Add(c, nil) d = Div(b, one) y = Relu(d)",
        {**CONV, "one": np.ones((1, 1, 1, 1)), "nil": np.zeros((6, 1, 1))},
        "Conv Relu",
    ),
    "times one at the output": (IMAGE, "r = Tanh(x) y = Mul(r, one)", {"one": np.float32(1)}, "Tanh"),
    "weights of two layers": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[A,C,D,E] z)",
        "c = Conv(x, W, B) y = Mul(c, S) z = Conv(x, W, B)",
        CONV | C6,
        "Conv Conv",
    ),
    "one constant is weight and bias": (
        "g (float[N,1] x) => (float[A,C] y)",
        "c = Gemm(x, W, W) y = BatchNormalization(c, g, b, m, v)",
        {**NORM, "W": (1, 6)},
        "Gemm",
    ),
    "a Gemm whose beta had no bias": (
        ROWS,
        "c = Gemm <beta = 3.0> (x, W) y = Add(c, T)",
        {"T": T, "W": (4, 6)},
        "Gemm",
    ),
    "a name that the new bias may not take": (
        IMAGE,
        "c = Conv(x, W) d = Add(c, T) y = Conv(d, V, Conv_c_bias)",
        {**C6, "W": (6, 4, 3, 3), "V": (2, 6, 1, 1), "Conv_c_bias": (2,)},
        "Conv Conv",
    ),
    "Max and Min are a Clip": (
        IMAGE,
        "c = Conv(x, W, B) a = Max(c, lo) y = Min(hi, a)",
        {**CONV, "lo": ZERO, "hi": SIX},
        "Conv Clip",
    ),
    "Max with zero is a Relu": (IMAGE, "c = Conv(x, W, B) y = Max(c, lo)", {**CONV, "lo": ZERO}, "Conv Relu"),
    "a Relu before a Clip": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) y = Clip(r, lo, hi)",
        {**CONV, "lo": np.float32(-1), "hi": SIX},
        "Conv Clip",
    ),
    "two Clips are one": (
        IMAGE,
        "c = Conv(x, W, B) r = Clip(c, lo, hi) y = Clip(r, nil, two)",
        {**CONV, "lo": np.float32(-1), "hi": SIX, "nil": ZERO, "two": TWO},
        "Conv Clip",
    ),
    "a Relu behind what is never negative": (
        IMAGE,
        "c = Conv(x, W, B) s = Sigmoid(c) f = MaxPool <kernel_shape = [2, 2]> (s) y = Relu(f)",
        CONV,
        "Conv Sigmoid MaxPool",
    ),
    "a Clip of what came as bytes": (
        "g (uint8[N,4,8,8] x) => (float[A,C,D,E] y)",
        "f = Cast <to = 1> (x) k = Clip(f, lo, hi) y = Conv(k, W, B)",
        {**CONV, "lo": ZERO, "hi": np.float32(255)},
        "Cast Conv",
    ),
    "a mean over the image": (
        IMAGE,
        "c = Conv(x, W, B) y = ReduceMean <axes = [2, -1]> (c)",
        CONV,
        "Conv GlobalAveragePool",
    ),
    "a mean over the image that drops it": (
        "g (float[N,4,8,8] x) => (float[A,C] y)",
        "c = Conv(x, W, B) y = ReduceMean <axes = [-2, -1], keepdims = 0> (c)",
        CONV,
        "Conv GlobalAveragePool Flatten",
    ),
    "a Clip without bounds": (IMAGE, "c = Conv(x, W, B) y = Clip(c)", CONV, "Conv"),
    "a bias and a Relu behind a Squeeze, as Keras writes them": (
        "g (float[N,4,8,1] x) => (float[A,C,D] y)",
        "c = Conv(x, W) s = Squeeze(c, axes) a = Add(s, t) y = Relu(a)",
        {"W": (6, 4, 3, 1), "axes": np.array([-1]), "t": T.reshape(1, 6, 1)},
        "Conv Relu Squeeze",
    ),
    "a factor behind a Transpose": (
        IMAGE,
        "c = Conv(x, W, B) t = Transpose <perm = [2, 0, 1, 3]> (c) y = Mul(t, s)",
        {**CONV, "s": S.reshape(6, 1)},
        "Conv Transpose",
    ),
    "a factor behind a Transpose of everything": (
        STEPS,
        "c = MatMul(x, W) t = Transpose(c) y = Mul(t, s)",
        {"W": (4, 6), "s": S.reshape(6, 1, 1)},
        "MatMul Transpose",
    ),
    "a factor behind an Unsqueeze": (
        STEPS,
        "c = MatMul(x, W) u = Unsqueeze(c, axes) m = Mul(u, s) y = ReduceSum <keepdims = 0> (m, axes)",
        {"W": (4, 6), "axes": np.array([1]), "s": S},
        "MatMul Unsqueeze ReduceSum",
    ),
    "a Clip behind a change of shape": (
        STEPS,
        f"c = MatMul(x, W) {SPLIT_HEADS} q = Clip(t, lo, hi) y = ReduceSum <keepdims = 0> (q, axes)",
        {"W": (4, 6), "shape": np.array([0, 0, 2, 3]), "lo": ZERO, "hi": SIX, "axes": np.array([3])},
        "MatMul Clip Reshape Transpose ReduceSum",
    ),
}
# name -> (head, body, constants); nothing may change
KEPT = {
    "a factor behind a convolution beside what takes none": (
        IMAGE,
        "c = Conv(x, W) d = Sigmoid(c) e = Conv(x, V) j = Concat <axis = 1> (d, e) y = Mul(j, S)",
        {**C6, "W": (4, 4, 3, 3), "V": (2, 4, 3, 3)},
    ),
    "a factor behind one convolution twice": (
        IMAGE,
        "c = Conv(x, W) j = Concat <axis = 1> (c, c) y = Mul(j, S)",
        {**C6, "W": (3, 4, 3, 3)},
    ),
    "a factor below zero does not pass a Relu": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) y = Mul(r, S)",
        {**CONV, "S": -S.reshape(6, 1, 1)},
    ),
    "a factor per channel does not pass a change of shape": (
        STEPS,
        f"c = MatMul(x, W) {SPLIT_HEADS} q = Mul(t, s) y = ReduceSum <keepdims = 0> (q, axes)",
        {"W": (4, 6), "shape": np.array([0, 0, 2, 3]), "s": S[:3], "axes": np.array([3])},
    ),
    "a factor of the elements that a Squeeze leaves apart from the channels": (
        "g (float[N,4,6,1] x) => (float[A,C,D] y)",
        "c = Conv(x, W) s = Squeeze(c, axes) y = Mul(s, t)",
        {"W": (5, 4, 1, 1), "axes": np.array([3]), "t": S},
    ),
    "a Relu behind a Reshape that something else reads": (
        STEPS,
        f"c = MatMul(x, W) {SPLIT_HEADS} q = Relu(t) a = Add(t, q) y = ReduceSum <keepdims = 0> (a, axes)",
        {"W": (4, 6), "shape": np.array([0, 0, 2, 3]), "axes": np.array([3])},
    ),
    "a Relu behind a Transpose of no layer": (
        STEPS,
        "c = Exp(x) t = Transpose <perm = [0, 2, 1]> (c) r = Sub(t, t) y = Relu(r)",
        {},
    ),
    "a mean over channels": (IMAGE, "c = Conv(x, W, B) y = ReduceMean <axes = [1]> (c)", CONV),
    "a mean over rows": (STEPS, "y = ReduceMean <axes = [2]> (x)", {}),
    "a shift does not pass a Relu": (IMAGE, "c = Conv(x, W, B) r = Relu(c) y = Add(r, T)", CONV | C6),
    "factors per channel do not pass a Clip": (
        IMAGE,
        "c = Conv(x, W, B) r = Clip(c, lo, hi) y = Mul(r, S)",
        {**CONV, **C6, "lo": ZERO, "hi": SIX},
    ),
    "factors per channel do not pass a change of shape": (
        IMAGE,
        "c = Conv(x, W, B) r = Flatten(c) y = Mul(r, L)",
        {**CONV, "L": np.linspace(1, 2, 216)},
    ),
    "a shift does not pass padding": (
        IMAGE,
        f"c = Conv(x, W, B) {PADDED_MEAN} y = Add(p, T)",
        CONV | C6,
    ),
    "a convolution with two readers": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[A,C,D,E] z)",
        "c = Conv(x, W, B) y = Mul(c, S) z = Sigmoid(c)",
        CONV | C6,
    ),
    "a convolution that the model gives out": (
        "g (float[N,4,8,8] x) => (float[N,6,6,6] c, float[A,C,D,E] y)",
        "c = Conv(x, W, B) y = Mul(c, S)",
        CONV | C6,
    ),
    "a constant that widens": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "c = Conv(x, W) y = Mul(c, S)",
        {**C6, "W": (1, 4, 3, 3)},
    ),
    "a constant along width": (IMAGE, "c = Conv(x, W, B) y = Mul(c, L)", {**CONV, "L": np.linspace(1, 2, 6)}),
    "a constant along height and channels": (
        IMAGE,
        "c = Conv(x, W, B) y = Mul(c, L)",
        {**CONV, "L": np.linspace(1, 2, 36).reshape(6, 6, 1)},
    ),
    "division by the data": (IMAGE, "c = Conv(x, W, B) y = Div(S, c)", CONV | C6),
    "division by zero": (IMAGE, "c = Conv(x, W, B) y = Div(c, S)", {**CONV, "S": np.zeros((6, 1, 1))}),
    "a factor that is no number": (IMAGE, "c = Conv(x, W, B) y = Mul(c, S)", {**CONV, "S": np.float32("nan")}),
    "a factor that float32 does not hold in the weights": (
        IMAGE,
        "c = Conv(x, W, B) y = Mul(c, S)",
        {"W": np.full((6, 4, 3, 3), 1e30), "B": (6,), "S": np.float32(1e30)},
    ),
    "rounding by a large constant": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) a = Add(r, big) y = Sub(a, big)",
        {**CONV, "big": np.float32(1.5 * 2**23)},
    ),
    "rounding by a constant behind a convolution": (
        IMAGE,
        "c = Conv(x, W, B) a = Add(c, big) y = Sub(a, big)",
        {**CONV, "big": np.float32(1.5 * 2**14)},
    ),
    "rounding by a large constant behind a Gemm": (
        ROWS,
        "c = Gemm(x, W) a = Add(c, big) y = Sub(a, big)",
        {"W": (4, 6), "big": np.float32(1.5 * 2**23)},
    ),
    "a Clip between what Round may leave": (
        IMAGE,
        "k = Clip(x, lo, hi) r = Round(k) y = Clip(r, lo, top)",
        {"lo": ZERO, "hi": np.float32(0.6), "top": np.float32(0.8)},
    ),
    "Max with infinity": (IMAGE, "c = Conv(x, W, B) y = Max(c, hi)", {**CONV, "hi": np.float32("inf")}),
    "Min with minus infinity behind a Relu": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) y = Min(r, lo)",
        {**CONV, "lo": np.float32("-inf")},
    ),
    "a product that float32 does not hold": (
        IMAGE,
        "a = Mul(x, f) b = Mul(a, f) y = Relu(b)",
        {"f": np.float32(1e-25)},
    ),
    "variable weights": (
        "g (float[N,4,8,8] x, float[6,4,3,3] w) => (float[A,C,D,E] y)",
        "c = Conv(x, w) y = Mul(c, S)",
        C6,
    ),
    "a product of two sides that others read": (
        STEPS,
        "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) y = Mul(s, f)",
        {"f": np.float32(0.5)},
    ),
    "a tensor added to itself": (IMAGE, "c = Conv(x, W, B) s = Add(c, c) y = Mul(s, S)", CONV | C6),
    "a Clip with a bound that varies": (
        "g (float[N,4,8,8] x, float hi) => (float[A,C,D,E] y)",
        "c = Conv(x, W, B) r = Clip(c, , hi) y = Mul(r, f)",
        {**CONV, "f": np.float32(2)},
    ),
    "Clips that do not overlap": (
        IMAGE,
        "c = Conv(x, W, B) r = Clip(c, lo, hi) y = Clip(r, two, six)",
        {**CONV, "lo": np.float32(-1), "hi": ZERO, "two": TWO, "six": SIX},
    ),
    "a Relu that the model gives out before a Clip": (
        "g (float[N,4,8,8] x) => (float[N,6,6,6] r, float[A,C,D,E] y)",
        "c = Conv(x, W, B) r = Relu(c) y = Clip(r, lo, hi)",
        {**CONV, "lo": np.float32(-1), "hi": SIX},
    ),
    "Max that widens": (
        "g (float[N,4,1,1] x) => (float[A,C,D,E] y)",
        "y = Max(x, L)",
        {"L": np.zeros((1, 1, 3, 3))},
    ),
    "another domain": (
        IMAGE,
        "c = Conv(x, W, B) y = my.Mul(c, S)",
        CONV | C6,
    ),
}


def inferred(bench, head, body, constants, domains=""):
    model = normalize(bench.text(f"{head} {{ {body} }}", domains=domains, **constants), "net")
    return shape_inference.infer_shapes(model, data_prop=True)


def folded(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = fold(copy)
    return copy, changed


def require_same_outputs(bench, before, after):
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    onnx.checker.check_model(after, full_check=True)
    for sample in bench.samples(before, 3):
        expected, actual = bench.run(before, sample.feed), bench.run(after, sample.feed)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FOLDED)
def test_what_folds(bench, name):
    head, body, constants, left = FOLDED[name]
    before = inferred(bench, head, body, constants)
    after, changed = folded(before)
    assert changed
    assert [node.op_type for node in after.graph.node] == left.split()
    require_same_outputs(bench, before, after)


@pytest.mark.parametrize("name", KEPT)
def test_what_must_stay(bench, name):
    head, body, constants = KEPT[name]
    before = inferred(bench, head, body, constants, ', "my" : 1' if "my." in body else "")
    after, changed = folded(before)
    assert not changed
    assert after == before


def test_the_oracle_sees_a_wrong_fold(bench):
    head, body, constants, _ = FOLDED["a factor behind a convolution"]
    before = inferred(bench, head, body, constants)
    after, _ = folded(before)
    wrong = Index(after).constant("W").copy()
    wrong[0] *= 1.01
    next(each for each in after.graph.initializer if each.name == "W").CopyFrom(numpy_helper.from_array(wrong, "W"))
    with pytest.raises(AssertionError):
        require_same_outputs(bench, before, after)


def test_a_changed_tensor_has_another_name_and_the_others_keep_theirs(bench):
    head, body, constants, _ = FOLDED["through Relu and pooling"]
    after, _ = folded(inferred(bench, head, body, {name: constants[name] for name in "WBS"}))
    assert [node.output[0] for node in after.graph.node] == ["c_folded", "r_folded", "y"]
    assert Index(after).dims("r_folded") == (None, 6, 6, 6)
    assert {tensor.name for tensor in after.graph.initializer} == {"W", "B"}


def test_a_name_that_is_taken_is_not_taken_again(bench):
    body = "c = Conv(x, W, B) r = Relu(c) m = Mul(r, S) y = Add(m, c_folded)"
    after, _ = folded(inferred(bench, IMAGE, body, CONV | C6 | {"c_folded": (1, 6, 6, 6)}))
    assert after.graph.node[0].output[0] == "c_folded2"


def test_a_tensor_that_is_called_like_a_folded_one_keeps_its_name_for_its_values(bench):
    body = "c_folded = Conv(x, W, B) x_min = Relu(c_folded) m = Mul(x_min, S) y = Max(m, lo)"
    before = inferred(bench, IMAGE, body, CONV | C6 | {"lo": np.float32(0.5)})
    after, _ = folded(before)
    assert [node.output[0] for node in after.graph.node] == ["c_folded_folded", "y"]
    require_same_outputs(bench, before, after)


def test_weights_that_another_layer_reads_keep_their_values(bench):
    head, body, constants, _ = FOLDED["weights of two layers"]
    before = inferred(bench, head, body, constants)
    after, _ = folded(before)
    np.testing.assert_array_equal(Index(after).constant("W"), Index(before).constant("W"))


def test_what_a_subgraph_reads_stays(bench):
    body = (
        "c = Conv(x, W, B) m = Mul(c, S) f = Mul(x, one) k = ReduceMax <keepdims = 0> (m) d = Greater(k, nil) "
        "y = If (d) <then_branch = t () => (float[A,C,D,E] u) { u = Relu(m) }, "
        "else_branch = e () => (float[A,C,D,E] w) { w = Conv(f, W, B) }>"
    )
    constants = CONV | C6 | {"one": np.float32(1), "nil": ZERO}
    before = inferred(bench, IMAGE, body, constants)
    after, _ = folded(before)
    assert [node.op_type for node in after.graph.node] == ["Conv", "Mul", "ReduceMax", "Greater", "If"]
    require_same_outputs(bench, before, after)


@pytest.mark.parametrize("name", ["c_folded", "Conv_c_bias", "y_constant"])
def test_names_inside_subgraphs_are_taken(bench, name):
    body = (
        "c = Conv(x, W) d = Add(c, T) r = Relu(d) y = Mul(r, S) k = ReduceMax <keepdims = 0> (y) e = Greater(k, nil) "
        f"z = If (e) <then_branch = t () => (float[A,C,D,E] u) {{ {name} = Relu(x) u = Neg({name}) }}, "
        f"else_branch = f () => (float[A,C,D,E] w) {{ {name} = Abs(x) w = Neg({name}) }}>"
    )
    head = "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[F,G,H,I] z)"
    before = inferred(bench, head, body, {**C6, "W": (6, 4, 3, 3), "nil": ZERO})
    after, changed = folded(before)
    assert changed
    require_same_outputs(bench, before, after)


def test_a_chain_of_any_length_is_no_trouble(bench):
    body = " ".join(f"r{n + 1} = LeakyRelu(r{n})" for n in range(700))
    before = inferred(bench, IMAGE, f"r0 = Conv(x, W, B) {body} y = Mul(r700, S)", CONV | C6)
    after, changed = folded(before)
    assert not changed
    assert len(after.graph.node) == 702


def test_folding_again_changes_nothing(bench):
    for head, body, constants, _ in FOLDED.values():
        once, _ = folded(inferred(bench, head, body, constants))
        assert not fold(once)


@pytest.mark.parametrize(("layers", "copied"), [(2, True), (8, False)])
def test_a_weight_that_many_layers_share_is_not_copied_for_the_factor_of_each(bench, layers, copied):
    layer = "m{0} = MatMul(r{0}, W) s{0} = Mul(m{0}, S{0}) r{1} = Relu(s{0}) "
    body = "".join(layer.format(at, at + 1) for at in range(layers))
    factors = {f"S{at}": np.linspace(0.5, 2 + at, 64) for at in range(layers)}
    text = f"g (float[N,64] x) => (float[N,64] y) {{ r0 = Identity(x) {body} y = Identity(r{layers}) }}"
    model = normalize(shape_inference.infer_shapes(bench.text(text, W=(64, 64), **factors)), "net")
    fold(model)
    assert sum(node.op_type == "Mul" for node in model.graph.node) == (0 if copied else layers)
    weights = [tensor.name for tensor in model.graph.initializer if tuple(tensor.dims) == (64, 64)]
    assert set(weights) >= {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input[1:]}
    assert copied or weights == ["W"]
