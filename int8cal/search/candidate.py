"""Calibration candidates: the model with its channels rescaled or not, and the ranges of its tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from int8cal.calibration.ranges import Ranges, choose_ranges
from int8cal.quantization.corrections.rescale import apply_factors, as_numbers, scaled_tensors
from int8cal.quantization.corrections.uint8_fold import fold_pixels
from int8cal.quantization.uint8_input import CORRECTION, describe, pixel_affine, without_points
from int8cal.quantization.uint8_table import pixel_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.calibration.table import CalibrationTable
    from int8cal.graph.plan import Plan
    from int8cal.job import Job, Method
    from int8cal.quantization.uint8_input import Uint8Input
    from int8cal.search.holdout import Holdout
    from int8cal.search.recipes import Recipe
    from int8cal.search.steps.equalization import Equalization


@dataclass(frozen=True, eq=False)
class Inputs:
    """What stays the same while a table is searched for.

    Attributes:
        prepared: The prepared FP32 model.
        plan: What is quantized at first.
        statistics: Of every planned tensor.
        job: Settings.
        blank: A table with model, data and settings filled in.
        holdout: Samples to fit and to score on.
        recipe: Which steps are offered.
        uint8: How the int8 model takes raw pixels; None where it takes floats.
    """

    prepared: onnx.ModelProto
    plan: Plan
    statistics: Statistics
    job: Job
    blank: CalibrationTable
    holdout: Holdout
    recipe: Recipe
    uint8: Uint8Input | None = None

    @property
    def ranged_plan(self) -> Plan:
        """The plan without the tensors whose range is that of raw pixels."""
        return self.plan if self.uint8 is None else without_points(self.plan, self.uint8)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model with its statistics and ranges; what later steps build on.

    Attributes:
        model: The prepared model, channels rescaled or not.
        tensors: Its statistics.
        ranges: Of all its tensors that are not made of raw pixels.
        corrections: The table's record of the rescaling.
        notes: A line for each rescaled chain.
        rescaled: Nodes of layers whose weights are not those of the prepared model.
    """

    model: onnx.ModelProto
    tensors: dict[str, TensorStatistics]
    ranges: Ranges
    corrections: dict[str, Any]
    notes: tuple[str, ...] = ()
    rescaled: frozenset[str] = frozenset()


def plain_candidate(inputs: Inputs) -> Candidate:
    """Return the prepared model as it is, with the ranges of the job's method.

    Raises:
        StatisticsError, ConfigError: See choose_ranges.
    """
    tensors = dict(inputs.statistics.tensors)
    return Candidate(inputs.prepared, tensors, _ranges(inputs, tensors, inputs.job.calibration.method), {})


def with_ranges(inputs: Inputs, candidate: Candidate, method: Method) -> Candidate:
    """Return a candidate with the ranges of another method."""
    return replace(candidate, ranges=_ranges(inputs, candidate.tensors, method))


def rescaled_candidate(inputs: Inputs, chosen: Sequence[Equalization]) -> Candidate:
    """Rescale the channels of chains, the statistics with them, and choose the ranges of the job's method anew."""
    factors = {each.chain.tensor: each.exponents for each in chosen}
    tensors = dict(inputs.statistics.tensors)
    for name, exponents in scaled_tensors(inputs.prepared, inputs.plan, factors).items():
        if name in tensors:
            tensors[name] = tensors[name].equalized(exponents)
    nodes = {each.chain.node for each in chosen}
    nodes |= {layer.node for each in chosen for layer in each.chain.readers}
    return Candidate(
        apply_factors(inputs.prepared, inputs.plan, factors),
        tensors,
        _ranges(inputs, tensors, inputs.job.calibration.method),
        {"equalization": {name: as_numbers(values) for name, values in factors.items()}},
        tuple(each.decision for each in chosen),
        frozenset(nodes),
    )


def first_table(inputs: Inputs, candidate: Candidate) -> CalibrationTable:
    """Return the table of a candidate: every tensor's entry and what was rescaled, without weights."""
    entries, corrections = candidate.ranges.entries, dict(candidate.corrections)
    if inputs.uint8 is not None:
        affine = pixel_affine(inputs.uint8.layers)
        _, folded, wide = fold_pixels(inputs.prepared, inputs.plan, inputs.uint8, affine)
        entries = entries | pixel_entries(inputs.uint8, affine, candidate.tensors, wide)
        entries = {each.tensor: entries[each.tensor] for each in folded.tensors}
        corrections[CORRECTION] = inputs.uint8.record()
    warnings = (*inputs.blank.warnings, *candidate.ranges.warnings)
    return replace(inputs.blank, tensors=entries, corrections=corrections, warnings=warnings)


def pixel_note(inputs: Inputs) -> tuple[str, ...]:
    """Say how raw pixels are taken, where they are."""
    return () if inputs.uint8 is None else (describe(inputs.uint8, pixel_affine(inputs.uint8.layers)),)


def _ranges(inputs: Inputs, tensors: dict[str, TensorStatistics], method: Method) -> Ranges:
    calibration = replace(inputs.job.calibration, method=method)
    return choose_ranges(inputs.ranged_plan, tensors, calibration, inputs.job.quantization)
