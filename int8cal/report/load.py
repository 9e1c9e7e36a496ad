"""Reads a report.json back, and refuses what is not one."""

from __future__ import annotations

import json
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import ValidationError

from int8cal.errors import ConfigError
from int8cal.input_paths import require_readable
from int8cal.report.document import FORMAT, VERSION, Document
from int8cal.report.parts import Part
from int8cal.report.runtimes import FIRST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from int8cal.report.parts import Metrics, Weights

# Beyond these no figure is, and arithmetic on what is read could overflow.
_DIGITS = 300
_LARGEST = 1e300
# What pydantic calls a wrong type -> what was expected.
_KINDS = {
    "model_type": "dict",
    "dict_type": "dict",
    "tuple_type": "list",
    "string_type": "str",
    "bool_type": "bool",
    "int_from_float": "int",
}
_AGAIN = "evaluate again to write a sound report"


def load_report(path: Path) -> Document:
    """Read and check a report.json.

    Args:
        path: The file.

    Returns:
        The document; what a file may lack is None or empty where this one lacks it.

    Raises:
        ConfigError: The file is missing, is not JSON, is another format or a newer version, or misses a part.
    """
    require_readable(path, ConfigError, "check the path")
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except (ValueError, RecursionError) as error:
        raise _error(path, f"is not valid JSON ({error})", "give the report.json that int8cal wrote") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _error(path, f'is not a report: "format" is not "{FORMAT}"', "give the report.json that int8cal wrote")
    if document.get("version") != VERSION:
        found = f"report version is {document.get('version')!r}, this int8cal reads version {VERSION}"
        raise _error(path, found, "update int8cal, or evaluate again")
    try:
        report = Document.model_validate(document)
    except ValidationError as error:
        raise _refused(path, error) from error
    _require_sound(path, report)
    return report


def _refused(path: Path, found: ValidationError) -> ConfigError:
    """Say what is wrong with the first part that is not as it has to be."""
    error = found.errors(include_url=False)[0]
    keys, value = [str(key) for key in error["loc"]], error["input"]
    place = ".".join(keys)
    if isinstance(value, list) and error["type"] in ("missing", "too_long"):  # an interval
        keys = keys[:-1] if error["type"] == "missing" else keys
        return _error(path, f"{'.'.join(keys)} has {len(value)} values, expected 2", _AGAIN)
    if error["type"] == "missing":
        return _error(path, f"{place} is missing", _AGAIN)
    expected = _KINDS.get(error["type"], error["msg"]) + (" or null" if _takes_null(error["loc"]) else "")
    return _error(path, f"{place} is {_shown(value)}, expected {expected}", _AGAIN)


def _takes_null(place: tuple[int | str, ...]) -> bool:
    """Say whether null may stand in a place of a report."""
    kind: Any = Document
    for key in place:
        (kind,) = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else (kind,)
        if isinstance(kind, type) and issubclass(kind, Part):
            kind = next(each.annotation for name, each in kind.model_fields.items() if key in (name, each.alias))
        elif get_args(kind):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
    return NoneType in get_args(kind)


def _require_sound(path: Path, document: Document) -> None:
    """Refuse figures that contradict each other."""
    _require_sound_drops(path, "metrics", document.metrics)
    for index, weights in enumerate(document.weights):
        _require_sound_scales(path, f"weights.{index}", weights)
    for name, runtime in document.runtimes.items():
        _require_sound_drops(path, f"runtimes.{name}.metrics", runtime.metrics)
        if runtime.against_onnxruntime is None and name != FIRST:
            raise _error(path, f"runtimes.{name}.against_onnxruntime is missing", _AGAIN)
    curve = () if document.mixed_precision is None else document.mixed_precision.curve
    if any(list(point.gates) != list(curve[0].gates) for point in curve):
        raise _error(path, "mixed_precision.curve has points with different gates", _AGAIN)


def _require_sound_drops(path: Path, place: str, metrics: Metrics) -> None:
    for name, drop in (("top1", metrics.top1), ("top5", metrics.top5)):
        if drop is not None:
            _require_together(path, f"{place}.{name}", {"fp32": drop.fp32, "int8": drop.int8, "drop": drop.drop})


def _require_sound_scales(path: Path, place: str, weights: Weights) -> None:
    scales = {
        "scale_min": weights.scale_min,
        "scale_median": weights.scale_median,
        "scale_max": weights.scale_max,
    }
    _require_together(path, place, scales)
    lower = 0.0
    for name, scale in scales.items():
        if scale is not None and scale < lower:
            raise _error(path, f"{place}.{name} is {_shown(scale)}, expected at least {lower:g}", _AGAIN)
        lower = scale or lower


def _require_together(path: Path, place: str, values: Mapping[str, float | None]) -> None:
    """Refuse values of which some are null, where all were measured or none was."""
    nulls = [name for name, value in values.items() if value is None]
    if nulls and len(nulls) < len(values):
        raise _error(path, f"{place}.{nulls[0]} is null while others of {place} are not", _AGAIN)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if abs(value) > _LARGEST:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _error(path: Path, what: str, do: str) -> ConfigError:
    return ConfigError(what, do=do, where=str(path), path=str(path))
