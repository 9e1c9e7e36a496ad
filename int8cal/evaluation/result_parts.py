"""What `evaluation.result` is made of: numbers as reports hold them, groups of outputs, decisions, the fastest one."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The runtime that always runs, and what all of them are called.
FIRST = "onnxruntime"
TITLES = {FIRST: "onnxruntime", "openvino": "OpenVINO"}
# Gates that hold for every evaluation, unless the user has one on the figure, or switches it off by name.
STANDING = ("outputs.dead<=0",)
# Metadata of fields that report.json has only where they are not their default.
LEFT_OUT = {"left out": True}


def _number(value: Any) -> Any:
    # To Python a bool is an int; to a report it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number", "int or float")
    return value


# A number is kept as it was given, whole or not, so that it is written again as it was read.
Number = Annotated[float, PlainValidator(_number)]
Magnitude = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_number)]
# Both ends of a 95 % interval.
Interval = tuple[Number | None, Number | None]


def ends(interval: Interval | None) -> tuple[float, float] | None:
    """Return both ends of an interval; None where it has not both."""
    if interval is None or interval[0] is None or interval[1] is None:
        return None
    return interval[0], interval[1]


def html_table(rows: Mapping[str, str]) -> str:
    """Write a table of names and texts; what has no text is left out."""
    cells = ((html.escape(name), html.escape(text)) for name, text in rows.items() if text)
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{text}</td></tr>' for name, text in cells)}</table>"


@dataclass(frozen=True)
class WorstChannel:
    """The channel of a group with the lowest SQNR; channels of an output are counted from 0."""

    channel: Count
    sqnr_db: Number


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """Channels of one output that mean the same kind of thing.

    Attributes:
        kind: What their values are.
        channels: First and last channel; None for all of an output without a channel axis.
        source: Tensor that they come from.
        dead: Channels whose values differ in the FP32 model and are all the same in the int8 model.
        saturated: Share of the values that the int8 model holds at its largest or smallest, and the FP32 model surely
            beyond it; 0 where that is no fault.
        tied: Share of the rows whose highest score several channels share in the int8 model alone; 0 likewise.
        levels, levels_of_8_bits: Different values of the int8 model where they are too few to keep the order of those
            of the FP32 model, and what eight bits would give these; 0 where they are not.
    """

    kind: str
    channels: tuple[Count, Count] | None
    source: str = field(default="", metadata=LEFT_OUT)
    sqnr_db: Number | None
    cosine: Number | None
    max_abs_error: Magnitude | None
    worst_channel: WorstChannel | None = field(default=None, metadata=LEFT_OUT)
    dead: tuple[Count, ...] = field(default=(), metadata=LEFT_OUT)
    saturated: Share = field(default=0.0, metadata=LEFT_OUT)
    tied: Share = field(default=0.0, metadata=LEFT_OUT)
    levels: Count = field(default=0, metadata=LEFT_OUT)
    levels_of_8_bits: Count = field(default=0, metadata=LEFT_OUT)

    @property
    def at_fault(self) -> bool:
        """Whether the int8 model has made them useless."""
        return bool(self.dead or self.saturated or self.tied or self.levels)


@dataclass(frozen=True, kw_only=True)
class DecisionFigure:
    """What became of the decisions that a group of an output's channels is for; no label is needed.

    Attributes:
        figure: Its name, as gates have it behind the output's.
        kind: What the group's values are.
        channels: First and last of the group, where it is not all of the output.
        value: None where it could not be computed.
        ci95: 95 % interval over the choice of samples.
        samples: Those that it is over.
        how: How it was measured, and what its interval is.
    """

    figure: str
    kind: str
    channels: tuple[Count, Count] | None = field(default=None, metadata=LEFT_OUT)
    value: Number | None
    ci95: Interval | None
    samples: Count
    how: str


@dataclass(frozen=True)
class Gate:
    """One gate as the user wrote it, the value it was held against, its 95 % interval, and the verdict.

    Without a value it is not passed; `why` says why a gate fails whose figure would hold. `own` tells the user's from
    one that is always on, where both have the same text.
    """

    gate: str
    value: Number | None
    passed: StrictBool
    ci95: Interval | None = field(default=None, metadata=LEFT_OUT)
    why: str = field(default="", metadata=LEFT_OUT)
    own: StrictBool = field(default=False, metadata=LEFT_OUT)

    @property
    def is_told(self) -> bool:
        """Whether people are told of it: one of the user's, or one that is always on and failed."""
        return not self.passed or self.own or self.gate not in STANDING


@dataclass(frozen=True)
class Fastest:
    """Of the runtimes that were measured, the one in which the int8 model is fastest.

    Attributes:
        runtime: Its name.
        against: onnxruntime, or the next in speed where onnxruntime is the fastest.
        gain: How many times as long the int8 model takes there.
        gain_ci95: Its 95 % interval over the rounds of the measurement; None after a single round, and for a
            guess, see `evaluation.speed`.
    """

    runtime: str
    against: str
    gain: Number
    gain_ci95: Interval | None = None


@dataclass(frozen=True)
class RuntimeAgreement:
    """The int8 model's outputs in a second runtime against those in onnxruntime."""

    sqnr_db: Number | None
    cosine: Number | None
    max_abs_error: Magnitude | None
    agreement: Share | None
