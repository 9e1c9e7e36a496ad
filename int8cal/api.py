"""The Python API: the same engine as the command line, without files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from int8cal.config.available import require_available
from int8cal.config.load import job_from_options
from int8cal.config.patterns import placed_patterns
from int8cal.errors import UsageError
from int8cal.evaluating import evaluate_models
from int8cal.graph.prepared import prepare
from int8cal.identity import identified
from int8cal.pipeline import calibrate_model, quantize_prepared
from int8cal.runtime.simplify import simplify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from int8cal.calibration.table import CalibrationTable
    from int8cal.evaluation.result import Report
    from int8cal.job import Job

    Model = str | Path | onnx.ModelProto
    Feed = Mapping[str, npt.NDArray[Any]]
    Data = str | Path | Iterable[Feed] | Callable[[], Iterable[Feed]]

# keyword -> key path of the YAML
_CALIBRATE = {
    "method": "calibration.method",
    "percentile": "calibration.percentile",
    "batch_size": "calibration.batch_size",
    "threads": "calibration.threads",
    "statistics": "calibration.statistics",
    "recipe": "quantization.recipe",
    "target": "quantization.target",
    "activations": "quantization.activations",
    "weights": "quantization.weights",
    "exclude": "quantization.exclude",
    "include": "quantization.include",
    "ranges": "quantization.ranges",
    "uint8_input": "quantization.uint8_input",
    "optimize": "quantization.optimize",
    "latency_allowance": "quantization.latency_allowance",
    "explain": "quantization.explain",
    "budget": "quantization.budget",
    "fallback": "quantization.fallback",
    "gates": "evaluation.gates",
    "eval_data": "evaluation.data.path",
    "samples": "data.samples",
    "seed": "data.seed",
    "skip_bad": "data.skip_bad",
    "preprocess": "data.preprocess",
}
_EVALUATE = {
    "samples": "data.samples",
    "seed": "data.seed",
    "skip_bad": "data.skip_bad",
    "labels": "data.labels",
    "preprocess": "data.preprocess",
    "threads": "calibration.threads",
    "latency": "evaluation.latency",
    "runtimes": "evaluation.runtimes",
    "providers": "evaluation.providers",
    "target": "quantization.target",
}


def calibrate(model: Model, data: Data, **settings: object) -> CalibrationTable:
    """Calibrate a model.

    Args:
        model: Path of an FP32 ONNX file, or a model in memory.
        data: A path as on the command line ("package.module:function" too), an iterable of feeds {input name: array},
            or a function that returns one. An array of the model's rank is a batch, of one rank less a sample.
        **settings: As on the command line: method, percentile, recipe, target, activations, weights, exclude, include,
            samples, seed, batch_size, threads, skip_bad, statistics (a .stats.npz in place of counting); and ranges
            {tensor: (low, high)}, preprocess {resize: …}, and uint8_input (raw pixels go into the int8 model; with
            feeds, preprocess then says how they were made), and optimize="latency" (layers that are slower in int8 on
            this machine stay float), and latency_allowance in percent. budget (percent) and fallback leave layers in
            float until gates hold, on eval_data (a path) or on the data itself.

    Returns:
        The table; `quantize` builds the model from it.

    Raises:
        Int8calError: One of its subclasses, see int8cal.errors.
    """
    path, stream = _source(data)
    job = _job(model, path, settings, _CALIBRATE)
    if job.evaluation.gates and job.quantization.budget is None:
        raise UsageError("gates without a budget decide nothing in calibrate", do="give budget, or call evaluate")
    if job.quantization.budget is not None and job.evaluation.data is None and isinstance(data, Iterator):
        raise UsageError("a budget reads the data more than once", do="give a list or a function, or eval_data")
    with placed_patterns(lambda key: key.rpartition(".")[2]):
        calibrated, _ = calibrate_model(job, _model(model), stream=stream)
    return identified(calibrated.result.table)


def quantize(model: Model, table: CalibrationTable) -> onnx.ModelProto:
    """Build the int8 model of a table.

    Args:
        model: The FP32 model that the table was made for.
        table: From `calibrate`.

    Returns:
        The QDQ model.

    Raises:
        TableError: The table was made for another model, or lacks a tensor.
    """
    built = quantize_prepared(prepare(_model(model), simplify), table, "table")
    return built.model


def evaluate(fp32: Model, int8: Model, data: Data, **settings: object) -> Report:
    """Compare an int8 model, made by any tool, with its FP32 model.

    Args:
        fp32: Path of the float model, or the model in memory.
        int8: Likewise the int8 model.
        data: As for `calibrate`.
        **settings: samples, seed, skip_bad, labels, preprocess, target, threads, latency; runtimes, such as
            ["openvino"], where the int8 model runs beside onnxruntime; providers, such as ["cuda", "cpu"].

    Returns:
        The report, without gates.

    Raises:
        Int8calError: One of its subclasses, see int8cal.errors.
    """
    path, stream = _source(data)
    job = _job(fp32, path, settings, _EVALUATE)
    report = evaluate_models(
        _model(fp32),
        _model(int8),
        job.data,
        target=job.quantization.target,
        threads=job.calibration.threads,
        latency=job.evaluation.latency,
        runtimes=job.evaluation.runtimes,
        providers=job.evaluation.providers,
        stream=stream,
    )
    for failure in report.evaluation.failures:
        raise failure
    return report


def _model(model: Model) -> Path | onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else Path(model)


def _source(data: Data) -> tuple[str, Callable[[], object] | None]:
    if isinstance(data, (str, Path)):
        return str(data), None
    if callable(data):
        return "data", data
    return "data", lambda: data


def _job(model: Model, data: str, settings: Mapping[str, object], keys: Mapping[str, str]) -> Job:
    unknown = sorted(settings.keys() - keys.keys())
    if unknown:
        raise UsageError(f"unknown setting {unknown[0]!r}", do=f"the settings are {', '.join(sorted(keys))}")
    options = {keys[name]: _plain(value) for name, value in settings.items() if value is not None}
    name = "model.onnx" if isinstance(model, onnx.ModelProto) else str(model)
    job = job_from_options(
        {**options, "model": name, "data.path": data}, flags={path: keyword for keyword, path in keys.items()}
    )
    require_available(job)
    return job


def _plain(value: object) -> object:
    """Make lists of tuples, which the YAML's schema does not know."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
