"""The order of an evaluation: two models and data become a report."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import int8cal
from int8cal.atomic import staged_directory
from int8cal.data.feeds import Feeds, feeds_of, open_feeds
from int8cal.errors import ModelError
from int8cal.evaluation.evaluate import evaluate_pair
from int8cal.evaluation.gates import judge, need_labels, parse_gate, require_measurable, require_outputs
from int8cal.evaluation.result import Report
from int8cal.evaluation.runtimes import further
from int8cal.evaluation.steps import steps_of
from int8cal.graph.load import file_sha256, is_quantized, load_model, model_sha256
from int8cal.graph.signature import signature_of
from int8cal.output_paths import require_free
from int8cal.progress import Clock, Progress, silent
from int8cal.report.write import write_reports
from int8cal.runtime.providers import CPU, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    from int8cal.graph.signature import Signature
    from int8cal.job import DataSettings


def evaluate_files(
    fp32: Path,
    int8: Path,
    data: DataSettings,
    *,
    output: Path | None = None,
    gates: Sequence[str] = (),
    target: str = "portable",
    threads: int = 0,
    latency: bool = True,
    runtimes: Sequence[str] = (),
    providers: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare two models on data, and write the reports where asked.

    Raises:
        Int8calError: Of the station that failed.
    """
    parsed = [parse_gate(text) for text in gates]
    require_measurable(parsed, latency=latency)
    further(runtimes)
    providers = resolve(providers)
    require_outputs(parsed, lambda: output_names(fp32))
    if output is not None:
        require_free(output, overwrite=overwrite, directory=True)
    report = evaluate_models(
        fp32,
        int8,
        data,
        target=target,
        threads=threads,
        latency=latency,
        runtimes=runtimes,
        providers=providers,
        require_labels=need_labels(parsed),
        progress=progress,
    )
    report = replace(report, gates=judge(parsed, report.evaluation))
    if output is not None:
        with staged_directory(output) as stage:
            write_reports(report, stage)
    return report


def evaluate_models(
    fp32: Path | onnx.ModelProto,
    int8: Path | onnx.ModelProto,
    data: DataSettings,
    *,
    target: str = "portable",
    threads: int = 0,
    latency: bool = True,
    runtimes: Sequence[str] = (),
    providers: Sequence[str] = (),
    require_labels: bool = False,
    progress: Progress | None = None,
    stream: Callable[[], object] | None = None,
) -> Report:
    """Compare two models on data.

    Args:
        runtimes: Where the int8 model runs beside onnxruntime.
        providers: onnxruntime's execution providers, in the order of preference; none for CPU.
        require_labels: Refuse data without labels, before anything is run.
        stream: Yields feed dicts, in place of the data's path.

    Raises:
        ModelError: One of them cannot be loaded, or they are in each other's place.
        DataError: The data does not fit the model.
    """
    show = progress or silent
    clock = Clock()
    original = load_model(fp32) if isinstance(fp32, Path) else fp32
    signature = signature_of(original)
    if is_quantized(original) and not is_quantized(load_model(int8) if isinstance(int8, Path) else int8):
        raise ModelError(
            "is quantized, and the model that it is compared with is not",
            where=str(fp32) if isinstance(fp32, Path) else "fp32",
            do="give the float model first, then the int8 model",
        )
    del original
    feeds = open_samples(data, signature, stream, require_labels=require_labels)
    with clock.station("evaluate"):
        evaluation = evaluate_pair(
            fp32,
            int8,
            feeds,
            target=target,
            threads=threads,
            latency=latency,
            runtimes=runtimes,
            providers=providers,
            progress=lambda samples: show(samples, feeds.count, "evaluate"),
            reasons={"layers.clipped": "only known where int8cal calibrated the model"},
        )
    names = {
        "fp32": fp32.name if isinstance(fp32, Path) else "fp32",
        "int8": int8.name if isinstance(int8, Path) else "int8",
    }
    sha256 = file_sha256(fp32) if isinstance(fp32, Path) else model_sha256(fp32)
    return Report(
        model={"name": names["fp32"], "sha256": sha256, "int8": names["int8"]},
        settings={"evaluation": evaluation_settings(data, providers), "versions": versions(runtimes)},
        evaluation=evaluation,
        timing_s=clock.seconds,
        warnings=(*skipped_warnings(feeds.skipped), *fewer_samples(data, evaluation.samples)),
        steps=steps_of(int8),
    )


def open_samples(
    data: DataSettings, signature: Signature, stream: Callable[[], object] | None, *, require_labels: bool = False
) -> Feeds:
    """Open the samples of a path, or of a stream of feed dicts in its place."""
    if stream is None:
        return open_feeds(data, signature, require_labels=require_labels)
    return feeds_of(stream, signature, data.samples)


def output_names(model: Path) -> tuple[str, ...]:
    """Name the outputs of a model."""
    return tuple(spec.name for spec in signature_of(load_model(model)).outputs)


def versions(runtimes: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions that figures depend on, those of further runtimes too."""
    names = ("onnx", "onnxruntime", "numpy", *further(runtimes))
    libraries = {name: importlib.metadata.version(name) for name in names}
    return {"int8cal": int8cal.__version__, **libraries}


def data_settings(data: DataSettings) -> dict[str, object]:
    """Return the data's settings as the report tells them."""
    return {key: value for key, value in asdict(data).items() if value is not None}


def evaluation_settings(data: DataSettings, providers: Sequence[str]) -> dict[str, object]:
    """Return what an evaluation ran on, as the report tells it: data, and providers where these are not CPU alone."""
    resolved = resolve(providers)
    return {"data": data_settings(data), **({} if resolved == (CPU,) else {"providers": list(resolved)})}


def skipped_warnings(names: Sequence[str]) -> tuple[str, ...]:
    """Say which unreadable files were left out."""
    if not names:
        return ()
    shown = ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
    return (f"{len(names)} unreadable file(s) skipped: {shown}",)


def fewer_samples(data: DataSettings, samples: int) -> tuple[str, ...]:
    """Say that there were fewer samples than asked for."""
    if data.samples is None or samples >= data.samples:
        return ()
    return (f"{data.path} gave {samples} samples, {data.samples} were asked for",)
