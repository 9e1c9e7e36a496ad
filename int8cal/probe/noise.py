"""The measure of noise at the outputs of a model: squared errors and squared values at points that are compared.

It is taken per run and point, so that samples and points can be weighed later: the search takes the mean over points
(`relative`), which the worst of them decides. The figures of a report are another measure, `numerics.metrics`: over
whole graph outputs, with intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.padding import kept
from int8cal.graph.costs import inference_us
from int8cal.numerics.fills import counting
from int8cal.numerics.shares import fair_share
from int8cal.probe.score_points import tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array, Bools, Float64
    from int8cal.probe.score_points import ScorePoint

# Values that are compared of one run: all points', or each point's fair share. 8 samples of them take 128 MB. A fourth
# of them, 83,000 values of each of twelve large outputs, put the SQNR of one sample 0.15 dB off at most; but of a
# detector, whose noise a few values make, a million of 1.4 put it 0.5 dB off, and the model lost 0.2 dB by it.
MOST_VALUES = 4_000_000

WITH_ERRORS = 3.0  # how much longer a float inference takes with sites for errors, and small tensors in and out


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """What one run without errors gives at each point.

    Attributes:
        points: Where outputs are compared.
        sample: Knows its padding, which does not count; None where none is known.
        values: At each point, of any shape and real type; of more than its share of MOST_VALUES every so many, flat.
        shapes: Of all the values there.
        counts: Where each counts, see `numerics.fills.counting`; None where all of it does.
        power: Squares summed over what counts, (points,).
    """

    points: Sequence[ScorePoint]
    sample: object
    values: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[Bools | None, ...]
    power: Float64

    @classmethod
    def of(cls, points: Sequence[ScorePoint], found: Mapping[str, Array], sample: object = None) -> ReferenceOutputs:
        """Take the values of the points' tensors of a run; of several samples only where none has padding."""
        whole = _at(points, found, sample)
        share = fair_share([value.size for value in whole], MOST_VALUES)
        # no view: it would hold all that is left out
        values = tuple(each if each.size <= share else _thinned(each, share).copy() for each in whole)
        counts = tuple(map(counting, values))
        zeros = (np.zeros((), value.dtype) for value in values)
        power = [_square(*each) for each in zip(values, zeros, counts, strict=True)]
        shapes = tuple(value.shape for value in whole)
        return cls(points, sample, values, shapes, counts, np.array(power, np.float64))

    @property
    def signal(self) -> Float64:
        """Squared values over the points' weights, (points,): what noise is held against."""
        return self.power / weights_of(self.points)

    def noise(self, found: Mapping[str, Array]) -> Float64:
        """Return squared errors, (points,).

        Args:
            found: The same tensors in a run with errors; those that no error reaches may be left out. An error that is
                not finite, or that changes a tensor's shape, counts as one as large as the values.
        """
        columns = [column for column, point in enumerate(self.points) if point.tensor in found]
        result = np.zeros(len(self.points))
        result[columns] = self.power[columns]
        share = fair_share([math.prod(shape) for shape in self.shapes], MOST_VALUES)
        noisy = _at([self.points[column] for column in columns], found, self.sample)
        for column, actual in zip(columns, noisy, strict=True):
            if actual.shape == self.shapes[column]:
                error = _square(_thinned(actual, share), self.values[column], self.counts[column])
                result[column] = error if np.isfinite(error) else result[column]
        return result


def weights_of(points: Sequence[ScorePoint]) -> Float64:
    """Return the points' weights, (points,)."""
    return np.array([point.weight for point in points], np.float64)


def relative(power: Float64, signal: Float64) -> Float64:
    """Return noise over signal, the mean over the points that have a signal: the worst one decides.

    Args:
        power: Squared errors, (..., points).
        signal: Squared values there, (points,).

    Returns:
        (...,); 0 where no point has a signal.
    """
    alive = signal > 0
    if not alive.any():
        return np.zeros(power.shape[:-1])
    ratios: Float64 = (power[..., alive] / signal[alive]).mean(axis=-1)
    return ratios


def run_seconds(model: onnx.ModelProto, plan: Plan, elements: Mapping[str, float]) -> float:
    """Estimate the seconds of one inference of the float model with places for errors.

    Args:
        model: The prepared model.
        plan: Its plan.
        elements: Array per inference of every planned tensor.
    """
    return WITH_ERRORS * 1e-6 * inference_us(model, plan, elements, integer=False)


def sample_count(seconds: float, runs: int, run_s: float, most: int) -> int:
    """Return how many samples an estimated time is enough for: one at least.

    Args:
        seconds: That measuring may take.
        runs: Inferences per sample.
        run_s: Seconds of one.
        most: Samples at the most.
    """
    return max(min(int(seconds / max(runs * run_s, 1e-9)), most), 1)


def _at(points: Sequence[ScorePoint], found: Mapping[str, Array], sample: object) -> tuple[Array, ...]:
    """Return what counts at each point; positions that nobody reads are left out."""
    values = {name: kept(name, found[name], sample) for name in tensors_of(points)}
    return tuple(point.seen(values[point.tensor]) for point in points)


def _thinned(values: Array, share: int) -> Array:
    """Return every so many of values that are more than a share, flat; the step meets every row, column and channel."""
    if values.size <= share:
        return values
    step = -(-values.size // share)
    while math.gcd(step, values.size) > 1:
        step += 1
    return values.reshape(-1)[::step]


def _square(noisy: Array, exact: Array, counts: Bools | None) -> float:
    """Return the sum of the squared differences where they count, in float64."""
    with np.errstate(over="ignore"):
        if counts is None:
            return float(np.square(noisy.astype(np.float64) - exact).sum())
        return float(np.square(noisy[counts].astype(np.float64) - np.broadcast_to(exact, counts.shape)[counts]).sum())
