"""What the tests of whole graphs draw: small networks of many kinds, and data that is out of the ordinary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

DATA = (
    *("normal", "normal", "positive", "huge", "subnormal", "constant", "zero", "one channel constant", "one outlier"),
    *("mixed scales", "integers", "large offset", "sparse", "float32 limits"),
)  # fmt: skip


@dataclass
class Net:
    """A graph that grows; tensors with their shapes, the batch dimension as the sample has it."""

    opset: int
    dtype: int
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shared: dict[tuple[int, ...], str] = field(default_factory=dict)

    @property
    def float_(self) -> np.dtype:
        return helper.tensor_dtype_to_np_dtype(self.dtype)

    def constant(self, value: object, dtype: object = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.float_), name))
        return name

    def weight(self, shape: tuple[int, ...], kind: int, *, share: bool = False) -> str:
        """Add weights of several kinds; `share` takes those of the same shape that are there already."""
        if share and shape in self.shared:
            return self.shared[shape]
        fan = max(1, math.prod(shape[1:]))
        value = self.rng.normal(0, 1 / math.sqrt(fan), shape)
        match kind:
            case 1:
                value = np.abs(value)
            case 2:
                value[:1] = 0  # an output channel of zeros
            case 3:
                value *= 10.0 ** self.rng.integers(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
            case 4:
                value = np.full(shape, 0.25)
            case 5:
                value = np.round(value * 4) / 4
        self.shared[shape] = self.constant(value)
        return self.shared[shape]

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], outputs: int = 1, **attributes: object) -> str:
        names = [f"t{len(self.shapes) + number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}", **attributes))
        for name in names:
            self.shapes[name] = shape
        return names[0]


@st.composite
def networks(draw: st.DrawFn, *, most: int = 7) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Draw a valid model and the shapes of one sample of its inputs."""
    opset = draw(st.integers(11, 24))
    dtype = draw(st.sampled_from([TensorProto.FLOAT] * 5 + [TensorProto.FLOAT16]))
    net = Net(opset, dtype, np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    is_image = draw(st.booleans())
    free = draw(st.booleans())
    size = draw(st.integers(1, 9))
    if is_image:
        shape = (1, draw(st.integers(1, 9)), size, draw(st.integers(1, 9)))
    else:
        shape = draw(st.sampled_from([(1, size), (1, draw(st.integers(1, 6)), size)]))
    net.shapes["x"] = shape
    inputs = {"x": shape}
    if draw(st.integers(0, 5)) == 0:
        net.shapes["second"] = inputs["second"] = shape
    _layer(draw, net, "x")
    for _ in range(draw(st.integers(0, most))):
        _grow(draw, net)
    read = {name for node in net.nodes for name in node.input}
    ends = [name for name in net.shapes if name not in read and name not in inputs]
    inner = [name for name in net.shapes if name in read and name not in inputs]
    if inner and draw(st.integers(0, 3)) == 0:
        ends.append(draw(st.sampled_from(inner)))
    batch: str | int = "N" if free else 1
    values = [helper.make_tensor_value_info(name, dtype, [batch, *dims[1:]]) for name, dims in inputs.items()]
    # axes of some sizes stay free: whatever is computed of them, the model says nothing
    outputs = [
        helper.make_tensor_value_info(name, dtype, [batch, *[None] * (len(net.shapes[name]) - 1)]) for name in ends
    ]
    graph = helper.make_graph(net.nodes, "drawn", values, outputs, net.weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=min(10, 7 + (opset > 18) * 3)
    )
    onnx.checker.check_model(model)
    return model, inputs


def _layer(draw: st.DrawFn, net: Net, source: str) -> None:
    shape = net.shapes[source]
    kind, share = draw(st.integers(0, 5)), draw(st.booleans())
    biased = draw(st.booleans())
    if len(shape) == 4:
        _convolution(draw, net, source, kind, share=share, biased=biased)
        return
    made = draw(st.integers(1, 8))
    if len(shape) == 2 and draw(st.booleans()):
        transposed = draw(st.booleans())
        weight = net.weight((made, shape[1]) if transposed else (shape[1], made), kind, share=share)
        bias = [net.constant(net.rng.normal(size=made))] if biased else []
        net.add("Gemm", [source, weight, *bias], (1, made), transB=int(transposed))
        return
    made_of = net.add("MatMul", [source, net.weight((shape[-1], made), kind, share=share)], (*shape[:-1], made))
    if biased:
        net.add("Add", [made_of, net.constant(net.rng.normal(size=made))], (*shape[:-1], made))


def _convolution(draw: st.DrawFn, net: Net, source: str, kind: int, *, share: bool, biased: bool) -> None:
    _, channels, height, width = net.shapes[source]
    group = draw(st.sampled_from([each for each in range(1, channels + 1) if channels % each == 0]))
    made = group * draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, min(3, size + 2))) for size in (height, width)]
    dilations = [draw(st.integers(1, 2)) for _ in kernel]
    strides = [draw(st.integers(1, 2)) for _ in kernel]
    pads = [draw(st.integers(0, 1)) for _ in range(4)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    for axis, side in enumerate((height, width)):
        if side + pads[axis] + pads[axis + 2] < reach[axis]:
            pads[axis] = pads[axis + 2] = reach[axis]
    sizes = [(side + pads[a] + pads[a + 2] - reach[a]) // strides[a] + 1 for a, side in enumerate((height, width))]
    weight = net.weight((made, channels // group, *kernel), kind, share=share)
    bias = [net.constant(net.rng.normal(size=made))] if biased else []
    net.add(
        "Conv",
        [source, weight, *bias],
        (1, made, *sizes),
        group=group,
        dilations=dilations,
        strides=strides,
        pads=pads,
    )


def _grow(draw: st.DrawFn, net: Net) -> None:
    source = draw(st.sampled_from(list(net.shapes)))
    shape = net.shapes[source]
    ops = [
        "layer",
        "layer",
        "activation",
        "activation",
        "residual",
        "constant",
        "concat",
        "split",
        "reshape",
        "transpose",
    ]
    ops += ["squeeze", "mean", "softmax", "slice", "pad"]
    ops += ["pool", "pool", "global", "flatten"] if len(shape) == 4 else ["products"]
    match draw(st.sampled_from(ops)):
        case "layer":
            _layer(draw, net, source)
        case "activation":
            _activation(draw, net, source)
        case "residual":
            others = [name for name, dims in net.shapes.items() if dims == shape]
            op = draw(st.sampled_from(["Add", "Add", "Sub", "Mul", "Max"]))
            net.add(op, [source, draw(st.sampled_from(others))], shape)
        case "constant":
            op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
            dims = draw(st.sampled_from([(), (1,), shape[-1:], (1, shape[1], *[1] * (len(shape) - 2))]))
            net.add(op, [source, net.constant(net.rng.uniform(0.5, 2, dims))], shape)
        case "concat":
            axis = draw(st.integers(1, len(shape) - 1))
            others = [
                n
                for n, dims in net.shapes.items()
                if len(dims) == len(shape) and (*dims[:axis], *dims[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :])
            ]
            names = [source, *draw(st.lists(st.sampled_from(others), min_size=1, max_size=2))]
            total = sum(net.shapes[name][axis] for name in names)
            net.add("Concat", names, (*shape[:axis], total, *shape[axis + 1 :]), axis=axis)
        case "split":
            axis = draw(st.integers(1, len(shape) - 1))
            if shape[axis] % 2 == 0:
                half = shape[axis] // 2
                made = (*shape[:axis], half, *shape[axis + 1 :])
                sizes = {"split": [half, half]} if net.opset < 13 else {}
                inputs = [source, *([] if net.opset < 13 else [net.constant([half, half], np.int64)])]
                net.add("Split", inputs, made, 2, axis=axis, **sizes)
        case "reshape":
            made = draw(
                st.sampled_from([(1, math.prod(shape)), (1, shape[1], math.prod(shape[2:])), (1, *shape[:0:-1])])
            )
            target = [0, *made[1:]] if draw(st.booleans()) else [-1, *made[1:]]
            net.add("Reshape", [source, net.constant(target, np.int64)], made)
        case "transpose":
            order = [0, *draw(st.permutations(range(1, len(shape))))]
            net.add("Transpose", [source], tuple(shape[axis] for axis in order), perm=order)
        case "squeeze":
            axes = [axis for axis in range(1, len(shape)) if shape[axis] == 1]
            if axes and len(shape) > 2:
                _with_axes(net, "Squeeze", source, axes[:1], tuple(d for a, d in enumerate(shape) if a != axes[0]))
            elif len(shape) < 4:
                _with_axes(net, "Unsqueeze", source, [1], (1, 1, *shape[1:]))
        case "mean":
            made = (*shape[:-1], 1)
            if net.opset < 18:
                net.add("ReduceMean", [source], made, axes=[-1], keepdims=1)
            else:
                net.add("ReduceMean", [source, net.constant([-1], np.int64)], made, keepdims=1)
        case "softmax":
            net.add("Softmax", [source], shape, axis=draw(st.sampled_from([1, len(shape) - 1])))
        case "slice":
            if shape[-1] > 1:
                bounds = [net.constant([each], np.int64) for each in (1, shape[-1], -1)]
                net.add("Slice", [source, *bounds], (*shape[:-1], shape[-1] - 1))
        case "pad":
            pads = [0] * (len(shape) * 2)
            pads[len(shape) - 1], pads[-1] = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            made = (*shape[:-1], shape[-1] + pads[len(shape) - 1] + pads[-1])
            net.add("Pad", [source, net.constant(pads, np.int64)], made)
        case "pool":
            _pool(draw, net, source)
        case "global":
            op = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
            net.add(op, [source], (*shape[:2], 1, 1))
        case "flatten":
            net.add("Flatten", [source], (1, math.prod(shape)), axis=1)
        case _:
            if len(shape) == 3:
                turned = net.add("Transpose", [source], (1, shape[2], shape[1]), perm=[0, 2, 1])
                net.add("MatMul", [source, turned], (1, shape[1], shape[1]))


def _activation(draw: st.DrawFn, net: Net, source: str) -> None:
    shape = net.shapes[source]
    op = draw(
        st.sampled_from(
            ["Relu", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "HardSwish", "PRelu"]
        )
    )
    if op == "Clip":
        net.add(op, [source, net.constant(0.0), net.constant(6.0)], shape)
    elif op == "PRelu":
        net.add(op, [source, net.constant(net.rng.uniform(0, 0.5, (shape[1], *[1] * (len(shape) - 2))))], shape)
    elif op == "LeakyRelu":
        net.add(op, [source], shape, alpha=draw(st.sampled_from([0.01, 0.2, 1.5])))
    elif op != "HardSwish" or net.opset >= 14:
        net.add(op, [source], shape)


def _pool(draw: st.DrawFn, net: Net, source: str) -> None:
    _, channels, height, width = net.shapes[source]
    kernel = [draw(st.integers(1, min(3, side))) for side in (height, width)]
    strides = [draw(st.integers(1, 2)) for _ in kernel]
    sizes = [(side - k) // s + 1 for side, k, s in zip((height, width), kernel, strides, strict=True)]
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    net.add(op, [source], (1, channels, *sizes), kernel_shape=kernel, strides=strides)


def _with_axes(net: Net, op: str, source: str, axes: list[int], shape: tuple[int, ...]) -> None:
    if net.opset < 13:
        net.add(op, [source], shape, axes=axes)
    else:
        net.add(op, [source, net.constant(axes, np.int64)], shape)


def values(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Make one array of a kind of DATA, float64."""
    x = rng.normal(size=shape)
    match kind:
        case "positive":
            return np.abs(x)
        case "huge":
            return x * 1e15
        case "subnormal":
            return x * 1e-41
        case "constant":
            return np.full(shape, 0.7)
        case "zero":
            return np.zeros(shape)
        case "one channel constant":
            x[:, :1] = 3.25
        case "one outlier":
            x.reshape(-1)[0] = 1e4
        case "mixed scales":
            return x * 10.0 ** rng.integers(-6, 6, shape)
        case "integers":
            return np.round(x * 3)
        case "large offset":
            return x * 1e-3 + 1e4
        case "sparse":
            return x * (rng.random(shape) < 0.1)
        case "float32 limits":
            return np.where(x > 0, 3e38, -3e38)
    return x


@st.composite
def samples(draw: st.DrawFn, inputs: dict[str, tuple[int, ...]], dtype: np.dtype) -> list[dict[str, np.ndarray]]:
    """Draw one to four samples of one kind."""
    kind, count = draw(st.sampled_from(DATA)), draw(st.sampled_from([1, 2, 4]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    limit = float(np.finfo(dtype).max)
    return [
        {name: np.clip(values(kind, shape, rng), -limit, limit).astype(dtype) for name, shape in inputs.items()}
        for _ in range(count)
    ]
