"""FakeQuantize parameters as JSON: input_low, input_high, output_low, output_high and levels of each tensor.

{"format": "int8cal/fakequantize", "version": 1, "tensors": {NAME: {the five}}, "weights": {KEY: {"axis", "range", the
five, ends as lists}}}. "dtype" beside them tells int8 from uint8 with zero point 128, which is the same operation;
scale and zero point are there for people, and are not read.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from int8cal.errors import Int8calError, TableError
from int8cal.interop.foreign import (
    Conversion,
    Foreign,
    correction_losses,
    json_of,
    named,
    text_of,
)
from int8cal.job import WeightRange
from int8cal.numerics.affine import S7, S8, positive_scale
from int8cal.numerics.fakequantize import (
    FakeQuantize,
    Nudged,
    affine_of,
    fakequantize_of,
    fakequantize_of_weights,
)
from int8cal.phrases import counted
from int8cal.quantization.table import WeightEntry
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.numerics.affine import Affine
    from int8cal.quantization.table import CalibrationTable

FORMAT, VERSION = "int8cal/fakequantize", 1
_ENDS = ("input_low", "input_high", "output_low", "output_high")
# settings that decide how weights are computed, and their values
_KEPT: dict[str, tuple[str, ...]] = {"target": tuple(TARGETS), "weights": get_args(WeightRange)}


def weight_operations(entry: WeightEntry) -> list[FakeQuantize]:
    """Return the FakeQuantize of each output channel: 255 levels around 0, or 128 for codes -64..63."""
    return [fakequantize_of_weights(scale, S7 if entry.range == "s7" else S8) for scale in entry.scales]


def to_openvino(table: CalibrationTable) -> Conversion:
    """Write a table's FakeQuantize parameters."""
    tensors = {
        name: {
            **asdict(fakequantize_of(entry.affine)),
            "scale": entry.scale,
            "zero_point": entry.zero_point,
            "dtype": entry.dtype,
        }
        for name, entry in table.tensors.items()
    }
    weights = {}
    for key, entry in table.weights.items():
        operations = weight_operations(entry)
        ends = {end: [getattr(each, end) for each in operations] for end in _ENDS}
        weights[key] = {"axis": entry.axis, "range": entry.range, **ends, "levels": operations[0].levels}
    recorded = table.settings.recorded
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": table.model,
        "settings": {key: recorded[key] for key in _KEPT if key in recorded},
        "tensors": tensors,
        "weights": weights,
    }
    losses = correction_losses(table)
    if any(entry.range == "paired" for entry in table.weights.values()):
        losses.append(
            "that neighbouring weights are safe together (paired) is left out: a FakeQuantize rounds each by itself"
        )
    losses.append("observed ranges, clipped fractions and methods have no place among FakeQuantize parameters")
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return Conversion(text.encode("utf-8", "surrogatepass"), tuple(losses))


def read_openvino(content: bytes, where: str) -> Foreign:
    """Read FakeQuantize parameters, from int8cal or written by hand.

    Ranges whose zero point is no integer are nudged until it is; the losses say so for each.

    Raises:
        TableError: The file is malformed, or an operation is no pair of Q and DQ on 8 bits.
    """
    document = json_of(text_of(content, where), where)
    if not isinstance(document, dict) or not isinstance(document.get("tensors"), dict):
        raise TableError(f'has no "tensors" (format {FORMAT})', where=where, do="give FakeQuantize parameters as JSON")
    operations, signed = {}, set()
    for name, entry in document["tensors"].items():
        operations[name] = _operation(entry, f"{where}: tensor {name!r}")
        if entry.get("dtype") == "int8":
            signed.add(name)
    tensors, losses = _affines(operations, signed, where)
    given = document.get("weights", {})
    _require_object(given, where, '"weights" ')
    weights = {key: _weight(entry, f"{where}: weight {key!r}") for key, entry in given.items()}
    return Foreign(tensors, weights, _settings(document.get("settings", {}), where), tuple(losses))


def foreign_model(operations: Mapping[str, FakeQuantize], covered: Sequence[str], where: str) -> Foreign:
    """Say what the FakeQuantize operations of a model of OpenVINO's are, as `runtime.openvino` reads them.

    Args:
        operations: By tensor name.
        covered: Tensors that had a range per channel.
        where: The model, for messages.

    Raises:
        TableError: There are none, or one is no pair of Q and DQ on 8 bits.
    """
    if not operations:
        raise TableError("has no FakeQuantize operation at a named tensor", where=where, do="give a quantized model")
    tensors, losses = _affines(operations, set(), where)
    if covered:
        losses.append(
            f"{counted(len(covered), 'tensor')} with a range per channel got one that covers all: {named(covered)}"
        )
    return Foreign(tensors, losses=tuple(losses))


def _affines(
    operations: Mapping[str, FakeQuantize], signed: set[str], where: str
) -> tuple[dict[str, Affine], list[str]]:
    """Return the affine of each tensor, and a sentence for each range that was nudged, after one that counts them."""
    tensors: dict[str, Affine] = {}
    losses = []
    for name, operation in operations.items():
        nudged = _nudged(operation, f"{where}: tensor {name!r}", signed=name in signed)
        tensors[name] = nudged.affine
        if nudged.changed:
            (low, high), (lower, higher) = nudged.before, nudged.after
            losses.append(
                f"tensor {name!r}: [{low:.6g}, {high:.6g}] became [{lower:.6g}, {higher:.6g}], so that its zero point "
                f"is the integer {nudged.affine.zero_point}"
            )
    if losses:
        losses.insert(0, f"{counted(len(losses), 'range')} nudged to an integer zero point")
    return tensors, losses


def _settings(settings: Any, where: str) -> dict[str, object]:
    _require_object(settings, where, '"settings" ')
    for key, known in _KEPT.items():
        if key in settings and settings[key] not in known:
            raise TableError(
                f"settings.{key} is {settings[key]!r}, expected {' or '.join(known)}", where=where, do="correct it"
            )
    return {key: settings[key] for key in _KEPT if key in settings}


def _nudged(operation: FakeQuantize, place: str, *, signed: bool) -> Nudged:
    try:
        return affine_of(operation, signed=signed)
    except Int8calError as error:
        raise TableError(error.what, where=place, do="correct it") from error
    except ValueError as error:
        raise TableError(str(error), where=place, do="correct it; int8cal has 8-bit pairs of Q and DQ only") from error


def _operation(entry: Any, place: str) -> FakeQuantize:
    _require_object(entry, place)
    low, high, output_low, output_high = (_number(entry.get(end), end, place) for end in _ENDS)
    return FakeQuantize(low, high, output_low, output_high, _levels(entry, place))


def _weight(entry: Any, place: str) -> WeightEntry:
    _require_object(entry, place)
    axis, levels = entry.get("axis"), _levels(entry, place)
    if isinstance(axis, bool) or not isinstance(axis, (int, type(None))):
        raise TableError(f"axis is {axis!r}, expected an integer or null", where=place, do="correct it")
    if levels not in (128, 255):
        raise TableError(f"levels is {levels}, expected 255, or 128 for codes -64..63", where=place, do="correct it")
    lists = [entry.get(end) for end in _ENDS]
    if not all(isinstance(each, list) and each for each in lists) or len({len(each or ()) for each in lists}) > 1:
        raise TableError("its four ends are not lists of one length", where=place, do="correct them")
    highest, lowest = (63, -64) if levels == 128 else (127, -127)
    scales = []
    for low, high in zip(lists[0] or (), lists[1] or (), strict=True):
        scale = _number(high, "input_high", place) / highest
        if scale <= 0 or abs(_number(low, "input_low", place) - lowest * scale) > 1e-3 * scale:
            raise TableError(f"[{low}, {high}] is not symmetric around 0", where=place, do="correct it")
        scales.append(positive_scale(scale))
    codes = entry.get("range")
    default = "s7" if levels == 128 else "s8"
    return WeightEntry("int8", axis, codes if codes in ("s8", "s7", "paired") else default, tuple(scales))


def _require_object(value: Any, place: str, key: str = "") -> None:
    if not isinstance(value, dict):
        raise TableError(f"{key}is {str(value)[:40]}, expected an object", where=place, do="correct it")


def _levels(entry: dict[str, Any], place: str) -> int:
    levels = entry.get("levels")
    if isinstance(levels, bool) or not isinstance(levels, int):
        raise TableError(f"levels is {levels!r}, expected a whole number", where=place, do="correct it")
    return levels


def _number(value: Any, key: str, place: str) -> float:
    # a float compares with integers of any size, which float() does not take
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 3.5e38:
        raise TableError(f"{key} is {str(value)[:40]}, expected a finite number", where=place, do="correct it")
    return float(value)
