"""A comparison as lines for the terminal, as Markdown for a pull request, as JSON and as a suite of test cases."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from int8cal.errors import printable
from int8cal.evaluation.figures import figure_of
from int8cal.evaluation.result_parts import ends
from int8cal.phrases import counted, some
from int8cal.report import wording
from int8cal.report.comparison import held
from int8cal.report.junit import Case, Suite, gate_case
from int8cal.report.markdown import bullets, code, escape, folded_part, joined_parts, long_table
from int8cal.report.reading import name_of
from int8cal.report.regressions import Regression, why_unknown
from int8cal.report.screen import PIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.evaluation.result_parts import Gate
    from int8cal.report.comparison import Comparison, FigureChange
    from int8cal.report.screen import Screen

FORMAT = "int8cal/compare"
VERSION = 1
MARKER = "<!-- int8cal compare -->"
_SHOWN_LAYERS = 10
_MOST = 40
# Settings of which the two models' names and the warnings say all.
_TOLD = frozenset({"model.int8", "model.name", "model.run", "model.sha256"})
_DATA, _DIGEST = "model.data_fingerprint", 12
_CALLED = {
    _DATA: "calibration data, by fingerprint",
    "model.samples": "calibration samples",
    "samples": "evaluation samples",
}


@dataclass(frozen=True)
class JudgedComparison:
    """A comparison with its verdicts.

    Attributes:
        found: The comparison.
        names: What the two reports are called: their paths.
        limits: The user's.
        regressions: Those that are looked for without limits.
        gone: Gates of the old report that the new one lacks.
    """

    found: Comparison
    names: tuple[str, str]
    limits: tuple[Gate, ...]
    regressions: tuple[Regression, ...]
    gone: tuple[Regression, ...] = ()

    @property
    def verdicts(self) -> tuple[Gate, ...]:
        """All verdicts, the user's first."""
        return (*self.limits, *self.gone, *self.regressions)


def value_text(judged: JudgedComparison, gate: Gate) -> str:
    """Say what a verdict was about: the value, with its interval where it has one, or why there is none."""
    if not isinstance(gate, Regression):
        return wording.plain(gate.value) if gate.value is not None else why_unknown(gate.gate, judged.found)
    if gate.of_gate:
        return gate.of_gate
    if gate.value is None:
        return "the new report does not have it"
    if not gate.value:
        return "unchanged"
    better, bounds, interval = gate.value < 0, ends(gate.ci95), ""
    if bounds is not None:
        low, high = bounds
        interval = f", 95 % interval {' to '.join(map(wording.plain, (-high, -low) if better else (low, high)))}"
    return f"{'better' if better else 'worse'} by {wording.plain(abs(gate.value))}{interval}"


def outcome(judged: JudgedComparison) -> str:
    """Say in one phrase how the verdicts went."""
    failed = sum(not gate.passed for gate in judged.verdicts)
    if not judged.verdicts:
        return "no limits set"
    if not failed:
        return "no regression" if judged.regressions else "within all limits"
    return f"{failed} of {counted(len(judged.verdicts), 'check')} failed"


def compare_lines(judged: JudgedComparison, screen: Screen = PIPE) -> list[str]:
    """Show a comparison in a terminal, a line per row of its tables."""
    found = judged.found
    old, new = map(printable, judged.names)
    lines = [
        f"old  {old}: {printable(name_of(found.old))}",
        f"new  {new}: {printable(name_of(found.new))}",
        *(f"warning: {printable(text)}" for text in found.warnings),
        "",
    ]
    lines += screen.table([("", "old", "new", "change", ""), *_figure_rows(found)])
    worse = _layer_rows(found)[:_SHOWN_LAYERS]
    if worse:
        lines += ["", *screen.table([("layer, largest drop first", "op", "old", "new", "change"), *worse])]
    rows = [(head, text) for head, text in _lists(found) if text]
    rows += [(f"Changed {name}", f"{old_} to {new_}") for name, old_, new_ in _settings(found)]
    rows += _of_one(found)
    rows += [
        ("pass" if gate.passed else "FAIL", f"{gate.gate}  ({value_text(judged, gate)})") for gate in judged.verdicts
    ]
    rows.append(("Verdict", outcome(judged)))
    return [*lines, "", *screen.aligned(rows)]


def compare_markdown(judged: JudgedComparison) -> str:
    """Write a comparison as GitHub-flavoured Markdown, short enough for a comment."""
    found = judged.found
    sign = "" if not judged.verdicts else "✅ " if all(gate.passed for gate in judged.verdicts) else "❌ "
    failed = [
        f"❌ {code(gate.gate)}: {escape(value_text(judged, gate))}" for gate in judged.verdicts if not gate.passed
    ]
    layers = [[code(row[0]), escape(row[1]), *row[2:]] for row in _layer_rows(found)]
    verdicts = [
        [code(gate.gate), escape(value_text(judged, gate)), "✅" if gate.passed else "❌"] for gate in judged.verdicts
    ]
    gates = [[code(each.gate), _passed(each.old), _passed(each.new)] for each in found.gates]
    settings = [[code(cell) for cell in row] for row in _settings(found)]
    lists = [f"{head}: {escape(text)}" for head, text in _lists(found) if text]
    return joined_parts(
        [
            MARKER,
            f"## {sign}int8cal: {code(name_of(found.new))}, {outcome(judged)}",
            f"Old: {code(judged.names[0])}, new: {code(judged.names[1])}.",
            bullets(failed, most=_MOST),
            bullets([f"⚠️ {escape(text)}" for text in found.warnings], most=_MOST),
            long_table(
                ["", "old", "new", "change", ""],
                [[escape(cell) for cell in row] for row in _figure_rows(found)],
                {1, 2, 3},
                most=_MOST,
            ),
            bullets([*lists, *(f"{head}: {escape(text)}" for head, text in _of_one(found))], most=_MOST),
            _part("Checks", ["check", "", ""], verdicts),
            _part("Layers, largest drop first", ["tensor", "op", "old", "new", "change"], layers, {2, 3, 4}),
            _part("Gates", ["gate", "old", "new"], gates),
            _part("Changed settings and versions", ["", "old", "new"], settings),
        ]
    )


def _part(title: str, heads: list[str], rows: list[list[str]], right: set[int] | None = None) -> str:
    return folded_part(title, long_table(heads, rows, right or (), most=_MOST, rest="in the reports"))


def compare_json(judged: JudgedComparison) -> str:
    """Write a comparison as JSON.

    Returns:
        {"format", "version", "old", "new", "figures": [{"figure", "old", "new", "worse_by", "worse_by_ci95",
        "verdict"}], "layers": [{"tensor", "op_type", "old_db", "new_db", "drop_db"}], "lost_layers", "gained_layers",
        "to_float", "to_integer", "gates": [{"gate", "old", "new", "now", "loosened"}],
        "settings": [{"name", "old", "new"}], "settings_only_old", "settings_only_new", "warnings", "limits",
        "gates_gone" and "regressions": [{"gate", "value", "passed"}]}, indented by 1, with a final newline.
    """
    found = judged.found

    def verdicts(gates: Sequence[Gate]) -> list[dict[str, object]]:
        return [{"gate": gate.gate, "value": gate.value, "passed": gate.passed} for gate in gates]

    document = {
        "format": FORMAT,
        "version": VERSION,
        "old": judged.names[0],
        "new": judged.names[1],
        "figures": [asdict(change) | {"verdict": change.verdict} for change in found.figures],
        "layers": [asdict(layer) for layer in found.layers],
        "lost_layers": found.lost,
        "gained_layers": found.gained,
        "to_float": found.to_float,
        "to_integer": found.to_integer,
        "gates": [asdict(each) for each in found.gates],
        "settings": [{"name": name, "old": old, "new": new} for name, old, new in found.settings],
        "settings_only_old": found.only_old,
        "settings_only_new": found.only_new,
        "warnings": found.warnings,
        "limits": verdicts(judged.limits),
        "gates_gone": verdicts(judged.gone),
        "regressions": verdicts(judged.regressions),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def compare_suite(judged: JudgedComparison) -> Suite:
    """Make a suite of test cases, one per verdict."""
    cases = []
    for gate in judged.verdicts:
        noun = "" if isinstance(gate, Regression) else "value"  # what became of it says that itself
        cases.append(gate_case(gate.gate, value_text(judged, gate), passed=gate.passed, noun=noun))
    return Suite(name_of(judged.found.new), (Case("compare"), *cases))


def _figure_rows(found: Comparison) -> list[tuple[str, ...]]:
    rows = [cells(change) for change in found.figures if change.old is not None or change.new is not None]
    # how one network differs from another is no change
    return [row if found.of_one_network else (*row[:3], "", "") for row in rows]


def _layer_rows(found: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            wording.shortened(layer.tensor),
            layer.op_type,
            wording.decibel(layer.old_db),
            wording.decibel(layer.new_db),
            f"{-layer.drop_db:+.2f} dB",
        )
        for layer in found.layers
        if layer.drop_db >= 0.005  # less is not shown
    ]


def _settings(found: Comparison) -> list[tuple[str, str, str]]:
    """Return the settings that changed, in words; what the head and the warnings say already is left out."""
    cut = {_DATA: _DIGEST}
    return [
        (_CALLED.get(name, name), old[: cut.get(name)], new[: cut.get(name)])
        for name, old, new in found.settings
        if name not in _TOLD
    ]


def _lists(found: Comparison) -> list[tuple[str, str]]:
    of_layers = [
        ("From integer to float", _named(found.to_float or ())),
        ("From float to integer", _named(found.to_integer or ())),
        ("Layers no longer measured", _named(found.lost)),
        ("Layers newly measured", _named(found.gained)),
    ]
    return [
        *(of_layers if found.of_one_network else []),
        ("Gates no longer there", _named([each.gate for each in found.gates if each.gone])),
    ]


def _of_one(found: Comparison) -> list[tuple[str, str]]:
    """Name the settings that one report alone has."""
    alone = {
        which: [_CALLED.get(name, name) for name in names if name not in _TOLD]
        for which, names in (("old", found.only_old), ("new", found.only_new))
    }
    return [
        (f"In the {which} report alone", f"{counted(len(names), 'setting')}: {_named(names)}")
        for which, names in alone.items()
        if names
    ]


def _named(names: Sequence[str]) -> str:
    return some(map(wording.shortened, names), 5)


def _passed(passed: bool | None) -> str:
    return {None: "", True: "✅", False: "❌"}[passed]


def _by(unit: str, digits: int = 2) -> Callable[[float, float], str]:
    def change(old: float, new: float) -> str:
        number = f"{new - old:+.{digits}f}"
        zero = not float(number)
        return f"{number.lstrip('+-') if zero else number}{unit}"

    return change


def _decibels(old: float, new: float) -> str:
    return _by(" dB")(held("_db", old), held("_db", new))


def _percent(old: float, new: float) -> str:
    if not old:
        return "0 %" if new == old else "from 0"
    return _by(" %")(0.0, 100 * (new / old - 1))


# How the way from one value of a unit to another reads.
_WAYS: dict[str, Callable[[float, float], str]] = {
    "dB": _decibels,
    "similarity": _by("", 6),
    "fraction of 1": _by("", 4),
    "percentage points": _by(" points"),
    "channels": _by("", 0),
    "nodes": _by("", 0),
}


def cells(change: FigureChange) -> tuple[str, str, str, str, str]:
    """Show a change: the figure, old, new, the way between them, and which way that is."""
    figure = figure_of(change.figure)
    old, new = map(wording.OF_UNIT[figure.unit], (change.old, change.new))
    if change.old is None or change.new is None:
        return figure.label, old, new, "", ""
    way = _WAYS.get(figure.unit, _percent)
    return figure.label, old, new, way(change.old, change.new), change.verdict
