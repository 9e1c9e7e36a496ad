"""Layers of settings: plain nested mappings with the YAML's keys, checked, and merged in one way.

Defaults, a job of a file, one value of a matrix and the command line are all layers; a later layer wins. Mappings merge
key by key, everything else (numbers, text, lists) is replaced as a whole. A mistake is told in the words of the YAML:
where, what was expected, and the nearest valid key.
"""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from int8cal.config.schema import ChainLayer, Section
from int8cal.config.words import meant_setting, meant_value
from int8cal.data.callables import is_callable_path
from int8cal.data.hub import dataset_below, is_dataset
from int8cal.data.labels import labels_file
from int8cal.data.remote import is_url
from int8cal.declared import all_declared, declared
from int8cal.io.paths import from_home
from int8cal.job import Job
from int8cal.phrases import counted
from int8cal.preprocess import Preprocess, with_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from int8cal.config.yaml_file import Loc, SettingPlace

SettingsLayer = dict[str, Any]
SectionT = TypeVar("SectionT", bound=Section)

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of at most {le:.9g}",
    "too_short": "at least {min_length} entry",
    "literal_error": "one of {expected}",
    "expected": "{what}",
}
_MAPPING_TYPES = ("dict_type", "model_type", "model_attributes_type")


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> SettingsLayer:
    """Put one layer on top of another; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = layered(below, value) if both else value  # type: ignore[arg-type]
    return merged


def nest(settings: Mapping[str, object]) -> SettingsLayer:
    """Turn {"calibration.method": "kl"} into {"calibration": {"method": "kl"}}."""
    layer: SettingsLayer = {}
    for path, value in settings.items():
        part: Any = value
        for key in reversed(path.split(".")):
            part = {key: part}
        layer = layered(layer, part)
    return layer


def settings_layer(section: Section, base: Path) -> SettingsLayer:
    """Take the keys that a checked section really holds, paths made relative to `base`."""
    layer: SettingsLayer = section.model_dump(
        exclude_unset=True, exclude={"defaults", "jobs", "matrix", "models", "gates"}
    )
    _place_below(base, layer, Job)
    return layer


def _place_below(base: Path, layer: SettingsLayer, kind: type) -> None:
    for setting in declared(kind):
        value = layer.get(setting.name)
        if value is None:
            continue
        if setting.section is not None:
            if setting.section is Preprocess:
                layer[setting.name] = with_set(value)
            _place_below(base, value, setting.section)
        elif setting.form in ("file", "directory", "source", "labels"):
            layer[setting.name] = _below(base, value, setting.form)


def _below(base: Path, text: str, form: str) -> str:
    if form == "source" and is_dataset(text):
        return dataset_below(text, base)
    if form == "source" and is_url(text):
        return text
    if (form == "labels" and labels_file(text) is None) or (form == "source" and is_callable_path(text, base)):
        return text
    return str(base / from_home(text))


def validate(model: type[SectionT], values: object, place: Callable[[Loc, bool], SettingPlace]) -> SectionT:
    """Check a layer of settings against the schema.

    Args:
        model: What to check against.
        values: Plain values as they came from YAML or the command line.
        place: Says where a location is (second argument: point at the key, not at its value).

    Returns:
        The checked layer; `model_fields_set` tells which keys it holds.

    Raises:
        ConfigError: For the first mistake in the file; further ones are counted.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        placed = [(place(detail["loc"], detail["type"] == "extra_forbidden"), detail) for detail in found]
        first, detail = min(placed, key=lambda pair: (pair[0].line, pair[0].column))
        what, advice = _describe(model, detail)
        more = len(found) - 1
        if more:
            others = f" (and {counted(more, 'more mistake')})"
            what, advice = (what, f"{advice}{others}") if advice else (f"{what}{others}", "")
        raise first.error(what, advice, key=first.key) from error


def _describe(model: type[Section], detail: ErrorDetails) -> tuple[str, str]:
    kind, loc, value = detail["type"], detail["loc"], detail["input"]
    if kind == "extra_forbidden":
        return f'unknown key "{loc[-1]}"', _meant(str(loc[-1]), _known_keys(model, loc[:-1]))
    if kind in _MAPPING_TYPES and loc == ("models",) and isinstance(value, list):
        return (
            f"expected a mapping, name: model of a chain, got {_shown(value)}",
            "for a job of each model write jobs: [{model: ...}, ...]",
        )
    context = detail.get("ctx", {})
    if kind == "refused":
        return str(context["what"]), str(context["do"])
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else detail["msg"]
    if kind == "literal_error" and " or " not in str(context["expected"]):
        expected = str(context["expected"])  # "one of" a single choice reads like a cut list
    return f"expected {expected}, got {_shown(value)}", _advice(kind, value, str(context.get("expected", "")))


def _meant(key: str, known: list[str]) -> str:
    """Name the key that was probably meant: one of those that may stand there, or one of that name elsewhere."""
    elsewhere = (each.path for each in all_declared() if each.name == key)
    near = meant_setting(key, known) or next(elsewhere, None)
    return f'did you mean "{near}"?' if near else f"the keys here are {', '.join(known)}"


def _known_keys(model: type[Section], loc: Loc) -> list[str]:
    """List the keys of the section at `loc` under `model`."""
    if not loc:
        return list(model.model_fields)
    if loc[0] == "models":
        if len(loc) <= 2:
            return list(ChainLayer.model_fields)
        loc = loc[1:]
    steps = loc[1:] if loc[0] in ("defaults", "jobs") or loc[0] not in model.model_fields else loc
    section = ".".join(step for step in steps if isinstance(step, str))
    return [each.name for each in all_declared() if each.path.rpartition(".")[0] == section]


def _shown(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{reprlib.repr(value)[1:-1]}"' if isinstance(value, str) else reprlib.repr(value)


def _advice(kind: str, value: object, choices: str) -> str:
    if kind == "literal_error" and isinstance(value, str):
        known = [choice.strip("' ") for choice in choices.replace(" or ", ", ").split(",")]
        near = meant_value(value, known)
        return f'did you mean "{near}"?' if near else ""
    if kind == "string_type" and value is not None and not isinstance(value, list | dict):
        return "quote it"
    if kind == "greater_than_equal" and isinstance(value, float) and 0 < value <= 1:
        return f"it is in percent: write {value * 100:g}"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        plain = _NUMBER.fullmatch(value) if kind != "bool_type" else value.lower() in ("true", "false")
        return "write it without quotes" if plain else "correct the value, or remove the key for the default"
    if kind == "list_type":
        return 'begin each entry with "- "' if isinstance(value, dict) else "put it in brackets: [...]"
    if value is None:
        return "remove the key, or give it a value"
    return ""
