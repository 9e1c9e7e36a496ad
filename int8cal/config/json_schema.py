"""The JSON Schema of the YAML, for editors: pydantic's, in which variables may stand for values."""

from __future__ import annotations

import re
from typing import Any

from int8cal.config.schema import ConfigFile, JobLayer

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_BATCH_KEYS = ("defaults", "jobs", "matrix", "models", "gates")
_VARIABLE = "Variable"
# Text is text, whatever stands in for a part of it; other values may be a variable as a whole.
_VARIABLE_SCHEMA = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}",
    "description": "An environment variable, written ${NAME}.",
}

Schema = dict[str, Any]


def config_schema() -> Schema:
    """Make the JSON Schema (draft 2020-12) of a YAML file with jobs.

    Returns:
        Plain dicts and lists. What a schema cannot say is left to int8cal: whether a range's ends are in order, whether
        a job has a model in the end, whether a file exists.
    """
    made = ConfigFile.model_json_schema()
    sections = made.pop("$defs")
    parts: dict[str, Schema] = {name: _section(part, sections) for name, part in sections.items()}
    top = _section(made, sections)
    top["properties"]["matrix"] = _matrix(parts, top["properties"]["matrix"])
    settings = [key for key in top["properties"] if key not in _BATCH_KEYS]
    return {
        "$schema": DIALECT,
        "title": "int8cal configuration",
        **top,
        "dependentSchemas": {
            "jobs": {"properties": dict.fromkeys(settings, False)},
            "defaults": {
                "anyOf": [{"required": ["jobs"]}, {"required": ["models"]}],
                "properties": dict.fromkeys(settings, False),
            },
            "models": {"properties": dict.fromkeys([*settings, "jobs", "matrix"], False)},
            "gates": {"required": ["models"]},
        },
        "$defs": {**parts, _VARIABLE: _VARIABLE_SCHEMA},
    }


def _section(made: Schema, parts: dict[str, Schema]) -> Schema:
    """Make a section out of pydantic's: without titles and defaults of whole sections, every key described."""
    properties = {
        key: {"description": _about(value, parts), **_value(value)} for key, value in made["properties"].items()
    }
    about = made["description"]
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def _about(value: Schema, parts: dict[str, Schema]) -> str:
    """Take a key's description; pydantic leaves out one that says the same as that of its section."""
    if "description" in value:
        return str(value["description"])
    return str(parts[value["$ref"].rpartition("/")[2]]["description"])


def _value(made: Schema) -> Schema:
    default = made.get("default")
    kept = {} if default in ({}, [], "") or isinstance(default, dict) else {"default": default}
    return _shape(made) | (kept if "default" in made else {})


def _shape(made: Schema) -> Schema:
    """Let a variable stand for anything that is not text, at any depth."""
    if "$ref" in made:
        return {"$ref": made["$ref"]}
    if "anyOf" in made:
        choices = [choice for each in made["anyOf"] for choice in _shape(each).get("anyOf", [_shape(each)])]
        return {"anyOf": [choice for index, choice in enumerate(choices) if choice not in choices[:index]]}
    own = {key: value for key, value in made.items() if key not in ("title", "default", "description")}
    if own.get("type") == "array":
        return own | ({"items": _shape(own["items"])} if own.get("items") else {})
    if own.get("type") == "object":
        more = own.get("additionalProperties")
        return own | ({"additionalProperties": _shape(more)} if isinstance(more, dict) else {})
    free = own.get("type") == "string" and not {"enum", "const"} & own.keys()
    if own.get("type") == "null" or (free and "pattern" not in own):
        return own
    return {"anyOf": [own, {"$ref": f"#/$defs/{_VARIABLE}"}]}


def _matrix(parts: dict[str, Schema], made: Schema) -> Schema:
    """Name every key path that a matrix may vary, with the values that stand there."""
    paths: dict[str, Schema] = {}
    patterns: dict[str, Schema] = {}
    values: Schema = {"type": "array", "minItems": 1, "uniqueItems": True}

    def add(prefix: str, section: Schema) -> None:
        for key, value in section["properties"].items():
            path = prefix + key
            paths[path] = values | {"items": {k: v for k, v in value.items() if k != "default"}}
            if isinstance(value.get("additionalProperties"), dict):
                items = value["additionalProperties"]
                patterns[rf"^{re.escape(path)}\.[^.]+$"] = values | {"items": items}
            for name in re.findall(r"#/\$defs/(\w+)", str(value)):
                if name != _VARIABLE:
                    add(f"{path}.", parts[name])

    add("", parts[JobLayer.__name__])
    return {
        "type": "object",
        "description": made["description"],
        "properties": paths,
        "patternProperties": patterns,
        "additionalProperties": False,
    }
