"""What crosses between int8cal's table and the files of other runtimes, and how both are read line by line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from int8cal.errors import TableError, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from int8cal.calibration.table import CalibrationTable, WeightEntry
    from int8cal.numerics.affine import Affine


@dataclass(frozen=True)
class Conversion:
    """A converted table.

    Attributes:
        content: Bytes of the file.
        losses: What the file cannot say, or says otherwise; one sentence each, for people.
        table: The table, where `content` is one of int8cal's.
    """

    content: bytes
    losses: tuple[str, ...]
    table: CalibrationTable | None = None


@dataclass(frozen=True)
class Foreign:
    """What a file of another runtime says.

    Attributes:
        tensors: Activation tensor -> its quantization.
        weights: Weight entries by int8cal's key, where the file has them.
        settings: What the file says of settings.
        losses: As in Conversion.
        unusable: Tensors whose numbers are no range (NaN, infinite, negative).
    """

    tensors: dict[str, Affine]
    weights: dict[str, WeightEntry] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        TableError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise TableError(f"cannot be read ({reason_of(error)})", where=str(path), do="give an existing file") from error


def text_of(content: bytes, where: str) -> str:
    """Decode UTF-8.

    Raises:
        TableError: It is none; names the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise TableError(
            "is not UTF-8 text", where=f"{where}:{line}", do="give a file in the format that --from names"
        ) from error


def json_of(text: str, where: str) -> Any:
    """Parse JSON.

    Raises:
        TableError: It is none; names the line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"is not JSON ({error.msg})", where=f"{where}:{error.lineno}", do="mend the line") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise TableError(f"cannot be parsed ({type(error).__name__})", where=where, do="write it again") from error


def text_lines(content: bytes, where: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, without their ends, and their numbers from 1.

    Only line feeds end a line, after a carriage return or not: names may hold any other character.
    """
    lines = (line.removesuffix("\r") for line in text_of(content, where).split("\n"))
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def words_of(line: str) -> list[str]:
    """Split a line at blanks and tabs alone: names may hold other characters that count as white space."""
    return [word for word in line.replace("\t", " ").split(" ") if word]


def require_new(name: str, seen: dict[str, int], line: int, where: str) -> None:
    """Note the line of a name.

    Raises:
        TableError: It was there before.
    """
    if name in seen:
        raise TableError(f"{name!r} is on line {seen[name]} already", where=f"{where}:{line}", do="remove one of them")
    seen[name] = line


def named(names: Iterable[str], most: int = 3) -> str:
    """Name the first few of many, for messages."""
    every = list(names)
    text = ", ".join(repr(name) for name in every[:most])
    return f"{text} and {len(every) - most} more" if len(every) > most else text


def counted(number: int, singular: str, plural: str = "") -> str:
    """Write a number with its noun."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
