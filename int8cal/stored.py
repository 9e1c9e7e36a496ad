"""Weights in files: messages of a large model say where their values lie, so that copies of a message hold none.

A stored tensor is one of ONNX's external data, with the absolute path of its file. Files that are made here are there
as long as the block of `weights_in`, are mapped by who reads them, and equal values are one file. Those of a user are
read: a mapped file that somebody cuts off ends the process.
"""

from __future__ import annotations

import secrets
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.errors import ModelError, OutputError, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

LEAST = 1 << 20  # bytes of a tensor; smaller ones stay in the message
SUFFIX = ".weights"  # of the files that are made here
# An entry that tells stored tensors from those of a model that names files of its own: nobody else knows its value.
_STORED, _MARK = "stored", secrets.token_hex(16)
_FOLDER: ContextVar[Path | None] = ContextVar("_FOLDER", default=None)
# those of whole bytes that numpy has itself
_TYPES = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
)
_PLAIN = {each: np.dtype(helper.tensor_dtype_to_np_dtype(each)) for each in _TYPES if sys.byteorder == "little"}
# An entry that says that the message has the field data_location when it holds its values itself: onnx sets it in those
# that it loads, and what is written of a model shall be the same bytes.
_LOADED = "loaded"


@contextmanager
def weights_in(folder: Path) -> Iterator[None]:
    """Let large tensors that are made meanwhile be stored in a folder.

    Args:
        folder: It exists, and nobody else writes there.
    """
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def folder() -> Path | None:
    """Return where large tensors are stored now; None where messages hold their values."""
    return _FOLDER.get()


def is_stored(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's values lie in a file that it says the place of."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and _entries(tensor).get(_STORED) == _MARK


def stored(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor stored if it is large and there is a folder for it, otherwise itself."""
    place = _FOLDER.get()
    if place is None or tensor.data_type not in _TYPES or not tensor.HasField("raw_data"):
        return tensor
    content = tensor.raw_data
    if len(content) < LEAST:
        return tensor
    import xxhash  # doctor, which stores nothing, runs without it

    path = place / f"{xxhash.xxh3_128_hexdigest(content)}-{len(content)}{SUFFIX}"
    if not path.exists():
        try:
            path.write_bytes(content)
        except OSError as error:
            path.unlink(missing_ok=True)  # cut off
            raise unwritable(place.parent, error) from error
    return placed(tensor, path, 0, len(content), loaded=tensor.HasField("data_location"))


def unwritable(directory: Path, error: OSError) -> OutputError:
    """Build the error for a temporary directory that is full, or may not be written."""
    return OutputError(
        f"cannot be written ({reason_of(error)})",
        where=f"temporary directory {directory}",
        do="free some space there, or name another directory in TMPDIR",
    )


def placed(tensor: onnx.TensorProto, path: Path, offset: int, length: int, *, loaded: bool = False) -> onnx.TensorProto:
    """Return a stored tensor with the name, type and shape of another.

    Args:
        tensor: The other.
        path: Absolute.
        offset, length: Of the values, in bytes.
        loaded: Whether the message with its values has the field data_location.
    """
    result = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if tensor.HasField("doc_string"):
        result.doc_string = tensor.doc_string
    result.data_location = onnx.TensorProto.EXTERNAL
    entries = [("location", str(path)), ("offset", str(offset)), ("length", str(length)), (_STORED, _MARK)]
    for key, value in (*entries, *([(_LOADED, "1")] if loaded else [])):
        result.external_data.add(key=key, value=value)
    return result


def file_place(tensor: onnx.TensorProto) -> tuple[Path, int, int]:
    """Return the file, offset and length in bytes of a stored tensor."""
    entries = _entries(tensor)
    return Path(entries["location"]), int(entries["offset"]), int(entries["length"])


def can_store(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor that names another file may be stored there: of a plain type, and large."""
    return tensor.data_type in _TYPES and int(_entries(tensor).get("length", 0)) >= LEAST


def values_of(tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Return a tensor's values, read-only.

    Raises:
        ModelError: The file of a stored one is gone, or shorter than it was; the shape is none for these values.
    """
    if not is_stored(tensor):
        dtype = _PLAIN.get(tensor.data_type)
        here = tensor.HasField("raw_data") and tensor.data_location != onnx.TensorProto.EXTERNAL
        if dtype is None or not here or tensor.HasField("segment"):
            return numpy_helper.to_array(tensor)
        try:
            return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))  # as to_array does it, sooner
        except ValueError as error:  # sizes of which one is 0, and the others beyond any address
            what = f"tensor {tensor.name!r} of shape {[*tensor.dims]} does not fit its {len(tensor.raw_data)} bytes"
            raise ModelError(what, do="export the model again", tensor=tensor.name) from error
    path, offset, length = file_place(tensor)
    dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if path.suffix == SUFFIX:
        return np.memmap(path, dtype, "r", offset, shape).view(np.ndarray)
    try:
        return np.fromfile(path, dtype, length // dtype.itemsize, offset=offset).reshape(shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            "changed while it was in use",
            where=str(path),
            do="run again, and leave the file alone until the end",
            tensor=tensor.name,
        ) from error


def content_of(tensor: onnx.TensorProto) -> bytes | memoryview:
    """Return a tensor's values as bytes, those of a stored one mapped; empty where the message has them typed."""
    return values_of(tensor).reshape(-1).view(np.uint8).data if is_stored(tensor) else tensor.raw_data


def whole(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor with its values in the message."""
    if not is_stored(tensor):
        return tensor
    result = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if tensor.HasField("doc_string"):
        result.doc_string = tensor.doc_string
    if _LOADED in _entries(tensor):
        result.data_location = onnx.TensorProto.DEFAULT
    result.raw_data = values_of(tensor).tobytes()
    return result


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}
