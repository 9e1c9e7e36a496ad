"""The figures of an evaluation by name: what gates may be about, in which unit, and with what 95 % interval."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import Drop, Evaluation

    Interval = tuple[float, float] | None
    Value = Callable[[Evaluation], float | None]
    Pick = Callable[[Evaluation], Drop | None]

_DROPS: dict[str, Pick] = {
    "top1": lambda evaluation: evaluation.metrics.top1,
    "top5": lambda evaluation: evaluation.metrics.top5,
}
_DROP_PARTS: dict[str, Callable[[Drop], float]] = {
    "fp32": lambda drop: drop.fp32,
    "int8": lambda drop: drop.int8,
    "drop": lambda drop: drop.drop,
}

# Figures with a 95 % interval; its ends are figures too: "<name>_ci95.lo" and "<name>_ci95.hi".
INTERVALS: dict[str, Callable[[Evaluation], Interval]] = {
    "sqnr_db": lambda evaluation: evaluation.metrics.sqnr_db_ci95,
    "agreement": lambda evaluation: evaluation.metrics.agreement_ci95,
    "top1.drop": lambda evaluation: None if evaluation.metrics.top1 is None else evaluation.metrics.top1.drop_ci95,
    "top5.drop": lambda evaluation: None if evaluation.metrics.top5 is None else evaluation.metrics.top5.drop_ci95,
    "latency.speedup": lambda evaluation: None if evaluation.latency is None else evaluation.latency.speedup_ci95,
}
_ENDS = {"lo": 0, "hi": 1}


def _ends(name: str) -> dict[str, Value]:
    """Name the ends of a figure's interval."""

    def end(place: int) -> Value:
        def value(evaluation: Evaluation) -> float | None:
            interval = INTERVALS[name](evaluation)
            return None if interval is None else interval[place]

        return value

    return {f"{name}_ci95.{end_}": end(place) for end_, place in _ENDS.items()}


def _drop(name: str) -> dict[str, Value]:
    def figure(part: Callable[[Drop], float]) -> Value:
        def value(evaluation: Evaluation) -> float | None:
            drop = _DROPS[name](evaluation)
            return None if drop is None else part(drop)

        return value

    return {**{f"{name}.{suffix}": figure(part) for suffix, part in _DROP_PARTS.items()}, **_ends(f"{name}.drop")}


def _worst_layer(evaluation: Evaluation) -> float | None:
    return min((layer.sqnr_db for layer in evaluation.layers if layer.sqnr_db is not None), default=None)


# Every figure with a name of its own; those of one output are OUTPUT_UNITS.
FIGURES: dict[str, Value] = {
    "sqnr_db": lambda evaluation: evaluation.metrics.sqnr_db,
    **_ends("sqnr_db"),
    "cosine": lambda evaluation: evaluation.metrics.cosine,
    "max_abs_error": lambda evaluation: evaluation.metrics.max_abs_error,
    "agreement": lambda evaluation: evaluation.metrics.agreement,
    **_ends("agreement"),
    **_drop("top1"),
    **_drop("top5"),
    "layers.worst_sqnr_db": _worst_layer,
    "latency.fp32": lambda evaluation: None if evaluation.latency is None else evaluation.latency.fp32,
    "latency.int8": lambda evaluation: None if evaluation.latency is None else evaluation.latency.int8,
    "latency.speedup": lambda evaluation: None if evaluation.latency is None else evaluation.latency.speedup,
    **_ends("latency.speedup"),
    "size.fp32_bytes": lambda evaluation: float(evaluation.size[0]),
    "size.int8_bytes": lambda evaluation: float(evaluation.size[1]),
    "size.ratio": lambda evaluation: evaluation.size[1] / evaluation.size[0] if evaluation.size[0] else None,
    "saturation.unsafe_channels": lambda evaluation: evaluation.saturation.unsafe_channels,
    "fusion.integer": lambda evaluation: None if evaluation.fusion is None else evaluation.fusion.integer,
    "fusion.float": lambda evaluation: None if evaluation.fusion is None else evaluation.fusion.float_,
}
# What a short name stands for.
SHORT = {f"drop_ci95.{end}": f"top1.drop_ci95.{end}" for end in _ENDS}

_FRACTION, _POINTS, _DECIBEL, _SPEEDUP = "fraction of 1", "percentage points", "dB", "fp32 / int8"
_UNIT: dict[str, str] = {
    "sqnr_db": _DECIBEL,
    "cosine": "at most 1",
    "max_abs_error": "in the output's unit",
    "agreement": _FRACTION,
    "layers.worst_sqnr_db": _DECIBEL,
    "latency.speedup": _SPEEDUP,
    "latency": "ms",
    "size.ratio": "int8 / fp32",
    "size": "bytes",
    "saturation": "channels",
    "fusion": "nodes",
    **{f"{name}.{suffix}": _POINTS if suffix == "drop" else _FRACTION for name in _DROPS for suffix in _DROP_PARTS},
}


def _unit(name: str) -> str:
    plain = re.sub(r"_ci95\.(lo|hi)$", "", name)
    return _UNIT.get(plain) or _UNIT[plain.partition(".")[0]]


UNITS: dict[str, str] = {name: _unit(name) for name in FIGURES}

# Figures of one output: "outputs.<its name>.<one of these>".
OUTPUT_UNITS = {"sqnr_db": _DECIBEL, "sqnr_db_ci95.lo": _DECIBEL, "sqnr_db_ci95.hi": _DECIBEL, "cosine": "at most 1"}
# An output's name may hold dots: the figure is what the last of them begins.
OUTPUT = re.compile(rf"outputs\.(.+)\.({'|'.join(map(re.escape, OUTPUT_UNITS))})", re.DOTALL)


def output_of(name: str) -> str | None:
    """Return the output that a figure is about; None for a figure of the whole model."""
    match = OUTPUT.fullmatch(name)
    return None if match is None else match[1]


def value_of(name: str, evaluation: Evaluation) -> float | None:
    """Look a figure up.

    Args:
        name: One of FIGURES, or of one output.
        evaluation: What was measured.

    Returns:
        The value in its unit; None where it could not be computed, or there is no such output.
    """
    match = OUTPUT.fullmatch(name)
    if match is None:
        return FIGURES[name](evaluation)
    output = evaluation.outputs.get(match[1])
    if output is None:
        return None
    if match[2] in ("sqnr_db", "cosine"):
        return output.sqnr_db if match[2] == "sqnr_db" else output.cosine
    return None if output.sqnr_db_ci95 is None else output.sqnr_db_ci95[_ENDS[match[2].rpartition(".")[2]]]


def interval_of(name: str, evaluation: Evaluation) -> Interval:
    """Look up the 95 % interval of a figure; None where it has none, or is itself the end of one."""
    match = OUTPUT.fullmatch(name)
    if match is None:
        return INTERVALS[name](evaluation) if name in INTERVALS else None
    output = evaluation.outputs.get(match[1])
    return output.sqnr_db_ci95 if output is not None and match[2] == "sqnr_db" else None
