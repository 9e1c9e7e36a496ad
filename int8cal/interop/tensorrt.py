"""TensorRT's calibration cache: a header line, then `name: ` and the scale of each tensor as hex of a float32.

The scale is amax / 127; its four bytes stand in big-endian order. Names may hold colons and spaces, so a line is read
from its right end.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING

from int8cal.errors import TableError
from int8cal.interop.foreign import (
    Conversion,
    Foreign,
    correction_losses,
    named,
    require_names,
    require_new,
    symmetric,
    symmetric_losses,
    text_lines,
)
from int8cal.numerics.affine import S8, SMALLEST_SCALE, ZERO_SCALE, Affine, positive_scale
from int8cal.phrases import counted

if TYPE_CHECKING:
    from int8cal.quantization.table import CalibrationTable

HEADER = "TRT-8601-EntropyCalibration2"
_HEADER = re.compile(r"TRT-\d+-\w+")
_LINE = re.compile(r"(.+): ?([0-9a-fA-F]{1,8})[ \t]*")


def is_header(text: str) -> bool:
    """Whether a text is the first line of a cache: TRT-<version>-<calibrator>."""
    return _HEADER.fullmatch(text) is not None


def to_tensorrt(table: CalibrationTable, where: str = "table", header: str = HEADER) -> Conversion:
    """Write a table as a calibration cache.

    Args:
        table: The table.
        where: What messages call it.
        header: First line: version and calibrator, as TensorRT expects them.

    Raises:
        TableError: A name has a line break.
    """
    require_names(table.tensors, "\n\r", where, "has a line break or is empty, which a calibration cache cannot hold")
    lines = [header]
    lines += [f"{name}: {hex_of(symmetric(entry).scale)}" for name, entry in table.tensors.items()]
    losses = symmetric_losses(table.tensors) + correction_losses(table)
    if table.weights:
        losses.append(f"scales of {counted(len(table.weights), 'weight')} are left out: TensorRT computes its own")
    colons = [name for name in table.tensors if ":" in name]
    if colons:
        losses.append(
            f"{counted(len(colons), 'name has a colon', 'names have a colon')} ({named(colons)}): onnxruntime's "
            "TensorRT provider reads a name up to its first colon; give it --to onnxruntime -o calibration.flatbuffers"
        )
    losses.append("observed ranges, clipped fractions, methods and settings have no place in a cache")
    return Conversion(("\n".join(lines) + "\n").encode(), tuple(losses))


def read_tensorrt(content: bytes, where: str) -> Foreign:
    """Read a calibration cache of any version and calibrator.

    Args:
        content: The file's bytes.
        where: The file's name, for messages.

    Raises:
        TableError: It is no cache; names the line.
    """
    lines = text_lines(content, where)
    if not lines or not lines[0][1].startswith("TRT-"):
        number = lines[0][0] if lines else 1
        raise TableError(
            "is no TensorRT calibration cache: its first line is not TRT-<version>-<calibrator>",
            where=f"{where}:{number}",
            do="give the file that TensorRT or `int8cal table --to tensorrt` wrote",
        )
    tensors: dict[str, Affine] = {}
    seen: dict[str, int] = {}
    unusable, zeros = [], []
    for number, line in lines[1:]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise TableError(
                f"is {line[:60]!r}, expected a name, ': ' and up to 8 hexadecimal digits",
                where=f"{where}:{number}",
                do="correct the line",
            )
        name, scale = match[1], float_of(match[2])
        require_new(name, seen, number, where)
        if not math.isfinite(scale) or scale < 0:
            unusable.append(name)
            continue
        if scale < SMALLEST_SCALE:
            zeros.append(name)
        tensors[name] = Affine(positive_scale(scale), 0, S8)
    losses = []
    if zeros:
        losses.append(
            f"{counted(len(zeros), 'scale')} of zero or nearly so ({named(zeros)}) became {ZERO_SCALE:.3g} and "
            f"{SMALLEST_SCALE:.3g}, the smallest that a model may hold"
        )
    return Foreign(tensors, losses=tuple(losses), unusable=tuple(unusable))


def hex_of(scale: float) -> str:
    """Return the eight hexadecimal digits of a float32, big-endian."""
    return struct.pack(">f", scale).hex()


def float_of(digits: str) -> float:
    """Return the float32 of up to eight hexadecimal digits, big-endian; leading zeros may be missing."""
    return float(struct.unpack(">f", bytes.fromhex(digits.rjust(8, "0")))[0])
