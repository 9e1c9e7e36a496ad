"""What of a comparison must not happen: limits of the user's, and regressions that no noise explains."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import DECISIONS, FIGURES, OUTPUT, OWN, figure_name
from int8cal.evaluation.gates import ParsedGate, hold, nearest, parse_gate
from int8cal.evaluation.result_parts import Gate
from int8cal.report.comparison import held, metric_of_both, of_another_float_model, value_in
from int8cal.report.reading import guessed_in, timed_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from int8cal.report.comparison import Comparison, FigureChange
    from int8cal.report.document import Document

_CHANGES: dict[str, Callable[[float, float], float | None]] = {
    "drop": lambda old, new: old - new,
    "rise": lambda old, new: new - old,
    "ratio": lambda old, new: new / old if old else (1.0 if new == old else None),
}
_OF_BOTH: dict[str, Callable[[Comparison], float | None]] = {
    "layers.largest_drop_db": lambda found: found.layers[0].drop_db if found.layers else None,
    "layers.to_float": lambda found: None if found.to_float is None else len(found.to_float),
}
LIMITS = (*(f"{name}.{change}" for name in FIGURES for change in _CHANGES), *_OF_BOTH)
_JUDGED = tuple(name for name, figure in FIGURES.items() if figure.better)  # of which one way is worse
_OUTPUT_LIMIT = re.compile(rf"{OUTPUT.pattern}\.({'|'.join(_CHANGES)})", re.DOTALL)
EXAMPLE = "sqnr_db.drop<=0.5"

# What the noise of a machine or of a file's metadata makes of two equal models, and a little more.
SPEED_TOLERANCE = 0.10
SIZE_TOLERANCE = 0.05
# Of the FP32 model's figure, for a metric without an interval: int8 models of MLPerf keep 99 % of it.
METRIC_TOLERANCE = 0.01


@dataclass(frozen=True)
class Regression(Gate):
    """The verdict on what must not happen without any limit of the user's.

    Attributes:
        value: How much worse it is, below 0 where it is better; of a gate 1 where it still passes, else 0.
        of_gate: What became of a gate of the old report; empty where it is about a figure.
    """

    of_gate: str = ""


def parse_limit(text: str, metric: str = "") -> ParsedGate:
    """Read one limit.

    Args:
        text: 'FIGURE.CHANGE<=VALUE', where FIGURE is one that gates know, and CHANGE is drop (old - new), rise
            (new - old) or ratio (new / old); or layers.largest_drop_db or layers.to_float.
        metric: What the metric of both reports is called, "" for none; its name alone stands for its int8 figure.

    Raises:
        ConfigError: Like `parse_gate`; a figure without a change says which there are.
    """
    plain = re.match(r"\s*([A-Za-z0-9_.]+?)\s*[<>]", text)
    if plain is not None and plain[1] in FIGURES:
        # the change for the worse first
        order = sorted(_CHANGES, key=lambda change: change == "drop" and FIGURES[plain[1]].better < 0)
        changes = " or ".join(f"{plain[1]}.{change}" for change in order)
        raise ConfigError(f'limit "{text}" is about a figure itself, not its change', do=f"write {changes}", gate=text)
    if plain is not None and plain[1] not in _OF_BOTH and plain[1].rpartition(".")[2] not in _CHANGES:
        near = nearest(plain[1], _JUDGED)
        if near:
            worse = "drop" if FIGURES[near].better > 0 else "rise"
            what = f'limit "{text}" names an unknown figure "{plain[1]}"'
            raise ConfigError(what, do=f'did you mean "{near}.{worse}"?', gate=text)
    limits = dict.fromkeys(LIMITS)
    if metric:
        limits |= {f"{metric}{rest}.{change}": None for rest in OWN for change in _CHANGES}
    limit = parse_gate(text, limits.keys(), EXAMPLE, outputs=_OUTPUT_LIMIT, noun="limit")
    figure, dot, change = limit.name.rpartition(".")
    return replace(limit, name=f"{figure_name(figure, metric)}{dot}{change}") if limit.name not in LIMITS else limit


def judge_limits(limits: Iterable[ParsedGate], found: Comparison) -> tuple[Gate, ...]:
    """Hold every limit against the comparison, in order; a change that cannot be told fails its limit."""
    return tuple(hold(limit, _changed(limit.name, found)) for limit in limits)


def _changed(name: str, found: Comparison) -> float | None:
    if name in _OF_BOTH:
        return _OF_BOTH[name](found)
    figure, _, change = name.rpartition(".")
    old, new = value_in(found.old, figure), value_in(found.new, figure)
    return None if old is None or new is None else _CHANGES[change](held(figure, old), held(figure, new))


def why_unknown(limit: str, found: Comparison) -> str:
    """Say why a limit could not be judged."""
    name = parse_limit(limit, metric_of_both(found.old, found.new) or "").name
    if name == "layers.largest_drop_db":
        return "the reports have no layer in common"
    if name == "layers.to_float":
        return f"{_lacking(found, lambda document: document.fusion)} a fusion audit"
    figure, _, change = name.rpartition(".")
    if value_in(found.old, figure) == 0 and change == "ratio" and value_in(found.new, figure) is not None:
        return "the old value is 0"
    return f"{_lacking(found, lambda document: value_in(document, figure))} {figure}"


def _lacking(found: Comparison, part: Callable[[Document], object]) -> str:
    absent = [name for name, each in (("old", found.old), ("new", found.new)) if part(each) is None]
    return "neither report has" if len(absent) == 2 else f"the {absent[0]} report lacks"


def judge_regressions(found: Comparison) -> tuple[Regression, ...]:
    """Look for regressions that no noise explains, without limits of the user's.

    Returns:
        A verdict per figure that the old report has, named by what must not happen. SQNR, agreement, top-1 and top-5,
        decisions on outputs where they have intervals: worse by more than the 95 % interval of the difference; the drop
        of the user's metric likewise, and without an interval by more than 1 % of the FP32 model's figure. Where the
        float models differ in top-1, top-5 or the metric on the same data, the int8 model's own likewise. Speedup: the
        same, and by more than 10 %, since two runs of one model differ more than its rounds. Size: by more than 5 %.
        Channels that can saturate and nodes in float: more than before. Gates: passed before and fail now, or loosened.
        A figure that the new report lacks fails. Speeds that were measured on different machines, or are guesses, are
        not compared: only a limit of the user's does.
    """
    by_name = {change.figure: change for change in found.figures}
    verdicts = [
        _verdict(by_name[name], _beyond_noise)
        for name in by_name
        if name in ("sqnr_db", "agreement", "top1.int8", "top1.drop", "top5.int8", "top5.drop")
        or (name.startswith("outputs.") and not _without_interval(by_name[name]))
    ]
    own = ["metric.int8"] if of_another_float_model("metric.int8", found.old, found.new) else []
    for name in [each for each in (*own, "metric.drop") if each in by_name]:
        reference = value_in(found.old, "metric.fp32")
        verdicts.append(_verdict(by_name[name], partial(_less_useful, reference=abs(reference or 0.0))))
    if not timed_elsewhere(found.old, found.new) and not guessed_in(found.old, found.new):
        verdicts.append(_verdict(by_name["latency.speedup"], _slower))
    verdicts.append(_verdict(by_name["size.int8_bytes"], _larger))
    verdicts += [_verdict(by_name[name], _more) for name in ("saturation.unsafe_channels", "fusion.float")]
    gates = [
        Regression(f"gate {each.gate}", float(each.new), each.new, of_gate="still passes" if each.new else "fails now")
        for each in found.gates
        if each.old and each.new is not None
    ]
    gates += [
        Regression(f"gate {each.gate}", 0.0, passed=False, of_gate=f"is {each.now} now")
        for each in found.gates
        if each.loosened
    ]
    return tuple(verdict for verdict in (*verdicts, *gates) if verdict is not None)


def _without_interval(change: FigureChange) -> bool:
    """Whether a figure of decisions changed of which nobody knows the noise: few samples have no worst percentile."""
    is_decision = change.figure.rpartition(".")[2] in DECISIONS
    return is_decision and change.worse_by is not None and change.worse_by_ci95 is None


def gates_gone(found: Comparison) -> tuple[Regression, ...]:
    """Return a failed verdict for each gate of the old report that the new one does not have, in any form.

    Without it nobody would learn that what guarded the model does so no longer.
    """
    return tuple(
        Regression(f"gate {each.gate}", 0.0, passed=False, of_gate="is not in the new report")
        for each in found.gates
        if each.gone
    )


def _verdict(change: FigureChange, is_worse: Callable[[FigureChange, float], bool]) -> Regression | None:
    name = f"{change.figure} not worse"
    if change.old is None:
        return None
    if change.worse_by is None:
        return Regression(name, None, passed=False)
    return Regression(name, change.worse_by, not is_worse(change, change.worse_by), change.worse_by_ci95)


def _beyond_noise(change: FigureChange, worse_by: float) -> bool:
    if change.new is not None and held(change.figure, change.new) != change.new:  # decibels of rounding alone
        return False
    return worse_by > 0 and (change.worse_by_ci95 is None or change.worse_by_ci95[0] > 0)


def _less_useful(change: FigureChange, worse_by: float, *, reference: float) -> bool:
    if change.worse_by_ci95 is not None:
        return _beyond_noise(change, worse_by)
    return worse_by > METRIC_TOLERANCE * reference


def _slower(change: FigureChange, worse_by: float) -> bool:
    return _beyond_noise(change, worse_by) and worse_by > SPEED_TOLERANCE * (change.old or 0.0)


def _larger(change: FigureChange, worse_by: float) -> bool:
    return worse_by > SIZE_TOLERANCE * (change.old or 0.0)


def _more(change: FigureChange, worse_by: float) -> bool:  # noqa: ARG001 - one signature for all
    return worse_by > 0
