"""The emitted model in onnxruntime, on its integer kernels, against the affine formulas written out in numpy.

Weights are s7, so that no CPU's u8 x s8 instruction can saturate and the same numbers come out everywhere.
"""

import itertools

import numpy as np
import pytest
from affine_codes import quantize

from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.graph.taps import tapped_model
from int8cal.quantization.build import build_model


def dense_conv(x, w, group, *, strides, dilations, pads):
    """Integer convolution, any rank: x (N, C, ...), w (O, C / group, ...), int64."""
    rank = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(pads[a], pads[a + rank]) for a in range(rank)]])
    size = [(x.shape[2 + a] - (w.shape[2 + a] - 1) * dilations[a] - 1) // strides[a] + 1 for a in range(rank)]
    result = np.zeros((x.shape[0], w.shape[0], *size), np.int64)
    inputs, outputs = w.shape[1], w.shape[0] // group
    for g in range(group):
        rows = slice(g * outputs, (g + 1) * outputs)
        for taps in itertools.product(*map(range, w.shape[2:])):
            window = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(taps, dilations, size, strides, strict=True)
            )
            part = x[(slice(None), slice(g * inputs, (g + 1) * inputs), *window)]
            result[:, rows] += np.einsum("nc...,oc->no...", part, w[(rows, slice(None), *taps)])
    return result


def dense_transposed(x, w, group, strides):
    """x (N, C, H, W) and w (C, O / group, kh, kw) -> (N, O, ...)."""
    n, channels, height, width = x.shape
    outputs = w.shape[1]
    result = np.zeros(
        (n, outputs * group, (height - 1) * strides[0] + w.shape[2], (width - 1) * strides[1] + w.shape[3])
    )
    for g in range(group):
        rows = slice(g * channels // group, (g + 1) * channels // group)
        for a, b in itertools.product(range(w.shape[2]), range(w.shape[3])):
            target = result[:, g * outputs : (g + 1) * outputs, a : a + (height - 1) * strides[0] + 1 : strides[0]]
            target[:, :, :, b : b + (width - 1) * strides[1] + 1 : strides[1]] += np.einsum(
                "nchw,co->nohw", x[:, rows], w[rows, :, a, b]
            )
    return result


def setup(bench, head, body, *, target="portable", activations="u8", **weights):
    model = bench.text(f"{head} {{ {body} }}", **weights)
    _, plan, table, built = bench.quantized(model, weights="s7", target=target, activations=activations)
    (layer,) = plan.layers
    feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 2, seed=11)])}
    source = table.tensors["x"].affine
    codes = quantize(feed["x"], source).astype(np.int64) - source.zero_point
    actual = bench.run(built.model, feed, "all")["y"]
    return table, built.layers[layer.node], source, codes, actual


def channels_last(values, rank):
    """Per-channel values (C,) against (N, C, spatial...)."""
    return np.asarray(values).reshape(1, -1, *[1] * rank)


CONVOLUTIONS = {
    # name -> (weight, group, strides, dilations, pads, input dims)
    "plain": ((8, 4, 3, 3), 1, [1, 1], [1, 1], [0, 0, 0, 0], "4,8,8"),
    "strided and padded on one side": ((8, 4, 3, 3), 1, [2, 1], [1, 1], [1, 0, 0, 2], "4,8,8"),
    "dilated": ((8, 4, 3, 2), 1, [1, 1], [2, 3], [2, 2, 2, 2], "4,9,9"),
    "pointwise": ((8, 4, 1, 1), 1, [1, 1], [1, 1], [0, 0, 0, 0], "4,5,5"),
    "grouped": ((6, 2, 3, 3), 2, [1, 1], [1, 1], [1, 1, 1, 1], "4,8,8"),
    "depthwise": ((4, 1, 3, 3), 4, [1, 1], [1, 1], [1, 1, 1, 1], "4,8,8"),
    "depthwise with a multiplier": ((8, 1, 3, 3), 4, [2, 2], [1, 1], [1, 1, 1, 1], "4,8,8"),
    "one output channel": ((1, 4, 3, 3), 1, [1, 1], [1, 1], [0, 0, 0, 0], "4,8,8"),
    "1-D": ((8, 4, 3), 1, [2], [1], [1, 1], "4,12"),
    "3-D": ((8, 20, 2, 2, 2), 1, [1, 1, 1], [1, 1, 1], [0] * 6, "20,3,3,3"),  # of fewer channels it would stay float
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_convolution_is_within_one_step_of_the_formulas(bench, name, biased, relu):
    shape, group, strides, dilations, pads, dims = CONVOLUTIONS[name]
    rank = len(shape) - 2
    attributes = f"<group = {group}, strides = {strides}, dilations = {dilations}, pads = {pads}>"
    output = "float[" + ",".join("ABCDE"[: rank + 2]) + "] y"
    body = f"c = Conv {attributes} (x, W{', B' if biased else ''})" + (" y = Relu(c)" if relu else "")
    body = body if relu else body.replace("c = Conv", "y = Conv")
    weights = {"W": shape} | ({"B": shape[:1]} if biased else {})
    table, layer, source, codes, actual = setup(bench, f"g (float[N,{dims}] x) => ({output})", body, **weights)
    acc = dense_conv(codes, layer.weight.astype(np.int64), group, strides=strides, dilations=dilations, pads=pads)
    if biased:
        acc = acc + channels_last(layer.bias.astype(np.int64), rank)
    real = acc * (source.scale * channels_last(layer.scales, rank))
    target = table.tensors["y"].affine
    expected = quantize(np.maximum(real, 0) if relu else real, target).astype(int)
    got = np.rint(actual / target.scale).astype(int) + target.zero_point
    assert np.abs(got - expected).max() <= 1
    assert (got == expected).mean() > 0.99  # one step only where float32 requantization meets a tie


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_a_transposed_convolution_computes_on_the_codes_in_float(bench, group, biased):
    weights = {"W": (4, 3, 3, 2)} | ({"B": (3 * group,)} if biased else {})
    _, layer, source, codes, actual = setup(
        bench,
        "g (float[N,4,5,6] x) => (float[A,B,C,D] y)",
        f"y = ConvTranspose <group = {group}, strides = [2, 1]> (x, W{', B' if biased else ''})",
        target="tensorrt",
        activations="s8",
        **weights,
    )
    expected = dense_transposed(codes * source.scale, layer.weight * layer.scales.reshape(1, -1, 1, 1), group, [2, 1])
    if biased:
        expected += channels_last(layer.bias * source.scale * np.tile(layer.scales, group), 2)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (1,), ()])
def test_a_gemm_is_the_integer_sum_times_the_scales(bench, transposed, bias):
    weights = {"W": (6, 4) if transposed else (4, 6)} | ({} if bias is None else {"B": bias})
    _, layer, source, codes, actual = setup(
        bench,
        "g (float[N,4] x) => (float[A,B] y)",
        f"y = Gemm <transB = {transposed}> (x, W{'' if bias is None else ', B'})",
        **weights,
    )
    w = layer.weight.astype(np.int64)
    acc = codes @ (w.T if transposed else w)
    if bias is not None:
        assert layer.bias.shape == (6,)
        acc = acc + layer.bias.astype(np.int64)
    np.testing.assert_allclose(actual, acc * (source.scale * layer.scales), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("dims", "weight"), [("4", (4, 6)), ("5,4", (4, 6)), ("2,5,4", (4, 6)), ("2,5,4", (2, 4, 6))])
def test_a_matmul_is_the_integer_product_times_the_scales(bench, dims, weight):
    output = ",".join("ABCD"[: dims.count(",") + 2])
    _, layer, source, codes, actual = setup(
        bench, f"g (float[N,{dims}] x) => (float[{output}] y)", "y = MatMul(x, W)", W=weight
    )
    assert len(layer.scales) == (6 if len(weight) == 2 else 1)
    acc = np.matmul(codes, layer.weight.astype(np.int64))
    np.testing.assert_allclose(actual, acc * (source.scale * layer.scales), rtol=2e-6, atol=1e-7)


HARD_SWISH = "c = Conv(x, W) g = HardSigmoid <alpha = {}, beta = {}> (c) m = Mul(c, g) y = Conv(m, V)"


def hard_swish(bench, alpha, beta, spread=0.5):
    return bench.text(
        f"g (float[N,4,8,8] x) => (float[A,B,C,D] y) {{ {HARD_SWISH.format(alpha, beta)} }}",
        W=np.random.default_rng(2).normal(0, spread, (8, 4, 3, 3)).astype(np.float32),
        V=(3, 8, 1, 1),
        opset=21,
    )


@pytest.mark.parametrize(("alpha", "beta"), [(1 / 6, 0.5), (0.2, 0.5), (0.4, 0.1), (0.05, 0.9), (8.0, 1e-5)])
def test_a_hard_sigmoid_of_codes_gives_the_codes_of_its_values(bench, alpha, beta):
    model = hard_swish(bench, alpha, beta)
    _, plan, table, built = bench.quantized(model)
    assert "HardSigmoid_g" in plan.integer_nodes
    assert "HardSigmoid" not in {node.op_type for node in built.model.graph.node}
    before, after = table.tensors["c"].affine, table.tensors["g"].affine
    feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 4, seed=11)])}
    found = bench.run(tapped_model(built.model, ("c_quantized", "g_quantized")), feed, "all")
    values = (found["c_quantized"].astype(np.float64) - before.zero_point) * before.scale
    exact = np.clip(alpha * values + beta, 0.0, 1.0) / after.scale + after.zero_point
    errors = np.abs(found["g_quantized"] - np.clip(exact, after.dtype.qmin, after.dtype.qmax))
    assert errors.max() <= 0.5 + 1 / 32 + 1e-3
    assert len(np.unique(found["g_quantized"])) > (16 if alpha < 1 else 2)


@pytest.mark.parametrize(
    ("alpha", "beta", "spread", "activations", "planned"),
    [
        (-0.2, 0.5, 0.5, "u8", False),
        (0.2, -0.3, 0.5, "u8", False),
        (1e7, 0.5, 0.5, "u8", False),
        (0.2, 1e30, 0.5, "u8", False),
        (1e-30, 0.5, 0.5, "u8", False),
        (1000.0, 0.5, 1e6, "u8", True),
        (0.2, 0.5, 0.5, "s8", False),
        (0.2, 0.5, 0.5, "u16", False),
    ],
    ids=["falls", "begins above 0", "steep", "far off", "flat", "steep for its input", "signed codes", "16 bits"],
)
def test_a_hard_sigmoid_that_has_no_integer_add_stays_one(bench, alpha, beta, spread, activations, planned):
    model = hard_swish(bench, alpha, beta, spread)
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection(of_u8=activations == "u8"))
    assert ("HardSigmoid_g" in plan.integer_nodes) == planned
    built = build_model(prepared.model, plan, bench.table(prepared, plan, activations=activations))
    assert "HardSigmoid" in {node.op_type for node in built.model.graph.node}
    feed = {"x": np.concatenate([sample.feed["x"] for sample in bench.samples(model, 4, seed=11)])}
    plain, fast = (bench.run(built.model, feed, each)["y"] for each in ("none", "all"))
    np.testing.assert_allclose(fast, plain, atol=0.02 * np.abs(plain).max())
