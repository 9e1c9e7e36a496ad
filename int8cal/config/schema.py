"""The keys of the YAML and their types, made from the declarations of `int8cal.job`.

Every key may be left out: defaults, a job, one matrix value and the command line are each one *layer* with these keys,
and `int8cal.config.layers` puts them on top of each other. What a whole job must have is checked after that.
"""

import os
import re
from collections.abc import Hashable
from dataclasses import MISSING, is_dataclass
from difflib import get_close_matches
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
)
from pydantic_core import PydanticCustomError

from int8cal.data.shards import PATTERN as SHARD_PATTERN
from int8cal.data.shards import Shard
from int8cal.declared import Declared, declared, form_of
from int8cal.errors import ConfigError, printable
from int8cal.evaluation.figures import FIGURES, OUTPUT_UNITS, SHORT
from int8cal.evaluation.gates import OF_A_METRIC, parse_gates
from int8cal.job import DataSettings, Job
from int8cal.preprocess import Preprocess, SetName
from int8cal.setting import Option


def _expected(what: str) -> PydanticCustomError:
    """Say what a value should have been; the message is finished in `int8cal.config.layers`."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def _refused(what: str, do: str) -> PydanticCustomError:
    """Say what is wrong with a value; pydantic writes it as UTF-8, which has no half of a surrogate pair."""
    return PydanticCustomError("refused", "{what}", {"what": printable(what), "do": printable(do)})


def _check_size(value: object) -> int | list[int]:
    def is_side(side: object) -> bool:
        return isinstance(side, int) and not isinstance(side, bool) and side >= 1

    if isinstance(value, int) and is_side(value):
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


def _read_fraction(value: object) -> object:
    """Read text such as "1/255" as the number that options make of it, and leave all else to what checks numbers."""
    if isinstance(value, str) and re.fullmatch(_FRACTION, value):
        above, below = value.split("/")
        return int(above) / int(below)
    return value


def _check_gate(value: str) -> str:
    try:
        parse_gates([value], None)  # the metric may stand in another layer: `config.load` knows both
    except ConfigError as error:
        raise _refused(error.what, error.do) from error
    return value


def _each_once(values: list[object]) -> list[object]:
    seen: set[Hashable] = set()
    for index, value in enumerate(values):
        frozen = _frozen(value)
        if frozen in seen:
            raise _refused(f"value {index + 1} stood there before", "remove it; its jobs would run twice")
        seen.add(frozen)
    return values


def _frozen(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset((key, _frozen(each)) for key, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _path_alone(value: object) -> object:
    """Accept `data: photos` for `data: {path: photos}`."""
    return {"path": value} if isinstance(value, str) else value


def _set_alone(value: object) -> object:
    """Accept `preprocess: imagenet` for `preprocess: {set: imagenet}`."""
    return {"set": value} if isinstance(value, str) else value


def _check_metric(value: str) -> str:
    if not re.fullmatch(_METRIC_PATTERN, value):
        raise _expected('"package.module:function", or the name of an installed metric')
    return value


def _check_shard(value: str) -> str:
    try:
        return str(Shard.parse(value))
    except ValueError as error:
        raise _expected('"K/N" with K from 1 to N, such as "3/16"') from error


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
            raise _refused(f'"{{{found}}}" is no placeholder', do)
    return value


_METRIC_PATTERN = r"^([^\W\d]\w*(\.[^\W\d]\w*)*:)?[^\W\d]\w*(\.[^\W\d]\w*)*$"
_FRACTION = r"^-?[1-9][0-9]{0,14}/[1-9][0-9]{0,14}$"
_PLACEHOLDER = re.compile(r"(?<!\$)\{([^{}]*)\}")  # ${NAME} is an environment variable, or text where it came from $${
_OF_OUTPUT = rf"outputs\.[\s\S]+\.({'|'.join(re.escape(name) for name in OUTPUT_UNITS)})"
_GATE_PATTERN = (
    rf"^\s*({'|'.join(re.escape(name) for name in (*FIGURES, *SHORT))}|{_OF_OUTPUT}|{OF_A_METRIC})\s*(<=|>=|<|>)\s*"
    r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
)

_Path = Annotated[
    str,
    AfterValidator(_without_nul),
    WithJsonSchema({"type": "string", "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}),
]
_Directory = Annotated[
    str,
    AfterValidator(_without_nul),
    AfterValidator(_check_placeholders),
    WithJsonSchema(
        {"type": "string", "pattern": r"^(?![^\u0000]*(?<!\$)\{(?!name\})[^{}]*\})[^\u0000]*[^\s\u0000][^\u0000]*$"}
    ),
]
_Name = Annotated[
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
_Gate = Annotated[str, AfterValidator(_check_gate), WithJsonSchema({"type": "string", "pattern": _GATE_PATTERN})]
_Metric = Annotated[str, AfterValidator(_check_metric), WithJsonSchema({"type": "string", "pattern": _METRIC_PATTERN})]
_Shard = Annotated[str, AfterValidator(_check_shard), WithJsonSchema({"type": "string", "pattern": SHARD_PATTERN})]
_Nonzero = Annotated[
    float,
    BeforeValidator(_read_fraction),
    AfterValidator(_check_nonzero),
    WithJsonSchema({"anyOf": [{"type": "number", "not": {"const": 0}}, {"type": "string", "pattern": _FRACTION}]}),
]
_Size = Annotated[
    int | list[int],
    PlainValidator(_check_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            ]
        }
    ),
]
_Range = Annotated[
    list[float],
    AfterValidator(_check_range),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
# What stands for each `Form` of int8cal.setting.
_FORMS: dict[str, Any] = {
    "file": _Path,
    "source": _Path,
    "labels": _Path,
    "directory": _Directory,
    "name": _Name,
    "gate": _Gate,
    "metric": _Metric,
    "nonzero": _Nonzero,
    "size": _Size,
    "range": _Range,
    "nodes": bool | list[str],
    "values": dict[str, float],
    "shard": _Shard,
}


class Section(BaseModel):
    """A mapping of the YAML: no unknown keys, no silent conversion of types, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@cache
def section_of(kind: type) -> type[Section]:
    """Make the section of the YAML that stands for a dataclass of `int8cal.job`, with the same keys and defaults."""
    keys: dict[str, Any] = {}
    for setting in declared(kind):
        hint = _yaml_type(setting.hint, setting.option)
        if setting.section is DataSettings:
            hint = Annotated[hint, BeforeValidator(_path_alone, json_schema_input_type=_Path | hint)]
        if setting.section is Preprocess:
            hint = Annotated[hint, BeforeValidator(_set_alone, json_schema_input_type=SetName | hint)]
        keys[setting.name] = (hint, Field(_yaml_default(setting), description=setting.option.about))
    name = "JobLayer" if kind is Job else f"{kind.__name__.removesuffix('Settings')}Section"
    return create_model(name, __base__=Section, __doc__=kind.__doc__, **keys)


def _yaml_type(hint: Any, option: Option | None = None) -> Any:
    """Say in pydantic's types what YAML holds for a type of `int8cal.job`; the option's limits are a number's."""
    if form_of(hint):
        return _FORMS[form_of(hint)]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _yaml_type(parts[0], option)
    if origin in (Union, UnionType):
        return reduce(or_, (_yaml_type(part, option) for part in parts))
    if origin is tuple:
        return list[_yaml_type(parts[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[parts[0], _yaml_type(parts[1])]  # type: ignore[misc,valid-type]
    if isinstance(hint, type) and is_dataclass(hint):
        return section_of(hint)
    if option is not None and hint in (int, float):
        return Annotated[hint, Field(gt=option.gt, ge=option.ge, le=option.le)]
    return hint


def _yaml_default(setting: Declared) -> Any:
    """Say what stands for a key that is left out; what a job must have is empty here, and asked for in `load`."""
    if setting.section is not None:
        return None if setting.default is None else section_of(setting.section)()
    if setting.default is MISSING:
        return ""
    return list(setting.default) if isinstance(setting.default, tuple) else setting.default


if TYPE_CHECKING:

    class JobLayer(Section):
        """The keys of one job."""
else:
    JobLayer = section_of(Job)


class ChainLayer(JobLayer):
    """The keys of one model of a chain: those of a job, and what it reads of the models above it."""

    inputs: dict[str, str] = Field(
        {}, description='Input -> "model.tensor": an output, or an input, of a model above; `data` has the others.'
    )


class ConfigFile(JobLayer):
    """A YAML file: one job, or `defaults` and `jobs`; `matrix` multiplies either. Or the `models` of a chain."""

    defaults: JobLayer = Field(JobLayer(), description="Settings under those of every job.")
    jobs: list[JobLayer] = Field([], min_length=1, description="The jobs; a glob in `model` makes one of each file.")
    matrix: dict[str, Annotated[list[object], Field(min_length=1), AfterValidator(_each_once)]] = Field(
        {}, description='Key path, such as "calibration.method" -> list of values; every combination makes a job.'
    )
    models: dict[_Name, ChainLayer] = Field(
        {}, min_length=1, description="The models of a chain by name: one may read the outputs of those above it."
    )
    gates: list[_Gate] = Field(
        [], description="With `models`: gates on the outputs of the last one, all models before it in int8 too."
    )
