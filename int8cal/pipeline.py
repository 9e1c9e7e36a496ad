"""The order of the stations, readable as one page: what the commands and the Python API both run."""

from __future__ import annotations

import importlib.metadata
import math
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import int8cal
from int8cal.atomic import atomic_path, staged_directory
from int8cal.calibration.engines.local import collect
from int8cal.calibration.statistics import Statistics, merge
from int8cal.calibration.statistics_file import load_statistics, save_statistics
from int8cal.calibration.table import CalibrationTable
from int8cal.calibration.table_file import load_table, save_table
from int8cal.data.ahead import read_ahead
from int8cal.data.feeds import Feeds, feeds_of, open_feeds
from int8cal.errors import ModelError, OutputError, TableError
from int8cal.evaluation.evaluate import evaluate_pair
from int8cal.evaluation.gates import judge, parse_gate, require_measurable
from int8cal.evaluation.judge import output_judge
from int8cal.evaluation.leave_float import leave_slow_layers
from int8cal.evaluation.result import Evaluation, Optimization, Report
from int8cal.graph.chains import find_chains
from int8cal.graph.load import load_model, save_model
from int8cal.graph.prepared import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import make_taps
from int8cal.numerics.warm_up import warm_up
from int8cal.quantization.build import build_model
from int8cal.quantization.correct import Corrected, balance, find_ranges, make_table
from int8cal.quantization.left_out import left_of
from int8cal.quantization.recipes import RECIPES, RecipeRule
from int8cal.quantization.uint8_input import CORRECTION, plan_uint8_input
from int8cal.report.histograms import tensor_histograms
from int8cal.report.write import write_reports
from int8cal.runtime.simplify import simplify
from int8cal.runtime.targets import weight_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import onnx

    from int8cal.data.sample import Sample
    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.job import DataSettings, Job
    from int8cal.quantization.build import Built

T = TypeVar("T")
REPORT_FILES = ("report.json", "report.md", "report.html")


class Progress(Protocol):
    """Shows how far a pass is."""

    def __call__(self, iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:
        """Pass the items on."""


def _silent(iterable: Iterable[T], total: int | None, label: str) -> Iterable[T]:  # noqa: ARG001 - the protocol's shape
    return iterable


@dataclass(frozen=True)
class Calibrated:
    """What calibration found out; the models themselves are not kept."""

    signature: Signature
    plan: Plan
    statistics: Statistics
    corrected: Corrected
    skipped: tuple[str, ...]
    timing_s: dict[str, float]
    optimize: Optimization | None = None


@dataclass(frozen=True)
class CalibrationOutcome:
    """Where the files are, and the report."""

    directory: Path
    report: Report
    files: tuple[Path, ...]


@dataclass(frozen=True)
class QuantizeOutcome:
    """The model that was written, and warnings."""

    output: Path
    warnings: tuple[str, ...]


@dataclass
class _Clock:
    """Seconds per station."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def station(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def calibrate_model(
    job: Job,
    source: Path | onnx.ModelProto,
    *,
    progress: Progress = _silent,
    stream: Callable[[], object] | None = None,
) -> tuple[Calibrated, onnx.ModelProto]:
    """Go from data to statistics, table and int8 model, in memory.

    Args:
        job: Settings; its model field only names the model.
        source: The FP32 model.
        progress: Shows the pass over the data.
        stream: Yields feed dicts, in place of the job's data path.

    Raises:
        Int8calError: Of the station that failed.
    """
    clock = _Clock()
    rule = RECIPES[job.quantization.recipe]
    with clock.station("prepare"):
        threading.Thread(target=warm_up, daemon=True).start()  # beside the runtime's folding
        prepared = prepare(source, simplify)
        selection = Selection(job.quantization.include, job.quantization.exclude)
        plan = require_layers(prepared, selection)
        taps = make_taps(plan, find_chains(prepared.model, plan))
        uint8 = plan_uint8_input(prepared, plan, job.data.preprocess, job.quantization)
        feeds = _open(job.data, prepared.signature, stream)
        samples: Iterable[Sample] = feeds if uint8 is None else uint8.pixels.checked(feeds)
    with clock.station("calibrate"):
        collected = collect(
            prepared.model,
            prepared.signature,
            taps,
            progress(read_ahead(samples, job.calibration.batch_size), feeds.count, "calibrate"),
            model_sha256=prepared.sha256,
            threads=job.calibration.threads,
            keep=rule.judge_samples or (1 if job.quantization.optimize else 0),
        )
    blank = _blank_table(job, prepared, collected.statistics)
    kept, threads = collected.kept[: rule.judge_samples], job.calibration.threads

    def tabulated(rule: RecipeRule) -> tuple[Corrected, onnx.ModelProto]:
        with clock.station("quantize"):
            balanced = balance(prepared.model, plan, collected.statistics, rule)
        with clock.station("thresholds"):
            ranges = find_ranges(plan, balanced, job.calibration, job.quantization, uint8)
        with clock.station("quantize"):
            judge = output_judge(prepared.model, prepared.signature, kept, threads=threads)
            return make_table(prepared.model, plan, balanced, ranges, rule, blank, judge, uint8=uint8)

    corrected, int8 = tabulated(rule)
    found = None
    if job.quantization.optimize == "latency":
        tables = (corrected, corrected)
        if corrected.table.corrections.get("equalization"):
            tables = (corrected, tabulated(RecipeRule(math.inf, bias_correction=False, judge_samples=0))[0])
        with clock.station("optimize"):
            faster = leave_slow_layers(prepared, selection, plan, tables, collected.kept[0], threads=threads)
            plan, corrected, int8, found = faster.plan, faster.corrected, faster.model, faster.found
    skipped = tuple(feeds.skipped)
    return Calibrated(prepared.signature, plan, collected.statistics, corrected, skipped, clock.seconds, found), int8


def calibrate_job(job: Job, *, progress: Progress | None = None) -> CalibrationOutcome:
    """Run a whole job and write its files.

    Raises:
        Int8calError: Of the station that failed; nothing was written then. A failed gate is in the report.
    """
    show = progress or _silent
    gates = [parse_gate(text) for text in job.evaluation.gates]
    require_measurable(gates, latency=job.evaluation.latency)
    stem = _stem(job)
    directory = job.output.dir or Path(f"{stem}-int8")
    names = (f"{stem}.int8.onnx", f"{stem}.table.json", f"{stem}.stats.npz")
    written = tuple(directory / name for name in (*names, *REPORT_FILES))
    require_free(directory, overwrite=job.output.overwrite, directory=True)
    require_apart(written, (job.model,))
    require_apart((directory,), (Path(job.data.path), Path((job.evaluation.data or job.data).path)))
    calibrated, int8 = calibrate_model(job, job.model, progress=show)
    clock = _Clock(calibrated.timing_s)
    feeds = open_feeds(job.evaluation.data or job.data, calibrated.signature)
    with staged_directory(directory) as stage:
        with clock.station("quantize"):
            save_model(int8, stage / names[0])
            del int8  # evaluation reads the file: a large model is not held twice
            save_table(calibrated.corrected.table, stage / names[1])
            save_statistics(calibrated.statistics, stage / names[2])
        with clock.station("evaluate"):
            evaluation = _evaluate(job, stage / names[0], feeds, calibrated, show)
        report = _report(job, calibrated, evaluation, clock.seconds)
        report = replace(report, gates=judge(gates, evaluation))
        write_reports(report, stage)
    return CalibrationOutcome(directory, report, written)


def quantize_file(
    model: Path, table: Path, output: Path, *, force: bool = False, overwrite: bool = False
) -> QuantizeOutcome:
    """Write the int8 model of an existing table: no data, no inference.

    Raises:
        TableError: The table is malformed, or made for another model and not `force`.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), (model, table))
    loaded = load_table(table)
    prepared = prepare(model, simplify)
    built = quantize_prepared(prepared, loaded, str(table), force=force)
    save_model(built.model, output)
    return QuantizeOutcome(output, built.warnings)


def quantize_prepared(prepared: Prepared, table: CalibrationTable, where: str, *, force: bool = False) -> Built:
    """Build the int8 model of a table, after checking that the table is this model's."""
    made_for = table.model.get("sha256")
    if made_for != prepared.sha256 and not force:
        raise TableError(
            f"was made for another model (sha256 {str(made_for)[:12]}…, this one is {prepared.sha256[:12]}…)",
            where=where,
            do="calibrate this model, or give --force if only its bytes differ",
        )
    include, exclude = (tuple(table.settings.get(key, ())) for key in ("include", "exclude"))
    selection = Selection(include, exclude, left_of(table))
    plan = require_layers(prepared, selection)
    return build_model(prepared.model, plan, table)


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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare two models on data, and write the reports where asked.

    Raises:
        Int8calError: Of the station that failed.
    """
    parsed = [parse_gate(text) for text in gates]
    require_measurable(parsed, latency=latency)
    if output is not None:
        require_free(output, overwrite=overwrite, directory=True)
    report = evaluate_models(fp32, int8, data, target=target, threads=threads, latency=latency, progress=progress)
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
    progress: Progress | None = None,
    stream: Callable[[], object] | None = None,
) -> Report:
    """Compare two models on data; see `calibrate_model` for `stream`."""
    show = progress or _silent
    clock = _Clock()
    signature = signature_of(load_model(fp32) if isinstance(fp32, Path) else fp32)
    feeds = _open(data, signature, stream)
    with clock.station("evaluate"):
        evaluation = evaluate_pair(
            fp32,
            int8,
            feeds,
            target=target,
            threads=threads,
            latency=latency,
            progress=lambda samples: show(samples, feeds.count, "evaluate"),
            reasons={"layers.clipped": "only known where int8cal calibrated the model"},
        )
    names = {
        "fp32": fp32.name if isinstance(fp32, Path) else "fp32",
        "int8": int8.name if isinstance(int8, Path) else "int8",
    }
    return Report(
        model={"name": names["fp32"], "int8": names["int8"]},
        settings={"evaluation": {"data": _data_settings(data)}, "versions": versions()},
        evaluation=evaluation,
        timing_s=clock.seconds,
        warnings=_skipped(feeds.skipped),
    )


@dataclass(frozen=True)
class MergeOutcome:
    """How many samples the sum holds, and warnings."""

    samples: int
    warnings: tuple[str, ...]


def merge_files(inputs: Sequence[Path], output: Path, overwrite: bool = False) -> MergeOutcome:
    """Add the statistics of shards and write the sum.

    Raises:
        StatisticsError: A file is unreadable, or the shards do not belong together.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), inputs)
    seen: dict[int, Path] = {}
    warnings = []

    def shards() -> Iterator[Statistics]:
        for path in inputs:
            shard = load_statistics(path)
            if shard.fingerprint in seen:
                warnings.append(f"{path} holds the same samples as {seen[shard.fingerprint]}; they count twice")
            seen[shard.fingerprint] = path
            yield shard

    total = merge(shards())
    save_statistics(total, output)
    return MergeOutcome(total.samples, tuple(warnings))


def _open(data: DataSettings, signature: Signature, stream: Callable[[], object] | None) -> Feeds:
    return open_feeds(data, signature) if stream is None else feeds_of(stream, signature, data.samples)


def require_free(path: Path, *, overwrite: bool, directory: bool = False) -> None:
    """Refuse an output that exists without --overwrite, is of the wrong kind, or cannot be written; creates nothing.

    Raises:
        OutputError: Says which of these.
    """
    if path.exists():
        if directory != path.is_dir():
            kind = "a file" if directory else "a directory"
            raise OutputError(f"is {kind}", where=str(path), do="give another output path")
        if not overwrite:
            raise OutputError("exists", where=str(path), do="give --overwrite, or another output path")
    parent = path if path.is_dir() else next((each for each in path.absolute().parents if each.exists()), Path("/"))
    if not directory and not path.parent.is_dir():
        raise OutputError(f"its directory {path.parent} does not exist", where=str(path), do="create it first")
    if not parent.is_dir():
        raise OutputError(f"{parent} is not a directory", where=str(path), do="give another output path")
    # access rights alone do not tell (read-only mounts, root): try to create a file
    if directory:
        _probe(parent, path)


def require_apart(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, with --overwrite too.

    Raises:
        OutputError: Names the output.
    """
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path.resolve() in read:
            raise OutputError("is also an input", where=str(path), do="give another output path")


def _probe(parent: Path, path: Path) -> None:
    try:
        with atomic_path(parent / ".int8cal-probe") as temporary:
            temporary.write_bytes(b"")
        (parent / ".int8cal-probe").unlink()
    except OSError as error:
        raise OutputError(
            f"cannot be written ({error.strerror})", where=str(path), do="give another output path"
        ) from error


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    libraries = {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime", "numpy")}
    return {"int8cal": int8cal.__version__, **libraries}


def _stem(job: Job) -> str:
    return job.model.name.removesuffix(".onnx")


def _blank_table(job: Job, prepared: Prepared, statistics: Statistics) -> CalibrationTable:
    settings: dict[str, Any] = {
        "method": job.calibration.method,
        "percentile": job.calibration.percentile,
        "recipe": job.quantization.recipe,
        "target": job.quantization.target,
        "activations": job.quantization.activations,
        "weights": weight_range(job.quantization),
        "include": list(job.quantization.include),
        "exclude": list(job.quantization.exclude),
        "uint8_input": job.quantization.uint8_input,
        "ranges": {name: list(ends) for name, ends in job.quantization.ranges.items()},
        "preprocess": asdict(job.data.preprocess) if job.data.preprocess is not None else None,
    }
    if job.quantization.optimize is not None:
        settings["optimize"] = job.quantization.optimize
    return CalibrationTable(
        model={"sha256": prepared.sha256, "name": prepared.name},
        data={"fingerprint": f"{statistics.fingerprint:032x}", "samples": statistics.samples},
        settings=settings,
        tensors={},
        weights={},
    )


def _evaluate(job: Job, int8: Path, feeds: Feeds, calibrated: Calibrated, show: Progress) -> Evaluation:
    entries = calibrated.corrected.table.tensors
    return evaluate_pair(
        job.model,
        int8,
        feeds,
        target=job.quantization.target,
        threads=job.calibration.threads,
        latency=job.evaluation.latency,
        clipped={name: entry.clipped for name, entry in entries.items()},
        progress=lambda samples: show(samples, feeds.count, "evaluate"),
    )


def _report(job: Job, calibrated: Calibrated, evaluation: Evaluation, timing: dict[str, float]) -> Report:
    table = calibrated.corrected.table
    warnings = [*table.warnings, *_skipped(calibrated.skipped)]
    if job.evaluation.data is None:
        warnings.append("evaluated on the calibration data; give evaluation data of its own for a figure to rely on")
    gone = table.corrections.get(CORRECTION, {}).get("folded", ())
    stay = (item for item in calibrated.plan.left if item.node not in gone)
    left = [f"not quantized: {item.op_type} {item.node}: {item.reason}" for item in stay]
    return Report(
        model={
            **table.model,
            "int8": f"{_stem(job)}.int8.onnx",
            "samples": table.data["samples"],
            "data_fingerprint": table.data["fingerprint"],
        },
        settings={
            **table.settings,
            "data": _data_settings(job.data),
            "evaluation": {"data": _data_settings(job.evaluation.data or job.data)},
            "versions": versions(),
        },
        evaluation=evaluation,
        timing_s=timing,
        warnings=tuple(warnings),
        decisions=(*calibrated.corrected.decisions, *left),
        histograms=tensor_histograms(
            calibrated.corrected.tensors, table, job.quantization.activations, job.calibration.percentile
        ),
        optimize=calibrated.optimize,
    )


def _data_settings(data: DataSettings) -> dict[str, object]:
    return {key: value for key, value in asdict(data).items() if value is not None}


def _skipped(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    shown = ", ".join(names[:3]) + ("…" if len(names) > 3 else "")
    return (f"{len(names)} unreadable file(s) skipped: {shown}",)


__all__ = [
    "CalibrationOutcome",
    "ModelError",
    "QuantizeOutcome",
    "calibrate_job",
    "evaluate_files",
    "merge_files",
    "quantize_file",
]
