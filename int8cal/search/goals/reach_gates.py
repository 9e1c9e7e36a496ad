"""From a calibrated table to one with the fewest layers outside int8 for which the gates hold, within a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from int8cal.evaluation.figures import output_of
from int8cal.evaluation.gates import check_gates, on_outputs
from int8cal.evaluation.result import Evaluation, MixedPoint, MixedPrecision, Saturation
from int8cal.graph.costs import inference_us
from int8cal.graph.injection import rounded_places
from int8cal.graph.load import model_sha256
from int8cal.quantization.build import build_model
from int8cal.quantization.contributions import Causes, measure_causes
from int8cal.quantization.corrections.rescale import apply_factors
from int8cal.quantization.corrections.residual_codes import residual_codes_of, with_residual_codes
from int8cal.quantization.error_model import NoiseSource, Twin
from int8cal.quantization.uint8_input import uint8_input_of
from int8cal.search.goals.mixed import (
    MixPlanner,
    PrecisionMix,
    ResidualGroup,
    fewest,
    needed,
    open_layers,
    residual_groups,
)
from int8cal.search.goals.mixed_report import describe_layers, outcome_of
from int8cal.search.goals.mixer import MixBuilder
from int8cal.search.goals.search_state import Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from int8cal.calibration.table import CalibrationTable
    from int8cal.evaluation.gates import ParsedGate
    from int8cal.evaluation.result import Gate, Metrics
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepared import Prepared
    from int8cal.graph.select import Selection
    from int8cal.job import QuantizationSettings
    from int8cal.runtime.batching import SampleLike
    from int8cal.search.goals.gate_evaluator import GateEvaluator
    from int8cal.search.goals.search_state import SearchState
    from int8cal.search.search import Result

_OF_LAYERS: tuple[Literal["input", "weights"], ...] = ("input", "weights")


@dataclass(frozen=True)
class GateGoal:
    """What a search needs besides the model.

    Attributes:
        gates: Of the job; those about outputs are searched for.
        settings: With a budget.
        evaluator: Evaluates models.
        state: Remembers figures.
        publish: Puts a result on disk: each that is better than the first, which is there already.
        threads: Of the runtime; 0 for all CPUs.
    """

    gates: Sequence[ParsedGate]
    settings: QuantizationSettings
    evaluator: GateEvaluator
    state: SearchState
    publish: Callable[[Result], None]
    threads: int = 0


@dataclass(frozen=True)
class _Judged:
    result: Result
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
        return (passed, -self.mix.percent if self.holds else _decibel(self.metrics))


class GateSearch:
    """Evaluates, and leaves layers out of int8 until the gates about outputs hold or the budget is spent.

    Args:
        prepared: The prepared model.
        selection: What the user allows.
        result: With every layer in int8.
        samples: Calibration samples to measure the layers' noise on.
        elements: Values per inference of every planned tensor.
        goal: Gates, budget, and how to evaluator.
    """

    def __init__(
        self,
        prepared: Prepared,
        selection: Selection,
        result: Result,
        samples: Sequence[SampleLike],
        elements: Mapping[str, float],
        goal: GateGoal,
    ) -> None:
        self.prepared, self.selection, self.result = prepared, selection, result
        self.samples, self.elements, self.goal = samples, elements, goal
        self.gates = on_outputs(goal.gates)
        self.mixer = MixBuilder(prepared, selection, result)
        self.judged: list[_Judged] = []
        self.best: _Judged | None = None

    def run(self) -> tuple[Result, MixedPrecision]:
        """Search, once.

        Returns:
            The best that was found, and how.

        Raises:
            Int8calError: Of evaluating.
        """
        budget = self.goal.settings.budget or 0.0
        plain = self._judge(PrecisionMix())
        sweep, percent = None, None
        if not plain.holds:
            sweep = self._sweep(plain)
            mixes = sweep.mixes(budget)
            found = fewest(len(mixes) - 1, lambda number: self._judge(mixes[number]).holds)
            if found is None:
                percent = self._needed(plain, sweep.mixes(math.inf))
        best = self.best or plain
        curve = sorted(self.judged, key=lambda each: (each.mix.percent, len(each.mix.floats)))
        mixed = MixedPrecision(
            budget_percent=budget,
            fallback=self.goal.settings.fallback,
            layers=()
            if sweep is None
            else describe_layers(self.result.plan, sweep, best.mix, budget, holds=best.holds),
            curve=tuple(self._point(each, best) for each in curve),
            needed_percent=percent,
            outcome=outcome_of(best.mix, budget, percent, holds=best.holds),
        )
        return self._with_lines(best.result, mixed), mixed

    def _judge(self, mix: PrecisionMix) -> _Judged:
        result = self.result
        if mix.floats or mix.planes:
            result = self.mixer.mixed(mix)
        key = model_sha256(result.model)
        figures = self.goal.state.get(key)
        if figures is None:
            evaluation = self.goal.evaluator.evaluate(result.model)
            figures = Figures(evaluation.metrics, evaluation.outputs)
            self.goal.state.put(key, figures)
        judged = _Judged(result, mix, check_gates(self.gates, _evaluation(figures)), figures.metrics)
        if self.best is None or judged.rank > self.best.rank:
            if self.best is not None:
                self.goal.publish(result)
            self.best = judged
        # models are large: only the best is held
        self.judged = [replace(each, result=self.result) for each in self.judged] + [judged]
        return judged

    def _sweep(self, plain: _Judged) -> MixPlanner:
        prepared, plan, table = self.prepared.model, self.result.plan, self.result.table
        uint8 = uint8_input_of(prepared, plan, table.corrections)
        fixed = frozenset[str]() if uint8 is None else uint8.nodes
        opened = open_layers(prepared, plan, self.mixer.selection, self.elements, fixed)
        already = residual_codes_of(plan, table)
        affines = {name: entry.affine for name, entry in table.tensors.items()}
        built = build_model(prepared, plan, table)
        twins = {
            NoiseSource(what, each.node): Twin(
                each.layer, built.layers[each.node], affines[each.layer.input], planes=each.node in already
            )
            for each in opened
            for what in _OF_LAYERS
        }
        others = self._others(plan)
        sources = [each.tensor for each in plan.tensors if each.source and each.tensor in others]
        rounded = {NoiseSource("others", tensor): affines[tensor] for tensor in sources}
        groups: tuple[ResidualGroup, ...] = ()
        if self.goal.settings.fallback == "planes":
            # signed codes come in one plane only
            can = {each.node for each in opened if affines[each.layer.input].dtype.qmin == 0} - already
            barred = frozenset(layer.node for layer in plan.layers) - can
            groups = residual_groups(prepared, plan, self.elements, frozenset(barred))
        doubled = [node for group in groups for node in group.nodes]
        if doubled:
            wide = with_residual_codes(table, plan, doubled).tensors
            twins |= {
                NoiseSource("input", node, planes=True): replace(
                    twin, affine=wide[twin.layer.input].affine, planes=True
                )
                for node in doubled
                for twin in (twins[NoiseSource("input", node)],)
            }
        measured = measure_causes(
            _equalized(prepared, plan, table),
            plan,
            self.prepared.signature,
            Causes(twins, rounded),
            self.samples,
            self.elements,
            threads=self.goal.threads,
        )
        whole = inference_us(prepared, plan, self.elements)
        recurrent = bool(plan.recurrent) or len(opened) < len(plan.layers)
        shares = measured.shares(_deciding(plain.gates, self.gates))
        return MixPlanner(opened, groups, shares, whole, keep=0 if recurrent else 1)

    def _others(self, plan: Plan) -> set[str]:
        places = rounded_places(self.prepared.model, plan)
        return {place.tensor for place in places if place.readers == "others"}

    def _needed(self, plain: _Judged, mixes: Sequence[PrecisionMix]) -> float | None:
        """Return the budget that the gates would need by estimate, from the noise that the best model still has."""
        best = self.best or plain
        factors = [_factor(gate, parsed, plain.metrics) for gate, parsed in zip(best.gates, self.gates, strict=True)]
        if any(factor is None for factor in factors):
            return None
        allowed = min(factor for factor in factors if factor is not None)
        if best.metrics.sqnr_db is not None and plain.metrics.sqnr_db is not None:
            # what the best one really gained corrects the estimate
            left = 10 ** ((plain.metrics.sqnr_db - best.metrics.sqnr_db) / 10)
            allowed *= min(max(1.0 - best.mix.gain, 1e-9) / left, 1.0)
        beyond = [mix for mix in mixes if mix.percent > (self.goal.settings.budget or 0.0)]
        mix = needed(beyond, allowed)
        return None if mix is None else mix.percent

    def _point(self, judged: _Judged, best: _Judged) -> MixedPoint:
        mix = judged.mix
        return MixedPoint(len(mix.floats), len(mix.planes), mix.percent, judged.gates, judged.metrics, mix == best.mix)

    def _with_lines(self, result: Result, mixed: MixedPrecision) -> Result:
        taken = [
            f"{each.op_type} {each.node}: {each.decision}, {100 * each.contribution:.1f} % of the noise for "
            f"an estimated {each.estimated_percent:.1f} % of time"
            for each in mixed.layers
            if each.in_float
        ]
        lines = (*self.result.decisions, f"mixed precision: {mixed.outcome}", *taken)
        table = result.table
        if self.best is not None and not self.best.holds:
            table = replace(table, warnings=(*table.warnings, mixed.outcome))
        return replace(result, decisions=lines, table=table)


def _equalized(prepared: onnx.ModelProto, plan: Plan, table: CalibrationTable) -> onnx.ModelProto:
    factors = table.corrections.get("equalization", {})
    if not factors:
        return prepared
    return apply_factors(prepared, plan, {name: np.array(each, np.float64) for name, each in factors.items()})


def _deciding(gates: Sequence[Gate], parsed: Sequence[ParsedGate]) -> frozenset[str]:
    """Name the outputs that gates which do not hold are about; none where one is about the whole model."""
    outputs = [output_of(each.name) for gate, each in zip(gates, parsed, strict=True) if not gate.passed]
    return frozenset() if None in outputs else frozenset(name for name in outputs if name is not None)


def _decibel(metrics: Metrics) -> float:
    return metrics.sqnr_db if metrics.sqnr_db is not None else -math.inf


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
    return Evaluation(0, figures.metrics, figures.outputs, (), None, Saturation("", None), (0, 0), None)
