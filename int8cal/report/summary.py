"""What the command line prints when a job has ended: a few lines, the verdict first; the rest stands in the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.errors import printable
from int8cal.report import wording
from int8cal.report.advice import advice
from int8cal.report.document import document_of
from int8cal.report.reading import (
    NOTHING,
    doubts,
    faults,
    headlines,
    nothing_to_compare,
    told_gates,
    verdict,
    worse_than_fp32,
)
from int8cal.report.screen import Screen
from int8cal.report.tables import decision_sentences, optimized_sentence, runtime_sentences, worst_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document
    from int8cal.report.reading import Headline

LINES = 8
PIPE = Screen(whole_names=True)
_LABEL = 8
# Of the headlines, those that are about accuracy, most telling first.
_ACCURACY = ("metric", "top1", "agreement", "sqnr_db")
_GATES_NAMED = 2


@dataclass(frozen=True)
class _Row:
    """A label and a text; those of the least `rank` stay where there is no room for all."""

    rank: int
    label: str
    text: str
    band: str = ""

    def lines(self, screen: Screen) -> list[str]:
        whole = f"{self.label:{_LABEL}}  {printable(self.text)}"
        return [screen.paint(line, self.band) for line in screen.wrap(whole, _LABEL + 2)]


def summary_lines(report: Report, screen: Screen = PIPE, page: str = "") -> list[str]:
    """Say in at most eight lines where a model stands.

    Args:
        report: Of the job.
        screen: Where; its width decides how much is told.
        page: Path of the HTML report, which is the last line; "" without one.

    Returns:
        First the verdict with everything that is worse than in the FP32 model and all that speaks against the figures;
        then what fits of reasons, accuracy, speed, size, advice, warnings, the worst layer and what stayed in float.
    """
    document = document_of(report)
    last = _Row(0, "Report", page or "not written; -o DIR writes it")
    rows = [_verdict(document, complete=not report.evaluation.failures), *_rows(document), last]
    room, kept = LINES, set[int]()
    for index in sorted(range(len(rows)), key=lambda index: rows[index].rank):
        needed = len(rows[index].lines(screen))
        if rows[index].rank == 0 or needed <= room:
            room -= needed
            kept.add(index)
    return [line for index in sorted(kept) for line in rows[index].lines(screen)]


def _verdict(document: Document, *, complete: bool) -> _Row:
    gates = told_gates(document)
    failed = [f"{gate.gate}, {_value(document, index)}" for index, gate in gates if not gate.passed]
    named = f" ({'; '.join(failed[:_GATES_NAMED])}{'; ...' if len(failed) > _GATES_NAMED else ''})" if failed else ""
    against = [*([] if complete else ["not everything could be evaluated"]), *doubts(document)]
    worse = worse_than_fp32(document)
    bad = against or failed or faults(document) or worse
    band = "poor" if bad else "good" if gates else "strong"
    return _Row(0, "Result", "; ".join([*against, f"{verdict(document)}{named}", *worse]), band)


def _value(document: Document, index: int) -> str:
    value = document.gates[index].value
    return wording.NOT_MEASURED if value is None else f"is {wording.plain(value)}"


def _rows(document: Document) -> list[_Row]:
    """Return what there is to say beside the verdict, in reading order."""
    figures = {each.label: each for each in headlines(document)}
    fastest = document.fastest is not None and document.fastest.runtime != "onnxruntime"
    worst = worst_layer(document)
    failed = [index for index, gate in told_gates(document) if not gate.passed]
    rows = [
        _of(1, "Data", [str(each) for each in document.findings], "poor"),
        _of(1, "At fault", faults(document), "poor"),
        _Row(2, "Accuracy", _accuracy(document)),
        *(
            _Row(3 if each.measured else 10, label, _told(each))
            for label in ("Speedup", "Size")
            for each in [figures[label]]
        ),
        _of(4, "Runtime", [f"{name}: {text}" for name, text in runtime_sentences(document)]),
        _Row(4, "Fastest", _told(figures["Fastest here"])) if fastest and "Fastest here" in figures else None,
        _of(5, "Search", _goals(document)),
        _of(6, "Advice", list(dict.fromkeys(filter(None, (advice(document, index) for index in failed))))),
        _of(7, "Warning", document.other_warnings, "fair"),
        _Row(8, "Worst", f"{worst.text} at {worst.aside}") if worst.measured else None,
        _Row(9, "Float", _left_in_float(document)),
    ]
    return [each for each in rows if each is not None and each.text]


def _of(rank: int, label: str, told: Sequence[str], band: str = "") -> _Row | None:
    """Show the first of several things to say, and how many more there are."""
    more = f" (and {len(told) - 1} more, in the report)" if len(told) > 1 else ""
    return _Row(rank, label, f"{told[0]}{more}", band) if told else None


def _accuracy(document: Document) -> str:
    if nothing_to_compare(document):
        return NOTHING
    found = sorted(
        (each for each in headlines(document) if each.about in _ACCURACY), key=lambda each: _ACCURACY.index(each.about)
    )
    decisions = [f"{label} {text.partition(' (')[0]}" for label, text in decision_sentences(document)[:1]]
    told = [
        f"{each.label} {each.text if each.about == 'agreement' else _told(each)}" for each in found if each.measured
    ]
    if told or decisions:
        return ", ".join([*decisions, *told])
    return ", ".join(f"{each.label} {_told(each)}" for each in found[:1])


def _told(headline: Headline) -> str:
    """Write a figure with what else to know of it, or why it was not measured."""
    if not headline.measured:
        return f"{headline.text}: {headline.aside}"
    return f"{headline.text} ({headline.aside})" if headline.aside else headline.text


def _goals(document: Document) -> list[str]:
    """Say what measured latencies or a budget led to."""
    found = [optimized_sentence(document.optimize).rstrip(".")] if document.optimize else []
    return found + ([document.mixed_precision.outcome] if document.mixed_precision else [])


def _left_in_float(document: Document) -> str:
    fusion = document.fusion
    if fusion is None:
        return ""
    kinds = Counter(node.op_type for node in fusion.nodes).most_common()
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds)
    return f"{fusion.float_} of {fusion.total} compute nodes{f' ({listed})' if listed else ''}"
