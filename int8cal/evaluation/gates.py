"""Accuracy gates: 'NAME<=VALUE' expressions over the figures of an evaluation."""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import (
    FIGURES,
    FRACTION,
    OUTPUT,
    OUTPUT_FIGURES,
    OWN,
    figure_name,
    figure_of,
    interval_of,
    metric_name,
    output_of,
    value_of,
)
from int8cal.evaluation.result_parts import STANDING, Gate
from int8cal.phrases import has_plain_digits, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from int8cal.evaluation.result import Evaluation
    from int8cal.job import EvaluationSettings

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = r"\s*(<=|>=|<|>)(?!=)\s*(\S+)\s*"
_EXPRESSION = re.compile(rf"\s*([A-Za-z0-9_.]+){_COMPARISON}")
_LIKE_OUTPUT = re.compile(rf"\s*(outputs\.\S.*?){_COMPARISON}", re.DOTALL)
_AT_CHANCE = "the FP32 model itself is near chance"
# What could be a metric's own figure, as long as nobody knows what the metric is called.
OF_A_METRIC = rf"[A-Za-z_][A-Za-z0-9_]*({'|'.join(re.escape(rest) for rest in OWN if rest)})?"
_OFF = re.compile(r"\s*(outputs\.\w+)\s*=\s*off\s*")
_NOT_ON_OUTPUTS = ("latency.", "size.", "saturation.", "fusion.", "layers.")


@dataclass(frozen=True)
class ParsedGate:
    """A gate whose name is known and whose bound is a finite number; `text` is what the user wrote.

    `bound` is in the figure's unit, also where the user wrote a fraction in percent.
    A standing one is there without being asked for, and says nothing where its figure cannot be had.
    """

    text: str
    name: str
    operator: str
    bound: float
    standing: bool = False


def with_standing(texts: Iterable[str], own: Iterable[ParsedGate]) -> tuple[ParsedGate, ...]:
    """Add the standing gates to those that a user set, except for those that these replace or switch off.

    Args:
        texts: All that the user gave.
        own: The gates among it, see `parse_gates`.
    """
    own = tuple(own)
    gone = switched_off(texts) | {gate.name for gate in own}
    standing = (replace(parse_gate(text), standing=True) for text in STANDING)
    return (*own, *(gate for gate in standing if gate.name not in gone))


def all_gates(evaluation: EvaluationSettings) -> tuple[ParsedGate, ...]:
    """Return all gates that a job is held to, the standing ones as well."""
    return with_standing(evaluation.gates, gates_of(evaluation))


def gate_texts(evaluation: EvaluationSettings) -> tuple[str, ...]:
    """Return the texts of all gates that a job is held to."""
    return tuple(gate.text for gate in all_gates(evaluation))


def switched_off(texts: Iterable[str]) -> set[str]:
    """Name the figures whose standing gates are switched off.

    Raises:
        ConfigError: There is no standing gate on one of them.
    """
    standing = {parse_gate(text).name: text for text in STANDING}
    names = {match[1]: text for text in texts if (match := _OFF.fullmatch(text))}
    for name, text in names.items():
        if name not in standing:
            raise ConfigError(
                f'gate "{text}" switches off a gate that nobody set',
                do=f"the gates that are always on are {', '.join(standing.values())}",
                gate=text,
            )
    return set(names)


def parse_gate(
    text: str,
    names: Collection[str] = FIGURES.keys(),
    example: str = "top1.drop<=1.0",
    *,
    outputs: re.Pattern[str] | None = None,
    noun: str = "gate",
    metric: str | None = "",
    reachable: bool = True,
) -> ParsedGate:
    """Read one gate.

    Args:
        text: 'NAME<=VALUE', with <=, >=, < or >; spaces around the parts are allowed.
        names: The figures that there are; those of an evaluation and its outputs unless told otherwise.
        example: A gate over one of them, for messages.
        outputs: What the names of figures of one output are like; an output's own name may hold anything.
        noun: What messages call it.
        metric: Name of the user's metric, "" without one; None while it is not known, so that any could be its name.
        reachable: Refuse a bound that the figure cannot reach; a gate of an older report may have one.

    Raises:
        ConfigError: No comparison, an unknown name (the nearest valid one is offered), a bound that is no number, or
            one that the figure cannot reach.
    """
    own = names == FIGURES.keys()
    outputs = OUTPUT if own else outputs
    match = _match(text, outputs)
    if match is None:
        raise ConfigError(
            f'{noun} "{text}" is not of the form NAME<=VALUE (<=, >=, < or >)',
            do=f'write for example "{example}"',
            gate=text,
        )
    name, comparison, number = match.groups()
    name = figure_name(name, metric or "") if own else name
    could_be = metric is None and re.fullmatch(OF_A_METRIC, name)
    if name not in names and not (outputs and outputs.fullmatch(name)) and not could_be:
        do = _nearest(name, [*names, *(f"{metric}{rest}" for rest in OWN)] if metric else names, example)
        if outputs and name.startswith("outputs."):
            do = f"write outputs.NAME followed by one of {', '.join(f'.{figure}' for figure in OUTPUT_FIGURES)}"
        raise ConfigError(f'{noun} "{text}" names an unknown figure "{name}"', do=do, gate=text)
    percent = own and number.endswith("%") and _is_known(name) and figure_of(name).unit == FRACTION
    try:
        bound = float(number.removesuffix("%")) / 100 if percent else float(number)
    except ValueError:
        bound = math.nan
    if not (math.isfinite(bound) and has_plain_digits(number)):
        raise ConfigError(
            f'{noun} "{text}" compares with "{number}", expected a finite number',
            do=f'write for example "{example}", without a unit',
            gate=text,
        )
    gate = ParsedGate(text, name, comparison, bound)
    if own and reachable and _is_known(name):
        _require_reachable(gate)
    return gate


def _is_known(name: str) -> bool:
    """Whether it is a figure, and not what a metric of an unknown name may have."""
    return name in FIGURES or output_of(name) is not None


def _require_reachable(gate: ParsedGate) -> None:
    """Refuse a gate that no model can pass."""
    figure = figure_of(gate.name)
    if any(_OPERATORS[gate.operator](end, gate.bound) for end in figure.possible):
        return
    do = "give another bound"
    if figure.unit == FRACTION and 1.0 < gate.bound <= 100.0 and not gate.text.endswith("%"):
        written = f"{gate.name}{gate.operator}"
        do = f'write "{written}{gate.bound / 100:g}" or "{written}{gate.bound:g}%"'
    raise ConfigError(
        f'gate "{gate.text}" can never hold: {gate.name} ({figure.unit}) is {figure.range_text}', do=do, gate=gate.text
    )


def never_failing(gates: Iterable[ParsedGate]) -> tuple[str, ...]:
    """Say of the gates that no value of their figure fails that they are such.

    They are told and not refused: such a gate still fails where its figure cannot be computed, and so may be meant.
    """
    return tuple(
        f'gate "{gate.text}" decides nothing: {gate.name} is always {figure_of(gate.name).range_text}'
        for gate in gates
        if all(_OPERATORS[gate.operator](end, gate.bound) for end in figure_of(gate.name).possible)
    )


def _match(text: str, outputs: re.Pattern[str] | None) -> re.Match[str] | None:
    if outputs is not None:
        of_output = rf"\s*({outputs.pattern.replace('(', '(?:')}){_COMPARISON}"
        found = re.fullmatch(of_output, text, re.DOTALL)
        if found is not None:
            return found
    found = _EXPRESSION.fullmatch(text)
    return found if found is not None or outputs is None else _LIKE_OUTPUT.fullmatch(text)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the figure that begins with a name, of several the drop, else the one spelled most alike; "" for none."""
    known = list(names)
    begun = [each for each in known if each.startswith(name.lower())]
    begun.sort(key=lambda each: not each.endswith(".drop"))
    return next(iter(begun), "") or next(iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)), "")


def _nearest(name: str, names: Collection[str], example: str) -> str:
    near = nearest(name, names)
    if near:
        return f'did you mean "{near}"?'
    return f"use one of {', '.join(names)}" if len(names) < 50 else f'write for example "{example}"'


def gates_of(settings: EvaluationSettings) -> list[ParsedGate]:
    """Read the gates of a job, of which some may be about its metric.

    Raises:
        ConfigError: As `parse_gate`, or a gate is about a metric that there is not.
    """
    return parse_gates(settings.gates, metric_name(settings.metric))


def parse_gates(texts: Iterable[str], metric: str | None) -> list[ParsedGate]:
    """Read the gates that a user set, without what switches standing ones off.

    Args:
        texts: Of the user.
        metric: As for `parse_gate`.

    Raises:
        ConfigError: As `parse_gate`, or a gate is about a metric that there is not.
    """
    texts = tuple(texts)
    switched_off(texts)
    gates = [parse_gate(text, metric=metric) for text in texts if not _OFF.fullmatch(text)]
    lost = next((gate for gate in gates if gate.name.startswith("metric.") and metric == ""), None)
    if lost is not None:
        raise ConfigError(
            f'gate "{lost.text}" is about a metric of your own, and there is none',
            do="give --metric package.module:function (evaluation.metric in the YAML)",
            gate=lost.text,
            key="evaluation.gates",
        )
    return gates


def require_measurable(gates: Sequence[ParsedGate], *, latency: bool, audited: bool = True) -> None:
    """Refuse gates that cannot hold whatever the model is like.

    Args:
        gates: The gates of one job, before any work.
        latency: Whether the models' speed is going to be measured.
        audited: Whether the graph that the runtime makes is going to be audited: with the CPU provider alone.

    Raises:
        ConfigError: Names the first gate whose figure will not be computed, or the first two that contradict each
            other, and what to do.
    """
    unmeasured = {
        "latency.": (
            latency,
            "measuring latency is switched off",
            "remove the gate, or --no-latency (evaluation.latency: false in the YAML)",
        ),
        "fusion.": (
            audited,
            "only the CPU provider's graph is audited, and other providers were asked for",
            "remove the gate, or --provider (evaluation.providers in the YAML)",
        ),
    }
    for gate in gates:
        for figures, (measured, why, do) in unmeasured.items():
            if gate.name.startswith(figures) and not measured:
                raise ConfigError(
                    f'gate "{gate.text}" cannot hold: {why}', do=do, gate=gate.text, key="evaluation.gates"
                )
    _require_consistent(gates)


def _require_consistent(gates: Sequence[ParsedGate]) -> None:
    """Refuse gates on one figure of which no value passes both."""
    lower, upper = dict[str, ParsedGate](), dict[str, ParsedGate]()
    for gate in gates:
        # of two gates with one bound, the one that excludes it is the narrower
        side, sign = (lower, 1) if gate.operator in (">", ">=") else (upper, -1)
        known = side.get(gate.name)
        if known is None or (sign * gate.bound, len(known.operator)) > (sign * known.bound, len(gate.operator)):
            side[gate.name] = gate
    for name, low in lower.items():
        high = upper.get(name)
        if high is None or low.bound < high.bound:
            continue
        if low.bound > high.bound or len(low.operator) + len(high.operator) < 4:
            raise ConfigError(
                f'gates "{low.text}" and "{high.text}" cannot hold together: no value passes both',
                do="remove one of them",
                gate=low.text,
                key="evaluation.gates",
            )


def require_classes(gates: Iterable[ParsedGate], classes: Callable[[], int | None]) -> None:
    """Refuse gates about the top five of a model that has no more than five classes.

    Args:
        gates: The gates of one job, before any work.
        classes: Says how many classes the model has; None where its shapes do not tell. Asked only if it matters.

    Raises:
        ConfigError: Names the first such gate.
    """
    gate = next((gate for gate in gates if gate.name.startswith("top5.")), None)
    count = None if gate is None else classes()
    if gate is not None and count is not None and count <= 5:
        raise ConfigError(
            f'gate "{gate.text}" cannot hold: the model has only {count} classes, so top-5 is not measured',
            do="remove the gate, or write top1 in place of top5",
            gate=gate.text,
            key="evaluation.gates",
        )


def need_labels(gates: Iterable[ParsedGate]) -> bool:
    """Whether a gate is about a figure that only labelled samples have."""
    return any(gate.name.startswith(("top1.", "top5.")) for gate in gates)


def require_outputs(gates: Iterable[ParsedGate], outputs: Callable[[], Sequence[str]]) -> None:
    """Refuse gates about an output that the model does not have.

    Args:
        gates: The gates of one job, before any work.
        outputs: Names the model's outputs; asked only if a gate is about one.

    Raises:
        ConfigError: Names the first such gate and the outputs.
    """
    known: Sequence[str] | None = None
    for gate in gates:
        output = output_of(gate.name)
        if output is None:
            continue
        known = outputs() if known is None else known
        if output not in known:
            near = difflib.get_close_matches(output, known, n=1, cutoff=0.5)
            raise ConfigError(
                f'gate "{gate.text}" is about an output "{output}" that the model does not have',
                do=f'did you mean "{near[0]}"?' if near else f"its outputs are {quoted(known)}",
                gate=gate.text,
            )


def on_outputs(gates: Iterable[ParsedGate]) -> tuple[ParsedGate, ...]:
    """Return the gates about the models' outputs: those that accuracy alone decides."""
    return tuple(gate for gate in gates if not gate.name.startswith(_NOT_ON_OUTPUTS))


def figure_named(text: str, metric: str = "") -> str:
    """Return the full name of the figure that a gate is about, or what stands in its place in a malformed one.

    Args:
        text: The gate.
        metric: What the user's metric is called.
    """
    try:
        return parse_gate(text, metric=metric, reachable=False).name
    except ConfigError:
        return re.split(r"[<>=!]", text, maxsplit=1)[0].strip()


def check_gates(gates: Iterable[ParsedGate], evaluation: Evaluation) -> tuple[Gate, ...]:
    """Hold every gate against the evaluation, in order; a figure that could not be computed fails the user's gate.

    So does a drop in accuracy where the FP32 model is near chance: there is nothing to lose there, and the data or its
    preprocessing is wrong.
    """
    judged = (gate for gate in gates if not gate.standing or value_of(gate.name, evaluation) is not None)
    held = tuple(hold(gate, value_of(gate.name, evaluation), interval_of(gate.name, evaluation)) for gate in judged)
    if not any(finding.check == "chance" for finding in evaluation.findings):
        return held
    drops = {gate for gate in held if figure_named(gate.gate).startswith(("top1.drop", "top5.drop"))}
    return tuple(replace(gate, passed=False, why=_AT_CHANCE) if gate in drops else gate for gate in held)


def hold(gate: ParsedGate, value: float | None, ci95: tuple[float, float] | None = None) -> Gate:
    """Hold one gate against the value of its figure; None fails it. The 95 % interval decides nothing: it is shown."""
    passed = value is not None and _OPERATORS[gate.operator](value, gate.bound)
    return Gate(gate.text, value, passed, ci95, own=gate.text in STANDING and not gate.standing)
