"""Which weights onnxruntime's AVX2 kernels multiply in one instruction, found by making them saturate."""

from dataclasses import replace

import numpy as np
import pytest
from harness import Case
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from pair_probe import Layer, expected_pairs, probe, saturated_pairs

from int8cal.runtime.targets import links_of

pytestmark = pytest.mark.emulated

CONVOLUTIONS = [
    *(Layer("Conv", channels, (3, 3)) for channels in (1, 2, 3, 4)),
    Layer("Conv", 5, (2, 3)),
    Layer("Conv", 8, (2, 2)),
    Layer("Conv", 16, (2, 1)),
    *(Layer("Conv", channels, (1, 1)) for channels in (3, 7, 16)),
    *(Layer("Conv", channels, (5,)) for channels in (1, 3, 4)),
    *(Layer("Conv", channels, (2, 2, 2)) for channels in (1, 3, 4)),
    *(Layer("Conv", channels, (2, 2), groups=groups) for channels in (1, 2, 3, 4) for groups in (2, 3)),
    *(Layer("Conv", 1, (3, 3), outputs=outputs) for outputs in (2, 4)),
    Layer("Conv", 1, (5,), outputs=2),
    Layer("Conv", 3, (3, 3), extra=0),
    Layer("Conv", 3, (3, 3), extra=9),
    Layer("Conv", 3, (3, 3), stride=2),
    Layer("Conv", 3, (3, 3), dilation=2),
    Layer("Conv", 3, (3, 3), pad=1, extra=4),
    Layer("Conv", 3, (3, 3), per_channel=False),
    Layer("Conv", 65, (3, 3), extra=0, reach=3),
    *(Layer("Conv", channels, (3, 3), sign=-1) for channels in (3, 4)),
    # the session turns a QDQ model's s8 activations into u8: no escape
    *(Layer("Conv", channels, (3, 3), x="int8") for channels in (3, 4)),
    Layer("Conv", 3, (3, 3), x="int8", sign=-1),
]
QLINEAR = [Layer("QLinearConv", channels, (3, 3)) for channels in (3, 4)]

PRODUCTS = [
    *(Layer("MatMulInteger", k, rows=rows, constant=c) for k in (7, 16) for rows in (1, 5) for c in (True, False)),
    *(Layer("QLinearMatMul", k, rows=rows) for k in (7, 16) for rows in (1, 5)),
    *(Layer("MatMul", 7, rows=rows, quantized=q) for rows in (1, 2, 5, 64) for q in (True, False)),
    *(
        Layer("Gemm", 7, rows=rows, transposed=t, quantized=q)
        for rows in (1, 5)
        for t in (True, False)
        for q in (True, False)
    ),
    *(
        Layer(op, 7, rows=rows, columns=n)
        for op in ("MatMul", "Gemm", "MatMulInteger")
        for rows in (1, 5)
        for n in (1, 3)
    ),
    *(Layer(op, 7, x="int8") for op in ("MatMul", "Gemm")),
    *(Layer(op, 7, sign=-1) for op in ("MatMul", "Gemm")),
    Layer("MatMulInteger", 2),
    Layer("MatMulInteger", 1031, reach=3),
]

EXACT = [
    *(Layer("Conv", 1, kernel, outputs=1) for kernel in ((3, 3), (5, 5), (3,), (2, 2, 2))),  # depthwise
    Layer("Conv", 1, (3, 3), outputs=1, stride=2),
    Layer("Conv", 1, (3, 3), outputs=1, dilation=2),
    Layer("Conv", 1, (3, 3), outputs=1, sign=-1),
    Layer("Conv", 1, (3, 3), outputs=1, x="int8"),
    # u8 weights have kernels that widen to s16 first
    Layer("Conv", 3, (3, 3), w="uint8", per_channel=False),
    Layer("QLinearMatMul", 7, w="uint8", per_channel=False),
    Layer("MatMulInteger", 7, w="uint8", per_channel=False),
    # and so has s8 by s8, where a model asks for it by name
    Layer("QLinearConv", 4, (3, 3), x="int8"),
    Layer("QLinearMatMul", 7, x="int8", per_channel=False),
    Layer("MatMulInteger", 7, x="int8", per_channel=False, rows=5),
    # ConvInteger multiplies weights by columns: its weights are the unsaturated side
    Layer("ConvInteger", 3, (3, 3)),
    Layer("ConvInteger", 3, (3, 3), w="uint8"),
]
FLOAT = [Layer("ConvTranspose", channels, (2, 2)) for channels in (3, 4)]

NCHW = [replace(layer, level="extended") for layer in CONVOLUTIONS if not layer.kernel[1:] or layer.channels < 5]
LAYERS = [*CONVOLUTIONS, *NCHW, *QLINEAR, *PRODUCTS, *EXACT, *FLOAT]
INTEGER = {"QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "MatMulInteger", "QGemm", "ConvInteger"}


@pytest.fixture(scope="module")
def emulated(haswell):
    return dict(zip(LAYERS, haswell.run(map(probe, LAYERS)), strict=True))


@pytest.mark.parametrize("layer", [*CONVOLUTIONS, *NCHW, *QLINEAR, *PRODUCTS], ids=str)
def test_neighbours_of_the_flattened_row_meet(emulated, layer):
    result = emulated[layer]
    assert INTEGER & set(result.kernels)
    assert saturated_pairs(layer, result.first) == expected_pairs(layer, "flat")


@pytest.mark.parametrize("layer", EXACT, ids=str)
def test_these_integer_kernels_never_saturate(emulated, layer):
    result = emulated[layer]
    assert INTEGER & set(result.kernels)
    assert not saturated_pairs(layer, result.first)


@pytest.mark.parametrize("layer", FLOAT, ids=str)
def test_transposed_convolutions_stay_in_float(emulated, layer):
    result = emulated[layer]
    assert "ConvTranspose" in result.kernels
    assert not saturated_pairs(layer, result.first)


@pytest.mark.parametrize("target", ["portable", "x86-avx2"])
def test_targets_know_every_pair(emulated, target):
    for layer in LAYERS:
        links = links_of(target, layer.length // layer.channels, layer.channels, depthwise=layer.outputs == 1)
        for i, j in saturated_pairs(layer, emulated[layer].first):
            assert j == i + 1, f"{layer}: {i} meets {j}"
            assert links[i], f"{layer}: {i} meets {j}"


def test_nothing_saturates_with_vnni(native, vnni):
    for layer, result in zip(LAYERS, native.run(map(probe, LAYERS)), strict=True):
        assert not saturated_pairs(layer, result.first), layer


def lstm(side: str, batch: int, length: int = 8) -> Case:
    """A DynamicQuantizeLSTM with a hidden unit per pair of inputs (W), or of hidden states (R), in its cell gate.

    The other gates are wide open: h = tanh(tanh(z)), where z is 1, or half of that where the pair saturates.
    """
    pairs = [(i, j) for i in range(length) for j in range(i + 1, length)]
    hidden = len(pairs)
    weights = {"W": np.zeros((1, length, 4 * hidden), np.int8), "R": np.zeros((1, hidden, 4 * hidden), np.int8)}
    for unit, pair in enumerate(pairs):
        weights[side][0, list(pair), 3 * hidden + unit] = 127
    bias = np.zeros((1, 8 * hidden), np.float32)
    bias[0, : 3 * hidden] = 20
    constants = {
        **weights,
        "B": bias,
        "c0": np.zeros((1, batch, hidden), np.float32),
        "scale": np.array([1 / 254], np.float32),
        "zero": np.zeros(1, np.int8),
    }
    inputs = ["X", "W", "R", "B", "", "h0", "c0", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["Y"], domain="com.microsoft", hidden_size=hidden)
    shapes = {"X": (1, batch, length), "h0": (1, batch, hidden)}
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info(name, T.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("Y", T.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    feeds = {
        "X": np.full((1, *shapes["X"]), float(side == "W"), np.float32),
        "h0": np.full((1, *shapes["h0"]), float(side == "R"), np.float32),
    }
    return Case(helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds)


def test_inputs_and_hidden_states_of_an_lstm_meet_as_neighbours(haswell):
    pairs = [(i, j) for i in range(8) for j in range(i + 1, 8)]
    kinds = [(side, batch) for side in "WR" for batch in (1, 5)]
    for (side, batch), result in zip(kinds, haswell.run(lstm(*kind) for kind in kinds), strict=True):
        units = result.outputs["Y"].reshape(batch, -1)
        assert (units == units[0]).all()
        exact = np.tanh(np.tanh(1.0))
        short = {pair for pair, unit in zip(pairs, units[0], strict=True) if unit < exact - 0.1}
        assert short == {(0, 1), (2, 3), (4, 5), (6, 7)}, (side, batch)
