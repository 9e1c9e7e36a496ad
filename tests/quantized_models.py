"""Small int8 models in the forms in which tools write them."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

INPUT_SCALE, OUTPUT_SCALE = np.float32(1 / 64), np.float32(0.25)
TYPES = {"uint8": (np.uint8, 128), "int8": (np.int8, 0)}


def conv_codes(shape, seed=0, low=-127, high=127):
    """Codes of which many neighbours can saturate."""
    return np.random.default_rng(seed).integers(low, high, shape, np.int8, endpoint=True)


def scales_of(codes, axis):
    """A scale per channel, or one."""
    count = () if axis is None else (codes.shape[axis],)
    return np.random.default_rng(7).uniform(0.002, 0.01, count).astype(np.float32)


class Graph:
    """Nodes and constants, in the order in which they are added."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", domain=domain, **attributes))
        return outputs[0]

    def model(self, shape, opset=13, rank=None):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (rank or len(shape)))],
            self.constants,
        )
        domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=8)


def quantized_input(graph, activation="uint8", name="x"):
    """Q of an input; returns codes, scale and zero point by name."""
    kind, zero = TYPES[activation]
    scale, point = graph.constant(f"{name}_s", INPUT_SCALE), graph.constant(f"{name}_z", kind(zero))
    graph.node("QuantizeLinear", [name, scale, point], [f"{name}_q"])
    return f"{name}_q", scale, point


def weight_input(graph, codes, scale, axis, written="codes", zero_point=0, name="w"):
    """Weights as a tool writes them; returns the tensor that the op reads.

    written: "codes" behind a DQ; "floats" behind Q and DQ; "transposed" codes behind a DQ and a Transpose; "reshaped";
    "constant" nodes behind a DQ.
    """
    zeros = np.full(np.shape(scale), zero_point, codes.dtype)
    stored, stored_axis = codes, axis
    if written == "transposed":
        stored, stored_axis = codes.T, None if axis is None else codes.ndim - 1 - axis
    if written == "reshaped":
        stored = codes.reshape(codes.shape[0], -1)
    attributes = {} if axis is None else {"axis": stored_axis}
    s, z = graph.constant(f"{name}_s", scale), graph.constant(f"{name}_z", zeros)
    source = f"{name}_q"
    if written == "constant":
        graph.node("Constant", [], [source], value=numpy_helper.from_array(stored))
    elif written == "floats":
        shape = [1] * codes.ndim
        if axis is not None:
            shape[axis] = -1
        real = (stored.astype(np.float32) - zero_point) * np.asarray(scale).reshape(shape)
        graph.node("QuantizeLinear", [graph.constant(name, real.astype(np.float32)), s, z], [source], **attributes)
    else:
        graph.constant(source, np.ascontiguousarray(stored))
    last = graph.node("DequantizeLinear", [source, s, z], [f"{name}_d"], **attributes)
    if written == "transposed":
        return graph.node("Transpose", [last], [f"{name}_t"])
    if written == "reshaped":
        return graph.node("Reshape", [last, graph.constant(f"{name}_shape", np.array(codes.shape))], [f"{name}_r"])
    return last


def bias_input(graph, outputs, scale, seed=3):
    """An s32 bias behind a DQ."""
    codes = np.random.default_rng(seed).integers(-900, 900, outputs).astype(np.int32)
    product = np.asarray(INPUT_SCALE * np.asarray(scale, np.float32), np.float32)
    s, z = graph.constant("b_s", product), graph.constant("b_z", np.zeros(product.shape, np.int32))
    attributes = {"axis": 0} if product.ndim else {}
    return graph.node("DequantizeLinear", [graph.constant("b_q", codes), s, z], ["b_d"], **attributes)


def qdq(
    op, codes, shape, *, axis=None, written="codes", activation="uint8", bias=True, quantized=True, zero_point=0,
    opset=13, **attributes,
):  # fmt: skip
    """One layer between DQ and Q: codes in the layout of the op, shape of x."""
    graph = Graph()
    q, s, z = quantized_input(graph, activation)
    data = graph.node("DequantizeLinear", [q, s, z], ["x_d"])
    scale = scales_of(codes, axis)
    inputs = [data, weight_input(graph, codes, scale, axis, written, zero_point)]
    if bias and op != "MatMul":
        groups = attributes.get("group", 1) if op == "ConvTranspose" else 1
        transposed = op == "ConvTranspose" or (op == "Gemm" and not attributes.get("transB", 0))
        outputs = codes.shape[1 if transposed else 0] * groups
        inputs.append(bias_input(graph, outputs, np.tile(scale, groups) if np.ndim(scale) else scale))
    last = graph.node(op, inputs, ["y_f" if quantized else "y"], **attributes)
    if quantized:
        kind, zero = TYPES[activation]
        s, z = graph.constant("y_s", OUTPUT_SCALE), graph.constant("y_z", kind(zero))
        graph.node("QuantizeLinear", [last, s, z], ["y_q"])
        graph.node("DequantizeLinear", ["y_q", s, z], ["y"])
    return graph.model(shape, opset=opset)


def qlinear(op, codes, shape, *, axis=None, bias=True, **attributes):
    """QLinearConv, QLinearMatMul or QGemm between Q and DQ."""
    graph = Graph()
    q, s, z = quantized_input(graph)
    scale = scales_of(codes, axis)
    w = [graph.constant("w_q", codes), graph.constant("w_s", scale)]
    w.append(graph.constant("w_z", np.zeros(np.shape(scale), codes.dtype)))
    out = [graph.constant("y_s", OUTPUT_SCALE), graph.constant("y_z", np.uint8(128))]
    domain = "com.microsoft" if op == "QGemm" else ""
    inputs = [q, s, z, *w]
    if op == "QLinearMatMul":
        inputs += out
    else:
        outputs = codes.shape[0] if op == "QLinearConv" or attributes.get("transB") else codes.shape[1]
        values = np.random.default_rng(3).integers(-900, 900, outputs).astype(np.int32)
        added = [graph.constant("b_q", values)] if bias else []
        inputs += [*out, *added] if op == "QLinearConv" else [*(added or [""]), *out]
    graph.node(op, inputs, ["y_q"], domain=domain, **attributes)
    graph.node("DequantizeLinear", ["y_q", *out], ["y"])
    return graph.model(shape)


def dynamic(op, codes, shape, *, axis=None, split=True):
    """MatMulInteger (its scales multiplied first, or not), DynamicQuantizeMatMul or DynamicQuantizeLSTM."""
    graph = Graph()
    if op == "MatMulInteger":
        graph.node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"])
        w = graph.constant("w_q", codes)
        graph.node(op, ["x_q", w, "x_z", graph.constant("w_z", np.int8(0))], ["y_i"])
        graph.node("Cast", ["y_i"], ["y_c"], to=TensorProto.FLOAT)
        if not split:
            graph.node("Mul", ["y_c", "x_s"], ["y_s"])
            graph.node("Mul", ["y_s", graph.constant("w_s", np.float32(0.004))], ["y"])
            return graph.model(shape)
        graph.node("Mul", ["x_s", graph.constant("w_s", np.float32(0.004))], ["scales"])
        graph.node("Mul", ["y_c", "scales"], ["y"])
        return graph.model(shape)
    if op == "DynamicQuantizeMatMul":
        scale = scales_of(codes, axis)
        w = [graph.constant("w_q", codes), graph.constant("w_s", scale)]
        graph.node(op, ["x", *w, graph.constant("w_z", np.zeros(np.shape(scale), np.int8))], ["y"], "com.microsoft")
        return graph.model(shape)
    hidden = codes.shape[2] // 4
    recurrence = conv_codes((1, hidden, 4 * hidden), seed=5)
    inputs = ["x", graph.constant("w_q", codes), graph.constant("r_q", recurrence), "", "", "", "", ""]
    for name in ("w", "r"):
        inputs += [graph.constant(f"{name}_s", np.full(1, 0.004, np.float32))]
        inputs += [graph.constant(f"{name}_z", np.zeros(1, np.int8))]
    graph.node(op, inputs, ["y"], "com.microsoft", hidden_size=hidden)
    return graph.model(shape, rank=4)


def products(second="int8"):
    """A MatMul of two activations."""
    graph = Graph()
    q, s, z = quantized_input(graph)
    a = graph.node("DequantizeLinear", [q, s, z], ["a"])
    kind, zero = TYPES[second]
    point = graph.constant("t_z", kind(zero))
    t = graph.node("Transpose", ["x"], ["t"], perm=[1, 0])
    graph.node("QuantizeLinear", [t, s, point], ["t_q"])
    b = graph.node("DequantizeLinear", ["t_q", s, point], ["b"])
    last = graph.node("MatMul", [a, b], ["y_f"])
    out = [graph.constant("y_s", OUTPUT_SCALE), graph.constant("y_z", np.uint8(128))]
    graph.node("QuantizeLinear", [last, *out], ["y_q"])
    graph.node("DequantizeLinear", ["y_q", *out], ["y"])
    return graph.model([4, 8])


def float_model():
    graph = Graph()
    graph.node("MatMul", ["x", graph.constant("w", np.ones((8, 4), np.float32))], ["y"])
    return graph.model([2, 8])


def feed_of(model, seed=0):
    """Random input of a model."""
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)}


# name -> a model with unsafe channels, whose every layer onnxruntime runs on integers (except where said)
UNSAFE = {
    "conv per channel": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0, pads=[1, 1, 1, 1]),
    "conv per tensor": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8]),
    "conv, odd channels": lambda: qdq("Conv", conv_codes((5, 3, 3, 3)), [1, 3, 8, 8], axis=0, strides=[2, 2]),
    "conv, groups": lambda: qdq("Conv", conv_codes((6, 3, 3, 3)), [1, 6, 8, 8], axis=0, group=2),
    "conv, channel multiplier": lambda: qdq("Conv", conv_codes((8, 1, 3, 3)), [1, 4, 8, 8], axis=0, group=4),
    "conv, 1-d": lambda: qdq("Conv", conv_codes((4, 3, 5)), [1, 3, 16], axis=0, dilations=[2]),
    "conv, s8 activations": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0, activation="int8"),
    "conv, auto_pad": lambda: qdq("Conv", conv_codes((4, 5, 3, 3)), [1, 5, 7, 7], axis=0, auto_pad="SAME_UPPER"),
    "conv, old opset": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], opset=11),
    "conv, floats behind Q and DQ": lambda: qdq(
        "Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0, written="floats"
    ),
    "conv, Constant nodes": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], written="constant"),
    "conv, reshaped": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0, written="reshaped"),
    "conv, weight zero point": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], zero_point=3),
    "conv transposed": lambda: qdq("ConvTranspose", conv_codes((6, 4, 3, 3)), [1, 6, 5, 5], axis=1, strides=[2, 2]),
    "conv transposed, per tensor": lambda: qdq("ConvTranspose", conv_codes((5, 4, 3, 3)), [1, 5, 5, 5]),
    "conv, one channel": lambda: qdq("Conv", conv_codes((4, 1, 3, 3)), [1, 1, 8, 8], axis=0),
    "gemm": lambda: qdq("Gemm", conv_codes((9, 5)), [3, 9], axis=1),
    "gemm, transposed": lambda: qdq("Gemm", conv_codes((5, 9)), [3, 9], axis=0, transB=1, alpha=0.5),
    "gemm behind Transpose": lambda: qdq("Gemm", conv_codes((9, 5)), [3, 9], axis=1, written="transposed"),
    "gemm, float output": lambda: qdq("Gemm", conv_codes((9, 5)), [3, 9], axis=1, quantized=False),
    "matmul": lambda: qdq("MatMul", conv_codes((9, 5)), [2, 3, 9], axis=1),
    "matmul per tensor": lambda: qdq("MatMul", conv_codes((9, 5)), [2, 3, 9]),
    "matmul of a stack": lambda: qdq("MatMul", conv_codes((2, 9, 5)), [2, 3, 9]),
    "QLinearConv": lambda: qlinear("QLinearConv", conv_codes((4, 6, 3, 3)), [1, 6, 8, 8], axis=0, pads=[1, 1, 1, 1]),
    "QLinearConv per tensor": lambda: qlinear("QLinearConv", conv_codes((4, 3, 3, 3)), [1, 3, 8, 8]),
    "QLinearMatMul": lambda: qlinear("QLinearMatMul", conv_codes((9, 5)), [3, 9]),
    "QGemm": lambda: qlinear("QGemm", conv_codes((9, 5)), [3, 9], axis=1, alpha=1.0),
    "QGemm, transposed": lambda: qlinear("QGemm", conv_codes((5, 9)), [3, 9], transB=1),
    "MatMulInteger": lambda: dynamic("MatMulInteger", conv_codes((9, 5)), [3, 9]),
    "MatMulInteger, scale elsewhere": lambda: dynamic("MatMulInteger", conv_codes((9, 5)), [3, 9], split=False),
    "DynamicQuantizeMatMul": lambda: dynamic("DynamicQuantizeMatMul", conv_codes((9, 5)), [3, 9]),
    "DynamicQuantizeLSTM": lambda: dynamic("DynamicQuantizeLSTM", conv_codes((1, 6, 16)), [4, 2, 6]),
}
FLOAT_UNDER_ONNXRUNTIME = {"conv transposed", "conv transposed, per tensor"}
SAFE = {
    "small codes": lambda: qdq("Conv", conv_codes((4, 6, 3, 3), high=63, low=-64), [1, 6, 8, 8], axis=0),
    "depthwise": lambda: qdq("Conv", conv_codes((6, 1, 3, 3)), [1, 6, 8, 8], axis=0, group=6),
    "conv transposed, groups": lambda: qdq("ConvTranspose", conv_codes((6, 2, 3, 3)), [1, 6, 5, 5], axis=1, group=2),
    "unsigned": lambda: qdq("Conv", conv_codes((4, 6, 3, 3)).view(np.uint8), [1, 6, 8, 8], zero_point=128),
    "unsigned products": lambda: products("uint8"),
    "products": products,
}
