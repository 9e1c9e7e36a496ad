from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from int8cal.errors import ModelError
from int8cal.evaluation.fusion import audit_fusion, audit_graph, with_reasons
from int8cal.evaluation.result import NOT_QUANTIZED, FloatNode, Fusion
from int8cal.graph.plan import Unquantized

WEIGHT = np.random.default_rng(0).normal(size=(4, 4, 3, 3)).astype(np.float32)


def conv(tools, *, ranges=("x", "y"), weights=("W",)):
    model = tools.model("g (float[1,4,8,8] x) => (float[1,4,6,6] y) { y = Conv(x, W) }", W=WEIGHT)
    return tools.quantize(model, dict.fromkeys(ranges, (-8.0, 8.0)), weights=weights)


def test_a_convolution_between_dq_and_q_runs_on_integers(tools):
    fusion = audit_fusion(conv(tools))
    assert fusion.integer >= 1
    assert fusion.float_ == 0
    assert fusion.nodes == ()


def test_a_convolution_without_q_behind_it_is_float(tools):
    (node,) = audit_fusion(conv(tools, ranges=("x",))).nodes
    assert (node.node, node.reason) == ("Conv_0", "its output is not quantized")


def test_a_convolution_without_dq_before_it_is_float(tools):
    (node,) = audit_fusion(conv(tools, ranges=("y",))).nodes
    assert (node.node, node.reason) == ("Conv_0", "input x is float")


def test_float_weights_that_the_runtime_quantizes_itself_are_integer(tools):
    assert audit_fusion(conv(tools, weights=())).float_ == 0


def test_a_float_constant_beside_a_dequantized_input_is_named(tools):
    model = tools.model("g (float[1,4] x) => (float[1,4] y) { y = Add(x, B) }", B=np.ones(4, np.float32))
    (node,) = audit_fusion(tools.quantize(model, {"x": (-2.0, 2.0), "y": (-1.0, 3.0)})).nodes
    assert (node.node, node.reason) == ("Add_0", "a constant input is float")


def test_a_convolution_in_a_blocked_layout_is_found_under_its_own_name(tools):
    weight = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32)
    model = tools.model("g (float[1,16,8,8] x) => (float[1,16,6,6] y) { c = Conv(x, W) y = Relu(c) }", W=weight)
    for quantized in ("x", "y"):
        (node,) = audit_fusion(tools.quantize(model, {quantized: (-8.0, 8.0)})).nodes
        assert node.node == "Conv_0"


def test_quantized_weights_alone_leave_a_convolution_in_float(tools):
    fusion = audit_fusion(conv(tools, ranges=()))
    assert (fusion.integer, fusion.float_) == (0, 1)
    assert (fusion.nodes[0].node, fusion.nodes[0].reason) == ("Conv_0", "only its weights are quantized")


def test_an_op_without_integer_kernel_is_listed_as_such(tools):
    model = tools.model("g (float[1,4] x) => (float[1,4] y) { y = Tanh(x) }")
    fusion = audit_fusion(tools.quantize(model, {"x": (-2.0, 2.0), "y": (-1.0, 1.0)}))
    assert fusion.integer == 0
    (node,) = fusion.nodes
    assert (node.node, node.op_type) == ("Tanh_0", "Tanh")
    assert node.reason == "no integer kernel for Tanh in the CPU provider"


def test_an_lstm_is_not_said_to_have_no_integer_kernel(tools):
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(1, 12, 3)).astype(np.float32) for name in "WR"}
    model = tools.model("g (float[5,1,3] x) => (float[5,1,1,3] y) { y = LSTM <hidden_size = 3> (x, W, R) }", **weights)
    (node,) = audit_fusion(tools.quantize(model, {"x": (-2.0, 2.0), "y": (-1.0, 1.0)})).nodes
    assert node.reason == "it is no DynamicQuantizeLSTM, the one kernel for LSTM that multiplies integers"


def test_pooling_and_reshaping_of_codes_count_as_integer(tools):
    model = tools.model(
        """g (float[1,4,8,8] x) => (float[1,64] y) <int64[2] shape = {1, 64}> {
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
            y = Reshape(p, shape)
        }"""
    )
    fusion = audit_fusion(tools.quantize(model, dict.fromkeys(("x", "p", "y"), (-1.0, 1.0))))
    assert fusion.integer >= 2
    assert fusion.float_ == 0


def test_a_pooling_with_two_scales_is_float(tools):
    model = tools.model(
        "g (float[1,4,8,8] x) => (float[1,4,4,4] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }"
    )
    (node,) = audit_fusion(tools.quantize(model, {"x": (-1.0, 1.0), "y": (-2.0, 2.0)})).nodes
    assert (node.op_type, node.reason) == ("MaxPool", "its input and output have different scales")


def test_an_activation_that_the_range_does_not_absorb_is_named(tools):
    model = tools.model("g (float[1,4,8,8] x) => (float[1,4,6,6] y) { c = Conv(x, W) y = Relu(c) }", W=WEIGHT)
    # y's range reaches below zero, so the Relu cannot vanish into it
    fusion = audit_fusion(tools.quantize(model, {"x": (-8.0, 8.0), "y": (-8.0, 8.0)}, weights=("W",)))
    (node,) = fusion.nodes
    assert (node.node, node.reason) == ("Conv_0", "its output's range does not absorb the Relu behind it")


def test_an_image_of_bytes_is_not_a_quantized_tensor(tools):
    model = tools.model(
        """g (uint8[1,8,8,4] x) => (float[1,4,8,8] y) {
            t = Transpose <perm = [0, 3, 1, 2]> (x)
            y = Cast <to = 1> (t)
        }"""
    )
    fusion = audit_fusion(model)
    assert (fusion.integer, fusion.float_) == (0, 0)


def test_a_product_that_writes_float_counts_as_integer_and_what_follows_as_float(tools):
    model = tools.model(
        "g (float[2,4] x) => (float[2,4] y) { m = MatMul(x, G) y = Tanh(m) }", G=np.eye(4, dtype=np.float32)
    )
    fusion = audit_fusion(tools.quantize(model, {"x": (-2.0, 2.0)}, weights=("G",)))
    assert fusion.integer == 1
    assert [(node.node, node.reason) for node in fusion.nodes] == [("Tanh_1", NOT_QUANTIZED)]


def test_a_relu_that_the_range_absorbs_disappears(tools):
    model = tools.model("g (float[1,4,8,8] x) => (float[1,4,6,6] y) { c = Conv(x, W) y = Relu(c) }", W=WEIGHT)
    fusion = audit_fusion(tools.quantize(model, {"x": (-8.0, 8.0), "y": (0.0, 8.0)}, weights=("W",)))
    assert fusion.integer >= 1
    assert fusion.float_ == 0


def test_every_compute_node_of_a_float_model_counts_and_its_flatten_does_not(fp32):
    fusion = audit_fusion(fp32)
    assert (fusion.integer, fusion.float_) == (0, 3)
    assert [node.node for node in fusion.nodes] == ["Conv_0", "GlobalAveragePool_2", "Gemm_4"]
    assert {node.reason for node in fusion.nodes} == {NOT_QUANTIZED}


def test_convolutions_far_from_the_one_quantized_layer_count(tools):
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for name in ("W", "V")}
    model = tools.model(
        """g (float[1,16,8,8] x) => (float[1,4] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W)
            b = Relu(a)
            c = Conv <pads = [1, 1, 1, 1]> (b, V)
            p = GlobalAveragePool(c)
            f = Flatten(p)
            y = Gemm(f, G)
        }""",
        **weights,
        G=rng.normal(size=(16, 4)).astype(np.float32),
    )
    fusion = audit_fusion(tools.quantize(model, {"f": (-8.0, 8.0)}, weights=("G",)))
    named = {node.node: node.reason for node in fusion.nodes}
    assert fusion.integer == 1
    assert fusion.float_ == len(named)
    assert (named["Conv_0"], named["Conv_2"]) == (NOT_QUANTIZED, NOT_QUANTIZED)
    assert not [text for text in (*named, *named.values()) if "token" in text or "nchwc" in text]


def test_what_the_runtime_writes_as_a_convolution_keeps_its_name_and_its_op(tools):
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for name in ("W", "V")}
    ones = {name: np.linspace(0.5, 1.5, 16, dtype=np.float32) for name in ("g", "b", "m", "v")}
    model = tools.model(
        """g (float[1,16,16,16] x) => (float[1,16,2,2] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, W)
            s = Mul(c, F)
            a = Max(c, s)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            n = BatchNormalization(p, g, b, m, v)
            d = Conv <strides = [2, 2]> (n, V)
            y = MaxPool <kernel_shape = [2, 2]> (d)
        }""",
        **weights,
        **ones,
        F=np.linspace(0.1, 0.4, 16, dtype=np.float32).reshape(16, 1, 1),
    )
    named = [(node.node, node.op_type) for node in audit_fusion(model).nodes]
    assert named == [(f"{node.op_type}_{at}", node.op_type) for at, node in enumerate(model.graph.node)]


def test_arithmetic_on_shapes_and_movement_do_not_count(tools):
    model = tools.model(
        """g (float[N,4,8] x) => (float[M,K] y) <int64 zero = {0}, int64[1] rest = {-1}, int64[1] axis = {0}> {
            s = Shape(x)
            n = Gather(s, zero)
            m = Add(n, n)
            h = Div(m, n)
            k = Mul(n, h)
            u = Unsqueeze(k, axis)
            w = Concat <axis = 0> (u, rest)
            t = Transpose <perm = [1, 0, 2]> (x)
            y = Reshape(t, w)
        }"""
    )
    fusion = audit_fusion(model)
    assert (fusion.integer, fusion.nodes) == (0, ())


def test_a_scale_made_of_shapes_alone_does_not_count(tools):
    model = tools.model(
        """g (float[N,4] x) => (float[N,4] y) {
            s = Size(x)
            f = Cast <to = 1> (s)
            r = Sqrt(f)
            y = Mul(x, r)
        }"""
    )
    assert [node.node for node in audit_fusion(model).nodes] == ["Mul_3"]


@pytest.mark.parametrize("op", ["Softmax", "Sigmoid", "Exp", "Relu"])
def test_any_op_with_float_outputs_counts(tools, op):
    fusion = audit_fusion(tools.model(f"g (float[2,4] x) => (float[2,4] y) {{ y = {op}(x) }}"))
    assert [(node.node, node.reason) for node in fusion.nodes] == [(f"{op}_0", NOT_QUANTIZED)]


def test_comparisons_and_indices_are_not_float(tools):
    model = tools.model(
        "g (float[2,4] x, float[2,4] z) => (bool[2,4] y, int64[2,1] i) { y = Less(x, z) i = ArgMax <axis = 1> (x) }"
    )
    assert audit_fusion(model).nodes == ()


def test_a_float_input_that_the_runtime_renamed_is_told_by_its_own_name(tools):
    rng = np.random.default_rng(0)
    model = tools.model(
        """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W)
            b = Relu(a)
            y = Conv <pads = [1, 1, 1, 1]> (b, V)
        }""",
        **{name: rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for name in ("W", "V")},
    )
    nodes = audit_fusion(tools.quantize(model, {"y": (-8.0, 8.0)})).nodes
    assert [(node.node, node.reason) for node in nodes] == [("Conv_0", NOT_QUANTIZED), ("Conv_2", "input b is float")]


def test_a_missing_file_is_a_model_error(tmp_path):
    with pytest.raises(ModelError):
        audit_fusion(tmp_path / "none.onnx")


def test_a_node_that_computes_residual_codes_is_told_from_the_models_own():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) <float s = {0.1}, float t = {0.001}, uint8 z = {128}> {
            a = QuantizeLinear(x, s, z)
            b = DequantizeLinear(a, s, z)
            rest = Sub(x, b)
            c = QuantizeLinear(rest, t, z)
            d = DequantizeLinear(c, t, z)
            y = Sub(b, d)
        }
    """)
    added, own = audit_graph(model).nodes
    assert (added.residual, added.reason) == (True, "it computes the residual codes of x")
    assert not own.residual


def test_residual_codes_of_what_the_runtime_named_are_told_by_the_node_that_gives_it():
    original = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] a) => (float[4] y) { y = Erf(a) }
    """)
    optimized = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] a) => (float[4] y) <float s = {0.1}, float t = {0.001}, uint8 z = {128}> {
            x_token_7 = Erf(a)
            q = QuantizeLinear(x_token_7, s, z)
            b = DequantizeLinear(q, s, z)
            rest = Sub(x_token_7, b)
            c = QuantizeLinear(rest, t, z)
            y = DequantizeLinear(c, t, z)
        }
    """)
    optimized.graph.node[0].name = "norm"
    reasons = [node.reason for node in audit_graph(optimized, original).nodes if node.residual]
    assert reasons == ["it computes the residual codes of the output of norm"]


def test_nodes_that_the_plan_left_in_float_have_its_reason():
    slow = Unquantized("c", "Conv", "beside floats, where its float kernel is faster")
    varying = Unquantized("v", "Conv", "its weights are not constant")
    inside = SimpleNamespace(unquantized=(Unquantized("a", "Add", "an operand is constant"),))
    outside = SimpleNamespace(unquantized=(slow, varying, Unquantized("s", "Softmax", "unused")))
    plan = SimpleNamespace(graphs={"": outside, "loop": inside})
    beside_codes = "input x is float"
    shown = [
        ("c", NOT_QUANTIZED),
        ("v", beside_codes),
        ("s", beside_codes),
        ("t", NOT_QUANTIZED),
        ("loop/a", NOT_QUANTIZED),
    ]
    found = with_reasons(Fusion(3, 4, tuple(FloatNode(name, "Op", reason) for name, reason in shown)), plan, {})
    reasons = [slow.reason, varying.reason, beside_codes, NOT_QUANTIZED, "an operand is constant"]
    assert [(node.node, node.reason) for node in found.nodes] == [
        (name, reason) for (name, _), reason in zip(shown, reasons, strict=True)
    ]
    assert (found.integer, found.float_) == (3, 4)


def test_nodes_that_measuring_left_in_float_have_its_reason():
    plan = SimpleNamespace(graphs={"": SimpleNamespace(unquantized=(Unquantized("a", "LSTM", "is excluded"),))})
    nodes = (FloatNode("a", "LSTM", "only its weights are quantized"), FloatNode("b", "LSTM", "no kernel"))
    found = with_reasons(Fusion(1, 2, nodes), plan, {"a": "its kernel costs too much"})
    assert [node.reason for node in found.nodes] == ["its kernel costs too much", "no kernel"]
