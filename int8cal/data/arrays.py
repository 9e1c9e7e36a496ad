""".npy and .npz files: headers first, values when their turn comes; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy_format

from int8cal.data.fit import Header, count_rows, match_inputs, only_input, take_row
from int8cal.data.labels import label_values
from int8cal.data.sample import row_name, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from int8cal.data.find import FoundFile
    from int8cal.data.sample import Array, Feed
    from int8cal.graph.signature import Signature

# what numpy and zipfile raise on files that are cut off, overwritten, encrypted or something else altogether
_BROKEN = (OSError, ValueError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ArrayPart:
    """One .npy or .npz file whose header fits the model.

    Attributes:
        path: The file.
        name: The file as the user would write it.
        rows: How many samples it holds.
        labels: One per sample from the key "labels" of an .npz, else None.
        signature: The model's inputs.
    """

    path: Path
    name: str
    rows: int
    labels: tuple[int, ...] | None
    signature: Signature

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Load an .npz once, or the rows of an .npy one by one, and give the feeds of these rows."""
        if self.path.suffix.lower() == ".npz":
            arrays = self._load()
            for row in rows:
                yield take_row(arrays, row, self.signature, row_name(self.name, row, self.rows))
            return
        name = self.signature.inputs[0].name
        for row, first, array in self._each(rows):
            where = row_name(self.name, row, self.rows)
            yield take_row({name: array}, row, self.signature, where, first=first)

    def _load(self) -> dict[str, Array]:
        names = [spec.name for spec in self.signature.inputs]
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in names}
        except _BROKEN as error:
            raise unreadable(self.name, str(error)) from error
        self._require_same({name: Header(array.dtype, array.shape) for name, array in arrays.items()})
        return arrays

    def _each(self, rows: Sequence[int]) -> Iterator[tuple[int, int, Array]]:
        """Read rows of an .npy: each row, the row that its array begins with, the array.

        Not a memory map: a file that is cut off meanwhile would end the process.
        """
        try:
            with self.path.open("rb") as stream:
                header = _read_header(stream)
                start = stream.tell()
                spec = self.signature.inputs[0]
                self._require_same({spec.name: header})
                batched = self.signature.batch is not None and len(header.shape) == len(spec.shape or ())
                if header.by_columns or not batched:
                    whole = _read(stream, start, header)
                    yield from ((row, 0, whole) for row in rows)
                    return
                one = Header(header.dtype, (1, *header.shape[1:]))
                size = header.dtype.itemsize * _elements(one)
                for row in rows:
                    yield row, row, _read(stream, start + row * size, one)
        except _BROKEN as error:
            raise unreadable(self.name, str(error)) from error

    def _require_same(self, headers: dict[str, Header]) -> None:
        if count_rows(headers, self.signature, self.name) != self.rows:
            raise unreadable(self.name, "it changed while it was in use")


def open_npy(file: FoundFile, signature: Signature) -> ArrayPart:
    """Read the header of an .npy file and check it against the only input.

    Args:
        file: The file; its values are not read.
        signature: Must have exactly one input.

    Raises:
        DataError: More than one input, an unreadable file, or a shape or dtype that does not fit.
    """
    name = only_input(signature, file.name, "an .npy file")
    try:
        with file.path.open("rb") as stream:
            header = _read_header(stream)
            missing = header.dtype.itemsize * _elements(header) - (file.path.stat().st_size - stream.tell())
    except _BROKEN as error:
        raise unreadable(file.name, str(error)) from error
    _refuse_pickled(header, file.name)
    if missing > 0:
        raise unreadable(file.name, f"{missing} bytes are missing at its end")
    return ArrayPart(file.path, file.name, count_rows({name: header}, signature, file.name), None, signature)


def open_npz(file: FoundFile, signature: Signature) -> ArrayPart:
    """Read the headers (and the labels) of an .npz file and check them against the inputs.

    Args:
        file: The file; only its member headers and its labels are read.
        signature: The model's inputs; the keys must be their names.

    Raises:
        DataError: An unreadable file, unknown or missing keys, shapes or dtypes that do not fit, malformed labels.
    """
    headers: dict[str, Header] = {}
    try:
        with zipfile.ZipFile(file.path) as archive:
            for info in archive.infolist():
                with archive.open(info) as stream:
                    header = _read_header(stream)
                    missing = header.dtype.itemsize * _elements(header) - (info.file_size - stream.tell())
                key = info.filename.removesuffix(".npy")
                _refuse_pickled(header, file.name)
                if missing > 0:
                    raise unreadable(file.name, f'"{key}" misses {missing} bytes at its end')
                headers[key] = header
    except _BROKEN as error:
        raise unreadable(file.name, str(error)) from error
    label_key = match_inputs(headers, signature, file.name)
    rows = count_rows(headers, signature, file.name)
    labels = None
    if label_key is not None:
        try:
            with np.load(file.path, allow_pickle=False) as archive:
                labels = label_values(archive[label_key], rows, file.name)
        except _BROKEN as error:
            raise unreadable(file.name, str(error)) from error
    return ArrayPart(file.path, file.name, rows, labels, signature)


def _read_header(stream: IO[bytes]) -> Header:
    """Read the head of an array.

    Raises:
        ValueError: It is damaged: numpy reads it as Python's own text, whose errors are of many kinds.
    """
    try:
        return _parse_header(stream)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, SyntaxError, TokenError, TypeError) as error:
        raise ValueError(f"its header is damaged ({type(error).__name__})") from error


def _parse_header(stream: IO[bytes]) -> Header:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, by_columns, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, by_columns, dtype = npy_format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"npy format version {version} is for structured arrays, expected plain numbers")
    return Header(dtype, tuple(shape), by_columns)


def _read(stream: IO[bytes], start: int, header: Header) -> Array:
    """Read an array, or some rows of one, from a place in a file.

    Raises:
        EOFError: The file ends before.
    """
    array = np.empty(header.shape, header.dtype, "F" if header.by_columns else "C")
    space = array.reshape(-1, order="A").view(np.uint8).data
    stream.seek(start)
    done = 0
    while done < len(space):
        count = stream.readinto(space[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"{len(space) - done} bytes are missing at its end")
        done += count
    return array


def _elements(header: Header) -> int:
    count = 1
    for size in header.shape:
        count *= size
    return 0 if header.dtype.hasobject else count


def _refuse_pickled(header: Header, name: str) -> None:
    if header.dtype.hasobject:
        raise unreadable(name, "it holds pickled Python objects, which are never loaded; store plain numbers")
