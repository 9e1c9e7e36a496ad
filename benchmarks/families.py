"""The reasons of the rules in docs/families.md: what eight bits do in the places that a rule finds.

    python -m benchmarks.families FOLDER...      each holds model.onnx and data/*.npz

Values of chosen tensors are rounded to 256 steps over the range that they take on the samples, all else is exact; what
that does is measured at the outputs. Nothing of int8cal's own quantization has a part in it but the rules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from int8cal.graph.families import find_families
from int8cal.graph.index import Index
from int8cal.graph.prepare import prepare
from int8cal.graph.scopes import MOVING, scopes
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from int8cal.graph.families import Family
    from int8cal.graph.scopes import Scope

Feeds = list[dict[str, Any]]


def run(model: onnx.ModelProto, feeds: Feeds, names: Sequence[str] = ()) -> list[list[Any]]:
    """Return what outputs, or other tensors, are on each sample; computed as the graph says."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = list(names) or [value.name for value in model.graph.output]
    return [session.run(wanted, feed) for feed in feeds]


def rounded(model: onnx.ModelProto, feeds: Feeds, tensors: Iterable[str], axis: int | None = None) -> onnx.ModelProto:
    """Round tensors to 256 steps, each over its own range, or each channel over its own."""
    names = [name for name in dict.fromkeys(tensors) if name]
    values = run(model, feeds, names)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for at, name in enumerate(names):
        low, high = _range([each[at] for each in values], axis)
        scale = np.maximum((high - low) / 255, 1e-30).astype(np.float32)
        zero = np.rint(-low / scale).astype(np.uint8)
        result.graph.initializer.append(numpy_helper.from_array(scale, f"{name}/scale"))
        result.graph.initializer.append(numpy_helper.from_array(zero, f"{name}/zero"))
        for node in result.graph.node:
            node.output[:] = [f"{name}/raw" if each == name else each for each in node.output]
        made = next(place for place, node in enumerate(result.graph.node) if f"{name}/raw" in node.output)
        for place, (op, source, target) in enumerate(
            [("QuantizeLinear", f"{name}/raw", f"{name}/codes"), ("DequantizeLinear", f"{name}/codes", name)]
        ):
            node = helper.make_node(op, [source, f"{name}/scale", f"{name}/zero"], [target])
            if axis is not None:
                node.attribute.append(helper.make_attribute("axis", axis))
            result.graph.node.insert(made + 1 + place, node)
    return result


def _range(arrays: Sequence[Any], axis: int | None) -> tuple[Any, Any]:
    lows, highs = [], []
    for array in arrays:
        others = None if axis is None else tuple(each for each in range(array.ndim) if each != axis % array.ndim)
        lows.append(array.min(axis=others, initial=0.0))
        highs.append(array.max(axis=others, initial=0.0))
    return np.minimum.reduce(lows).astype(np.float64), np.maximum.reduce(highs).astype(np.float64)


def decibels(reference: Sequence[Any], other: Sequence[Any]) -> float:
    """Signal to noise of one output over all samples."""
    signal = sum(float(np.square(x.astype(np.float64)).sum()) for x in reference)
    noise = sum(float(np.square(x.astype(np.float64) - y).sum()) for x, y in zip(reference, other, strict=True))
    return float("inf") if noise == 0 else 10 * np.log10(signal / noise)


def seen(values: Sequence[Any], how: str) -> list[Any]:
    """Return what a figure is of: all of it, or differences between rows, samples, or high notes."""
    if how == "between rows":
        return [each - each.mean(axis=-2, keepdims=True) for each in values]
    if how == "between samples":
        rows = np.concatenate([each.reshape(1, -1) for each in values])
        return [rows - rows.mean(axis=0)]
    if how == "upper half of frequencies":
        return [np.abs(np.fft.rfft(each.ravel()))[each.size // 4 :] for each in values]
    return [*values]


def compared(model: onnx.ModelProto, feeds: Feeds, variants: Mapping[str, onnx.ModelProto], how: str = "") -> None:
    """Print the outputs' SQNR of each variant, and that of what a decision looks at."""
    names = [value.name for value in model.graph.output]
    exact = run(model, feeds)
    for what, variant in variants.items():
        found = run(variant, feeds)
        told = []
        for at, name in enumerate(names):
            pair = [x[at] for x in exact], [x[at] for x in found]
            told.append(f"{name} {decibels(*pair):.1f} dB")
            if how:
                told.append(f"({how} {decibels(seen(pair[0], how), seen(pair[1], how)):.1f} dB)")
        print(f"  {what:<44}", *told, flush=True)


def distinct(feeds: Feeds, variants: Mapping[str, onnx.ModelProto], name: str) -> None:
    """Print how many different values a tensor has."""
    for what, variant in variants.items():
        values = np.concatenate([each[0].ravel() for each in run(variant, feeds, [name])])
        print(f"  {what:<44} {len(np.unique(values))} different scores")


def by_parts(model: onnx.ModelProto, feeds: Feeds, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Round what Concats read, each part over its own range, and leave other readers of the parts alone."""
    copies, names = onnx.ModelProto(), []
    copies.CopyFrom(model)
    chosen = {node.name for node in nodes}
    place = 0
    for node in list(copies.graph.node):
        if node.name in chosen:
            for slot, each in enumerate(node.input):
                names.append(f"{node.name}/part{slot}")
                copies.graph.node.insert(place, helper.make_node("Identity", [each], [names[-1]], names[-1]))
                place += 1
                copies.graph.node[place].input[slot] = names[-1]
        place += 1
    return rounded(copies, feeds, names)


def weights_of(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Round the weights of recurrent nodes to 255 steps a row."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    chosen = {name for node in nodes for name in node.input[1:3]}
    for tensor in result.graph.initializer:
        if tensor.name in chosen:
            values = numpy_helper.to_array(tensor)
            scale = np.maximum(np.abs(values).max(axis=-1, keepdims=True) / 127, 1e-30)
            tensor.CopyFrom(
                numpy_helper.from_array((np.rint(values / scale) * scale).astype(values.dtype), tensor.name)
            )
    return result


def measure(family: Family, model: onnx.ModelProto, feeds: Feeds) -> None:
    """Print what the reason of a family's rule is measured on."""
    scope, index = next(iter(scopes(model))), Index(model)
    nodes = [index.nodes[part.node] for part in family.parts if part.node in index.nodes]
    outputs = [name for part in family.parts for name in part.tensors[-1:]]
    layers = [node.input[0] for node in index.graph.node if scope.weight(node) and node.input[0] in index.producer]
    name = family.rule.name
    if name in ("detection head", "skip connections"):
        joined = [node for node in nodes if node.op_type == "Concat"]
        variants = {"exact": model, "each part by its own range": by_parts(model, feeds, joined)}
        variants["one scale for all parts"] = rounded(model, feeds, [node.output[0] for node in joined])
        compared(model, feeds, variants)
        mixed = [each for part in family.parts if part.mixed for each in index.nodes[part.node].input]
        scores = [each for each in mixed if _is_gate(scope, each)]
        if scores:
            last = index.nodes[next(part.node for part in family.parts if part.mixed)].output[0]
            variants = {key: _scores(value, last, list(mixed).index(scores[0])) for key, value in variants.items()}
            distinct(feeds, variants, "measured/scores")
    elif name == "attention masks":
        scores = [each for node in nodes for each in node.input if each in scope.computed]
        compared(model, feeds, {"scores": rounded(model, feeds, scores), "masked": rounded(model, feeds, outputs)})
    elif name == "recurrent cells":
        compared(model, feeds, {"weights, 8 bits": weights_of(model, nodes)})
    elif name == "embedding tables":
        size = sum(part.figure for part in family.parts)
        print(f"  {size / 1e6:.1f} of {model.ByteSize() / 1e6:.1f} MB")
    elif name in ("decoder of queries", "embedding output", "vocoder"):
        how = {"decoder of queries": "between rows", "embedding output": "between samples"}
        variants = {"what every layer reads": rounded(model, feeds, layers)}
        compared(model, feeds, variants, how.get(name, "upper half of frequencies"))
    else:
        axis = -1 if name.startswith("normalization") else 1
        variants = {"one scale": rounded(model, feeds, outputs)}
        variants["a scale for each channel"] = rounded(model, feeds, outputs, axis)
        if name in ("swish", "squeeze and excite"):
            gates = [each for node in nodes for each in node.input if _is_gate(scope, each)]
            variants["gates alone"] = rounded(model, feeds, gates)
        compared(model, feeds, variants)


def _scores(model: onnx.ModelProto, joined: str, slot: int) -> onnx.ModelProto:
    """Add the part of a Concat's output that holds scores, by its place, as a tensor of its own."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    node = next(each for each in result.graph.node if each.op_type == "Concat" and each.output[0].startswith(joined))
    axis = next(item.i for item in node.attribute if item.name == "axis")
    result.graph.node.append(helper.make_node("Shape", [node.input[slot]], ["measured/shape"]))
    result.graph.initializer.append(numpy_helper.from_array(np.array([axis], np.int64), "measured/axis"))
    result.graph.node.append(helper.make_node("Gather", ["measured/shape", "measured/axis"], ["measured/size"]))
    result.graph.node.append(helper.make_node("Neg", ["measured/size"], ["measured/first"]))
    result.graph.initializer.append(numpy_helper.from_array(np.array([2**62], np.int64), "measured/end"))
    inputs = [joined, "measured/first", "measured/end", "measured/axis"]
    result.graph.node.append(helper.make_node("Slice", inputs, ["measured/scores"]))
    return result


def _is_gate(scope: Scope, name: str) -> bool:
    maker = scope.origin(name, MOVING)[1]
    return maker is not None and maker.op_type in ("Sigmoid", "HardSigmoid", "Clip", "Div")


def main(folders: Sequence[str]) -> None:
    """Measure every family of each model."""
    for folder in map(Path, folders):
        model = prepare(folder / "model.onnx", simplify).model
        feeds = [dict(np.load(path)) for path in sorted((folder / "data").glob("*.npz"))[:16]]
        for family in find_families(model):
            print(f"{folder.name}: {family.rule.name}: {len(family.parts)}")
            measure(family, model, feeds)


if __name__ == "__main__":
    main(sys.argv[1:])
