"""Files of arrays: headers first, values when their turn comes; nothing is ever unpickled.

They are .npy, .npz, and ONNX test data: folders test_data_set_* with input_0.pb, input_1.pb, … in the order of the
model's inputs.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib import format as npy_format

from int8cal.data.find import INPUT_FILE
from int8cal.data.fit import Header, count_rows, counts_rows, label_values, match_inputs, only_input, take_row
from int8cal.data.sample import row_name, unreadable
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import onnx

    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array

# what numpy and zipfile raise on files that are cut off, overwritten, encrypted or something else altogether
_BROKEN = (OSError, ValueError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ArrayPart:
    """One .npy or .npz file whose header fits the model.

    Attributes:
        path: The file, as the user would write it.
        rows: How many samples it holds.
        labels: One per sample from the key "labels" of an .npz, else None.
        signature: The model's inputs.
    """

    path: Path
    rows: int
    labels: tuple[int, ...] | None
    signature: Signature

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path.as_posix()

    def where(self, row: int) -> str:
        """Name a sample: the file, with its row where it holds several."""
        return row_name(self.name, row, self.rows)

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Load an .npz once, or the rows of an .npy one by one, and give the feeds of these rows."""
        if self.path.suffix.lower() == ".npz":
            arrays = self._load()
            for row in rows:
                yield take_row(arrays, row, self.signature, self.where(row))
            return
        name = self.signature.inputs[0].name
        for row, first, array in self._each(rows):
            yield take_row({name: array}, row, self.signature, self.where(row), first=first)

    def _load(self) -> dict[str, Array]:
        names = [spec.name for spec in self.signature.inputs]
        try:
            with self.path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
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
                if header.by_columns or not counts_rows(header, spec, self.signature):
                    whole = _read(stream, start, header)
                    yield from ((row, 0, whole) for row in rows)
                    return
                one = Header(header.dtype, (1, *header.shape[1:]))
                size = _bytes(one)
                for row in rows:
                    yield row, row, _read(stream, start + row * size, one)
        except _BROKEN as error:
            raise unreadable(self.name, str(error)) from error

    def _require_same(self, headers: dict[str, Header]) -> None:
        if count_rows(headers, self.signature, self.name) != self.rows:
            raise unreadable(self.name, "it changed while it was in use")


def open_npy(path: Path, signature: Signature) -> ArrayPart:
    """Read the header of an .npy file and check it against the only input.

    Raises:
        DataError: More than one input, an unreadable file, or a shape or dtype that does not fit.
    """
    name = path.as_posix()
    key = only_input(signature, name, "an .npy file")
    header, _ = _header_of(path)
    return ArrayPart(path, count_rows({key: header}, signature, name), None, signature)


def read_npy(path: Path) -> Array:
    """Read an .npy file whole.

    Raises:
        DataError: It cannot be read.
    """
    header, start = _header_of(path)
    try:
        with path.open("rb") as stream:
            return _read(stream, start, header)
    except _BROKEN as error:
        raise unreadable(path.as_posix(), str(error)) from error


def _header_of(path: Path) -> tuple[Header, int]:
    """Read the head of an .npy file that holds all its values, and tell where these begin."""
    name = path.as_posix()
    try:
        with path.open("rb") as stream:
            header, start = _read_header(stream), stream.tell()
            missing = _bytes(header) - (path.stat().st_size - start)
    except _BROKEN as error:
        raise unreadable(name, str(error)) from error
    _refuse_pickled(header, name)
    if missing > 0:
        raise unreadable(name, f"{missing} bytes are missing at its end")
    return header, start


def open_npz(path: Path, signature: Signature, *, labelled: bool = True) -> ArrayPart:
    """Read the headers (and the labels, if they are asked for) of an .npz file and check them against the inputs.

    Raises:
        DataError: An unreadable file, unknown or missing keys, shapes or dtypes that do not fit, malformed labels.
    """
    headers: dict[str, Header] = {}
    name = path.as_posix()
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                with archive.open(info) as stream:
                    header = _read_header(stream)
                    missing = _bytes(header) - (info.file_size - stream.tell())
                key = info.filename.removesuffix(".npy")
                _refuse_pickled(header, name)
                if missing > 0:
                    raise unreadable(name, f'"{key}" misses {missing} bytes at its end')
                headers[key] = header
    except _BROKEN as error:
        raise unreadable(name, str(error)) from error
    label_key = match_inputs(headers, signature, name)
    rows = count_rows(headers, signature, name)
    labels = None
    if label_key is not None and labelled:
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                labels = label_values(archive[label_key], rows, name)
        except _BROKEN as error:
            raise unreadable(name, str(error)) from error
    return ArrayPart(path, rows, labels, signature)


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
    if any(type(size) is not int or size < 0 for size in shape):  # numpy takes True for a size, and fails on it later
        raise ValueError(f"its header has the shape {shape}")
    if not dtype.itemsize:
        raise ValueError(f"its header has the dtype {dtype.str}, whose values take no bytes")
    return Header(dtype, tuple(shape), by_columns)


def _read(stream: IO[bytes], start: int, header: Header) -> Array:
    """Read an array, or some rows of one, from a place in a file.

    Raises:
        EOFError: The file ends before.
    """
    stream.seek(start)
    count = math.prod(header.shape)
    if isinstance(stream, io.BufferedReader):
        array = np.fromfile(stream, header.dtype, count)
    else:  # from elsewhere
        array = np.empty(count, header.dtype)
        array = array[: cast("Any", stream).readinto(array) // header.dtype.itemsize]
    if array.size < math.prod(header.shape):
        raise EOFError(f"{_bytes(header) - array.nbytes} bytes are missing at its end")
    return array.reshape(header.shape, order="F" if header.by_columns else "C")


def _bytes(header: Header) -> int:
    return 0 if header.dtype.hasobject else header.dtype.itemsize * math.prod(header.shape)


def _refuse_pickled(header: Header, name: str) -> None:
    if header.dtype.hasobject:
        raise unreadable(name, "it holds pickled Python objects, which are never loaded; store plain numbers")


@dataclass(frozen=True)
class OnnxDataPart:
    """One test data set.

    Attributes:
        name: Its folder as the user would write it.
        rows: How many samples it holds.
        files: (input name, file), one per input.
        signature: The model's inputs.
        labels: Test data sets carry none.
    """

    name: str
    rows: int
    files: tuple[tuple[str, Path], ...]
    signature: Signature
    labels: None = None

    def where(self, row: int) -> str:
        """Name a sample: the set, with its row where it holds several."""
        return row_name(self.name, row, self.rows)

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Load the set once and give the feeds of these rows."""
        from int8cal.graph.passes.float32 import array_of

        arrays = {}
        for name, path in self.files:
            try:
                arrays[name] = array_of(_load_tensor(path))
            except (ValueError, TypeError, RuntimeError) as error:
                raise unreadable(path.as_posix(), str(error)) from error
        for row in rows:
            yield take_row(arrays, row, self.signature, self.where(row))


def open_test_data(files: Sequence[Path], signature: Signature) -> OnnxDataPart:
    """Check one test data set against the inputs.

    Args:
        files: The input_*.pb of one folder. A tensor whose own name is an input's goes there, else its number counts.
        signature: The model's inputs, in the model's order.

    Returns:
        The set; its values are not kept.

    Raises:
        DataError: Unreadable files, no or two tensors for an input, shapes or dtypes that do not fit.
    """
    from int8cal.graph.signature import dtype_of

    names = [spec.name for spec in signature.inputs]
    folder = files[0].parent.as_posix()
    headers: dict[str, Header] = {}
    chosen: dict[str, Path] = {}
    for file in sorted(files, key=_number):
        tensor = _load_tensor(file)
        number = _number(file)
        if tensor.name not in names and number >= len(names):
            raise DataError(
                f"is input number {number}, the model has {len(names)}: {', '.join(names)}",
                where=file.as_posix(),
                do="remove the file, or give data made for this model",
            )
        name = tensor.name if tensor.name in names else names[number]
        if name in chosen:
            raise DataError(
                f'feeds input "{name}", and so does {chosen[name].name}',
                where=file.as_posix(),
                do="name the tensors after the inputs, or number the files in their order",
            )
        headers[name] = Header(dtype_of(tensor.data_type), tuple(tensor.dims))
        chosen[name] = file
    missing = [name for name in names if name not in chosen]
    if missing:
        raise DataError(
            f'input "{missing[0]}" is missing; found {", ".join(path.name for path in chosen.values())}',
            where=folder,
            do=f"add input_{names.index(missing[0])}.pb",
        )
    rows = count_rows(headers, signature, folder)
    return OnnxDataPart(folder, rows, tuple(chosen.items()), signature)


def _number(path: Path) -> int:
    match = INPUT_FILE.fullmatch(path.name)
    return int(match.group(1)) if match else 0


def _load_tensor(path: Path) -> onnx.TensorProto:
    import onnx

    from int8cal.protos import fault_of

    name = path.as_posix()
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf has no typed error class to name; whatever it raises, the file is broken
        raise unreadable(name, str(error)) from error
    known = tensor.data_type in onnx.TensorProto.DataType.values() and tensor.data_type != onnx.TensorProto.UNDEFINED
    if not known:
        raise unreadable(name, "it is not an ONNX tensor")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise unreadable(name, "its values lie in another file")
    fault = fault_of(tensor)
    if fault:
        raise unreadable(name, f"it {fault}")
    return tensor
