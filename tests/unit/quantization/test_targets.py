"""Models for other runtimes: what they may hold, and that they compute what their FP32 model does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import int8cal
from int8cal.errors import TableError, UsageError
from int8cal.quantization.corrections.residual_codes import ResidualCodes
from int8cal.quantization.table import TableSettings
from int8cal.runtime.sessions import Session

RESIDUAL = """net (float[N,4,8,8] x) => (float[N,5] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, A, a_b)
    ar = Relu(a)
    b = Conv <pads = [1, 1, 1, 1]> (ar, B, b_b)
    s = Add(b, ar)
    sr = Relu(s)
    c = Conv <pads = [1, 1, 1, 1]> (sr, C)
    d = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (sr, D)
    t = Add(d, c)
    h = HardSwish(t)
    g = GlobalAveragePool(h)
    f = Flatten(g)
    m = MatMul(f, M)
    y = Add(m, bias)
}"""
WEIGHTS = {
    "A": (6, 4, 3, 3), "a_b": (6,), "B": (6, 6, 3, 3), "b_b": (6,), "C": (6, 6, 3, 3), "D": (6, 6, 3, 3), "M": (6, 5), "bias": (5,)
}  # fmt: skip
LSTM = """net (float[3,1,4] x) => (float[3,1,2] y) {
    h, last = LSTM <hidden_size = 2> (x, W, R)
    f = Reshape(h, shape)
    y = MatMul(f, M)
}"""


@pytest.fixture
def model(bench):
    return bench.text(RESIDUAL, **WEIGHTS)


def samples(model, count=16):
    rng = np.random.default_rng(0)
    shape = [dim.dim_value or 1 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def quantized(model, **settings):
    table = int8cal.calibrate(model, samples(model), **settings)
    return table, int8cal.quantize(model, table)


def codes(model):
    """Types and values of all scales' companions: zero points by Q or DQ node, and what DequantizeLinear reads."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    return constants, nodes


def quantized_tensors(model):
    return {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("recipe", ["fast", "accurate"])
def test_tensorrt_gets_int8_with_zero_point_0_and_float_biases_alone(model, recipe):
    table, int8 = quantized(model, target="tensorrt", recipe=recipe)
    constants, nodes = codes(int8)
    assert {constants[node.input[2]].dtype.name for node in nodes} == {"int8"}
    assert not any(constants[node.input[2]].any() for node in nodes)
    assert {tensor.data_type for tensor in int8.graph.initializer} <= {
        TensorProto.FLOAT,
        TensorProto.INT8,
        TensorProto.INT64,
    }
    biases = [node.input[2] for node in int8.graph.node if node.op_type == "Conv" and len(node.input) > 2]
    assert biases
    assert all(constants[name].dtype == np.float32 for name in biases)
    assert {entry.dtype for entry in table.tensors.values()} == {"int8"}
    assert table.settings.recorded["activations"] == "s8"
    assert not ResidualCodes.of(table)
    # weights have a scale per output channel, activations one
    for node in nodes:
        scale = constants[node.input[1]]
        assert scale.ndim == (1 if node.op_type == "DequantizeLinear" and node.input[0] in constants else 0)
    assert {item.domain for item in int8.opset_import} <= {"", "ai.onnx"}


def test_tensorrt_quantizes_what_layers_read_and_one_side_of_residual_adds(model):
    _, int8 = quantized(model, target="tensorrt")
    found = quantized_tensors(int8)
    # inputs of Conv and MatMul, which is where b + ar has its other side; of d + c the one that is computed first
    assert found - {"c", "d"} == {"x", "ar", "sr", "f"}
    assert len(found & {"c", "d"}) == 1
    producer = {node.output[0]: node for node in int8.graph.node}
    adds = [node for node in int8.graph.node if node.op_type == "Add"]
    kinds = [sorted(producer[name].op_type for name in node.input if name in producer) for node in adds]
    assert kinds[:2] == [["Conv", "DequantizeLinear"], ["Conv", "DequantizeLinear"]]


def test_openvino_quantizes_what_layers_read_and_one_side_of_the_adds_behind_them(model):
    table, int8 = quantized(model, target="openvino", latency_allowance=0)  # no Add in float
    found = quantized_tensors(int8)
    assert found - {"c", "d"} == {"x", "ar", "sr", "f"}
    assert len(found & {"c", "d"}) == 1
    assert {entry.dtype for entry in table.tensors.values()} == {"uint8"}
    assert {entry.range for entry in table.weights.values()} <= {"paired", "s7", "s8"}
    assert table.settings.weights == "paired"


def test_openvino_adds_float_behind_a_matmul_where_tensorrt_adds_codes(bench):
    text = "net (float[N,8] x) => (float[N,8] y) { s = Sigmoid(x) m = MatMul(x, M) r = MatMul(m, R) y = Add(r, s) }"
    model = bench.text(text, M=(8, 8), R=(8, 8))
    assert {t: quantized_tensors(quantized(model, target=t)[1]) for t in ("openvino", "tensorrt")} == {
        "openvino": {"x", "m"},
        "tensorrt": {"x", "m", "s"},
    }


POOLED = """net (float[N,4,8,8] x) => (float[N,4,4,4] y) {{
    a = Conv <pads = [1, 1, 1, 1]> (x, A)
    {before}
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    b = Conv (p, B)
    {behind}
}}"""


@pytest.mark.parametrize(
    ("before", "behind", "pools"),
    [
        ("r = Relu(a)", "y = Relu(b)", True),
        ("r = Relu(a)", "y = Add(b, p)", True),
        ("r = Relu(a)", "t = Tanh(p) y = Mul(b, t)", False),  # Tanh reads what was not rounded
        ("r = Softplus(a)", "y = Relu(b)", False),  # no layer's kernel would write the codes
        ("r = Relu(a)", "g = GlobalMaxPool(r) y = Mul(b, g)", False),
    ],
)
def test_openvino_pools_codes_where_that_rounds_nothing_else(bench, before, behind, pools):
    model = bench.text(POOLED.format(before=before, behind=behind), A=(4, 4, 3, 3), B=(4, 4, 1, 1))
    _, int8 = quantized(model, target="openvino")
    producer = {node.output[0]: node.op_type for node in int8.graph.node}
    (pool,) = (node for node in int8.graph.node if node.op_type == "MaxPool")
    assert (producer[pool.input[0]] == "DequantizeLinear") == pools


@pytest.mark.parametrize(("target", "least"), [("openvino", 30), ("tensorrt", 25)])
def test_the_model_is_the_same_function(model, target, least):
    _, int8 = quantized(model, target=target)
    onnx.checker.check_model(int8)
    first, second = Session(model), Session(int8)
    x, y = (np.concatenate([each.run(feed)["y"] for feed in samples(model)]) for each in (first, second))
    assert 10 * np.log10(np.square(x).sum() / np.square(x - y).sum()) > least


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_a_table_gives_the_same_bytes_again(model, target, tmp_path):
    from int8cal.quantization.table_file import load_table, save_table

    table, int8 = quantized(model, target=target)
    save_table(table, tmp_path / "t.json")
    again = int8cal.quantize(model, load_table(tmp_path / "t.json"))
    assert again.SerializeToString(deterministic=True) == int8.SerializeToString(deterministic=True)


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_recurrent_nodes_stay_float(bench, target):
    model = bench.text(LSTM, W=(1, 8, 4), R=(1, 8, 2), M=(2, 2), shape=np.array([3, 1, 2]))
    _, int8 = quantized(model, target=target)
    (lstm,) = [node for node in int8.graph.node if node.op_type == "LSTM"]
    assert list(lstm.input[1:3]) == ["W", "R"]
    assert not any(item.domain == "com.microsoft" for item in int8.opset_import)


def test_tensorrt_refuses_what_it_cannot_have(model):
    with pytest.raises(UsageError, match="target tensorrt takes activations s8, not u8"):
        quantized(model, target="tensorrt", activations="u8")
    for target in ("openvino", "tensorrt"):
        with pytest.raises(UsageError, match=f"says nothing of target {target}"):
            quantized(model, target=target, optimize="latency")


def test_an_edited_table_may_not_smuggle_in_a_zero_point(model):
    from dataclasses import replace

    table, _ = quantized(model, target="tensorrt")
    entry = replace(table.tensors["ar"], zero_point=3, source="user")
    with pytest.raises(TableError, match="'ar' is int8 with zero point 3, the target takes int8 with zero point 0"):
        int8cal.quantize(model, replace(table, tensors={**table.tensors, "ar": entry}))
    portable, _ = quantized(model)
    with pytest.raises(TableError):
        int8cal.quantize(
            model, replace(portable, settings=TableSettings({**portable.settings.recorded, "target": "tensorrt"}))
        )


def test_openvino_runs_both_on_integers(model):
    pytest.importorskip("openvino")
    for target in ("openvino", "tensorrt"):
        # weights for GPUs saturate on a CPU without VNNI, where the runtime asks for it; those for OpenVINO nowhere
        weights = "paired" if target == "tensorrt" else None
        _, int8 = quantized(model, target=target, weights=weights)
        evaluation = int8cal.evaluate(model, int8, samples(model), runtimes=["openvino"], latency=False).evaluation
        (found,) = evaluation.runtimes
        assert found.metrics.sqnr_db > evaluation.metrics.sqnr_db - 1
        floats = {node.op_type for node in found.kernels.nodes}
        assert not floats & {"Convolution", "FullyConnected", "MatMul"}
