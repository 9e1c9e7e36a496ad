"""The keys of the YAML and their types.

Every key may be left out: defaults, a job, one matrix value and the command line are each one *layer* with these keys,
and `int8cal.config.layers` puts them on top of each other. What a whole job must have is checked after that.
"""

import os
import re
from collections.abc import Hashable
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from int8cal.errors import ConfigError
from int8cal.evaluation.figures import FIGURES, OUTPUT_UNITS, SHORT
from int8cal.evaluation.gates import parse_gate
from int8cal.job import (
    ActivationType,
    CalibrationSettings,
    EvaluationSettings,
    Fallback,
    Goal,
    Method,
    OutputSettings,
    Preprocess,
    QuantizationSettings,
    Recipe,
    Runtime,
    TargetName,
    WeightRange,
)

_CALIBRATION = CalibrationSettings()
_QUANTIZATION = QuantizationSettings()
_EVALUATION = EvaluationSettings()
_OUTPUT = OutputSettings()
_PREPROCESS = Preprocess()


def _expected(what: str) -> PydanticCustomError:
    """Say what a value should have been; the message is finished in `int8cal.config.messages`."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def _check_size(value: object) -> int | list[int] | None:
    def is_side(side: object) -> bool:
        return isinstance(side, int) and not isinstance(side, bool) and side >= 1

    if value is None or (isinstance(value, int) and is_side(value)):
        return value
    if isinstance(value, list) and len(value) == 2 and all(is_side(side) for side in value):
        return value
    raise _expected("a number of pixels, or [height, width]")


def _check_range(value: list[float]) -> list[float]:
    if len(value) != 2 or value[0] > value[1]:
        raise _expected("[low, high] with low <= high")
    return value


def _check_nonzero(value: float) -> float:
    if value == 0:
        raise _expected("a number other than 0")
    return value


def _check_gate(value: str) -> str:
    try:
        parse_gate(value)
    except ConfigError as error:
        raise PydanticCustomError("refused", "{what}", {"what": error.what, "do": error.do}) from error
    return value


def _each_once(values: list[object]) -> list[object]:
    seen: set[Hashable] = set()
    for index, value in enumerate(values):
        frozen = _frozen(value)
        if frozen in seen:
            what = f"value {index + 1} stood there before"
            raise PydanticCustomError("refused", "{what}", {"what": what, "do": "remove it; its jobs would run twice"})
        seen.add(frozen)
    return values


def _frozen(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset((key, _frozen(each)) for key, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _path_alone(value: object) -> object:
    """Accept `data: photos` for `data: {path: photos}`."""
    return {"path": value} if isinstance(value, str) else value


def _check_name(value: str) -> str:
    # The name becomes part of the output directory's.
    if not value.strip() or not value.isprintable() or "/" in value or "\\" in value:
        raise _expected("a name without slashes")
    if value.strip() in {".", ".."}:
        raise _expected('a name other than "." and "..", which stand for directories')
    return value


def _without_nul(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise _expected("a path")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:  # half a surrogate pair, which no file name holds
        raise _expected("a path") from error
    return value


def _check_placeholders(value: str) -> str:
    for found in _PLACEHOLDER.findall(value):
        if found != "name":
            near = get_close_matches(found.strip(), ("name",), cutoff=0.6)
            do = (
                'did you mean "{name}"?'
                if near
                else 'write "{name}", which stands for the job, or leave the braces out'
            )
            what = f'"{{{found}}}" is no placeholder'
            raise PydanticCustomError("refused", "{what}", {"what": what, "do": do})
    return value


_PLACEHOLDER = re.compile(r"(?<!\$)\{([^{}]*)\}")  # ${NAME} is an environment variable, or text where it came from $${
_OF_OUTPUT = rf"outputs\.[\s\S]+\.({'|'.join(re.escape(name) for name in OUTPUT_UNITS)})"
_GATE_PATTERN = (
    rf"^\s*({'|'.join(re.escape(name) for name in (*FIGURES, *SHORT))}|{_OF_OUTPUT})\s*(<=|>=|<|>)\s*"
    r"[-+]?([0-9](_?[0-9])*(\.([0-9](_?[0-9])*)?)?|\.[0-9](_?[0-9])*)([eE][-+]?[0-9](_?[0-9])*)?\s*$"
)

PathText = Annotated[
    str,
    AfterValidator(_without_nul),
    WithJsonSchema({"type": "string", "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}),
]
DirectoryText = Annotated[
    str,
    AfterValidator(_without_nul),
    AfterValidator(_check_placeholders),
    WithJsonSchema(
        {"type": "string", "pattern": r"^(?![^\u0000]*(?<!\$)\{(?!name\})[^{}]*\})[^\u0000]*[^\s\u0000][^\u0000]*$"}
    ),
]
NameText = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?!\s*\.\.?\s*$)[^/\\\u0000-\u001f\u007f]*[^/\\\s\u0000-\u001f\u007f]"
            r"[^/\\\u0000-\u001f\u007f]*$",
        }
    ),
]
GateText = Annotated[str, AfterValidator(_check_gate), WithJsonSchema({"type": "string", "pattern": _GATE_PATTERN})]
Nonzero = Annotated[float, AfterValidator(_check_nonzero), WithJsonSchema({"type": "number", "not": {"const": 0}})]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[
    int | list[int] | None,
    PlainValidator(_check_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
                {"type": "null"},
            ]
        }
    ),
]
Range = Annotated[
    list[float],
    AfterValidator(_check_range),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]


class Section(BaseModel):
    """A mapping of the YAML: no unknown keys, no silent conversion of types, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class PreprocessSection(Section):
    """How an image file becomes a float tensor; see `int8cal.job.Preprocess`."""

    resize: Size = None
    crop: Size = None
    color: Literal["RGB", "BGR", "GRAY"] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    scale: Nonzero = _PREPROCESS.scale
    mean: list[float] = []
    std: list[Nonzero] = []


class DataSection(Section):
    """Where samples come from."""

    path: PathText = ""
    samples: Count | None = None
    preprocess: PreprocessSection | None = None
    labels: PathText | None = None
    skip_bad: bool = False
    seed: Annotated[int, Field(ge=0)] = 0


DataOrPath = Annotated[DataSection, BeforeValidator(_path_alone, json_schema_input_type=str | DataSection)]
OptionalDataOrPath = Annotated[
    DataSection | None, BeforeValidator(_path_alone, json_schema_input_type=str | DataSection | None)
]


class CalibrationSection(Section):
    """How statistics become thresholds."""

    method: Method = _CALIBRATION.method
    percentile: Annotated[float, Field(gt=0, le=100)] = _CALIBRATION.percentile
    batch_size: Count = _CALIBRATION.batch_size
    threads: Annotated[int, Field(ge=0, le=256)] = _CALIBRATION.threads
    engine: Literal["local", "ray"] = _CALIBRATION.engine
    statistics: PathText | None = None


class QuantizationSection(Section):
    """What is quantized and how."""

    recipe: Recipe = _QUANTIZATION.recipe
    target: TargetName = _QUANTIZATION.target
    activations: ActivationType = _QUANTIZATION.activations
    weights: WeightRange | None = _QUANTIZATION.weights
    exclude: list[str] = []
    include: list[str] = []
    ranges: dict[str, Range] = {}
    uint8_input: bool = _QUANTIZATION.uint8_input
    optimize: Goal | None = _QUANTIZATION.optimize
    explain: bool = _QUANTIZATION.explain
    latency_allowance: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = _QUANTIZATION.latency_allowance
    budget: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = _QUANTIZATION.budget
    fallback: Fallback = _QUANTIZATION.fallback


class EvaluationSection(Section):
    """What the int8 model is judged on; `data` null means the calibration data.

    Attributes:
        labels: "folders" or a CSV of file,label, for the samples that the model is judged on.
    """

    data: OptionalDataOrPath = None
    labels: PathText | None = None
    gates: list[GateText] = []
    latency: bool = _EVALUATION.latency
    runtimes: list[Runtime] = []
    providers: list[str] = []


class OutputSection(Section):
    """Where the files go; `{name}` in `dir` stands for the job's name."""

    dir: DirectoryText | None = None
    overwrite: bool = _OUTPUT.overwrite


class JobLayer(Section):
    """The keys of one job."""

    name: NameText = ""
    model: PathText = ""
    data: DataOrPath = DataSection()
    calibration: CalibrationSection = CalibrationSection()
    quantization: QuantizationSection = QuantizationSection()
    evaluation: EvaluationSection = EvaluationSection()
    output: OutputSection = OutputSection()
    quiet: bool = False


class ConfigFile(JobLayer):
    """A YAML file: one job, or `defaults` and `jobs`; `matrix` multiplies either.

    Attributes:
        defaults: Settings under those of every job.
        jobs: The jobs; a glob in `model` makes one of each file.
        matrix: Key path, such as "calibration.method" -> list of values; every combination makes a job.
    """

    defaults: JobLayer = JobLayer()
    jobs: Annotated[list[JobLayer], Field(min_length=1)] = []
    matrix: dict[str, Annotated[list[object], Field(min_length=1), AfterValidator(_each_once)]] = {}
