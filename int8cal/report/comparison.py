"""Two reports side by side: what changed, which way, what makes them hard to compare, and what is a regression."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import DECISIONS, FIGURES, OUTPUT, OWN, figure_name, figure_of, interval_of, value_of
from int8cal.evaluation.gates import ParsedGate, hold, nearest, parse_gate
from int8cal.evaluation.result import Gate
from int8cal.numerics.intervals import difference_interval
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
    from collections.abc import Callable, Iterable

    from int8cal.report.document import Document
    from int8cal.report.gate_changes import GateChange

    FactRow = tuple[str, str, str]


# Those of the user's metric, shown where a report has one.
_OWN = ("metric.int8", "metric.drop")
# Those of the model, in reading order.
_SHOWN = (
    "sqnr_db",
    "cosine",
    "agreement",
    "top1.drop",
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
# From here on the error is no more than float32 rounding.
ROUNDING_DB = 120.0


@dataclass(frozen=True)
class FigureChange:
    """A figure in both reports.

    Attributes:
        figure: Its name, as gates have it.
        old, new: Its values; None where a report has none.
        worse_by: How much worse the new one is, in the figure's unit; below 0 where it is better. None where a value is
            missing, or the change alone is neither.
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
    ]
    own = [document for document in (old, new) if document.metric is not None]
    of_model = [name for name in _SHOWN if own or name not in _OWN]
    return (*of_model, *(f"outputs.{name}.sqnr_db" for name in names if len(names) > 1), *decisions)


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
    pairs = [(held(name, first), interval_of(name, old)), (held(name, second), interval_of(name, new))]
    better, worse = pairs if better_way > 0 else reversed(pairs)
    if pairs[0][0] != first or pairs[1][0] != second:  # held: the interval is around another value
        better, worse = (better[0], None), (worse[0], None)
    return FigureChange(name, first, second, better[0] - worse[0] or 0.0, difference_interval(*better, *worse))


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


def _warnings(old: Document, new: Document) -> tuple[str, ...]:
    found = []
    hashes = [str(document.model.get("sha256") or "") for document in (old, new)]
    if all(hashes) and hashes[0] != hashes[1]:
        names = "" if name_of(old) == name_of(new) else f"{name_of(old)} and {name_of(new)}, "
        found.append(f"the float models differ: {names}sha256 {hashes[0][:12]}… and {hashes[1][:12]}…")
    elif not all(hashes) and name_of(old) != name_of(new):
        found.append(f'the float models have different names: "{name_of(old)}" and "{name_of(new)}"')
    data = _by_content(*(dict(evaluation_data(document)) for document in (old, new)))
    differing = [name for name in {**data[0], **data[1]} if data[0].get(name) != data[1].get(name)]
    if differing:
        told = ", ".join(f"{name} {data[0].get(name, 'none')} and {data[1].get(name, 'none')}" for name in differing)
        found.append(f"the evaluation data differ: {told}")
    elif old.samples != new.samples:
        found.append(f"the evaluation data differ: {old.samples} and {new.samples} samples")
    metrics = [document.metric.name for document in (old, new) if document.metric is not None]
    if len(set(metrics)) == 2:
        found.append(f"the metrics differ: {metrics[0]} and {metrics[1]}")
    accuracies = [value_in(document, "top1.fp32") for document in (old, new)]
    same = not differing and not found
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
        changes = " or ".join(f"{plain[1]}.{change}" for change in _CHANGES)
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
        of the user's metric likewise, and without an interval by more than 1 % of the FP32 model's figure. Speedup: the
        same, and by more than 10 %, since two runs of one model differ more than its rounds. Size: by more than 5 %.
        Channels that can saturate and nodes in float: more than before. Gates: passed before and fail now, or loosened.
        A figure that the new report lacks fails. Speeds that were measured on different machines, or are guesses, are
        not compared: only a limit of the user's does.
    """
    by_name = {change.figure: change for change in found.figures}
    verdicts = [
        _verdict(by_name[name], _beyond_noise)
        for name in by_name
        if name in ("sqnr_db", "agreement", "top1.drop", "top5.drop")
        or (name.startswith("outputs.") and not _without_interval(by_name[name]))
    ]
    if "metric.drop" in by_name:
        reference = value_in(found.old, "metric.fp32")
        verdicts.append(_verdict(by_name["metric.drop"], partial(_less_useful, reference=abs(reference or 0.0))))
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
