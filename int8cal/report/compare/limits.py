"""Limits on what changed between two reports, and the regressions that are noticed without any."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import FIGURES, OUTPUT
from int8cal.evaluation.gates import ParsedGate, hold, parse_gate
from int8cal.evaluation.result import Gate
from int8cal.report.compare.figures import held, value_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from int8cal.report.compare.comparison import Change, Comparison
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
_OUTPUT_LIMIT = re.compile(rf"{OUTPUT.pattern}\.({'|'.join(_CHANGES)})", re.DOTALL)
EXAMPLE = "sqnr_db.drop<=0.5"

# What the noise of a machine or of a file's metadata makes of two equal models, and a little more.
SPEED_TOLERANCE = 0.10
SIZE_TOLERANCE = 0.05


@dataclass(frozen=True)
class Regression(Gate):
    """The verdict on what must not happen without any limit of the user's.

    Attributes:
        value: How much worse it is, below 0 where it is better; of a gate 1 where it still passes, else 0.
        of_gate: Whether it is about a gate of both reports, not about a figure.
    """

    of_gate: bool = False


def parse_limit(text: str) -> ParsedGate:
    """Read one limit.

    Args:
        text: 'FIGURE.CHANGE<=VALUE', where FIGURE is one that gates know, and CHANGE is drop (old - new), rise
            (new - old) or ratio (new / old); or layers.largest_drop_db or layers.to_float.

    Raises:
        ConfigError: Like `parse_gate`; a figure without a change says which there are.
    """
    plain = re.match(r"\s*([A-Za-z0-9_.]+?)\s*[<>]", text)
    if plain is not None and plain[1] in FIGURES:
        changes = " or ".join(f"{plain[1]}.{change}" for change in _CHANGES)
        raise ConfigError(f'limit "{text}" is about a figure itself, not its change', do=f"write {changes}", gate=text)
    return parse_gate(text, LIMITS, EXAMPLE, outputs=_OUTPUT_LIMIT, noun="limit")


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
    name = parse_limit(limit).name
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

    Args:
        found: Two reports.

    Returns:
        A verdict per figure that the old report has, named by what must not happen. SQNR, agreement, top-1 and top-5:
        worse by more than the 95 % interval of the difference. Speedup: the same, and by more than 10 %, since two runs
        of one model differ more than its rounds. Size: by more than 5 %. Channels that can saturate and nodes in float:
        more than before. Gates of both reports: passed before, and fail now. A figure that the new report lacks fails.
    """
    by_name = {change.shown.name: change for change in found.figures}
    verdicts = [
        _verdict(by_name[name], _beyond_noise)
        for name in by_name
        if name in ("sqnr_db", "agreement", "top1.drop", "top5.drop") or name.startswith("outputs.")
    ]
    verdicts.append(_verdict(by_name["latency.speedup"], _slower))
    verdicts.append(_verdict(by_name["size.int8_bytes"], _larger))
    verdicts += [_verdict(by_name[name], _more) for name in ("saturation.unsafe_channels", "fusion.float")]
    gates = [
        Regression(f"gate {each.gate}", float(each.new), each.new, of_gate=True)
        for each in found.gates
        if each.old and each.new is not None
    ]
    return tuple(verdict for verdict in (*verdicts, *gates) if verdict is not None)


def _verdict(change: Change, is_worse: Callable[[Change, float], bool]) -> Regression | None:
    name = f"{change.shown.name} not worse"
    if change.old is None:
        return None
    if change.worse_by is None:
        return Regression(name, None, passed=False)
    return Regression(name, change.worse_by, not is_worse(change, change.worse_by), change.ci95)


def _beyond_noise(change: Change, worse_by: float) -> bool:
    if change.new is not None and held(change.shown.name, change.new) != change.new:  # decibels of rounding alone
        return False
    return worse_by > 0 and (change.ci95 is None or change.ci95[0] > 0)


def _slower(change: Change, worse_by: float) -> bool:
    return _beyond_noise(change, worse_by) and worse_by > SPEED_TOLERANCE * (change.old or 0.0)


def _larger(change: Change, worse_by: float) -> bool:
    return worse_by > SIZE_TOLERANCE * (change.old or 0.0)


def _more(change: Change, worse_by: float) -> bool:  # noqa: ARG001 - one signature for all
    return worse_by > 0
