"""From a calibrated table to one with the fewest layers outside int8 for which the gates hold, within a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from int8cal.evaluation.figures import output_of
from int8cal.evaluation.gates import check_gates, gates_of, on_outputs
from int8cal.evaluation.result import Evaluation, MixedGate, MixedLayer, MixedPoint, MixedPrecision, Saturation, Size
from int8cal.graph.bodies import full_name
from int8cal.graph.chains import find_chains
from int8cal.graph.costs import inference_us, other_nodes_us
from int8cal.graph.index import Index
from int8cal.phrases import counted
from int8cal.probe.contributions import measure_contributions
from int8cal.probe.injection import ErrorSite, sites_of
from int8cal.probe.inside import InnerGraph
from int8cal.probe.rounded import NoiseSource, RoundedLayer
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.equalization import Equalization, apply_factors
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.search.goals.mixed import MixPlanner, PrecisionMix, build_mix, fewest, needed
from int8cal.search.goals.optional_layers import named_in_full, open_layers
from int8cal.search.residual import ResidualGroup, residual_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from int8cal.calibration.engines.local import Collected
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.evaluation.gates import ParsedGate
    from int8cal.evaluation.result import Metrics
    from int8cal.evaluation.result_parts import Gate
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.job import Job
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.table import CalibrationTable
    from int8cal.search.goals.gate_figures import Figures, GateEvaluator
    from int8cal.search.goals.optional_layers import OptionalLayer
    from int8cal.search.search import Result

_OF_LAYERS: tuple[Literal["input", "weights"], ...] = ("input", "weights")


@dataclass(frozen=True)
class _Evaluated:
    mix: PrecisionMix
    gates: tuple[Gate, ...]
    metrics: Metrics

    @property
    def holds(self) -> bool:
        return all(gate.passed for gate in self.gates)

    @property
    def rank(self) -> tuple[float, ...]:
        """Larger is better: more gates that hold; then less time if all do, or else less noise."""
        passed = sum(gate.passed for gate in self.gates)
        if self.holds:
            return (passed, -self.mix.percent)
        return (passed, -math.inf if self.metrics.sqnr_db is None else self.metrics.sqnr_db)


@dataclass(frozen=True, eq=False)
class _Graph:
    """The main graph, or a body of an If, Loop or Scan, with what was calibrated in it.

    Attributes:
        path: Of the body; "" for the main graph.
        model: Its prepared model.
        plan, table: Of this graph.
        elements: Values of every planned tensor per run of the graph.
        runs: How often it is run per inference.
    """

    path: str
    model: onnx.ModelProto
    plan: Plan
    table: CalibrationTable
    elements: dict[str, float]
    runs: float

    @property
    def rescaled(self) -> onnx.ModelProto:
        """The float model that the integers stand for."""
        index = Index(self.model)
        return apply_factors(index, find_chains(index, self.plan), Equalization.of(self.table).exponents)


@dataclass(frozen=True)
class _Opened:
    """What of a graph may leave int8, by full names and per inference; `sources` by names of the graph."""

    layers: tuple[OptionalLayer, ...]
    groups: tuple[ResidualGroup, ...]
    sources: dict[NoiseSource, RoundedLayer | Affine]


def _opened(graph: _Graph, *, planes: bool) -> _Opened:
    """Find the layers of a graph that may leave int8, and what is rounded in it; `planes`: to residual codes, too."""
    plan, table, elements = graph.plan, graph.table, graph.elements
    built = build_model(graph.model, replace(plan, bodies={}), table)
    already, copies = built.draft.residual, built.draft.copies
    # a pattern may be about other graphs of the model
    selection = replace(table.settings.selection, partial=True)
    layers = open_layers(graph.model, plan, selection, elements, built.draft.pixel_nodes)
    affines = {name: entry.affine for name, entry in table.tensors.items()}
    sources: dict[NoiseSource, RoundedLayer | Affine] = {}
    for each in layers:
        affine = affines[each.layer.input]
        residual, more = each.node in already, copies.get(each.node, ())
        rounded = RoundedLayer(each.layer, built.layers[each.node], affine, residual, more)
        sources |= {NoiseSource(what, each.node): rounded for what in _OF_LAYERS}
    groups: list[ResidualGroup] = []
    if planes:
        # signed codes have no residual codes
        can = {each.node for each in layers if affines[each.layer.input].dtype.qmin == 0} - already
        groups = [each for each in residual_groups(plan, elements).values() if can.issuperset(each.nodes)]
    doubled = [node for group in groups for node in group.nodes]
    wide = with_residual_codes(table, plan, doubled).tensors if doubled else {}
    by_node = {each.node: each.layer for each in layers}
    for node in doubled:
        affine = wide[by_node[node].input].affine
        rounded = RoundedLayer(by_node[node], built.layers[node], affine, True, copies.get(node, ()))
        sources[NoiseSource("input", node, residual=True)] = rounded
    sites = sites_of(graph.model, plan)
    read = [each.tensor for each in plan.tensors if each.source and ErrorSite(each.tensor, "others") in sites]
    sources |= {NoiseSource("others", tensor): affines[tensor] for tensor in read}
    return _Opened(
        tuple(named_in_full(each, graph.path, graph.runs) for each in layers),
        tuple(
            ResidualGroup(tuple(full_name(graph.path, node) for node in each.nodes), graph.runs * each.us)
            for each in groups
        ),
        sources,
    )


@dataclass
class GateSearch:
    """Evaluates, and leaves layers out of int8 until the gates about outputs hold or the budget is spent.

    Args:
        prepared: The prepared model.
        job: With gates and a budget.
        result: With every layer in int8.
        collected: The statistics, and samples to measure the layers' noise on.
        evaluator: Evaluates models.
        publish: Puts a result on disk: each that is better than the first, which is there already.
        cluster: Measures the layers' noise; None for this process.
    """

    prepared: Prepared
    job: Job
    result: Result
    collected: Collected
    evaluator: GateEvaluator
    publish: Callable[[Result], None]
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        self._gates = on_outputs(gates_of(self.job.evaluation))
        self._budget = self.job.quantization.budget or 0.0
        self._evaluated: list[_Evaluated] = []
        # models are large: only the best is held
        self._best_result = self.result

    def run(self) -> tuple[Result, MixedPrecision]:
        """Search, once.

        Returns:
            The best that was found, and how.

        Raises:
            Int8calError: Of evaluating.
        """
        plain = self._evaluate(PrecisionMix())
        planner, percent, most = None, None, PrecisionMix()
        if not plain.holds:
            planner = self._planner(plain)
            mixes = planner.mixes(self._budget).possible(self.prepared, self.result)
            found = fewest(len(mixes) - 1, lambda number: self._evaluate(mixes[number]).holds)
            if found is None:
                every = planner.mixes(math.inf).possible(self.prepared, self.result)
                percent, most = self._needed(plain, every), every[-1]
        best = self._best
        curve = sorted(self._evaluated, key=lambda each: (each.mix.percent, len(each.mix.floats)))
        mixed = MixedPrecision(
            budget_percent=self._budget,
            fallback=self.job.quantization.fallback,
            layers=_described(self.result.plan, planner, best, self._budget) if planner is not None else (),
            curve=tuple(_point(each, best) for each in curve),
            needed_percent=None if percent is None or math.isinf(percent) else percent,
            outcome=outcome_of(best.mix, self._budget, percent, most, holds=best.holds),
        )
        return self._with_lines(best, mixed), mixed

    @property
    def _best(self) -> _Evaluated:
        return max(self._evaluated, key=lambda each: each.rank)

    def _evaluate(self, mix: PrecisionMix) -> _Evaluated:
        result = build_mix(self.prepared, self.result, mix) if mix.floats or mix.residual else self.result
        figures = self.evaluator.figures(result.model)
        evaluated = _Evaluated(mix, check_gates(self._gates, _evaluation(figures)), figures.metrics)
        if self._evaluated and evaluated.rank > self._best.rank:
            self.publish(result)
            self._best_result = result
        self._evaluated.append(evaluated)
        return evaluated

    def _planner(self, plain: _Evaluated) -> MixPlanner:
        """Measure how much noise each layer makes, as it is and with residual codes, at the outputs that decide."""
        plan, signature = self.result.plan, self.prepared.signature
        graphs = [*self._graphs()]
        opened = [_opened(graph, planes=self.job.quantization.fallback == "planes") for graph in graphs]
        main, sources = graphs[0], opened[0].sources
        bodies = [each.body for path, each in plan.bodies.items() if path in {graph.path for graph in graphs}]
        inside = [
            InnerGraph(body, graph.rescaled, graph.plan, each.sources, graph.elements, graph.runs)
            for body, graph, each in zip(bodies, graphs[1:], opened[1:], strict=True)
        ]
        measured = measure_contributions(
            main.rescaled,
            main.plan,
            signature,
            sources,
            self.collected.kept,
            main.elements,
            inside=inside,
            threads=self.job.calibration.threads,
            cluster=self.cluster,
        )
        layers = [each for graph in opened for each in graph.layers]
        groups = [each for graph in opened for each in graph.groups]
        whole = sum(graph.runs * inference_us(graph.model, graph.plan, graph.elements) for graph in graphs)
        if self.collected.kept:
            whole += other_nodes_us(main.model, main.plan, self.collected.kept[0].feed)
        others = len(layers) < len(plan.ranged_layers) or any(graph.plan.recurrent for graph in graphs)
        shares = measured.shares(_deciding(plain.gates, self._gates))
        return MixPlanner(layers, groups, shares, whole, keep=0 if others else 1)

    def _graphs(self) -> Iterator[_Graph]:
        """Iterate over the main graph and the bodies of If, Loop and Scan that were calibrated."""
        result, statistics = self.result, self.collected.statistics
        found = {"": statistics} | {**statistics.bodies}
        models, tables = self.prepared.graphs, result.table.graphs
        for path, plan in result.plan.graphs.items():
            if path in found and path in tables:
                own = found[path]
                elements = own.elements
                runs = own.samples / max(statistics.samples, 1)
                yield _Graph(path, models[path], plan, tables[path], elements, runs if path else 1.0)

    def _needed(self, plain: _Evaluated, mixes: Sequence[PrecisionMix]) -> float | None:
        """Estimate the budget that the gates would need, from the noise that the best model still has.

        Returns:
            Percent; infinity where no layers in float would do, None where noise does not tell of a gate.
        """
        best, allowed = self._best, math.inf
        for gate, parsed in zip(best.gates, self._gates, strict=True):
            factor = _factor(gate, parsed, plain.metrics)
            if factor is None:
                return None
            allowed = min(allowed, factor)
        if best.metrics.sqnr_db is not None and plain.metrics.sqnr_db is not None:
            # what the best one really gained corrects the estimate
            left = 10 ** ((plain.metrics.sqnr_db - best.metrics.sqnr_db) / 10)
            allowed *= min(max(1.0 - best.mix.gain, 1e-9) / left, 1.0)
        beyond = (mix for mix in mixes if mix.percent > self._budget)
        mix = needed(beyond, allowed)
        return math.inf if mix is None else mix.percent

    def _with_lines(self, best: _Evaluated, mixed: MixedPrecision) -> Result:
        taken = [
            f"{each.op_type} {each.node}: {each.decision}, {100 * each.contribution:.1f} % of the noise for "
            f"an estimated {each.estimated_percent:.1f} % of time"
            for each in mixed.layers
            if each.node in best.mix.floats
        ]
        result = self._best_result
        lines = (*result.decisions, f"mixed precision: {mixed.outcome}", *taken)
        table = result.table
        if not best.holds:
            table = replace(table, warnings=(*table.warnings, mixed.outcome))
        return replace(result, decisions=lines, table=table)


def _point(evaluated: _Evaluated, best: _Evaluated) -> MixedPoint:
    mix, metrics = evaluated.mix, evaluated.metrics
    return MixedPoint(
        layers_left=len(mix.floats),
        planes=len(mix.residual),
        estimated_percent=mix.percent,
        gates={gate.gate: MixedGate(gate.value, gate.passed) for gate in evaluated.gates},
        sqnr_db=metrics.sqnr_db,
        cosine=metrics.cosine,
        agreement=metrics.agreement,
        top1_drop=None if metrics.top1 is None else metrics.top1.drop,
        kept=mix == best.mix,
    )


def _deciding(gates: Sequence[Gate], parsed: Sequence[ParsedGate]) -> frozenset[str]:
    """Name the outputs that gates which do not hold are about; none where one is about the whole model."""
    outputs = [output_of(each.name) for gate, each in zip(gates, parsed, strict=True) if not gate.passed]
    return frozenset() if None in outputs else frozenset(name for name in outputs if name is not None)


def _factor(gate: Gate, parsed: ParsedGate, plain: Metrics) -> float | None:
    """Return how much of the noise may be left for a gate to hold; None where noise does not tell."""
    if gate.passed:
        return 1.0
    if parsed.name == "sqnr_db" and plain.sqnr_db is not None and parsed.operator in (">", ">="):
        return float(10 ** ((plain.sqnr_db - parsed.bound) / 10))
    # 1 - cosine grows with the power of the noise
    if parsed.name == "cosine" and plain.cosine is not None and parsed.operator in (">", ">=") and plain.cosine < 1:
        return (1 - parsed.bound) / (1 - plain.cosine)
    if parsed.name == "max_abs_error" and plain.max_abs_error and parsed.operator in ("<", "<="):
        return float((parsed.bound / plain.max_abs_error) ** 2)
    return None


def _evaluation(figures: Figures) -> Evaluation:
    none = Saturation("", None), Size(0, 0), None
    return Evaluation(figures.metrics, figures.outputs, (), None, *none, samples=0, metric=figures.metric)


def _described(plan: Plan, planner: MixPlanner, best: _Evaluated, budget: float) -> tuple[MixedLayer, ...]:
    """Say of every layer how much noise it makes, and what became of it in the best model; the loudest first."""
    taken = best.mix
    us = {each.node: each.us for each in planner.layers}
    residual_us = {node: group.us / len(group.nodes) for group in planner.groups for node in group.nodes}
    rows = []
    for node, (_, layer) in plan.ranged_layers.items():
        percent = 100 * us.get(node, 0.0) / planner.whole_us
        if node in taken.floats:
            decision = "float"
        elif node in taken.residual:
            percent, decision = 100 * residual_us[node] / planner.whole_us, "int8 with residual codes of its input"
        elif node not in us:
            decision = "int8, since something else needs it so"
        elif taken.percent + percent > budget:
            decision = "int8, beyond the budget"
        else:
            decision = "int8, the gates hold without" if best.holds else "int8, little noise for its time"
        noise = [planner.noise.get(NoiseSource(what, node), 0.0) for what in _OF_LAYERS]
        rows.append(MixedLayer(node, layer.op_type, sum(noise), percent, decision))
    return tuple(sorted(rows, key=lambda row: -row.contribution))


def outcome_of(taken: PrecisionMix, budget: float, needed: float | None, most: PrecisionMix, *, holds: bool) -> str:
    """Say in one sentence how the search ended.

    Args:
        taken: What was kept.
        budget: In percent.
        needed: Budget that the gates would need by estimate, infinity for none that would do, None where that cannot be
            estimated.
        most: All that can leave int8 has left it; what it reaches is an estimate as well, and was not tried.
        holds: Whether the gates hold.
    """
    parts = ((len(taken.floats), "in float"), (len(taken.residual), "with residual codes"))
    kept = " and ".join(f"{counted(count, 'layer')} {how}" for count, how in parts if count)
    if holds and not kept:
        return "the gates hold with every layer in int8"
    time = f"an estimated {taken.percent:.1f} % more time"
    if holds:
        return f"the gates hold with {kept}, {time}"
    best = f"the best within it has {kept}, {time}" if kept else "no layer that it can leave in float makes them better"
    if needed is None:
        more = "how much would cannot be estimated from the noise"
    elif math.isinf(needed) and most.percent > budget:
        layers = counted(len(most.floats) + len(most.residual), "layer")
        more = f"by estimate not even {layers} would, {most.percent:.1f} % more time"
    elif math.isinf(needed):
        more = "no number of layers does"
    else:
        more = f"by estimate about {math.ceil(needed)} % would"
    return f"a budget of {budget:g} % does not suffice for the gates: {best}; {more}"
