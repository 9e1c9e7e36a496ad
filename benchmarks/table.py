"""Figures as text: medians with their spread, and markdown tables whose columns line up in a terminal too."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, with the smallest and the largest, or the ends of their middle half."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def middle_half(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value by its median and quartiles."""
        low, median, high = np.percentile(values, (25, 50, 75))
        return cls(float(median), float(low), float(high))

    def text(self, digits: int = 2) -> str:
        """Write "1.23 (1.20..1.31)"."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


def optional(value: float | None, digits: int = 0) -> str:
    """Write a number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a markdown table; the first column is text, all others are figures and stand to the right.

    Args:
        header: Column titles.
        rows: Cells, as many per row as there are titles; a "|" in a cell is escaped.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    lines = [
        "| "
        + " | ".join(_pad(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in cells
    ]
    rule = "|".join(
        "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":" for column, width in enumerate(widths)
    )
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)
