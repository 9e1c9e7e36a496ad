"""The calibration tables of onnxruntime's quantizer, in the three forms that `write_calibration_table` writes.

calibration.json has both ends of each range. calibration.flatbuffers, which the TensorRT provider reads, and
calibration.cache have one number, the largest magnitude: symmetric int8. A file's suffix tells which of them it is, and
its content where the suffix is another.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

from int8cal.errors import NonFiniteError, TableError
from int8cal.interop.foreign import (
    Conversion,
    Foreign,
    correction_losses,
    json_of,
    named,
    require_names,
    require_new,
    symmetric,
    symmetric_losses,
    text_lines,
    text_of,
)
from int8cal.numerics.affine import S8, U8, Affine, affine_from_range, positive_scale
from int8cal.phrases import counted

if TYPE_CHECKING:
    from int8cal.calibration.ranges import TensorEntry
    from int8cal.quantization.table import CalibrationTable

FORMS = {".json": "json", ".flatbuffers": "flatbuffers", ".cache": "cache"}
_DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError)  # of the library, on bytes that are no table


def to_onnxruntime(table: CalibrationTable, form: str, where: str = "table") -> Conversion:
    """Write a table as onnxruntime's quantizer does.

    Args:
        table: The table.
        form: "json", "flatbuffers" or "cache".
        where: What messages call the table.

    Raises:
        TableError: The text form cannot hold a name.
    """
    losses = [] if form == "json" else symmetric_losses(table.tensors)
    if form == "json":
        content = _to_json(table.tensors)
        losses += _json_losses(table.tensors, where)
    elif form == "flatbuffers":
        content = _to_flatbuffers(table.tensors)
    else:
        require_names(table.tensors, "\n\r", where, "has a line break or is empty, which calibration.cache cannot hold")
        content = "".join(f"{name} {_amax(entry)!r}\n" for name, entry in _in_order(table.tensors)).encode()
    losses += correction_losses(table)
    if table.weights:
        losses.append(f"scales of {counted(len(table.weights), 'weight')} are left out: the reader computes its own")
    losses.append("observed ranges, clipped fractions, methods and settings have no place in the file")
    return Conversion(content, tuple(losses))


def read_onnxruntime(content: bytes, where: str, form: str | None = None) -> Foreign:
    """Read any of the three forms.

    Args:
        content: The file's bytes.
        where: Its name, for messages.
        form: As for `to_onnxruntime`; None looks at the content.

    Raises:
        TableError: It is none of them, or malformed; names the line where there are lines.
    """
    if form is None:
        braced = content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        form = "json" if braced else "flatbuffers" if b"\0" in content else "cache"
    if form == "json":
        return _from_json(text_of(content, where), where)
    if form == "flatbuffers":
        return _from_values(_flatbuffer_items(content, where))
    return _from_values(_cache_items(content, where))


def _in_order(tensors: dict[str, TensorEntry]) -> list[tuple[str, TensorEntry]]:
    return sorted(tensors.items())  # as onnxruntime sorts them


def _amax(entry: TensorEntry) -> float:
    affine = symmetric(entry)
    return affine.scale * affine.dtype.qmax


def _to_json(tensors: dict[str, TensorEntry]) -> bytes:
    def array(value: float) -> dict[str, Any]:
        return {"data": _float32(value), "dtype": "float32", "CLS": "numpy.array"}

    data = {
        name: {"lowest": array(entry.low), "highest": array(entry.high), "CLS": "TensorData"}
        for name, entry in tensors.items()
    }
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    return json.dumps({"CLS": "TensorsData", "data": data, "calibration_method": method}, allow_nan=False).encode()


def _json_losses(tensors: dict[str, TensorEntry], where: str) -> list[str]:
    read = _from_json(_to_json(tensors).decode(), where).tensors
    moved = [name for name, entry in tensors.items() if read.get(name) != entry.affine]
    if not moved:
        return []
    text = (
        f"ends of ranges are float32: {counted(len(moved), 'tensor comes', 'tensors come')} back with another scale in "
        f"the last digit, or with another type: {named(moved)}"
    )
    return [text]


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _to_flatbuffers(tensors: dict[str, TensorEntry]) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    pairs = []
    for name, entry in _in_order(tensors):
        strings = builder.CreateString(name), builder.CreateString(repr(_amax(entry)))
        builder.StartObject(2)  # KeyValue {key: string; value: string}
        for slot, string in enumerate(strings):
            builder.PrependUOffsetTRelativeSlot(slot, string, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    for pair in reversed(pairs):
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)  # TrtTable {dict: [KeyValue]}
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _flatbuffer_items(content: bytes, where: str) -> list[tuple[str, float]]:
    from flatbuffers import encode, number_types, packer, table

    def at(position: int) -> table.Table:
        return table.Table(buffer, encode.Get(packer.uoffset, buffer, position) + position)

    def text(pair: table.Table, slot: int) -> str:
        start = pair.Pos + _field(pair, slot)
        start += encode.Get(packer.uoffset, buffer, start)
        length = encode.Get(packer.uoffset, buffer, start)
        if start + 4 + length > len(buffer):
            raise ValueError
        return bytes(buffer[start + 4 : start + 4 + length]).decode("utf-8")

    buffer = bytearray(content)
    try:
        root = at(0)
        field = _field(root, 0)
        start, length = root.Vector(field), root.VectorLen(field)
        if start + 4 * length > len(buffer):
            raise ValueError
        size = number_types.UOffsetTFlags.bytewidth
        pairs = [at(start + size * position) for position in range(length)]
        items = [(text(pair, 0), float(text(pair, 1))) for pair in pairs]
    except _DAMAGE as error:
        raise TableError(
            "is no calibration table of onnxruntime's, or is damaged",
            where=where,
            do="give the calibration.json, .flatbuffers or .cache that its quantizer wrote",
        ) from error
    seen: dict[str, int] = {}
    for number, (name, _) in enumerate(items, 1):
        require_new(name, seen, number, f"{where}:entry")
    return items


def _field(table: Any, slot: int) -> int:
    """Return where a field of a table lies; the schema's fields are all there in a file of onnxruntime's."""
    if not 0 <= table.Pos < len(table.Bytes):
        raise ValueError
    offset = int(table.Offset(4 + 2 * slot))
    if not offset:
        raise ValueError
    return offset


def _cache_items(content: bytes, where: str) -> list[tuple[str, float]]:
    items = []
    seen: dict[str, int] = {}
    for number, line in text_lines(content, where):
        name, separator, value = line.rstrip().rpartition(" ")
        try:
            items.append((name, float(value)))
        except ValueError:
            separator = ""
        if not separator or not name:
            raise TableError(
                f"is {line[:60]!r}, expected a name, a space and a number",
                where=f"{where}:{number}",
                do="give the calibration.json, .flatbuffers or .cache that onnxruntime's quantizer wrote",
            )
        require_new(name, seen, number, where)
    if not items:
        raise TableError("is empty", where=f"{where}:1", do="give a calibration table")
    return items


def _from_values(items: list[tuple[str, float]]) -> Foreign:
    tensors, unusable = {}, []
    for name, value in items:
        try:
            tensors[name] = Affine(positive_scale(value / S8.qmax if value >= 0 else math.nan), 0, S8)
        except NonFiniteError:
            unusable.append(name)
    loss = (
        "the file has one number per tensor; where onnxruntime's quantizer wrote it, it is the upper end of the range, "
        "even where the lower one is larger: read calibration.json, which has both"
    )
    return Foreign(tensors, losses=(loss,), unusable=tuple(unusable))


def _from_json(text: str, where: str) -> Foreign:
    document = json_of(text, where)
    data = document
    if isinstance(document, dict) and document.get("CLS") == "TensorsData":  # older tables have the tensors at the top
        data = document.get("data")
    if not isinstance(data, dict) or not data:
        raise TableError("names no tensors", where=where, do="give the calibration.json of onnxruntime's quantizer")
    tensors, unusable = {}, []
    for name, entry in data.items():
        low, high = _ends(name, entry, where)
        try:
            # only a range that was made symmetric is so to the last bit
            symmetrical = low == -high
            tensors[name] = affine_from_range(low, high, S8 if symmetrical else U8, symmetric=symmetrical)
        except NonFiniteError:
            unusable.append(name)
    return Foreign(tensors, unusable=tuple(unusable))


def _ends(name: str, entry: Any, where: str) -> tuple[float, float]:
    if isinstance(entry, dict):
        entry = [entry.get("lowest"), entry.get("highest")]
    if not isinstance(entry, list) or len(entry) < 2:
        raise TableError(
            f"tensor {name!r} has no lowest and highest", where=where, do="compute ranges (MinMax, Entropy, Percentile)"
        )
    return _number(name, entry[0], where), _number(name, entry[1], where)


def _number(name: str, value: Any, where: str) -> float:
    if isinstance(value, dict):
        value = value.get("data")
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        many = isinstance(value, list) and len(value) > 1
        raise TableError(
            f"tensor {name!r} has {'a range per channel' if many else repr(value)[:40]}, expected a number",
            where=where,
            do="calibrate without per_channel" if many else "correct it",
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf
