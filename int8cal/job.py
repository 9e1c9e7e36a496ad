"""The settings of one job, each declared once: name, type, default, meaning, limits, and how the command line calls it.

The YAML's schema (`config.schema`), the JSON Schema, the options of commands (`cli.options`), the keywords of
`int8cal.calibrate` and `evaluate`, the settings in a table and the documentation's page of settings are all made from
these dataclasses, which `int8cal.declared` reads. Types and limits are checked where a job is made, in `config`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from int8cal.data_settings import DataSettings
from int8cal.setting import Directory, File, GateText, LabelSource, MetricName, Name, Nodes, Option, Range, ShardName

# declared in a file of its own, and found here with the others
__all__ = ("DataSettings",)

Method = Literal["auto", "kl", "percentile", "mse", "max"]
RecipeName = Literal["fast", "balanced", "accurate"]
TargetName = Literal["portable", "x86-vnni", "x86-avx2", "arm64", "openvino", "tensorrt"]
DEFAULT_TARGET: TargetName = "portable"
ActivationType = Literal["u8", "s8", "auto", "u16"]
WeightRange = Literal["s8", "s7", "paired"]
Goal = Literal["latency"]
Fallback = Literal["float", "planes"]
Runtime = Literal["onnxruntime", "openvino"]
Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class CalibrationSettings:
    """How statistics become thresholds."""

    method: Annotated[
        Method,
        Option(
            'How a tensor\'s clip range is chosen: "auto" takes, per tensor, the best of the others by its own error.',
            flag="--method",
            group="Accuracy",
            help="How statistics become clip ranges (default {default}).",
            recorded="always",
        ),
    ] = "auto"
    percentile: Annotated[
        float,
        Option(
            'In percent of the values, for method "percentile"; "auto" tries it among others.',
            flag="--percentile",
            group="Accuracy",
            help="Percent of values kept by method percentile, which auto tries too (default {default}).",
            metavar="P",
            ge=50,
            le=100,
            recorded="always",
        ),
    ] = 99.99
    batch_size: Annotated[
        int,
        Option(
            "Samples read ahead while others run; each sample is run alone, so no result depends on it.",
            flag="--batch-size",
            group="Where it runs",
            help="Samples read ahead (default {default}); results do not depend on it.",
            ge=1,
        ),
    ] = 8
    threads: Annotated[
        int,
        Option(
            "Of the runtime; 0 for one per CPU.",
            flag="--threads",
            group="Where it runs",
            help="Threads of the runtime (default {default}: all cores).",
            ge=0,
            le=256,
            api=("calibrate", "evaluate"),
        ),
    ] = 0
    statistics: Annotated[
        File | None,
        Option(
            "A .stats.npz with counts that were taken before, of merged shards for example; null to run the model on "
            "the data and count. The data is then only read for samples to judge corrections on.",
            flag="--stats",
            group="Data",
            help="Statistics counted before, such as merged shards; the data is then only judged on.",
            metavar="FILE",
        ),
    ] = None
    shard: Annotated[
        ShardName | None,
        Option(
            'The part of the data that is counted, "3/16" for the third of sixteen: only its statistics are written, '
            "for `int8cal merge`. null for a whole job.",
            flag="--shard",
            help="Count only the K-th of N parts of the data, and write only its statistics; int8cal merge adds them.",
            metavar="K/N",
            group="Data",
            api=(),
        ),
    ] = None
    resume: Annotated[
        bool,
        Option(
            "Whether to go on from the checkpoint beside the results, which a killed run of the same job left.",
            flag="--resume",
            help="Go on from the checkpoint that a killed run of the same job left, if there is one.",
            group="Where it runs",
            api=(),
        ),
    ] = False
    checkpoint: Annotated[
        int | None,
        Option(
            "Samples between two checkpoints; null for one a minute, 0 for none.",
            flag="--checkpoint",
            help="Save a checkpoint every N samples, 0 for never (default: every minute).",
            group="Where it runs",
            ge=0,
            api=(),
        ),
    ] = None
    engine: Annotated[
        Engine,
        Option(
            'Where passes over the data run: "local" is this process, "ray" the workers of a Ray cluster, each with '
            "`threads` threads (0 for one). Results are the same.",
            flag="--engine",
            group="Where it runs",
            help="Where passes over the data run: here, or in workers of a Ray cluster (default {default}).",
            api=(),
        ),
    ] = "local"
    address: Annotated[
        str | None,
        Option(
            "Of the Ray cluster, HOST:PORT; null for RAY_ADDRESS, or the one that runs on this machine, or a new one "
            "of its CPUs.",
            flag="--address",
            group="Where it runs",
            help="Ray cluster for --engine ray, HOST:PORT (default: RAY_ADDRESS, or this machine).",
            metavar="HOST:PORT",
            api=(),
        ),
    ] = None


@dataclass(frozen=True)
class QuantizationSettings:
    """What is quantized and how."""

    recipe: Annotated[
        RecipeName,
        Option(
            "How much work goes into accuracy.",
            flag="--recipe",
            group="Accuracy",
            first=True,
            help="How much work goes into accuracy (default {default}).",
            recorded="always",
        ),
    ] = "fast"
    target: Annotated[
        TargetName,
        Option(
            "Where the model will run.",
            flag="--target",
            group="Where it runs",
            first=True,
            help="Where the model will run (default {default}).",
            api=("calibrate", "evaluate"),
            recorded="always",
        ),
    ] = DEFAULT_TARGET
    activations: Annotated[
        ActivationType,
        Option(
            'Integer type of activations; "auto" is u8, and chooses for each product with weights between a calibrated '
            'range and one at run time; "u16" is for runtimes with 16 bits, onnxruntime computes with them in float.',
            flag="--activations",
            group="Accuracy",
            help="Integer type of activations (default: {activations_of_targets}); auto chooses for each product with "
            "weights between a calibrated range and one at run time; u16 is slower than float here.",
            recorded="always",
        ),
    ] = "u8"
    weights: Annotated[
        WeightRange | None,
        Option(
            "Range of the weights' codes; null for the target's own.",
            flag="--weights",
            group="Accuracy",
            help="Range of the weights' codes: s8 (-127..127), s7 (-64..63), or paired, the largest codes of which no "
            "two can saturate on CPUs without VNNI (default: {weights_of_targets}).",
            recorded="always",
        ),
    ] = None
    include: Annotated[
        tuple[str, ...],
        Option(
            "The only nodes that are quantized, as in `exclude`; empty for all.",
            flag="--include",
            group="Accuracy",
            help="Quantize these nodes only: name pattern or op:Type. Repeatable.",
            metavar="GLOB",
            recorded="always",
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Option(
            'Nodes that stay float: patterns of names, or "op:Type".',
            flag="--exclude",
            group="Accuracy",
            first=True,
            help="Leave these nodes in float: name pattern or op:Type. Repeatable.",
            metavar="GLOB",
            recorded="always",
        ),
    ] = ()
    weights_only: Annotated[
        Nodes | None,
        Option(
            "Nodes of which only the weights become int8, as in `exclude`, or true for all; activations stay float.",
            flag="--weights-only",
            group="Accuracy",
            help="Make only weights int8, for a small file: activations stay float (YAML: of some nodes, too).",
            recorded="weights_only",
        ),
    ] = None
    uint8_input: Annotated[
        bool,
        Option(
            "The int8 model takes raw pixels 0..255; scale, mean and std move into its first layers.",
            flag="--uint8-input",
            group="Where it runs",
            help="Let the int8 model take raw pixels 0..255: scale, mean and std move into its first layers.",
            recorded="always",
        ),
    ] = False
    optimize: Annotated[
        Goal | None,
        Option(
            '"latency" leaves layers in float that are slower in int8 on this machine; null measures nothing.',
            flag="--optimize",
            group="Where it runs",
            first=True,
            help="Measure each layer here, and leave in float what is slower in int8 (default: measure nothing).",
            recorded="optimize",
        ),
    ] = None
    explain: Annotated[
        bool,
        Option(
            "Judge every step of the recipe, and write down in table, model and report what each gave.",
            flag="--explain",
            group="Output",
            help="Report what each step of the recipe gave, here and in later evaluations of the model.",
        ),
    ] = False
    latency_allowance: Annotated[
        float,
        Option(
            "Percent of the int8 model's estimated time that may be spent on accuracy: residual codes of inputs, float "
            "in nodes between the layers, and float in few layers between float nodes, whose bytes it bounds likewise. "
            "At the default, recipe fast takes of the first two only what removes twice the share of the noise that it "
            "takes of the time; half of that where twice the time is allowed.",
            flag="--latency-allowance",
            group="Accuracy",
            help="Time that better accuracy may cost, of the int8 model's estimated time (default {default}).",
            metavar="PERCENT",
            ge=0,
            le=1000,
            recorded="always",
        ),
    ] = 10.0
    ranges: Annotated[
        dict[str, Range],
        Option("Tensor name -> (low, high) in real units, wins over statistics.", recorded="always"),
    ] = field(default_factory=dict)
    budget: Annotated[
        float | None,
        Option(
            "Percent of the int8 model's estimated time that layers outside int8 may add so that gates hold; null "
            "leaves it at judging.",
            flag="--budget",
            group="Accuracy",
            help="Leave the fewest layers in float that make the gates hold; all of them may add so much to the int8 "
            "model's estimated time. Needs --gate; not with --optimize (default: gates only judge).",
            metavar="PERCENT",
            gt=0,
            le=100_000,
            recorded="budget",
        ),
    ] = None
    fallback: Annotated[
        Fallback,
        Option(
            "What such layers become: float, or first int8 with residual codes of their input.",
            flag="--fallback",
            group="Accuracy",
            help="With --budget: float, or first residual codes (a second code for each value) for layers whose input "
            "exists as float (default {default}).",
            recorded="budget",
        ),
    ] = "float"


@dataclass(frozen=True)
class EvaluationSettings:
    """What the int8 model is judged on; `data` null means the calibration data."""

    data: Annotated[
        DataSettings | None,
        Option(
            "Samples of its own; null for the calibration data (and the report says so).",
            flag="--eval-data",
            group="Data",
            first=True,
            help="Samples the int8 model is judged on (default: the calibration data).",
            metavar="PATH",
            keyword="eval_data",
        ),
    ] = None
    # A key, but no field: when a job is made it goes to the data that the model is judged on.
    labels: ClassVar[
        Annotated[
            LabelSource | None,
            Option(
                '"folders", a CSV of file,label, a list in the order of the samples (.npy, or a text with a number per '
                'line), "column:NAME", or "none", for samples that the model is judged on.',
                flag="--labels",
                group="Data",
                first=True,
                help='CSV of file,label; list in order (.npy, a number per line); "folders"; column:NAME; or "none".',
                metavar="FILE",
                api=("evaluate",),
            ),
        ]
    ] = None
    metric: Annotated[
        MetricName | None,
        Option(
            'Your own figure: "package.module:function", called with the outputs and labels of each model, or the name '
            "of an installed one; null for none.",
            flag="--metric",
            group="Accuracy",
            help="Your own figure: package.module:function, called with the outputs and labels of each model, or the "
            "name of an installed one, such as f1. Its name is a gate: 'f1>=0.9', 'f1.drop<=0.01'.",
            metavar="FUNCTION",
            api=("calibrate", "evaluate"),
        ),
    ] = None
    gates: Annotated[
        tuple[GateText, ...],
        Option(
            'Conditions such as "top1.drop<=1.0"; exit code 7 when one does not hold. "outputs.dead<=0" is always on '
            'without being listed; "outputs.dead=off" switches it off.',
            flag="--gate",
            group="Accuracy",
            first=True,
            help="Exit with 7 unless this holds, such as 'top1.drop<=1.0'. Repeatable; replaces all gates "
            "of the YAML; names: int8cal gates.",
            metavar="'NAME<=VALUE'",
        ),
    ] = ()
    runtimes: Annotated[
        tuple[Runtime, ...],
        Option(
            "Where the int8 model runs; onnxruntime always does, whether named or not. Where none is named, only the "
            "speed of both models is measured in others that are installed.",
            flag="--runtime",
            group="Where it runs",
            help="Run the int8 model there as well, and report both. Repeatable (default onnxruntime, which always "
            "runs, and only speed in the others that are installed; --runtime onnxruntime leaves these out).",
            api=("evaluate",),
        ),
    ] = ()
    providers: Annotated[
        tuple[str, ...],
        Option(
            "onnxruntime's execution providers for the evaluation, in the order of preference; none for CPU.",
            flag="--provider",
            group="Where it runs",
            help="Evaluate with this execution provider of onnxruntime, such as cuda. Repeatable, in the order of "
            "preference (default cpu, which always calibrates).",
            metavar="NAME",
            api=("evaluate",),
        ),
    ] = ()
    latency: Annotated[
        bool,
        Option(
            "Whether the speed of both models is measured.",
            flag="--no-latency",
            group="Where it runs",
            help="Do not measure the models' speed.",
            api=("evaluate",),
        ),
    ] = True
    strict: Annotated[
        bool,
        Option(
            "Whether findings about the data (fed wrong, repeated, too few) are errors, exit code 4: before the work "
            "where they are known then.",
            flag="--strict",
            group="Data",
            help="Findings about the data are errors, with exit code 4.",
            api=("calibrate", "evaluate"),
        ),
    ] = False


@dataclass(frozen=True)
class OutputSettings:
    """Where the files go; `{name}` in `dir` stands for the job's name."""

    dir: Annotated[
        Directory | None,
        Option(
            "Directory of the results; null for ./<stem>-int8/.",
            flag="-o --output",
            group="Output",
            first=True,
            help="Directory for the results (default ./<model>-int8).",
            metavar="DIR",
            api=(),
        ),
    ] = None
    overwrite: Annotated[
        bool,
        Option(
            "Whether results that exist there may be replaced.",
            flag="--overwrite",
            group="Output",
            help="Replace results that exist.",
            api=(),
        ),
    ] = False


def model_stem(model: str | Path) -> str:
    """Return what results are called after: the name of the model's file, without .onnx."""
    return Path(model).name.removesuffix(".onnx")


@dataclass(frozen=True)
class Job:
    """The keys of one job."""

    model: Annotated[File, Option("The FP32 ONNX file.")]
    data: Annotated[DataSettings, Option("Calibration samples.")]
    calibration: Annotated[CalibrationSettings, Option("How statistics become thresholds.")] = CalibrationSettings()
    quantization: Annotated[QuantizationSettings, Option("What is quantized and how.")] = field(
        default_factory=QuantizationSettings
    )
    evaluation: Annotated[EvaluationSettings, Option("What the int8 model is judged on.")] = EvaluationSettings()
    output: Annotated[OutputSettings, Option("Where the files go.")] = OutputSettings()
    quiet: Annotated[bool, Option("Print errors only.", flag="-q --quiet", group="Output")] = False
    name: Annotated[Name, Option("Of the job, for tables and directories; empty for the model's stem.")] = ""

    @property
    def directory(self) -> Path:
        """Where the results go."""
        return self.output.dir or Path(f"{model_stem(self.model)}-int8")
