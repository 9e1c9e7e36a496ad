"""The order of the stations, readable as one page: what the commands and the Python API both run."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from int8cal.atomic import OutputDirectory
from int8cal.calibration.engines.local import collect
from int8cal.calibration.engines.stored import stored
from int8cal.calibration.table import StepResult
from int8cal.data.ahead import read_ahead
from int8cal.data.feeds import Feeds, open_feeds
from int8cal.evaluating import (
    data_settings,
    evaluation_settings,
    fewer_samples,
    open_samples,
    output_names,
    padding_lines,
    skipped_warnings,
    trimmer,
    versions,
)
from int8cal.evaluation.evaluate import evaluate_pair, nothing_measured
from int8cal.evaluation.gates import check_gates, need_labels, parse_gate, require_measurable, require_outputs
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import Evaluation, MixedPrecision, Optimization, Report
from int8cal.evaluation.runtimes import further, speed_warnings, target_warnings
from int8cal.finishing import REPORT_FILES, Caught, Finisher
from int8cal.graph.chains import find_chains
from int8cal.graph.costs import inference_us
from int8cal.graph.load import Watched
from int8cal.graph.prepared import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps
from int8cal.identity import identified
from int8cal.numerics.warm_up import warm_up
from int8cal.output_paths import require_apart, require_free
from int8cal.progress import Clock, Exclusive, Progress, silent
from int8cal.quantization.blank_table import blank_table
from int8cal.quantization.uint8_input import CORRECTION, plan_uint8_input
from int8cal.report.histograms import tensor_histograms
from int8cal.report.weights import weights_of
from int8cal.runtime.providers import resolve
from int8cal.runtime.simplify import simplify
from int8cal.search.candidate import Inputs
from int8cal.search.goals.budget import BestResult, kept_samples, spend_budget
from int8cal.search.goals.leave_float import leave_slow_layers
from int8cal.search.holdout import Holdout, split_samples
from int8cal.search.recipes import PLAIN, RECIPES
from int8cal.search.run import run_recipe
from int8cal.search.scorer import Scorer
from int8cal.search.search import Result, explained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.calibration.engines.kept import Collected
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.data.trimming import Trimmer
    from int8cal.graph.plan import Plan
    from int8cal.graph.taps import Tap
    from int8cal.job import Job, Method
    from int8cal.quantization.uint8_input import Uint8Input


@dataclass(frozen=True)
class Calibrated:
    """What calibration found out, with the int8 model."""

    statistics: Statistics
    result: Result
    skipped: tuple[str, ...]
    timing_s: dict[str, float]
    optimize: Optimization | None = None
    mixed: MixedPrecision | None = None
    remark: str = ""


@dataclass(frozen=True)
class CalibrationOutcome:
    """Where the files are, and the report."""

    directory: Path
    report: Report
    files: tuple[Path, ...]


@dataclass(frozen=True, eq=False)
class Planned:
    """What is known of a job before any sample is run.

    Attributes:
        source: The FP32 model as it was given.
        prepared: Folded, with its signature.
        selection: What the user allows to be quantized.
        plan: What is quantized.
        taps: Tensors to count.
        uint8: How the int8 model takes raw pixels; None where it takes floats.
        trim: Takes the padding off samples.
        stream: Yields feed dicts, in place of the job's data path.
        feeds: The calibration samples.
    """

    source: Path | onnx.ModelProto
    prepared: Prepared
    selection: Selection
    plan: Plan
    taps: tuple[Tap, ...]
    uint8: Uint8Input | None
    trim: Trimmer
    stream: Callable[[], object] | None
    feeds: Feeds


def plan_job(
    job: Job, source: Path | onnx.ModelProto, clock: Clock, stream: Callable[[], object] | None = None
) -> Planned:
    """Prepare the model, plan what is quantized, and open the calibration data.

    Args:
        job: Settings; its model field only names the model.
        source: The FP32 model.
        clock: Gets the seconds of the station "prepare".
        stream: Yields feed dicts, in place of the job's data path.

    Raises:
        Int8calError: Of the model, the selection or the data.
    """
    with clock.station("prepare"):
        threading.Thread(target=warm_up, daemon=True).start()  # beside the runtime's folding
        prepared = prepare(source, simplify)
        selection = Selection(job.quantization.include, job.quantization.exclude, target=job.quantization.target)
        plan = require_layers(prepared, selection)
        taps = make_taps(plan, find_chains(prepared.model, plan))
        uint8 = plan_uint8_input(prepared, plan, job.data.preprocess, job.quantization)
        trim = trimmer(prepared.signature, prepared.model, taps=taps, threads=job.calibration.threads)
        feeds = open_samples(job.data, prepared.signature, stream, trim)
    return Planned(source, prepared, selection, plan, taps, uint8, trim, stream, feeds)


def calibrate_model(
    job: Job,
    source: Path | onnx.ModelProto,
    *,
    stream: Callable[[], object] | None = None,
    engine: Callable[..., Collected] | None = None,
) -> Calibrated:
    """Go from data to statistics, table and int8 model, in memory.

    Args:
        job: Settings; its model field only names the model.
        source: The FP32 model.
        stream: Yields feed dicts, in place of the job's data path.
        engine: Does the pass over the data, called as `collect` is; None for the one that the job asks for.

    Raises:
        Int8calError: Of the station that failed.
    """
    clock = Clock()
    return calibrate_planned(job, plan_job(job, source, clock, stream), clock, engine=engine)


def calibrate_planned(
    job: Job,
    planned: Planned,
    clock: Clock,
    *,
    progress: Progress = silent,
    engine: Callable[..., Collected] | None = None,
    best_result: BestResult | None = None,
    exclusive: Exclusive = nullcontext,
) -> Calibrated:
    """Collect statistics, search for the table, and reach the job's goals.

    Args:
        job: Settings.
        planned: Its plan and data.
        clock: Gets the seconds of every station.
        progress: Shows the pass over the data.
        engine: Does the pass over the data, called as `collect` is; None for the one that the job asks for.
        best_result: Gets the table as soon as there is one, and better ones; None for memory alone.
        exclusive: Keeps other jobs from running while speed is measured.

    Raises:
        Int8calError: Of the station that failed.
    """
    best_result = best_result or BestResult()
    collected = _collect(job, planned, clock, progress, engine)
    inputs = _search_inputs(job, planned, collected)
    result = run_recipe(inputs, clock)
    best_result.latest = (result, collected.statistics)
    if job.quantization.explain:
        result = explained(planned.prepared.model, result, _plain_steps(inputs, clock))
    optimize, mixed = None, None
    if job.quantization.optimize == "latency":
        unscaled = result
        if result.table.corrections.get("equalization"):
            unscaled = run_recipe(replace(inputs, recipe=PLAIN), clock)
        with clock.station("optimize"), exclusive(job.calibration.threads) as every:
            faster = leave_slow_layers(
                planned.prepared, planned.selection, (result, unscaled), collected.kept[0], threads=every
            )
        result, optimize = faster.result, faster.found
    if job.quantization.budget is not None:
        with clock.station("mixed precision"):
            result, mixed = spend_budget(
                job,
                planned.source,
                planned.prepared,
                planned.selection,
                result,
                collected,
                planned.stream,
                planned.trim,
                best_result,
            )
    skipped = tuple(planned.feeds.skipped)
    return Calibrated(collected.statistics, result, skipped, clock.seconds, optimize, mixed, collected.remark)


def _collect(
    job: Job, planned: Planned, clock: Clock, progress: Progress, engine: Callable[..., Collected] | None
) -> Collected:
    """Run the samples through the taps, or read the statistics that the job names."""
    if engine is None:
        engine = collect if job.calibration.statistics is None else stored(job.calibration.statistics)
    feeds, uint8 = planned.feeds, planned.uint8
    samples: Iterable[Sample] = feeds if uint8 is None else uint8.pixels.checked(feeds)
    with clock.station("calibrate"):
        return engine(
            planned.prepared.model,
            planned.prepared.signature,
            planned.taps,
            progress(read_ahead(samples, job.calibration.batch_size), feeds.count, "calibrate"),
            model_sha256=planned.prepared.sha256,
            threads=job.calibration.threads,
            keep=kept_samples(job, RECIPES[job.quantization.recipe]),
        )


def _search_inputs(job: Job, planned: Planned, collected: Collected) -> Inputs:
    """Bring together what a search starts from: the kept samples are split into those to fit and those to score on."""
    statistics, threads, recipe = collected.statistics, job.calibration.threads, RECIPES[job.quantization.recipe]
    prepared, plan = planned.prepared, planned.plan
    elements = {name: each.count / statistics.samples for name, each in statistics.tensors.items()}
    run_s = inference_us(prepared.model, plan, elements, integer=False) * 1e-6
    validation, fit = split_samples(collected.kept, recipe, run_s)
    scorer = Scorer(prepared.model, prepared.signature, validation, feeds_for, threads=threads)
    holdout = Holdout(prepared.signature, fit, scorer if scorer.able else None, validation, feeds_for, threads)
    blank = blank_table(job, prepared, statistics)
    return Inputs(prepared.model, plan, statistics, job, blank, holdout, recipe, planned.uint8)


def _plain_steps(inputs: Inputs, clock: Clock) -> tuple[StepResult, ...]:
    """Score what there would be without the recipe: ranges alone, first the widest."""
    scorer = inputs.holdout.scorer
    if scorer is None:
        return ()
    methods: dict[Method, None] = dict.fromkeys(("max", inputs.job.calibration.method))
    scores = []
    for method in methods:
        job = replace(inputs.job, calibration=replace(inputs.job.calibration, method=method))
        scores.append(scorer(run_recipe(replace(inputs, job=job, recipe=PLAIN), clock).model).db)
    return tuple(
        StepResult(f"ranges by {method}", before, score, kept=True)
        for method, before, score in zip(methods, (None, *scores), scores, strict=False)
    )


def files_of(job: Job) -> tuple[Path, tuple[str, ...]]:
    """Return the directory that a job writes to, and its files' names: model, table, statistics, reports."""
    stem = _stem(job)
    names = (f"{stem}.int8.onnx", f"{stem}.table.json", f"{stem}.stats.npz")
    return job.output.dir or Path(f"{stem}-int8"), (*names, *REPORT_FILES)


def require_writable(job: Job) -> None:
    """Refuse a job whose gates cannot hold, or whose files would go where they must not.

    Raises:
        ConfigError: A gate on a figure that will not be measured, or on an output that the model does not have.
        UsageError: A runtime or provider that is not installed.
        OutputError: The directory exists without `overwrite`, cannot be written, or is an input.
    """
    gates = [parse_gate(text) for text in job.evaluation.gates]
    require_measurable(gates, latency=job.evaluation.latency)
    further(job.evaluation.runtimes)
    resolve(job.evaluation.providers)
    directory, names = files_of(job)
    require_free(directory, overwrite=job.output.overwrite, directory=True)
    require_apart((directory / name for name in names), (job.model,))
    require_apart((directory,), (Path(job.data.path), Path((job.evaluation.data or job.data).path)))
    require_outputs(gates, lambda: output_names(job.model))


def calibrate_job(
    job: Job,
    *,
    progress: Progress | None = None,
    exclusive: Exclusive = nullcontext,
    output: OutputDirectory | None = None,
) -> CalibrationOutcome:
    """Run a whole job and write its files.

    Once there are a table, statistics and an int8 model, they are written whatever happens after that; the report is
    then one of what is missing, and why.

    Args:
        job: Its settings.
        progress: Shows how far each pass is.
        exclusive: Keeps other jobs from running while speed is measured.
        output: The output directory, where the caller holds it already.

    Returns:
        Where the files are, and the report. What could not be evaluated is among its evaluation's failures.

    Raises:
        Int8calError: Of the station that failed, before there was an int8 model; nothing was written then.
        Exception: Of writing the report, or an interrupt; a note on it says what was written.
    """
    require_writable(job)
    directory, files = files_of(job)
    with nullcontext(output) if output else OutputDirectory(directory, overwrite=job.output.overwrite) as place:
        return _calibrate_into(place, job, files, progress or silent, exclusive)


def _calibrate_into(
    place: OutputDirectory, job: Job, files: tuple[str, ...], show: Progress, exclusive: Exclusive
) -> CalibrationOutcome:
    gates = [parse_gate(text) for text in job.evaluation.gates]
    names = (files[0], files[1], files[2])
    best_result = BestResult(place, names, REPORT_FILES, f"{_stem(job)}.search.json")
    clock, watched, found = Clock(), Watched(job.model), Caught()
    planned = plan_job(job, job.model, clock)
    # before the pass over the calibration data: nobody shall wait for bad evaluation data
    data, signature = job.evaluation.data or job.data, planned.prepared.signature
    feeds = open_feeds(data, signature, require_labels=need_labels(gates), trim=planned.trim)
    calibrated: Calibrated | None = None
    with found.catching():
        calibrated = calibrate_planned(job, planned, clock, progress=show, best_result=best_result, exclusive=exclusive)
    if calibrated is None and best_result.latest is not None:  # the error waits until what there is has been written
        result, statistics = best_result.latest
        calibrated = Calibrated(statistics, result, (), clock.seconds)
    if calibrated is None:
        found.reraise()
    best_result.latest = None
    table, models = identified(calibrated.result.table), [calibrated.result.model]
    # evaluation reads the file, and a large model is not held beside it
    calibrated = replace(calibrated, result=replace(calibrated.result, table=table, model=onnx.ModelProto()))

    def evaluated(file: Path) -> Evaluation:
        with clock.station("evaluate"):
            evaluation = _evaluate(job, file, feeds, calibrated, show, exclusive)
            watched.require_same(str(table.model["sha256"]))
        return evaluation

    def reported(evaluation: Evaluation) -> Report:
        report = _report(job, calibrated, evaluation, feeds.padding, clock.seconds)
        return replace(report, gates=check_gates(gates, evaluation))

    def missing(file: Path, error: BaseException) -> Evaluation:
        return nothing_measured(job.model, file, job.quantization.target, error)

    report, written = Finisher(place, names, evaluated, missing, reported).finish(
        models, table, calibrated.statistics, found
    )
    if best_result.state_path is not None and calibrated.mixed is not None:
        best_result.state_path.unlink(missing_ok=True)
    return CalibrationOutcome(place.path, report, written)


def _stem(job: Job) -> str:
    return job.model.name.removesuffix(".onnx")


def _evaluate(
    job: Job, int8: Path, feeds: Feeds, calibrated: Calibrated, show: Progress, exclusive: Exclusive
) -> Evaluation:
    entries = calibrated.result.table.tensors
    return evaluate_pair(
        job.model,
        int8,
        feeds,
        target=job.quantization.target,
        threads=job.calibration.threads,
        latency=job.evaluation.latency,
        runtimes=job.evaluation.runtimes,
        providers=job.evaluation.providers,
        clipped={name: entry.clipped for name, entry in entries.items()},
        progress=lambda samples: show(samples, feeds.count, "evaluate"),
        exclusive=exclusive,
    )


def _report(
    job: Job, calibrated: Calibrated, evaluation: Evaluation, paddings: Sequence[Padding], timing: dict[str, float]
) -> Report:
    table = calibrated.result.table
    warnings = [*table.warnings, *skipped_warnings(calibrated.skipped)]
    # a remark tells the data's samples from those that were counted
    warnings += [calibrated.remark] if calibrated.remark else fewer_samples(job.data, table.data["samples"])
    warnings += evaluation.warnings
    warnings += target_warnings(job.quantization.target, job.evaluation.runtimes)
    if job.evaluation.data is not None:
        warnings += fewer_samples(job.evaluation.data, evaluation.samples)
    else:
        warnings.append("evaluated on the calibration data; give evaluation data of its own for a figure to rely on")
    if job.quantization.optimize is None:
        warnings += speed_warnings(job.quantization.target, evaluation.latency)
    gone = table.corrections.get(CORRECTION, {}).get("folded", ())
    stay = (item for item in calibrated.result.plan.left if item.node not in gone)
    if job.evaluation.data is not None:
        warnings += padding_lines(paddings, counted=True)
    left = [f"not quantized: {item.op_type} {item.node}: {item.reason}" for item in stay]
    return Report(
        model={
            **table.model,
            "int8": f"{_stem(job)}.int8.onnx",
            "samples": table.data["samples"],
            "data_fingerprint": table.data["fingerprint"],
            "run": table.run,
        },
        settings={
            **table.settings,
            "data": data_settings(job.data),
            "evaluation": evaluation_settings(job.evaluation.data or job.data, job.evaluation.providers, paddings),
            "versions": versions(job.evaluation.runtimes),
        },
        evaluation=evaluation,
        timing_s=timing,
        warnings=tuple(warnings),
        decisions=(
            *padding_lines(calibrated.statistics.padding, counted=False),
            *calibrated.result.decisions,
            *left,
        ),
        histograms=tensor_histograms(
            calibrated.result.tensors, table, job.quantization.activations, job.calibration.percentile
        ),
        optimize=calibrated.optimize,
        steps=calibrated.result.steps if job.quantization.explain else (),
        mixed=calibrated.mixed,
        tensors=table.tensors,
        weights=weights_of(calibrated.result.plan, table),
    )
