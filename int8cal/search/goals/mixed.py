"""Which layers leave int8 so that gates hold: those that make most noise per microsecond first, the fewest of them.

Nothing here measures time: costs are estimates that are the same on every machine, so that decisions are too.

A layer in float has exact weights. Its input is exact as well only where that exists as float: not where another
layer's integer kernel writes codes. So a layer may be taken together with the one in front of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from int8cal.graph.bodies import full_name
from int8cal.graph.costs import float_us, layer_float_us
from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes
from int8cal.graph.plan import make_plan
from int8cal.probe.injection import sites_of
from int8cal.probe.rounded import NoiseSource
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.quantization.derived_tables import without_noise_of
from int8cal.search.search import left_in_float

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.graph.select import Selection
    from int8cal.search.precision import ResidualGroup
    from int8cal.search.search import Result

LEAST_GAIN = 1e-4  # of the noise; less is not worth a layer in float
MOST_EVALUATIONS = 8
REASON = "in float so that the gates hold"
_FIRST_PART = 16  # the search starts with this part of what the budget allows


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


@dataclass(frozen=True)
class PrecisionMix:
    """The first so many steps away from int8.

    Attributes:
        floats, residual: Full names of layers in float, and of those whose input has residual codes; none is in both.
        percent: Estimated time that is added, of the int8 model's.
        gain: Share of the noise that is taken away by estimate.
    """

    floats: tuple[str, ...] = ()
    residual: tuple[str, ...] = ()
    percent: float = 0.0
    gain: float = 0.0


def open_layers(
    model: onnx.ModelProto, plan: Plan, selection: Selection, elements: Mapping[str, float], fixed: frozenset[str]
) -> tuple[OptionalLayer, ...]:
    """Look at every layer as if it alone stayed float.

    Args:
        model: The prepared model.
        plan: Its plan.
        selection: What the plan was made with.
        elements: Values per inference of every planned tensor.
        fixed: Layers that something else needs in int8.
    """
    index = Index(model)
    known = {each.tensor for each in plan.tensors}
    codes = {each.tensor for each in plan.tensors if each.exclusive}
    sites = sites_of(model, plan)
    found = []
    for layer in plan.layers:
        if layer.node in fixed:
            continue
        smaller = make_plan(index, replace(selection, left=(*selection.left, (layer.node, "as if"))))
        if not known >= {each.tensor for each in smaller.tensors}:
            continue
        freed = codes - {each.tensor for each in smaller.tensors if each.exclusive}
        gone = sites - sites_of(model, smaller)
        before, behind = ends_in_codes(index, plan, layer, smaller.integer_nodes)
        us = layer_float_us(layer, elements[layer.input], codes_before=before, codes_behind=behind)
        for name in sorted(plan.integer_nodes - smaller.integer_nodes - {layer.node, layer.bias_add}):
            us += float_us(index.nodes[name], elements)
        exact = frozenset(site.tensor for site in gone if site.readers == "others")
        found.append(OptionalLayer(layer, frozenset(freed), exact, us, layer.input not in codes))
    return tuple(found)


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


@dataclass
class MixPlanner:
    """Steps away from int8, each the one that takes away most noise per microsecond.

    Args:
        layers: Those that may stay float.
        groups: Those whose inputs may have residual codes: they get these before any layer becomes float.
        noise: Shares of the noise: of inputs and weights of layers, and of tensors that other nodes read.
        whole_us: Estimated microseconds of the int8 model.
        keep: Number of these layers that stay int8 at least.
    """

    layers: Sequence[OptionalLayer]
    groups: Sequence[ResidualGroup]
    noise: Mapping[NoiseSource, float]
    whole_us: float
    keep: int
    _inputs: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def mixes(self, budget: float) -> tuple[PrecisionMix, ...]:
        """Add up steps within a budget; one that does not fit is left out, and a cheaper one behind it may still fit.

        Args:
            budget: In percent of the int8 model's estimated time; inf for all steps.

        Returns:
            The mixes, from nothing taken on.
        """
        mixes = [PrecisionMix()]
        self._inputs = {each.node: self.noise.get(NoiseSource("input", each.node), 0.0) for each in self.layers}
        for group in sorted(self.groups, key=lambda each: (-self._saved(each) / each.us, each.nodes)):
            last, saved = mixes[-1], self._saved(group)
            percent = last.percent + 100 * group.us / self.whole_us
            if saved >= LEAST_GAIN and percent <= budget:
                mixes.append(
                    replace(last, residual=(*last.residual, *group.nodes), percent=percent, gain=last.gain + saved)
                )
                self._inputs |= {node: self.noise[NoiseSource("input", node, residual=True)] for node in group.nodes}
        while (following := self._next(mixes[-1], budget)) is not None:
            mixes.append(following)
        return tuple(mixes)

    def _saved(self, group: ResidualGroup) -> float:
        return math.fsum(
            self.noise[NoiseSource("input", node)] - self.noise[NoiseSource("input", node, residual=True)]
            for node in group.nodes
        )

    def _next(self, last: PrecisionMix, budget: float) -> PrecisionMix | None:
        """Return the mix with the further layers in float that gain most per microsecond; None where none fit."""
        taken = [each for each in self.layers if each.node in last.floats]
        before, best, most = self._gain(taken), None, 0.0
        for step in (step for each in self.layers for step in self._steps(each, last.floats)):
            gain, us = self._gain([*taken, *step]) - before, math.fsum(one.us for one in step)
            percent = last.percent + 100 * us / self.whole_us
            fits = percent <= budget and len(taken) + len(step) <= len(self.layers) - self.keep
            if fits and gain >= LEAST_GAIN and (best is None or gain / us > most):
                floats, most = (*last.floats, *(one.node for one in step)), gain / us
                residual = tuple(node for node in last.residual if node not in floats)
                best = PrecisionMix(floats, residual, percent, min(last.gain + gain, 1.0))
        return best

    def _steps(self, each: OptionalLayer, floats: tuple[str, ...]) -> list[tuple[OptionalLayer, ...]]:
        """Return a layer alone, and together with any layer that makes its input float; none where it is in float."""
        if each.node in floats:
            return []
        before = [one for one in self.layers if each.layer.input in one.freed and one.node not in (*floats, each.node)]
        return [(each,)] if each.free else [(each,), *((one, each) for one in before)]

    def _gain(self, floats: Sequence[OptionalLayer]) -> float:
        """Return the share of the noise that goes when layers are float."""
        freed = frozenset[str]().union(*(each.freed for each in floats))
        exact = frozenset[str]().union(*(each.exact for each in floats))
        parts = [self.noise.get(NoiseSource("weights", each.node), 0.0) for each in floats]
        parts += [self._inputs[each.node] for each in floats if each.free or each.layer.input in freed]
        parts += [self.noise.get(NoiseSource("others", tensor), 0.0) for tensor in sorted(exact)]
        return math.fsum(parts)


def fewest(top: int, holds: Callable[[int], bool]) -> int | None:
    """Find the lowest mix at which the gates hold: larger and larger steps up, then halving.

    Args:
        top: The highest mix.
        holds: Judges a mix above 0; at 0 the gates do not hold. Nearly monotonic.

    Returns:
        The mix; None where the gates hold at none that was tried, the highest among them.
    """
    if top < 1:
        return None
    low, high, count = 0, max(1, math.ceil(top / _FIRST_PART)), 1
    while not holds(high):
        if high == top:
            return None
        low, high, count = high, min(2 * high, top), count + 1
    while high - low > 1 and count < MOST_EVALUATIONS:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        count += 1
    return high


def needed(mixes: Sequence[PrecisionMix], factor: float) -> PrecisionMix | None:
    """Return the lowest mix that by estimate leaves no more than a part of the noise; None where none does.

    Args:
        mixes: Of a planner without budget.
        factor: Noise that may be left, of that with every layer in int8.
    """
    return next((mix for mix in mixes if 1.0 - mix.gain <= factor), None)


def build_mix(prepared: Prepared, whole: Result, mix: PrecisionMix) -> Result:
    """Build the model of a mix.

    Args:
        prepared: The prepared model.
        whole: The table with every layer in int8.
        mix: What is not plain int8.

    Raises:
        TableError: The mix leaves no layer in int8.
    """
    doubled: dict[str, list[str]] = {}
    for name in mix.residual:
        path, layer = whole.plan.ranged_layers[name]
        doubled.setdefault(path, []).append(layer.node)
    tables, plans = whole.table.graphs, whole.plan.graphs
    table = whole.table.with_graphs(
        {path: with_residual_codes(tables[path], plans[path], nodes) for path, nodes in doubled.items()}
    )
    if mix.floats:
        tables, left = table.graphs, dict.fromkeys(mix.floats, REASON)
        whole = replace(whole, table=table)
        return left_in_float(prepared, whole, left, lambda path, *cut: without_noise_of(tables[path], *cut))
    built = build_model(prepared.model, whole.plan, table, whole.known)
    return replace(whole, table=with_weights(table, whole.plan, built), model=built.model)
