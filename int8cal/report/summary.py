"""What the command line prints when a job has ended: a few lines, the verdict first; the rest stands in the report."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import printable
from int8cal.report import wording
from int8cal.report.document import document_of
from int8cal.report.reading import (
    NOTHING,
    faults,
    for_another_runtime,
    headlines,
    nothing_to_compare,
    only_embeddings,
    surely_told,
    told_gates,
    verdict,
)
from int8cal.report.screen import PIPE
from int8cal.report.tables import decision_headline, optimized_sentence, runtime_sentences, worst_layer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document
    from int8cal.report.reading import Headline
    from int8cal.report.screen import Screen

LINES = 8
_LABEL = 8
# Of the headlines, those that are about accuracy, most telling first.
_ACCURACY = ("metric", "top1", "agreement", "sqnr_db")
_GATES_NAMED = 2
_KINDS = 3  # of float nodes, where room is short
_MORE = "More"
_LAYER = re.compile(r"\blayer(s?)\b")
_UNMEASURED = 10  # rank of a row that says only that there is nothing to say


@dataclass(frozen=True)
class _Row:
    """A label and a text; those of the least `rank` stay where there is no room for all.

    `shorter` says the same in fewer words, where room is short.
    """

    rank: int
    label: str
    text: str
    band: str = ""
    shorter: str = ""

    def lines(self, screen: Screen) -> list[str]:
        whole = f"{self.label:{_LABEL}}  {printable(self.text)}"
        return [screen.paint(line, self.band) for line in screen.wrap(whole, _LABEL + 2)]

    def short(self, screen: Screen) -> _Row:
        """Leave out what is beside the point, and then what one line does not hold; the verdict keeps its lines."""
        text, room = self.shorter or self.text, screen.width - _LABEL - 2
        if self.rank and len(text) > room:
            # at the end of a part, or else of a word
            ends = [text.rfind(each, 0, room) for each in (" (", ", ", "; ")]
            text = f"{text[: max(ends) if max(ends) > 0 else max(text.rfind(' ', 0, room), 1)]}…"
        return replace(self, text=text)


def summary_lines(report: Report, screen: Screen = PIPE, page: str = "", told: Collection[str] = ()) -> list[str]:
    """Say in at most eight lines where a model stands.

    Args:
        report: Of the job.
        screen: Where; its width decides how much is told.
        page: Path of the HTML report, which is the last line; "" without one.
        told: Findings and warnings that have been printed already, and are not printed again.

    Returns:
        First the verdict with everything that is worse than in the FP32 model and all that speaks against the figures;
        then accuracy, speed, size, warnings, the worst layer and what stayed in float. Where that takes more lines,
        rows are told in short, the least important first, and then left out, with their names in a line; what stayed in
        float is among the last to go where that is most of the model.
    """
    document = document_of(report)
    last = _Row(0, "Report", page or "not written; -o DIR writes it")
    rows = [_verdict(document, complete=not report.evaluation.failures), *_rows(document, screen, told), last]
    return [line for row in _fitting(rows, screen) for line in row.lines(screen)]


def _fitting(rows: list[_Row], screen: Screen) -> list[_Row]:
    """Shorten rows until eight lines hold them, and leave out what still does not fit; the last row stays the last."""

    def fits() -> bool:
        return sum(len(row.lines(screen)) for row in rows) <= LINES

    places = sorted(range(len(rows)), key=lambda place: -rows[place].rank)
    for place in places:
        if screen.whole_names or fits():
            break
        rows[place] = rows[place].short(screen)
    left = list[str]()
    for row in [rows[place] for place in places if rows[place].rank]:
        if fits():
            break
        rows = [each for each in rows[:-1] if each is not row and each.label != _MORE] + rows[-1:]
        if row.rank != _UNMEASURED:
            left.insert(0, row.label)
        if left:
            rows.insert(-1, _Row(0, _MORE, f"{', '.join(left)}: in the report"))
    return rows


def _verdict(document: Document, *, complete: bool) -> _Row:
    gates = told_gates(document)
    failed = [f"{gate.gate}, {_value(document, index)}" for index, gate in gates if not gate.passed]
    named = f" ({'; '.join(failed[:_GATES_NAMED])}{'; ...' if len(failed) > _GATES_NAMED else ''})" if failed else ""
    phrases = verdict(document, complete=complete)
    bands = {each.band for each in phrases}
    band = "poor" if "poor" in bands else "good" if "good" in bands else "strong"
    told = "; ".join(f"{each.text}{named if each.kind == 'gates' else ''}" for each in phrases)
    return _Row(0, "Result", told, band, shorter="; ".join(each.text for each in phrases))


def _value(document: Document, index: int) -> str:
    gate = document.gates[index]
    if gate.value is None:
        return wording.NOT_MEASURED
    if gate.why:
        return f"since {gate.why}"
    shown = wording.plain(gate.value)
    return f"is {gate.value:.8g}" if shown in gate.gate else f"is {shown}"  # digits that tell it from the bound


def _rows(document: Document, screen: Screen, told: Collection[str]) -> list[_Row]:
    """Return what there is to say beside the verdict, in reading order."""
    figures = {each.label: each for each in headlines(document)}
    figures["Speedup"] = surely_told(figures["Speedup"], document.latency)
    fastest = document.fastest is not None and document.fastest.runtime != "onnxruntime"
    rows = [
        _of(1, "Data", [text for text in map(str, document.findings) if text not in told], "poor"),
        _of(1, "At fault", faults(document), "poor"),
        _Row(2, "Accuracy", _accuracy(document), shorter=_accuracy(document, asides=False)),
        *(
            _Row(3 if each.measured else _UNMEASURED, label, _told(each), shorter=_elsewhere(each))
            for label in ("Speedup", "Size")
            for each in [figures[label]]
        ),
        _of(4, "Runtime", [f"{name}: {text}" for name, text in runtime_sentences(document)]),
        _Row(4, "Fastest", _told(figures["Fastest here"])) if fastest and "Fastest here" in figures else None,
        _of(5, "Search", [_with_layers_told(text) for text in _goals(document)]),
        _of(6, "Warning", [text for text in document.other_warnings if text not in told], "fair"),
        _worst(document, screen),
        _Row(
            1 if _mostly_float(document) else 8,
            "Float",
            "" if for_another_runtime(document) else _left_in_float(document, None),
            shorter=_left_in_float(document, _KINDS),
        ),
    ]
    return [each for each in rows if each is not None and each.text]


def _of(rank: int, label: str, told: Sequence[str], band: str = "") -> _Row | None:
    """Show the first of several things to say, and how many more there are."""
    more = f" (and {len(told) - 1} more, in the report)" if len(told) > 1 else ""
    return _Row(rank, label, f"{told[0]}{more}", band) if told else None


def _accuracy(document: Document, *, asides: bool = True) -> str:
    if nothing_to_compare(document):
        return NOTHING
    about = [name for name in _ACCURACY if name != "agreement" or not only_embeddings(document)]
    found = sorted(
        (each for each in headlines(document) if each.about in about), key=lambda each: about.index(each.about)
    )
    decided = decision_headline(document)
    if decided is not None and len(document.outputs) == 1:
        decided = replace(decided, aside="")  # there is nothing else that it could be of
    told = [
        f"{each.label} {_told(each) if asides and each.about != 'agreement' else each.text}"
        for each in (decided, *found)
        if each is not None and each.measured
    ]
    if told:
        return ", ".join(told)
    # the user's own metric, or the SQNR, which is always among them: top-1 means nothing where there are no classes
    first = found[0] if found[0].about == "metric" else found[-1]
    if first.aside and any(first.aside in text for text in document.other_warnings):
        first = replace(first, aside="see the warnings")
    return f"{first.label} {_told(first)}"


def _told(headline: Headline) -> str:
    """Write a figure with what else to know of it, or why it was not measured."""
    if not headline.measured:
        return f"{headline.text}: {headline.aside}"
    return f"{headline.text} ({headline.aside})" if headline.aside else headline.text


def _elsewhere(speed: Headline) -> str:
    """Write a speedup without the machine that it is of."""
    return _told(replace(speed, aside=speed.aside.partition(" on ")[0])) if speed.measured else ""


def _worst(document: Document, screen: Screen) -> _Row | None:
    """Name the worst layer; in short with its name cut in the middle."""
    worst = worst_layer(document)
    if not worst.measured:
        return None
    front = f"{worst.text} at "
    fitted = wording.shortened(printable(worst.aside), max(screen.width - _LABEL - 2 - len(front), _LABEL))
    return _Row(7, "Worst", front + worst.aside, shorter=front + fitted)


def _goals(document: Document) -> list[str]:
    """Say what measured latencies or a budget led to."""
    found = [optimized_sentence(document.optimize).rstrip(".")] if document.optimize else []
    return found + ([document.mixed_precision.outcome] if document.mixed_precision else [])


def _with_layers_told(text: str) -> str:
    """Say what a layer is where the word is first used."""
    return _LAYER.sub(lambda found: f"{found[0]} ({'nodes' if found[1] else 'a node'} with weights)", text, count=1)


def _mostly_float(document: Document) -> bool:
    """Whether more nodes compute in float than on integers: what the figures of such a model are of."""
    return document.fusion is not None and document.fusion.float_ > document.fusion.integer


def _left_in_float(document: Document, most: int | None) -> str:
    """Count the float nodes by kind, at most so many kinds."""
    fusion = document.fusion
    if fusion is None:
        return ""
    added = Counter(node.op_type for node in fusion.nodes if node.residual)
    kinds = Counter(node.op_type for node in fusion.nodes).most_common()
    listed = [f"{number} {kind}{_added(added[kind], number)}" for kind, number in kinds[:most]] + (
        ["…"] if len(kinds[:most]) < len(kinds) else []
    )
    told = f" ({', '.join(listed)})" if listed else ""
    return f"{fusion.float_} of {fusion.total} compute nodes{told}"


def _added(number: int, of: int) -> str:
    """Say how many of some nodes int8cal added itself, to compute residual codes."""
    return f"{'' if number == of else f', {number} of them'} added for residual codes" if number else ""
