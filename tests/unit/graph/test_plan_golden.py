"""One small graph per rule of the plan; what is emitted for it is in tests/golden/graph, to be read in a review."""

import numpy as np
import pytest
from onnx import helper

# name -> (body, weights beside W, V, U, B); the model is g (x[N,4,8,8]) => (y), and its head may differ
CONV = {"W": (8, 4, 3, 3), "B": (8,)}
HEAD = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
RULES = {
    "conv_relu": (HEAD, "c = Conv(x, W, B) y = Relu(c)", CONV),
    "conv_clip_0_6": (
        HEAD,
        "c = Conv(x, W, B) y = Clip(c, lo, hi)",
        {**CONV, "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "conv_clip_without_max": (HEAD, "c = Conv(x, W, B) y = Clip(c, lo)", {**CONV, "lo": np.float32(0)}),
    "conv_clip_without_min": (HEAD, "c = Conv(x, W, B) y = Clip(c, , hi)", {**CONV, "hi": np.float32(1)}),
    "conv_clip_minus_1_1": (
        HEAD,
        "c = Conv(x, W, B) y = Clip(c, lo, hi)",
        {**CONV, "lo": np.float32(-1), "hi": np.float32(1)},
    ),
    "conv_clip_1_2": (
        HEAD,
        "c = Conv(x, W, B) y = Clip(c, lo, hi)",
        {**CONV, "lo": np.float32(1), "hi": np.float32(2)},
    ),
    "conv_batch_norm": (
        HEAD,
        "c = Conv(x, W, B) y = BatchNormalization(c, s, o, m, v)",
        {**CONV, "s": (8,), "o": (8,), "m": (8,), "v": np.ones(8)},
    ),
    "conv_scaled_behind_relu": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) m = Mul(r, S) p = Mul(m, f) y = Conv(p, V)",
        {**CONV, "S": np.linspace(0.5, 2, 8).reshape(8, 1, 1), "f": np.float32(0.5), "V": (3, 8, 1, 1)},
    ),
    "residual_sum_scaled_and_shifted": (
        HEAD,
        "c = Conv(x, W, B) d = Conv <dilations = [2, 2], pads = [1, 1, 1, 1]> (x, U) a = Add(c, d) m = Mul(a, S) s = Sub(m, T) r = Max(s, nil) y = Conv(r, V)",
        {
            **CONV,
            "U": (8, 4, 3, 3),
            "V": (3, 8, 1, 1),
            "nil": np.float32(0),
            "S": np.linspace(-1, 2, 8).reshape(8, 1, 1),
            "T": np.linspace(1, 2, 8).reshape(1, 8, 1, 1),
        },
    ),
    "conv_without_bias": (HEAD, "y = Conv(x, W)", {"W": (8, 4, 3, 3)}),
    "conv_empty_bias": (HEAD, "y = Conv(x, W, )", {"W": (8, 4, 3, 3)}),
    "conv_two_readers": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[A,C,D,E] z)",
        "c = Conv(x, W, B) r = Relu(c) y = Conv(c, V) z = Conv(r, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "conv_read_by_float_op": (
        HEAD,
        "c = Conv(x, W, B) t = Tanh(c) y = Conv(t, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "conv_is_inner_output": (
        "g (float[N,4,8,8] x) => (float[N,8,6,6] c, float[A,C,D,E] y)",
        "c = Conv(x, W, B) y = Conv(c, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "relu_is_inner_output": (
        "g (float[N,4,8,8] x) => (float[N,8,6,6] r, float[A,C,D,E] y)",
        "c = Conv(x, W, B) r = Relu(c) y = Conv(r, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "one_tensor_two_outputs": (
        "g (float[N,4,8,8] x) => (float[N,8,6,6] y, float[N,8,6,6] z)",
        "c = Conv(x, W, B) y = Identity(c) z = Identity(c)",
        CONV,
    ),
    "input_also_read_by_float_op": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[N,4,8,8] z)",
        "y = Conv(x, W, B) z = Tanh(x)",
        CONV,
    ),
    "residual_add": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) d = Conv(r, U) a = Add(d, r) q = Relu(a) y = Conv(q, V)",
        {**CONV, "U": (8, 8, 1, 1), "V": (3, 8, 1, 1)},
    ),
    "add_with_float_side": (
        HEAD,
        "c = Conv(x, W, B) t = Tanh(c) a = Add(c, t) y = Conv(a, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "add_with_constant": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) a = Add(r, k) y = Conv(a, V)",
        {**CONV, "k": (8, 6, 6), "V": (3, 8, 1, 1)},
    ),
    "concat_shares_scales": (
        HEAD,
        "c = Conv(x, W, B) d = Conv(x, U) a = Concat <axis = 1> (c, d) y = Conv(a, V)",
        {**CONV, "U": (8, 4, 3, 3), "V": (3, 16, 1, 1)},
    ),
    "concat_with_second_reader": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[A,C,D,E] z)",
        "c = Conv(x, W, B) d = Conv(x, U) a = Concat <axis = 1> (c, d) y = Conv(a, V) z = Conv(c, T)",
        {**CONV, "U": (8, 4, 3, 3), "V": (3, 16, 1, 1), "T": (2, 8, 1, 1)},
    ),
    "concat_of_relu_and_signed": (
        HEAD,
        """c = Conv(x, W, B) r = Relu(c) m = MaxPool <kernel_shape = [2, 2]> (r) d = Conv(x, U)
        a = Concat <axis = 1> (m, d) y = Conv(a, V)""",
        {**CONV, "U": (8, 4, 4, 4), "V": (3, 16, 1, 1)},
    ),
    "concat_of_relus": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) d = Conv(x, U) q = Relu(d) a = Concat <axis = 1> (r, q) y = Conv(a, V)",
        {**CONV, "U": (8, 4, 3, 3), "V": (3, 16, 1, 1)},
    ),
    "max_pool_shares": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) m = MaxPool <kernel_shape = [2, 2]> (r) y = Conv(m, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "max_pool_with_indices": (
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y, int64[A,C,D,E] i)",
        "c = Conv(x, W, B) m, i = MaxPool <kernel_shape = [2, 2]> (c) y = Conv(m, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "reshape_transpose_slice_share": (
        HEAD,
        "c = Conv(x, W, B) s = Slice(c, a, b, d) t = Transpose <perm = [0, 2, 3, 1]> (s) r = Reshape(t, e) y = Conv(r, V)",
        {
            **CONV,
            "a": np.array([0]),
            "b": np.array([4]),
            "d": np.array([1]),
            "e": np.array([0, 4, 6, 6]),
            "V": (3, 4, 1, 1),
        },
    ),
    "average_pools": (
        HEAD,
        "c = Conv(x, W, B) a = AveragePool <kernel_shape = [2, 2]> (c) g = GlobalAveragePool(a) y = Conv(g, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "flatten_gemm": (
        "g (float[N,4,8,8] x) => (float[A,C] y)",
        "c = Conv(x, W, B) r = Relu(c) f = Flatten(r) y = Gemm(f, V, K)",
        {**CONV, "V": (288, 5), "K": (5,)},
    ),
    "gemm_relu_gemm": (
        "g (float[N,4] x) => (float[N,3] y)",
        "c = Gemm(x, W, B) r = Relu(c) y = Gemm <transB = 1> (r, V)",
        {"W": (4, 8), "B": (8,), "V": (3, 8)},
    ),
    "matmul_writes_float": (
        "g (float[N,5,4] x) => (float[N,5,3] y)",
        "m = MatMul(x, W) t = Tanh(m) y = MatMul(t, V)",
        {"W": (4, 8), "V": (8, 3)},
    ),
    "matmul_takes_its_bias": (
        "g (float[N,5,4] x) => (float[N,5,3] y)",
        "m = MatMul(x, W) a = Add(B, m) t = Tanh(a) n = MatMul(t, V) k = MatMul(t, V) s = Add(n, k) y = Add(s, K)",
        {"W": (4, 8), "B": (8,), "V": (8, 3), "K": (3,)},
    ),
    "matmul_takes_its_bias_in_two_dimensions": (
        "g (float[N,4] x) => (float[N,8] y)",
        "m = MatMul(x, W) y = Add(m, B)",
        {"W": (4, 8), "B": (8,)},
    ),
    "matmul_takes_its_bias_between_free_dimensions": (
        "g (float[N,S,4] x) => (float[N,S,8] y)",
        "m = MatMul(x, W) y = Add(m, B)",
        {"W": (4, 8), "B": (8,)},
    ),
    "matmul_of_stacked_weights": (
        "g (float[N,2,5,4] x) => (float[N,2,5,3] y)",
        "y = MatMul(x, W)",
        {"W": (2, 4, 3)},
    ),
    "attention_stays_float": (
        "g (float[N,5,4] x) => (float[N,5,4] y)",
        """q = MatMul(x, W) k = MatMul(x, V) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t)
        p = Softmax(s) y = MatMul(p, x)""",
        {"W": (4, 4), "V": (4, 4)},
    ),
    "silu": (
        HEAD,
        "c = Conv(x, W, B) s = Sigmoid(c) m = Mul(c, s) y = Conv(m, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "hard_swish": (
        HEAD,
        "c = Conv(x, W, B) s = HardSigmoid(c) m = Mul(c, s) y = Conv(m, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "hard_sigmoid_for_no_codes_stays_float": (
        HEAD,
        "c = Conv(x, W, B) s = HardSigmoid(c) e = Exp(c) m = Mul(e, s) y = Conv(m, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "what_only_a_product_with_a_constant_reads_stays_float": (
        HEAD,
        "c = Conv(x, W, B) s = Sigmoid(c) m = Mul(c, s) k = Mul(m, M) e = Exp(k) y = Conv(e, V)",
        {**CONV, "V": (3, 8, 1, 1), "M": (1,)},
    ),
    "leaky_relu": (
        HEAD,
        "c = Conv(x, W, B) l = LeakyRelu <alpha = 0.1> (c) y = Conv(l, V)",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "sigmoid_at_the_end_stays_float": (HEAD, "c = Conv(x, W, B) y = Sigmoid(c)", CONV),
    "conv_transpose": (
        HEAD,
        "c = Conv(x, W, B) y = ConvTranspose <group = 2> (c, V, K)",
        {**CONV, "V": (8, 3, 2, 2), "K": (6,)},
    ),
    "resize_and_pad_stay_float": (
        HEAD,
        """c = Conv(x, W, B) r = Resize <mode = "linear"> (c, , s) p = Pad <mode = "reflect"> (r, k) y = Conv(p, V)""",
        {
            **CONV,
            "s": np.array([1, 1, 2, 2], np.float32),
            "k": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
            "V": (3, 8, 1, 1),
        },
    ),
    "weight_of_two_layers": (
        HEAD,
        "c = Conv(x, W, B) r = Relu(c) y = Conv(r, W, B)",
        {"W": (4, 4, 3, 3), "B": (4,)},
    ),
    "weight_also_read_in_float": (
        "g (float[N,4,8,8] x, float[8,4,3,3] k) => (float[A,C,D,E] y, float[8,4,3,3] z)",
        "y = Conv(x, W, B) z = Mul(W, k)",
        CONV,
    ),
    "branches_read_a_planned_tensor": (
        "g (float[N,4,8,8] x, bool k) => (float[A,C,D,E] y)",
        """c = Conv(x, W, B)
        i = If (k) <
            then_branch = t () => (float[N,8,6,6] p) { p = Abs(c) },
            else_branch = e () => (float[N,8,6,6] q) { q = Neg(c) }>
        y = Conv(i, V)""",
        {**CONV, "V": (3, 8, 1, 1)},
    ),
    "names_are_taken": (
        "g (float[N,4,8,8] x, float[N,1,1,1] x_scale) => (float[A,C,D,E] y_float, float[A,C,D,E] y)",
        "x_quantized = Mul(x, x_scale) y_float = Conv(x_quantized, W, B) y = Conv(x, W)",
        CONV,
    ),
}


def render(graph, plan):
    """Points and what stays float, then one line per node; constants as name:type[shape]."""
    constants = {
        tensor.name: f"{tensor.name}:{np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name}"
        f"{list(tensor.dims) if tensor.dims else ''}"
        for tensor in graph.initializer
    }
    lines = [f"inputs {', '.join(v.name for v in graph.input)}", f"outputs {', '.join(v.name for v in graph.output)}"]
    for point in plan.tensors:
        facts = [f"scale of {point.group}"] if point.group != point.tensor else []
        facts += [] if point.source else ["passed on"]
        facts += [] if point.exclusive else ["also there in float"]
        lines.append(f"point {point.tensor}" + (f" ({', '.join(facts)})" if facts else ""))
    lines += [f"float {left.op_type} {left.node}: {left.reason}" for left in plan.unquantized]
    lines.append("")
    for node in graph.node:
        inputs = ", ".join(constants.get(name, name or "-") for name in node.input)
        # other attributes are the runtime's business, and their defaults differ from version to version
        axis = [f" <axis={item.i}>" for item in node.attribute if node.op_type == "DequantizeLinear"]
        lines.append(f"{', '.join(node.output)} = {node.op_type}({inputs}){''.join(axis)}")
    return "\n".join(lines) + "\n"


def model(bench, name):
    head, body, weights = RULES[name]
    return bench.text(f"{head} {{ {body} }}", **weights)


@pytest.mark.newest
@pytest.mark.parametrize("name", RULES)
def test_the_rule_gives_this_graph(bench, golden, name):
    _, plan, _, built = bench.quantized(model(bench, name))
    golden(f"graph/{name}.txt", render(built.model.graph, plan))


@pytest.mark.parametrize("exclude", [("Conv_c",), ("op:Conv",), ("Conv_[cd]", "op:Ge*")])
def test_excluded_nodes_stay_float(bench, exclude):
    net = bench.text(
        """g (float[N,4,8,8] x) => (float[A,C] y) {
            c = Conv(x, W) r = Relu(c) d = Conv(r, V) g = GlobalAveragePool(d) f = Flatten(g) m = MatMul(f, T)
            y = Gemm(m, U)
        }""",
        W=(8, 4, 3, 3),
        V=(6, 8, 1, 1),
        T=(6, 6),
        U=(6, 5),
    )
    plan = bench.plan(net, exclude=exclude)
    quantized = {layer.node for layer in plan.layers}
    expected = {
        ("Conv_c",): {"Conv_d", "MatMul_m", "Gemm_y"},
        ("op:Conv",): {"MatMul_m", "Gemm_y"},
        ("Conv_[cd]", "op:Ge*"): {"MatMul_m"},
    }
    assert quantized == expected[exclude]
    reasons = {left.node: left.reason for left in plan.unquantized}
    for node in {"Conv_c", "Conv_d", "MatMul_m", "Gemm_y"} - quantized:
        assert reasons[node] == "excluded by the user"


def test_the_comparison_notices_a_planted_difference(bench, golden):
    _, plan, _, built = bench.quantized(model(bench, "conv_relu"))
    built.model.graph.node[0].output[0] += "_other"
    if not golden.regen:
        with pytest.raises(pytest.fail.Exception, match="x_quantized_other"):
            golden("graph/conv_relu.txt", render(built.model.graph, plan))
