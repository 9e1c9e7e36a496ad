"""The user's metric on both models' outputs of all samples: what it is given, what it may return, who is to blame.

It gets all samples at once, so that it may be anything: a mean over samples, an F1, a mean average precision.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.functions import users_code
from int8cal.data.padding import kept
from int8cal.errors import Int8calError, MetricError, keep_traceback
from int8cal.evaluation.result import UserMetric
from int8cal.numerics.bootstrap import paired_mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.data.sample import Sample
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array, Float64, Int64
    from int8cal.runtime.batching import Arrays


# Bytes of both models' outputs that are kept for a metric: 250,000 rows of 1,000 class scores.
MOST_BYTES = 2_000_000_000
_LARGEST = 1e150  # of a figure: sums of squares of larger ones are infinite
_EVERY = slice(None)


class MetricRun:
    """Keeps the outputs of both models; `add` each sample, then ask for the `result`.

    Args:
        metric: What will be called.
        names: (FP32 name, int8 name) of each output.
        signature: Of the FP32 model, which tells the outputs' batch axis.
        most_bytes: Of outputs that are kept.
    """

    def __init__(
        self, metric: Metric, names: Iterable[tuple[str, str]], signature: Signature, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._metric, self._names, self._most = metric, tuple(names), most_bytes
        self._batched = {name: _batch_axis(name, signature) for name, _ in self._names}
        self._bytes = 0
        self._kept: tuple[dict[str, list[Any]], dict[str, list[Any]]] = ({}, {})
        self._origins: list[str] = []
        self._labels: list[int | None] = []

    def add(self, sample: Sample, fp32: Arrays, int8: Arrays) -> None:
        """Keep one sample's outputs, without what its padding made of them; beyond the limit nothing is kept."""
        self._origins.append(sample.origin)
        self._labels.append(sample.label)
        if self._bytes > self._most:
            return
        for name, other in self._names:
            if name not in fp32 or other not in int8:  # an absent optional output
                continue
            for values, array in zip(self._kept, (fp32[name], int8[other]), strict=True):
                values.setdefault(name, []).append(np.array(kept(name, array, sample)))
                self._bytes += array.nbytes
        if self._bytes > self._most:
            self._kept = ({}, {})

    def result(self) -> tuple[UserMetric, dict[str, str]]:
        """Call the metric for both models.

        Returns:
            Its figures, and for each that is None why, under its dotted path in report.json.

        Raises:
            MetricError: It raises, returns what is no figure, or needs more output than is kept.
        """
        name = self._metric.text
        if self._bytes > self._most:
            raise MetricError(
                f"needs both models' outputs on all {len(self._origins)} samples, and no more than "
                f"{self._most / 1e9:g} GB of them are kept",
                where=name,
                do="give fewer samples (--samples), or let the model end in what the metric needs, such as an ArgMax",
            )
        fp32, int8 = self._values()
        if fp32.ndim != int8.ndim:
            kinds = ("one figure", "one per sample")
            raise MetricError(
                f"returns {kinds[fp32.ndim]} for the FP32 model and {kinds[int8.ndim]} for the int8 model",
                where=name,
                do="return the same for both",
            )
        first, second = (fp32, int8) if self._metric.higher_is_better else (int8, fp32)
        found = UserMetric(
            name=self._metric.name,
            fp32=float(fp32.mean()),
            int8=float(int8.mean()),
            drop=float(first.mean() - second.mean()) or 0.0,  # never -0.0
            drop_ci95=paired_mean_interval(first, second) if fp32.ndim else None,
            samples=len(self._origins),
            higher_is_better=self._metric.higher_is_better,
        )
        if found.drop_ci95 is not None:
            return found, {}
        why = "one sample gives no interval" if fp32.ndim else "the metric gives one figure, not one per sample"
        return found, {"metric.drop_ci95": why}

    def nothing(self) -> UserMetric:
        """Return what stands for the figures where there are none."""
        name, better = self._metric.name, self._metric.higher_is_better
        return UserMetric(name=name, fp32=None, int8=None, drop=None, higher_is_better=better)

    def _values(self) -> tuple[Float64, Float64]:
        fp32, int8 = (
            {
                name: _whole(arrays, self._batched[name])
                for name, arrays in each.items()
                if len(arrays) == len(self._origins)
            }
            for each in self._kept
        )
        self._kept = ({}, {})
        labels = None if None in self._labels else np.array(self._labels, np.int64)
        calls = (
            _Call(self._metric, model, outputs, labels, self._origins, fp32)
            for model, outputs in (("FP32 model", fp32), ("int8 model", int8))
        )
        first, second = (call.values() for call in calls)
        return first, second


@dataclass(frozen=True)
class _Call:
    """A metric and what it is called with; `reference` are the FP32 model's outputs."""

    metric: Metric
    model: str
    outputs: Arrays
    labels: Int64 | None
    origins: list[str]
    reference: Arrays

    def values(self) -> Float64:
        """Return one figure, (), or one per sample, (N,).

        Raises:
            MetricError: It raises, or returns something else, or what is not finite.
        """
        try:
            found = self._called(_EVERY)
        except Int8calError:
            raise
        except Exception as error:
            raise self._error(
                f"raises {type(error).__name__}: {error}",
                self._first_failing(type(error)),
                f"fix the function; {keep_traceback(error)}",
            ) from error
        values = _figures(found)
        samples = len(self.origins)
        if values is None or values.shape not in ((), (samples,)):
            raise self._error(
                f"returns {_shown(found)}, expected one figure or {samples}, one for each sample",
                "",
                "fix the function",
            )
        if not np.isfinite(values).all():
            bad = self._first_failing(None) if values.ndim == 0 else self.origins[int(np.argmin(np.isfinite(values)))]
            what = "NaN" if np.isnan(values).any() else "infinity"
            raise self._error(f"returns {what}", bad, "say in the function what a sample without a figure counts")
        largest = np.abs(values).max(initial=0.0)
        if largest > _LARGEST:
            bad = self.origins[int(np.argmax(np.abs(values)))] if values.ndim else ""
            raise self._error(
                f"returns {largest:g}, too large for means and intervals", bad, f"return figures below {_LARGEST:g}"
            )
        return values

    def _called(self, which: slice) -> object:
        shared = "reference" in self.metric.extras  # with the call for the other model

        def part(arrays: Arrays) -> Arrays:
            return {name: deepcopy(array[which]) if shared else array[which] for name, array in arrays.items()}

        # what a function changes in its arguments must reach no other call of it
        extras = {"origins": self.origins[which], "reference": part(self.reference) if shared else {}}
        labels = None if self.labels is None else self.labels[which].copy()
        with users_code():
            return self.metric.function(
                part(self.outputs), labels, **{name: extras[name] for name in self.metric.extras}
            )

    def _first_failing(self, error: type[Exception] | None) -> str:
        """Name the first sample that fails by itself while others do not; "" where no sample can be blamed."""
        failing = [self._fails(index, error) for index in range(len(self.origins))]
        return self.origins[failing.index(True)] if any(failing) and not all(failing) else ""

    def _fails(self, index: int, error: type[Exception] | None) -> bool:
        """Whether it raises this error on one sample alone; for None, whether it returns what is not finite."""
        try:
            values = _figures(self._called(slice(index, index + 1)))
        except Exception as raised:  # noqa: BLE001 - told by the caller
            return type(raised) is error
        return error is None and values is not None and not np.isfinite(values).all()

    def _error(self, what: str, sample: str, do: str) -> MetricError:
        where = f"{self.metric.text} on the {self.model}" + (f", sample {sample}" if sample else "")
        return MetricError(what, where=where, do=do, metric=self.metric.text, model=self.model, sample=sample)


def _batch_axis(name: str, signature: Signature) -> bool | None:
    """Whether axis 0 of an output is the batch; None where the model does not say."""
    shape = next((spec.shape for spec in signature.outputs if spec.name == name), None)
    batch = signature.batch
    if batch is None or not shape:
        return False if batch is None or shape == () else None
    if isinstance(shape[0], int):
        return shape[0] == batch
    inputs = {spec.shape[0] for spec in signature.inputs if spec.shape}
    return True if shape[0] is not None and shape[0] in inputs else None


def _whole(arrays: list[Array], batched: bool | None) -> Array:
    """Put an output's samples together: stacked along axis 0, or an array of arrays where their shapes differ."""
    leading = {array.shape[:1] for array in arrays}
    if batched is not False and leading == {(1,)}:
        arrays = [array[0] for array in arrays]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    whole = np.empty(len(arrays), object)
    for index, array in enumerate(arrays):
        whole[index] = array
    return whole


def _figures(found: object) -> Float64 | None:
    """Read what a metric returned as real numbers; None where it is none."""
    try:
        values = np.asanyarray(found)
    except ValueError:  # lists of different lengths
        return None
    if values.dtype.kind not in "biuf" or values.ndim > 1:
        return None
    values = values.astype(np.float64)
    return values.filled(np.nan) if isinstance(values, np.ma.MaskedArray) else np.asarray(values)


def _shown(found: object) -> str:
    """Say what a metric returned."""
    if isinstance(found, np.ndarray):
        return f"an array of {found.dtype.name} with shape {found.shape}"
    return f"{len(found)} values" if isinstance(found, list | tuple) else type(found).__name__
