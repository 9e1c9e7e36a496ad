"""What a table loses on its way to another runtime, as sentences; and tables that cannot go there at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.errors import TableError
from int8cal.interop.foreign import counted, named
from int8cal.numerics.affine import S8, Affine, positive_scale

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.calibration.table import CalibrationTable, TensorEntry

_CORRECTIONS = {
    "bias": ("bias", "es", "corrected biases are left out: the other runtime adds those of the FP32 model"),
    "rounding": ("", "", "the codes that rounding chose are left out: the other runtime rounds weights by itself"),
    "remainder": ("", "", "second planes of inputs are left out: the other runtime has one code per value"),
}


def rescaled_tensors(table: CalibrationTable) -> list[str]:
    """Name the tensors whose channels a recipe rescaled."""
    return [name for name, exponents in table.corrections.get("equalization", {}).items() if any(exponents)]


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
    if table.corrections.get("uint8_input"):
        raise TableError(
            "its model takes raw pixels (uint8_input), another runtime runs the FP32 model",
            where=where,
            do="calibrate without --uint8-input for this",
        )


def correction_losses(table: CalibrationTable) -> list[str]:
    """Say which corrections of a recipe are left out."""
    return [text for part, (_, _, text) in _CORRECTIONS.items() if table.corrections.get(part)]


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
