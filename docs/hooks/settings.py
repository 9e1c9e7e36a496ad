"""The keys of the YAML: types, limits and defaults from the schema, meanings from where they are written down.

A meaning is the schema's own description, else what the docstring of the settings' dataclass says, else the help of the
command line's option for that key, else a line of `_REST`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import click

from int8cal import job
from int8cal.cli.main import COMMANDS, cli
from int8cal.cli.options import Setting
from int8cal.config.schema import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DATACLASSES = {
    "data": job.DataSettings,
    "data.preprocess": job.Preprocess,
    "calibration": job.CalibrationSettings,
    "quantization": job.QuantizationSettings,
    "evaluation": job.EvaluationSettings,
    "output": job.OutputSettings,
}
_TITLES = {
    "": "A job",
    "data": "data",
    "data.preprocess": "data.preprocess",
    "calibration": "calibration",
    "quantization": "quantization",
    "evaluation": "evaluation",
    "output": "output",
}
_REST = {
    "name": "Name of the job in the summary, and of its output directory (default: the model's file name).",
    "model": "The FP32 model, relative to the YAML.",
    "data": "Calibration samples: a path, or a mapping.",
    "calibration": "How statistics become ranges.",
    "quantization": "What is quantized, and how.",
    "evaluation": "What the int8 model is judged on.",
    "output": "Where the files go.",
    "evaluation.data": "Samples the int8 model is judged on: a path, or a mapping as under data (default: those).",
    "evaluation.latency": "Measure the speed of both models.",
    "defaults": "Keys of a job that all jobs have, unless they say otherwise.",
    "jobs": "A list of jobs.",
    "matrix": "Key path to a list of values; every combination is a job.",
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
    meanings = _meanings()
    for key, value in _properties(schema, path).items():
        full = f"{path}.{key}" if path else key
        meaning = value.get("description") or meanings.get(full) or _REST.get(full)
        if not meaning:
            raise LookupError(f"nothing says what the key {full} means: document it in int8cal/job.py")
        yield key, _values(schema, value), _default(value), re.sub(r"\bNone\b", "`null`", meaning)


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


def _meanings() -> dict[str, str]:
    """Collect key path -> meaning: help of options first, docstrings over it."""
    meanings: dict[str, str] = {}
    top = click.Context(cli, info_name="int8cal")
    for name in COMMANDS:
        command = cli.get_command(top, name)
        for option in command.params if command else []:
            if isinstance(option, Setting) and not option.negated:
                meanings.setdefault(option.key, (option.help or "").replace(" Repeatable.", ""))
    for section, kind in _DATACLASSES.items():
        for field, text in _attributes(kind).items():
            meanings[f"{section}.{field}"] = text
    return meanings


def _attributes(kind: type) -> dict[str, str]:
    """Read the Attributes section of a dataclass's docstring; one line may name several fields."""
    text = (kind.__doc__ or "").partition("Attributes:")[2]
    entries = re.findall(r"^ {8}([a-z0-9_, ]+): (.*(?:\n {12}.*)*)", text, re.MULTILINE)
    names = {field.name for field in dataclasses.fields(kind)}
    found = {name: " ".join(what.split()) for group, what in entries for name in group.split(", ")}
    return {name: what for name, what in found.items() if name in names}
