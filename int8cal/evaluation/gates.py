"""Accuracy gates: 'NAME<=VALUE' expressions over the figures of an evaluation."""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import FIGURES, OUTPUT, OUTPUT_FIGURES, SHORT, interval_of, output_of, value_of
from int8cal.evaluation.result import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from int8cal.evaluation.result import Evaluation

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = r"\s*(<=|>=|<|>)(?!=)\s*(\S+)\s*"
_EXPRESSION = re.compile(rf"\s*([A-Za-z0-9_.]+){_COMPARISON}")
_LIKE_OUTPUT = re.compile(rf"\s*(outputs\.\S.*?){_COMPARISON}", re.DOTALL)
_NOT_ON_OUTPUTS = ("latency.", "size.", "saturation.", "fusion.", "layers.")


@dataclass(frozen=True)
class ParsedGate:
    """A gate whose name is known and whose bound is a finite number; `text` is what the user wrote."""

    text: str
    name: str
    operator: str
    bound: float


def parse_gate(
    text: str,
    names: Collection[str] = FIGURES.keys(),
    example: str = "top1.drop<=1.0",
    *,
    outputs: re.Pattern[str] | None = None,
    noun: str = "gate",
) -> ParsedGate:
    """Read one gate.

    Args:
        text: 'NAME<=VALUE', with <=, >=, < or >; spaces around the parts are allowed.
        names: The figures that there are; those of an evaluation and its outputs unless told otherwise.
        example: A gate over one of them, for messages.
        outputs: What the names of figures of one output are like; an output's own name may hold anything.
        noun: What messages call it.

    Raises:
        ConfigError: No comparison, an unknown name (the nearest valid one is offered), or a bound that is no number.
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
    name = SHORT.get(name, name) if own else name
    if name not in names and not (outputs and outputs.fullmatch(name)):
        do = _nearest(name, names, example)
        if outputs and name.startswith("outputs."):
            do = f"write outputs.NAME followed by one of {', '.join(f'.{figure}' for figure in OUTPUT_FIGURES)}"
        raise ConfigError(f'{noun} "{text}" names an unknown figure "{name}"', do=do, gate=text)
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(
            f'{noun} "{text}" compares with "{number}", expected a finite number',
            do=f'write for example "{example}", without a unit',
            gate=text,
        )
    return ParsedGate(text, name, comparison, bound)


def _match(text: str, outputs: re.Pattern[str] | None) -> re.Match[str] | None:
    if outputs is not None:
        of_output = rf"\s*({outputs.pattern.replace('(', '(?:')}){_COMPARISON}"
        found = re.fullmatch(of_output, text, re.DOTALL)
        if found is not None:
            return found
    found = _EXPRESSION.fullmatch(text)
    return found if found is not None or outputs is None else _LIKE_OUTPUT.fullmatch(text)


def _nearest(name: str, names: Collection[str], example: str) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"use one of {', '.join(names)}" if len(names) < 50 else f'write for example "{example}"'


def require_measurable(gates: Iterable[ParsedGate], *, latency: bool) -> None:
    """Refuse gates that cannot hold whatever the model is like, because their figure will not be computed.

    Args:
        gates: The gates of one job, before any work.
        latency: Whether the models' speed is going to be measured.

    Raises:
        ConfigError: Names the first such gate and what to do.
    """
    for gate in gates:
        if gate.name.startswith("latency.") and not latency:
            raise ConfigError(
                f'gate "{gate.text}" cannot hold: measuring latency is switched off',
                do="remove the gate, or --no-latency (evaluation.latency: false in the YAML)",
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
            listed = ", ".join(f'"{name}"' for name in known)
            raise ConfigError(
                f'gate "{gate.text}" is about an output "{output}" that the model does not have',
                do=f'did you mean "{near[0]}"?' if near else f"its outputs are {listed}",
                gate=gate.text,
            )


def on_outputs(gates: Iterable[ParsedGate]) -> tuple[ParsedGate, ...]:
    """Return the gates about the models' outputs: those that accuracy alone decides."""
    return tuple(gate for gate in gates if not gate.name.startswith(_NOT_ON_OUTPUTS))


def figure_named(text: str) -> str:
    """Return the full name of the figure that a gate is about, or what stands in its place in a malformed one."""
    try:
        return parse_gate(text).name
    except ConfigError:
        return re.split(r"[<>=!]", text, maxsplit=1)[0].strip()


def check_gates(gates: Iterable[ParsedGate], evaluation: Evaluation) -> tuple[Gate, ...]:
    """Hold every gate against the evaluation, in order; a figure that could not be computed fails its gate."""
    return tuple(hold(gate, value_of(gate.name, evaluation), interval_of(gate.name, evaluation)) for gate in gates)


def hold(gate: ParsedGate, value: float | None, ci95: tuple[float, float] | None = None) -> Gate:
    """Hold one gate against the value of its figure; None fails it. The 95 % interval decides nothing: it is shown."""
    return Gate(gate.text, value, value is not None and _OPERATORS[gate.operator](value, gate.bound), ci95)
