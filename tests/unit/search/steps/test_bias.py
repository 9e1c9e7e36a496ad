import itertools

import numpy as np
import pytest

from int8cal.graph.index import Index
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.numerics.weights import QuantizedLayer
from int8cal.quantization.corrections.correction import Draft
from int8cal.search.steps import bias
from int8cal.search.steps.bias import bias_deltas, tap_coverage

CASES = [
    case
    for case in itertools.product(
        [(7, 9), (8, 5)],  # spatial size
        [(3, 3), (1, 1), (2, 4)],  # kernel
        [(1, 1), (2, 3)],  # strides
        [(1, 1), (2, 1)],  # dilations
        [
            "pads = [0, 0, 0, 0]",
            "pads = [1, 0, 2, 1]",
            'auto_pad = "SAME_UPPER"',
            'auto_pad = "SAME_LOWER"',
            'auto_pad = "VALID"',
        ],
    )
    if not ("SAME" in case[4] and case[3] != (1, 1))  # onnxruntime refuses dilations there
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_coverage_is_what_the_runtime_reads(bench, case):
    """A kernel of one tap on an image of ones counts the positions at which that tap reads the image."""
    size, kernel, strides, dilations, padding = case
    attributes = f"strides = {list(strides)}, dilations = {list(dilations)}, {padding}"
    taps = kernel[0] * kernel[1]
    single = np.eye(taps).reshape(taps, 1, *kernel)
    model = bench.text(
        f"g (float[N,1,{size[0]},{size[1]}] x) => (float[A,B,C,D] y) {{ y = Conv <{attributes}> (x, W) }}", W=single
    )
    prepared = bench.prepared(model).model
    (layer,) = make_plan(prepared, Selection(pixels=True)).layers
    counted = bench.run(prepared, {"x": np.ones((1, 1, *size), np.float32)})["y"][0].mean(axis=(1, 2))
    np.testing.assert_allclose(tap_coverage(Index(prepared), layer), counted.reshape(kernel), rtol=1e-6)


def test_the_coverage_of_an_unknown_size_is_one(bench):
    prepared = bench.prepared(
        bench.text(
            "g (float[N,1,H,K] x) => (float[A,B,C,D] y) { y = Conv <pads = [1, 1, 1, 1]> (x, W) }", W=(2, 1, 3, 3)
        )
    ).model
    (layer,) = make_plan(prepared, Selection(pixels=True)).layers
    assert np.all(tap_coverage(Index(prepared), layer) == 1)


@pytest.mark.parametrize(
    ("head", "node", "weights"),
    [
        (
            "float[N,4,8,8] x) => (float[A,B,C,D] y",
            "y = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, W, B)",
            {"W": (6, 4, 3, 3), "B": (6,)},
        ),
        (
            "float[N,4,8,8] x) => (float[A,B,C,D] y",
            'y = Conv <group = 2, auto_pad = "SAME_UPPER", strides = [3, 2]> (x, W, B)',
            {"W": (6, 2, 3, 3), "B": (6,)},
        ),
        ("float[N,4,8,8] x) => (float[A,B,C,D] y", "y = Conv <group = 4> (x, W, B)", {"W": (8, 1, 3, 3), "B": (8,)}),
        ("float[N,4] x) => (float[A,B] y", "y = Gemm(x, W, B)", {"W": (4, 6), "B": (6,)}),
        ("float[N,4] x) => (float[A,B] y", "y = Gemm <transB = 1> (x, W, B)", {"W": (6, 4), "B": (1,)}),
    ],
)
def test_the_delta_is_the_mean_shift_of_a_layer_whose_input_is_flat(bench, monkeypatch, head, node, weights):
    """Each channel of a sample is constant, so that its mean says all there is to say about its positions."""
    rng = np.random.default_rng(9)
    weights = {name: rng.normal(size=shape) for name, shape in weights.items()}
    model = bench.text(f"g ({head}) {{ {node} }}", **weights)
    samples = bench.samples(model, 8)
    for sample in samples:
        x = sample.feed["x"]
        sample.feed["x"] = np.broadcast_to(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True) + 1, x.shape).copy()
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, Selection())
    statistics = bench.statistics(prepared, plan, samples)
    (layer,) = plan.layers
    floats = Index(prepared.model).constant(layer.weight).astype(np.float64)
    shape = [1] * floats.ndim
    shape[layer.axis] = -1
    scales = np.linspace(0.1, 0.3, floats.shape[layer.axis])  # coarse, so that the shift is far above float noise
    codes = np.rint(floats / scales.reshape(shape)).astype(np.int8)
    draft = Draft(Index(prepared.model), plan, plan, bench.table(prepared, plan), {})
    deltas = bias_deltas(draft, statistics.tensors, {layer.node: QuantizedLayer(codes, scales, None, 0)})
    rounded = bench.text(f"g ({head}) {{ {node} }}", **{**weights, "W": codes * scales.reshape(shape)})
    shifts = [bench.run(rounded, s.feed)["y"] - bench.run(model, s.feed)["y"] for s in samples]
    axes = tuple(axis for axis in range(shifts[0].ndim) if axis != 1)
    np.testing.assert_allclose(deltas[layer.node], -np.mean(np.stack(shifts), axis=0).mean(axis=axes), atol=2e-6)
    monkeypatch.setattr(bias, "_AT_ONCE", 1)
    monkeypatch.setattr(bias, "_FEWEST", 4)  # of 6 channels: a last part is shorter
    parts = bias_deltas(draft, statistics.tensors, {layer.node: QuantizedLayer(codes, scales, None, 0)})
    np.testing.assert_array_equal(parts[layer.node], deltas[layer.node])


def test_layers_without_a_bias_are_left_alone(bench):
    model = bench.text("g (float[N,4] x) => (float[A,B] y) { y = MatMul(x, W) }", W=(4, 6))
    prepared, plan, _, built = bench.quantized(model)
    assert bias_deltas(built.draft, bench.statistics(prepared, plan).tensors, built.layers) == {}


@pytest.mark.parametrize("length", [6, 4])  # 4: as many as the channels of the convolution
@pytest.mark.parametrize("nodes", ["y = Conv(x, W, B) z = MatMul(x, V)", "z = MatMul(x, V) y = Conv(x, W, B)"])
def test_a_layer_whose_input_has_its_channels_elsewhere_for_another_layer_is_left_alone(bench, length, nodes):
    """A product along the axis of time, as operators in the frequency domain have it, beside a convolution over it."""
    model = bench.text(
        f"g (float[N,4,{length}] x) => (float[N,A,B] y, float[N,4,C] z) {{ {nodes} }}",
        W=(5, 4, 1),
        B=(5,),
        V=(length, 3),
    )
    prepared, plan, _, built = bench.quantized(model)
    assert len(plan.layers) == 2
    assert bias_deltas(built.draft, bench.statistics(prepared, plan).tensors, built.layers) == {}
