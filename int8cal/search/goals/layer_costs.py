"""A profile's kernel times, summed up per layer of the Plan: what a layer costs in FP32 and in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.evaluation.optimized_ops import trait
from int8cal.evaluation.original_names import OriginalNames
from int8cal.graph.index import Index
from int8cal.search.goals.latency import LayerCost

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.runtime.profile import Profile

_BORDER = frozenset({"boundary", "layout"})
# They serve the layer that reads what they give; other borders serve the one that wrote it.
_INWARD = frozenset({"QuantizeLinear", "ReorderInput"})


def layer_costs(
    plan: Plan, fp32: tuple[Profile, onnx.ModelProto], int8: tuple[Profile, onnx.ModelProto]
) -> tuple[LayerCost, ...]:
    """Return each layer's cost in both models.

    Args:
        plan: Whose layers are meant.
        fp32, int8: The profile of each model, and the model as it was opened.

    Returns:
        In graph order. A layer that the runtime fused into something unknown is left out: nothing is known of it.
    """
    names = [layer.node for layer in plan.layers]
    before, after = (_per_layer(profile, model, frozenset(names)) for profile, model in (fp32, int8))
    return tuple(
        LayerCost(layer.node, layer.op_type, before[layer.node], after[layer.node])
        for layer in plan.layers
        if layer.node in before and layer.node in after
    )


def layer_links(model: onnx.ModelProto, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return pairs of layers of which the second reads the first's result, as it is or as other nodes changed it.

    Args:
        model: The prepared model.
        plan: Its plan.
    """
    index = Index(model)
    layers = {layer.node: layer for layer in plan.layers}
    return tuple(
        (writer, layer.node)
        for layer in plan.layers
        for writer in dict.fromkeys(_writers(index, layer.input, frozenset(layers)))
    )


def _writers(index: Index, tensor: str, layers: frozenset[str]) -> Iterator[str]:
    pending, seen = [tensor], {tensor}
    while pending:
        producer = index.producer.get(pending.pop())
        if producer is None:
            continue
        if producer.name in layers:
            yield str(producer.name)
            continue
        pending += [name for name in producer.input if name and name not in seen]
        seen.update(producer.input)


def _per_layer(profile: Profile, original: onnx.ModelProto, layers: frozenset[str]) -> dict[str, float]:
    index, names = Index(profile.optimized), OriginalNames(profile.optimized, original)
    known = {node.name for node in original.graph.node}
    owner = {
        node.name: names.node(node) for node in profile.optimized.graph.node if trait(node.op_type).role not in _BORDER
    }
    result: dict[str, float] = {}
    for node in profile.optimized.graph.node:
        name = owner.get(node.name, "")
        if name not in layers and (name == "" or (node.op_type == "Transpose" and node.name not in known)):
            name = _neighbour(index, node, owner, layers)
        if name in layers:
            result[name] = result.get(name, 0.0) + profile.kernels.get(node.name, 0.0)
    return result


def _neighbour(index: Index, node: onnx.NodeProto, owner: dict[str, str], layers: frozenset[str]) -> str:
    """Return the layer that a border belongs to, looking through other borders; "" where there is none."""
    inward = node.op_type in _INWARD or (
        node.op_type == "Transpose"
        and any(use.node.op_type.startswith("QLinear") for use in index.uses.get(node.output[0], []))
    )
    for down in (inward, not inward):
        at: onnx.NodeProto | None = node
        while at is not None:
            uses = index.uses.get(at.output[0], [])
            at = (uses[0].node if uses else None) if down else index.producer.get(at.input[0])
            if at is None or owner.get(at.name, "") in layers:
                break
            if trait(at.op_type).role not in _BORDER and at.op_type != "Transpose":
                at = None
        if at is not None:
            return owner[at.name]
    return ""
