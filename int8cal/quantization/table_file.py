"""The calibration table on disk: JSON that a person may edit."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from dataclasses import asdict, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from int8cal.calibration.ranges import TYPES, TensorEntry
from int8cal.errors import Int8calError, TableError
from int8cal.graph.embeddings import EmbeddingForm
from int8cal.graph.layers import KernelForm, LayerForm
from int8cal.io.atomic import atomic_write
from int8cal.io.paths import require_readable
from int8cal.job import ActivationType
from int8cal.numerics.affine import U16, Affine, affine_from_range, positive_scale
from int8cal.numerics.weights import WEIGHT_TYPES
from int8cal.quantization.corrections import CORRECTIONS
from int8cal.quantization.corrections.correction import UnknownCorrection, read_number
from int8cal.quantization.table import LEFT, CalibrationTable, TableSettings, WeightEntry
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    from int8cal.quantization.corrections import Correction
    from int8cal.quantization.table import TableData

FORMAT, VERSION = "int8cal/table", 1
_CHOSEN = ("scale", "zero_point", "low", "high")
_KEYS = (*(field.name for field in fields(TensorEntry)), "calibrated")


def table_to_json(table: CalibrationTable) -> str:
    """Return the table as JSON text: floats round-trip, keys in a fixed order, one line per weight's scales."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        **({"run": table.run} if table.run else {}),
        "model": table.model,
        "data": table.data,
        "settings": dict(table.settings.recorded),
        **_numbers(table),
        "warnings": list(table.warnings),
    }
    if table.bodies:
        document["bodies"] = {
            path: {"data": each.data, "settings": each.settings.of_graph, **_numbers(each)}
            for path, each in table.bodies.items()
        }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _numbers(table: CalibrationTable) -> dict[str, object]:
    """Write the entries and corrections of one graph."""
    tensors = {}
    for name, entry in table.tensors.items():
        fields = asdict(entry)
        # what calibration chose, so that an edit can be told from it
        fields["calibrated"] = {key: fields[key] for key in _CHOSEN}
        tensors[name] = fields
    return {
        "tensors": tensors,
        "weights": {
            name: {key: value for key, value in asdict(entry).items() if value != ""}
            for name, entry in table.weights.items()
        },
        "corrections": {each.key: each.to_json() for each in table.corrections},
    }


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
        document = json.loads(text, object_pairs_hook=partial(_each_once, where=where))
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
        settings = _settings(_object(document["settings"], "settings", where), where)
        table = CalibrationTable(
            _object(document["model"], "model", where),
            cast("TableData", _object(document["data"], "data", where)),
            settings,
            *_parts(document, settings, where),
            tuple(document.get("warnings", ())),
            str(document.get("run", "")),
        )
        bodies = {}
        for path, part in _object(document.get("bodies", {}), "bodies", where).items():
            place = f"{where}: body {path!r}"
            own = _settings(_object(part.get("settings", {}), "settings", place), place).of_graph
            data = cast("TableData", _object(part.get("data", {}), "data", place))
            inside = settings.for_body(own)
            bodies[path] = CalibrationTable(table.model, data, inside, *_parts(part, inside, place))
        _require_finite(document, where)  # what none of the parts looked at goes on into other files
        return replace(table, bodies=bodies) if bodies else table
    except KeyError as error:
        raise TableError(f"has no {error.args[0]!r} part", where=where, do="calibrate again") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise TableError(f"is malformed ({error})", where=where, do="calibrate again") from error


def _each_once(pairs: list[tuple[str, Any]], *, where: str) -> dict[str, Any]:
    """Make an object of JSON of its keys and values; of a key that is there twice an edit would be lost.

    Raises:
        TableError: Names the key.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise TableError(f'key "{twice}" is given twice', where=where, do="keep one of them")
    return made


def _require_finite(document: object, where: str) -> None:
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (dict, list)):
            waiting.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, float) and not math.isfinite(each):
            raise TableError(f"holds {each}, which is no number of JSON", where=where, do="correct it")


def _object(content: Any, key: str, where: str) -> dict[str, Any]:
    _require(isinstance(content, dict), f"{key} is {str(content)[:40]}, expected an object", where)
    return dict(content)


def _parts(
    content: dict[str, Any], settings: TableSettings, where: str
) -> tuple[dict[str, TensorEntry], dict[str, WeightEntry], tuple[Correction, ...]]:
    """Read the entries and corrections of one graph."""
    entries, scales = (_object(content[key], key, where) for key in ("tensors", "weights"))
    tensors = {name: _tensor(name, entry, where) for name, entry in entries.items()}
    weights = {name: _weight(name, entry, where) for name, entry in scales.items()}
    wide = next((name for name, entry in tensors.items() if TYPES[entry.dtype] is U16), None)
    _require(
        wide is None or settings.activations == "u16",
        f"tensor {wide!r}: dtype is 'uint16', and settings.activations is {settings.activations!r}",
        where,
        "calibrate with --activations u16, which raises the model's opset as these codes need it",
    )
    return tensors, weights, _corrections(_object(content.get("corrections", {}), "corrections", where), where)


def _require(sound: object, what: str, where: str, do: str = "correct it") -> None:
    if not sound:
        raise TableError(what, where=where, do=do)


def _settings(result: dict[str, Any], where: str) -> TableSettings:
    def require(key: str, expected: str, sound: object, do: str = "correct it") -> None:
        _require(sound, f"settings.{key} is {result.get(key)!r}, expected {expected}", where, do)

    for key in ("include", "exclude"):
        patterns = result.get(key, [])
        require(
            key, "a list of patterns", isinstance(patterns, list) and all(isinstance(each, str) for each in patterns)
        )
    for key in (*LEFT, "recurrent_float"):
        left = result.get(key, {})
        sound = isinstance(left, dict) and all(isinstance(why, str) for why in left.values())
        require(key, "node names with reasons", sound)
    advice = "correct it; a node that is left out stays float"
    static = "correct it; a layer that is left out is static"
    for key, known_forms, do in (
        ("recurrent", get_args(KernelForm), advice),
        ("embeddings", get_args(EmbeddingForm), advice),
        ("forms", get_args(LayerForm), static),
    ):
        forms = result.get(key, {})
        sound = isinstance(forms, dict) and all(form in known_forms for form in forms.values())
        require(key, f"node names with {' or '.join(known_forms)}", sound, do)
    only = result.get("weights_only")
    patterns = isinstance(only, list) and all(isinstance(each, str) for each in only)
    sound = only is None or isinstance(only, bool) or patterns
    require("weights_only", "true, false, null or a list of patterns", sound)
    for key, known in (("weights", WEIGHT_TYPES), ("target", TARGETS), ("activations", get_args(ActivationType))):
        value = result.get(key)
        require(key, " or ".join(known), key not in result or (isinstance(value, str) and value in known))
    return TableSettings(result)


def _corrections(corrections: dict[str, Any], where: str) -> tuple[Correction, ...]:
    kinds = {kind.key: kind for kind in CORRECTIONS}
    return tuple(
        kinds[key].read(content, where) if key in kinds else UnknownCorrection.read(content, key)
        for key, content in corrections.items()
    )


def _tensor(name: str, entry: Any, where: str) -> TensorEntry:
    place = f"{where}: tensor {name!r}"
    _require(isinstance(entry, dict), f"is {entry!r}, expected an object", place)
    unknown = next((key for key in entry if key not in _KEYS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, _KEYS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(_KEYS)}"
        raise TableError(f"has an unknown key {unknown!r}", where=place, do=hint)
    dtype = entry.get("dtype")
    known = isinstance(dtype, str) and dtype in TYPES
    _require(known, f"dtype is {dtype!r}, expected one of {sorted(TYPES)}", place)
    for key in _CHOSEN:
        read_number(entry.get(key), key, place)
    entry = _resolve_edit(entry, place)
    observed = entry.get("observed", [entry["low"], entry["high"]])
    pair = isinstance(observed, list) and len(observed) == 2
    _require(pair, f"observed is {observed!r}, expected [min, max]", place)
    amax = entry.get("amax", max(abs(entry["low"]), abs(entry["high"])))
    return TensorEntry(
        dtype=dtype,
        scale=float(entry["scale"]),
        zero_point=int(entry["zero_point"]),
        low=float(entry["low"]),
        high=float(entry["high"]),
        method=str(entry.get("method", "user")),
        amax=read_number(amax, "amax", place),
        observed=(read_number(observed[0], "observed", place), read_number(observed[1], "observed", place)),
        clipped=read_number(entry.get("clipped", 0.0), "clipped", place),
        source=str(entry.get("source", "user")),
    )


def _resolve_edit(entry: dict[str, Any], place: str) -> dict[str, Any]:
    calibrated = entry.get("calibrated")
    dtype = TYPES[entry["dtype"]]
    code = entry["zero_point"]
    whole = dtype.qmin <= code <= dtype.qmax and code == int(code)
    _require(whole, f"zero_point is {code}, expected an integer in [{dtype.qmin}, {dtype.qmax}]", place)
    _require(entry["scale"] > 0, f"scale is {entry['scale']}, expected a number above 0", place)
    if calibrated is None:
        calibrated, changed_codes, changed_range = {}, True, True
    else:
        changed_codes = any(entry[key] != calibrated.get(key) for key in ("scale", "zero_point"))
        changed_range = any(entry[key] != calibrated.get(key) for key in ("low", "high"))
    if not changed_codes and not changed_range:
        stated = Affine(entry["scale"], code, dtype)
        _require(
            max(abs(stated.low - entry["low"]), abs(stated.high - entry["high"])) < 2 * entry["scale"],
            f"{entry['dtype']} codes of its scale and zero_point are [{stated.low:.6g}, {stated.high:.6g}], "
            f"low and high say [{entry['low']:.6g}, {entry['high']:.6g}]",
            place,
            "give dtype as calibration chose it, or calibrate with --activations",
        )
        return entry
    ordered = entry["low"] <= entry["high"]
    _require(ordered, f"low {entry['low']} is above high {entry['high']}", place, "swap them")
    empty = entry["low"] == entry["high"] == 0 and not changed_codes
    _require(not empty, "low and high are both 0, which is no range", place, "give one that holds values")
    try:
        if changed_codes:
            affine = Affine(positive_scale(entry["scale"]), int(entry["zero_point"]), dtype)
        else:
            affine = affine_from_range(
                entry["low"], entry["high"], dtype, symmetric=dtype.qmin < 0 and calibrated["zero_point"] == 0
            )
    except Int8calError as error:
        raise TableError(error.what, where=place, do="correct it") from error
    away = max(abs(affine.low - entry["low"]), abs(affine.high - entry["high"]))
    if changed_codes and changed_range and away > affine.scale:
        raise TableError(
            f"scale and zero_point give [{affine.low:.6g}, {affine.high:.6g}], "
            f"low and high say [{entry['low']:.6g}, {entry['high']:.6g}]",
            where=place,
            do="edit one pair only, the other follows",
        )
    return {**entry, **{key: getattr(affine, key) for key in _CHOSEN}, "source": "user", "method": "user"}


def _weight(name: str, entry: Any, where: str) -> WeightEntry:
    place = f"{where}: weight {name!r}"
    scaled = isinstance(entry, dict) and isinstance(entry.get("scales"), list) and entry["scales"]
    _require(scaled, "has no list of scales", place, "correct it, or remove the entry")
    scales = [read_number(scale, "a scale", place) for scale in entry["scales"]]
    _require(min(scales) > 0, "scales must be finite and above 0", place, "correct them")
    axis = entry.get("axis")
    symmetric = entry.get("dtype") == "int8" and (axis is None or type(axis) is int)
    _require(symmetric, 'expected "dtype": "int8" and an "axis" that is an integer or null', place, "mend it")
    try:
        usable = tuple(positive_scale(scale) for scale in scales)
    except Int8calError as error:
        raise TableError(error.what, where=place, do="correct it") from error
    node, tensor = (str(entry.get(key) or "") for key in ("node", "input"))
    return WeightEntry("int8", axis, str(entry.get("range")), usable, node, tensor)
