"""Read and write model files: any size, external data included, atomic on the way out."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from typing import TYPE_CHECKING

import onnx
from onnx import external_data_helper

from int8cal.errors import ModelError
from int8cal.graph.foreign import foreign_format
from int8cal.graph.index import walk
from int8cal.graph.ops import handles_codes
from int8cal.io.atomic import atomic_path, atomic_write
from int8cal.io.paths import require_readable
from int8cal.protos import all_tensors, is_large, tensor_bytes, texts, without_weights, write_split

if TYPE_CHECKING:
    from pathlib import Path

_WHOLE_BYTES = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
    }
)


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model with its external data.

    Args:
        path: The .onnx file; external data is looked for beside it.

    Raises:
        ModelError: the file is missing, not ONNX, truncated, empty, holds a tensor of no known type, or its external
            data is missing.
    """
    require_readable(path, ModelError, "give the path of an .onnx file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises DecodeError, onnx a family of its own
        raise _unreadable(path, "is not a readable ONNX file (corrupt or truncated)") from error
    if not model.graph.node:
        raise _unreadable(path, "holds no graph with nodes")
    require_text(model, str(path))
    _require_known_types(model, path)
    names = sorted(external_files(model))
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
        _require_whole(model)  # older versions of onnx take a short file for whole
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"its external data cannot be read ({', '.join(names) or error})",
            where=str(path),
            do="put the whole data file beside the model",
            path=path,
        ) from error
    return model


def _unreadable(path: Path, what: str) -> ModelError:
    """Build the error for a file without a model, which names the format that it has."""
    foreign = foreign_format(path)
    if foreign is not None:
        return ModelError(f"is {foreign.what}, not an ONNX model", where=str(path), do=foreign.do, path=path)
    return ModelError(what, where=str(path), do="export or download it again", path=path)


def require_text(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model that holds names or other text which is no UTF-8: protobuf gives such text as bytes.

    Raises:
        ModelError: naming the kind of text and showing it.
    """
    for what, text in texts(model):
        if isinstance(text, bytes):
            raise ModelError(
                f"the {what} {text[:60]!r} is not UTF-8 text", where=where, do="export or download it again"
            )


def _require_known_types(model: onnx.ModelProto, path: Path) -> None:
    known = set(onnx.TensorProto.DataType.values())
    for tensor in all_tensors(model.graph):
        if tensor.data_type not in known:
            raise ModelError(
                f"tensor {tensor.name!r} has element type {tensor.data_type}, which this version of onnx does not know",
                where=str(path),
                do="export or download it again, or update onnx",
                path=path,
                tensor=tensor.name,
            )


def _require_whole(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if (
            tensor.data_type in _WHOLE_BYTES
            and tensor.HasField("raw_data")
            and len(tensor.raw_data) != tensor_bytes(tensor)
        ):
            raise ValueError(f"{tensor.name!r} has {len(tensor.raw_data)} of {tensor_bytes(tensor)} bytes")


def external_files(model: onnx.ModelProto) -> set[str]:
    """Return the relative names of the files that hold the model's external tensors."""
    return {
        entry.value
        for tensor in external_data_helper._get_all_tensors(model)  # noqa: SLF001 - no public walk exists
        if external_data_helper.uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }


def require_float(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model that already holds quantization nodes.

    Raises:
        ModelError: naming the first such node.
    """
    inside = (node for function in model.functions for node in function.node)
    for node in itertools.chain(walk(model.graph), inside):
        if handles_codes(node):
            raise ModelError(
                f"is already quantized (node {node.name!r} is {node.op_type})",
                where=where,
                do="give the FP32 model it was made from",
                node=node.name,
            )


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a model holds a node that makes, takes or multiplies codes, in its subgraphs too."""
    return any(handles_codes(node) for node in walk(model.graph))


def file_sha256(path: Path) -> str:
    """SHA-256 of a model: the file's bytes, then those of its external data files in name order."""
    digest = hashlib.sha256()
    model = onnx.load(str(path), load_external_data=False)
    for part in (path, *(path.parent / name for name in sorted(external_files(model)))):
        with part.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class Watched:
    """The files of a model as they are now, to find out later whether they were replaced in between."""

    def __init__(self, path: Path) -> None:
        """Look at a model's file and at the data files that it names; what cannot be read is told by who loads it."""
        self._path, self._files = path, [path]
        with contextlib.suppress(Exception):  # protobuf and onnx raise families of their own
            names = external_files(onnx.load(str(path), load_external_data=False))
            self._files += [path.parent / name for name in sorted(names)]
        self._before = self._stamps()

    def require_same(self, sha256: str | None = None) -> None:
        """Refuse a model that is not what it was.

        Args:
            sha256: What the files hashed to; they are hashed again where they were touched. None takes a touch for a
                change.

        Raises:
            ModelError: The files changed, or are gone.
        """
        if self._stamps() == self._before:
            return
        with contextlib.suppress(Exception):
            if sha256 is not None and file_sha256(self._path) == sha256:
                return
        raise ModelError(
            "changed while it was in use",
            where=str(self._path),
            do="run again, and leave the file alone until the end",
            path=self._path,
        )

    def _stamps(self) -> list[tuple[int, ...] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def model_sha256(model: onnx.ModelProto) -> str:
    """SHA-256 of a model in memory (deterministic serialization, part by part); equals no file's hash, and need not."""
    digest = hashlib.sha256(without_weights(model).SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        digest.update(tensor.SerializeToString(deterministic=True))
    return digest.hexdigest()


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model atomically; above protobuf's limit its weights go to `<name>.data` beside it.

    Args:
        model: The model; not changed.
        path: Destination; its directory exists.

    Raises:
        OutputError: the directory cannot be written.
    """
    if not is_large(model):
        atomic_write(path, model.SerializeToString(deterministic=True))
        return
    data = path.with_name(path.name + ".data")
    # the inner one moves into place first: a graph never points at weights that are not there
    with atomic_path(path) as temporary, atomic_path(data) as temporary_data:
        write_split(model, temporary, temporary_data, data.name)
