"""What crosses between int8cal's table and the files of other runtimes, how those are read, and what is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from int8cal.errors import TableError, reason_of
from int8cal.io.paths import require_no_device
from int8cal.numerics.affine import S8, Affine, positive_scale
from int8cal.phrases import counted, some
from int8cal.quantization.corrections import CORRECTIONS, Equalization, Uint8Input

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from int8cal.calibration.ranges import TensorEntry
    from int8cal.quantization.table import CalibrationTable, WeightEntry


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
    require_no_device(path, TableError, "give an existing file")
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


def named(names: Iterable[str]) -> str:
    """Name the first three of many, for messages."""
    return some(map(repr, names), 3)


def rescaled_tensors(table: CalibrationTable) -> list[str]:
    """Name the tensors whose channels a recipe rescaled."""
    return [name for name, exponents in Equalization.of(table).values.items() if any(exponents)]


def require_unscaled(table: CalibrationTable, where: str) -> None:
    """Refuse a table whose ranges are for a changed model.

    Raises:
        TableError: Its recipe rescaled channels, or its input is raw pixels.
    """
    rescaled = rescaled_tensors(table)
    if rescaled:
        raise TableError(
            f"its recipe rescaled the channels of {counted(len(rescaled), 'tensor')} ({named(rescaled)}), so its "
            "ranges are not those of the FP32 model that another runtime runs",
            where=where,
            do="give --model with the FP32 model, so that the ranges can be taken back to it",
        )
    if Uint8Input.of(table):
        raise TableError(
            "its model takes raw pixels (uint8_input), another runtime runs the FP32 model",
            where=where,
            do="calibrate without --uint8-input for this",
        )


def correction_losses(table: CalibrationTable) -> list[str]:
    """Say which corrections of a recipe are left out, and which layers the ranges are not for."""
    losses = [kind.lost for kind in CORRECTIONS if kind.lost and kind.of(table)]
    if table.settings.forms:
        count = counted(len(table.settings.forms), "layer has", "layers have")
        losses.append(f"{count} no calibrated range (settings.forms): the other runtime has none for their inputs")
    return losses


def symmetric(entry: TensorEntry) -> Affine:
    """Return the symmetric int8 quantization that covers an entry's range: scale = max(|low|, |high|) / 127."""
    if entry.dtype == "int8" and entry.zero_point == 0:
        return Affine(entry.scale, 0, S8)
    return Affine(positive_scale(max(abs(entry.low), abs(entry.high)) / S8.qmax), 0, S8)


def symmetric_losses(entries: dict[str, TensorEntry]) -> list[str]:
    """Say how many tensors become symmetric, and how much coarser their steps get in the worst case."""
    ratios = {
        name: symmetric(entry).scale / entry.scale
        for name, entry in entries.items()
        if entry.zero_point or entry.dtype != "int8"
    }
    if not ratios:
        return []
    worst = max(ratios, key=lambda name: ratios[name])
    verb = "becomes" if len(ratios) == 1 else "become"
    before, after = entries[worst], symmetric(entries[worst])
    text = (
        f"{len(ratios)} of {counted(len(entries), 'tensor')} {verb} symmetric int8 without a zero point; their steps "
        f"grow up to {ratios[worst]:.3g} times (worst: {worst!r}, [{before.low:.5g}, {before.high:.5g}] becomes "
        f"[{after.low:.5g}, {after.high:.5g}])"
    )
    return [text]


def require_names(names: Iterable[str], bad: str, where: str, why: str) -> None:
    """Refuse names that a format cannot hold.

    Args:
        names: The names.
        bad: Characters that no name may have.
        where: The table.
        why: What the format does with them.

    Raises:
        TableError: Names the first.
    """
    for name in names:
        if any(character in name for character in bad) or not name:
            raise TableError(f"name {name!r} {why}", where=where, do="rename it in the model, and calibrate again")
