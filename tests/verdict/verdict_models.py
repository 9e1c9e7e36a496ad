"""Small models of real tasks, and the int8 models that other tools make of them, well or badly.

Their weights come from a seed, and what has to be right about them in closed form: normalization from the statistics of
training data, heads by least squares. So FP32 answers are right, and an int8 model has something to lose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLASSES = 8


@dataclass
class Network:
    """A float network, node by node; `dims` are those of its only or first input, without the batch."""

    inputs: dict[str, tuple[object, ...]]
    seed: int = 0
    integers: tuple[str, ...] = ()
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def weight(self, name: str, value: object) -> str:
        array = np.asarray(value)
        self.weights[name] = array.astype(np.float32) if array.dtype == np.float64 else array
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], f"/{output}/{op}", **attributes))
        return output

    def conv(self, x: str, output: str, shape: tuple[int, ...], gain: float = 1.0, **attributes: object) -> str:
        """A convolution with random weights, "same" padding."""
        weights = self.rng.normal(0, gain * np.prod(shape[1:]) ** -0.5, shape)
        pads = [size // 2 for size in shape[2:]] * 2
        return self.node("Conv", [x, self.weight(f"{output}.weight", weights)], output, pads=pads, **attributes)

    def gemm(self, x: str, output: str, weight: np.ndarray, bias: np.ndarray) -> str:
        names = [self.weight(f"{output}.weight", weight), self.weight(f"{output}.bias", bias)]
        return self.node("Gemm", [x, *names], output)

    def normalized(self, x: str, output: str, data: Mapping[str, np.ndarray]) -> str:
        """BatchNormalization with the statistics of training data, as training leaves them, and its ReLU."""
        values = run(self.model([x]), data)[x]
        channels = values.shape[1]
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        parts = {
            "scale": self.rng.uniform(0.7, 1.3, channels),
            "bias": self.rng.normal(0, 0.3, channels),
            "mean": values.mean(axes),
            "var": values.var(axes) + 1e-3,
        }
        names = [self.weight(f"{output}.{key}", np.asarray(value, np.float32)) for key, value in parts.items()]
        self.node("BatchNormalization", [x, *names], f"{output}.bn")
        return self.node("Relu", [f"{output}.bn"], output)

    def fitted(self, x: str, output: str, data: Mapping[str, np.ndarray], wanted: np.ndarray) -> str:
        """A Gemm that gives `wanted` (samples, outputs) of what it reads, by least squares."""
        read = run(self.model([x]), data)[x].astype(np.float64)
        middle = read.mean(0)
        centred = read - middle
        weight = np.linalg.solve(
            centred.T @ centred + 1e-2 * len(read) * np.eye(read.shape[1]), centred.T @ (wanted - wanted.mean(0))
        )
        return self.gemm(x, output, weight, wanted.mean(0) - middle @ weight)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The network up to these tensors."""

        def info(name: str, dims: Sequence[object]) -> onnx.ValueInfoProto:
            kind = TensorProto.INT64 if name in self.integers else TensorProto.FLOAT
            return helper.make_tensor_value_info(name, kind, dims)

        inputs = [info(name, ["batch", *dims]) for name, dims in self.inputs.items()]
        shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "net", inputs, shapes, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def run(model: onnx.ModelProto, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model on a batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(data)), strict=True))


def one_hot(labels: np.ndarray, classes: int = CLASSES) -> np.ndarray:
    return np.eye(classes)[labels]


def classifier(pixels: np.ndarray, labels: np.ndarray, channels: int = 3, seed: int = 0) -> onnx.ModelProto:
    """image (n, channels, 16, 16), normalized -> logits (n, 8); trained on `pixels` of that shape."""
    net, data = Network({"image": (channels, 16, 16)}, seed), {"image": pixels}
    net.conv("image", "stem", (24, channels, 3, 3))
    net.normalized("stem", "a", data)
    net.node("MaxPool", ["a"], "pooled", kernel_shape=[2, 2], strides=[2, 2])
    net.conv("pooled", "middle", (32, 24, 3, 3))
    net.normalized("middle", "b", data)
    net.node("AveragePool", ["b"], "averaged", kernel_shape=[4, 4], strides=[4, 4])
    net.node("Flatten", ["averaged"], "flat")
    net.fitted("flat", "logits", data, 8 * one_hot(labels))
    return net.model(["logits"])


def untrained(pixels: np.ndarray) -> onnx.ModelProto:
    """The same classifier, its head drawn by lot."""
    labels = np.random.default_rng(5).integers(0, CLASSES, len(pixels))
    return classifier(pixels, labels)


def detector(pixels: np.ndarray) -> onnx.ModelProto:
    """image (n, 3, 16, 16) -> detections (n, 4 + 6, 16): boxes in pixels of a frame of 640, scores of six classes."""
    net, data = Network({"image": (3, 16, 16)}, 1), {"image": pixels}
    net.conv("image", "stem", (16, 3, 3, 3), strides=[2, 2])
    net.normalized("stem", "a", data)
    net.conv("a", "middle", (24, 16, 3, 3), strides=[2, 2])
    net.normalized("middle", "b", data)
    for name, channels, gain in (("box", 4, 1.5), ("class", 6, 3.0)):
        net.conv("b", f"{name}.map", (channels, 24, 1, 1), gain)
        net.node("Sigmoid", [f"{name}.map"], f"{name}.part")
        net.node("Reshape", [f"{name}.part", net.weight(f"{name}.shape", np.array([0, channels, 16]))], name)
    net.node("Mul", ["box", net.weight("frame", np.float32(640))], "boxes")
    net.node("Identity", ["class"], "scores")
    net.node("Concat", ["boxes", "scores"], "detections", axis=1)
    return net.model(["detections"])


def segmenter(pixels: np.ndarray) -> onnx.ModelProto:
    """image (n, 3, 16, 16) -> classes (n, 5, 16, 16): scores of five classes for each pixel."""
    net, data = Network({"image": (3, 16, 16)}, 2), {"image": pixels}
    net.conv("image", "stem", (16, 3, 3, 3))
    net.normalized("stem", "a", data)
    net.conv("a", "classes", (5, 16, 1, 1), 2.0)
    return net.model(["classes"])


def embedder(features: np.ndarray) -> onnx.ModelProto:
    """features (n, 32) -> embedding (n, 16), the first of whose entries is large and hardly varies, as real ones have it."""
    net, data = Network({"features": (32,)}, 3), {"features": features}
    net.gemm("features", "hidden", net.rng.normal(0, 32**-0.5, (32, 48)), np.zeros(48))
    net.normalized("hidden", "a", data)
    weight, bias = net.rng.normal(0, 48**-0.5, (48, 16)), np.zeros(16)
    bias[0] = 300
    net.gemm("a", "embedding", weight, bias)
    return net.model(["embedding"])


def stereo(features: np.ndarray) -> onnx.ModelProto:
    """left, right (n, 16) -> mean, spread (n, 6): two inputs of different sizes, two outputs of one shape."""
    net = Network({"left": (16,), "right": (16,)}, 4)
    data = {"left": features[:, :16], "right": 20 * features[:, 16:] + 50}
    net.node("Concat", ["left", "right"], "both", axis=1)
    net.gemm("both", "hidden", net.rng.normal(0, 32**-0.5, (32, 32)), np.zeros(32))
    net.normalized("hidden", "a", data)
    for name in ("mean", "spread"):
        net.gemm("a", name, net.rng.normal(0, 32**-0.5, (32, 6)), net.rng.normal(0, 1, 6))
    return net.model(["mean", "spread"])


def reader(tokens: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> onnx.ModelProto:
    """input_ids, attention_mask (n, length) -> logits (n, 3): the mean of what unmasked tokens embed to, and two layers."""
    net = Network({"input_ids": ("length",), "attention_mask": ("length",)}, 6, ("input_ids", "attention_mask"))
    data = {"input_ids": tokens, "attention_mask": mask}
    net.node("Gather", [net.weight("table", net.rng.normal(0, 1, (40, 24))), "input_ids"], "embedded")
    net.node("Cast", ["attention_mask"], "float_mask", to=TensorProto.FLOAT)
    net.node("Unsqueeze", ["float_mask", net.weight("last", np.array([2]))], "column")
    net.node("Mul", ["embedded", "column"], "kept")
    net.node("ReduceSum", ["kept", net.weight("positions", np.array([1]))], "sum", keepdims=0)
    net.node("ReduceSum", ["column", "positions"], "count", keepdims=0)
    net.node("Add", ["count", net.weight("one", np.float32(1e-6))], "some")
    net.node("Div", ["sum", "some"], "mean")
    net.gemm("mean", "hidden", net.rng.normal(0, 24**-0.5, (24, 32)), np.zeros(32))
    net.normalized("hidden", "a", data)
    net.fitted("a", "logits", data, 6 * one_hot(labels, 3))
    return net.model(["logits"])


def listener(waves: np.ndarray, heard: np.ndarray) -> onnx.ModelProto:
    """wave (n, 1, 256) -> speech (n, 1), a probability."""
    net, data = Network({"wave": (1, 256)}, 7), {"wave": waves}
    net.conv("wave", "stem", (16, 1, 15), strides=[4])
    net.normalized("stem", "a", data)
    net.conv("a", "middle", (16, 16, 5), strides=[4])
    net.normalized("middle", "b", data)
    net.node("GlobalAveragePool", ["b"], "averaged")
    net.node("Flatten", ["averaged"], "flat")
    net.fitted("flat", "logit", data, 6.0 * heard[:, None] - 3)
    net.node("Sigmoid", ["logit"], "speech")
    return net.model(["speech"])


def logarithm() -> onnx.ModelProto:
    """features (n, 32) -> y (n, 4), through a logarithm that has no value for what is below -1."""
    net = Network({"features": (32,)}, 8)
    net.node("Add", ["features", net.weight("one", np.float32(1))], "shifted")
    net.node("Log", ["shifted"], "logarithm")
    net.gemm("logarithm", "y", net.rng.normal(0, 0.2, (32, 4)), np.zeros(4))
    return net.model(["y"])


# What another tool does: a range per tensor. (low, high) by tensor; a range may be wrong, that is the point.
Ranges = dict[str, tuple[float, float]]


def observed(model: onnx.ModelProto, data: Mapping[str, np.ndarray], tensors: Sequence[str]) -> Ranges:
    """The ranges that calibration by extremes gives."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    given = {value.name for value in model.graph.input}
    del shown.graph.output[:]
    shown.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in tensors if name not in given
    )
    values = {**data, **run(shown, data)}
    return {name: (min(0.0, float(values[name].min())), max(0.0, float(values[name].max()))) for name in tensors}


def with_qdq(model: onnx.ModelProto, ranges: Ranges) -> onnx.ModelProto:
    """Put u8 Q and DQ behind tensors, and the weights of Conv and Gemm into s8, one scale a tensor: as plain tools do."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    renamed = {name: f"{name}.float" for name in ranges}
    given = {value.name for value in graph.input}
    nodes: list[onnx.NodeProto] = []

    def pair(source: str, target: str, low: float, high: float) -> None:
        scale = np.float32((high - low) / 255)
        point = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
        names = [f"{target}.q.scale", f"{target}.q.zero"]
        values = (scale, point)
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, values, strict=True)
        )
        nodes.append(helper.make_node("QuantizeLinear", [source, *names], [f"{target}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{target}.q", *names], [target]))

    def weight(name: str) -> str:
        values = numpy_helper.to_array(constants[name])
        scale = np.float32(max(np.abs(values).max(), 1e-6) / 63)
        codes = np.rint(values / scale).astype(np.int8)
        parts = {f"{name}.q": codes, f"{name}.q.scale": scale, f"{name}.q.zero": np.int8(0)}
        graph.initializer.extend(numpy_helper.from_array(np.asarray(value), key) for key, value in parts.items())
        nodes.append(helper.make_node("DequantizeLinear", list(parts), [f"{name}.dq"]))
        return f"{name}.dq"

    for name in (name for name in ranges if name in given):
        pair(name, f"{name}.in", *ranges[name])
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        inputs = [f"{each}.in" if each in given and each in ranges else each for each in node.input]
        if node.op_type in {"Conv", "Gemm"}:
            inputs[1] = weight(inputs[1])
        node.input[:] = inputs
        node.output[:] = [renamed.get(each, each) for each in node.output]
        nodes.append(node)
        for each in original.output:
            if each in ranges:
                pair(renamed[each], each, *ranges[each])
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    for part, values in ((graph.node, nodes), (graph.initializer, kept), (graph.value_info, [])):
        del part[:]
        part.extend(values)
    onnx.checker.check_model(made)
    return made


def scaled_channel(model: onnx.ModelProto, weight: str, channel: int, factor: float, axis: int) -> onnx.ModelProto:
    """Multiply one output channel of a weight, and of the bias that lies beside it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    (place,) = (index for index, tensor in enumerate(made.graph.initializer) if tensor.name == weight)
    values = numpy_helper.to_array(made.graph.initializer[place]).copy()
    np.moveaxis(values, axis, 0)[channel] *= factor
    made.graph.initializer[place].CopyFrom(numpy_helper.from_array(values, weight))
    return made


def exchanged(model: onnx.ModelProto, first: str, second: str) -> onnx.ModelProto:
    """Give two outputs each other's names."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = {first: second, second: first}
    for node in made.graph.node:
        node.input[:] = [names.get(each, each) for each in node.input]
        node.output[:] = [names.get(each, each) for each in node.output]
    return made
