"""Accuracy gates: 'NAME<=VALUE' expressions over the figures of an evaluation."""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.errors import ConfigError
from int8cal.evaluation.result import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from int8cal.evaluation.result import Drop, Evaluation

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPRESSION = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|<|>)(?!=)\s*(\S+)\s*")


def _drop(
    pick: Callable[[Evaluation], Drop | None], part: Callable[[Drop], float]
) -> Callable[[Evaluation], float | None]:
    def figure(evaluation: Evaluation) -> float | None:
        drop = pick(evaluation)
        return None if drop is None else part(drop)

    return figure


_DROP_PARTS: dict[str, Callable[[Drop], float]] = {
    "fp32": lambda drop: drop.fp32,
    "int8": lambda drop: drop.int8,
    "drop": lambda drop: drop.drop,
    "drop_ci95.lo": lambda drop: drop.drop_ci95[0],
    "drop_ci95.hi": lambda drop: drop.drop_ci95[1],
}
_DROPS: dict[str, Callable[[Evaluation], Drop | None]] = {
    "top1": lambda evaluation: evaluation.metrics.top1,
    "top5": lambda evaluation: evaluation.metrics.top5,
}

# Every name a gate may use; its unit is in UNITS.
FIGURES: dict[str, Callable[[Evaluation], float | None]] = {
    "sqnr_db": lambda evaluation: evaluation.metrics.sqnr_db,
    "cosine": lambda evaluation: evaluation.metrics.cosine,
    "max_abs_error": lambda evaluation: evaluation.metrics.max_abs_error,
    "agreement": lambda evaluation: evaluation.metrics.agreement,
    **{f"{name}.{suffix}": _drop(pick, part) for name, pick in _DROPS.items() for suffix, part in _DROP_PARTS.items()},
    "latency.fp32": lambda evaluation: None if evaluation.latency is None else evaluation.latency.fp32,
    "latency.int8": lambda evaluation: None if evaluation.latency is None else evaluation.latency.int8,
    "latency.speedup": lambda evaluation: None if evaluation.latency is None else evaluation.latency.speedup,
    "size.fp32_bytes": lambda evaluation: float(evaluation.size[0]),
    "size.int8_bytes": lambda evaluation: float(evaluation.size[1]),
    "size.ratio": lambda evaluation: evaluation.size[1] / evaluation.size[0] if evaluation.size[0] else None,
    "saturation.unsafe_channels": lambda evaluation: evaluation.saturation.unsafe_channels,
    "fusion.integer": lambda evaluation: None if evaluation.fusion is None else evaluation.fusion.integer,
    "fusion.float": lambda evaluation: None if evaluation.fusion is None else evaluation.fusion.float_,
}

_FRACTION, _POINTS = "fraction of 1", "percentage points"
UNITS: dict[str, str] = {
    "sqnr_db": "dB",
    "cosine": "at most 1",
    "max_abs_error": "in the output's unit",
    "agreement": _FRACTION,
    **{
        f"{name}.{suffix}": _FRACTION if suffix in {"fp32", "int8"} else _POINTS
        for name in _DROPS
        for suffix in _DROP_PARTS
    },
    "latency.fp32": "ms",
    "latency.int8": "ms",
    "latency.speedup": "fp32 / int8",
    "size.fp32_bytes": "bytes",
    "size.int8_bytes": "bytes",
    "size.ratio": "int8 / fp32",
    "saturation.unsafe_channels": "channels",
    "fusion.integer": "nodes",
    "fusion.float": "nodes",
}


@dataclass(frozen=True)
class ParsedGate:
    """A gate whose name is known and whose bound is a finite number; `text` is what the user wrote."""

    text: str
    name: str
    operator: str
    bound: float


def parse_gate(text: str, names: Collection[str] = FIGURES.keys(), example: str = "top1.drop<=1.0") -> ParsedGate:
    """Read one gate.

    Args:
        text: 'NAME<=VALUE', with <=, >=, < or >; spaces around the parts are allowed.
        names: The figures that there are; those of an evaluation unless told otherwise.
        example: A gate over one of them, for messages.

    Raises:
        ConfigError: No comparison, an unknown name (the nearest valid one is offered), or a bound that is no number.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f'gate "{text}" is not of the form NAME<=VALUE (<=, >=, < or >)',
            do=f'write for example "{example}"',
            gate=text,
        )
    name, comparison, number = match.groups()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        do = f'did you mean "{near[0]}"?' if near else f"use one of {', '.join(names)}"
        raise ConfigError(f'gate "{text}" names an unknown figure "{name}"', do=do, gate=text)
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(
            f'gate "{text}" compares with "{number}", expected a finite number',
            do=f'write for example "{example}", without a unit',
            gate=text,
        )
    return ParsedGate(text, name, comparison, bound)


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


def on_outputs(gates: Iterable[ParsedGate]) -> tuple[ParsedGate, ...]:
    """Return the gates about the models' outputs: those that accuracy alone decides."""
    return tuple(gate for gate in gates if not gate.name.startswith(("latency.", "size.", "saturation.", "fusion.")))


def judge(gates: Iterable[ParsedGate], evaluation: Evaluation) -> tuple[Gate, ...]:
    """Hold every gate against the evaluation, in order; a figure that could not be computed fails its gate."""
    return tuple(hold(gate, FIGURES[gate.name](evaluation)) for gate in gates)


def hold(gate: ParsedGate, value: float | None) -> Gate:
    """Hold one gate against the value of its figure; None fails it."""
    return Gate(gate.text, value, value is not None and _OPERATORS[gate.operator](value, gate.bound))
