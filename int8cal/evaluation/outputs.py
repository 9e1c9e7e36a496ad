"""The outputs of both models side by side: error, agreement and accuracy, one sample at a time."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from int8cal.errors import DataError, ModelError, NonFiniteError
from int8cal.evaluation.result import Drop, Metrics, OutputMetrics
from int8cal.numerics.intervals import proportion_interval, sqnr_interval
from int8cal.numerics.metrics import ErrorSums, PairedCounts, error_sums, paired_counts, rank_of
from int8cal.runtime.batching import SampleLike

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import Arrays

_NO_LABELS = "the samples have no labels"
_NO_FLOAT = "the model has no float output"
_ONE_SAMPLE = "one sample gives no interval"
_TOO_LARGE = "the values are too large to compute an interval of"


class LabelledSample(SampleLike, Protocol):
    """A sample that may know its class."""

    @property
    def label(self) -> int | None:
        """Class index >= 0, or None."""


def match_outputs(fp32: Signature, int8: Signature) -> tuple[tuple[str, str], ...]:
    """Pair the outputs of two models: by name when int8 has all of fp32's, else by position.

    Returns:
        (fp32 name, int8 name) in the order of the FP32 model.

    Raises:
        ModelError: The names differ and so do the counts.
    """
    names = [spec.name for spec in fp32.outputs]
    others = [spec.name for spec in int8.outputs]
    if set(names) <= set(others):
        return tuple((name, name) for name in names)
    if len(names) == len(others):
        return tuple(zip(names, others, strict=True))
    raise ModelError(
        f"the int8 model has outputs {_quoted(others)}, the FP32 model {_quoted(names)}",
        do="give the FP32 model that the int8 model was made from",
    )


def check_inputs(fp32: Signature, int8: Signature) -> None:
    """Refuse an int8 model that asks for an input the FP32 model does not have.

    Raises:
        ModelError: Naming the inputs.
    """
    names = [spec.name for spec in fp32.inputs]
    extra = [spec.name for spec in int8.inputs if spec.name not in names]
    if extra:
        raise ModelError(
            f"the int8 model has inputs {_quoted(extra)}, the FP32 model has only {_quoted(names)}",
            do="give the FP32 model that the int8 model was made from",
        )


class OutputComparison:
    """Sums over samples; `add` each one, then read `metrics`, `outputs` and `reasons`.

    Args:
        names: (fp32 name, int8 name) of each output, in order; see match_outputs.
        first, second: What messages call the two models.
    """

    def __init__(
        self, names: tuple[tuple[str, str], ...], *, first: str = "FP32 model", second: str = "int8 model"
    ) -> None:
        self.samples = 0
        self._models = (first, second)
        self._names = names
        self._places = {name: place for place, (name, _) in enumerate(names)}
        # per output the signal and the noise of a sample, summed, and their products with those of all outputs
        self._energies = np.zeros((len(names), 2))
        self._products = np.zeros((len(names), 2, len(names), 2))
        self._sums: dict[str, ErrorSums] = {}
        self._other: dict[str, str] = {}  # outputs that are not float: their dtype
        self._scores: str | None = None  # the first float output
        self._unlike_scores = ""
        self._agree = 0
        self._topk = {1: PairedCounts(), 5: PairedCounts()}
        self._classes = 0

    def add(self, sample: LabelledSample, fp32: Arrays, int8: Arrays) -> None:
        """Compare one sample.

        Args:
            sample: Gives its label, and its origin for messages.
            fp32, int8: Output name -> array of this sample alone; an absent optional output is skipped.

        Raises:
            NonFiniteError: NaN or infinity in a float output, naming output, model and sample.
            ModelError: An output whose shapes differ.
            DataError: A label beyond the number of classes.
        """
        self.samples += 1
        energies = np.zeros_like(self._energies)
        for name, other in self._names:
            if name not in fp32 or other not in int8:
                continue
            x, y = fp32[name], int8[other]
            if x.dtype.kind != "f":
                self._other[name] = x.dtype.name
                continue
            _require_finite(x, name, self._models[0], sample.origin)
            _require_finite(y, other, self._models[1], sample.origin)
            if x.shape != y.shape:
                first, second = self._models
                raise ModelError(
                    f'output "{name}" has shape {x.shape} in the {first} and {y.shape} in the {second}',
                    do="give the FP32 model that the int8 model was made from",
                )
            part = error_sums(x, y)
            energies[self._places[name]] = part.signal, part.noise
            self._sums[name] = self._sums.get(name, ErrorSums()) + part
            if self._scores is None:
                self._scores = name
            if name == self._scores:
                self._classify(sample, x, y)
        self._energies += energies
        with np.errstate(over="ignore"):  # values beyond 1e38 have no interval, and their reason says so
            self._products += np.multiply.outer(energies, energies)

    def metrics(self) -> Metrics:
        """Return the figures over all outputs; sqnr_db and cosine are means over the float outputs that have one."""
        sums = [part for part in self._sums.values() if part.count]
        return Metrics(
            sqnr_db=_mean([part.sqnr_db for part in sums]),
            cosine=_mean([part.cosine for part in sums]),
            max_abs_error=max((part.max_abs for part in sums), default=None),
            agreement=None if self._no_scores() else self._agree / self.samples,
            top1=None if self._no_scores() else _drop(self._topk[1]),
            top5=None if self._no_scores() or self._classes <= 5 else _drop(self._topk[5]),
            sqnr_db_ci95=self._interval([name for name, _ in self._names]),
            agreement_ci95=None if self._no_scores() else proportion_interval(self._agree, self.samples),
        )

    def outputs(self) -> dict[str, OutputMetrics]:
        """Return the figures of each output, under the FP32 model's names."""
        sums = {name: self._sums.get(name, ErrorSums()) for name, _ in self._names}
        return {name: OutputMetrics(part.sqnr_db, part.cosine, self._interval([name])) for name, part in sums.items()}

    def reasons(self) -> dict[str, str]:
        """Say for each figure that is None why; keys are dotted paths of report.json."""
        reasons: dict[str, str] = {}
        alone: list[str] = []
        for name, figures in self.outputs().items():
            if figures.sqnr_db is None or figures.cosine is None:
                reasons[f"outputs.{name}"] = self._why_no_error(name)
            elif figures.sqnr_db_ci95 is None:
                alone.append(name)
        metrics = self.metrics()
        absent = dict(reasons)
        no_interval = _ONE_SAMPLE if self.samples < 2 else _TOO_LARGE
        reasons |= {f"outputs.{name}.sqnr_db_ci95": no_interval for name in alone}
        if metrics.sqnr_db is not None and metrics.sqnr_db_ci95 is None:
            reasons["metrics.sqnr_db_ci95"] = no_interval
        for key in ("sqnr_db", "cosine", "max_abs_error"):
            if getattr(metrics, key) is None:
                reasons[f"metrics.{key}"] = "; ".join(dict.fromkeys(absent.values())) if self._sums else _NO_FLOAT
        no_scores = self._no_scores()
        if metrics.agreement is None:
            reasons["metrics.agreement"] = no_scores
        if metrics.top1 is None:
            reasons["metrics.top1"] = no_scores or _NO_LABELS
        if metrics.top5 is None:
            few = f"the model has only {self._classes} classes" if self._topk[1].samples else _NO_LABELS
            reasons["metrics.top5"] = no_scores or few
        return reasons

    def _classify(self, sample: LabelledSample, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        first, second = np.squeeze(x), np.squeeze(y)
        if first.ndim != 1 or first.size < 2:
            self._unlike_scores = self._unlike_scores or (
                f'the first float output "{self._scores}" has shape {x.shape} per sample, not one row of class scores'
            )
            return
        self._classes = int(first.size)
        self._agree += int(first.argmax() == second.argmax())
        if sample.label is None:
            return
        if not 0 <= sample.label < first.size:
            raise DataError(
                f'label {sample.label} is not a class of output "{self._scores}", which has {first.size}',
                where=sample.origin,
                do="check the label file or the order of the class folders",
                label=sample.label,
            )
        ranks = rank_of(first, sample.label), rank_of(second, sample.label)
        for k, counts in self._topk.items():
            self._topk[k] = counts + paired_counts(ranks[0] < k, ranks[1] < k)

    def _interval(self, names: list[str]) -> tuple[float, float] | None:
        """Interval of the mean SQNR of these outputs, without those that have none."""
        places = [self._places[name] for name in names if self._sums.get(name, ErrorSums()).sqnr_db is not None]
        products = self._products[places][:, :, places]
        return sqnr_interval(self._energies[places], products, self.samples)

    def _no_scores(self) -> str:
        """Why there are no class scores; empty when there are."""
        return _NO_FLOAT if self._scores is None else self._unlike_scores

    def _why_no_error(self, name: str) -> str:
        if name in self._other:
            return f"output {name} is {self._other[name]}, not float"
        if not self._sums.get(name, ErrorSums()).count:
            return f"output {name} is absent or empty for every sample"
        return f"output {name} is zero everywhere"


def _require_finite(value: npt.NDArray[Any], name: str, model: str, origin: str) -> None:
    if np.isfinite(value).all():
        return
    kind = "NaN" if np.isnan(value).any() else "infinity"
    advice = (
        "check this sample, or the FP32 model on it"
        if model.startswith("FP32")
        else "run the FP32 model on this sample; if it is finite there, quantize again or exclude the layers before it"
    )
    raise NonFiniteError(
        f'output "{name}" of the {model} holds {kind}', where=origin, do=advice, tensor=name, sample=origin
    )


def _drop(counts: PairedCounts) -> Drop | None:
    if not counts.samples:
        return None
    low, high = counts.interval()
    return Drop(
        fp32=counts.first,
        int8=counts.second,
        drop=100 * counts.drop,
        drop_ci95=(100 * low, 100 * high),
        samples=counts.samples,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
