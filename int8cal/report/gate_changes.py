"""What became of the gates of a report in another one: there still, loosened, gone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.gates import ParsedGate, parse_gate
from int8cal.report.reading import own_metric

if TYPE_CHECKING:
    from int8cal.evaluation.result_parts import Gate
    from int8cal.report.document import Document

    Meaning = ParsedGate | str


@dataclass(frozen=True)
class GateChange:
    """A gate of either report: whether it passed in each; None where a report does not have it.

    `now` is what the new report has in its place, where that is a gate on the same side of the same figure with
    another bound; `loosened` says whether that bound lets pass what this one does not.
    """

    gate: str
    old: bool | None
    new: bool | None
    now: str = ""
    loosened: bool = False

    @property
    def gone(self) -> bool:
        """Whether nothing in the new report is held against its figure any more."""
        return self.old is not None and self.new is None and not self.now


def gate_changes(old: Document, new: Document) -> tuple[GateChange, ...]:
    """Put the gates of two reports side by side: those of the old one first, in its order."""
    before, now = (
        {_meaning(gate.gate, own_metric(document)): gate for gate in document.gates} for document in (old, new)
    )
    return tuple(_gate_change(key, before, now) for key in {**before, **now})


def _gate_change(key: Meaning, before: dict[Meaning, Gate], now: dict[Meaning, Gate]) -> GateChange:
    old, new = before.get(key), now.get(key)
    text = next(gate.gate for gate in (old, new) if gate is not None)
    change = GateChange(text, old.passed if old else None, new.passed if new else None)
    if new is not None or isinstance(key, str):
        return change
    sign = 1 if key.operator.startswith(">") else -1
    others = {
        each: sign * each.bound
        for each in now
        if not isinstance(each, str) and (each.name, each.operator[0]) == (key.name, key.operator[0])
    }
    if not others:
        return change
    narrowest = max(others, key=lambda each: others[each])
    return replace(change, now=now[narrowest].gate, loosened=others[narrowest] < sign * key.bound)


def _meaning(text: str, metric: str) -> Meaning:
    """Read a gate, so that two that are written differently and mean the same are one; else return its text."""
    try:
        return replace(parse_gate(text, metric=metric, reachable=False), text="")
    except ConfigError:
        return text
