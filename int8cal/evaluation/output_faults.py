"""What makes an output useless though its mean error is small: dead channels, saturated values, an order that is lost.

All of it is told from the values of both models, one sample at a time, for each group of channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.result_parts import GroupMetrics, WorstChannel
from int8cal.numerics.channels import ChannelSums, Levels, channel_sums
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.phrases import some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.evaluation.output_groups import OutputGroup
    from int8cal.numerics import Array, Float64


# A channel is alive where the FP32 model's values in it are so far apart, as a share of those of the group's widest
# channel. Below it the group's eight bits have a handful of codes for it, and it may rightly never leave one of them.
ALIVE = 1 / 32
# Nor is it alive where eight bits over the group's values, zero included, are too coarse to tell its values apart for
# sure: so many steps. Probabilities are held against all of 0 to 1, however few of them the samples reach.
STEPS = 4 / 255
# A channel is dead where the int8 model's values are apart by less than this share of the FP32 model's: not 0, since
# float32 nodes behind a constant may round it differently at each position.
STILL = 1e-4
# Of values at the int8 model's extreme and the FP32 model surely beyond it: percentile and entropy calibration clip up
# to some thousandths on purpose.
MOST_CLIPPED = 0.02
# "Surely beyond" and "surely apart", as a share of the group's range: a dozen steps of eight bits. No less than STEPS.
SURELY = 0.05
MOST_TIED = 0.05  # share of rows
# An order is lost where values are this many times fewer than eight bits would give, and those are not few.
FEWER, LEAST_LEVELS = 8, 32
_RUNS = 6  # of channels that are named in a line
_ROWS = 100_000  # of a sample that are looked at for ties
_SCORES = ("class scores", "token logits", "probabilities")
LEAST_SAMPLES = 2
# Values of a channel from which on it alone may be called dead. Fewer may be equal by chance: of the 1000 logits of a
# ResNet-50 with random weights 4 had one code on 8 samples, all of them too near to each other to be alive.
LEAST_VALUES = 8


class GroupComparison:
    """Sums over samples of one group of channels; `add` each, then read `result`."""

    def __init__(self, group: OutputGroup) -> None:
        self.group = group
        self.sums = ErrorSums()
        self.changes = Changes()
        self._channels: ChannelSums | None = None
        self._levels = Levels()
        self._top, self._bottom = _Extreme(1), _Extreme(-1)
        self._rows = self._tied = 0

    def add(self, x: Array, y: Array) -> None:
        """Take one sample: the group's part of the output in both models, of one shape, finite."""
        self.sums = self.sums + error_sums(x, y)
        self.changes.add(x, y)
        if not x.size:
            return
        axis = self.group.axis
        sums = channel_sums(*((x, y) if axis is not None else (x[None], y[None])), axis or 0)
        self._channels = sums if self._channels is None else self._channels + sums
        self._levels.add(x, y)
        margin = max(SURELY * self._range, STEPS * self._whole_range)
        for extreme in (self._top, self._bottom) if self._range > STEPS * self._whole_range else ():
            extreme.add(x, y, margin)
        if self.group.kind in _SCORES and axis is not None and x.shape[axis] > 1:
            rows, tied = ties(x, y, axis, margin)
            self._rows, self._tied = self._rows + rows, self._tied + tied

    @property
    def _range(self) -> float:
        """How far the FP32 model's values are apart, so far."""
        channels = self._channels
        return 0.0 if channels is None else float(channels.highs[0].max() - channels.lows[0].min())

    @property
    def _whole_range(self) -> float:
        """What eight bits have to hold: the FP32 model's values and zero, or all that a probability may be."""
        channels = self._channels
        if channels is None:
            return 0.0
        spread = max(float(channels.highs[0].max()), 0.0) - min(float(channels.lows[0].min()), 0.0)
        return max(spread, 1.0) if self.group.kind == "probabilities" else spread

    def dead(self) -> tuple[int, ...]:
        """Name the channels that are alive in the FP32 model and constant in the int8 model, counted in the output.

        All that are alive, where the group as a whole does not change over samples.
        """
        if self._channels is None or self._channels.count < LEAST_SAMPLES:
            return ()
        reference, other = self._channels.spreads
        least = max(ALIVE * float(reference.max()), STEPS * self._whole_range)
        alive = (reference > 0.0) & (reference >= least)
        dead = alive & (self.changes.lost | (other <= STILL * reference))
        together = int(alive.sum()) > 1 and np.array_equal(dead, alive)
        if self._channels.count < LEAST_VALUES and not together:
            return ()
        return tuple((self.group.first + np.flatnonzero(dead)).tolist())

    def result(self, *, judged: bool) -> GroupMetrics:
        """Return the figures; faults only where there are enough samples to judge."""
        group, channels = self.group, self._channels
        worst = None if channels is None or group.axis is None else channels.worst
        dead = self.dead() if judged else ()
        clipped = (self._top.clipped + self._bottom.clipped) / max(self.sums.count, 1)
        tied = self._tied / max(self._rows, 1)
        levels, ideal = self._levels.of_approximation, self._levels.of_eight_bits
        few = judged and not dead and ideal >= LEAST_LEVELS and 0 < levels * FEWER <= ideal
        return GroupMetrics(
            kind=group.kind,
            channels=None if group.axis is None else (group.first, group.end - 1),
            source=group.source,
            sqnr_db=self.sums.sqnr_db,
            cosine=self.sums.cosine,
            max_abs_error=self.sums.max_abs,
            worst_channel=None if worst is None else WorstChannel(group.first + worst[0], worst[1]),
            dead=dead,
            saturated=clipped if judged and not dead and clipped > MOST_CLIPPED else 0.0,
            tied=tied if judged and not dead and tied > MOST_TIED else 0.0,
            levels=levels if few else 0,
            levels_of_8_bits=ideal if few else 0,
        )


def ties(x: Array, y: Array, axis: int, margin: float) -> tuple[int, int]:
    """Count rows of scores, and those whose highest is shared in y by channels that are surely apart in x.

    Args:
        x, y: Scores of both models.
        axis: Of the channels.
        margin: How far apart two scores of x are surely not equal.
    """
    first, second = (np.moveaxis(each, axis, -1).reshape(-1, each.shape[axis])[:_ROWS] for each in (x, y))
    highest = second == second.max(axis=1, keepdims=True)
    several = highest.sum(axis=1) > 1
    shared, among = first[several], highest[several]
    top = np.where(among, shared, -np.inf).max(axis=1)
    bottom = np.where(among, shared, np.inf).min(axis=1)
    return len(first), int((top - bottom > margin).sum()) if margin > 0.0 else 0


@dataclass
class _Extreme:
    """The largest (sign 1) or smallest (-1) value of the int8 model, and how many values there are surely beyond it."""

    sign: int
    value: float = -np.inf
    clipped: int = 0

    def add(self, x: Array, y: Array, margin: float) -> None:
        highest = float((self.sign * y).max())
        if highest > self.value:
            self.value, self.clipped = highest, 0
        if highest == self.value:
            at = y == y.dtype.type(self.sign * highest)
            # float64: a limit may be beyond what float16 holds
            self.clipped += int((self.sign * x[at].astype(np.float64) > highest + margin).sum())


class Changes:
    """Whether an output changes at all in the reference model and in another, over samples and within them."""

    def __init__(self) -> None:
        self._first: list[Array | None] = [None, None]
        self._same, self._flat = [True, True], [True, True]  # over samples; over all values of all samples

    def add(self, reference: Array, other: Array) -> None:
        """Look at one sample: arrays of any shape."""
        for model, values in enumerate((reference, other)):
            if not values.size or not (self._same[model] or self._flat[model]):
                continue
            first = self._first[model]
            if first is None:
                first = self._first[model] = values.copy()  # the runtime may write into its arrays again
            self._same[model] = self._same[model] and np.array_equal(first, values)
            self._flat[model] = self._flat[model] and bool((values == first.flat[0]).all())

    @property
    def still(self) -> bool:
        """Whether all samples have the same values in the reference model."""
        return self._same[0]

    @property
    def lost(self) -> bool:
        """Whether it is constant in the other model only: over samples, or over all values."""
        return any(other and not reference for reference, other in (self._same, self._flat))


class Spread:
    """How far an output is from its mean over samples: what of its values tells one sample from another."""

    def __init__(self) -> None:
        self._mean: Float64 | None = None
        self._samples = 0
        self._squares = 0.0
        self._alike = True

    def add(self, values: Array) -> None:
        """Take one sample; nothing can be said where one has another shape than the first."""
        if not self._alike or not values.size:
            return
        if self._mean is None:
            self._mean = np.zeros(values.shape)
        elif self._mean.shape != values.shape:
            self._alike, self._mean = False, None
            return
        self._samples += 1
        with np.errstate(over="ignore", invalid="ignore"):  # of float64 values whose squares it does not hold
            away = (values - self._mean).reshape(-1)
            # Welford's: times the distance from the mean that this sample has moved
            self._squares += float(np.einsum("i,i->", away, away)) * (self._samples - 1) / self._samples
            away /= self._samples
            self._mean += away.reshape(values.shape)

    @property
    def power(self) -> float | None:
        """Squared distances from the mean, summed over all values of all samples; None where nothing can be said."""
        if not self._alike or self._samples < LEAST_SAMPLES:
            return None
        return self._squares * self._samples / (self._samples - 1)  # the mean is of these very samples


def fault_lines(name: str, channels: int, groups: Sequence[GroupMetrics], models: tuple[str, str]) -> tuple[str, ...]:
    """Say in a line each what is at fault in an output.

    Args:
        name: Of the output.
        channels: How many it has; 0 where they are not known.
        groups: All of its groups.
        models: What the reference and the other model are called.
    """
    first, second = models
    found = []
    for group in groups:
        about = _about(group)
        if group.dead:
            few = _listed(group.dead)
            what = "is" if group.channels is None else f"{len(group.dead)} of {channels} channels are"
            named = _about(group, few) if group.channels is not None else about
            text = f"{what} constant in the {second} and not in the {first}"
            found.append(f'output "{name}"{" " if group.channels is None else ": "}{text} ({named})')
        if group.saturated:
            text = (
                f"{100 * group.saturated:.1f} % of the values are saturated: at the largest or smallest of the {second}"
            )
            found.append(f'output "{name}": {text}, and well beyond it in the {first} ({about})')
        if group.tied:
            text = f"in {100 * group.tied:.1f} % of the rows several channels share the highest score"
            found.append(f'output "{name}": {text} in the {second} alone: the order is lost ({about})')
        if group.levels:
            text = f"{group.levels} different values in the {second}, eight bits would give {group.levels_of_8_bits}"
            found.append(f'output "{name}": only {text}: the order is lost ({about})')
    return tuple(found)


def poor_groups(name: str, groups: Sequence[GroupMetrics], least_db: float) -> list[str]:
    """Name the groups of an output that are mostly noise, which the output's own SQNR may hide, and not at fault."""
    noise = "noise of more than a tenth of its signal"
    return [
        f'output "{name}" has an SQNR of {group.sqnr_db:.2f} dB in one part: {noise} ({_about(group)})'
        for group in groups
        if group.sqnr_db is not None and group.sqnr_db < least_db and not group.at_fault
    ]


def _about(group: GroupMetrics, channels: str = "") -> str:
    """Say which channels a line is about."""
    listed = channels or ("" if group.channels is None else _listed(range(group.channels[0], group.channels[1] + 1)))
    source = f", from {group.source}" if group.source else ""
    return group.kind + (f", channels {listed}" if listed else "") + source


def _listed(channels: Sequence[int]) -> str:
    """Write channel numbers: runs as 4..83, at most some of them."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    return some((f"{first}..{last}" if last > first else f"{first}" for first, last in runs), _RUNS)
