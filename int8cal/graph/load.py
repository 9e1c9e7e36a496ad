"""Read and write model files: any size, external data included, atomic on the way out."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import external_data_helper

from int8cal.errors import Int8calError, ModelError, naming, reason_of
from int8cal.graph.foreign import foreign_format
from int8cal.graph.index import walk
from int8cal.graph.ops import handles_codes
from int8cal.io.atomic import atomic_path, atomic_write
from int8cal.io.paths import require_readable
from int8cal.protos import (
    MAPPED,
    all_tensors,
    fault_of,
    fault_of_length,
    graphs_within,
    is_large,
    tensor_bytes,
    texts,
    weight_bytes,
    with_values,
    without_weights,
    write_split,
)
from int8cal.stored import LEAST, can_store, content_of, folder, placed, stored, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GIVE = "give the path of an .onnx file"
_LONGEST_REASON = 200  # characters of what onnx says in a message
_LONGEST_NAME = 60  # characters of a file name in a message


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model with its external data.

    Args:
        path: The .onnx file; external data is looked for beside it.

    Raises:
        ModelError: the file is missing, not ONNX, truncated, empty, holds a tensor of no known type or with another
            number of values than its shape says, or its external data is missing or outside the model's folder.
    """
    require_readable(path, ModelError, _GIVE)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises DecodeError, onnx a family of its own
        raise _unreadable(path, "is not a readable ONNX file (corrupt or truncated)") from error
    if not model.graph.node:
        raise _unreadable(path, "holds no graph with nodes")
    require_text(model, str(path))
    _require_known_types(model, path)
    files = data_files(external_files(model), path)
    try:
        load_weights(model, path.parent)
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise _unreadable_data(path, files, error) from error
    try:
        _require_whole(model)
    except ValueError as error:
        if files:  # older versions of onnx take a short file for whole
            raise _unreadable_data(path, files, error) from error
        raise ModelError(f"tensor {error}", where=str(path), do="export or download it again", path=path) from error
    return apart(model)


def load_weights(model: onnx.ModelProto, directory: Path) -> None:
    """Load the external data of a model; where large tensors are stored, these say their place instead.

    Args:
        model: Changed in place.
        directory: Of its file.

    Raises:
        OSError, ValueError, RuntimeError, onnx.checker.ValidationError: A file cannot be read, or must not be.
    """
    main = [*model.graph.initializer]  # as long as these are held, the walk gives the same objects
    known = {id(tensor) for tensor in main}
    for tensor in external_data_helper._get_all_tensors(model):  # noqa: SLF001 - no public walk exists
        if not external_data_helper.uses_external_data(tensor):
            continue
        place = _followed(tensor, directory)
        if folder() is not None and id(tensor) in known and can_store(tensor):
            _place(tensor, place)
            continue
        external_data_helper.load_external_data_for_tensor(tensor, str(place))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _followed(tensor: onnx.TensorProto, directory: Path) -> Path:
    """Return the folder of a tensor's file; where that is a link, which onnx refuses, the tensor names its end."""
    location = next((entry for entry in tensor.external_data if entry.key == "location"), None)
    if location is None or not (directory / location.value).is_symlink():
        return directory
    real = Path(os.path.realpath(directory / location.value))
    location.value = real.name
    return real.parent


def _place(tensor: onnx.TensorProto, directory: Path) -> None:
    """Let a tensor that names a file say its place there, and that it is stored.

    Raises:
        OSError, ValueError, RuntimeError, onnx.checker.ValidationError: See `load_weights`.
    """
    told = external_data_helper.ExternalDataInfo(tensor)
    offset, length = told.offset or 0, told.length or 0
    first = onnx.TensorProto(name=tensor.name, data_type=onnx.TensorProto.UINT8, dims=[1], raw_data=b"")
    external_data_helper.set_external_data(first, told.location, offset, 1)
    external_data_helper.load_external_data_for_tensor(first, str(directory))  # onnx looks where the file leads
    path = (directory / told.location).resolve()
    if length != tensor_bytes(tensor):
        raise ValueError(f"{tensor.name!r} has {length} of {tensor_bytes(tensor)} bytes")
    if path.stat().st_size < offset + length:
        raise ValueError(f"{path.name} ends before the values of {tensor.name!r}")
    tensor.CopyFrom(placed(tensor, path, offset, length, loaded=True))


def apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a large model with the values of large weights stored, where there is a folder for them; else itself."""
    held = any(len(tensor.raw_data) >= LEAST for tensor in model.graph.initializer)
    if folder() is None or not held or weight_bytes(model) < MAPPED:
        return model
    result = without_weights(model)
    for tensor in model.graph.initializer:
        result.graph.initializer.append(stored(tensor))
    return result


def _unreadable(path: Path, what: str) -> ModelError:
    """Build the error for a file without a model, which names the format that it has."""
    foreign = foreign_format(path)
    if foreign is not None:
        return ModelError(f"is {foreign.what}, not an ONNX model", where=str(path), do=foreign.do, path=path)
    return ModelError(what, where=str(path), do="export or download it again", path=path)


def _unreadable_data(path: Path, files: Sequence[Path], error: Exception) -> ModelError:
    at_fault = [file for file in files if not file.exists()] or files
    listed = ", ".join(_shortened(file.relative_to(path.parent).as_posix()) for file in at_fault[:3])
    linked = "link" in str(error)  # onnx says so of symbolic and of hard ones
    do = f"put the whole data file {'itself, not a link to it, ' if linked else ''}beside the model"
    if path.is_symlink() and not any(file.exists() for file in at_fault):
        do = f"the model is a link: give what it leads to, {path.resolve()}, or link its data files, too"
    name, fault = _misplaced(path)
    return ModelError(
        f"its external data cannot be read ({listed or error}){fault and f': tensor {name!r} {fault}'}",
        where=str(path),
        do=do,
        path=path,
        tensor=name,
    )


def _misplaced(path: Path) -> tuple[str, str]:
    """Find the first tensor whose values are not where a model's file says: its name and the fault; "" for none."""
    for tensor in all_tensors(onnx.load(str(path), load_external_data=False).graph):
        if external_data_helper.uses_external_data(tensor):
            fault = _fault_of_place({entry.key: entry.value for entry in tensor.external_data}, tensor, path.parent)
            if fault:
                return tensor.name, fault
    return "", ""


def _fault_of_place(told: dict[str, str], tensor: onnx.TensorProto, directory: Path) -> str:
    """Say what is wrong with where a tensor's values are said to be; "" for nothing that is seen from outside."""
    try:
        size = (directory / told.get("location", "")).stat().st_size
    except OSError as error:
        return f"is in a file that cannot be read ({reason_of(error)})"
    given = {key: told.get(key) or "0" for key in ("offset", "length")}
    for key, text in given.items():
        if not text.isdecimal():
            return f"has the {key} {_shortened(text)!r}, which is no number of bytes"
    offset, length = int(given["offset"]), int(given["length"]) or tensor_bytes(tensor)
    if offset + length > size:
        return f"is at bytes {offset} to {offset + length}, the file has {size}"
    return fault_of_length(tensor, length)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


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
    stored = ((tensor.name, tensor.data_type) for tensor in all_tensors(model.graph))
    declared = (
        (value.name, value.type.tensor_type.elem_type)
        for graph in graphs_within(model.graph)
        for value in (*graph.input, *graph.output, *graph.value_info)
    )
    for name, data_type in itertools.chain(stored, declared):
        if data_type not in known:
            raise ModelError(
                f"tensor {name!r} has element type {data_type}, which this version of onnx does not know",
                where=str(path),
                do="export or download it again, or update onnx",
                path=path,
                tensor=name,
            )


def _require_whole(model: onnx.ModelProto) -> None:
    """Refuse a tensor that holds another number of values than its shape and type say.

    Raises:
        ValueError: Says which tensor, and what is wrong with it.
    """
    for tensor in all_tensors(model.graph):
        fault = fault_of(tensor)
        if fault:
            raise ValueError(f"{tensor.name!r} {fault}")


@contextlib.contextmanager
def blaming(source: Path | onnx.ModelProto, where: str, refusal: str = "") -> Iterator[None]:
    """Tell a failure as the model's own where ONNX's checker or the runtime refuses it; any other passes as it is.

    Models are not checked beforehand: the runtime runs many that the checker refuses.

    Args:
        source: The model that the block works on; checked only after a failure.
        where: What messages call it.
        refusal: What the runtime says against the model, where it was asked already.

    Raises:
        ModelError: In place of what the block raised; says what is wrong with the model.
    """
    try:
        with naming(where):
            yield
    except Int8calError as error:
        error.where = error.where or where
        raise
    except Exception as error:
        told = refusal or _refusal(source)
        if not told:
            raise
        raise ModelError(f"is no sound ONNX model ({told})", where=where, do="export it again") from error


def _refusal(source: Path | onnx.ModelProto) -> str:
    """Return what ONNX's checker and strict shape inference say against a model; "" for nothing."""
    try:
        onnx.checker.check_model(source if isinstance(source, onnx.ModelProto) else str(source), full_check=True)
    except Exception as error:  # noqa: BLE001 - the checker and shape inference raise families of their own
        return " ".join(str(error).split())[:_LONGEST_REASON]
    return ""


def external_files(model: onnx.ModelProto) -> set[str]:
    """Return the relative names of the files that hold the model's external tensors."""
    return {
        entry.value
        for tensor in external_data_helper._get_all_tensors(model)  # noqa: SLF001 - no public walk exists
        if external_data_helper.uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }


def model_files(path: Path) -> tuple[Path, ...]:
    """Return a model's file and those that hold its external tensors, see `data_files`."""
    return path, *data_files(_names_in(path, _stamp(path)), path)


@functools.lru_cache(maxsize=8)
def _names_in(path: Path, stamp: tuple[int, ...] | None) -> frozenset[str]:  # noqa: ARG001 - of a file as it is
    require_readable(path, ModelError, _GIVE)
    # a job asks several times, and each time a large file would be read
    return frozenset(external_files(onnx.load(str(path), load_external_data=False)))


def data_files(names: Iterable[str], path: Path) -> tuple[Path, ...]:
    """Return the files that hold a model's external tensors, in the order of their names.

    Args:
        names: See `external_files`.
        path: The model's file.

    Raises:
        ModelError: A file lies outside of the model's folder, there or by a link, or is no regular one: nobody reads
            what a model was not shipped with. Where the model itself is a link, as in the Hugging Face cache, the
            file may lie beside what it leads to.
    """
    home, beside, found = os.path.realpath(path.parent), Path(os.path.realpath(path)).parent, []
    for name in sorted(names):
        try:
            file = path.parent / name
            real = Path(os.path.realpath(file))
            inside = not Path(name).is_absolute() and (real.is_relative_to(home) or real.parent == beside)
            sound = inside and (file.is_file() or not real.exists())  # not the way that ".." takes back
        except (OSError, ValueError):  # a name that is too long, or with a zero byte
            sound = False
        if not sound:
            raise ModelError(
                f"its external data {_shortened(name)!r} is no file in the model's folder",
                where=str(path),
                do="put the data file itself, not a link to it, beside the model",
                path=path,
            )
        found.append(file)
    return tuple(found)


def require_float(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model that already holds quantization nodes.

    Raises:
        ModelError: naming the first such node.
    """
    inside = (node for function in model.functions for node in function.node)
    for node in itertools.chain(walk(model.graph), inside):
        if handles_codes(node):
            found = f"node {node.name!r} is" if node.name else f"{', '.join(map(repr, node.output))} comes from"
            raise ModelError(
                f"is already quantized ({found} {node.op_type})",
                where=where,
                do="give the FP32 model it was made from",
                node=node.name,
            )


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a model holds a node that makes, takes or multiplies codes, in its subgraphs too."""
    return any(handles_codes(node) for node in walk(model.graph))


def file_sha256(path: Path) -> str:
    """SHA-256 of a model: the file's bytes, then those of its external data files in name order.

    Raises:
        ModelError: See `data_files`.
    """
    digest = hashlib.sha256()
    for part in model_files(path):
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
            self._files = [*model_files(path)]
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
    """SHA-256 of a model in memory: that of the file without external data that onnx writes of it.

    Of one that is too large for such a file it is taken part by part, and equals no file's.
    """
    if not is_large(model):
        return hashlib.sha256(with_values(model).SerializeToString(deterministic=True)).hexdigest()
    digest = hashlib.sha256(without_weights(model).SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        digest.update(whole(tensor).SerializeToString(deterministic=True))
    return digest.hexdigest()


def model_digest(model: onnx.ModelProto) -> str:
    """XXH3-128 of a model in memory: tells apart the models of one job, in a tenth of the time of `model_sha256`."""
    import xxhash  # doctor, which hashes nothing, runs without it

    digest = xxhash.xxh3_128(without_weights(model).SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        content = content_of(tensor) or tensor.SerializeToString(deterministic=True)
        digest.update(bare.SerializeToString(deterministic=True) + b"%d:" % len(content))
        digest.update(content)
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
        atomic_write(path, with_values(model).SerializeToString(deterministic=True))
        return
    data = path.with_name(path.name + ".data")
    # the inner one moves into place first: a graph never points at weights that are not there
    with atomic_path(path) as temporary, atomic_path(data) as temporary_data:
        write_split(model, temporary, temporary_data, data.name)
