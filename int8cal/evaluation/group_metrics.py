"""What is measured on a group of channels of an output, see `evaluation.output_groups`: a part of report.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from int8cal.evaluation.numbers import LEFT_OUT, Count, Number


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
    max_abs_error: Number | None
    worst_channel: WorstChannel | None = field(default=None, metadata=LEFT_OUT)
    dead: tuple[Count, ...] = field(default=(), metadata=LEFT_OUT)
    saturated: Number = field(default=0.0, metadata=LEFT_OUT)
    tied: Number = field(default=0.0, metadata=LEFT_OUT)
    levels: Count = field(default=0, metadata=LEFT_OUT)
    levels_of_8_bits: Count = field(default=0, metadata=LEFT_OUT)
