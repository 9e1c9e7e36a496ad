"""Small graphs in every form that was weighed for them: those that int8cal writes, and those that it does not.

`TABLES` says which graphs there are. int8cal's own forms are written by int8cal; what it decided against is written
here, with codes of the same rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.utils import Extractor

from benchmarks.tools.int8cal_forms import int8_model
from benchmarks.topologies.net import Net

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from benchmarks.models import Feed

    Array = npt.NDArray[Any]
    Forms = Iterator[tuple[str, onnx.ModelProto]]

OPSET = 17
SAMPLES = 16  # for calibration; the one behind them is timed and compared
LOOKUPS = 60  # of other rows each, so that caches do not hold those of a run already
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
MICROSOFT = "com.microsoft"
IMAGENET = {"scale": 1 / 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@dataclass(frozen=True)
class Table:
    """One table: a graph in several shapes, each shape in several forms.

    Attributes:
        title: What the shapes are of.
        forms: Shape -> the feeds that are run, one after the other, and (form, model) pairs; all others are compared
            with the first, on the first feed.
        shapes: Names and shapes of the columns.
        tiny: A shape that takes no time, to try it out.
        figures: What is printed of each form: "time", "ratio", "SQNR", "file".
    """

    title: str
    forms: Callable[..., tuple[list[Feed], Forms]]
    shapes: dict[str, tuple[int, ...]]
    tiny: tuple[int, ...]
    figures: tuple[str, ...]


def codes(values: Array, axis: tuple[int, ...], limit: int = 127) -> tuple[Array, Array]:
    """Round to int8 codes of at most `limit`; scales are max|values| / limit over `axis`, which stays as length 1."""
    scales = (np.abs(values).max(axis=axis, keepdims=True) / limit).astype(np.float32)
    return np.clip(np.rint(values / scales), -limit, limit).astype(np.int8), scales


def product(rows: int, inner: int, columns: int) -> tuple[list[Feed], Forms]:
    """Make a MatMul (rows, inner) x (inner, columns) with bias, on normal values."""
    shape, seed = (rows, columns), 31

    def net(weight: Callable[[Net, str], str]) -> onnx.ModelProto:
        made = Net("product", seed)
        name = made.normal("w", (inner, columns), inner**-0.5)
        bias = made.normal("b", (columns,), 1.0)
        summed = made.node("Add", [made.node("MatMul", ["x", weight(made, name)], "product"), bias], "bias")
        return made.model([_value("x", FLOAT, (rows, inner))], (summed, "y", shape), OPSET)

    plain = net(lambda _, name: name)
    *feeds, feed = _normal_feeds(seed, (rows, inner))

    def forms() -> Forms:
        yield "float", plain
        yield "static", int8_model(plain, feeds)
        yield "dynamic", int8_model(plain, feeds, {"forms": {"product": "dynamic"}})
        yield "DequantizeLinear (MatMulNBits)", int8_model(plain, feeds, weights_only=True)
        values = _weights(plain)["w"]
        yield "Cast and Mul", net(lambda made, _: _cast_and_mul(made, "w", *codes(values, (0,))))

    return [feed], forms()


def lookup(words: int, width: int, count: int, *blocks: int) -> tuple[list[Feed], Forms]:
    """Make a Gather of `count` rows of a table (words, width); `blocks` are those of GatherBlockQuantized."""
    seed = 32
    table = np.random.Generator(np.random.PCG64(seed)).standard_normal((words, width), np.float32)
    # words differ in length
    table *= np.exp(0.5 * np.random.Generator(np.random.PCG64(seed + 1)).standard_normal((words, 1), np.float32))
    rng = np.random.Generator(np.random.PCG64(seed + 2))
    feeds: list[Feed] = [
        {"i": rng.integers(0, words, count), "z": rng.standard_normal((1, 16), np.float32)} for _ in range(LOOKUPS)
    ]

    def net(build: Callable[[Net], str], *more: onnx.ValueInfoProto) -> onnx.ModelProto:
        made = Net("lookup", seed)
        model = made.model([_value("i", INT64, (count,)), *more], (build(made), "y", (count, width)), OPSET)
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        return model

    def beside_a_layer() -> onnx.ModelProto:
        """Add the layer without which int8cal takes no model; it is cut off again."""
        model = net(lambda made: made.node("Gather", [made.constant("t", table), "i"], "words"))
        layer = Net("layer", seed)
        out = layer.node("MatMul", ["z", layer.normal("v", (16, 16), 0.25)], "layer")
        other = layer.model([_value("z", FLOAT, (1, 16))], (out, "u", (1, 16)), OPSET)
        for field in ("node", "input", "output", "initializer"):
            getattr(model.graph, field).extend(getattr(other.graph, field))
        return model

    def forms() -> Forms:
        yield "float", net(lambda made: made.node("Gather", [made.constant("t", table), "i"], "words"))
        for form, nodes in (("rows", "two `Gather`, `Cast`, `Mul`"), ("columns", "`Gather`, `Cast`, `Mul`")):
            whole = int8_model(beside_a_layer(), feeds[:SAMPLES], {"embeddings": {"words": form}})
            yield f"{form}: {nodes}", _cut(whole, "i", _value("y", FLOAT, (count, width)))
        rows, scales = codes(table, (1,))

        def dequantized_rows(made: Net) -> str:
            found = made.node("Gather", [made.constant("q", rows), "i"], "codes")
            one = made.constant("one", np.array(1, np.float32))
            scale = made.node("Gather", [made.constant("s", scales), "i"], "scales")
            return made.node("Mul", [made.node("DequantizeLinear", [found, one], "values"), scale], "scaled")

        yield "rows: two `Gather`, `DequantizeLinear`, `Mul`", net(dequantized_rows)
        columns, steps = codes(table, (0,))

        def dequantized_columns(made: Net) -> str:
            found = made.node("Gather", [made.constant("q", columns), "i"], "codes")
            return made.node("DequantizeLinear", [found, made.constant("s", steps[0])], "values", axis=1)

        yield "columns: `Gather`, `DequantizeLinear`", net(dequantized_columns)
        for block in blocks:
            inside, sizes = codes(table.reshape(words, width // block, block), (2,))

            def blocked(made: Net, inside: Array = inside, sizes: Array = sizes, block: int = block) -> str:
                shifted = (inside.reshape(words, width).astype(np.int16) + 128).astype(np.uint8)
                inputs = [made.constant("q", shifted), "i", made.constant("s", sizes[..., 0])]
                attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": 8}
                return made.node("GatherBlockQuantized", inputs, "values", domain=MICROSOFT, **attributes)

            yield f"`{MICROSOFT}.GatherBlockQuantized`, blocks of {block}", net(blocked)

    return [{"i": each["i"]} for each in feeds], forms()


def _lstm(inputs: int, hidden: int, steps: int, weight: Callable[[Net, str, Array], str]) -> onnx.ModelProto:
    """Build an LSTM (steps, 1, inputs) -> Y; `weight` adds what W and R become."""
    made = Net("lstm", 33)
    rng = np.random.Generator(np.random.PCG64(33))
    bound = np.float32(hidden**-0.5)  # as torch draws them
    values = {
        name: rng.uniform(-bound, bound, (1, 4 * hidden, width)).astype(np.float32)
        for name, width in (("w", inputs), ("r", hidden))
    }
    names = [weight(made, name, each) for name, each in values.items()]
    bias = made.constant("b", rng.uniform(-bound, bound, (1, 8 * hidden)).astype(np.float32))
    y = made.node("LSTM", ["x", *names, bias], "cell", hidden_size=hidden)
    return made.model([_value("x", FLOAT, (steps, 1, inputs))], (y, "y", (steps, 1, 1, hidden)), OPSET)


def recurrent(inputs: int, hidden: int, steps: int) -> tuple[list[Feed], Forms]:
    """Make an LSTM over one sequence of normal values."""
    plain = _lstm(inputs, hidden, steps, Net.constant)
    *feeds, feed = _normal_feeds(33, (steps, 1, inputs))

    def dequantized(made: Net, name: str, values: Array) -> str:
        q, s = codes(values, (2,))
        inputs = [made.constant(f"{name}_codes", q), made.constant(f"{name}_scale", s.reshape(-1))]
        return made.node("DequantizeLinear", inputs, name, axis=1)

    def forms() -> Forms:
        yield "float", plain
        for form, title in (("kernel", "kernel"), ("weights", "int8 → Cast → Mul")):
            yield title, int8_model(plain, feeds, {"recurrent": {"cell": form}})
        yield "behind DequantizeLinear", _lstm(inputs, hidden, steps, dequantized)

    return [feed], forms()


def recurrent_codes(inputs: int, hidden: int, steps: int, limit: int) -> tuple[list[Feed], Forms]:
    """Make the same LSTM with codes up to `limit`, 63 for s7 and 127 for s8; both products or one of them in int8."""
    plain = _lstm(inputs, hidden, steps, Net.constant)
    *feeds, feed = _normal_feeds(33, (steps, 1, inputs))

    def rounded(which: str) -> onnx.ModelProto:
        def weight(made: Net, name: str, values: Array) -> str:
            if name not in which:
                return made.constant(name, values)
            return _cast_and_mul(made, name, *codes(values, (2,), limit))

        return _lstm(inputs, hidden, steps, weight)

    def forms() -> Forms:
        yield "float", plain
        weights = "s8" if limit == 127 else "paired"
        yield "kernel", int8_model(plain, feeds, {"recurrent": {"cell": "kernel"}}, weights=weights)
        yield "weights only", rounded("wr")
        yield "W alone, weights only", rounded("w")
        yield "R alone, weights only", rounded("r")

    return [feed], forms()


def first_layer(kernel: int, stride: int, outputs: int, side: int) -> tuple[list[Feed], Forms]:
    """Make a convolution of a uint8 image (1, 3, side, side), with ReLU, from pixels to integer codes."""
    made, seed = Net("first", 34), 34
    convolved = made.conv("x", "conv", (3, outputs), kernel, stride=stride, gain=2.0)
    shape = (1, outputs, *[(side - 1) // stride + 1] * 2)
    output = (made.node("Relu", [convolved], "relu"), "y", shape)
    plain = made.model([_value("x", FLOAT, (1, 3, side, side))], output, OPSET)
    rng = np.random.Generator(np.random.PCG64(seed))
    pixels = [rng.integers(0, 256, (1, 3, side, side), np.uint8) for _ in range(SAMPLES + 1)]
    mean, std = (np.array(IMAGENET[name])[:, None, None] for name in ("mean", "std"))
    feeds: list[Feed] = [{"x": ((each / 255 - mean) / std).astype(np.float32)} for each in pixels[:-1]]

    def forms() -> Forms:
        whole = int8_model(plain, feeds, uint8_input=True, preprocess=IMAGENET)
        last = next(node for node in whole.graph.node if node.op_type == "QuantizeLinear")
        padded = _cut(whole, "x", _value(last.output[0], onnx.TensorProto.UINT8, shape))
        yield "3 channels", _three_channels(padded, ())
        yield "3 + 1 channels by `Pad`", padded
        own = "each channel padded with its own mean (`Split`, `Pad`, `Concat`)"
        yield own, _three_channels(padded, [round(255 * each) for each in mean.flat])

    return [{"x": pixels[-1]}], forms()


def _three_channels(model: onnx.ModelProto, means: list[int] | tuple[()]) -> onnx.ModelProto:
    """Let the bias hold what the channel of `Pad` adds; with `means`, pad each channel with its own first."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    pad, conv = (next(node for node in graph.node if node.op_type == kind) for kind in ("Pad", "Conv"))
    stored = {each.name: each for each in graph.initializer}
    # the operands of the convolution and their zero points, behind DequantizeLinear
    operands = [next(node for node in graph.node if name in node.output).input for name in conv.input]
    weight, bias = (stored[names[0]] for names in operands[1:])
    constant, zero = (int(numpy_helper.to_array(stored[name])) for name in (pad.input[2], operands[0][2]))
    values = numpy_helper.to_array(weight)
    inside = numpy_helper.to_array(bias) + values[:, 3].sum(axis=(1, 2), dtype=np.int32) * np.int32(constant - zero)
    weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[:, :3]), weight.name))
    bias.CopyFrom(numpy_helper.from_array(inside, bias.name))
    graph.node.remove(pad)
    result, added = "x", []
    if means:
        around = next(each for each in conv.attribute if each.name == "pads")
        low, high = np.array(around.ints).reshape(2, -1)
        sides = np.concatenate([[0, 0], low, [0, 0], high])
        around.ints[:] = [0] * len(around.ints)
        parts = [f"x{channel}" for channel in range(len(means))]
        added = [helper.make_node("Split", ["x"], parts, axis=1)]
        graph.initializer.append(numpy_helper.from_array(sides, "sides"))
        for part, value in zip(parts, means, strict=True):
            graph.initializer.append(numpy_helper.from_array(np.array(value, np.uint8), f"{part}_mean"))
            added.append(helper.make_node("Pad", [part, "sides", f"{part}_mean"], [f"{part}_padded"]))
        added.append(helper.make_node("Concat", [f"{part}_padded" for part in parts], ["x_padded"], axis=1))
        result = "x_padded"
    for node in graph.node:
        node.input[:] = [result if name == pad.output[0] else name for name in node.input]
    nodes = [*added, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _cut(model: onnx.ModelProto, first: str, last: onnx.ValueInfoProto) -> onnx.ModelProto:
    """Keep what lies between an input and a tensor, which becomes the output."""
    model.graph.value_info.append(last)
    cut: onnx.ModelProto = Extractor(model).extract_model([first], [last.name])
    return cut


def _cast_and_mul(made: Net, name: str, values: Array, scales: Array) -> str:
    """Add codes, a Cast and a Mul by their scales."""
    cast = made.node("Cast", [made.constant(f"{name}_codes", values)], f"{name}_cast", to=FLOAT)
    return made.node("Mul", [cast, made.constant(f"{name}_scale", scales)], f"{name}_mul")


def _value(name: str, kind: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def _normal_feeds(seed: int, shape: tuple[int, ...]) -> list[Feed]:
    rng = np.random.Generator(np.random.PCG64([seed, *shape]))
    return [{"x": rng.standard_normal(shape, np.float32)} for _ in range(SAMPLES + 1)]


def _titled(*shapes: tuple[int, ...], join: str = " x ") -> dict[str, tuple[int, ...]]:
    return {join.join(map(str, shape)): shape for shape in shapes}


TABLES = {
    "products": Table(
        "MatMul with bias, M x K x N",
        product,
        _titled((512, 768, 768), (128, 384, 1536), (16, 768, 768), (1, 768, 768)),
        (4, 32, 32),
        ("ratio",),
    ),
    "product-codes": Table("MatMul with bias: SQNR", product, _titled((16, 768, 768)), (4, 32, 32), ("SQNR",)),
    "embeddings": Table(
        "Rows of a table of 30522 x 384",
        lookup,
        {"1024 rows": (30522, 384, 1024, 128, 32)},
        (200, 32, 8, 16),
        ("time", "SQNR", "file"),
    ),
    "recurrent": Table(
        "LSTM: inputs, hidden, steps",
        recurrent,
        _titled((128, 128, 1), (128, 128, 32), (512, 512, 1), (512, 512, 16), join=", "),
        (16, 16, 2),
        ("ratio",),
    ),
    "recurrent-codes": Table(
        "LSTM of 128, 128 steps: SQNR",
        recurrent_codes,
        {"s7": (128, 128, 128, 63), "s8": (128, 128, 128, 127)},
        (16, 16, 4, 63),
        ("SQNR",),
    ),
    "pixels": Table(
        "First layer on uint8 pixels",
        first_layer,
        {
            "7x7, stride 2, 64 outputs, 224x224": (7, 2, 64, 224),
            "5x5, stride 2, 24 outputs, 224x224": (5, 2, 24, 224),
            "3x3, stride 2, 32 outputs, 224x224": (3, 2, 32, 224),
            "3x3, stride 1, 16 outputs, 32x32": (3, 1, 16, 32),
        },
        (3, 2, 4, 8),
        ("ratio",),
    ),
}
