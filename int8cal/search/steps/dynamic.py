"""Step: products whose input gets its range at run time, where that makes less noise at the outputs than a fixed range.

Both run in the same time on onnxruntime's CPU provider (docs/forms.md), so accuracy alone decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.layers import DYNAMIC_OPS
from int8cal.quantization.derived_tables import without_unused_ranges
from int8cal.search.search import Proposal, Remark
from int8cal.search.steps.output_error import precision_of

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.layers import LayerForm
    from int8cal.graph.plan import Plan
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State


def propose(state: State, inputs: Inputs) -> Proposals:
    """Offer a range at run time for all products that have less noise so, then for those alone that gain most."""
    if inputs.job.quantization.activations != "auto" or inputs.holdout.scorer is None:
        return
    plan = inputs.ranged(state.plan)
    groups = dynamic_groups(inputs.prepared, plan)
    if not groups:
        yield Remark(("no product can have its range taken at run time: their inputs come from integer kernels",))
        return
    precision = precision_of(state, inputs, plan)
    gains = precision.dynamic_gains(list(groups), state.table.affines(plan))
    precision.probe.close()  # scoring opens models of its own
    better = sorted((group for group in groups if gains[group] > 0), key=lambda group: -gains[group])
    lines = [f"{len(better)} of {len(groups)} tensors have less noise with a range taken at run time"]
    state = yield Remark(tuple(lines))
    half = better[: (len(better) + 1) // 2]
    for chosen in dict.fromkeys((tuple(better), tuple(half), tuple(better[:1]))):
        nodes = [node for group in chosen for node in groups[group]]
        if not nodes:
            return
        forms: dict[str, LayerForm] = dict.fromkeys(nodes, "dynamic")
        settings = state.table.settings
        smaller = inputs.plan_for(settings.with_forms({**settings.forms, **forms}))
        table = without_unused_ranges(state.table, (state.plan, smaller), forms)
        notes = (f"ranges taken at run time: {', '.join(nodes)}",)
        state = yield Proposal(f"ranges at run time for {len(nodes)} layers", table, smaller, notes=notes)
        if state.results[-1].kept:
            return


def dynamic_groups(model: onnx.ModelProto, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the groups of tensors that only products read, and that exist as float, with these products' nodes.

    Where an integer kernel writes the codes, or another one reads them, a range at run time would only add work.

    Args:
        model: The prepared model.
        plan: Its plan.
    """
    group_of = {each.tensor: each.group for each in plan.tensors}
    layers = {layer.node: layer for layer in plan.layers}
    readers: dict[str, list[str]] = {}
    barred = {each.group for each in plan.tensors if each.exclusive}
    for node in model.graph.node:
        if node.name not in plan.integer_nodes:
            continue
        layer = layers.get(node.name)
        if layer is not None:
            group = group_of.get(layer.input, "")
            readers.setdefault(group, []).append(node.name)
            if layer.op_type not in DYNAMIC_OPS or layer.axis is None:
                barred.add(group)
            continue
        made = {group_of[name] for name in node.output if name in group_of}
        barred.update(group_of[name] for name in node.input if name in group_of and group_of[name] not in made)
    return {group: tuple(nodes) for group, nodes in readers.items() if group and group not in barred}
