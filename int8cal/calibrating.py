"""A job into its output directory: what calibration found is written, whatever becomes of its evaluation and report."""

from __future__ import annotations

import contextlib
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from int8cal.audit.worst_case import audit_saturation
from int8cal.calibration.checkpoint import SUFFIX, Checkpoint, counted_in
from int8cal.calibration.engines.ray import cluster_of
from int8cal.calibration.statistics_file import require_statistics, save_statistics
from int8cal.data.checks import SampleWatch, classes_of
from int8cal.data.opening import open_feeds
from int8cal.data.shards import Shard
from int8cal.errors import OutputError, StatisticsError, reason_of
from int8cal.evaluating import (
    data_settings,
    evaluation_settings,
    fewer_samples,
    job_origin,
    padding_lines,
    require_judgeable,
    skipped_warnings,
    versions,
)
from int8cal.evaluation.data_checks import Findings, few_judged, judged_apart, opened
from int8cal.evaluation.evaluate import evaluate_pair, nothing_measured
from int8cal.evaluation.feeding import better_fed
from int8cal.evaluation.fusion import with_reasons
from int8cal.evaluation.gates import (
    all_gates,
    check_gates,
    gates_of,
    need_labels,
    never_failing,
)
from int8cal.evaluation.in_cluster import ClusterOutputs
from int8cal.evaluation.recalled import KnownOutputs, UnlikeError
from int8cal.evaluation.result import Evaluation, Report
from int8cal.evaluation.runtimes import further, slow_warnings, speed_warnings, target_warnings
from int8cal.evaluation.user_metric import metric_of
from int8cal.graph.load import Watched
from int8cal.identity import identified, save_stamped
from int8cal.inputs import changes, settings_of, versions_of
from int8cal.io.atomic import OutputDirectory
from int8cal.io.paths import MODEL, REPORT_FILES, STATISTICS, TABLE, require_apart, require_free, require_possible
from int8cal.job import model_stem
from int8cal.pipeline import (
    Calibrated,
    before_calibration,
    calibrate_planned,
    count_planned,
    fed_wrong,
    plan_job,
)
from int8cal.progress import Clock, Exclusive, track
from int8cal.progress import stage as open_stage
from int8cal.quantization.corrections.uint8_input import Uint8Input
from int8cal.quantization.table_file import save_table
from int8cal.report.files import write_reports
from int8cal.report.plots import layer_scales, tensor_histograms
from int8cal.runtime.machine import resolve
from int8cal.runtime.scratch import weights_folder
from int8cal.runtime.sessions import CPU, cpu_count
from int8cal.search.goals.budget import BestResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from int8cal.calibration.engines.ray import Cluster
    from int8cal.data.checks import Finding
    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Sample
    from int8cal.evaluation.result import Origin
    from int8cal.job import Job
    from int8cal.quantization.table import CalibrationTable


@dataclass(frozen=True)
class CalibrationOutcome:
    """Where the files are, and the report."""

    directory: Path
    report: Report
    files: tuple[Path, ...]


def files_of(job: Job) -> tuple[Path, tuple[str, ...]]:
    """Return the directory that a job writes to, and its files' names: model, table, statistics, reports."""
    stem = model_stem(job.model)
    return job.directory, (*(stem + end for end in (MODEL, TABLE, STATISTICS)), *REPORT_FILES)


def checkpoint_of(job: Job) -> Path:
    """Say where a job's checkpoint lies: beside what it writes."""
    if job.calibration.shard is not None:
        path = shard_file(job)
        return path.with_name(f"{path.name.removesuffix(STATISTICS)}{SUFFIX}")
    directory, _ = files_of(job)
    if directory.name in {"", ".."}:
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow links
    return directory.with_name(f"{directory.name}{SUFFIX}") if directory.name else directory / SUFFIX


def _may_replace(job: Job) -> bool:
    """Tell whether results may be replaced: those of a run that goes on are its own."""
    return job.output.overwrite or (job.calibration.resume and checkpoint_of(job).is_file())


def _open_checkpoint(job: Job, sha256: str, tell: Callable[[str], object] | None) -> Checkpoint:
    """Begin a run's checkpoint, or take the one that is there.

    Raises:
        StatisticsError: It is to be taken, and is damaged or of another run.
    """
    path, tell = checkpoint_of(job), tell or (lambda _: None)
    if job.calibration.statistics is not None:  # they are among what it goes with
        require_statistics(job.calibration.statistics)
    threads = job.calibration.threads or cpu_count()  # kernels may sum in another order with other numbers of them
    own = {"calibration.threads": threads, "calibration.engine": job.calibration.engine}  # each counts in its own order
    made_of = {"model": sha256, **settings_of(job), **own, **versions_of(job)}
    checkpoint = Checkpoint(path, made_of, job.calibration.checkpoint)
    if not path.is_file():
        if job.calibration.resume:
            tell(f"there is no {path} to go on from: the run begins anew")
    elif job.calibration.resume:
        checkpoint.resume(changes)
        tell(f"going on from {path}: {checkpoint.samples:,} samples are counted")
    else:
        with contextlib.suppress(StatisticsError):
            tell(f"{path} has {counted_in(path):,} samples of a run that was stopped: --resume goes on from there")
    return checkpoint


def order_of(job: Job) -> str:
    """Say in what order a job's stages come, in a line."""
    latency = "optimize for latency" if job.quantization.optimize == "latency" else ""
    budget = "" if job.quantization.budget is None else "leave layers in float until the gates hold"
    samples = f" on at most {job.data.samples} samples" if job.data.samples else ""
    recipe = f"quantize (recipe {job.quantization.recipe})"
    return ", ".join(filter(None, ("prepare", f"calibrate{samples}", recipe, latency, budget, "evaluate", "report")))


def require_writable(job: Job) -> None:
    """Refuse a job that cannot be judged, see `require_judgeable`, or whose files would go where they must not.

    Raises:
        ConfigError, UsageError: It cannot be judged.
        OutputError: The directory exists without `overwrite`, cannot be written, or is an input.
    """
    require_judgeable(job)
    directory, names = files_of(job)
    require_possible(*(directory / name for name in names), checkpoint_of(job))
    require_free(directory, overwrite=_may_replace(job), directory=True)
    require_apart((directory / name for name in names), (job.model,))
    require_apart((directory,), (Path(job.data.path), Path((job.evaluation.data or job.data).path)))


@dataclass(frozen=True)
class ShardOutcome:
    """The file with the statistics of a shard, and how many samples they are of."""

    path: Path
    samples: int


def shard_file(job: Job) -> Path:
    """Say where the statistics of a job's shard go; those of all shards lie in one directory."""
    stem = model_stem(job.model)
    shard = Shard.parse(str(job.calibration.shard))
    return (job.output.dir or Path(f"{stem}-shards")) / f"{stem}.{shard.stem}{STATISTICS}"


def count_shard(job: Job, *, tell: Callable[[str], object] | None = None) -> ShardOutcome:
    """Count a shard of the data, and write its statistics; other shards may be counted into the directory meanwhile.

    Args:
        job: Of which only the data, what is quantized, and how the data is counted matter.
        tell: Gets what is found about the data before the work, line by line.

    Raises:
        OutputError: The file exists without `overwrite`, or cannot be written.
        Int8calError: Of the model, the data or the network.
    """
    path = shard_file(job)
    require_possible(checkpoint_of(job))
    require_free(path.parent, overwrite=True, directory=True)
    require_apart((path,), (job.model,))
    require_apart((path.parent,), (Path(job.data.path),))
    if path.exists():
        require_free(path, overwrite=_may_replace(job))
    with weights_folder():
        planned = plan_job(job, job.model, Clock())
        checkpoint = _open_checkpoint(job, planned.prepared.sha256, tell)
        findings = Findings(tell, strict=job.evaluation.strict)
        findings.add(fed_wrong(planned, job))
        findings.require_none()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"its directory cannot be made ({reason_of(error)})"
            raise OutputError(what, where=str(path), do="give another output directory") from error
        statistics = count_planned(job, planned, checkpoint)
        save_statistics(replace(statistics, shards=frozenset({Shard.parse(str(job.calibration.shard))})), path)
        checkpoint.remove()
    return ShardOutcome(path, statistics.samples)


def calibrate_job(
    job: Job,
    *,
    exclusive: Exclusive = nullcontext,
    output: OutputDirectory | None = None,
    tell: Callable[[str], object] | None = None,
    command: str = "",
    warnings: Sequence[str] = (),
) -> CalibrationOutcome:
    """Run a whole job and write its files.

    Once there are a table, statistics and an int8 model, they are written whatever happens after that; the report is
    then one of what is missing, and why.

    Args:
        exclusive: Keeps other jobs from running while speed is measured.
        output: The output directory, where the caller holds it already.
        tell: Gets what is found about the data before the work, line by line.
        command: What was run, for the report.
        warnings: Of what was found before, for the report.

    Returns:
        Where the files are, and the report. What could not be evaluated is among its evaluation's failures.

    Raises:
        Int8calError: Of the station that failed, before there was an int8 model; nothing was written then.
        Exception: Of writing the report, or an interrupt; a note on it says what was written.
    """
    with open_stage("start"):
        require_writable(job)
        origin = job_origin(job, command)
    own = nullcontext(output) if output else OutputDirectory(files_of(job)[0], overwrite=_may_replace(job))
    with own as directory, cluster_of(job) as cluster, weights_folder():
        return _calibrate_into(directory, job, origin, exclusive, tell, cluster, warnings)


def _calibrate_into(
    output: OutputDirectory,
    job: Job,
    origin: Origin,
    exclusive: Exclusive,
    tell: Callable[[str], object] | None,
    cluster: Cluster | None,
    warnings: Sequence[str],
) -> CalibrationOutcome:
    model_name, table_name, statistics_name, *_ = files_of(job)[1]
    clock, watched = Clock(), Watched(job.model)
    planned = plan_job(job, job.model, clock)
    checkpoint = _open_checkpoint(job, planned.prepared.sha256, tell)
    # before the pass over the calibration data: nobody shall wait for bad evaluation data
    gates = all_gates(job.evaluation)
    data, signature, threads = job.evaluation.data or job.data, planned.prepared.signature, job.calibration.threads
    if tell is not None:
        for line in slow_warnings(job.quantization):
            tell(line)
    findings = Findings(tell, strict=job.evaluation.strict)
    with open_stage("check the data"):
        feeds = open_feeds(data, signature, require_labels=need_labels(gates), trim=planned.trim)
        findings.add((*opened(feeds, signature), *before_calibration(planned, job)))
        classes = classes_of(signature)
        findings.add(better_fed(planned.prepared.model, feeds, classes, threads=threads))
    findings.require_none()

    best = BestResult(
        output,
        (model_name, table_name, statistics_name),
        REPORT_FILES,
        f"{model_name.removesuffix(MODEL)}.search.json",
    )
    error: BaseException | None = None  # waits until everything has been written
    try:
        calibrated = calibrate_planned(
            job,
            planned,
            clock,
            cluster=cluster,
            best_result=best,
            exclusive=exclusive,
            record=job.evaluation.data is None,
            checkpoint=checkpoint,
            findings=findings,
            judged=not judged_apart(job) and classes_of(planned.feeds.signature) is not None,
        )
    except (Exception, KeyboardInterrupt) as raised:
        if best.latest is None:
            if checkpoint.saved:
                raised.add_note(f"{checkpoint.saved:,} samples are counted in {checkpoint_of(job)}; --resume goes on")
            raise
        result, statistics = best.latest
        error, calibrated = raised, Calibrated(statistics, result)
    best.latest = None
    del planned  # its model is as large as the file
    table = identified(calibrated.result.table)

    def evaluate(known: KnownOutputs) -> tuple[Evaluation, SampleWatch]:
        watch = SampleWatch("evaluation", signature)
        samples = track(watch.watch(feeds), feeds.count, "outputs")
        if cluster is None or further(job.evaluation.runtimes) or resolve(job.evaluation.providers) != (CPU,):
            return _evaluate(job, int8, samples, table, exclusive, known), watch
        outputs = ClusterOutputs(cluster, feeds, watch)
        return _evaluate(job, int8, (), table, exclusive, KnownOutputs(), outputs), outputs.watch

    watch = SampleWatch("evaluation", signature)
    unreported: BaseException | None = None
    with output.stage() as stage:
        int8 = stage / model_name
        save_stamped(calibrated.result.model, table, int8)
        # evaluation reads the files, and no large model is held beside them
        result = replace(calibrated.result, table=table, model=onnx.ModelProto(), known=None)
        calibrated = replace(calibrated, result=result)
        save_table(table, stage / table_name)
        save_statistics(calibrated.statistics, stage / statistics_name)
        if error is None:
            try:
                with clock.station("evaluate"):
                    try:
                        evaluation, watch = evaluate(calibrated.outputs)
                    except UnlikeError as unlike:
                        evaluation, watch = evaluate(KnownOutputs())
                        evaluation = replace(evaluation, warnings=(*evaluation.warnings, unlike.what))
                    watched.require_same(str(table.model["sha256"]))
            except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 - told when the results are written
                error = raised
        try:
            if error is not None:
                evaluation = nothing_measured(job.model, int8, job.quantization.target, error)
            findings.add(_found(job, calibrated, evaluation, watch), told=True)
            with open_stage("report"):
                report = _report(job, calibrated, evaluation, feeds, watch, clock.seconds, findings.found)
                warnings = (*report.warnings, *checkpoint.warnings, *warnings)
                report = replace(report, gates=check_gates(gates, evaluation), origin=origin, warnings=warnings)
                write_reports(report, stage)
        except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 - likewise
            unreported = raised
        written = tuple(file.name for file in sorted(stage.iterdir()))
    for name in set(REPORT_FILES) - set(written):  # of an earlier run
        (output.path / name).unlink(missing_ok=True)

    kept = f"model, table and statistics are kept in {output.path}"
    if unreported is not None:
        unreported.add_note(f"{kept}, and the report could not be written")
        raise unreported
    interrupts = [error] if isinstance(error, KeyboardInterrupt) else []
    if error is None:
        checkpoint.remove()
    for failure in (*report.evaluation.failures, *interrupts):
        failure.add_note(f"{kept}, and the report there says what is missing")
    if interrupts:
        raise interrupts[0]
    if best.state_path is not None and calibrated.mixed is not None:
        best.state_path.unlink(missing_ok=True)
    return CalibrationOutcome(output.path, report, tuple(output.path / name for name in written))


def _found(job: Job, calibrated: Calibrated, evaluation: Evaluation, watch: SampleWatch) -> Iterator[Finding]:
    """Say what the passes found about the data."""
    yield from evaluation.findings
    if judged_apart(job):
        yield from few_judged(evaluation.samples, shares=evaluation.metrics.agreement is not None)
    if calibrated.watch is not None:
        yield from watch.against(calibrated.watch, same=job.evaluation.data is None)


def _evaluate(
    job: Job,
    int8: Path,
    samples: Iterable[Sample],
    table: CalibrationTable,
    exclusive: Exclusive,
    known: KnownOutputs,
    elsewhere: ClusterOutputs | None = None,
) -> Evaluation:
    return evaluate_pair(
        job.model,
        int8,
        samples,
        audit=audit_saturation,
        target=job.quantization.target,
        threads=job.calibration.threads,
        latency=job.evaluation.latency,
        runtimes=job.evaluation.runtimes,
        providers=job.evaluation.providers,
        metric=metric_of(job.evaluation.metric),
        clipped={name: entry.clipped for name, entry in table.every_tensor.items()},
        known=known,
        elsewhere=elsewhere,
        exclusive=exclusive,
    )


def _report(
    job: Job,
    calibrated: Calibrated,
    evaluation: Evaluation,
    feeds: Feeds,
    watch: SampleWatch,
    timing: dict[str, float],
    findings: tuple[Finding, ...],
) -> Report:
    table = calibrated.result.table
    warnings = [*map(str, findings), *table.warnings, *skipped_warnings(calibrated.skipped)]
    # a remark tells the data's samples from those that were counted
    warnings += [calibrated.remark] if calibrated.remark else fewer_samples(job.data, table.data["samples"])
    warnings += evaluation.warnings
    warnings += never_failing(gates_of(job.evaluation))
    warnings += target_warnings(job.quantization.target, job.evaluation.runtimes)
    warnings += slow_warnings(job.quantization)
    if job.evaluation.data is not None:
        warnings += fewer_samples(job.evaluation.data, evaluation.samples)
    else:
        warnings.append("evaluated on the calibration data; give other data with --eval-data")
    if job.quantization.optimize is None:
        warnings += speed_warnings(job.quantization.target, evaluation.latency)
    pixels = Uint8Input.of(table)
    gone = pixels.folded if pixels else ()
    stay = (item for item in calibrated.result.plan.unquantized if item.node not in gone)
    if job.evaluation.data is not None:
        warnings += padding_lines(feeds.padding, counted=True)
    made = [*calibrated.made, *(calibrated.watch.lines() if calibrated.watch is not None else ())]
    if job.evaluation.data is not None:
        made += [*(line for line in feeds.made if line not in made), *watch.lines()]
    if evaluation.fusion is not None:
        settings, optimized = table.settings, calibrated.optimize.left if calibrated.optimize else {}
        measured = settings.recorded.get("recurrent_float", {}) | optimized | settings.left("left_for_gates")
        evaluation = replace(evaluation, fusion=with_reasons(evaluation.fusion, calibrated.result.plan, measured))
    left = [f"not quantized: {item.op_type} {item.node}: {item.reason}" for item in stay]
    left += [
        f"{path}: not quantized: {item.op_type} {item.node}: {item.reason}"
        for path, body in calibrated.result.plan.bodies.items()
        for item in body.plan.unquantized
    ]
    return Report(
        model={
            **table.model,
            "int8": files_of(job)[1][0],
            "samples": table.data["samples"],
            "data_fingerprint": table.data["fingerprint"],
            "run": table.run,
        },
        settings={
            **table.settings.recorded,
            "data": data_settings(job.data, calibrated.watch),
            "evaluation": evaluation_settings(job.evaluation, job.evaluation.data or job.data, feeds.padding, watch),
            "versions": versions(job.evaluation.runtimes),
        },
        evaluation=evaluation,
        timing_s=timing,
        warnings=tuple(warnings),
        decisions=(
            *made,
            *padding_lines(calibrated.statistics.padding, counted=False),
            *calibrated.result.decisions,
            *left,
        ),
        histograms=tensor_histograms(
            calibrated.result.tensors,
            table,
            job.quantization.activations,
            job.calibration.percentile,
            calibrated.result.methods,
        ),
        optimize=calibrated.optimize,
        steps=calibrated.result.steps if job.quantization.explain else (),
        mixed=calibrated.mixed,
        tensors=table.every_tensor,
        weights=layer_scales(calibrated.result.plan, table),
        findings=findings,
    )
