"""Statistics x Plan -> table entries: one range per group of tensors that share a scale; user ranges win."""

from __future__ import annotations

import difflib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.calibration.choose import Choice, activation_type, choose
from int8cal.calibration.statistics import TensorStatistics
from int8cal.calibration.table import TensorEntry
from int8cal.errors import ConfigError, NonFiniteError, StatisticsError
from int8cal.numerics.affine import Affine, affine_from_range
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.plan import Plan
    from int8cal.job import CalibrationSettings, QuantizationSettings
    from int8cal.numerics.loglinear import Histogram


@dataclass(frozen=True)
class Ranges:
    """Table entries by tensor, and warnings that name their tensor."""

    entries: dict[str, TensorEntry]
    warnings: tuple[str, ...]


def group_histogram(plan: Plan, tensors: Mapping[str, TensorStatistics], group: str) -> Histogram:
    """Return the values of a group: those of its sources together, since the others only pass them on."""
    sources = [tensors[point.tensor] for point in plan.members(group) if point.source]
    if len(sources) == 1:
        return sources[0].histogram
    merged = _bare(sources[0])
    for tensor in sources[1:]:
        merged = merged + _bare(tensor)
    return merged.histogram


def choose_ranges(
    plan: Plan,
    tensors: Mapping[str, TensorStatistics],
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
) -> Ranges:
    """Choose the range of every planned tensor.

    Args:
        plan: The plan.
        tensors: Statistics of every planned tensor.
        calibration: Method and percentile.
        quantization: Activation type, and ranges that the user fixes.

    Raises:
        StatisticsError: A planned tensor has no statistics.
        ConfigError: A user range names no planned tensor, is not a range, or contradicts one of the same group.
    """
    require_known_tensors(plan, quantization.ranges)
    for group in plan.groups:
        for point in plan.members(group):
            if point.tensor not in tensors:
                raise StatisticsError(f"tensor {point.tensor!r} was not calibrated", do="calibrate this model again")

    def choose_group(group: str) -> tuple[Choice, dict[str, TensorEntry]]:
        return _choose_group(plan, tensors, group, calibration, quantization)

    # groups do not depend on each other, and the searches do not hold the interpreter: one thread per CPU
    with ThreadPoolExecutor(calibration.threads or cpu_count(), "int8cal-ranges") as pool:
        chosen = list(pool.map(choose_group, plan.groups))
    entries: dict[str, TensorEntry] = {}
    warnings: list[str] = []
    for group, (choice, of_group) in zip(plan.groups, chosen, strict=True):
        entries |= of_group
        if not sum(tensors[point.tensor].count for point in plan.members(group)):
            warnings.append(f"tensor {group!r}: no value was ever observed (zero size); its range is a placeholder")
        elif choice.warning:
            warnings.append(f"tensor {group!r}: {choice.warning}")
    return Ranges({each.tensor: entries[each.tensor] for each in plan.tensors}, tuple(warnings))


def _choose_group(
    plan: Plan,
    tensors: Mapping[str, TensorStatistics],
    group: str,
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
) -> tuple[Choice, dict[str, TensorEntry]]:
    members = plan.members(group)
    fixed = [point.tensor for point in members if point.tensor in quantization.ranges]
    if fixed:
        choice = _user_choice(fixed, quantization)
    else:
        histogram = group_histogram(plan, tensors, group)
        choice = choose(histogram, calibration.method, quantization.activations, calibration.percentile)
    entries = {}
    for point in members:
        source = "calibrated" if point.tensor == group and not fixed else "shared"
        if point.tensor in fixed:
            source = "user"
        own = histogram if not fixed and len(members) == 1 else tensors[point.tensor].histogram
        entries[point.tensor] = _entry(choice.affine, choice.method, own, source)
    return choice, entries


def _user_choice(names: list[str], quantization: QuantizationSettings) -> Choice:
    first, *others = names
    for other in others:
        if tuple(quantization.ranges[other]) != tuple(quantization.ranges[first]):
            raise ConfigError(
                f"quantization.ranges gives {first!r} and {other!r} different ranges, but they share one scale",
                do="give the range of one of them, or the same for both",
            )
    dtype, symmetric = activation_type(quantization.activations)
    low, high = quantization.ranges[first]
    widened = f"the range [{low:g}, {high:g}] was widened to contain 0" if low > 0 or high < 0 else ""
    try:
        return Choice(affine_from_range(low, high, dtype, symmetric=symmetric), "user", widened)
    except NonFiniteError as error:
        raise ConfigError(f"quantization.ranges, tensor {first!r}: {error.what}", do="give [low, high]") from error


def _entry(affine: Affine, method: str, histogram: Histogram, source: str) -> TensorEntry:
    return TensorEntry(
        dtype=affine.dtype.name,
        scale=affine.scale,
        zero_point=affine.zero_point,
        low=affine.low,
        high=affine.high,
        method=method,
        amax=histogram.amax,
        observed=histogram.observed,
        clipped=clipped_by(histogram, affine),
        source=source,
    )


def clipped_by(histogram: Histogram, affine: Affine) -> float:
    """Return the fraction of values that an affine clips; one within half a step of the end is rounded to it."""
    return histogram.fraction_outside(affine.low - affine.scale / 2, affine.high + affine.scale / 2)


def _bare(tensor: TensorStatistics) -> TensorStatistics:
    return TensorStatistics(tensor.bins, tensor.counts, tensor.zeros, tensor.minimum, tensor.maximum)


def require_known_tensors(plan: Plan, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse a range that a user gave for a tensor that is not quantized.

    Raises:
        ConfigError: Names the tensor, and the nearest one that is.
    """
    known = [each.tensor for each in plan.tensors]
    for name in ranges:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(
                f"quantization.ranges names {name!r}, which is not a quantized tensor",
                do=f"did you mean {near[0]!r}?" if near else "int8cal inspect TABLE lists the quantized tensors",
            )
