"""Two reports side by side: what changed, which way, and what makes them hard to compare."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.numerics.intervals import difference_interval
from int8cal.report import wording
from int8cal.report.compare.figures import held, interval_in, shown_figures, value_in
from int8cal.report.reading import evaluation_data, flat, name_of

if TYPE_CHECKING:
    from int8cal.report.compare.figures import Interval, Shown
    from int8cal.report.document import Document

    Row = tuple[str, str, str]


@dataclass(frozen=True)
class Change:
    """A figure in both reports.

    Attributes:
        shown: Which figure.
        old, new: Its values; None where a report has none.
        worse_by: How much worse the new one is, in the figure's unit; below 0 where it is better. None where a value is
            missing, or the change alone is neither.
        ci95: Interval of `worse_by`, where both values have one. It takes the reports for independent: with the same
            samples in both it is wider than it has to be.
    """

    shown: Shown
    old: float | None
    new: float | None
    worse_by: float | None
    ci95: Interval

    @property
    def verdict(self) -> str:
        """Say which way it went."""
        if self.worse_by is None:
            return ""
        if self.worse_by == 0:
            return "same"
        word = "worse" if self.worse_by > 0 else "better"
        certain = self.ci95 is None or not self.ci95[0] <= 0 <= self.ci95[1]
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
class GateChange:
    """A gate of either report: whether it passed in each; None where a report does not have it."""

    gate: str
    old: bool | None
    new: bool | None


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
    figures: tuple[Change, ...]
    layers: tuple[LayerChange, ...]
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    to_float: tuple[str, ...] | None
    to_integer: tuple[str, ...] | None
    gates: tuple[GateChange, ...]
    settings: tuple[Row, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    warnings: tuple[str, ...]


def compare_documents(old: Document, new: Document) -> Comparison:
    """Put two reports side by side.

    Args:
        old, new: What `load_report` gave of each.
    """
    layers = _layers(old, new)
    facts = _facts(old), _facts(new)
    names = [[layer.tensor for layer in document.layers] for document in (old, new)]
    return Comparison(
        old=old,
        new=new,
        figures=tuple(change_of(shown, old, new) for shown in shown_figures(old, new)),
        layers=layers,
        lost=tuple(name for name in names[0] if name not in set(names[1])),
        gained=tuple(name for name in names[1] if name not in set(names[0])),
        to_float=_newly_float(old, new),
        to_integer=_newly_float(new, old),
        gates=_gates(old, new),
        settings=_settings(*facts),
        only_old=_missing(*facts),
        only_new=_missing(*reversed(facts)),
        warnings=_warnings(old, new),
    )


def change_of(shown: Shown, old: Document, new: Document) -> Change:
    """Compare one figure of two reports."""
    first, second = value_in(old, shown.name), value_in(new, shown.name)
    if first is None or second is None or not shown.better:
        return Change(shown, first, second, None, None)
    intervals = interval_in(old, shown.name), interval_in(new, shown.name)
    pairs = [(held(shown.name, first), intervals[0]), (held(shown.name, second), intervals[1])]
    better, worse = pairs if shown.better > 0 else reversed(pairs)
    if pairs[0][0] != first or pairs[1][0] != second:  # held: the interval is around another value
        better, worse = (better[0], None), (worse[0], None)
    return Change(shown, first, second, better[0] - worse[0] or 0.0, difference_interval(*better, *worse))


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


def _gates(old: Document, new: Document) -> tuple[GateChange, ...]:
    before, now = ({gate.gate: gate.passed for gate in document.gates} for document in (old, new))
    return tuple(GateChange(gate, before.get(gate), now.get(gate)) for gate in {**before, **now})


def _facts(document: Document) -> dict[str, str]:
    facts = {f"model.{name}": value for name, value in flat(document.model)}
    return {**facts, **dict(flat(document.settings)), "samples": str(document.samples)}


def _settings(before: dict[str, str], now: dict[str, str]) -> tuple[Row, ...]:
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


def _warnings(old: Document, new: Document) -> tuple[str, ...]:
    found = []
    hashes = [str(document.model.get("sha256") or "") for document in (old, new)]
    if all(hashes) and hashes[0] != hashes[1]:
        found.append(f"the float models differ: sha256 {hashes[0][:12]}… and {hashes[1][:12]}…")
    elif not all(hashes) and name_of(old) != name_of(new):
        found.append(f'the float models have different names: "{name_of(old)}" and "{name_of(new)}"')
    data = [dict(evaluation_data(document)) for document in (old, new)]
    differing = [name for name in {**data[0], **data[1]} if data[0].get(name) != data[1].get(name)]
    if differing:
        told = ", ".join(f"{name} {data[0].get(name, 'none')} and {data[1].get(name, 'none')}" for name in differing)
        found.append(f"the evaluation data differ: {told}")
    elif old.samples != new.samples:
        found.append(f"the evaluation data differ: {old.samples} and {new.samples} samples")
    accuracies = [value_in(document, "top1.fp32") for document in (old, new)]
    same = not differing and not found
    if same and None not in accuracies and accuracies[0] != accuracies[1]:
        shown = " and ".join(wording.percent(value) for value in accuracies)
        found.append(f"the float model's top-1 differs, {shown}: it was judged on other data, or by another runtime")
    return tuple(found)


def cells(change: Change) -> tuple[str, str, str, str]:
    """Show a change: old, new, the way between them, and which way that is."""
    shown = change.shown
    if change.old is None or change.new is None:
        return shown.text(change.old), shown.text(change.new), "", ""
    return shown.text(change.old), shown.text(change.new), shown.change(change.old, change.new), change.verdict
