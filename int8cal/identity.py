"""Which files are of one run: model, table, statistics and report of one calibration carry one identity.

The identity is a hash of the table as calibration wrote it (so of the model's hash, the data's fingerprint, all
settings and all ranges) and of the versions. It is the same for the same input; an edited table keeps it, and so does
the model that `quantize` makes of it. Statistics of shards add up to the bytes of one pass over all, whatever they are
used for: they are told by the model and the data that they were counted on, which stand in the table as well.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import int8cal
from int8cal.data.preprocessing import located
from int8cal.errors import ModelError, TableError
from int8cal.graph.load import save_model
from int8cal.io.paths import MODEL, REPORT, STATISTICS, TABLE
from int8cal.preprocess import Preprocess
from int8cal.protos import metadata_of, set_metadata
from int8cal.quantization.laid_out import laid_out
from int8cal.quantization.table_file import table_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from int8cal.quantization.table import CalibrationTable

T = TypeVar("T")

RUN_KEY = "int8cal.run"
PREPROCESS_KEY = "int8cal.preprocess"


def library_versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    names = ("onnx", "onnxruntime", "numpy")
    return {"int8cal": int8cal.__version__, **{name: importlib.metadata.version(name) for name in names}}


def identified(table: CalibrationTable) -> CalibrationTable:
    """Give a table that was just calibrated the identity of its run."""
    text = table_to_json(replace(table, run="")) + json.dumps(library_versions(), sort_keys=True)
    return replace(table, run=hashlib.sha256(text.encode()).hexdigest()[:32])


def stamp(model: onnx.ModelProto, table: CalibrationTable) -> None:
    """Write the identity of a table's run, and how samples become inputs, into the int8 model that was built of it."""
    if table.run:
        set_metadata(model, RUN_KEY, table.run)
    preprocess = table.settings.recorded.get("preprocess")
    if preprocess is not None:
        set_metadata(model, PREPROCESS_KEY, json.dumps(preprocess, sort_keys=True))


def save_stamped(model: onnx.ModelProto, table: CalibrationTable, path: Path) -> None:
    """Save an int8 model with the identity of its table's run, laid out for its target; it stays as it is in memory.

    Raises:
        OutputError: The directory cannot be written.
    """
    before = [(item.key, item.value) for item in model.metadata_props]
    stamp(model, table)
    try:
        save_model(laid_out(model, table.settings.target), path)
    finally:
        del model.metadata_props[:]
        for key, value in before:
            model.metadata_props.add(key=key, value=value)


def run_of(model: onnx.ModelProto) -> str:
    """Return the identity that a model carries; "" where it has none."""
    return metadata_of(model, RUN_KEY) or ""


@dataclass(frozen=True)
class StoredPreprocess:
    """How samples became inputs when an int8 model was calibrated, and which file says so."""

    preprocess: Preprocess
    source: str


def stored_preprocess(int8: onnx.ModelProto, path: Path | None, beside: Path | None = None) -> StoredPreprocess | None:
    """Find the preprocessing that an int8 model was calibrated with.

    Args:
        int8: The model; its weights need not be loaded.
        path: Its file, beside which its table may lie; None for a model in memory.
        beside: The FP32 model's directory, from which the place of a tokenizer is told; None for the working directory.

    Returns:
        That of its metadata, or of the table of the same run beside it; None where neither says any.

    Raises:
        ModelError: The metadata is malformed.
        TableError: The table's preprocessing is.
    """
    text = metadata_of(int8, PREPROCESS_KEY)
    if text is not None:
        try:
            found = _preprocess(json.loads(text), beside)
            return StoredPreprocess(found, "the int8 model" if path is None else path.name)
        except ValueError as error:
            what = f'its metadata "{PREPROCESS_KEY}" is no preprocessing'
            raise ModelError(
                what, do="quantize the model again, or declare preprocessing (--preprocess, --scale, ...)"
            ) from error
    stem = None if path is None else _stem(path)
    if path is None or stem is None or not run_of(int8):
        return None
    table = path.with_name(f"{stem}{TABLE}")
    stored = _tried(lambda path: _preprocess_of(path, run_of(int8)), table)
    if stored is None:
        return None
    try:
        return StoredPreprocess(_preprocess(stored, beside), table.name)
    except ValueError as error:
        do = "correct it, or declare preprocessing (--preprocess, --scale, ...)"
        raise TableError("settings.preprocess is no preprocessing", where=str(table), do=do) from error


def _preprocess_of(table: Path, run: str) -> object:
    """Return what a table of a run says of preprocessing; what is wrong with it besides, `load_table` tells."""
    document = _document(table)
    return document["settings"]["preprocess"] if document["run"] == run else None


def _preprocess(stored: object, beside: Path | None) -> Preprocess:
    from pydantic import TypeAdapter

    return located(TypeAdapter(Preprocess).validate_python(stored), beside or Path())


@dataclass(frozen=True)
class _Origin:
    """Where a file says that it comes from: its run, and the model and data of its statistics; None for silence."""

    run: str = ""
    counted: tuple[str, str, int] | None = None


def mixed_with(path: Path) -> tuple[str, ...]:
    """Say in one sentence, or none, whether a file lies together with files of another run.

    That is so after a kill while they were replaced. Only the names that `calibrate` gives have anything to do with
    each other; files without an identity, and files that cannot be read, are not judged.
    """
    stem = _stem(path)
    if stem is None:
        return ()
    files: dict[str, Callable[[Path], _Origin]]
    files = {f"{stem}{ending}": read for ending, read in ((MODEL, _model), (TABLE, _table), (STATISTICS, _statistics))}
    if _report_stem(path.with_name(REPORT)) == stem:
        files[REPORT] = _report
    origins = {name: _tried(read, path.with_name(name)) or _Origin() for name, read in files.items()}
    runs: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin.run:
            runs.setdefault(origin.run, []).append(name)
    told = [f"{' and '.join(names)} of run {run[:8]}" for run, names in runs.items()]
    table, statistics = origins[f"{stem}{TABLE}"], origins[f"{stem}{STATISTICS}"]
    if table.run and statistics.counted not in (None, table.counted):
        told.append(f"{stem}{STATISTICS} of another model or other data")
    if len(told) < 2:
        return ()
    what = f"files of different runs lie together in {path.parent}: {', '.join(told)}"
    return (f"{what}; a run was stopped while it replaced them, or they were copied: calibrate again with --overwrite",)


def _stem(path: Path) -> str | None:
    if path.name == REPORT:
        return _report_stem(path)
    return next((path.name.removesuffix(end) for end in (MODEL, TABLE, STATISTICS) if path.name.endswith(end)), None)


def _report_stem(path: Path) -> str | None:
    name = _tried(lambda report: str(_document(report)["model"]["int8"]), path) or ""
    return name.removesuffix(MODEL) if name.endswith(MODEL) and Path(name).name == name else None


def _tried(read: Callable[[Path], T], path: Path) -> T | None:
    try:
        return read(path) if path.is_file() else None
    except Exception:  # noqa: BLE001 - whatever is wrong with a file, its reader tells it
        return None


def _model(path: Path) -> _Origin:
    import onnx

    return _Origin(run_of(onnx.load(str(path), load_external_data=False)))


def _table(path: Path) -> _Origin:
    document = _document(path)
    model, data = document["model"], document["data"]
    return _Origin(str(document.get("run", "")), (model["sha256"], data["fingerprint"], data["samples"]))


def _statistics(path: Path) -> _Origin:
    with np.load(path, allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
    return _Origin("", (header["model_sha256"], header["fingerprint"], header["samples"]))


def _report(path: Path) -> _Origin:
    return _Origin(str(_document(path)["model"].get("run", "")))


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    return document
