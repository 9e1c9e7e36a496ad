"""Files that a runtime reads or writes meanwhile: models of any size as it opens them, weights, temporary folders."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal import stored
from int8cal.graph.load import load_model
from int8cal.io.locks import new_folder, sweep
from int8cal.io.paths import require_room, temporary_directory
from int8cal.protos import MAPPED, ModelView, weight_bytes, with_values, write_split
from int8cal.runtime.memory import give_back
from int8cal.stored import unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx


@contextmanager
def loadable(model: onnx.ModelProto | ModelView | Path | str) -> Iterator[str | bytes]:
    """Give what a runtime opens: a file's name, or bytes; a model too large for these becomes a file meanwhile."""
    with _source(model) as source:
        if isinstance(source, bytes):
            yield source
            return
        give_back()  # of sessions before
        yield source
        give_back()  # weights as they were before the runtime laid them out


@contextmanager
def as_file(model: onnx.ModelProto | Path) -> Iterator[str]:
    """Give what a runtime opens as a file's name always; an OSError is that of the file, or of whoever opens it."""
    with loadable(model) as source:
        if isinstance(source, str):
            yield source
            return
        with new_folder(temporary_directory(), private=True) as folder:
            path = folder / "model.onnx"
            path.write_bytes(source)
            yield str(path)


@contextmanager
def _source(model: onnx.ModelProto | ModelView | Path | str) -> Iterator[str | bytes]:
    if isinstance(model, (str, Path)) and str(model).encode("utf-8", "replace").decode() != str(model):
        model = load_model(Path(model))  # a name that is no UTF-8, which the runtime does not take
    if isinstance(model, (str, Path)):
        yield str(model)
    elif weight_bytes(model.weights if isinstance(model, ModelView) else model) < MAPPED:
        yield (model.assemble() if isinstance(model, ModelView) else with_values(model)).SerializeToString()
    elif (place := stored.folder()) is not None:  # beside the weights that are stored, which the runtime maps there
        path = place / f"{secrets.token_hex(6)}.onnx"
        data = path.with_suffix(".data")
        try:
            try:
                write_split(model, path, data, data.name)
            except OSError as error:
                raise unwritable(place.parent, error) from error
            yield str(path)
        finally:
            with suppress(OSError):  # Windows keeps a mapped file, which goes with the folder
                path.unlink(missing_ok=True)
                data.unlink(missing_ok=True)
    else:
        with scratch_folder() as folder:
            write_split(model, folder / "model.onnx", folder / "model.data", "model.data")
            yield str(folder / "model.onnx")


@contextmanager
def weights_folder() -> Iterator[None]:
    """Keep weights of large models in a temporary directory meanwhile, see `int8cal.stored`.

    Raises:
        OutputError: It cannot be made.
    """
    parent = temporary_directory()
    sweep(parent)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(new_folder(parent, private=True))
        except OSError as error:
            raise unwritable(parent, error) from error
        stack.callback(_remove, folder)
        with stored.weights_in(folder):
            yield


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # the runtime maps weights, and Windows keeps a mapped file
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


@contextmanager
def folder_within(place: Path) -> Iterator[Path]:
    """Make a folder that stays as long as the one around it.

    Raises:
        OutputError: The disk is full.
    """
    try:
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            yield folder
        except Exception:
            require_room(folder)
            raise
    except OSError as error:
        raise unwritable(place.parent, error) from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a temporary directory for files that a session reads or writes.

    Raises:
        OutputError: It cannot be made, or the disk is full.
    """
    parent = temporary_directory()
    sweep(parent)
    try:
        with new_folder(parent, private=True) as folder:
            try:
                yield folder
            except Exception:
                require_room(folder)
                raise
            finally:
                _remove(folder)
    except OSError as error:
        raise unwritable(parent, error) from error
