"""A small detector: boxes of hundreds of pixels and class scores between 0 and 1, joined by a Concat."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

CLASSES = 20
BOXES = 4
SIZE = 200.0  # pixels of a box, about
_NODES = """r = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, W) s = Relu(r)
    b0 = Conv <kernel_shape = [1, 1]> (s, B, one) b1 = Relu(b0) b2 = Mul(b1, size) boxes = Reshape(b2, four)
    c0 = Conv <kernel_shape = [1, 1]> (s, C, low) c1 = Reshape(c0, many) scores = Sigmoid(c1)"""


def detector() -> onnx.ModelProto:
    """Return the float model: output "out", (1, 24, 64), boxes in front."""
    rng = np.random.default_rng(0)

    def weight(*shape, gain=1.0):
        return (gain * rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    values = {
        "W": weight(32, 3, 3, 3, gain=2.0),
        "B": weight(BOXES, 32, 1, 1),
        "C": weight(CLASSES, 32, 1, 1, gain=4.0),
        "one": np.ones(BOXES, np.float32),
        "low": np.full(CLASSES, -2, np.float32),
        "size": np.array(SIZE, np.float32),
        "four": np.array([1, BOXES, -1]),
        "many": np.array([1, CLASSES, -1]),
    }
    return _parsed(f"{_NODES} out = Concat <axis = 1> (boxes, scores)", values)


def with_one_scale(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize nothing but what the Concat joins, with one scale for both: what tools do that share scales there."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    values = {"scale": np.array(4 * SIZE / 255, np.float32), "zero": np.array(0, np.uint8)}
    result.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    concat = result.graph.node.pop()
    for name in ("boxes", "scores"):
        for op, read, made in (("QuantizeLinear", name, f"{name}_q"), ("DequantizeLinear", f"{name}_q", f"{name}_d")):
            result.graph.node.append(helper.make_node(op, [read, "scale", "zero"], [made], f"{name}_{op}"))
    result.graph.node.append(helper.make_node("Concat", ["boxes_d", "scores_d"], concat.output, "concat", axis=1))
    return result


def pictures(count: int = 40) -> np.ndarray:
    """Return inputs, (count, 3, 16, 16)."""
    return np.random.default_rng(1).normal(size=(count, 3, 16, 16)).astype(np.float32)


def _parsed(nodes: str, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["" : 17]> detector'
    model = onnx.parser.parse_model(f"{head} (float[1,3,16,16] x) => (float[1,{BOXES + CLASSES},64] out) {{ {nodes} }}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    for number, node in enumerate(model.graph.node):
        node.name = f"/{node.op_type}_{number}"
    return model
