"""Noise at the outputs of a float model: which outputs count, how much there is, how many samples to measure it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx

from int8cal.data.positions import kept
from int8cal.graph.costs import inference_us
from int8cal.graph.scoring import seen, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.graph.plan import Plan
    from int8cal.graph.scoring import ScorePoint

Float64 = npt.NDArray[np.float64]
Values = npt.NDArray[Any]

WITH_ERRORS = 3.0  # how much longer a float inference takes with places for errors, and small tensors in and out
_REAL = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})


def real_outputs(model: onnx.ModelProto) -> list[str]:
    """Return the outputs that noise is measured at; others have no error to speak of."""
    return [value.name for value in model.graph.output if value.type.tensor_type.elem_type in _REAL]


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """The outputs of one run without errors.

    Attributes:
        values: Each output, of any shape and real type.
        finite: Where each is finite, which alone counts; None where all of it is.
        power: Squares summed over what counts, (outputs,).
    """

    values: tuple[Values, ...]
    finite: tuple[npt.NDArray[np.bool_] | None, ...]
    power: Float64

    @classmethod
    def of(cls, found: Mapping[str, Values], outputs: Sequence[str]) -> ReferenceOutputs:
        """Take the outputs of a run, in this order."""
        values = tuple(found[name] for name in outputs)
        finite = tuple(None if (kept := np.isfinite(value)).all() else kept for value in values)
        zeros = (np.zeros((), value.dtype) for value in values)
        power = [_square(value, zero, kept) for value, zero, kept in zip(values, zeros, finite, strict=True)]
        return cls(values, finite, np.array(power, np.float64))

    def noise(self, found: Mapping[str, Values], outputs: Sequence[str]) -> Float64:
        """Return squared errors, (outputs,).

        Args:
            found: The outputs of a run with errors.
            outputs: Their names, in the order of `of`. An error that is not finite, or that changes an output's shape,
                counts as one as large as the output.
        """
        result = self.power.copy()
        for column, (name, value, finite) in enumerate(zip(outputs, self.values, self.finite, strict=True)):
            if found[name].shape == value.shape:
                error = _square(found[name], value, finite)
                result[column] = error if np.isfinite(error) else result[column]
        return result


def scored_values(points: Sequence[ScorePoint], values: Mapping[str, Values], sample: object) -> dict[str, Values]:
    """Return what counts at each point, by its name: positions that nobody reads are left out.

    Args:
        points: See graph.scoring.
        values: Of the points' tensors, one sample in either model.
        sample: Knows its padding.
    """
    return seen(points, {name: kept(name, values[name], sample) for name in tensors_of(points)})


def relative(power: Float64, signal: Float64) -> Float64:
    """Return noise over signal, the mean over the outputs that have a signal: the worst output decides.

    Args:
        power: Squared errors, (..., outputs).
        signal: Squared values of these outputs, (outputs,).

    Returns:
        (...,); 0 where no output has a signal.
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
        elements: Values per inference of every planned tensor.
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


def _square(noisy: Values, exact: Values, kept: npt.NDArray[np.bool_] | None) -> float:
    """Return the sum of the squared differences where kept says so, in float64."""
    with np.errstate(over="ignore"):
        if kept is None:
            return float(np.square(noisy.astype(np.float64) - exact).sum())
        return float(np.square(noisy[kept].astype(np.float64) - np.broadcast_to(exact, kept.shape)[kept]).sum())
