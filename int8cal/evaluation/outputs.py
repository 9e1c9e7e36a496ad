"""The outputs of both models side by side: error, agreement and accuracy, one sample at a time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.padding import kept
from int8cal.errors import DataError, ModelError, NonFiniteError
from int8cal.evaluation.decision_metrics import Decisions, equal_values, lost_neighbours
from int8cal.evaluation.output_faults import LEAST_SAMPLES, GroupComparison, Spread, fault_lines, poor_groups
from int8cal.evaluation.output_groups import OutputGroup, whole_output
from int8cal.evaluation.result import Drop, Metrics, OutputMetrics
from int8cal.numerics.fills import masked_alike
from int8cal.numerics.intervals import paired_interval, proportion_interval, sqnr_interval
from int8cal.numerics.metrics import PairedCounts, SampleSums, error_sums, paired_counts, rank_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.data.sample import Sample
    from int8cal.evaluation.output_groups import GroupFinder
    from int8cal.numerics import Array, Bools
    from int8cal.runtime.batching import Arrays

_NO_LABELS = "the samples have no labels"
_NO_FLOAT = "the model has no float output"
_ONE_SAMPLE = "one sample gives no interval"
_CANNOT_TELL = "one sample: cannot tell whether an output changes"
# Outputs below it get a warning: noise of a tenth of the signal, where hardly any use is left.
POOR_DB = 10.0
# Above it two models differ by float32 rounding alone.
_ROUNDING_DB = 120.0


@dataclass
class _Uneven:
    """An output of which the models give other numbers of values: shapes of the first such sample, count of samples."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    samples: int = 0


@dataclass
class _Masked:
    """A mask of an output, the same in both models: what it is filled with, how many values, and of how many."""

    value: float
    count: int = 0
    of: int = 0


class OutputComparison:
    """Sums over samples; `add` each one, then read `metrics`, `outputs`, `reasons` and `warnings`.

    Args:
        names: (fp32 name, int8 name) of each output, in order; see `pixel_feeds.match_outputs`.
        groups: Finds the groups of channels of outputs, on the first sample; None where every output is one.
        first, second: What messages call the two models; first is None for the FP32 model, text for an int8 one.
    """

    def __init__(
        self,
        names: tuple[tuple[str, str], ...],
        groups: GroupFinder | None = None,
        *,
        first: str | None = None,
        second: str = "int8 model",
    ) -> None:
        self.samples = 0
        self._models = (first or "FP32 model", second)
        self._first_is_float = first is None
        self._names = names
        self._sums: dict[str, SampleSums] = {}
        self._spreads: dict[str, Spread] = {}
        self._summed_up: dict[str, OutputMetrics] | None = None
        self._find = groups
        self._decisions = Decisions(())
        self._groups: dict[str, list[GroupComparison]] = {}
        self._ungrouped: dict[str, str] = {}  # outputs whose channels cannot be told apart, and why
        self._other: dict[str, str] = {}  # outputs that are not float: their dtype
        self._equal: dict[str, list[tuple[int, int]]] = {}  # of these: by sample, values that are equal, and all
        self._unlike: set[str] = set()  # of these: they have other numbers of values in the models
        self._masked: dict[str, _Masked] = {}
        self._uneven: dict[str, _Uneven] = {}  # float outputs of which the models give other numbers of values
        self._scores: str | None = None  # the first float output
        self._unlike_scores = ""
        self._agree = 0
        self._topk = {1: PairedCounts(), 5: PairedCounts()}
        self._classes = 0
        self.labelled = 0  # samples with a label
        self.answers: Counter[tuple[int, int]] = Counter()  # label, and the first model's class -> samples

    def add(self, sample: Sample, fp32: Arrays, int8: Arrays) -> None:
        """Compare one sample.

        Args:
            sample: Gives its label, and its origin for messages.
            fp32, int8: Output name -> array of this sample alone; an absent optional output is skipped.

        Raises:
            NonFiniteError: NaN or infinity in a float output; names output, model and sample. At the same places in
                both models -infinity is a mask, and so is NaN in an output that has it from the first sample on.
            ModelError: An output whose shapes differ, though values do not decide them.
            DataError: A label beyond the number of classes.
        """
        self.samples += 1
        self.labelled += sample.label is not None
        self._summed_up = None
        masks = self._masks(fp32, int8)
        self._find_groups(sample, {**fp32, **{name: _filled(fp32[name], none) for name, none in masks.items()}})
        floats: list[dict[str, Array]] = [{}, {}]
        for name, other in self._names:
            if name not in fp32 or other not in int8:
                continue
            x, y = fp32[name], int8[other]
            if x.dtype.kind != "f":
                self._other[name] = x.dtype.name
                self._count_equal(name, *(kept(name, value, sample) for value in (x, y)))
                continue
            none = masks.get(name)
            _require_finite(x, name, self._models[0], sample.origin, none, quantized=not self._first_is_float)
            _require_finite(y, other, self._models[1], sample.origin, none, quantized=True)
            if x.shape != y.shape:
                self._add_uneven(name, x, y)
            if name in self._uneven:
                continue
            x, y = (kept(name, value, sample) for value in (x, y))
            pair = decided = (x, y)
            if none is not None:
                none = kept(name, none, sample)
                pair = (x[~none], y[~none])
                decided = _beyond(x, y, none)
                x, y = _filled(x, none), _filled(y, none)
            floats[0][name], floats[1][name] = decided
            self._sums[name] = self._sums.get(name, SampleSums()) + error_sums(*pair)
            self._spreads.setdefault(name, Spread()).add(x)
            self._add_groups(name, x, y)
            if self._scores is None:
                self._scores = name
            if name == self._scores:
                self._classify(name, sample, *decided)
        self._decide(floats)

    def _masks(self, fp32: Arrays, int8: Arrays) -> dict[str, Bools]:
        """Tell where float outputs are masked, the same in both models."""
        found = {}
        for name, other in self._names:
            x, y = fp32.get(name), int8.get(other)
            if x is None or y is None or x.dtype.kind != "f" or x.shape != y.shape:
                continue
            known = self._masked.get(name)
            by_design = self.samples == 1 or (known is not None and math.isnan(known.value))
            none = masked_alike(x, y, nan=by_design)
            if none is not None:
                values = x[none]
                value = math.nan if np.isnan(values).any() else float(values[0])
                known = self._masked.setdefault(name, _Masked(value))
                known.count += int(np.count_nonzero(none))
                found[name] = none
            if known is not None:
                known.of += x.size
        return found

    def _count_equal(self, name: str, x: Array, y: Array) -> None:
        if x.shape == y.shape:
            self._equal.setdefault(name, []).append((int(np.count_nonzero(x == y)), x.size))
        else:
            self._unlike |= {name}

    def _add_uneven(self, name: str, x: Array, y: Array) -> None:
        """Count a sample of which the models select other numbers of values: no two of them belong together."""
        first, second = self._models
        if self._find is None or name not in self._find.loose:
            raise ModelError(
                f'output "{name}" has shape {x.shape} in the {first} and {y.shape} in the {second}',
                do="give the FP32 model that the int8 model was made from",
            )
        known = self._uneven.setdefault(name, _Uneven((x.shape, y.shape)))
        known.samples += 1
        self._sums.pop(name, None)  # of samples with as many values, in whatever order
        self._scores = self._scores or name

    def _why_uneven(self, name: str) -> str:
        """Say that no error can be told of an output."""
        known = self._uneven[name]
        (x, y), (first, second) = known.shapes, self._models
        return (
            f'output "{name}" has another shape in the {second} for {known.samples} of {self.samples} samples, such as '
            f"{y} for {x} in the {first}: values decide it, so none can be compared"
        )

    def _decide(self, floats: list[dict[str, Array]]) -> None:
        """Look at what the outputs decide, by the groups that the first sample tells."""
        if self._find is not None and self.samples == 1:
            self._decisions = Decisions([each.group for name in floats[0] for each in self._groups[name]])
        self._decisions.add(*floats)

    def _find_groups(self, sample: Sample, fp32: Arrays) -> None:
        """Find the groups of outputs that are there for the first time."""
        new = {name: fp32[name] for name, _ in self._names if name in fp32 and name not in self._groups}
        if not new:
            return
        found: Mapping[str, Sequence[OutputGroup]] = {}
        if self._find is not None and not self._groups:
            try:
                found = self._find(sample, new)
            except (DataError, ModelError) as error:
                self._ungrouped |= dict.fromkeys(new, f"its parts could not be found: {error.what}")
        for name, value in new.items():
            self._groups[name] = [GroupComparison(group) for group in found.get(name, [whole_output(name, value)])]

    def _add_groups(self, name: str, x: Array, y: Array) -> None:
        groups = self._groups[name]
        last = groups[-1].group
        if last.axis is not None and (x.ndim <= last.axis or x.shape[last.axis] != last.end):
            self._ungrouped[name] = "the number of its channels differs between samples"
        if name in self._ungrouped and last.axis is not None:
            groups = self._groups[name] = [GroupComparison(OutputGroup(name, "values"))]
        for each in groups:
            each.add(each.group.of(x), each.group.of(y))

    def metrics(self) -> Metrics:
        """Return the figures over all outputs: sqnr_db and cosine are those of the worst float output.

        They are None where an output carries noise and has no figure of its own: a figure of the others would hide it.
        """
        outputs = self.outputs()
        worst = self._worst(outputs)
        cosines = [each.cosine for each in outputs.values() if each.cosine is not None]
        return Metrics(
            sqnr_db=None if worst is None else outputs[worst].sqnr_db,
            cosine=None if self._without("cosine") else min(cosines, default=None),
            max_abs_error=max((each.total.max_abs for each in self._sums.values() if each.total.count), default=None),
            agreement=None if self._no_scores() else self._agree / self.samples,
            top1=None if self._no_scores() else _drop(self._topk[1]),
            top5=None if self._no_scores() or self._classes <= 5 else _drop(self._topk[5]),
            exact_outputs=tuple(name for name, each in self._sums.items() if each.total.exact),
            sqnr_db_ci95=None if worst is None else outputs[worst].sqnr_db_ci95,
            agreement_ci95=None if self._no_scores() else proportion_interval(self._agree, self.samples),
        )

    @property
    def classes(self) -> int:
        """How many classes the first float output scores; 0 where it has no class scores."""
        return 0 if self._no_scores() else self._classes

    @property
    def still(self) -> bool:
        """Whether the first model gives the same float outputs for all samples, of which there are several."""
        groups = [each for found in self._groups.values() for each in found if each.sums.count]
        # of uneven outputs some samples were looked at, or none
        return self.samples > 1 and bool(groups) and not self._uneven and all(each.changes.still for each in groups)

    def outputs(self) -> dict[str, OutputMetrics]:
        """Return the figures of each output, under the FP32 model's names; summed up once, whoever asks."""
        if self._summed_up is None:
            self._summed_up = {name: self._figures(name) for name, _ in self._names}
        return self._summed_up

    def _figures(self, name: str) -> OutputMetrics:
        sums = self._sums.get(name, SampleSums())
        total = sums.total
        interval = sqnr_interval(total.signal, total.noise, sums.products, sums.samples)
        plain = OutputMetrics(sqnr_db=total.sqnr_db, cosine=total.cosine, sqnr_db_ci95=interval)
        if name in self._equal and name not in self._unlike:
            return replace(plain, decisions=equal_values(name, self._equal[name])[0])
        if not total.count:
            return plain
        judged = sums.samples >= LEAST_SAMPLES
        groups = tuple(each.result(judged=judged) for each in self._groups[name])
        last = self._groups[name][-1].group
        faults = fault_lines(name, last.end, groups, self._models)
        if judged:
            plain = replace(
                plain,
                dead=sum(len(each.dead) for each in groups),
                saturated=sum(each.saturated > 0.0 for each in groups),
                tied=sum(each.tied > 0.0 or each.levels > 0 for each in groups),
            )
        decisions, _ = self._decisions.results()
        shown = groups if len(groups) > 1 or faults else ()
        return replace(plain, faults=faults, groups=shown, decisions=decisions.get(name, ()))

    def reasons(self) -> dict[str, str]:
        """Say for each figure that is None why; keys are dotted paths of report.json."""
        _, found = self._decisions.results()
        uneven = tuple(f"outputs.{name}." for name in self._uneven)
        reasons = {path: why for path, why in found.items() if not path.startswith(uneven)}
        outputs, metrics = self.outputs(), self.metrics()
        for name, figures in outputs.items():
            if figures.sqnr_db is None:
                reasons[f"outputs.{name}"] = self._why_no_error(name)
            elif figures.cosine is None:
                reasons[f"outputs.{name}.cosine"] = self._why_no_error(name)
            if figures.sqnr_db is not None and figures.sqnr_db_ci95 is None:
                reasons[f"outputs.{name}.sqnr_db_ci95"] = _ONE_SAMPLE
        if metrics.sqnr_db is not None and metrics.sqnr_db_ci95 is None:
            reasons["metrics.sqnr_db_ci95"] = _ONE_SAMPLE
        for key in ("sqnr_db", "cosine", "max_abs_error"):
            if getattr(metrics, key) is None:
                names = self._without(key) or list(outputs)
                why = "; ".join(dict.fromkeys(self._why_no_error(name) for name in names))
                reasons[f"metrics.{key}"] = why if self._sums or self._uneven else _NO_FLOAT
        for name, figures in outputs.items():
            for at, group in enumerate(figures.groups):
                if group.sqnr_db is None or group.cosine is None:
                    reasons[f"outputs.{name}.groups.{at}"] = "the group is zero everywhere in one of the models"
        for name, counts in self._equal.items():
            reasons |= {} if name in self._unlike else equal_values(name, counts)[1]
        reasons |= {f"outputs.{name}.groups": why for name, why in self._ungrouped.items()}
        if all(each.dead is None for each in outputs.values()):
            others = "; ".join(dict.fromkeys(map(self._why_uneven, self._uneven)))  # those are compared no further
            why = _CANNOT_TELL if self._sums else others or _NO_FLOAT
            reasons |= {f"outputs.{name}": why for name in ("dead", "saturated", "tied")}
        no_scores = self._no_scores()
        if metrics.agreement is None:
            reasons["metrics.agreement"] = no_scores
        if metrics.top1 is None:
            reasons["metrics.top1"] = no_scores or _NO_LABELS
        if metrics.top5 is None:
            few = f"the model has only {self._classes} classes" if self._topk[1].samples else _NO_LABELS
            reasons["metrics.top5"] = no_scores or few
        return reasons

    def warnings(self) -> tuple[str, ...]:
        """Name the outputs that are of little use: faults first, then what is mostly noise, or zero everywhere."""
        first, second = self._models
        outputs = self.outputs()
        found = [f"{self._why_uneven(name)}; judge it by --metric" for name in self._uneven]
        found += [
            f'output "{name}" is masked, with {each.value:g} for {100 * each.count / each.of:.2g} % of its values, the '
            "same ones in both models: its figures are of the others"
            for name, each in self._masked.items()
        ]
        found += [line for output in outputs.values() for line in output.faults]
        for name, sums in self._sums.items():
            ratio = sums.total.sqnr_db
            if not sums.total.count:
                continue
            found += lost_neighbours(name, outputs[name].decisions)
            if ratio is None:
                found.append(f"{self._why_no_error(name)}; nothing can be said of its error")
            elif any(each.changes.lost for each in self._groups[name]) and ratio < _ROUNDING_DB:
                if outputs[name].dead:
                    continue  # a fault, which says more
                still = f'output "{name}" does not change in the {second} while it does in the {first}'
                found.append(f"{still} (SQNR {ratio:.2f} dB)")
            elif not ratio >= POOR_DB:
                found.append(f'output "{name}" has an SQNR of {ratio:.2f} dB: noise of more than a tenth of its signal')
            elif poor := poor_groups(name, outputs[name].groups, POOR_DB):
                found += poor
            elif (varying := self._varying_db(name)) is not None and varying < POOR_DB:
                much = f"noise of more than a tenth of what changes from sample to sample ({varying:.2f} dB)"
                found.append(
                    f'output "{name}" has an SQNR of {ratio:.2f} dB, but {much}: it is nearly the same for all'
                )
        return tuple(found)

    def _varying_db(self, name: str) -> float | None:
        """Return the SQNR of what tells samples apart, in dB; None where all are alike, or it cannot be told."""
        total, power = self._sums[name].total, self._spreads[name].power
        # squares that float64 cannot hold have another unit than these
        if not power or not math.isfinite(power) or total.exponent or not total.noise > 0.0:
            return None
        return 10.0 * math.log10(power / total.noise)

    def _worst(self, outputs: dict[str, OutputMetrics]) -> str | None:
        """Name the output whose SQNR is the model's; None where noise has no figure, or nothing has one."""
        ratios = {name: each.sqnr_db for name, each in outputs.items() if each.sqnr_db is not None}
        return None if self._without("sqnr_db") else min(ratios, key=lambda name: ratios[name], default=None)

    def _without(self, key: str) -> list[str]:
        """Name the outputs that carry noise and have no such figure."""
        outputs = self.outputs()
        return [
            name
            for name, each in self._sums.items()
            if each.total.max_abs > 0.0 and getattr(outputs[name], key, 0.0) is None
        ]

    def _classify(self, name: str, sample: Sample, x: Array, y: Array) -> None:
        first, second = np.squeeze(x), np.squeeze(y)
        if first.ndim != 1 or first.size < 2:
            self._unlike_scores = self._unlike_scores or (
                f'the first float output "{name}" has shape {x.shape} per sample, not one row of class scores'
            )
            return
        kind = self._groups[name][0].group.kind
        if kind in ("waveform", "signal"):
            self._unlike_scores = f'the first float output "{name}" is a {kind}, not a row of class scores'
            return
        self._classes = int(first.size)
        self._agree += int(first.argmax() == second.argmax())
        if sample.label is None:
            return
        if not 0 <= sample.label < first.size:
            raise DataError(
                f'label {sample.label} is not a class of output "{name}", which has {first.size}',
                where=sample.origin,
                do="check the label file or the order of the class folders",
                label=sample.label,
            )
        self.answers[sample.label, int(first.argmax())] += 1
        ranks = rank_of(first, sample.label), rank_of(second, sample.label)
        for k, counts in self._topk.items():
            self._topk[k] = counts + paired_counts(ranks[0] < k, ranks[1] < k)

    def _no_scores(self) -> str:
        """Why there are no class scores; empty when there are."""
        if self._scores in self._uneven:
            return f'the first float output "{self._scores}" has another shape in the {self._models[1]}'
        return _NO_FLOAT if self._scores is None else self._unlike_scores

    def _why_no_error(self, name: str) -> str:
        if name in self._unlike:
            return f"output {name} is {self._other[name]}, and has another shape in the {self._models[1]}"
        if name in self._other:
            return f"output {name} is {self._other[name]}, not float"
        if name in self._uneven:
            return self._why_uneven(name)
        sums = self._sums.get(name, SampleSums()).total
        if not sums.count:
            return f"output {name} is absent or empty for every sample"
        first, second = self._models
        if sums.signal > 0.0:
            return f"output {name} is zero everywhere in the {second}"
        if sums.max_abs > 0.0:
            return f"output {name} is zero everywhere in the {first}, but not in the {second}"
        return f"output {name} is zero everywhere in both models"


def _filled(value: Array, none: Bools) -> Array:
    """Return values with zero where there are none, which makes no error."""
    return np.where(none, value.dtype.type(0), value)


def _beyond(x: Array, y: Array, none: Bools) -> tuple[Array, Array]:
    """Return both with their lowest, or highest, value where there are none, which decides as what stood there."""
    there = [value[~none] for value in (x, y)]
    ends = [float(end) for value in there if value.size for end in (value.min(), value.max())] or [0.0]
    stand_in = np.where(x > 0, max(ends), min(ends)).astype(x.dtype)
    return np.where(none, stand_in, x), np.where(none, stand_in.astype(y.dtype), y)


def _require_finite(value: Array, name: str, model: str, origin: str, none: Bools | None, *, quantized: bool) -> None:
    finite = np.isfinite(value)
    if (finite if none is None else finite | none).all():
        return
    kind = "NaN" if np.isnan(value).any() else "infinity"
    advice = (
        "run the FP32 model on this sample; if it is finite there, quantize again or exclude the layers before it"
        if quantized
        else "check this sample, or the FP32 model on it"
    )
    raise NonFiniteError(
        f'output "{name}" of the {model} holds {kind}', where=origin, do=advice, tensor=name, sample=origin
    )


def _drop(counts: PairedCounts) -> Drop | None:
    if not counts.samples:
        return None
    low, high = paired_interval(counts.only_first, counts.only_second, counts.samples)
    return Drop(
        fp32=counts.first,
        int8=counts.second,
        drop=100 * counts.drop,
        drop_ci95=(100 * low, 100 * high),
        samples=counts.samples,
    )
