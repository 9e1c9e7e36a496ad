"""The calibration table on disk: JSON that a person may edit."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from int8cal.atomic import atomic_write
from int8cal.calibration.table import TYPES, CalibrationTable, TensorEntry, WeightEntry
from int8cal.errors import Int8calError, TableError
from int8cal.input_paths import require_readable
from int8cal.numerics.affine import affine_from_range, positive_scale
from int8cal.numerics.weights import WEIGHT_TYPES
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

FORMAT, VERSION = "int8cal/table", 1
_CHOSEN = ("scale", "zero_point", "low", "high")
_KEYS = (*(field.name for field in fields(TensorEntry)), "calibrated")


def table_to_json(table: CalibrationTable) -> str:
    """Return the table as JSON text: floats round-trip, keys in a fixed order, one line per weight's scales."""
    tensors = {}
    for name, entry in table.tensors.items():
        fields = asdict(entry)
        # what calibration chose, so that an edit can be told from it
        fields["calibrated"] = {key: fields[key] for key in _CHOSEN}
        tensors[name] = fields
    document = {
        "format": FORMAT,
        "version": VERSION,
        **({"run": table.run} if table.run else {}),
        "model": table.model,
        "data": table.data,
        "settings": table.settings,
        "tensors": tensors,
        "weights": {
            name: {key: value for key, value in asdict(entry).items() if value != ""}
            for name, entry in table.weights.items()
        },
        "corrections": table.corrections,
        "warnings": list(table.warnings),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def save_table(table: CalibrationTable, path: Path) -> None:
    """Write a table atomically."""
    atomic_write(path, table_to_json(table))


def load_table(path: Path) -> CalibrationTable:
    """Read a table, edits included.

    A tensor whose low/high or scale/zero_point differs from its "calibrated" part is the user's: the other pair follows
    from the edited one, and its source becomes "user".

    Raises:
        TableError: The file is missing, malformed, or an entry is out of range or contradicts itself; names the entry.
    """
    do = "give a .table.json that `int8cal calibrate` wrote"
    require_readable(path, TableError, do)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as error:
        raise TableError("is not UTF-8 text", where=str(path), do=do) from error
    return parse_table(text, str(path))


def parse_table(text: str, where: str) -> CalibrationTable:
    """Parse the JSON text of a table; see load_table."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"is not JSON ({error.msg})", where=f"{where}:{error.lineno}", do="mend the line") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise TableError(f"cannot be parsed ({type(error).__name__})", where=where, do="calibrate again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TableError(f'is not a calibration table (no "format": "{FORMAT}")', where=where, do="give a .table.json")
    if not isinstance(document.get("version"), int) or not 1 <= document["version"] <= VERSION:
        raise TableError(
            f"has version {document.get('version')!r}, this int8cal reads up to {VERSION}",
            where=where,
            do="update int8cal",
        )
    try:
        tensors = {name: _tensor(name, entry, where) for name, entry in document["tensors"].items()}
        weights = {name: _weight(name, entry, where) for name, entry in document["weights"].items()}
        return CalibrationTable(
            dict(document["model"]),
            dict(document["data"]),
            _settings(document["settings"], where),
            tensors,
            weights,
            _corrections(document.get("corrections", {}), where),
            tuple(document.get("warnings", ())),
            str(document.get("run", "")),
        )
    except KeyError as error:
        raise TableError(f"has no {error.args[0]!r} part", where=where, do="calibrate again") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise TableError(f"is malformed ({error})", where=where, do="calibrate again") from error


def _settings(settings: Any, where: str) -> dict[str, Any]:
    result = dict(settings)
    for key in ("include", "exclude"):
        patterns = result.get(key, [])
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise TableError(
                f"settings.{key} is {patterns!r}, expected a list of patterns", where=where, do="correct it"
            )
    for key in ("left_for_latency", "left_for_accuracy", "left_without_range"):
        left = result.get(key, {})
        if not isinstance(left, dict) or not all(isinstance(why, str) for why in left.values()):
            raise TableError(
                f"settings.{key} is {left!r}, expected node names with reasons", where=where, do="correct it"
            )
    forms = result.get("recurrent", {})
    if not isinstance(forms, dict) or not all(form in ("kernel", "weights") for form in forms.values()):
        raise TableError(
            f"settings.recurrent is {forms!r}, expected node names with kernel or weights",
            where=where,
            do="correct it; a node that is left out stays float",
        )
    for key, known in (("weights", WEIGHT_TYPES), ("target", TARGETS)):
        if key in result and result[key] not in known:
            raise TableError(
                f"settings.{key} is {result[key]!r}, expected {' or '.join(known)}", where=where, do="correct it"
            )
    return result


def _corrections(corrections: Any, where: str) -> dict[str, Any]:
    result = dict(corrections)
    for part in ("equalization", "bias", "remainder", "rounding"):
        if not isinstance(result.get(part, {}), dict):
            raise TableError(
                f"corrections.{part} is {str(result[part])[:40]}, expected an object", where=where, do="correct it"
            )
    for part, limit in (("equalization", 64.0), ("bias", sys.float_info.max)):
        for name, values in dict(result.get(part, {})).items():
            place = f"{where}: corrections.{part} of {name!r}"
            if not isinstance(values, list):
                raise TableError(f"is {str(values)[:40]}, expected a list of numbers", where=place, do="correct it")
            for value in values:
                if abs(_number(value, "a value", place)) > limit or (part == "equalization" and value % 0.0625):
                    raise TableError(f"{str(value)[:40]} is out of range", where=place, do="correct it")
    for name, text in dict(result.get("rounding", {})).items():
        if not isinstance(text, str):
            place = f"{where}: corrections.rounding of {name!r}"
            raise TableError(
                f"is {str(text)[:40]}, expected the text that calibration wrote", where=place, do="remove it"
            )
    return result


def _tensor(name: str, entry: Any, where: str) -> TensorEntry:
    place = f"{where}: tensor {name!r}"
    if not isinstance(entry, dict):
        raise TableError(f"is {entry!r}, expected an object", where=place, do="correct it")
    unknown = next((key for key in entry if key not in _KEYS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, _KEYS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(_KEYS)}"
        raise TableError(f"has an unknown key {unknown!r}", where=place, do=hint)
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise TableError(f"dtype is {dtype!r}, expected one of {sorted(TYPES)}", where=place, do="correct it")
    for key in _CHOSEN:
        _number(entry.get(key), key, place)
    entry = _resolve_edit(entry, place)
    observed = entry.get("observed", [entry["low"], entry["high"]])
    if not isinstance(observed, list) or len(observed) != 2:
        raise TableError(f"observed is {observed!r}, expected [min, max]", where=place, do="correct it")
    amax = entry.get("amax", max(abs(entry["low"]), abs(entry["high"])))
    return TensorEntry(
        dtype=dtype,
        scale=float(entry["scale"]),
        zero_point=int(entry["zero_point"]),
        low=float(entry["low"]),
        high=float(entry["high"]),
        method=str(entry.get("method", "user")),
        amax=_number(amax, "amax", place),
        observed=(_number(observed[0], "observed", place), _number(observed[1], "observed", place)),
        clipped=_number(entry.get("clipped", 0.0), "clipped", place),
        source=str(entry.get("source", "user")),
    )


def _number(value: object, key: str, place: str) -> float:
    # a float compares with integers of any size, which float() and isfinite() do not take
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise TableError(f"{key} is {str(value)[:40]}, expected a finite number", where=place, do="correct it")
    return float(value)


def _resolve_edit(entry: dict[str, Any], place: str) -> dict[str, Any]:
    calibrated = entry.get("calibrated")
    dtype = TYPES[entry["dtype"]]
    if not dtype.qmin <= entry["zero_point"] <= dtype.qmax or entry["zero_point"] != int(entry["zero_point"]):
        raise TableError(
            f"zero_point is {entry['zero_point']}, expected an integer in [{dtype.qmin}, {dtype.qmax}]",
            where=place,
            do="correct it",
        )
    if entry["scale"] <= 0:
        raise TableError(f"scale is {entry['scale']}, expected a number above 0", where=place, do="correct it")
    if calibrated is None:
        calibrated, changed_codes, changed_range = {}, True, True
    else:
        changed_codes = any(entry[key] != calibrated.get(key) for key in ("scale", "zero_point"))
        changed_range = any(entry[key] != calibrated.get(key) for key in ("low", "high"))
    if not changed_codes and not changed_range:
        return entry
    if entry["low"] > entry["high"]:
        raise TableError(f"low {entry['low']} is above high {entry['high']}", where=place, do="swap them")
    try:
        if changed_codes:
            scale, zero_point = positive_scale(entry["scale"]), int(entry["zero_point"])
        else:
            affine = affine_from_range(
                entry["low"], entry["high"], dtype, symmetric=dtype.qmin < 0 and calibrated["zero_point"] == 0
            )
            scale, zero_point = affine.scale, affine.zero_point
    except Int8calError as error:
        raise TableError(error.what, where=place, do="correct it") from error
    low, high = scale * (dtype.qmin - zero_point), scale * (dtype.qmax - zero_point)
    if changed_codes and changed_range and max(abs(low - entry["low"]), abs(high - entry["high"])) > scale:
        raise TableError(
            f"scale and zero_point give [{low:.6g}, {high:.6g}], "
            f"low and high say [{entry['low']:.6g}, {entry['high']:.6g}]",
            where=place,
            do="edit one pair only, the other follows",
        )
    return {
        **entry,
        "scale": scale,
        "zero_point": zero_point,
        "low": low,
        "high": high,
        "source": "user",
        "method": "user",
    }


def _weight(name: str, entry: Any, where: str) -> WeightEntry:
    place = f"{where}: weight {name!r}"
    if not isinstance(entry, dict) or not isinstance(entry.get("scales"), list) or not entry["scales"]:
        raise TableError("has no list of scales", where=place, do="correct it, or remove the entry")
    scales = [_number(scale, "a scale", place) for scale in entry["scales"]]
    if min(scales) <= 0:
        raise TableError("scales must be finite and above 0", where=place, do="correct them")
    axis = entry.get("axis")
    if entry.get("dtype") != "int8" or isinstance(axis, bool) or not isinstance(axis, (int, type(None))):
        raise TableError('expected "dtype": "int8" and an "axis" that is an integer or null', where=place, do="mend it")
    try:
        usable = tuple(positive_scale(scale) for scale in scales)
    except Int8calError as error:
        raise TableError(error.what, where=place, do="correct it") from error
    node, tensor = (str(entry.get(key) or "") for key in ("node", "input"))
    return WeightEntry("int8", axis, str(entry.get("range")), usable, node, tensor)
