"""The order of the stations in memory, readable as one page: what `calibrating` and the Python API both run."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from int8cal.body_calibration import Bodies, calibrate_bodies, count_bodies, counting_of, entered, with_bodies
from int8cal.calibration.engines.local import warm_up
from int8cal.calibration.engines.parts import CountWork
from int8cal.calibration.engines.ray import cluster_of
from int8cal.calibration.engines.stored import Stored
from int8cal.calibration.statistics_file import load_statistics
from int8cal.data.checks import SampleWatch
from int8cal.data.preprocessing import noted
from int8cal.data.shards import Shard
from int8cal.errors import DataError, naming
from int8cal.evaluating import open_samples, trimmer
from int8cal.evaluation.data_checks import Findings, few_samples, one_sample, unlike_data
from int8cal.evaluation.feeding import feeding_findings
from int8cal.evaluation.recalled import KnownOutputs
from int8cal.evaluation.user_metric import metric_of
from int8cal.graph.chains import find_chains
from int8cal.graph.prepare import prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps
from int8cal.progress import Clock, Exclusive, track
from int8cal.protos import PackedModel
from int8cal.quantization.corrections.uint8_input import plan_uint8_input
from int8cal.quantization.layers import require_finite
from int8cal.runtime.sessions import simplify
from int8cal.search.candidate import Planned
from int8cal.search.goals.budget import BestResult, kept_samples, spend_budget
from int8cal.search.goals.latency import leave_slow_layers
from int8cal.search.recipes import RECIPES, plain_steps, run_recipe, search_inputs, without_equalization
from int8cal.search.search import Result, explained
from int8cal.threads import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import onnx

    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.calibration.engines.local import Collected
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.checks import Finding
    from int8cal.data.sample import Sample
    from int8cal.evaluation.result import MixedPrecision, Optimization
    from int8cal.evaluation.user_metric import Metric
    from int8cal.job import Job


@dataclass(frozen=True)
class Calibrated:
    """What calibration found out, with the int8 model; `watch` has looked at the samples.

    `made` says how samples were made of files. `findings` are those about the data, where it is calibrated in memory.
    `outputs`: what both models have given.
    """

    statistics: Statistics
    result: Result
    skipped: tuple[str, ...] = ()
    optimize: Optimization | None = None
    mixed: MixedPrecision | None = None
    remark: str = ""
    watch: SampleWatch | None = None
    findings: tuple[Finding, ...] = ()
    made: tuple[str, ...] = ()
    outputs: KnownOutputs = field(default_factory=KnownOutputs)


def plan_job(
    job: Job,
    source: Path | onnx.ModelProto,
    clock: Clock,
    stream: Callable[[], object] | None = None,
    metric: Metric | None = None,
) -> Planned:
    """Prepare the model, plan what is quantized, and open the calibration data.

    Args:
        job: Settings; its model field only names the model.
        source: The FP32 model.
        clock: Gets the seconds of the station "prepare".
        stream: Yields feed dicts, in place of the job's data path.
        metric: In place of the job's.

    Raises:
        Int8calError: Of the metric, the model, the selection or the data.
    """
    metric = metric or metric_of(job.evaluation.metric)
    with clock.station("prepare"):
        threading.Thread(target=warm_up, daemon=True).start()  # beside the runtime's folding
        prepared = prepare(source, simplify, job.quantization.activations)
        plan = require_layers(prepared, Selection.of(job.quantization))
        require_finite(prepared, plan)
        taps = make_taps(plan, find_chains(prepared.model, plan))
        uint8 = plan_uint8_input(prepared, plan, job.data.preprocess, job.quantization)
        model, signature, threads = prepared.model, prepared.signature, job.calibration.threads
        trim = trimmer(signature, model, taps=taps, threads=threads)
        shard = None if job.calibration.shard is None else Shard.parse(job.calibration.shard)
        judged = job.evaluation.data
        with naming(prepared.where):
            feeds = open_samples(job.data, model, signature, stream, trim, threads=threads, shard=shard, judged=judged)
        prepared = replace(prepared, signature=feeds.signature)
        known = None if job.calibration.statistics is None else load_statistics(job.calibration.statistics)
    return Planned(source, prepared, plan, taps, uint8, trim, stream, feeds, metric, known)


def before_calibration(planned: Planned, job: Job) -> tuple[Finding, ...]:
    """Say what is known of the calibration data before the pass over it."""
    if planned.known is None:
        return (*one_sample(planned.feeds.count), *fed_wrong(planned, job))
    return (*unlike_data(planned.known, str(job.calibration.statistics), planned.feeds), *fed_wrong(planned, job))


def fed_wrong(planned: Planned, job: Job) -> tuple[Finding, ...]:
    """Say what some samples tell of how the model is fed."""
    if planned.stream is not None:  # an iterator in memory may give its samples only once
        return ()
    return feeding_findings(planned.prepared.model, planned.feeds, threads=job.calibration.threads)


def of_the_pass(statistics: Statistics, watch: SampleWatch, *, judged: bool) -> tuple[Finding, ...]:
    """Say what the pass over the calibration data found; `judged` as for `few_samples`, `watch` has looked at them."""
    few = few_samples(statistics.samples, statistics.uncertainty, judged=judged)
    return (*one_sample(statistics.samples), *few, *watch.findings())


def calibrate_model(
    job: Job,
    source: Path | onnx.ModelProto,
    *,
    stream: Callable[[], object] | None = None,
    metric: Metric | None = None,
    engine: Callable[..., Collected] | None = None,
) -> Calibrated:
    """Go from data to statistics, table and int8 model, in memory; see `plan_job` and `calibrate_planned`.

    Raises:
        DataError: There are findings about the data, and they are errors.
    """
    clock, findings = Clock(), Findings(strict=job.evaluation.strict)
    planned = plan_job(job, source, clock, stream, metric)
    findings.add(before_calibration(planned, job))
    findings.require_none()
    with cluster_of(job) as cluster:
        calibrated = calibrate_planned(job, planned, clock, engine=engine, cluster=cluster, findings=findings)
    findings.require_none()
    return replace(calibrated, findings=findings.found)


def count_planned(job: Job, planned: Planned, checkpoint: Checkpoint) -> Statistics:
    """Count what the job's part of the data gives, bodies of If, Loop and Scan too, and nothing else.

    Args:
        job: Settings.
        planned: Its model and data.
        checkpoint: What was done before, and what remembers what is done.

    Raises:
        Int8calError: Of the data or the network.
    """
    feeds, uint8 = planned.feeds, planned.uint8
    samples: Iterable[Sample] = feeds if uint8 is None else uint8.pixels.checked(feeds)
    ahead = track(read_ahead(samples, job.calibration.batch_size), feeds.count, "samples")
    statistics = _collected(job, planned, None, ahead, keep=0, checkpoint=checkpoint).statistics
    parts = count_bodies(job, planned, feeds, None, keep=0)
    counted = {path: part.result().statistics for path, part in parts.items() if part.seen}
    return replace(statistics, bodies=counted, preprocess=noted(feeds), divided=feeds.divided)


def calibrate_planned(
    job: Job,
    planned: Planned,
    clock: Clock,
    *,
    engine: Callable[..., Collected] | None = None,
    cluster: Cluster | None = None,
    best_result: BestResult | None = None,
    exclusive: Exclusive = nullcontext,
    record: bool = False,
    checkpoint: Checkpoint | None = None,
    findings: Findings | None = None,
    judged: bool = False,
) -> Calibrated:
    """Collect statistics, search for the table, and reach the job's goals.

    Args:
        clock: Gets the seconds of every station.
        engine: Does the pass over the data, called as `collect` is; None for the one that the job asks for.
        cluster: Where that is, if it is a cluster.
        best_result: Gets the table as soon as there is one, and better ones; None for memory alone.
        exclusive: Keeps other jobs from running while speed is measured.
        record: Whether the outputs of the float model are wanted.
        checkpoint: What was done before, and what remembers what is done; None for neither.
        findings: Get what the pass over the data finds, before the search.
        judged: Whether shares of the calibration data judge the model, such as agreement.

    Raises:
        Int8calError: Of the station that failed.
    """
    best_result = best_result or BestResult()
    watch = SampleWatch("calibration", planned.prepared.signature)
    feeds, uint8, keep = planned.feeds, planned.uint8, kept_samples(job, RECIPES[job.quantization.recipe])
    # of an iterator, which gives its samples once, they are held where bodies are run on them too
    held: Iterable[Sample] = feeds if planned.stream is None or not planned.plan.bodies else [*feeds]
    samples = watch.watch(held if uint8 is None else uint8.pixels.checked(held))
    ahead = track(read_ahead(samples, job.calibration.batch_size), feeds.count, "samples")
    known = planned.known
    with clock.station("calibrate"), naming(planned.prepared.where):
        if engine is not None:
            prepared, sha256, threads = planned.prepared, planned.prepared.sha256, job.calibration.threads
            how = {"model_sha256": sha256, "threads": threads, "keep": keep}
            collected = engine(prepared.model, prepared.signature, planned.taps, ahead, **how)
        elif cluster is None or known is not None:
            collected = _collected(job, planned, known, ahead, keep=keep, record=record, checkpoint=checkpoint)
        else:
            work = _count_work(job, planned, keep)
            counts = checkpoint.count_in(cluster, work, feeds) if checkpoint else cluster.added(work, feeds, "samples")
            watch, collected = counts.watch, counts.collected(feeds)
    if known is None:
        collected = replace(collected, statistics=replace(collected.statistics, preprocess=noted(feeds)))
    if findings is not None:
        findings.add(of_the_pass(collected.statistics, watch, judged=judged))
    bodies = Bodies()
    inputs = replace(search_inputs(job, planned, collected, checkpoint), cluster=cluster)
    if not (inputs.plan.weighted or inputs.plan.recurrent or inputs.plan.bodies):
        raise DataError("holds no value for any layer", where=job.data.path, do="give inputs that are not of zero size")
    if planned.plan.bodies:
        bodies = calibrate_bodies(job, planned, clock, held, known, checkpoint, cluster)
        collected = replace(collected, statistics=replace(collected.statistics, bodies=bodies.statistics))
        blank, notes = entered(bodies, inputs.blank, inputs.plan), (*inputs.notes, *bodies.notes)
        inputs = replace(inputs, plan=replace(inputs.plan, bodies=bodies.plans), blank=blank, notes=notes)
    result = with_bodies(run_recipe(inputs, clock), bodies.results)
    best_result.latest = (result, collected.statistics)
    if job.quantization.explain:
        result = explained(planned.prepared.model, result, plain_steps(inputs, clock))
    optimize, mixed = None, None
    if job.quantization.optimize == "latency":
        unscaled = with_bodies(without_equalization(result, inputs, clock), bodies.unscaled)
        with clock.station("optimize"), exclusive(job.calibration.threads) as every:
            result, optimize = leave_slow_layers(
                planned.prepared, (result, unscaled), collected.kept[0], threads=every, checkpoint=checkpoint
            )
    if job.quantization.budget is not None:
        with clock.station("mixed precision"):
            result, mixed = spend_budget(job, planned, result, collected, best_result, cluster)
    skipped, made, remark = tuple(feeds.skipped), feeds.made, collected.remark
    outputs = KnownOutputs(collected.outputs, result.outputs)
    return Calibrated(collected.statistics, result, skipped, optimize, mixed, remark, watch, made=made, outputs=outputs)


def _collected(
    job: Job,
    planned: Planned,
    known: Statistics | None,
    samples: Iterable[Sample],
    *,
    keep: int,
    record: bool = False,
    checkpoint: Checkpoint | None,
) -> Collected:
    """Pass over the samples of the main graph, from where a checkpoint ends."""
    counting = counting_of(job, planned, known, keep=keep, record=record, hold=checkpoint is not None)
    if checkpoint is None or isinstance(counting, Stored):
        counting.extend(samples)
        return counting.result()
    return counting.collected(checkpoint.count(counting, samples, keep))


def _count_work(job: Job, planned: Planned, keep: int) -> CountWork:
    """Say what workers of a cluster do with parts of the calibration data."""
    prepared, pixels = planned.prepared, None if planned.uint8 is None else planned.uint8.pixels
    model, ahead = PackedModel.of(prepared.model), job.calibration.batch_size
    return CountWork(model, prepared.signature, planned.taps, prepared.sha256, keep, pixels, ahead)
