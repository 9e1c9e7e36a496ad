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


def compared(model: onnx.ModelProto, feeds: Feeds, variants: Mapping[str, onnx.ModelProto]) -> None:
    """Print the outputs' SQNR of each variant."""
    names = [value.name for value in model.graph.output]
    exact = run(model, feeds)
    for what, variant in variants.items():
        found = run(variant, feeds)
        figures = [decibels([x[at] for x in exact], [x[at] for x in found]) for at in range(len(names))]
        print(f"  {what:<58}", *(f"{name} {figure:.1f} dB" for name, figure in zip(names, figures, strict=True)))


def measured(family: Family, model: onnx.ModelProto, feeds: Feeds) -> dict[str, onnx.ModelProto]:
    """Make what the reason of a family's rule is measured on."""
    scope, index = next(iter(scopes(model))), Index(model)
    nodes = [index.nodes[part.node] for part in family.parts if part.node in index.nodes]
    outputs = [node.output[0] for node in nodes]
    name = family.rule.name
    if name in ("detection head", "skip connections"):
        joined = [node for node in nodes if node.op_type == "Concat"]
        parts = [each for node in joined for each in node.input if each in index.producer]
        return {
            "each part of the Concats by itself": rounded(model, feeds, parts),
            "the Concats, one scale for all parts": rounded(model, feeds, [node.output[0] for node in joined]),
        }
    if name == "attention masks":
        scores = [each for node in nodes for each in node.input if each in scope.computed]
        return {
            "scores in front of the mask": rounded(model, feeds, scores),
            "masked scores": rounded(model, feeds, outputs),
        }
    if name == "normalization in front of products":
        ends = [part.tensors[0] for part in family.parts]
        return {"one scale": rounded(model, feeds, ends), "a scale for each channel": rounded(model, feeds, ends, -1)}
    if name == "depthwise convolutions":
        ends = [part.tensors[-1] for part in family.parts]
        return {"one scale": rounded(model, feeds, ends), "a scale for each channel": rounded(model, feeds, ends, 1)}
    if name == "squeeze and excite":
        small = {node.name: min(node.input, key=lambda each: _size(model, feeds, each)) for node in nodes}
        gated = [each for node in nodes for each in node.input if each != small[node.name]]
        return {
            "gates": rounded(model, feeds, small.values()),
            "what they multiply": rounded(model, feeds, gated),
        }
    if name == "swish":
        gates = [each for node in nodes for each in node.input if _is_gate(scope, each)]
        return {
            "products alone": rounded(model, feeds, outputs),
            "gates and products": rounded(model, feeds, [*gates, *outputs]),
        }
    return {"what was found": rounded(model, feeds, outputs)}


def _size(model: onnx.ModelProto, feeds: Feeds, name: str) -> int:
    return int(run(model, feeds[:1], [name])[0][0].size)


def _is_gate(scope: Any, name: str) -> bool:
    maker = scope.origin(name, MOVING)[1]
    return maker is not None and maker.op_type in ("Sigmoid", "HardSigmoid", "Clip", "Div", "Mul")


def main(folders: Sequence[str]) -> None:
    """Measure every family of each model."""
    for folder in map(Path, folders):
        model = prepare(folder / "model.onnx", simplify).model
        feeds = [dict(np.load(path)) for path in sorted((folder / "data").glob("*.npz"))[:16]]
        for family in find_families(model):
            print(f"{folder.name}: {family.rule.name}: {len(family.parts)}")
            compared(model, feeds, measured(family, model, feeds))


if __name__ == "__main__":
    main(sys.argv[1:])
