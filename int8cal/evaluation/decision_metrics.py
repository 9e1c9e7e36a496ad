"""What became of the decisions that outputs are for, where no label is needed: figures by the kind of their values.

Scores decide by their order, probabilities by a threshold, boxes by what they cover, embeddings by their neighbours.
Samples stream through; per sample a few numbers are kept, and of the first embeddings the vectors.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from int8cal.evaluation.detections import BOX_FIGURES, Detections, joined_scores
from int8cal.evaluation.output_faults import Changes
from int8cal.evaluation.output_groups import OutputGroup
from int8cal.evaluation.result_parts import DecisionFigure
from int8cal.evaluation.sample_figures import STUDENT, Alike, SampleFigure, Shares, low_percentile
from int8cal.numerics.intervals import ratio_of_sums_interval
from int8cal.numerics.metrics import EXACT_DB, error_sums, sqnr_db
from int8cal.numerics.neighbours import neighbour_recalls
from int8cal.numerics.ranks import average_ranks, best_first, best_recalls, rank_correlations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from int8cal.evaluation.output_groups import GroupKind
    from int8cal.numerics import Array, Indices
    from int8cal.runtime.batching import Arrays


# Values of a sample at most whose largest are looked for (3 ms), and that are sorted (6 ms): positions evenly spaced.
_COMPARED, _SORTED = 1 << 23, 1 << 16
_BEST = 5
_HALF = 0.5
# Embeddings that are kept: a thousand samples tell a recall to 2 points, and all their pairs fit in 8 MB.
_VECTORS, _VECTOR_VALUES = 1000, 1 << 23
_DECIBEL = 10.0 / math.log(10.0)
# Of nearest neighbours; with fewer, the interval's upper end included, an embedding is of no use for search. Right
# models keep 0.92 (tests/verdict) and 0.95 (the zoo's text encoder); one with three to five values an entry keeps 0.22.
_FEWEST_KEPT = 1 / 3


class _Accumulator(Protocol):
    """Figures of one group; samples are added one by one."""

    def add(self, fp32: Arrays, int8: Arrays) -> None: ...

    def figures(self) -> Iterator[SampleFigure]: ...


class Decisions:
    """Figures of all groups of a model's outputs: `add` each sample, then read `results`.

    Args:
        groups: Those of all outputs.
    """

    def __init__(self, groups: Sequence[OutputGroup]) -> None:
        self._parts: list[tuple[OutputGroup, _Accumulator]] = [
            (group, _KINDS[group.kind](group, groups)) for group in groups
        ]
        self._count = Counter(group.output for group in groups)
        self._channels = {group.output: group.end for group in groups}  # the last group's are the last
        self._uneven: set[str] = set()  # outputs of which samples have other numbers of channels
        self._results: tuple[dict[str, tuple[DecisionFigure, ...]], dict[str, str]] | None = None

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        """Compare one sample.

        Args:
            fp32, int8: FP32 model's output name -> finite float array of this sample alone, of equal shapes, without
                what padding made; an output that is absent is skipped.
        """
        self._results = None
        for group, part in self._parts:
            value = fp32.get(group.output)
            if value is None or not value.size:
                continue
            if group.axis is not None and value.shape[group.axis : group.axis + 1] != (self._channels[group.output],):
                self._uneven.add(group.output)
            if group.output not in self._uneven:
                part.add(fp32, int8)

    def results(self) -> tuple[dict[str, tuple[DecisionFigure, ...]], dict[str, str]]:
        """Sum up: the figures of each output, by group, the most telling first; and why any of them is missing.

        Keys of reasons are paths in report.json, and names that gates have.
        """
        if self._results is None:
            self._results = self._summed_up()
        return self._results

    def _summed_up(self) -> tuple[dict[str, tuple[DecisionFigure, ...]], dict[str, str]]:
        found: dict[str, list[DecisionFigure]] = {}
        reasons = {f"outputs.{name}.decisions": "samples have other numbers of its channels" for name in self._uneven}
        for group, part in self._parts:
            if group.output in self._uneven:
                continue
            figures = found.setdefault(group.output, [])
            for each in part.figures():
                reasons |= _missing(f"outputs.{group.output}", len(figures), each)
                figures.append(_typed(group, each, alone=self._count[group.output] == 1))
            if isinstance(part, _Boxes) and part.silent:
                reasons |= {f"outputs.{group.output}.{name}": part.silent for name in BOX_FIGURES}
        return {name: tuple(each) for name, each in found.items()}, reasons


def equal_values(output: str, counts: Sequence[tuple[int, int]]) -> tuple[tuple[DecisionFigure, ...], dict[str, str]]:
    """Sum up an output that holds decisions already, such as classes, flags or texts; returns as `Decisions.results`.

    Args:
        output: Its name.
        counts: Of each sample, values that are equal in both models, and all; one sample at least.
    """
    found = Shares()
    for equal, values in counts:
        found.add(equal, values)
    each = found.figure("equal_values", "share of values that are equal in both models", "the output is empty")
    return (_typed(OutputGroup(output, "whole values"), each, alone=True),), _missing(f"outputs.{output}", 0, each)


def lost_neighbours(output: str, decisions: Sequence[DecisionFigure]) -> tuple[str, ...]:
    """Say in one sentence, or none, whether an embedding has lost most of its nearest neighbours."""
    for each in decisions:
        if each.figure != "neighbour_recall1" or each.value is None or each.ci95 is None:
            continue
        low, high = each.ci95
        if high is not None and low is not None and high < _FEWEST_KEPT:
            what = f'output "{output}": the int8 model keeps {each.value:.2f} of the nearest neighbours'
            return (f"{what} (95 % interval {low:.2f} to {high:.2f}): a search finds others",)
    return ()


def _missing(output: str, place: int, found: SampleFigure) -> dict[str, str]:
    """File why a figure or its interval is missing under its path and its name."""
    path, name = f"{output}.decisions.{place}", f"{output}.{found.name}"
    if found.value is None:
        return dict.fromkeys((path, name, f"{name}_ci95"), found.why)
    return {} if found.ci95 else dict.fromkeys((f"{path}.ci95", f"{name}_ci95"), found.why_ci95)


def _typed(group: OutputGroup, found: SampleFigure, *, alone: bool) -> DecisionFigure:
    return DecisionFigure(
        figure=found.name,
        kind=group.kind,
        channels=None if alone or group.axis is None else (group.first, group.end - 1),
        value=found.value,
        ci95=found.ci95,
        samples=found.samples,
        how=found.how,
    )


def _part(group: OutputGroup, values: Array) -> Array:
    """Return a group's values; float16 as float32, which everything else is made for."""
    part = group.of(values)
    return part.astype(np.float32) if part.dtype == np.float16 else part


def _rows(group: OutputGroup, values: Array) -> Array:
    """Return a group's values as (positions, channels)."""
    part = _part(group, values)
    axis = -1 if group.axis is None else group.axis
    if group.axis is None and sum(length > 1 for length in part.shape) < 2:
        return part.reshape(1, -1)
    channels = part.shape[axis]
    return np.moveaxis(part, axis, -1).reshape(-1, channels)


def _spaced(rows: int, most: int) -> Indices:
    """Choose rows, evenly spaced: all of them where there are no more than that."""
    return np.arange(rows) if rows <= most else np.linspace(0, rows - 1, max(most, 1)).round().astype(np.intp)


class _Scores:
    """Rows of scores, of which the largest decides."""

    def __init__(self, group: OutputGroup, _: Sequence[OutputGroup]) -> None:
        self._group = group
        self._same, self._order, self._best = Shares(), Shares(), Shares()
        self._classes, self._positions = 0, 0
        self._of_all, self._of_sorted = 0, 0  # positions looked at, of the largest sample

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        x, y = (_rows(self._group, each[self._group.output]) for each in (fp32, int8))
        rows, self._classes = x.shape
        self._positions = max(self._positions, rows)
        if self._classes < 2 or not rows:
            return
        some = _spaced(rows, _COMPARED // self._classes)
        self._of_all = max(self._of_all, len(some))
        first, second = (x, y) if len(some) == rows else (x[some], y[some])
        self._same.add(float((first.argmax(axis=1) == second.argmax(axis=1)).mean()))
        if self._classes < 3:
            return
        some = _spaced(rows, _SORTED // self._classes)
        self._of_sorted = max(self._of_sorted, len(some))
        first, second = x[some], y[some]
        orders = best_first(first), best_first(second)
        ranks = average_ranks(first, orders[0]), average_ranks(second, orders[1])
        correlations = rank_correlations(*ranks)
        ordered = ~np.isnan(correlations)
        if ordered.any():
            self._order.add(float(correlations[ordered].mean()))
        if self._classes > _BEST:
            self._best.add(float(best_recalls(*orders, _BEST).mean()))

    def figures(self) -> Iterator[SampleFigure]:
        if self._classes < 2:
            return
        none = "the output is absent or empty for every sample"
        rows = "samples" if self._positions == 1 else "positions"
        yield self._same.figure(
            "argmax_agreement",
            f"share of {rows} whose largest of {self._classes} scores is the same one{self._over(self._of_all)}",
            none,
        )
        if self._classes < 3:
            return
        over = self._over(self._of_sorted)
        yield self._order.figure(
            "rank_correlation",
            f"Spearman's correlation of the scores of a row, tied scores sharing their ranks{over}",
            "every row of the FP32 model holds one value",
            (-1.0, 1.0),
        )
        if self._classes > _BEST:
            how = f"share of the FP32 model's {_BEST} best scores of a row among the int8 model's {_BEST} best{over}"
            yield self._best.figure(f"top{_BEST}_recall", how, none)

    def _over(self, looked_at: int) -> str:
        if self._positions == 1:
            return ""
        told = "" if looked_at == self._positions else f", of {looked_at} evenly spaced positions a sample"
        return f", mean over positions and then over samples{told}"


class _Probabilities:
    """Values that are each held against one half."""

    def __init__(self, group: OutputGroup, _: Sequence[OutputGroup]) -> None:
        self._group = group
        self._crossings, self._f1 = Shares(), Shares()
        self._changes, self._samples = Changes(), 0

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        x, y = (_part(self._group, each[self._group.output]) for each in (fp32, int8))
        self._changes.add(x, y)
        self._samples += 1
        x, y = x > _HALF, y > _HALF
        different, positive, found = (int(np.count_nonzero(each)) for each in (x != y, x, y))
        self._crossings.add(different, x.size)
        self._f1.add(positive + found - different, positive + found)

    def figures(self) -> Iterator[SampleFigure]:
        none, empty = f"no value of either model is above {_HALF}", "the output is empty"
        f1, crossings = self._f1, self._crossings
        if self._changes.still and self._samples > 1:  # a constant that happens to be small, such as a deviation
            none = empty = "the FP32 model gives the same values for every sample: they decide nothing"
            f1 = crossings = Shares()
        how = f"F1 of the int8 model's decisions (above {_HALF}) against the FP32 model's, over all values"
        yield f1.figure("decision_f1", how, none)
        how = f"share of values on the other side of {_HALF} than in the FP32 model"
        yield crossings.figure("threshold_crossings", how, empty)


class _Boxes:
    """Boxes, with the scores that say which of them count."""

    def __init__(self, group: OutputGroup, groups: Sequence[OutputGroup]) -> None:
        self._group = group
        scores = [each for each in groups if each.kind in ("class scores", "probabilities")]
        own = [each for each in scores if each.output == group.output]
        self._scores = [own] if own else [[each] for each in scores]
        self._found, self._unpaired = Detections(), False

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        boxes = tuple(_rows(self._group, each[self._group.output]) for each in (fp32, int8))
        objects = len(boxes[0])
        fitting = [groups for groups in self._scores if _have(objects, groups, fp32)]
        self._unpaired = self._unpaired or len(fitting) != 1
        if self._unpaired:
            return
        scores = tuple(joined_scores([_of_objects(each, objects, at) for each in fitting[0]]) for at in (fp32, int8))
        self._found.add((boxes[0], boxes[1]), (scores[0], scores[1]))

    @property
    def silent(self) -> str:
        """Why nothing is said of these boxes; empty where something is."""
        return "no scores, or those of several outputs, belong to its boxes" if self._unpaired else self._found.silent

    def figures(self) -> Iterator[SampleFigure]:
        return iter(()) if self.silent else self._found.figures()


def _have(objects: int, groups: Iterable[OutputGroup], outputs: Arrays) -> bool:
    """Whether score groups have a row for each of so many objects."""
    parts = [outputs.get(each.output) for each in groups]
    found = [
        part is not None and (_part(group, part).size == objects or len(_rows(group, part)) == objects)
        for group, part in zip(groups, parts, strict=True)
    ]
    return all(found)


def _of_objects(group: OutputGroup, objects: int, outputs: Arrays) -> Array:
    part = _part(group, outputs[group.output])
    return part.reshape(-1, 1) if part.size == objects else _rows(group, outputs[group.output])


class _Embedding:
    """Vectors that are compared with other samples' by their direction."""

    def __init__(self, group: OutputGroup, _: Sequence[OutputGroup]) -> None:
        self._group = group
        self._cosine = Shares()
        self._vectors: list[tuple[Array, Array]] = []
        self._values, self._all = 0, True

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        x, y = (_rows(self._group, each[self._group.output]) for each in (fp32, int8))
        self._cosine.add(_mean_cosine(x, y))
        self._values += x.size
        fits = len(self._vectors) < _VECTORS and self._values <= _VECTOR_VALUES
        if not self._all or len(x) != 1 or not fits or (self._vectors and x.shape != self._vectors[0][0].shape):
            self._all = False
            if len(x) != 1:
                self._vectors.clear()
            return
        self._vectors.append((x.copy(), y.copy()))  # the runtime may write into its arrays again

    def figures(self) -> Iterator[SampleFigure]:
        n = len(self._vectors)
        over = f"the first {n} samples" if n < len(self._cosine) else f"all {n} samples"
        recalls = [k for k in (1, _BEST) if n > k + 1]
        x, y = (np.array([pair[model].reshape(-1) for pair in self._vectors]) for model in (0, 1))
        for k in recalls:
            nearest, places = Shares(), "nearest neighbour" if k == 1 else f"{k} nearest neighbours"
            for each in neighbour_recalls(x, y, k):
                nearest.add(float(each))
            how = (
                f"share of a sample's {places} by cosine among {over} that the int8 model gives too, ties shared; "
                "that samples have neighbours in common is left out of its interval"
            )
            yield nearest.figure(f"neighbour_recall{k}", how, "")
        how = "cosine of the two models' vectors, mean over samples"
        yield self._cosine.figure("embedding_cosine", how, "", (-1.0, 1.0))


def _mean_cosine(x: Array, y: Array) -> float:
    """Mean cosine of rows; 1 for two of zeros, 0 for one."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    both = np.einsum("ij,ij->i", a, b)
    of_a, of_b = np.einsum("ij,ij->i", a, a), np.einsum("ij,ij->i", b, b)
    lengths = np.sqrt(of_a * of_b)
    cosines = np.divide(both, lengths, out=((of_a == 0.0) & (of_b == 0.0)).astype(np.float64), where=lengths > 0.0)
    return float(np.clip(cosines, -1.0, 1.0).mean())


class _Signal:
    """Values that count as they are: waveforms, pictures, anything without a kind."""

    def __init__(self, group: OutputGroup, _: Sequence[OutputGroup]) -> None:
        self._group = group
        self._noise, self._counts, self._ratios = array("d"), Alike(), array("d")
        self._low, self._high = math.inf, -math.inf

    def add(self, fp32: Arrays, int8: Arrays) -> None:
        x, y = (_part(self._group, each[self._group.output]) for each in (fp32, int8))
        sums = error_sums(x, y)
        self._low, self._high = min(self._low, float(x.min())), max(self._high, float(x.max()))
        self._noise.append(float(np.ldexp(sums.noise, 2 * sums.exponent)))
        self._counts.take(sums.count)
        if sums.sqnr_db is not None:
            self._ratios.append(sums.sqnr_db)

    def figures(self) -> Iterator[SampleFigure]:
        if not len(self._counts):
            return
        yield self._psnr()
        how = "5th percentile over samples of each one's SQNR, a sample's own: the worst one of fewer than 21"
        none = "the output is zero in the FP32 model on every sample"
        yield low_percentile(self._ratios, "p5_sqnr_db", how, none)

    def _psnr(self) -> SampleFigure:
        span, samples = self._high - self._low, len(self._counts)
        name, how = "psnr_db", "peak signal-to-noise ratio: the span of all FP32 values against the mean squared error"
        mean = math.fsum(self._noise) / math.fsum(self._counts)
        peak = sqnr_db(span * span, mean)
        if peak is None or not math.isfinite(peak):
            why = "the FP32 model gives one value only" if span == 0.0 else "the values leave float64 when squared"
            return SampleFigure(name, None, None, samples, how, why=why)
        interval = (peak, peak) if mean == 0.0 and peak == EXACT_DB else self._around(peak, mean)
        why = "" if interval else "one sample gives no interval"
        told = f"{how}; {STUDENT}, of the mean squared error"
        return SampleFigure(name, peak, interval, samples, told, why_ci95=why)

    def _around(self, peak: float, mean: float) -> tuple[float, float] | None:
        """Carry the interval of the mean squared error over to decibels, where it is as wide on either side."""
        bounds = ratio_of_sums_interval(self._noise, self._counts)
        margin = None if bounds is None else _DECIBEL * (bounds[1] - bounds[0]) / 2 / mean
        return None if margin is None else (peak - margin, peak + margin)


_KINDS: dict[GroupKind, Callable[[OutputGroup, Sequence[OutputGroup]], _Accumulator]] = {
    "class scores": _Scores,
    "token logits": _Scores,
    "probabilities": _Probabilities,
    "boxes": _Boxes,
    "embedding": _Embedding,
    "waveform": _Signal,
    "signal": _Signal,
    "image": _Signal,
    "values": _Signal,
}
