"""Two reports side by side: what changed, which way, and what makes them hard to compare."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.evaluation.figures import DECISIONS, figure_of, interval_of, value_of
from int8cal.numerics.intervals import difference_interval, proportion_interval
from int8cal.report import wording
from int8cal.report.gate_changes import gate_changes
from int8cal.report.reading import (
    evaluation_data,
    guessed_in,
    name_of,
    setting_rows,
    timed_elsewhere,
    timed_on,
    verdict,
)

if TYPE_CHECKING:
    from int8cal.report.document import Document
    from int8cal.report.gate_changes import GateChange

    FactRow = tuple[str, str, str]


# Those of the user's metric, shown where a report has one.
_OWN = ("metric.int8", "metric.drop")
# What int8 loses against its float model says nothing of a float model that is worse than the old one: where these
# differ on the same data, those of the int8 model are shown and judged, too.
OF_INT8 = {"top1.int8": "top1.fp32", "top5.int8": "top5.fp32", "metric.int8": "metric.fp32"}
# Those of the model, in reading order.
_SHOWN = (
    "sqnr_db",
    "cosine",
    "agreement",
    "top1.int8",
    "top1.drop",
    "top5.int8",
    "top5.drop",
    *_OWN,
    "max_abs_error",
    "layers.worst_sqnr_db",
    "size.int8_bytes",
    "latency.int8",
    "latency.speedup",
    "saturation.unsafe_channels",
    "fusion.float",
)
# Of units without fixed decimals: a change below this share of the old value is none.
_LEAST_SHARE = 5e-5
# From here on the error is no more than float32 rounding.
ROUNDING_DB = 120.0


@dataclass(frozen=True)
class FigureChange:
    """A figure in both reports.

    Attributes:
        figure: Its name, as gates have it.
        old, new: Its values; None where a report has none.
        worse_by: How much worse the new one is, in the figure's unit; below 0 where it is better, 0 where the change is
            too small to be shown. None where a value is missing, or the change alone is neither.
        worse_by_ci95: Interval of `worse_by`, where both values have one. It takes the reports for independent: with
            the same samples in both it is wider than it has to be.
    """

    figure: str
    old: float | None
    new: float | None
    worse_by: float | None
    worse_by_ci95: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Say which way it went."""
        if self.worse_by is None:
            return ""
        if self.worse_by == 0:
            return "same"
        word = "worse" if self.worse_by > 0 else "better"
        certain = self.worse_by_ci95 is None or not self.worse_by_ci95[0] <= 0 <= self.worse_by_ci95[1]
        return word if certain else f"{word}, within noise"


@dataclass(frozen=True)
class LayerChange:
    """A layer that both reports measured; `drop_db` is how much SQNR it lost."""

    tensor: str
    op_type: str
    old_db: float
    new_db: float
    drop_db: float


@dataclass(frozen=True)
class Comparison:
    """What `compare_documents` found.

    Attributes:
        old, new: The documents.
        figures: In reading order.
        layers: Those that both measured, the largest drop first.
        lost, gained: Tensors that only the old, only the new report measured.
        to_float, to_integer: Nodes that newly compute in float, and those that do no longer; None where a report was
            not audited.
        gates: Of both reports.
        settings: Name, old and new value of everything else that changed.
        only_old, only_new: Names of the settings that one report alone has, as an evaluation has none of a calibration.
        warnings: What makes the figures hard to compare.
    """

    old: Document
    new: Document
    figures: tuple[FigureChange, ...]
    layers: tuple[LayerChange, ...]
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    to_float: tuple[str, ...] | None
    to_integer: tuple[str, ...] | None
    gates: tuple[GateChange, ...]
    settings: tuple[FactRow, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def of_one_network(self) -> bool:
        """Whether both are of one network, as far as layers tell: with none in common, figures alone stand together."""
        return bool(self.layers) or not (self.lost and self.gained)


def compare_documents(old: Document, new: Document) -> Comparison:
    """Put two reports side by side."""
    layers = _layers(old, new)
    facts = _by_content(_facts(old), _facts(new))
    names = [[layer.tensor for layer in document.layers] for document in (old, new)]
    return Comparison(
        old=old,
        new=new,
        figures=tuple(figure_change(name, old, new) for name in _shown(old, new)),
        layers=layers,
        lost=tuple(name for name in names[0] if name not in set(names[1])),
        gained=tuple(name for name in names[1] if name not in set(names[0])),
        to_float=_newly_float(old, new),
        to_integer=_newly_float(new, old),
        gates=gate_changes(old, new),
        settings=_settings(*facts),
        only_old=_missing(*facts),
        only_new=_missing(*reversed(facts)),
        warnings=_warnings(old, new),
    )


def _shown(old: Document, new: Document) -> tuple[str, ...]:
    """Choose the figures to show of two reports: those of the model, and of each output where there are several.

    Decisions on an output are those of the old report: that the new one does not tell of them any more is a change.
    """
    names = [name for name in old.outputs if name in new.outputs]
    decisions = [
        f"outputs.{name}.{figure}"
        for name in names
        for figure in dict.fromkeys(each.figure for each in old.outputs[name].decisions)
        if figure in DECISIONS  # another version's stands in its report alone
    ]
    own = [document for document in (old, new) if document.metric is not None]
    hidden = {name for name in OF_INT8 if not of_another_float_model(name, old, new)} - {"metric.int8"}
    of_model = [name for name in _SHOWN if name not in hidden and (own or name not in _OWN)]
    return (*of_model, *(f"outputs.{name}.sqnr_db" for name in names if len(names) > 1), *decisions)


def of_another_float_model(name: str, old: Document, new: Document) -> bool:
    """Whether a figure of the int8 models is against float models that differ in it, on the same evaluation data."""
    first, second = (value_in(document, OF_INT8[name]) for document in (old, new))
    known = first is not None and second is not None
    return known and first != second and _other_models(old, new) and not _other_data(old, new)


def value_in(document: Document, name: str) -> float | None:
    """Look a figure up in a report by the name that gates have for it; None where the report has none."""
    value = value_of(name, document)
    return None if value is None else float(value)


def held(name: str, value: float) -> float:
    """Hold decibels at ROUNDING_DB: above, they tell of rounding alone, and their changes of nothing."""
    return min(value, ROUNDING_DB) if name.endswith("_db") else value


def figure_change(name: str, old: Document, new: Document) -> FigureChange:
    """Compare one figure of two reports."""
    first, second, better_way = value_in(old, name), value_in(new, name), _better(name, old)
    if name in _OWN and metric_of_both(old, new) is None:
        return FigureChange(name, first, None if first is not None else second, None, None)
    if first is None or second is None or not better_way or (name == "latency.speedup" and guessed_in(old, new)):
        return FigureChange(name, first, second, None, None)
    pairs = [(held(name, first), _interval(name, old)), (held(name, second), _interval(name, new))]
    better, worse = pairs if better_way > 0 else reversed(pairs)
    if pairs[0][0] != first or pairs[1][0] != second:  # held: the interval is around another value
        better, worse = (better[0], None), (worse[0], None)
    worse_by = better[0] - worse[0]
    decimals = wording.DECIMALS.get(figure_of(name).unit)
    least = _LEAST_SHARE * abs(first) if decimals is None else 0.5 * 10.0**-decimals  # which is shown as 0
    interval = difference_interval(*better, *worse)
    return FigureChange(name, first, second, worse_by if abs(worse_by) > least else 0.0, interval)


def _interval(name: str, document: Document) -> tuple[float, float] | None:
    """Look up the 95 % interval of a figure; of the int8 model's top-k, a proportion, it is computed."""
    top = getattr(document.metrics, name.removesuffix(".int8"), None) if name in OF_INT8 else None
    if top is None or top.int8 is None or not top.samples:
        return interval_of(name, document)
    return proportion_interval(round(top.int8 * top.samples), top.samples)


def metric_of_both(old: Document, new: Document) -> str | None:
    """Name the metric that two reports share; None where one has none, or they have different ones."""
    names = [document.metric.name if document.metric else None for document in (old, new)]
    return names[0] if names[0] == names[1] else None


def _better(name: str, document: Document) -> int:
    """Say which way is better: 1, -1, or 0 for neither; of the user's metric the report knows."""
    if name == "metric.int8" and document.metric is not None:
        return 1 if document.metric.higher_is_better else -1
    return figure_of(name).better


def _layers(old: Document, new: Document) -> tuple[LayerChange, ...]:
    before = {layer.tensor: layer.sqnr_db for layer in old.layers}
    found = [
        LayerChange(
            layer.tensor,
            layer.op_type,
            was,
            layer.sqnr_db,
            held("sqnr_db", was) - held("sqnr_db", layer.sqnr_db),
        )
        for layer in new.layers
        if (was := before.get(layer.tensor)) is not None and layer.sqnr_db is not None
    ]
    return tuple(sorted(found, key=lambda layer: -layer.drop_db))


def _newly_float(old: Document, new: Document) -> tuple[str, ...] | None:
    if old.fusion is None or new.fusion is None:
        return None
    before, now = (
        Counter(node.node or f"unnamed {node.op_type}" for node in fusion.nodes) for fusion in (old.fusion, new.fusion)
    )
    return tuple((now - before).elements())


def _facts(document: Document) -> dict[str, str]:
    facts = {f"model.{name}": value for name, value in setting_rows(document.model)}
    return {**facts, **dict(setting_rows(document.settings)), "samples": str(document.samples)}


def _by_content(before: dict[str, str], now: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Leave out where a file is, of those that both reports know by their hash."""
    known = [{name for name in facts if facts.get(f"{name}_sha256", "none") != "none"} for facts in (before, now)]
    places = known[0] & known[1]
    left = [{name: value for name, value in facts.items() if name not in places} for facts in (before, now)]
    return left[0], left[1]


def _settings(before: dict[str, str], now: dict[str, str]) -> tuple[FactRow, ...]:
    """List what both reports know of and do not agree in."""
    outer = _outer(before) | _outer(now)
    rows = [(name, _known(before, name), _known(now, name)) for name in sorted({**before, **now}) if name not in outer]
    return tuple((name, was, is_) for name, was, is_ in rows if was is not None and is_ is not None and was != is_)


def _missing(facts: dict[str, str], others: dict[str, str]) -> tuple[str, ...]:
    """Name the settings that the others lack."""
    outer = _outer(others)
    return tuple(name for name in sorted(facts) if name not in outer and _known(others, name) is None)


def _known(facts: dict[str, str], name: str) -> str | None:
    """Find a setting; where a mapping was not given at all, that is the value of each setting in it."""
    steps = name.split(".")
    outer = (".".join(steps[:length]) for length in range(len(steps), 0, -1))
    return next((facts[each] for each in outer if each in facts), None)


def _outer(facts: dict[str, str]) -> set[str]:
    """Name the mappings that hold these settings."""
    found = set()
    for name in facts:
        steps = name.split(".")
        found |= {".".join(steps[:length]) for length in range(1, len(steps))}
    return found


def _hash(document: Document) -> str:
    return str(document.model.get("sha256") or "")


def _other_models(old: Document, new: Document) -> bool:
    return bool(_hash(old) and _hash(new)) and _hash(old) != _hash(new)


def _other_data(old: Document, new: Document) -> str:
    """Say in what the evaluation data differ; empty where they do not."""
    data = _by_content(*(dict(evaluation_data(document)) for document in (old, new)))
    differing = [name for name in {**data[0], **data[1]} if data[0].get(name) != data[1].get(name)]
    if differing:
        return ", ".join(f"{name} {data[0].get(name, 'none')} and {data[1].get(name, 'none')}" for name in differing)
    return f"{old.samples} and {new.samples} samples" if old.samples != new.samples else ""


def _warnings(old: Document, new: Document) -> tuple[str, ...]:
    found = []
    hashes = [_hash(document) for document in (old, new)]
    if _other_models(old, new):
        names = "" if name_of(old) == name_of(new) else f"{name_of(old)} and {name_of(new)}, "
        found.append(f"the float models differ: {names}sha256 {hashes[0][:12]}… and {hashes[1][:12]}…")
    elif not all(hashes) and name_of(old) != name_of(new):
        found.append(f'the float models have different names: "{name_of(old)}" and "{name_of(new)}"')
    differing = _other_data(old, new)
    if differing:
        found.append(f"the evaluation data differ: {differing}")
    metrics = [document.metric.name for document in (old, new) if document.metric is not None]
    if len(set(metrics)) == 2:
        found.append(f"the metrics differ: {metrics[0]} and {metrics[1]}")
    accuracies = [value_in(document, "top1.fp32") for document in (old, new)]
    same = not found
    if same and None not in accuracies and accuracies[0] != accuracies[1]:
        shown = " and ".join(wording.fraction(value) for value in accuracies)
        found.append(f"the float model's top-1 differs, {shown}: it was judged on other data, or by another runtime")
    if timed_elsewhere(old, new):
        machines = " and ".join(timed_on(document) for document in (old, new))
        found.append(f"speed was measured on {machines}: its change says nothing of the models")
    if guessed := guessed_in(old, new):
        which = f"{guessed[0]} report" if len(guessed) == 1 else "reports"
        found.append(f"the speedup of the {which} is a guess, since other processes had the cores: it is not compared")
    for which, document in (("old", old), ("new", new)):
        said = [each.text for each in verdict(document) if each.kind == "doubt"]
        found += [f"the {which} report's own verdict is: {'; '.join(said)}"] if said else []
    found += [
        f'the gate "{each.gate}" was loosened to "{each.now}"' for each in gate_changes(old, new) if each.loosened
    ]
    return tuple(found)
