"""The settings of one job as frozen dataclasses: what the command line, the YAML and the Python API all come down to.

Field names are the YAML's key names. Validation of types and ranges happens in `int8cal.config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Method = Literal["auto", "kl", "percentile", "mse", "max"]
Recipe = Literal["fast", "balanced", "accurate"]
TargetName = Literal["portable", "x86-vnni", "x86-avx2", "arm64", "openvino", "tensorrt"]
DEFAULT_TARGET: TargetName = "portable"
ActivationType = Literal["u8", "s8"]
WeightRange = Literal["s8", "s7", "paired"]
Goal = Literal["latency"]
Fallback = Literal["float", "planes"]
Runtime = Literal["onnxruntime", "openvino"]


@dataclass(frozen=True)
class Preprocess:
    """How an image file becomes a float tensor; applied in this order.

    Attributes:
        resize: Shorter side in pixels (int) or exact (height, width); None keeps the size.
        crop: Centre crop side in pixels (int) or (height, width); None keeps the size.
        color: "RGB", "BGR" or "GRAY"; None takes RGB for 3 channels and GRAY for 1.
        layout: "NCHW" or "NHWC"; None is told from the model's input shape.
        scale: Factor applied to the 0..255 pixel values.
        mean, std: Per channel, subtracted and divided after `scale`; empty tuples for none.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    color: Literal["RGB", "BGR", "GRAY"] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class DataSettings:
    """Where calibration or evaluation samples come from.

    Attributes:
        path: Directory, file, glob, or "package.module:function".
        samples: At most this many samples; None for all.
        preprocess: Image preprocessing; None when the YAML declares none (the model then gets pixel values 0..255).
        labels: "folders", a CSV path, or None (told by the data: labels.csv if present, class folders else).
        skip_bad: Count and skip unreadable files instead of stopping at the first.
        seed: Chooses which samples are taken when `samples` is smaller than the set.
    """

    path: str
    samples: int | None = None
    preprocess: Preprocess | None = None
    labels: str | None = None
    skip_bad: bool = False
    seed: int = 0


@dataclass(frozen=True)
class CalibrationSettings:
    """How statistics become thresholds.

    Attributes:
        method: How a tensor's clip range is chosen: "auto" takes, per tensor, the best of the others by its own error.
        percentile: In percent of the values, for method "percentile".
        batch_size: Samples read ahead while others run; each sample is run alone, so no result depends on it.
        threads: Of the runtime; 0 for one per CPU.
        engine: Where the pass over the data runs.
        statistics: A .stats.npz with counts that were taken before, of merged shards for example; None to run the model
            on the data and count. The data is then only read for samples to judge corrections on.
    """

    method: Method = "auto"
    percentile: float = 99.99
    batch_size: int = 8
    threads: int = 0
    engine: Literal["local", "ray"] = "local"
    statistics: Path | None = None


@dataclass(frozen=True)
class QuantizationSettings:
    """What is quantized and how.

    Attributes:
        recipe: How much work goes into accuracy.
        target: Where the model will run.
        activations: Integer type of activations.
        weights: Range of the weights' codes; None for the target's own.
        exclude: Nodes that stay float: patterns of names, or "op:Type".
        include: The only nodes that are quantized, as in `exclude`; empty for all.
        ranges: Tensor name -> (low, high) in real units, wins over statistics.
        optimize: "latency" leaves layers in float that are slower in int8 on this machine; None measures nothing.
        latency_allowance: Percent of the int8 model's estimated time that may be spent on accuracy: second planes of
            inputs, and float in nodes between the layers.
        budget: Percent of the int8 model's estimated time that layers outside int8 may add so that gates hold; None
            leaves it at judging.
        fallback: What such layers become: float, or first int8 with a second plane of their input's codes.
        explain: Judge every step of the recipe, and write down in table, model and report what each gave.
        uint8_input: The int8 model takes raw pixels 0..255; scale, mean and std move into its first layers.
    """

    recipe: Recipe = "fast"
    target: TargetName = DEFAULT_TARGET
    activations: ActivationType = "u8"
    weights: WeightRange | None = None
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    uint8_input: bool = False
    optimize: Goal | None = None
    latency_allowance: float = 10.0
    explain: bool = False
    budget: float | None = None
    fallback: Fallback = "float"


@dataclass(frozen=True)
class EvaluationSettings:
    """What the int8 model is judged on.

    Attributes:
        data: Samples of its own; None for the calibration data (and the report says so).
        gates: Conditions such as "top1.drop<=1.0"; exit code 7 when one does not hold.
        latency: Whether the speed of both models is measured.
        runtimes: Where the int8 model runs; onnxruntime always does, whether named or not.
        providers: onnxruntime's execution providers for the evaluation, in the order of preference; none for CPU.
    """

    data: DataSettings | None = None
    gates: tuple[str, ...] = ()
    latency: bool = True
    runtimes: tuple[Runtime, ...] = ()
    providers: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutputSettings:
    """Where the files go.

    Attributes:
        dir: Directory of the results; None for ./<stem>-int8/.
        overwrite: Whether results that exist there may be replaced.
    """

    dir: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Job:
    """One model through the whole pipeline.

    Attributes:
        model: The FP32 ONNX file.
        data: Calibration samples.
        calibration: How statistics become thresholds.
        quantization: What is quantized and how.
        evaluation: What the int8 model is judged on.
        output: Where the files go.
        quiet: Print errors only.
        name: Of the job, for tables and directories; empty for the model's stem.
    """

    model: Path
    data: DataSettings
    calibration: CalibrationSettings = CalibrationSettings()
    quantization: QuantizationSettings = field(default_factory=QuantizationSettings)
    evaluation: EvaluationSettings = EvaluationSettings()
    output: OutputSettings = OutputSettings()
    quiet: bool = False
    name: str = ""
