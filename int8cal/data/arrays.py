""".npy and .npz files: headers first, values when their turn comes; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
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
        """Load the file once (an .npy is memory-mapped) and give the feeds of these rows."""
        arrays = self._load()
        for row in rows:
            yield take_row(arrays, row, self.signature, row_name(self.name, row, self.rows))

    def _load(self) -> dict[str, Array]:
        names = [spec.name for spec in self.signature.inputs]
        try:
            if self.path.suffix.lower() == ".npz":
                with np.load(self.path, allow_pickle=False) as archive:
                    return {name: archive[name] for name in names}
            with self.path.open("rb") as stream:
                empty = 0 in _read_header(stream).shape  # the system maps no empty files
            array = np.load(self.path, mmap_mode=None if empty else "r", allow_pickle=False)
        except _BROKEN as error:
            raise unreadable(self.name, str(error)) from error
        return {names[0]: array}


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
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = npy_format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"npy format version {version} is for structured arrays, expected plain numbers")
    return Header(dtype, tuple(shape))


def _elements(header: Header) -> int:
    count = 1
    for size in header.shape:
        count *= size
    return 0 if header.dtype.hasobject else count


def _refuse_pickled(header: Header, name: str) -> None:
    if header.dtype.hasobject:
        raise unreadable(name, "it holds pickled Python objects, which are never loaded; store plain numbers")
