"""The keys of the YAML: types, limits and defaults and meanings from the schema."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from int8cal.config.schema import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TITLES = {
    "": "A job",
    "data": "data",
    "data.preprocess": "data.preprocess",
    "data.preprocess.text": "data.preprocess.text",
    "data.preprocess.audio": "data.preprocess.audio",
    "calibration": "calibration",
    "quantization": "quantization",
    "evaluation": "evaluation",
    "output": "output",
}


def settings_tables(table: Callable[[Any, Any], str], cell: Callable[[str], str], code: Callable[[str], str]) -> str:
    """One table per section: key, values, default, meaning."""
    schema = ConfigFile.model_json_schema()
    known = set(schema["$defs"]["JobLayer"]["properties"])
    parts = []
    for path, title in _TITLES.items():
        rows = [row for row in _rows(schema, path) if path or row[0] in known]
        parts.append(_section(title, rows, table, cell, code))
    batch = [row for row in _rows(schema, "") if row[0] not in known]
    parts.append(_section("Several jobs in one file", batch, table, cell, code))
    return "\n".join(parts)


def _section(title: str, rows: list[tuple[str, str, str, str]], table: Any, cell: Any, code: Any) -> str:
    cells = [
        [code(key), values, code(default) if default else "", cell(meaning)] for key, values, default, meaning in rows
    ]
    return f"## {title}\n\n" + table(["key", "values", "default", "what it is"], cells)


def _rows(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    for key, value in _properties(schema, path).items():
        # pydantic leaves out a description that says the same as that of the key's section
        meaning = value["description"] if "description" in value else _mapping(schema, value)["description"]
        yield key, _values(schema, value), _default(value), re.sub(r"\bnull\b", "`null`", meaning)


def _properties(schema: dict[str, Any], path: str) -> dict[str, Any]:
    node: dict[str, Any] = schema
    for part in path.split(".") if path else []:
        node = _mapping(schema, node["properties"][part])
    properties: dict[str, Any] = node["properties"]
    return properties


def _mapping(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Find the section that a key stands for, behind "or null" and "or a path"."""
    for each in [value, *value.get("anyOf", []), *value.get("allOf", [])]:
        if "$ref" in each:
            found: dict[str, Any] = schema["$defs"][each["$ref"].rpartition("/")[2]]
            return found
    raise LookupError(f"no section in {value}")


def _values(schema: dict[str, Any], value: dict[str, Any]) -> str:
    """Say in words which values a key takes; null means "left out" and is not listed."""
    if "anyOf" in value:
        return " or ".join(_values(schema, each) for each in value["anyOf"] if each.get("type") != "null")
    if "enum" in value or "const" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    if "$ref" in value or "allOf" in value:
        return "mapping"
    kind = value.get("type", "any value")
    if kind == "array":
        inner = _values(schema, value.get("items", {}))
        exact = value.get("minItems") if value.get("minItems") == value.get("maxItems") else None
        return f"list of {exact}: {inner}" if exact else f"list of {inner}"
    words = {"string": "text", "integer": "whole number", "boolean": "`true`, `false`", "object": "mapping"}
    limits = [
        f"{sign} {value[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", "&gt;"), ("maximum", "≤"))
        if key in value
    ]
    return " ".join([words.get(kind, kind), " and ".join(limits)]).strip()


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, "", [], {}) or isinstance(default, dict) else json.dumps(default).strip('"')
