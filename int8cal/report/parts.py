"""The parts of report.json as frozen models: keys and their order, types, and which keys a file may lack.

A field with a default is one that some reports lack: older ones, those of other tools, or where it tells of nothing.
Only the keys that a part was given are written, so that what is read is what would be written.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, StrictBool
from pydantic_core import PydanticCustomError


def _number(value: Any) -> Any:
    # To Python a bool is an int; to a report it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number", "int or float")
    return value


# A number is kept as it was given, whole or not, so that it is written again as it was read.
Number = Annotated[float, PlainValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
# Both ends of a 95 % interval.
Ends = tuple[Number | None, Number | None]


def ends(interval: Ends | None) -> tuple[float, float] | None:
    """Return both ends of an interval; None where it has not both."""
    if interval is None or interval[0] is None or interval[1] is None:
        return None
    return interval[0], interval[1]


class Part(BaseModel):
    """A part of a report; keys that it does not know are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_json(self) -> dict[str, Any]:
        """Return the part as report.json has it: the keys that it was given, in the order of the fields."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def at_key(self, key: str) -> Any:
        """Return the value of a key of report.json; None where this part has no such key."""
        names = [name for name, each in type(self).model_fields.items() if key in (each.alias, name)]
        return getattr(self, names[0]) if names else None

    def nulls(self) -> list[str]:
        """Name the fields that were given as null."""
        return [name for name, value in self if value is None and name in self.model_fields_set]


class Drop(Part):
    """Top-k accuracy of both models as fractions, and the drop in percentage points with its 95 % interval."""

    fp32: Number | None
    int8: Number | None
    drop: Number | None
    drop_ci95: Ends
    samples: Count | None = None


class Metrics(Part):
    """The int8 model's outputs against those of the float model."""

    sqnr_db: Number | None
    sqnr_db_ci95: Ends | None = None
    cosine: Number | None
    max_abs_error: Number | None
    agreement: Number | None
    agreement_ci95: Ends | None = None
    top1: Drop | None
    top5: Drop | None
    exact_outputs: tuple[str, ...] = ()


class Output(Part):
    """One graph output."""

    sqnr_db: Number | None
    sqnr_db_ci95: Ends | None = None
    cosine: Number | None


class Layer(Part):
    """One quantized tensor; its type, range and method where a table is known."""

    tensor: str
    node: str
    op_type: str
    sqnr_db: Number | None
    clipped: Number | None
    dtype: str = ""
    low: Number | None = None
    high: Number | None = None
    method: str = ""


class Node(Part):
    """A node that computes in float; `residual` where int8cal added it to compute residual codes."""

    node: str
    op_type: str
    reason: str
    residual: StrictBool = False


class Fusion(Part):
    """Nodes with integer kernels, and those left in float: their number, and what is known of each."""

    integer: Count
    float_: Count = Field(alias="float")
    nodes: tuple[Node, ...]

    @property
    def total(self) -> int:
        """All compute nodes."""
        return self.integer + self.float_


class Kernels(Fusion):
    """Layers by their kernels in one of several runtimes."""

    nodes: tuple[Node, ...] = ()


class LayerSaturation(Part):
    """Whether sums of products can saturate in a layer."""

    node: str
    op_type: str
    weight: str = ""
    verdict: str
    why: str = ""
    channels: Count
    unsafe_channels: Count
    unsafe_pairs: Count | None = None
    worst_sum: Count | None = None


class Saturation(Part):
    """Channels that can saturate on the target; null where they were not counted."""

    target: str
    unsafe_channels: Count | None
    channels: Count | None = None
    unsafe_pairs: Count | None = None
    layers: tuple[LayerSaturation, ...] = ()


class Size(Part):
    """The two files, in bytes."""

    fp32_bytes: Count
    int8_bytes: Count


class Latency(Part):
    """Milliseconds per sample of both models, and their ratio."""

    fp32: Number | None
    int8: Number | None
    speedup: Number | None
    speedup_ci95: Ends | None = None


class Weights(Part):
    """One weight tensor: how it is quantized, and how far its scales are apart."""

    node: str
    op_type: str
    weight: str
    tensor: str
    dtype: str
    range: str
    axis: Count | None = None
    scales: Count
    scale_min: Number | None
    scale_median: Number | None
    scale_max: Number | None


class Gate(Part):
    """A gate as the user wrote it, the value that it was held against, and the verdict."""

    gate: str
    value: Number | None
    passed: StrictBool
    ci95: Ends | None = None


class Step(Part):
    """What a step of the recipe gave: dB on the holdout without and with it, and whether it was kept."""

    step: str
    before_db: Number | None
    sqnr_db: Number | None
    kept: StrictBool


class OptimizedLayer(Part):
    """A layer's microseconds in float and int8, and what was decided."""

    node: str
    op_type: str
    fp32_us: Number
    int8_us: Number
    decision: str


class Optimization(Part):
    """What `optimize: latency` found: microseconds per inference, the layers left in float and why, all layers."""

    fp32_us: Number
    plain_int8_us: Number
    int8_us: Number
    left: dict[str, str]
    rows: tuple[OptimizedLayer, ...]


class MixedLayer(Part):
    """A layer that a budget could have left out of int8."""

    node: str
    op_type: str
    contribution: Number
    estimated_percent: Number
    decision: str


class MixedGate(Part):
    """A gate on one model that was evaluated in search of one for which the gates hold."""

    value: Number | None
    passed: StrictBool


class MixedPoint(Part):
    """One model that was evaluated in search of one for which the gates hold."""

    layers_left: Count
    planes: Count
    estimated_percent: Number
    gates: dict[str, MixedGate]
    sqnr_db: Number | None
    cosine: Number | None = None
    agreement: Number | None = None
    top1_drop: Number | None = None
    kept: StrictBool


class MixedPrecision(Part):
    """How a budget was spent so that gates hold."""

    budget_percent: Number
    fallback: str
    needed_percent: Number | None = None
    outcome: str
    layers: tuple[MixedLayer, ...]
    curve: tuple[MixedPoint, ...]


class Agreement(Part):
    """The int8 model's outputs in a further runtime against those in onnxruntime."""

    sqnr_db: Number | None
    cosine: Number | None
    max_abs_error: Number | None
    agreement: Number | None


class Runtime(Part):
    """The int8 model in one of several runtimes; `against_onnxruntime` in all but onnxruntime itself."""

    metrics: Metrics
    outputs: dict[str, Output]
    kernels: Kernels | None
    latency: Latency | None = Field(alias="latency_ms")
    against_onnxruntime: Agreement | None = None
