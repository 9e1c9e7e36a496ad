"""What a terminal can show, and bars that fit it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeVar

from int8cal.errors import printable
from int8cal.phrases import counted
from int8cal.report import wording

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

Sort = Literal["worst", "order", "name"]
ItemT = TypeVar("ItemT")

_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_HEIGHTS_ASCII = " .:-=+*#@"
# what int8cal itself writes beyond ASCII; names of tensors may hold anything
_ASCII = str.maketrans({"…": "~", "×": "x", "µ": "u", "·": "-", "█": "#", "\N{REPLACEMENT CHARACTER}": "?"})  # noqa: RUF001
# beside fewer columns than these a name gets a line of its own
_ROOM_OF_NAME = 16
# columns that a text in the last column of a table has at least
_ROOM_OF_TEXT = 12
_PAINT = re.compile(r"\x1b\[[0-9;]*m")
_COLOURS = {"fair": "33", "poor": "31", "soft": "2", "strong": "1", "good": "32"}


@dataclass(frozen=True)
class Screen:
    """How to show lines.

    Attributes:
        width: Columns.
        blocks: Whether block characters can be written; else bars are of ASCII.
        colour: Whether escape sequences may be written.
        rows: Most rows of a list, None for all.
        every: Whether nodes with one reason are listed one by one, as who asked for every row wants them.
        whole_names: Whether names are written whole, however long; for files and pipes, where they are searched.
        sort: Order of lists, "" for the usual one of a file.
        only: Glob that names have to match, "" for all.
    """

    width: int = 100
    blocks: bool = True
    colour: bool = False
    rows: int | None = None
    every: bool = False
    whole_names: bool = False
    sort: Sort | Literal[""] = ""
    only: str = ""

    @property
    def narrow(self) -> bool:
        """Whether columns have to be left out of wide lists, for the sake of the names."""
        return self.width < 110 and not self.whole_names

    @property
    def bar_width(self) -> int:
        """Columns of a bar: about a quarter of the screen."""
        return min(max(self.width * 24 // 100, 8), 40)

    def paint(self, text: str, band: str) -> str:
        """Colour a text, where there is colour and the band has one; the text itself says it too."""
        code = _COLOURS.get(band)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text.strip() else text

    def plain(self, text: str) -> str:
        """Write a text with what the terminal has: block characters as ASCII, and other characters as escapes."""
        return text if self.blocks else text.translate(_ASCII).encode("ascii", "backslashreplace").decode()

    def bar(self, share: float, width: int | None = None) -> str:
        """Draw a share of 0 to 1 from the left, padded to its full width."""
        columns = width or self.bar_width
        share = min(max(share, 0.0), 1.0)
        if not self.blocks:
            return f"{'#' * round(share * columns):{columns}}"
        full, part = divmod(round(share * columns * 8), 8)
        return f"{'█' * full + (_EIGHTHS[part] if part else ''):{columns}}"

    def part(self, low: float, high: float, width: int | None = None, middle: float | None = None) -> str:
        """Draw where a part from low to high lies in a whole of 0 to 1, with a mark in it; at least one column.

        What lies outside, at infinity even, ends at the edge; a NaN is 0.
        """
        columns = width or self.bar_width
        inside, outside, mark = ("━", "·", "┿") if self.blocks else ("=", ".", "|")
        low, high = (min(max(0.0, each), 1.0) for each in (low, high))  # in this order, which takes NaN for 0
        first = min(round(low * columns), columns - 1)
        last = max(round(high * columns), first + 1)
        cells = [outside] * first + [inside] * (last - first) + [outside] * (columns - last)
        if middle is not None:
            cells[min(max(round(middle * columns - 0.5), first), last - 1)] = mark
        return "".join(cells)

    def sparkline(self, shares: Sequence[float]) -> str:
        """Draw one character per share of 0 to 1; what is not nothing shows."""
        heights = _HEIGHTS if self.blocks else _HEIGHTS_ASCII
        return "".join(heights[0 if share <= 0 else max(1, round(8 * min(share, 1.0)))] for share in shares)

    def name(self, text: str, used: int) -> str:
        """Fit a name behind columns that are used already, or into a line of its own; its end tells names apart."""
        shown = printable(text)
        room = self.width - used
        return (
            shown if self.whole_names else wording.shortened(shown, room if room >= _ROOM_OF_NAME else self.width - 4)
        )

    def chosen(
        self, items: Sequence[ItemT], name: Callable[[ItemT], str], worst: Callable[[ItemT], float]
    ) -> list[ItemT]:
        """Pick and order the items of a list.

        Args:
            items: In the file's order.
            name: Of an item, for the glob and for the order by name.
            worst: Sorts the worst first.
        """
        found = [item for item in items if not self.only or fnmatchcase(name(item), self.only)]
        if self.sort == "name":
            found.sort(key=name)
        elif self.sort == "worst":
            found.sort(key=worst)
        return found

    def wrap(self, line: str, hang: int) -> list[str]:
        """Break a line that is longer than the terminal is wide, between words; whole where nobody looks at a width.

        Args:
            line: Of words; colours take no columns. A word that is longer than a line is broken.
            hang: Columns that further lines begin with, where that leaves enough for the text.
        """
        if self.whole_names or _columns(line) <= self.width:
            return [line]
        indent = " " * min(hang, max(self.width // 2, self.width - _ROOM_OF_TEXT))
        lines = [""]
        for word in re.findall(r"\s*\S+", line):
            if _columns(lines[-1] + word) <= self.width:
                lines[-1] += word
                continue
            if lines[-1].strip():
                lines.append(indent)
            left = word.lstrip()
            if _columns(indent + left) > self.width:
                for character in _PAINT.sub("", left):
                    if _columns(lines[-1] + character) > self.width:
                        lines.append(indent)
                    lines[-1] += character
            else:
                lines[-1] += left
        return lines

    def holds(self, lines: Sequence[str]) -> bool:
        """Whether the lines fit without a break; where nobody looks at a width they always do."""
        return self.whole_names or all(_columns(line) <= self.width for line in lines)

    def table(
        self, rows: Sequence[Sequence[str]], what: str = "", *, right: Collection[int] = (), name: int = 0
    ) -> list[str]:
        """Write a table, see `Columns`.

        Args:
            rows: Of equal length; the first has the heads, and its first cell is the table's own name, "" for none.
            what: What a row is, where there may be more of them than the screen takes.
            right, name: As for `Columns`.
        """
        shown = [[printable(cell) for cell in row] for row in rows]
        widths = [max(map(_columns, column)) for column in zip(*shown, strict=True)]
        columns = Columns(self, shown[0], widths, right, name)
        lines = [columns.line(row) for row in shown[1:]]
        lines = [columns.head, *(self.cut(lines, what) if what else lines)]
        return [part for line in lines if line for part in self.wrap(line, columns.hang)]

    def aligned(self, rows: list[tuple[str, str]], bands: Sequence[str] = ()) -> list[str]:
        """Write labels and texts in two columns, long texts on several lines; `bands` colour the rows' first lines."""
        hang = max((len(label) for label, _ in rows), default=0) + 2
        shown, lines = wording.aligned(rows), list[str]()
        if hang > self.width // 3 and not self.whole_names:  # a column of labels would leave no room for texts
            shown, hang = [printable(f"{label}  {text}") for label, text in rows], 2
        for line, band in zip_longest(shown, bands, fillvalue=""):
            first, *further = self.wrap(line, hang)
            lines += [self.paint(first, band), *further]
        return lines

    def cut(self, lines: list[str], what: str) -> list[str]:
        """Keep as many rows of a list as the screen takes, and say how many more there are."""
        if self.rows is None or len(lines) <= self.rows:
            return lines
        return [
            *lines[: self.rows],
            f"... {counted(len(lines) - self.rows, f'more {what}')}; --all shows every row",
        ]


PIPE = Screen(whole_names=True)


@dataclass(frozen=True)
class Columns:
    """A table on a screen, row by row; where its last column has no room, each value behind its head.

    Attributes:
        screen: Where; lines are to be wrapped there with `hang`.
        heads: Of the columns.
        widths: What the widest cell of each takes, its head among them.
        right: Columns whose cells stand at their right end.
        name: Column that says what a row is about.
    """

    screen: Screen
    heads: Sequence[str]
    widths: Sequence[int]
    right: Collection[int] = ()
    name: int = 0

    @property
    def tabular(self) -> bool:
        """Whether the last column has room."""
        used = sum(self.widths[:-1]) + 2 * len(self.widths[:-1])
        return self.screen.holds([" " * (used + min(self.widths[-1], _ROOM_OF_TEXT))])

    @property
    def hang(self) -> int:
        """Columns that further lines of a row begin with."""
        return sum(self.widths[:-1]) + 2 * len(self.widths[:-1]) if self.tabular else 4

    @property
    def head(self) -> str:
        """The line of heads; what rows are about, where there is no table."""
        return self.line(self.heads) if self.tabular else self.heads[self.name]

    def line(self, cells: Sequence[str]) -> str:
        """Write a row."""
        shown = [printable(cell) for cell in cells]
        if not self.tabular:
            told = [
                f"{head} {cell}".strip()
                for at, (head, cell) in enumerate(zip(self.heads, shown, strict=True))
                if cell and at != self.name
            ]
            return f"{shown[self.name]}: {', '.join(told)}"
        gaps = [" " * (width - _columns(cell)) for cell, width in zip(shown, self.widths, strict=True)]
        placed = enumerate(zip(shown, gaps, strict=True))
        return "  ".join(gap + cell if at in self.right else cell + gap for at, (cell, gap) in placed).rstrip()


def _columns(text: str) -> int:
    """Count the columns that a text takes on a terminal: colours none, characters of East Asian scripts two."""
    seen = _PAINT.sub("", text)
    return len(seen) if seen.isascii() else sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in seen)
