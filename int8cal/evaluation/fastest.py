"""What runtimes are called, and in which of them the int8 model is fastest; report.json has it under the same keys."""

from __future__ import annotations

from dataclasses import dataclass

from int8cal.evaluation.numbers import Interval, Number  # noqa: TC001 - pydantic reads the annotations

# The runtime that always runs, and what all of them are called.
FIRST = "onnxruntime"
TITLES = {FIRST: "onnxruntime", "openvino": "OpenVINO"}


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
