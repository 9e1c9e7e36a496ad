"""Which layers may leave int8, and what each would take with it: its codes, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.graph.bodies import full_name
from int8cal.graph.costs import float_us, layer_float_us
from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes
from int8cal.graph.layers import activated
from int8cal.graph.planner import make_plan
from int8cal.probe.injection import sites_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import onnx

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.select import Selection

# What a plan says of a node ("integer") or of a tensor: that it has a scale ("scale"), exists as codes alone ("codes"),
# and who reads these ("layers", "others").
Fact = tuple[str, str]

APART = 8  # layers in graph order, of which a plan leaves out one


@dataclass(frozen=True)
class OptionalLayer:
    """What is known of a layer that may stay float.

    Attributes:
        layer: The layer; its node and input have their full names, and so have the tensors here.
        freed: Tensors that are written as codes now and would be float.
        exact: Tensors that are rounded for readers which are no layers, and would not be.
        us: Estimated microseconds that it takes longer in float, and what falls to float with it.
        free: Its own input exists as float already.
    """

    layer: Layer
    freed: frozenset[str]
    exact: frozenset[str]
    us: float
    free: bool

    @property
    def node(self) -> str:
        """The layer's node."""
        return self.layer.node


def open_layers(
    model: onnx.ModelProto, plan: Plan, selection: Selection, elements: Mapping[str, float], fixed: frozenset[str]
) -> tuple[OptionalLayer, ...]:
    """Look at every layer as if it alone stayed float.

    A plan leaves out many layers at once, far from each other. What changes around one of them, and touches nothing
    that changes around another, is what this one changes alone; those that meet are planned once more, in halves. So
    there are some plans, and no more of them for a longer graph.

    Args:
        model: The prepared model.
        plan: Its plan.
        selection: What the plan was made with.
        elements: Values per inference of every planned tensor.
        fixed: Layers that something else needs in int8; so are those beside which they would not stay so.
    """
    index, before = Index(model), _facts(model, plan)
    can = [layer for layer in plan.layers if layer.node not in fixed]
    found: dict[str, OptionalLayer] = {}
    waiting = [can[first::APART] for first in range(min(APART, len(can)))]
    while waiting:
        group = waiting.pop()
        left = tuple((layer.node, "as if") for layer in group)
        smaller = make_plan(index, replace(selection, left=(*selection.left, *left)))
        after = _facts(model, smaller)
        changed = _by_layer(index, group, before ^ after)
        meeting = [layer for layer in group if layer.node not in changed]
        waiting += filter(None, (meeting[::2], meeting[1::2]))
        for layer in group:
            facts = changed.get(layer.node, ())
            if layer.node not in changed or any(kind == "scale" and (kind, name) in after for kind, name in facts):
                continue
            lost = {kind: {name for each, name in facts if each == kind and (kind, name) in before} for kind in _KINDS}
            if lost["integer"] & fixed:
                continue
            ends = ends_in_codes(index, plan, layer, smaller.integer_nodes)
            us = layer_float_us(layer, elements[layer.input], codes_before=ends[0], codes_behind=ends[1])
            for name in sorted(lost["integer"] - {layer.node, layer.bias_add}):
                us += float_us(index.nodes[name], elements)
            freed, exact, free = (
                frozenset(lost["codes"]),
                frozenset(lost["others"]),
                ("codes", layer.input) not in before,
            )
            found[layer.node] = OptionalLayer(layer, freed, exact, us, free)
    return tuple(found[layer.node] for layer in can if layer.node in found)


_KINDS = ("integer", "scale", "codes", "layers", "others")


def _facts(model: onnx.ModelProto, plan: Plan) -> frozenset[Fact]:
    """Return what may change of a plan when a layer leaves int8."""
    return frozenset(
        (
            *(("integer", name) for name in plan.integer_nodes),
            *(("scale", each.tensor) for each in plan.tensors),
            *(("codes", each.tensor) for each in plan.tensors if each.exclusive),
            *((site.readers, site.tensor) for site in sites_of(model, plan)),
        )
    )


def _by_layer(index: Index, group: Sequence[Layer], changed: Collection[Fact]) -> dict[str, list[Fact]]:
    """Divide what changed among the layers that were left out together.

    Args:
        index: Of the graph.
        group: The layers.
        changed: Since they were left out.

    Returns:
        By node, of those layers whose changes touch no other's; none where a change is not beside that of any layer.
    """
    if len(group) == 1:
        return {group[0].node: [*changed]}
    facts: dict[Fact, list[Fact]] = {}  # by place: ("integer", node) or ("", tensor)
    for kind, name in changed:
        facts.setdefault((kind if kind == "integer" else "", name), []).append((kind, name))
    owner: dict[Fact, str] = {}
    met: set[str] = set()
    for layer in group:
        waiting: list[Fact] = [("integer", layer.node)]
        owner.setdefault(waiting[0], layer.node)
        while waiting:
            for place in _beside(index, *waiting.pop()):
                known = owner.get(place)
                if known is None:
                    owner[place] = layer.node
                    waiting += [place] if place in facts else []
                elif known != layer.node:
                    met |= {known, layer.node}
    if not facts.keys() <= owner.keys():
        return {}
    parts: dict[str, list[Fact]] = {layer.node: [] for layer in group if layer.node not in met}
    for place, each in facts.items():
        if owner[place] in parts:
            parts[owner[place]] += each
    return parts


def _beside(index: Index, kind: str, name: str) -> Iterator[Fact]:
    """Iterate over the tensors of a node with its activation, but for constants, or the nodes of a tensor."""
    if kind == "integer":
        node = index.nodes[name]
        tensors = (*node.input, *node.output, activated(index, node))
        yield from (("", tensor) for tensor in tensors if tensor and not index.is_constant(tensor))
        return
    if name in index.producer:
        yield "integer", index.producer[name].name
    yield from (("integer", use.node.name) for use in index.uses.get(name, ()))


def named_in_full(each: OptionalLayer, path: str, runs: float) -> OptionalLayer:
    """Name what is known of a layer as the whole model does, and count its time per inference.

    Args:
        each: By names of its graph, and per run of it.
        path: Of the body that it is in; "" for the main graph.
        runs: How often that is run per inference.
    """
    layer = replace(each.layer, node=full_name(path, each.node), input=full_name(path, each.layer.input))
    freed, exact = (frozenset(full_name(path, name) for name in names) for names in (each.freed, each.exact))
    return replace(each, layer=layer, freed=freed, exact=exact, us=runs * each.us)
