"""Statistics x Plan -> table entries: one range per group of tensors that share a scale; user ranges win."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import ConfigError, NonFiniteError, StatisticsError
from int8cal.numerics.affine import S8, SMALLEST_SCALE, U8, U16, Affine, QType, affine_from_range
from int8cal.numerics.kl import kl_range
from int8cal.numerics.mse import mse_range, points_of, squared_error
from int8cal.runtime.sessions import cpu_count
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.job import ActivationType, CalibrationSettings, Method, QuantizationSettings
    from int8cal.numerics.loglinear import Histogram
    from int8cal.numerics.mse import Points

TYPES: dict[str, QType] = {"uint8": U8, "int8": S8, "uint16": U16}
METHODS: tuple[Method, ...] = ("max", "percentile", "kl", "mse")
# With 16 bits a clipped value costs more than the finer steps gain.
METHODS_OF_16_BITS: tuple[Method, ...] = ("max",)
# One of 16 bits is for values beyond those that were observed: clipping them cost a ResNet 5 dB on unseen images.
ROOM_OF_16_BITS = 2.0
# What is added to a range of 8 bits for such values, at most: with that, rounding has 0.8 dB more noise for sure, and
# how uncertain a range is few samples tell badly themselves.
MOST_ROOM = 0.1
# By how much the range of "auto" is wider, in parts of how uncertain ranges are, up to the widest one with its own
# room: which values of few samples may be clipped is more uncertain than how far they reach.
ROOM_OF_AUTO = 3.0


@dataclass(frozen=True)
class TensorEntry:
    """One activation tensor.

    Attributes:
        dtype: "uint8", "int8" or "uint16".
        scale: Real units per code.
        zero_point: The code of 0.
        low: The real value of the lowest code.
        high: The real value of the highest code.
        method: What chose the range ("kl", "mse", "user", ...).
        amax: Largest observed magnitude.
        observed: Exact (min, max).
        clipped: Fraction of the observed values outside [low, high].
        source: "calibrated", "user", or "shared" (the range of its group's first tensor).
    """

    dtype: str
    scale: float
    zero_point: int
    low: float
    high: float
    method: str
    amax: float
    observed: tuple[float, float]
    clipped: float
    source: str

    @classmethod
    def of(
        cls, affine: Affine, method: str, *, amax: float, observed: tuple[float, float], clipped: float, source: str
    ) -> TensorEntry:
        """Make the entry of a tensor that is quantized by an affine."""
        ends = affine.low, affine.high
        return cls(affine.dtype.name, affine.scale, affine.zero_point, *ends, method, amax, observed, clipped, source)

    @property
    def affine(self) -> Affine:
        """The entry's quantization."""
        return Affine(self.scale, self.zero_point, TYPES[self.dtype])

    def with_affine(self, affine: Affine) -> TensorEntry:
        """Return the entry with another scale and zero point, of the same type."""
        return replace(self, scale=affine.scale, zero_point=affine.zero_point, low=affine.low, high=affine.high)


@dataclass(frozen=True)
class Choice:
    """A chosen range.

    Attributes:
        affine: What it is quantized by.
        method: That chose it.
        warning: "" for none.
        methods: The range of each method, as `candidates` has it, where all were tried.
    """

    affine: Affine
    method: str
    warning: str = ""
    methods: tuple[tuple[float, float], ...] = ()


def activation_type(activations: ActivationType) -> tuple[QType, bool]:
    """Return the integer type of activations and whether it is symmetric."""
    if activations == "s8":
        return S8, True
    return (U16 if activations == "u16" else U8), False


def choose(
    histogram: Histogram,
    method: Method,
    activations: ActivationType,
    percentile: float,
    widest: tuple[float, float] | None = None,
    room: float = 0.0,
) -> Choice:
    """Choose the affine of one tensor (or of a group's merged values).

    Args:
        histogram: Observed values.
        method: "auto" takes the candidate with the least expected squared error of the quantized values.
        activations: "u8" and "u16" (zero point 0 where the tensor is >= 0, else asymmetric) or "s8" (symmetric); with
            16 bits "auto" takes the widest range.
        percentile: In percent, for method "percentile" and as a candidate of "auto".
        widest: What method "max" takes with 8 bits, and "auto" no more than; None for what was observed.
        room: Fraction by which the range of "auto" is wider than that with the least error, up to `widest`.
    """
    dtype, symmetric = activation_type(activations)
    low, high = histogram.observed
    if low == high == 0.0:
        return Choice(affine_from_range(0.0, 0.0, dtype, symmetric=symmetric), "max", "only zeros were observed")
    if method != "auto":
        return _by_method(histogram, method, dtype, percentile, symmetric=symmetric, widest=widest)
    points = points_of(histogram)
    choices = _all_methods(histogram, dtype, percentile, points, symmetric=symmetric)
    errors = [squared_error(*points, choice.affine) for choice in choices]
    best = choices[int(np.argmin(errors))]
    if room and widest is not None and dtype.levels <= U8.levels:
        ends = max(widest[0], best.affine.low * (1 + room)), min(widest[1], best.affine.high * (1 + room))
        best = replace(best, affine=affine_from_range(*ends, dtype, symmetric=symmetric))
    return replace(best, methods=_ends(choices))


def candidates(
    histogram: Histogram,
    activations: ActivationType,
    percentile: float,
    known: tuple[tuple[float, float], ...] = (),
) -> dict[str, tuple[float, float]]:
    """Return the range that each method would choose, for reports.

    Args:
        histogram: Observed values.
        activations, percentile: As for `choose`.
        known: The ranges, where a `Choice` of the same values has them.
    """
    dtype, symmetric = activation_type(activations)
    names = _methods_of(dtype)
    if not known:
        known = _ends(_all_methods(histogram, dtype, percentile, points_of(histogram), symmetric=symmetric))
    return dict(zip(names, known, strict=True))


def _ends(choices: Sequence[Choice]) -> tuple[tuple[float, float], ...]:
    return tuple((each.affine.low, each.affine.high) for each in choices)


def _all_methods(
    histogram: Histogram, dtype: QType, percentile: float, points: Points, *, symmetric: bool
) -> list[Choice]:
    return [
        _by_method(histogram, name, dtype, percentile, symmetric=symmetric, points=points)
        for name in _methods_of(dtype)
    ]


def _methods_of(dtype: QType) -> tuple[Method, ...]:
    return METHODS if dtype.levels <= U8.levels else METHODS_OF_16_BITS


def _by_method(
    histogram: Histogram,
    method: Method,
    dtype: QType,
    percentile: float,
    *,
    symmetric: bool,
    points: Points | None = None,
    widest: tuple[float, float] | None = None,
) -> Choice:
    warning = ""
    low, high = histogram.observed
    if method == "max" and dtype is U16:
        low, high = low * ROOM_OF_16_BITS, high * ROOM_OF_16_BITS
    elif method == "max" and widest is not None:
        low, high = widest
    if method == "percentile":
        low, high = histogram.percentile_range(percentile)
        if low == high == 0.0:  # more exact zeros than the percentile keeps
            method, warning = "max", f"the {percentile:g} % percentile is 0, max is used"
            low, high = histogram.observed
    elif method == "mse":
        low, high = mse_range(histogram, dtype, symmetric=symmetric, points=points)
    elif method == "kl":
        found = kl_range(histogram, symmetric=symmetric)
        if found is None:
            method, warning = "max", "too few distinct values for kl, max is used"
        else:
            low, high = found
    affine = affine_from_range(low, high, dtype, symmetric=symmetric)
    if affine.scale == SMALLEST_SCALE:
        warning = f"all values are within {histogram.amax:.3g} of 0, where float32 ends: the smallest scale is used"
    return Choice(affine, method, warning)


@dataclass(frozen=True)
class Ranges:
    """Table entries by tensor, warnings that name their tensor, and what was chosen by group.

    Attributes:
        alone: Groups of one tensor, whose choice is about its values and no others.
    """

    entries: dict[str, TensorEntry]
    warnings: tuple[str, ...]
    choices: dict[str, Choice] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    @property
    def methods(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """The range of each method for the tensors of which all were tried, see `Choice`."""
        tried = ((name, self.choices[name].methods) for name in self.alone)
        return {name: ranges for name, ranges in tried if ranges}


def group_histogram(plan: Plan, tensors: Mapping[str, TensorStatistics], group: str) -> Histogram:
    """Return the values of a group: those of its sources together, since the others only pass them on."""
    sources = [tensors[point.tensor] for point in plan.members(group) if point.source]
    if len(sources) == 1:
        return sources[0].histogram
    merged, *others = (replace(tensor, channels=None) for tensor in sources)
    for tensor in others:
        merged += tensor
    return merged.histogram


def without_values(plan: Plan, tensors: Mapping[str, TensorStatistics], ranges: Collection[str]) -> dict[str, str]:
    """Return the layers whose input never held a value, each with the reason why it stays float.

    Whatever range such a layer got, the first real values would be clipped to it. An input of zero size is what a
    cache is before the first step, and what a branch gets that no sample takes.

    Args:
        plan: The plan.
        tensors: Statistics of every planned tensor.
        ranges: Tensors whose range the user fixes.
    """
    known = {point.group for point in plan.tensors if tensors[point.tensor].count or point.tensor in ranges}
    inputs = {layer.node: plan.tensor(layer.input) for layer in plan.layers}
    return {
        node: f"no sample has a value of its input {point.tensor}"
        for node, point in inputs.items()
        if point is not None and point.group not in known
    }


def choose_ranges(
    plan: Plan,
    tensors: Mapping[str, TensorStatistics],
    calibration: CalibrationSettings,
    quantization: QuantizationSettings,
    known: tuple[Mapping[str, TensorStatistics], Ranges] | None = None,
    expected: Mapping[str, TensorStatistics] | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Ranges:
    """Choose the range of every planned tensor.

    Args:
        plan: The plan.
        tensors: Statistics of every planned tensor.
        calibration: Method and percentile.
        quantization: Activation type, and ranges that the user fixes.
        known: Other statistics and the ranges that were chosen of them, for the same plan by the same settings: a group
            whose statistics are the same objects in both keeps its range.
        expected: Statistics that ranges are chosen by, where others are to be expected than were observed.
        limits: Bounds that no value of a tensor passes, where known. Given, if empty, ranges by max and auto have room
            for samples to come, as uncertain as they are (see `Widths`), and within these.

    Raises:
        StatisticsError: A planned tensor has no statistics.
        ConfigError: A user range names no planned tensor, is not a range, or contradicts one of the same group.
    """
    require_known_tensors(plan, quantization.ranges)
    for group in plan.groups:
        for point in plan.members(group):
            if point.tensor not in tensors:
                where = f"tensor {point.tensor!r}"
                raise StatisticsError("was not calibrated", where=where, do="calibrate this model again")

    def choose_group(group: str) -> tuple[Choice, dict[str, TensorEntry]]:
        members = plan.members(group)
        if known is not None and all(tensors[point.tensor] is known[0].get(point.tensor) for point in members):
            return known[1].choices[group], {point.tensor: known[1].entries[point.tensor] for point in members}
        fixed = [point.tensor for point in members if point.tensor in quantization.ranges]
        if fixed:
            choice = _user_choice(fixed, quantization)
        else:
            histogram = group_histogram(plan, tensors, group)
            wanted = histogram if expected is None else group_histogram(plan, expected, group)
            sources = [point.tensor for point in members if point.source]
            widest, room = None, 0.0
            if limits is not None:
                widest = _with_room(wanted.observed, sources, tensors, limits)
                room = ROOM_OF_AUTO * max(tensors[name].widths.uncertainty or 0.0 for name in sources)
            by = calibration.method, quantization.activations, calibration.percentile
            choice = choose(wanted, *by, widest, room)
        entries = {}
        for point in members:
            source = "calibrated" if point.tensor == group and not fixed else "shared"
            if point.tensor in fixed:
                source = "user"
            own = histogram if not fixed and len(members) == 1 else tensors[point.tensor].histogram
            entries[point.tensor] = _entry(choice, own, source)
        return choice, entries

    # groups do not depend on each other, and the searches do not hold the interpreter: one thread per CPU
    chosen = list(in_parts(choose_group, plan.groups, calibration.threads or cpu_count()))
    entries: dict[str, TensorEntry] = {}
    warnings: list[str] = []
    for group, (choice, of_group) in zip(plan.groups, chosen, strict=True):
        entries |= of_group
        if choice.method != "user" and not sum(tensors[point.tensor].count for point in plan.members(group)):
            warnings.append(f"tensor {group!r}: no value was ever observed (zero size); its range is a placeholder")
        elif choice.warning:
            warnings.append(f"tensor {group!r}: {choice.warning}")
    choices = {group: choice for group, (choice, _) in zip(plan.groups, chosen, strict=True)}
    alone = frozenset(group for group in plan.groups if len(plan.members(group)) == 1)
    return Ranges({each.tensor: entries[each.tensor] for each in plan.tensors}, tuple(warnings), choices, alone)


def _with_room(
    observed: tuple[float, float],
    sources: Sequence[str],
    tensors: Mapping[str, TensorStatistics],
    limits: Mapping[str, tuple[float, float]],
) -> tuple[float, float]:
    """Return a group's observed range with the room that each of its sources needs, no further than values can lie.

    What ends beyond the bounds of a Clip does not absorb it: its layer would stay float.
    """
    low, high = observed
    for name in sources:
        room = 1.0 + min(tensors[name].widths.uncertainty or 0.0, MOST_ROOM)
        least, most = tensors[name].histogram.observed
        lowest, highest = limits.get(name, (-math.inf, math.inf))
        low, high = min(low, max(least * room, lowest)), max(high, min(most * room, highest))
    return low, high


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


def _entry(choice: Choice, histogram: Histogram, source: str) -> TensorEntry:
    clipped = clipped_by(histogram, choice.affine)
    amax, observed = histogram.amax, histogram.observed
    return TensorEntry.of(choice.affine, choice.method, amax=amax, observed=observed, clipped=clipped, source=source)


def clipped_by(histogram: Histogram, affine: Affine) -> float:
    """Return the fraction of values that an affine clips; one within half a step of the end is rounded to it."""
    return histogram.fraction_outside(affine.low - affine.scale / 2, affine.high + affine.scale / 2)


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
