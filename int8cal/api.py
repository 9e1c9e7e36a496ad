"""The Python API: the same engine as the command line, without files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx

from int8cal.config.load import job_from_options, placed_patterns, require_available
from int8cal.data.callables import gives_items
from int8cal.data.checks import DataWarning
from int8cal.declared import keywords
from int8cal.errors import ModelError, UsageError
from int8cal.evaluating import evaluate_models
from int8cal.evaluation.user_metric import function_name, metric_of
from int8cal.gating import require_sound
from int8cal.graph.load import external_files
from int8cal.graph.prepare import prepare
from int8cal.identity import identified
from int8cal.job import DEFAULT_TARGET, DataSettings
from int8cal.pipeline import calibrate_model
from int8cal.progress import watching
from int8cal.protos import with_values
from int8cal.quantization.table import CalibrationTable
from int8cal.quantization.table_file import load_table
from int8cal.quantizing import quantize_prepared
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import simplify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.evaluation.result import Report
    from int8cal.job import ActivationType, Fallback, Goal, Job, Method, RecipeName, Runtime, TargetName, WeightRange
    from int8cal.numerics import Array
    from int8cal.progress import Event

    Model = str | Path | onnx.ModelProto
    FeedLike = Mapping[str, Array]
    Data = str | Path | Iterable[FeedLike] | Callable[[], Iterable[FeedLike]]


def calibrate(
    model: Model,
    data: Data,
    *,
    samples: int | None = None,
    columns: Sequence[str] = (),
    preprocess: str | Mapping[str, object] | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    method: Method = "auto",
    percentile: float = 99.99,
    batch_size: int = 8,
    threads: int = 0,
    statistics: str | Path | None = None,
    recipe: RecipeName = "fast",
    target: TargetName = DEFAULT_TARGET,
    activations: ActivationType | None = None,
    weights: WeightRange | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    weights_only: bool | Sequence[str] | None = None,
    uint8_input: bool = False,
    optimize: Goal | None = None,
    explain: bool = False,
    latency_allowance: float = 10.0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    budget: float | None = None,
    fallback: Fallback = "float",
    eval_data: str | Path | None = None,
    metric: str | Callable[..., object] | None = None,
    gates: Sequence[str] = (),
    strict: bool = False,
    progress: Callable[[Event], object] | None = None,
) -> CalibrationTable:
    """Calibrate a model.

    The keywords are settings of the YAML's sections data, calibration, quantization and evaluation, with the same
    names, meanings and defaults; `eval_data` is the path evaluation.data, and None for `activations` or `weights` takes
    the target's own. With feeds and `uint8_input`, `preprocess` says how the feeds were made. `budget` and `fallback`
    leave layers in float until `gates` hold, on `eval_data` or on the data itself; they may be about a `metric` of your
    own, "package.module:function" or the function itself; without `budget` all three are refused. What is found about
    the data is a `DataWarning`, or with `strict` an error; so is what has no effect on feeds, such as `columns`.

    Args:
        model: Path of an FP32 ONNX file, or a model in memory.
        data: A path as on the command line ("datasets:NAME" and "package.module:function" too), an iterable of feeds
            {input name: array}, a dataset that has a length and gives them by their number, or a function that returns
            one. An array of the model's rank is a batch, of one rank less a sample.
        progress: Called with every change of where the run is, see `int8cal.progress.Event`.

    Returns:
        The table; `quantize` builds the model from it.

    Raises:
        Int8calError: One of its subclasses, see int8cal.errors.
    """
    given = locals()
    del given["progress"]
    path, stream = _source(data)
    job = _job(model, path, "calibrate", given)
    if stream is not None:
        _tell_unheeded(given, preprocessed=uint8_input or eval_data is not None)
    if job.quantization.budget is None:
        for name, what in (("gates", "gates without a budget decide"), ("metric", "a metric without a budget decides")):
            if given[name]:
                raise UsageError(f"{what} nothing in calibrate", do="give budget, or call evaluate")
    if job.quantization.budget is not None and job.evaluation.data is None and isinstance(data, Iterator):
        raise UsageError("a budget reads the data more than once", do="give a list or a function, or eval_data")
    with placed_patterns(lambda key: key.rpartition(".")[2]), watching(progress), weights_folder():
        calibrated = calibrate_model(job, _model(model), stream=stream, metric=metric_of(metric))
    for finding in calibrated.findings:
        warnings.warn(str(finding), DataWarning, stacklevel=2)
    return identified(calibrated.result.table)


def quantize(model: Model, table: CalibrationTable | str | Path, *, force: bool = False) -> onnx.ModelProto:
    """Build the int8 model of a table.

    Args:
        model: The FP32 model that the table was made for.
        table: From `calibrate`, or the path of a .table.json.
        force: Take a table that was made for another model, as one with the same layers: its ranges and scales of
            weights are kept, and clip what is larger in this model. Stored codes of other weights stay refused.

    Returns:
        The QDQ model.

    Raises:
        UsageError: `table` is neither.
        TableError: The table was made for another model, lacks a tensor, or its file cannot be read.
    """
    where = "table"
    if isinstance(table, (str, os.PathLike)):
        path = Path(os.fsdecode(table))
        where, table = str(path), load_table(path)
    elif not isinstance(table, CalibrationTable):
        raise UsageError(f"table is {_kind(table)}", do="give a CalibrationTable, or the path of a .table.json")
    with weights_folder():
        prepared = prepare(_model(model), simplify, table.settings.activations)
        return with_values(quantize_prepared(prepared, table, where, force=force).model)


def evaluate(
    fp32: Model,
    int8: Model,
    data: Data,
    *,
    samples: int | None = None,
    columns: Sequence[str] = (),
    preprocess: str | Mapping[str, object] | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    threads: int = 0,
    target: TargetName = DEFAULT_TARGET,
    labels: str | Path | None = None,
    metric: str | Callable[..., object] | None = None,
    runtimes: Sequence[Runtime] = (),
    providers: Sequence[str] = (),
    latency: bool = True,
    strict: bool = False,
    progress: Callable[[Event], object] | None = None,
) -> Report:
    """Compare an int8 model, made by any tool, with its FP32 model.

    The keywords are settings of the YAML, with the same names, meanings and defaults. The int8 model runs on
    `runtimes`, such as ["openvino"], beside onnxruntime, which takes `providers`, such as ["cuda", "cpu"]. A `metric`
    of your own is "package.module:function", the name of an installed one, or the function itself: it is called with
    the outputs and labels of each model, and the report's evaluation.metric has its figures.

    Args:
        fp32: Path of the float model, or the model in memory.
        int8: Likewise the int8 model.
        data: As for `calibrate`.
        progress: Likewise.

    Returns:
        The report, without gates.

    Raises:
        Int8calError: One of its subclasses, see int8cal.errors.
    """
    given = locals()
    del given["progress"]
    path, stream = _source(data)
    job = _job(fp32, path, "evaluate", given)
    if stream is not None:
        _tell_unheeded(given, preprocessed=False)
    with watching(progress), weights_folder():
        report = evaluate_models(
            job,
            _model(fp32),
            _model(int8),
            metric=metric_of(metric),
            command="int8cal.evaluate(...)",
            stream=stream,
        )
    for failure in report.evaluation.failures:
        raise failure
    require_sound(report)
    return report


def _model(model: Model) -> Path | onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        files = sorted(external_files(model))
        if files:  # nobody knows which folder they are in
            what = f'holds no weights of its own: they are in "{files[0]}", which was not loaded'
            do = "give the path of the .onnx file, or load it with its external data"
            raise ModelError(what, where=model.graph.name or "model", do=do)
        return model
    if isinstance(model, (str, os.PathLike)):
        return Path(os.fsdecode(model))
    # the API is called without a type checker too
    raise UsageError(f"the model is {_kind(model)}", do="give the path of an .onnx file, or an onnx.ModelProto")


def _kind(value: object) -> str:
    return "None" if value is None else f"of the type {type(value).__name__}"


def _source(data: Data) -> tuple[str, Callable[[], object] | None]:
    if isinstance(data, (str, os.PathLike)):
        return os.fsdecode(data), None
    if callable(data):
        return "data", data
    do = "give a path, an iterable of feeds {input name: array}, or a function that returns one"
    if isinstance(data, Mapping):
        raise UsageError("the data is a single mapping", do="give a list of feeds: [{input name: array}, ...]")
    if isinstance(data, bytes) or not gives_items(data):
        raise UsageError(f"the data is {_kind(data)}", do=do)
    return "data", lambda: data


_OF_FILES = {  # keywords that say how files are read, and what does the same for feeds
    "columns": "make the feeds of these columns",
    "labels": 'yield them in each feed under the key "labels"',
    "preprocess": "preprocess the arrays before they are given",
}


def _tell_unheeded(given: Mapping[str, object], *, preprocessed: bool) -> None:
    """Warn of what has no effect on feeds in memory, and may be meant to have one.

    Args:
        given: The call's arguments.
        preprocessed: Whether the preprocessing says how the feeds were made, or is for other data.

    Raises:
        UsageError: In place of a warning, where `strict` is given; names the argument.
    """
    for name, do in _OF_FILES.items():
        if given.get(name) and not (name == "preprocess" and preprocessed):
            what = f"{name} is for data from files, and feeds are taken as they are"
            if given.get("strict"):
                raise UsageError(what, do=do)
            warnings.warn(f"{what}; {do}", DataWarning, stacklevel=3)


def _job(model: Model, data: str, function: Literal["calibrate", "evaluate"], given: Mapping[str, object]) -> Job:
    """Make the job of a call from its arguments; None stands for a default."""
    known = keywords(function)
    paths = {name: f"{each.path}.path" if each.section is DataSettings else each.path for name, each in known.items()}
    options = {path: _plain(given[name]) for name, path in paths.items() if given[name] is not None}
    name = "model.onnx" if isinstance(model, onnx.ModelProto) else str(_model(model))
    flags = {path: keyword for keyword, path in paths.items()}
    job = job_from_options({**options, "model": name, "data.path": data}, flags=flags)
    require_available(job)
    return job


def _plain(value: object) -> object:
    """Write a value as YAML has it: no tuples, no paths, numbers of numpy as Python's, functions by their names."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if callable(value):
        return function_name(value)
    return str(value) if isinstance(value, Path) else value
