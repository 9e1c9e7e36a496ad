"""Validation errors in the words of the YAML: where, what was expected, and the nearest valid key."""

from __future__ import annotations

import difflib
import re
import reprlib
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from int8cal.config.schema import ConfigFile, JobLayer, Section
from int8cal.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic_core import ErrorDetails

    from int8cal.config.locate import ErrorSite, Loc

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
    "less_than_equal": "a number of at most {le:g}",
    "too_short": "a list with at least {min_length} entry",
    "literal_error": "one of {expected}",
    "expected": "{what}",
}


def validate(model: type[SectionT], values: object, place: Callable[[Loc, bool], ErrorSite]) -> SectionT:
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
            advice = f"{advice} (and {more} more {'mistake' if more == 1 else 'mistakes'})".strip()
        raise ConfigError(
            what, do=advice, where=first.text, key=first.key, line=first.line, column=first.column
        ) from error


def _describe(model: type[Section], detail: ErrorDetails) -> tuple[str, str]:
    kind, loc, value = detail["type"], detail["loc"], detail["input"]
    if kind == "extra_forbidden":
        return unknown_key(str(loc[-1]), known_keys(model, loc[:-1]))
    context = detail.get("ctx", {})
    if kind == "refused":
        return str(context["what"]), str(context["do"])
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else detail["msg"]
    if kind == "literal_error" and " or " not in str(context["expected"]):
        expected = str(context["expected"])  # "one of" a single choice reads like a cut list
    return f"expected {expected}, got {_shown(value)}", _advice(kind, value, str(context.get("expected", "")))


def unknown_key(key: str, known: list[str]) -> tuple[str, str]:
    """Name an unknown key and the one that was probably meant.

    Args:
        key: The key as written, without its parents.
        known: The keys that may stand there.

    Returns:
        What is wrong, and what to do.
    """
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f'unknown key "{key}"', f'did you mean "{near[0]}"?'
    elsewhere = [path for path in _key_paths(JobLayer) if path.split(".")[-1] == key]
    if elsewhere:
        return f'unknown key "{key}"', f'did you mean "{elsewhere[0]}"?'
    return f'unknown key "{key}"', f"the keys here are {', '.join(known)}"


def known_keys(model: type[Section], loc: Loc) -> list[str]:
    """List the keys of the section at `loc` under `model`."""
    for step in loc:
        below = _section_of(model, str(step)) if isinstance(step, str) else model
        if below is None:
            return []
        model = below
    return list(model.model_fields)


def _section_of(model: type[Section], key: str) -> type[Section] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    if model is ConfigFile and key == "jobs":
        return JobLayer
    candidates = (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, Section)), None)


def _key_paths(model: type[Section], prefix: str = "") -> Iterator[str]:
    for key in model.model_fields:
        yield prefix + key
        below = _section_of(model, key)
        if below is not None:
            yield from _key_paths(below, f"{prefix}{key}.")


def _shown(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{reprlib.repr(value)[1:-1]}"' if isinstance(value, str) else reprlib.repr(value)


def _advice(kind: str, value: object, choices: str) -> str:
    if kind == "literal_error" and isinstance(value, str):
        known = [choice.strip("' ") for choice in choices.replace(" or ", ", ").split(",")]
        near = difflib.get_close_matches(value, known, n=1) or [
            choice for choice in known if choice.lower() == value.lower()
        ]
        return f'did you mean "{near[0]}"?' if near else ""
    if kind == "string_type" and value is not None and not isinstance(value, list | dict):
        return "quote it"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        plain = _NUMBER.fullmatch(value) if kind != "bool_type" else value.lower() in ("true", "false")
        return "write it without quotes" if plain else "correct the value, or remove the key for the default"
    if kind == "list_type":
        return 'begin each entry with "- "' if isinstance(value, dict) else "put it in brackets: [...]"
    if value is None:
        return "remove the key, or give it a value"
    return ""
