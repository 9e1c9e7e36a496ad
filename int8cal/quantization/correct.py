"""Runs a recipe's steps over the same plan and statistics, and keeps what surely helps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from int8cal.calibration.ranges import Ranges, choose_ranges
from int8cal.calibration.table import Step
from int8cal.graph.chains import find_chains
from int8cal.graph.plan import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.balance import equalized
from int8cal.quantization.build import build_model, weight_entries, with_weights
from int8cal.quantization.corrections.bias import bias_deltas
from int8cal.quantization.corrections.codes_text import CORRECTION as ROUNDING
from int8cal.quantization.corrections.equalize import choose_factors
from int8cal.quantization.corrections.remainder import with_planes
from int8cal.quantization.corrections.second_order import refine_layers
from int8cal.quantization.corrections.strength import measure_factors
from int8cal.quantization.corrections.uint8_fold import fold_pixels
from int8cal.quantization.left_out import LEFT_FOR_ACCURACY
from int8cal.quantization.precision import Precision
from int8cal.quantization.recipes import MEASURED_GAIN_DB, WIDEST_GAIN_DB
from int8cal.quantization.recurrent_choice import choose_forms
from int8cal.quantization.scorer import gain_of
from int8cal.quantization.uint8_input import CORRECTION, describe, pixel_affine, without_points
from int8cal.quantization.uint8_table import pixel_entries, pixel_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import CalibrationSettings, Job, Method, QuantizationSettings
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.balance import Balanced
    from int8cal.quantization.build import Built
    from int8cal.quantization.corrections.equalize import Equalization
    from int8cal.quantization.recipes import RecipeRule
    from int8cal.quantization.scorer import Score, Scorer
    from int8cal.quantization.uint8_input import Uint8Input
    from int8cal.runtime.batching import SampleLike


S = TypeVar("S")

# Parts in which corrections of layers are scored by themselves; fewer in a deep model, whose every score takes long.
MOST_PARTS, LEAST_PARTS, PARTS_OF = 16, 4, 8000  # layers divided by parts
EQUALIZED_PARTS = 4  # in which rescaled chains are, where all together do not help
JUDGE_S, LEAST_JUDGED = 0.25, 32  # estimated seconds of one verdict, and samples that are judged on where that is short
LEAST_TUNE = 8  # samples; fewer are not worth fitting anything on


@dataclass(frozen=True)
class Corrected:
    """A finished table.

    Attributes:
        table: Every scale and zero point, and the corrections.
        tensors: The statistics that its ranges come from (none for raw pixels).
        decisions: What was decided, in lines.
        plan: What is quantized; smaller than the plan at first where nodes were left in float for accuracy.
        model: The int8 model.
        steps: What each step gave.
    """

    table: CalibrationTable
    tensors: dict[str, TensorStatistics]
    decisions: tuple[str, ...]
    plan: Plan
    model: onnx.ModelProto
    steps: tuple[Step, ...] = ()


def find_ranges(
    plan: Plan,
    balanced: Balanced,
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
    uint8: Uint8Input | None = None,
) -> Ranges:
    """Choose the range of every tensor that is not made of raw pixels.

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    ranged = plan if uint8 is None else without_points(plan, uint8)
    return choose_ranges(ranged, balanced.tensors, calibration, quantization)


@dataclass(frozen=True)
class Kept:
    """Calibration samples that were kept: what corrections are fitted on, and the holdout that they are scored on.

    Attributes:
        signature: The model's inputs.
        tune: Samples to fit on; empty where there are too few to keep both apart.
        scorer: Scores an int8 model on the holdout; None where it cannot, then no step is taken.
        judged: The holdout.
        as_int8: Turns samples into those that an int8 model takes: raw pixels, where it takes these.
        threads: Of the runtime; 0 for all CPUs.
    """

    signature: Signature
    tune: Sequence[SampleLike]
    scorer: Scorer | None
    judged: Sequence[SampleLike] = ()
    as_int8: Callable[[onnx.ModelProto, Sequence[SampleLike]], Iterable[SampleLike]] = lambda _, samples: samples
    threads: int = 0


def split_kept(samples: Sequence[S], rule: RecipeRule, run_s: float = 0.0) -> tuple[tuple[S, ...], tuple[S, ...]]:
    """Split kept samples into those to judge on and those to fit on.

    The recipe's numbers; with fewer samples about half each; and with so few that nothing can be fitted, all are there
    to judge on. A few samples make a poor judge, so there are as many as run in JUDGE_S.

    Args:
        samples: The kept samples.
        rule: The recipe.
        run_s: Estimated time of one inference.
    """
    judged = rule.judge_samples
    if run_s > 0:
        judged = min(judged, max(int(JUDGE_S / run_s), LEAST_JUDGED))
    if rule.tune_samples and len(samples) >= 2 * LEAST_TUNE:
        fitted = min(rule.tune_samples, len(samples) // 2)
        judged = min(judged, len(samples) - fitted)
        return tuple(samples[:judged]), tuple(samples[judged : judged + rule.tune_samples])
    return tuple(samples[:judged]), tuple(samples[judged:])


@dataclass(frozen=True)
class Start:
    """A model, its channels rescaled or not, and the ranges for it: what later steps build on.

    Attributes:
        balanced: The model.
        ranges: For its tensors.
        rescaled: Nodes of layers whose weights are not those of the prepared model.
    """

    balanced: Balanced
    ranges: Ranges
    rescaled: frozenset[str] = frozenset()


def explained(prepared: onnx.ModelProto, corrected: Corrected, before: tuple[Step, ...]) -> Corrected:
    """Write down what each step gave, in the table and in the model.

    Args:
        prepared: The prepared model.
        corrected: A finished table.
        before: What was scored without the recipe; the recipe's own steps follow.
    """
    steps = (*before, *corrected.steps)
    settings = {**corrected.table.settings, "steps": [asdict(step) for step in steps]}
    table = replace(corrected.table, settings=settings)
    return replace(corrected, table=table, model=build_model(prepared, corrected.plan, table).model, steps=steps)


class TableSearch:
    """One table that gets better step by step; a step is kept only where its gain is outside the noise of the holdout.

    Args:
        prepared: The prepared model.
        plan: Its plan.
        statistics: Counts of every planned tensor.
        start: The prepared model as it is, and the ranges of the job's method.
        job: Its settings.
        blank: A table with model, data and settings filled in.
        kept: Samples for corrections that are fitted or scored.
        rule: The recipe.
        uint8: How the int8 model takes raw pixels; None where it takes floats.
    """

    def __init__(
        self,
        prepared: onnx.ModelProto,
        plan: Plan,
        statistics: Statistics,
        start: Start,
        job: Job,
        blank: CalibrationTable,
        kept: Kept,
        *,
        rule: RecipeRule,
        uint8: Uint8Input | None = None,
    ) -> None:
        self.prepared, self.plan, self.statistics, self.job, self.blank = prepared, plan, statistics, job, blank
        self.kept, self.rule, self.uint8 = kept, rule, uint8
        self.steps: list[Step] = []
        self.score: Score | None = None
        self.start = start
        self.table, noted = self._first_table(start)
        self.decisions = [*start.balanced.decisions, *noted]
        self.built = build_model(prepared, plan, self.table)
        self.warnings = self.built.warnings
        # scales of weights are searched for once; a step that changes weights drops their entries
        self.table = replace(self.table, weights=weight_entries(plan, self.built.layers))

    def run(self) -> Corrected:
        """Take every step of the recipe; once."""
        if self.kept.scorer is not None:
            self._begin()
        if self.plan.recurrent:
            self.table, chosen = choose_forms(self.prepared, self.plan, self.table, self.kept.scorer)
            self.decisions.extend(chosen)
            self.built = build_model(self.prepared, self.plan, self.table)
            self.score = None
        if self.rule.tune_seconds and self.kept.scorer is not None and len(self.kept.tune) >= LEAST_TUNE:
            self._tune()
            if self.rule.second_order:
                self._refine()
        if self.rule.bias_correction and self.kept.scorer is not None:
            self._correct_bias()
        table = replace(self.table, warnings=tuple(dict.fromkeys((*self.table.warnings, *self.warnings))))
        table = with_weights(table, self.plan, self.built)
        raw = self.uint8.tensors if self.uint8 is not None else ()
        tensors = {
            name: value
            for name, value in self.start.balanced.tensors.items()
            if name in table.tensors and name not in raw
        }
        return Corrected(table, tensors, tuple(self.decisions), self.plan, self.built.model, tuple(self.steps))

    def _begin(self) -> None:
        """Other ranges for all tensors, and channels rescaled: promises order the tries, the holdout decides."""
        calibration, quantization = self.job.calibration, self.job.quantization
        widest = self.rule.tune_seconds > 0 and calibration.method == "auto"
        if widest:
            plain = self.start.balanced
            self._offer_start("all ranges by max", Start(plain, self._ranges(plain, "max")), WIDEST_GAIN_DB)
        promised = choose_factors(
            self.prepared,
            self.plan,
            self.statistics,
            least_gain_db=self.rule.equalize_gain_db,
            fixed=quantization.ranges,
        )
        if not self._offer_equalized("channels rescaled where much is promised", promised, widest=widest):
            self._offer_parts(promised)
        if self.rule.measured_strength and self.kept.tune:
            signature, tune = self.kept.signature, self.kept.tune
            measured = measure_factors(
                self.prepared, self.plan, self.statistics, signature, tune, calibration, quantization
            )
            name = "channels rescaled by measured strength"
            self._offer_equalized(name, measured, widest=widest, least_db=MEASURED_GAIN_DB)

    def _offer_equalized(
        self, name: str, chosen: Sequence[Equalization], *, widest: bool, least_db: float = 0.0
    ) -> bool:
        """Offer rescaled channels, with the job's ranges and with the widest."""
        if not chosen:
            return False
        start = self._rescaled(chosen)
        taken = self._offer_start(name, start, least_db)
        if widest:
            start = replace(start, ranges=self._ranges(start.balanced, "max"))
            taken |= self._offer_start(f"{name}, all ranges by max", start, max(WIDEST_GAIN_DB, least_db))
        return taken

    def _rescaled(self, chosen: Sequence[Equalization]) -> Start:
        balanced = equalized(self.prepared, self.plan, self.statistics, chosen)
        changed = {each.chain.node for each in chosen}
        changed |= {layer.node for each in chosen for layer in each.chain.readers}
        return Start(balanced, self._ranges(balanced, self.job.calibration.method), frozenset(changed))

    def _offer_parts(self, chosen: Sequence[Equalization]) -> None:
        """Offer rescaled channels part by part, what promises most first; each on top of those that were kept."""
        if len(chosen) < 2:
            return
        place = {each.chain.tensor: position for position, each in enumerate(chosen)}
        promising = sorted(chosen, key=lambda each: -each.gain_db)
        size = -(-len(promising) // EQUALIZED_PARTS)
        held: list[Equalization] = []
        for first in range(0, len(promising), size):
            tried = sorted([*held, *promising[first : first + size]], key=lambda each: place[each.chain.tensor])
            if self._offer_start(f"channels of {len(tried)} of {len(chosen)} chains rescaled", self._rescaled(tried)):
                held = tried

    def _offer_start(self, name: str, start: Start, least_db: float = 0.0) -> bool:
        table, _ = self._first_table(start)
        rescaled = start.balanced is not self.start.balanced
        # scales of weights that stay as they are need not be searched for again
        changed = start.rescaled | self.start.rescaled if rescaled else frozenset[str]()
        stale = {self.plan.weight_key(each.node, each.weight) for each in self.plan.layers if each.node in changed}
        kept = {name: entry for name, entry in self.table.weights.items() if name not in stale}
        table = replace(table, weights=kept)
        if not self._offer(name, table, least_db=least_db):
            return False
        if rescaled:
            self.decisions.extend(start.balanced.decisions)
        self.start = start
        self.table = replace(self.table, weights=weight_entries(self.plan, self.built.layers))
        return True

    def _ranges(self, balanced: Balanced, method: Method) -> Ranges:
        calibration = replace(self.job.calibration, method=method)
        return find_ranges(self.plan, balanced, calibration, self.job.quantization, self.uint8)

    def _first_table(self, start: Start) -> tuple[CalibrationTable, tuple[str, ...]]:
        entries, corrections = start.ranges.entries, dict(start.balanced.corrections)
        noted: tuple[str, ...] = ()
        if self.uint8 is not None:
            uint8, affine = self.uint8, pixel_affine(self.uint8.layers)
            _, folded, wide = fold_pixels(self.prepared, self.plan, uint8, affine)
            entries = entries | pixel_entries(uint8, affine, start.balanced.tensors, wide)
            entries = {point.tensor: entries[point.tensor] for point in folded.points}
            corrections[CORRECTION] = uint8.record()
            noted = (describe(uint8, affine),)
        warnings = (*self.blank.warnings, *start.ranges.warnings)
        return replace(self.blank, tensors=entries, corrections=corrections, warnings=warnings), noted

    def _offer(self, name: str, table: CalibrationTable, plan: Plan | None = None, *, least_db: float = 0.0) -> bool:
        """Build and score a table; it is kept if it is surely better."""
        built = build_model(self.prepared, plan or self.plan, table)
        before, after = self._scored(), self._scored(built)
        gain = gain_of(before, after)
        taken = gain.sure and gain.db > least_db
        verdict = "kept" if taken else "dropped"
        noise = f"{gain.db:+.2f} ± {gain.margin_db:.2f}, mean {gain.mean_db:+.2f} ± {gain.mean_margin_db:.2f}"
        if gain.margin_db == math.inf:
            noise = "one sample cannot tell a gain from noise"
        figures = f"{before.db:.2f} dB without, {after.db:.2f} dB with, on the holdout ({noise})"
        if before.db == -math.inf:
            figures = "nothing on the holdout has a signal to score by"
        self.decisions.append(f"{name} {verdict}: {figures}")
        self.steps.append(Step(name, before.db, after.db, taken))
        if taken:
            self.table, self.built, self.score = table, built, after
            self.plan = plan or self.plan
            self.warnings = (*self.warnings, *built.warnings)
        return taken

    def _scored(self, built: Built | None = None) -> Score:
        """Return the score of a model, or that of the table in force."""
        scorer = self.kept.scorer
        if scorer is None:
            raise ValueError("nothing can be scored without a holdout")
        if built is not None:
            return scorer(built.model)
        if self.score is None:
            self.score = scorer(self.built.model)
        return self.score

    def _tune(self) -> None:
        """Other ranges, second planes and float between layers, by the noise that single errors make at the outputs."""
        ranged = self.plan if self.uint8 is None else without_points(self.plan, self.uint8)
        precision = Precision(
            self.start.balanced.model,
            ranged,
            self.kept.signature,
            self.start.balanced.tensors,
            self.kept.tune,
            seen=self.table.data["samples"],
            seconds=self.rule.tune_seconds,
            threads=self.kept.threads,
        )
        sweep = precision.sweep(self._affines(ranged))
        better, lines = precision.better_ranges(sweep, self.start.ranges, self.job.calibration, self.job.quantization)
        if lines:
            self.decisions.extend(lines)
            precision.sensitivity.close()  # judging opens models of its own
            if self._offer("ranges by output error", replace(self.table, tensors=self.table.tensors | better.entries)):
                sweep = precision.sweep(self._affines(ranged))
        settings = self.job.quantization
        allowance, unsigned = settings.latency_allowance / 100, settings.activations == "u8"
        precision.sensitivity.close()
        taken, lines = precision.upgrades(sweep, allowance, planes=unsigned)
        self.decisions.extend(lines)
        planes = [node for each in taken for node in each.planes]
        if planes:
            self._offer("second planes of inputs", with_planes(self.table, self.plan, planes))
        left = {node: f"{each.what} takes away {each.gain:.0%} of the noise" for each in taken for node in each.floats}
        if left:
            self._offer_floats(left)

    def _offer_floats(self, left: dict[str, str]) -> None:
        asked = self.job.quantization
        selection = Selection(asked.include, asked.exclude, tuple(left.items()), asked.target)
        smaller = make_plan(self.prepared, selection)
        # without factors on either side: no chain of the smaller plan may have lost one
        lost = {chain.tensor for chain in find_chains(self.prepared, self.plan)}
        lost -= {chain.tensor for chain in find_chains(self.prepared, smaller)}
        known, needed = ({point.tensor for point in plan.points} for plan in (self.plan, smaller))
        if lost & set(self.table.corrections.get("equalization", {})) or not known >= needed:
            return
        # raw pixels have entries that no plan of the prepared model knows, and lack some that it has
        tensors = {name: entry for name, entry in self.table.tensors.items() if name not in known - needed}
        settings = {**self.table.settings, LEFT_FOR_ACCURACY: left}
        self._offer("float between layers", replace(self.table, settings=settings, tensors=tensors), smaller)

    def _affines(self, plan: Plan) -> dict[str, Affine]:
        return {point.tensor: self.table.tensors[point.tensor].affine for point in plan.points}

    def _correct_bias(self) -> None:
        model, plan, figures = self.start.balanced.model, self.plan, self.start.balanced.tensors
        if self.uint8 is not None:  # the statistics of the model behind the fold of pixels
            affine = pixel_affine(self.uint8.layers)
            figures = figures | pixel_statistics(self.uint8, affine, figures, self.built.wide)
            model, plan = self.built.floats, self.built.plan
        deltas = bias_deltas(model, plan, figures, self.built.layers)
        if deltas:
            found = {node: delta.tolist() for node, delta in deltas.items()}
            corrections = {**self.table.corrections, "bias": found}
            self._offer_layers("bias correction", replace(self.table, corrections=corrections), ("bias",))

    def _refine(self) -> None:
        """Second-order rounding, by what the layers of the int8 model read."""
        held_out = self.kept.judged[:LEAST_JUDGED]  # a layer's own error needs fewer samples than the outputs' does
        samples = (list(self.kept.as_int8(self.built.model, each)) for each in (self.kept.tune, held_out))
        table, lines = refine_layers(self.built, self.table, *samples, threads=self.kept.threads)
        self.decisions.extend(lines)
        self._offer_layers("second-order rounding", table, (ROUNDING, "bias"))

    def _offer_layers(self, name: str, table: CalibrationTable, parts: tuple[str, ...]) -> None:
        """Offer corrections of layers: all together, and if that does not help, those that do no harm by themselves.

        What lowers the error of a layer's output may still raise that of the model's: errors of Q and K meet in one
        product, and some errors cancel others.

        Args:
            name: The step.
            table: With the corrections.
            parts: Their names in the table; each is keyed by node.
        """
        plain = {part: self.table.corrections.get(part, {}) for part in parts}
        whole = {part: table.corrections.get(part, {}) for part in parts}
        changed = [
            layer.node
            for layer in self.plan.layers
            if any(plain[part].get(layer.node) != whole[part].get(layer.node) for part in parts)
        ]

        def with_only(nodes: Collection[str]) -> CalibrationTable:
            nodes = frozenset(nodes)
            mixed = {}
            for part in parts:
                values = {node: value for node, value in plain[part].items() if node not in nodes}
                values |= {node: value for node, value in whole[part].items() if node in nodes}
                mixed[part] = {each.node: values[each.node] for each in self.plan.layers if each.node in values}
            rest = {part: value for part, value in self.table.corrections.items() if part not in parts}
            return replace(self.table, corrections=rest | {part: value for part, value in mixed.items() if value})

        if not changed or self._offer(name, with_only(changed)) or len(changed) == 1:
            return
        size = -(-len(changed) // min(MOST_PARTS, max(LEAST_PARTS, PARTS_OF // len(changed))))
        groups = [changed[first : first + size] for first in range(0, len(changed), size)]
        harmless: list[str] = []
        for group in groups:
            score = self._scored(build_model(self.prepared, self.plan, with_only(group)))
            if score.db >= self._scored().db:
                harmless += group
        kept = frozenset(harmless)
        dropped = [node for node in changed if node not in kept]
        if harmless and self._offer(f"{name} of {len(harmless)} of {len(changed)} layers", with_only(harmless)):
            self.decisions.append(f"{name} does not help by itself, and was dropped, at {', '.join(dropped)}")
