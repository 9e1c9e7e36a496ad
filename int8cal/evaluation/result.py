"""The results of an evaluation as frozen dataclasses, one per part of report.json.

A figure that could not be computed is None, and `Result.reasons` says why, keyed by its dotted path ("metrics.top1").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from int8cal.calibration.table import StepResult, TensorEntry, WeightEntry


@dataclass(frozen=True)
class Drop:
    """Top-k accuracy of both models as fractions; drop = fp32 - int8 in percentage points, with its 95 % interval."""

    fp32: float
    int8: float
    drop: float
    drop_ci95: tuple[float, float]
    samples: int


@dataclass(frozen=True)
class Metrics:
    """int8 outputs against FP32 outputs over all samples.

    `sqnr_db` and `cosine` are each that of the worst float output; `sqnr_db_ci95` belongs to the same output.
    `exact_outputs` names the float outputs that are bit-equal. `sqnr_db_ci95` and `agreement_ci95` are 95 % intervals
    over the choice of samples.
    """

    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float | None
    agreement: float | None
    top1: Drop | None
    top5: Drop | None
    sqnr_db_ci95: tuple[float, float] | None = None
    agreement_ci95: tuple[float, float] | None = None
    exact_outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutputMetrics:
    """One graph output."""

    sqnr_db: float | None
    cosine: float | None
    sqnr_db_ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class LayerMetrics:
    """One quantized tensor: error of the int8 model there, and the fraction of calibration values outside its range."""

    tensor: str
    node: str
    op_type: str
    sqnr_db: float | None
    clipped: float | None


@dataclass(frozen=True)
class FloatNode:
    """A compute node that still runs in float in the runtime's optimized graph, under its name in the model.

    `residual` tells the nodes that int8cal added to compute a tensor's residual codes.
    """

    node: str
    op_type: str
    reason: str
    residual: bool = False


@dataclass(frozen=True)
class Fusion:
    """What the runtime made of the model: nodes with integer kernels, and all compute nodes left in float, by name."""

    integer: int
    float_: int
    nodes: tuple[FloatNode, ...]


@dataclass(frozen=True)
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
    weight: str
    verdict: str
    why: str
    channels: int
    unsafe_channels: int
    unsafe_pairs: int
    worst_sum: int | None


@dataclass(frozen=True)
class Saturation:
    """Channels that can saturate on the target; None when not audited (see Result.reasons).

    Attributes:
        channels, unsafe_pairs: Output channels with int8 weights, and pairs that can saturate.
        layers: Those that multiply integers, in graph order.
    """

    target: str
    unsafe_channels: int | None
    channels: int | None = None
    unsafe_pairs: int | None = None
    layers: tuple[LayerSaturation, ...] = ()


@dataclass(frozen=True)
class Latency:
    """Milliseconds per sample, medians of interleaved runs; speedup is the ratio of these two figures, fp32 / int8.

    `speedup_ci95` is its 95 % interval over the rounds of this measurement; None after a single round.
    """

    fp32: float
    int8: float
    speedup: float
    speedup_ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class OptimizedLayer:
    """A layer's microseconds in FP32 and int8, with Q, DQ and layout changes at its borders, and what was decided."""

    node: str
    op_type: str
    fp32_us: float
    int8_us: float
    decision: str


@dataclass(frozen=True)
class Optimization:
    """What `optimize: latency` found.

    Attributes:
        fp32_us, plain_us, int8_us: Microseconds per inference, medians of turns: the FP32 model, the int8 model with
            every layer in int8, and the one that was kept.
        layers: All layers that were measured, in graph order.
        left: Layers that were left in float, and why.
    """

    fp32_us: float
    plain_us: float
    int8_us: float
    layers: tuple[OptimizedLayer, ...]
    left: dict[str, str]


@dataclass(frozen=True)
class Gate:
    """One gate as the user wrote it, the value it was held against, and the verdict (None value: not passed).

    `ci95` is the 95 % interval of its figure, where that has one.
    """

    gate: str
    value: float | None
    passed: bool
    ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class MixedLayer:
    """A layer that a budget could have left out of int8.

    Attributes:
        contribution: Share of the noise of all layers at the outputs that it makes by itself.
        estimated_percent: What float in it adds to the int8 model's estimated time, or a second plane where it has one.
        decision: In words.
        in_float: Whether it was left out of int8; of the report, the decision says it.
    """

    node: str
    op_type: str
    contribution: float
    estimated_percent: float
    decision: str
    in_float: bool = False


@dataclass(frozen=True)
class MixedPoint:
    """One model that was evaluated in search of one for which the gates hold.

    Attributes:
        layers_left, planes: Number of layers in float, and of layers with a second plane of their input's codes.
        estimated_percent: Time that these add, of the int8 model's estimated time.
        gates: Those about outputs.
        metrics: Of its outputs.
        kept: Whether this one was kept.
    """

    layers_left: int
    planes: int
    estimated_percent: float
    gates: tuple[Gate, ...]
    metrics: Metrics
    kept: bool


@dataclass(frozen=True)
class MixedPrecision:
    """How a budget was spent so that gates hold.

    Attributes:
        budget_percent, fallback: As asked for.
        layers: Every layer, largest contribution first; none where the gates hold with every layer in int8.
        curve: Models that were evaluated, by estimated time.
        needed_percent: Budget that the gates would need by estimate; None where they hold, or where it says nothing.
        outcome: In one sentence.
    """

    budget_percent: float
    fallback: str
    layers: tuple[MixedLayer, ...]
    curve: tuple[MixedPoint, ...]
    needed_percent: float | None
    outcome: str


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
class RuntimeAgreement:
    """The int8 model's outputs in a second runtime against those in onnxruntime."""

    sqnr_db: float | None
    cosine: float | None
    max_abs_error: float | None
    agreement: float | None


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
class LayerWeights:
    """The scales of one weight tensor, and the activation tensor behind its node, by which a report finds the layer."""

    node: str
    op_type: str
    weight: str
    tensor: str
    entry: WeightEntry


@dataclass(frozen=True)
class Evaluation:
    """What evaluation/ measures on a pair of models.

    Attributes:
        failures: Errors of parts that could not be measured; what they leave open is None, with its reason.
        warnings: Name outputs that are of little use.
    """

    samples: int
    metrics: Metrics
    outputs: dict[str, OutputMetrics]
    layers: tuple[LayerMetrics, ...]
    fusion: Fusion | None
    saturation: Saturation
    size: tuple[int, int]
    latency: Latency | None
    reasons: dict[str, str] = field(default_factory=dict)
    runtimes: tuple[RuntimeResult, ...] = ()
    failures: tuple[Exception, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything report.json holds, plus the histograms that report.html draws.

    Attributes:
        tensors, weights: What the calibration table says of activations, by name, and of weights, in graph order; none
            for int8 models that int8cal did not calibrate in the same run.
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
    weights: tuple[LayerWeights, ...] = ()
