"""What a search starts from, and candidates: the model with its channels rescaled or not, and ranges of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from int8cal.calibration.engines.local import collect
from int8cal.calibration.lookups import find_lookups, with_tables
from int8cal.calibration.ranges import Ranges, choose_ranges
from int8cal.graph.chains import find_chains
from int8cal.graph.costs import inference_us, other_nodes_us
from int8cal.graph.index import Index
from int8cal.graph.passes.clips import value_ranges
from int8cal.graph.planner import make_plan
from int8cal.graph.taps import make_taps
from int8cal.job import QuantizationSettings
from int8cal.quantization.corrections.channel_copies import ChannelCopies
from int8cal.quantization.corrections.correction import Rescaled
from int8cal.quantization.corrections.equalization import Equalization, apply_factors, scaled_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import onnx

    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Sample
    from int8cal.data.trimming import Trimmer
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.chains import Chain
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.graph.taps import Tap
    from int8cal.job import Job, Method
    from int8cal.numerics import Float64
    from int8cal.quantization.corrections.uint8_input import Uint8Input
    from int8cal.quantization.table import CalibrationTable, TableSettings
    from int8cal.search.recipes import Recipe
    from int8cal.search.scorer import Holdout
    from int8cal.search.steps.equalization import RescaledChain


# Samples: of so few, the next one has larger values in many tensors, and what is clipped says more of them than of the
# model. Of 21 networks with 8 samples, 9 lost 0.2 to 20 dB by what `auto` clips on further ones.
VERY_FEW = 32
# Samples, and their values: each of N holds the largest value of one tensor or other as often, so one of N further ones
# exceeds it. Where they have few values, clipping that one costs more than rounding costs all. A normalizing flow that
# was calibrated on 64 had 32 dB on these, and 15 dB on 64 others. With 200 and more, room costs 0.7 to 1.5 dB.
FEW, FEW_VALUES = 128, 50_000_000


@dataclass(frozen=True, eq=False)
class Planned:
    """What is known of a job before any sample is run.

    Attributes:
        source: The FP32 model as it was given.
        prepared: Folded, with its signature.
        plan: What is quantized.
        taps: Tensors to count.
        uint8: How the int8 model takes raw pixels; None where it takes floats.
        trim: Takes the padding off samples.
        stream: Yields feed dicts, in place of the job's data path.
        feeds: The calibration samples.
        metric: The user's own, for gates; None for none.
        known: Statistics that are taken in place of a pass over the samples; None for such a pass.
    """

    source: Path | onnx.ModelProto
    prepared: Prepared
    plan: Plan
    taps: tuple[Tap, ...]
    uint8: Uint8Input | None
    trim: Trimmer
    stream: Callable[[], object] | None
    feeds: Feeds
    metric: Metric | None = None
    known: Statistics | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """What stays the same while a table is searched for.

    Attributes:
        prepared: The prepared FP32 model.
        plan: What is quantized at first.
        statistics: Of every planned tensor.
        job: Settings.
        blank: A table with model, data and settings filled in, and what no step may change: the entries of tensors
            whose range is no question, and corrections that they come with.
        holdout: Samples to fit and to score on.
        recipe: Which steps are offered.
        notes: What was decided before, in lines.
        cluster: Runs long sweeps; None for this process.
    """

    prepared: onnx.ModelProto
    plan: Plan
    statistics: Statistics
    job: Job
    blank: CalibrationTable
    holdout: Holdout
    recipe: Recipe
    notes: tuple[str, ...] = ()
    cluster: Cluster | None = None

    @cached_property
    def index(self) -> Index:
        """Of the prepared model."""
        return Index(self.prepared)

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """Of the prepared model, under the first plan."""
        return find_chains(self.index, self.plan)

    @cached_property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Bounds that no value of a tensor of the prepared model passes, as far as its ops tell."""
        return value_ranges(self.index)

    @cached_property
    def looked_up(self) -> dict[str, TensorStatistics]:
        """Statistics of the tensors that rows of tables are, with the rows that no sample looked up."""
        return with_tables(self.index, find_lookups(self.index, self.ranged_plan), self.statistics.tensors)

    @cached_property
    def whole_us(self) -> float:
        """Estimated time of the int8 model, in microseconds."""
        return inference_us(self.prepared, self.plan, self.statistics.elements) + self.others_us

    @cached_property
    def others_us(self) -> float:
        """Estimated time of the nodes that are in float whatever is chosen, in microseconds; 0 without a sample."""
        sample = next(iter((*self.holdout.validation, *self.holdout.fit)), None)
        return 0.0 if sample is None else other_nodes_us(self.prepared, self.plan, sample.feed)

    @property
    def least_worth(self) -> float:
        """Share of the noise that has to go for each share of the time; who allows more time asks for less."""
        allowed = self.job.quantization.latency_allowance
        return self.recipe.least_worth * min(1.0, QuantizationSettings().latency_allowance / max(allowed, 1e-9))

    def worth_db(self, us: float) -> float:
        """Return by how much the score has to rise for so many more microseconds."""
        return -10.0 * math.log10(max(1.0 - self.least_worth * us / self.whole_us, 0.01))

    @cached_property
    def ranges(self) -> Ranges:
        """Of the tensors as they are, by the job's method."""
        return _ranges(self, self.statistics.tensors, self.job.calibration.method)

    @cached_property
    def few(self) -> bool:
        """Whether ranges, where the job leaves the method open, need room for samples to come."""
        samples, values = self.statistics.samples, sum(each.count for each in self.statistics.tensors.values())
        few = samples <= VERY_FEW or (samples <= FEW and values <= FEW_VALUES)
        return few and self.job.calibration.method == "auto"

    def ranges_by(self, method: Method) -> str:
        """Return what reports call the ranges of a method."""
        roomy = self.few and method in ("auto", "max") and self.job.quantization.activations != "u16"
        return f"ranges by {method}" + (" with room" if roomy and self.statistics.uncertainty else "")

    def plan_for(self, settings: TableSettings) -> Plan:
        """Return the plan that a table's settings ask for, without bodies of If, Loop and Scan.

        A pattern may be about other graphs of the model: that each matches a node was checked when the job was planned.
        """
        return make_plan(self.index, replace(settings.selection, partial=True))

    @cached_property
    def ranged_plan(self) -> Plan:
        """The plan of the tensors whose ranges are to be chosen."""
        return self.ranged(self.plan)

    def ranged(self, plan: Plan) -> Plan:
        """Return a plan of this model with only the tensors whose ranges are to be chosen."""
        tensors = tuple(each for each in plan.tensors if each.tensor not in self.blank.tensors)
        return replace(plan, tensors=tensors)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model with its statistics and ranges; what later steps build on.

    Attributes:
        model: The prepared model, channels rescaled or not.
        tensors: Its statistics.
        ranges: Of all its tensors but those that have an entry from the start.
        equalization: The table's record of the rescaling.
        notes: A line for each rescaled chain.
        rescaled: Nodes of layers whose weights are not those of the prepared model.
        copies: The table's record of channels that are read several times.
        method: That chose the ranges.
    """

    model: onnx.ModelProto
    tensors: dict[str, TensorStatistics]
    ranges: Ranges
    equalization: Equalization = field(default_factory=Equalization)
    notes: tuple[str, ...] = ()
    rescaled: frozenset[str] = frozenset()
    copies: ChannelCopies = field(default_factory=ChannelCopies)
    method: Method = "auto"

    def as_rescaled(self, inputs: Inputs) -> Rescaled:
        """Return its model for tables that ask for the same exponents."""
        return Rescaled(inputs.prepared, inputs.plan, self.equalization.values, self.model)


def plain_candidate(inputs: Inputs) -> Candidate:
    """Return the prepared model as it is, with the ranges of the job's method.

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    method = inputs.job.calibration.method
    return Candidate(inputs.prepared, dict(inputs.statistics.tensors), inputs.ranges, method=method)


def with_ranges(inputs: Inputs, candidate: Candidate, method: Method) -> Candidate:
    """Return a candidate with the ranges of another method."""
    return replace(candidate, ranges=_ranges(inputs, candidate.tensors, method), method=method)


def counted_over(inputs: Inputs, samples: Sequence[Sample]) -> Statistics:
    """Count every planned tensor over some of the kept samples."""
    sha256, threads = inputs.statistics.model_sha256, inputs.job.calibration.threads
    taps = make_taps(inputs.plan, inputs.chains)
    graph = inputs.prepared, inputs.holdout.signature
    return collect(*graph, taps, samples, model_sha256=sha256, threads=threads).statistics


def recounted(inputs: Inputs, candidate: Candidate) -> Candidate:
    """Return a candidate that was made of other statistics, with the ranges that those of `inputs` give."""
    tensors = _rescaled(inputs, candidate.equalization.exponents)
    return replace(candidate, tensors=tensors, ranges=_ranges(inputs, tensors, candidate.method))


def rescaled_candidate(inputs: Inputs, chosen: Sequence[RescaledChain]) -> Candidate:
    """Rescale the channels of chains, the statistics with them, and choose their ranges by the job's method anew."""
    factors, method = {each.chain.tensor: each.exponents for each in chosen}, inputs.job.calibration.method
    tensors = _rescaled(inputs, factors)
    nodes = {each.chain.node for each in chosen}
    nodes |= {layer.node for each in chosen for layer in each.chain.readers}
    return Candidate(
        apply_factors(inputs.index, inputs.chains, factors),
        tensors,
        _ranges(inputs, tensors, method, (inputs.statistics.tensors, inputs.ranges)),
        Equalization.chosen(factors),
        tuple(each.decision for each in chosen),
        frozenset(nodes),
        method=method,
    )


def first_table(inputs: Inputs, candidate: Candidate) -> CalibrationTable:
    """Return the table of a candidate: every tensor's entry and what was rescaled, without weights."""
    entries = inputs.blank.tensors | candidate.ranges.entries
    warnings = (*inputs.blank.warnings, *candidate.ranges.warnings)
    bare = replace(inputs.blank, tensors=entries, corrections=(), warnings=warnings)
    return bare.corrected(candidate.equalization, candidate.copies, *inputs.blank.corrections)


def _rescaled(inputs: Inputs, factors: Mapping[str, Float64]) -> dict[str, TensorStatistics]:
    """Return the statistics with the channels of chains multiplied by 2**exponents."""
    tensors = dict(inputs.statistics.tensors)
    if not factors:
        return tensors  # before any look for chains, which inputs with other statistics have to find anew
    for name, exponents in scaled_tensors(inputs.chains, factors).items():
        if name in tensors:
            tensors[name] = tensors[name].equalized(exponents)
    return tensors


def _ranges(
    inputs: Inputs,
    tensors: dict[str, TensorStatistics],
    method: Method,
    known: tuple[dict[str, TensorStatistics], Ranges] | None = None,
) -> Ranges:
    calibration = replace(inputs.job.calibration, method=method)
    expected = {**tensors, **inputs.looked_up} if inputs.looked_up else None  # none of these is rescaled
    of = inputs.ranged_plan, tensors, calibration, inputs.job.quantization, known, expected
    return choose_ranges(*of, inputs.limits if inputs.few else None)
