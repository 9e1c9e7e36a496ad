"""Single roundings in bodies of If, Loop and Scan: one float model of which a number at run time says what is rounded.

A body may run often or not at all, and what it is fed in a round follows from the round before. So an error is computed
where it enters, in every run of its body, instead of being fed: an If beside it asks whether this is the one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.bodies import full_name, put_back
from int8cal.graph.edit import Names, refill
from int8cal.graph.index import Index
from int8cal.probe.injection import make_injection
from int8cal.probe.rounded import ErrorNodes, NoiseSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.graph.bodies import Body
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine
    from int8cal.probe.rounded import RoundedLayer

NOTHING = -1  # the number of no source


@dataclass(frozen=True, eq=False)
class InnerGraph:
    """A body, and what is rounded in it.

    Attributes:
        body: The body.
        model: Its prepared (and equalized) float model.
        plan: Its plan.
        sources: What is rounded, by names of the body.
        elements: Values of every planned tensor per run of the body.
        runs: How often it is run per inference of the whole model.
    """

    body: Body
    model: onnx.ModelProto
    plan: Plan
    sources: Mapping[NoiseSource, RoundedLayer | Affine]
    elements: Mapping[str, float]
    runs: float

    def full(self, source: NoiseSource) -> NoiseSource:
        """Return a source under the name that it has in the whole model."""
        return replace(source, name=full_name(self.body.path, source.name))


def switched_model(
    model: onnx.ModelProto, inside: Sequence[InnerGraph], numbers: Mapping[NoiseSource, int]
) -> tuple[onnx.ModelProto, str]:
    """Build the float model in which one rounding in a body can be switched on.

    Args:
        model: The prepared (and equalized) main graph; not changed.
        inside: All planned bodies, one behind the one that it is in.
        numbers: Sources by their full names -> the number that switches them on, 0 and above.

    Returns:
        The model, and the name of its optional input that takes a number, int64 (); NOTHING without it.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    switch = Names(whole.graph, *(each.model.graph for each in inside)).tensor("switched_on")
    wanted: set[str] = set()
    for each in reversed(inside):
        if each.body.path in wanted or any(each.full(source) in numbers for source in each.sources):
            wanted |= {each.body.path, each.body.parent}
    put_back(
        whole,
        [
            (replace(each.body, outer=(*each.body.outer, switch)), _switched_body(each, numbers, switch))
            for each in inside
            if each.body.path in wanted
        ],
    )
    whole.graph.input.append(helper.make_tensor_value_info(switch, onnx.TensorProto.INT64, []))
    whole.graph.initializer.append(numpy_helper.from_array(np.array(NOTHING), switch))
    return whole, switch


def _switched_body(inner: InnerGraph, numbers: Mapping[NoiseSource, int], switch: str) -> onnx.ModelProto:
    """Add the errors of a body's sources to it, each computed where the switch has its number."""
    injection = make_injection(inner.model, inner.plan, behind_layers=True)
    model = injection.model.assemble()
    graph, errors = model.graph, ErrorNodes(Index(inner.model))
    asked: dict[str, list[NoiseSource]] = {}
    for source in inner.sources:
        if inner.full(source) in numbers:
            asked.setdefault(injection.inputs[source.site], []).append(source)
    zero = numpy_helper.from_array(np.zeros((), np.float32), f"{switch}/zero")
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for site in (name for name in node.input if name in asked):
            # the Add of a site: what it reads first is the value without the error
            found = []
            for source in asked[site]:
                errors.added = []
                errors.add(source, inner.sources[source])
                exact = errors.index.nodes[source.name].output[0] if source.what != "others" else source.name
                for each in errors.added:
                    each.input[:] = [node.input[0] if name == exact else name for name in each.input]
                number = numpy_helper.from_array(np.array(numbers[inner.full(source)]), f"{switch}/{len(nodes)}")
                errors.constants.append(number)
                nodes += _where_asked(switch, number.name, errors.outputs[source], errors.added, zero.name)
                found.append(nodes[-1].output[0])
            nodes.append(helper.make_node("Sum", found, [site], f"{site}/sum"))
        nodes.append(node)
    refill(graph.node, nodes)
    given = [tensor for tensor in graph.initializer if tensor.name not in asked]
    refill(graph.initializer, [*given, *errors.constants, zero])
    return model


def _where_asked(
    switch: str, number: str, error: str, computed: Sequence[onnx.NodeProto], zero: str
) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """Compute an error where the switch has its number; it is 0 elsewhere."""
    value, nothing = (
        onnx.ValueInfoProto(name=name, type=onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=1)))
        for name in (error, f"{error}/nothing")
    )
    none = helper.make_node("Identity", [zero], [nothing.name], nothing.name)
    here = f"{error}/asked"
    return (
        helper.make_node("Equal", [switch, number], [here], here),
        helper.make_node(
            "If",
            [here],
            [f"{error}/switched"],
            f"{error}/switched",
            then_branch=helper.make_graph(computed, f"{error}/then", [], [value]),
            else_branch=helper.make_graph([none], f"{error}/else", [], [nothing]),
        ),
    )
