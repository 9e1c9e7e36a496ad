"""What is measured and decided, as frozen dataclasses: report.json holds them under the same keys, in the same order.

A figure that could not be computed is None; `Evaluation.reasons` says why, keyed by its dotted path ("metrics.top1").
Types are those that report.json is checked for when it is read back; a field with a default is one that some lack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictBool

from int8cal.evaluation.figures import short_figures
from int8cal.evaluation.result_parts import (
    LEFT_OUT,
    Count,
    DecisionFigure,
    Fastest,
    Gate,
    GroupMetrics,
    Interval,
    Magnitude,
    Number,
    RuntimeAgreement,
    Share,
    html_table,
)

if TYPE_CHECKING:
    from int8cal.calibration.ranges import TensorEntry
    from int8cal.data.checks import Finding
    from int8cal.evaluation.weak_families import FamilyFinding
    from int8cal.quantization.table import StepResult, WeightEntry


@dataclass(frozen=True)
class Drop:
    """Top-k accuracy of both models as fractions; drop = fp32 - int8 in percentage points, with its 95 % interval."""

    fp32: Share | None
    int8: Share | None
    drop: Number | None
    drop_ci95: Interval
    samples: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """int8 outputs against FP32 outputs over all samples.

    `sqnr_db` and `cosine` are each that of the worst float output; `exact_outputs` names those that are bit-equal.
    `sqnr_db_ci95` (of the same output) and `agreement_ci95` are 95 % intervals over the choice of samples.
    """

    sqnr_db: Number | None
    sqnr_db_ci95: Interval | None = None
    cosine: Number | None
    max_abs_error: Magnitude | None
    agreement: Share | None
    agreement_ci95: Interval | None = None
    top1: Drop | None
    top5: Drop | None
    exact_outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputMetrics:
    """One graph output.

    Attributes:
        dead: How many of its channels are constant in the int8 model only; None where that cannot be told.
        saturated, tied: How many of its groups are saturated, or have lost the order of their values; likewise.
        faults: In words, what makes the output useless or nearly so.
        groups: Where they tell more than the output: several, or one with a fault.
        decisions: Of its groups in the order of their channels, of each the most telling figure first.
    """

    sqnr_db: Number | None
    sqnr_db_ci95: Interval | None = None
    cosine: Number | None
    dead: Count | None = field(default=None, metadata=LEFT_OUT)
    saturated: Count | None = field(default=None, metadata=LEFT_OUT)
    tied: Count | None = field(default=None, metadata=LEFT_OUT)
    faults: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    groups: tuple[GroupMetrics, ...] = field(default=(), metadata=LEFT_OUT)
    decisions: tuple[DecisionFigure, ...] = field(default=(), metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class UserMetric:
    """The user's own metric on both models.

    Attributes:
        name: Of the function.
        fp32, int8: One figure of all samples, or the mean of one per sample.
        drop: How much worse the int8 model is: fp32 - int8, or int8 - fp32 where lower is better.
        drop_ci95: Its 95 % interval over the choice of samples, where there is a figure per sample.
    """

    name: str
    fp32: Number | None
    int8: Number | None
    drop: Number | None
    drop_ci95: Interval | None = None
    samples: Count | None = None
    higher_is_better: StrictBool = True


@dataclass(frozen=True)
class LayerMetrics:
    """One quantized tensor: error of the int8 model there, and the fraction of calibration values outside its range.

    `outside` is the fraction of the evaluation's values outside that range, of the samples that layers are compared on,
    and `used` how much of the range these values span. `compared` is the part of its values that all this is of, where
    the tensor is too large to be compared whole.
    Reports add the tensor's type, its range in real units and what chose that, where a table is known.
    """

    tensor: str
    node: str
    op_type: str
    sqnr_db: Number | None
    clipped: Share | None
    dtype: str = field(default="", metadata=LEFT_OUT)
    low: Number | None = field(default=None, metadata=LEFT_OUT)
    high: Number | None = field(default=None, metadata=LEFT_OUT)
    method: str = field(default="", metadata=LEFT_OUT)
    outside: Share | None = field(default=None, metadata=LEFT_OUT)
    used: Number | None = field(default=None, metadata=LEFT_OUT)
    compared: Share | None = field(default=None, metadata=LEFT_OUT)


NOT_QUANTIZED = "what it reads and writes is float"  # a reason of a FloatNode


@dataclass(frozen=True)
class FloatNode:
    """A compute node that still runs in float in the runtime's optimized graph, under its name in the model.

    `residual` tells the nodes that int8cal added to compute a tensor's residual codes.
    """

    node: str
    op_type: str
    reason: str
    residual: StrictBool = field(default=False, metadata=LEFT_OUT)


@dataclass(frozen=True)
class Fusion:
    """What the runtime made of the model: nodes with integer kernels, and all compute nodes left in float, by name."""

    integer: Count
    float_: Annotated[Count, Field(alias="float")]
    nodes: tuple[FloatNode, ...] = ()

    @property
    def total(self) -> int:
        """All compute nodes."""
        return self.integer + self.float_


@dataclass(frozen=True, kw_only=True)
class LayerSaturation:
    """Whether sums of products can saturate in a layer, worst case.

    Attributes:
        node, op_type, weight: The layer, and its weight tensor ("" for a product of two activations).
        verdict: "unsafe" or "safe" whatever the activations; "exact" where no kernel adds pairs in s16; "data" where
            both operands are activations; "float" where nothing is multiplied on integers.
        why: Of the verdicts that do not follow from the weights.
        channels, unsafe_channels, unsafe_pairs: Output channels, and those and the pairs that can saturate.
        worst_sum: Largest sum of one sign in a pair (safe up to 128); None where no pairs are added.
    """

    node: str
    op_type: str
    weight: str = ""
    verdict: str
    why: str = ""
    channels: Count
    unsafe_channels: Count
    unsafe_pairs: Count | None = None
    worst_sum: Count | None = None


@dataclass(frozen=True)
class Saturation:
    """Channels that can saturate on the target; None when not audited (see Evaluation.reasons).

    Attributes:
        channels, unsafe_pairs: Output channels with int8 weights, and pairs that can saturate.
        layers: Those that multiply integers, in graph order.
    """

    target: str
    unsafe_channels: Count | None
    channels: Count | None = None
    unsafe_pairs: Count | None = None
    layers: tuple[LayerSaturation, ...] = ()


@dataclass(frozen=True)
class Size:
    """The two files, in bytes."""

    fp32_bytes: Count
    int8_bytes: Count

    @property
    def ratio(self) -> float | None:
        """int8 / fp32."""
        return self.int8_bytes / self.fp32_bytes if self.fp32_bytes else None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per sample, medians of interleaved rounds; speedup is fp32 / int8, its interval None for a guess."""

    fp32: Magnitude | None
    int8: Magnitude | None
    speedup: Magnitude | None
    speedup_ci95: Interval | None = None
    rounds: Count | None = field(default=None, metadata=LEFT_OUT)
    threads: Count | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class OptimizedLayer:
    """A layer's microseconds in FP32 and int8, with Q, DQ and layout changes at its borders, and what was decided."""

    node: str
    op_type: str
    fp32_us: Magnitude
    int8_us: Magnitude
    decision: str


@dataclass(frozen=True)
class Optimization:
    """What `optimize: latency` found.

    Attributes:
        fp32_us, plain_int8_us, int8_us: Microseconds per inference, medians of turns: the FP32 model, the int8 model
            with every layer in int8, and the one that was kept.
        left: Layers that were left in float, and why.
        rows: All layers that were measured, in graph order.
        given_up: The layers of the fastest mix that the search came upon, where it was not kept: not surely faster
            than every layer in int8, or surely slower than float.
        given_up_us: Its microseconds per inference, of the same turns.
    """

    fp32_us: Magnitude
    plain_int8_us: Magnitude
    int8_us: Magnitude
    left: dict[str, str]
    rows: tuple[OptimizedLayer, ...]
    given_up: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    given_up_us: Number | None = field(default=None, metadata=LEFT_OUT)

    @property
    def all_float(self) -> bool:
        """Whether every layer stays in float."""
        return bool(self.left) and all(row.node in self.left for row in self.rows)


@dataclass(frozen=True)
class MixedLayer:
    """A layer that a budget could have left out of int8.

    Attributes:
        contribution: Share of the noise of all layers at the outputs that it makes by itself.
        estimated_percent: What float in it adds to the int8 model's estimated time; or what its residual codes do.
        decision: In words.
    """

    node: str
    op_type: str
    contribution: Number
    estimated_percent: Number
    decision: str


@dataclass(frozen=True)
class MixedGate:
    """A gate on one model that was evaluated in search of one for which the gates hold."""

    value: Number | None
    passed: StrictBool


@dataclass(frozen=True, kw_only=True)
class MixedPoint:
    """One model that was evaluated in search of one for which the gates hold.

    Attributes:
        layers_left, planes: Number of layers in float, and of layers with residual codes of their input.
        estimated_percent: Time that these add, of the int8 model's estimated time.
        gates: Those about outputs, as the user wrote them.
        sqnr_db, cosine, agreement, top1_drop: Of its outputs.
        kept: Whether this one was kept.
    """

    layers_left: Count
    planes: Count
    estimated_percent: Number
    gates: dict[str, MixedGate]
    sqnr_db: Number | None
    cosine: Number | None = None
    agreement: Share | None = None
    top1_drop: Number | None = None
    kept: StrictBool


@dataclass(frozen=True, kw_only=True)
class MixedPrecision:
    """How a budget was spent so that gates hold.

    Attributes:
        budget_percent, fallback: As asked for.
        needed_percent: Budget that the gates would need by estimate; None where they hold, or where it says nothing.
        outcome: In one sentence.
        layers: Every layer, largest contribution first; none where the gates hold with every layer in int8.
        curve: Models that were evaluated, by estimated time; all have the same gates.
    """

    budget_percent: Number
    fallback: str
    needed_percent: Number | None = None
    outcome: str
    layers: tuple[MixedLayer, ...]
    curve: tuple[MixedPoint, ...]


@dataclass(frozen=True)
class TensorHistogram:
    """For the report's plots: at most 512 linear bins over the observed range, with the chosen clip range."""

    tensor: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    low: float
    high: float
    method: str
    candidates: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RuntimeResult:
    """The int8 model in a second runtime.

    Attributes:
        name: As in `--runtime`.
        metrics, outputs: Its outputs there against those of the FP32 model in onnxruntime.
        kernels: Layers that take 8-bit integers there, and those that take real numbers, under the runtime's names.
        latency: Of both models there, measured in turns with onnxruntime.
        against: Its outputs there against those in onnxruntime.
    """

    name: str
    metrics: Metrics
    outputs: dict[str, OutputMetrics]
    kernels: Fusion
    latency: Latency | None
    against: RuntimeAgreement


@dataclass(frozen=True)
class LayerScales:
    """The scales of one weight tensor, and the activation tensor behind its node, by which a report finds the layer."""

    node: str
    op_type: str
    weight: str
    tensor: str
    entry: WeightEntry


@dataclass(frozen=True)
class Measurements:
    """What an evaluation and a report hold alike: where figures are looked up."""

    metrics: Metrics
    outputs: dict[str, OutputMetrics]
    layers: tuple[LayerMetrics, ...]
    fusion: Fusion | None
    saturation: Saturation
    size: Size
    latency: Annotated[Latency | None, Field(alias="latency_ms")]
    metric: UserMetric | None = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where something was measured.

    Attributes:
        cpu: Its model, as the system names it.
        flags: Those of its features that decide which integer kernels run, of `runtime.machine.FLAGS`.
        physical_cores, logical_cores: Those that the process may use; None where the system does not tell.
        threads: What the runtime was given.
        system, python: Operating system and interpreter, with their versions.
        runtimes: Name of each runtime -> its version.
    """

    cpu: str
    flags: tuple[str, ...]
    physical_cores: Count | None
    logical_cores: Count
    threads: Count
    system: str
    python: str
    runtimes: dict[str, str]


@dataclass(frozen=True)
class Origin:
    """When, by what and where a report was made: all of it that differs between two runs of one job.

    Attributes:
        date: When the run began, UTC, ISO 8601.
        command: What was run, with its arguments as they were given.
    """

    date: str
    command: str
    machine: Machine


@dataclass(frozen=True)
class Evaluation(Measurements):
    """What evaluation/ measures on a pair of models.

    Attributes:
        layer_samples: How many samples the layers were compared on.
        latencies: By name of the runtime, onnxruntime first; None where one could not be measured.
        failures: Errors of parts that could not be measured; what they leave open is None, with its reason.
        warnings: Name outputs that are of little use.
        findings: What makes figures untrustworthy.
    """

    samples: int
    reasons: dict[str, str] = field(default_factory=dict)
    runtimes: tuple[RuntimeResult, ...] = ()
    latencies: dict[str, Latency | None] = field(default_factory=dict)
    fastest: Fastest | None = None
    failures: tuple[Exception, ...] = ()
    warnings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    layer_samples: int = 0
    families: tuple[FamilyFinding, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything report.json holds, plus the histograms that report.html draws.

    Attributes:
        tensors, weights: What a table made in the same run says of activations, by name, and weights, in graph order.
        findings: About the data; the first of the warnings.
    """

    model: dict[str, object]
    settings: dict[str, object]
    evaluation: Evaluation
    timing_s: dict[str, float]
    gates: tuple[Gate, ...] = ()
    warnings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    histograms: tuple[TensorHistogram, ...] = ()
    optimize: Optimization | None = None
    steps: tuple[StepResult, ...] = ()
    mixed: MixedPrecision | None = None
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    weights: tuple[LayerScales, ...] = ()
    findings: tuple[Finding, ...] = ()
    origin: Origin | None = None

    def __repr__(self) -> str:
        figures = "".join(f", {name}={value}" for name, (value, _) in short_figures(self.evaluation).items())
        gates = [each.passed for each in self.gates if each.is_told]
        told = f"{figures}, gates={len(gates)}, failed={gates.count(False)}, warnings={len(self.warnings)}"
        return f"Report(model={self.model.get('name')!r}, samples={self.evaluation.samples}{told})"

    def _repr_html_(self) -> str:
        rows = {name: f"{value} ({unit})" for name, (value, unit) in short_figures(self.evaluation).items()}
        rows |= {each.gate: "passed" if each.passed else "failed" for each in self.gates if each.is_told}
        return html_table(rows | {"warnings": "; ".join(self.warnings)})
