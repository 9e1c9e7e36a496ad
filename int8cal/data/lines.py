"""Files of text: .txt with a sample in each line, .csv and .tsv with named columns, .jsonl with an object in each line.

They are passed through once when they are opened, for the number of samples and their labels, and once in each pass;
no more than a line is ever in memory. Encoding is UTF-8.
"""

from __future__ import annotations

import csv
import json
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.data.cells import is_data, is_numeral
from int8cal.data.sample import unreadable
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from int8cal.data.columns import ColumnKind, RowPlan
    from int8cal.data.sample import Fitted

_TEXT = "text"  # what the one column of a .txt is called
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHER_DELIMITERS = (";", "\t", "|", ",")  # of spreadsheets and databases; none of them stands in a name of a column

# A row and the line that it begins in; an error in place of a row is told when its turn comes.
Row = tuple[int, "dict[str, Any] | DataError"]


@dataclass(frozen=True, eq=False)
class LinesPart:
    """One file of text.

    Attributes:
        path: The file, as the user would write it.
        plan: What becomes of its rows.
        lines: The line that each sample begins in, counted from 1.
        labels: One per sample, as they are written; None without.
        left_out: Lines that hold no sample and were to be skipped.
        bare: Whether a table may begin with its first sample, see `columns_of`.
    """

    path: Path
    plan: RowPlan
    lines: Sequence[int]
    labels: tuple[object, ...] | None
    left_out: tuple[str, ...] = ()
    bare: bool = False

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path.as_posix()

    @property
    def rows(self) -> int:
        """How many samples it holds."""
        return len(self.lines)

    def where(self, row: int) -> str:
        """Name a sample by its line."""
        return _place(self.path, self.lines[row])

    def read(self, rows: Sequence[int]) -> Iterator[Fitted]:
        """Go through the file, and give the feeds of these samples."""
        wanted = ((self.lines[row], self.where(row)) for row in rows)
        line, where = next(wanted, (0, ""))
        for found, row in _rows(self.path, bare=self.bare):
            if found != line:
                continue
            if isinstance(row, DataError):
                raise row
            made = self.plan.fitted(row, where)
            while found == line:
                yield made
                line, where = next(wanted, (0, ""))
            if not line:
                return
        if line:
            raise unreadable(self.name, "it changed while it was in use")


def columns_of(files: Sequence[Path], *, skip_bad: bool, bare: bool = False) -> dict[str, ColumnKind]:
    """Say what the columns of files hold, by the first row that can be read.

    Args:
        files: Of one source; all have the columns that are read of them.
        skip_bad: Pass over lines that cannot be read.
        bare: A .csv or .tsv whose first line holds numbers alone has no names of columns: they are called 1, 2, 3, …

    Raises:
        DataError: A file cannot be read, or none holds a row.
    """
    for path in files:
        table = path.suffix.lower() in _DELIMITERS
        for _, row in _rows(path, bare=bare):
            if isinstance(row, dict):
                return {name: _kind(value, table=table) for name, value in row.items()}
            if not skip_bad:
                raise row
    raise DataError("holds no sample", where=files[0].as_posix(), do="add lines, or remove it")


def open_lines(path: Path, plan: RowPlan, *, skip_bad: bool, bare: bool = False) -> LinesPart:
    """Go through a file for the number of its samples and their labels.

    Args:
        path: The file.
        plan: What becomes of its rows.
        skip_bad: Leave out lines that cannot be read, instead of stopping at the first.
        bare: As in `columns_of`.

    Raises:
        DataError: It cannot be read, or a line cannot; names the line.
    """
    lines, labels, left_out = array("Q"), [], []
    for line, found in _rows(path, bare=bare):
        try:
            if isinstance(found, DataError):
                raise found
            plan.require(found, _place(path, line))
        except DataError as error:
            if not skip_bad:
                raise
            left_out.append(error.where)
            continue
        lines.append(line)
        if plan.label is not None:
            labels.append(found.get(plan.label))
    return LinesPart(path, plan, lines, tuple(labels) if plan.label is not None else None, tuple(left_out), bare)


def _kind(value: object, *, table: bool) -> ColumnKind:
    if isinstance(value, str):
        return "numeral" if table and is_numeral(value) else "text"
    return "numbers" if isinstance(value, (int, float, list)) and not isinstance(value, bool) else "other"


def _place(path: Path, line: int) -> str:
    return f"{path.as_posix()}, line {line}"


def _rows(path: Path, *, bare: bool) -> Iterator[Row]:
    """Give the rows of a file; blank lines are none."""
    suffix = path.suffix.lower()
    try:
        if suffix in _DELIMITERS:
            yield from _cells(path, _DELIMITERS[suffix], bare=bare)
            return
        for line, text in _lines(path):
            if isinstance(text, DataError):
                yield line, text
            elif suffix == ".txt" and line == 1 and "\r" in text.strip() and not text.endswith("\n"):
                what = "its lines end in carriage returns alone, expected line feeds"
                raise DataError(what, where=path.as_posix(), do="convert the file, or write it again")
            elif text.strip():
                yield line, {_TEXT: text.rstrip("\r\n")} if suffix == ".txt" else _object(path, line, text)
    except OSError as error:
        raise unreadable(path.as_posix(), str(error)) from error


def _lines(path: Path) -> Iterator[tuple[int, str | DataError]]:
    with path.open("rb") as stream:
        for line, content in enumerate(stream, 1):
            start = content.removeprefix(b"\xef\xbb\xbf") if line == 1 else content
            try:
                yield line, start.decode()
            except UnicodeDecodeError as error:
                yield line, unreadable(_place(path, line), f"it is not UTF-8: {error.reason} at byte {error.start}")


def _object(path: Path, line: int, text: str) -> dict[str, Any] | DataError:
    try:
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        return unreadable(_place(path, line), f"it has half a surrogate pair, {half}, which stands for no character")
    except (ValueError, RecursionError) as error:
        return unreadable(_place(path, line), f"it is no JSON: {error}")
    return found if isinstance(found, dict) else unreadable(_place(path, line), "it is no JSON object")


def _cells(path: Path, delimiter: str, *, bare: bool) -> Iterator[Row]:
    """Read rows of a CSV whose first line names the columns, or holds numbers where that may be.

    Raises:
        DataError: A line is not UTF-8, or the names are missing or not distinct.
    """

    def texts() -> Iterator[str]:
        for _, text in _lines(path):
            if isinstance(text, DataError):  # where a quoted cell ends can no longer be told
                raise text
            yield text

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise unreadable(_place(path, begin), str(error)) from error
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        if names is None and bare and is_data(cells):
            names = [str(place) for place in range(1, len(cells) + 1)]
        if names is None:
            names = [cell.strip() for cell in cells]
            if "" in names or len(set(names)) < len(names):
                what = "the first line must name the columns, each by a name of its own"
                index = ", or leave out the column of row numbers (index=False of pandas)" if not names[0] else ""
                raise DataError(what, where=_place(path, begin), do=f"add such a line{index}", line=begin)
            other = next((mark for mark in _OTHER_DELIMITERS if len(names) == 1 and mark in names[0]), None)
            if other is not None:
                what = f'the first line is one column, "{names[0]}": cells seem to end with {other!r} there'
                do = "separate them by commas, or by tabs in a .tsv"
                raise DataError(what, where=_place(path, begin), do=do, line=begin)
        elif len(cells) != len(names):
            what = f"{len(cells)} cells, the columns are {len(names)}: {', '.join(names)}"
            yield begin, unreadable(_place(path, begin), what)
        else:
            yield begin, dict(zip(names, cells, strict=True))
