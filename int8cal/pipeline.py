"""The order of the stations in memory, readable as one page: what `calibrating` and the Python API both run."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx

from int8cal.calibration.body_samples import feed_bodies
from int8cal.calibration.engines.local import Counting, uncounted, warm_up
from int8cal.calibration.engines.parts import BodyWork, CountWork
from int8cal.calibration.engines.ray import cluster_of
from int8cal.calibration.engines.stored import Stored
from int8cal.calibration.ranges import without_values
from int8cal.calibration.statistics_file import load_statistics
from int8cal.data.checks import SampleWatch
from int8cal.data.preprocessing import noted
from int8cal.data.shards import Shard
from int8cal.errors import DataError, naming
from int8cal.evaluating import open_samples, trimmer
from int8cal.evaluation.data_checks import Findings, few_samples, one_sample, unlike_data
from int8cal.evaluation.feeding import fed
from int8cal.evaluation.recalled import KnownOutputs
from int8cal.evaluation.user_metric import metric_of
from int8cal.graph.bodies import full_name
from int8cal.graph.chains import find_chains
from int8cal.graph.costs import inference_us
from int8cal.graph.prepare import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps
from int8cal.progress import Clock, Exclusive, track
from int8cal.protos import PackedModel
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.uint8_input import plan_uint8_input, with_raw_pixels
from int8cal.quantization.table import StepResult, blank_table
from int8cal.runtime.sessions import simplify
from int8cal.search.candidate import Inputs, Planned
from int8cal.search.goals.budget import BestResult, kept_samples, spend_budget
from int8cal.search.goals.latency import leave_slow_layers
from int8cal.search.recipes import PLAIN, RECIPES, run_recipe
from int8cal.search.scorer import Holdout, Scorer, split_samples
from int8cal.search.search import Result, explained
from int8cal.threads import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from int8cal.calibration.body_samples import BodyRuns
    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.calibration.engines.local import Collected
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.checks import Finding
    from int8cal.data.sample import Sample
    from int8cal.evaluation.result import MixedPrecision, Optimization
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.bodies import Body
    from int8cal.graph.plan import Plan, PlannedBody
    from int8cal.job import Job, Method
    from int8cal.quantization.table import CalibrationTable, TableData


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
        taps = make_taps(plan, find_chains(prepared.model, plan))
        uint8 = plan_uint8_input(prepared, plan, job.data.preprocess, job.quantization)
        model, signature, threads = prepared.model, prepared.signature, job.calibration.threads
        trim = trimmer(signature, model, taps=taps, threads=threads)
        shard = None if job.calibration.shard is None else Shard.parse(job.calibration.shard)
        judged = job.evaluation.data
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
    return fed(planned.prepared.model, planned.feeds, threads=job.calibration.threads)


def of_the_pass(samples: int, variation: float | None, watch: SampleWatch, *, judged: bool) -> tuple[Finding, ...]:
    """Say what the pass over the calibration data found; arguments as for `few_samples`, `watch` has looked at them."""
    return (*one_sample(samples), *few_samples(samples, variation, judged=judged), *watch.findings())


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
    parts = _count_bodies(job, planned, feeds, None, keep=0)
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
        findings.add(of_the_pass(collected.statistics.samples, collected.variation, watch, judged=judged))
    bodies = _Bodies()
    inputs = replace(_search_inputs(job, planned, collected, checkpoint), cluster=cluster)
    if not (inputs.plan.weighted or inputs.plan.recurrent or inputs.plan.bodies):
        raise DataError("holds no value for any layer", where=job.data.path, do="give inputs that are not of zero size")
    if planned.plan.bodies:
        bodies = _calibrate_bodies(job, planned, clock, held, known, checkpoint, cluster)
        collected = replace(collected, statistics=replace(collected.statistics, bodies=bodies.statistics))
        blank, notes = _entered(bodies, inputs.blank, inputs.plan), (*inputs.notes, *bodies.notes)
        inputs = replace(inputs, plan=replace(inputs.plan, bodies=bodies.plans), blank=blank, notes=notes)
    result = _with_bodies(run_recipe(inputs, clock), bodies.results)
    best_result.latest = (result, collected.statistics)
    if job.quantization.explain:
        result = explained(planned.prepared.model, result, _plain_steps(inputs, clock))
    optimize, mixed = None, None
    if job.quantization.optimize == "latency":
        unscaled = _with_bodies(_unscaled(result, inputs, clock), bodies.unscaled)
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


def _unscaled(result: Result, inputs: Inputs, clock: Clock) -> Result:
    """Return what there is without equalization, for layers that latency leaves in float."""
    return run_recipe(replace(inputs, recipe=PLAIN), clock) if Equalization.of(result.table) else result


def _with_bodies(result: Result, bodies: dict[str, Result]) -> Result:
    """Add the tables and tensors of bodies to those of the main graph; its model has the bodies already."""
    tables = {path: replace(each.table, warnings=()) for path, each in bodies.items()}
    tensors = {full_name(path, name): each for path, own in bodies.items() for name, each in own.tensors.items()}
    return replace(result, table=result.table.with_graphs(tables), tensors=result.tensors | tensors)


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
    counting = _counting(job, planned, known, keep=keep, record=record, hold=checkpoint is not None)
    if checkpoint is None or isinstance(counting, Stored):
        counting.extend(samples)
        return counting.result()
    return counting.collected(checkpoint.count(counting, samples, keep))


def _counting(
    job: Job,
    planned: Planned,
    known: Statistics | None,
    body: str = "",
    *,
    keep: int,
    record: bool = False,
    hold: bool = False,
) -> Counting | Stored:
    """Begin a pass over samples of the model, or of a body, or what takes known statistics in its place."""
    graph = planned.prepared.model, planned.prepared.signature
    taps, sha256, threads = planned.taps, planned.prepared.sha256, job.calibration.threads
    if known is None:
        return Counting(*graph, taps, model_sha256=sha256, threads=threads, keep=keep, record=record, hold=hold)
    statistics = known.bodies.get(body) if body else known
    return Stored(statistics, str(job.calibration.statistics), body, taps, model_sha256=sha256, keep=keep)


def _count_work(job: Job, planned: Planned, keep: int) -> CountWork:
    """Say what workers of a cluster do with parts of the calibration data."""
    prepared, pixels = planned.prepared, None if planned.uint8 is None else planned.uint8.pixels
    model, ahead = PackedModel.of(prepared.model), job.calibration.batch_size
    return CountWork(model, prepared.signature, planned.taps, prepared.sha256, keep, pixels, ahead)


def _search_inputs(job: Job, planned: Planned, collected: Collected, checkpoint: Checkpoint | None) -> Inputs:
    """Bring together what a search starts from: the kept samples are split into those to fit and those to score on."""
    statistics, threads, recipe = collected.statistics, job.calibration.threads, RECIPES[job.quantization.recipe]
    prepared, plan = planned.prepared, planned.plan
    run_s = inference_us(prepared.model, plan, statistics.elements, integer=False) * 1e-6
    validation, fit = split_samples(collected.kept, recipe, run_s)
    graph = prepared.model, prepared.signature, validation
    scorer = Scorer(*graph, threads=threads, run_s=run_s, checkpoint=checkpoint, outputs=collected.outputs)
    holdout = Holdout(prepared.signature, fit, scorer if scorer.able else None, validation)
    blank = blank_table(job, prepared, statistics)
    blank, notes = with_raw_pixels(blank, planned.uint8, prepared.model, plan, statistics.tensors)
    # a range for a tensor of a body is that body's; one for a tensor of no graph is told when ranges are chosen
    others = {name for each in plan.bodies.values() for name in _ranges_of(each.plan, job)}
    ranges = {name: ends for name, ends in job.quantization.ranges.items() if name not in others}
    job = replace(job, quantization=replace(job.quantization, ranges=_ranges_of(plan, job) | ranges))
    inputs = Inputs(prepared.model, plan, statistics, job, blank, holdout, recipe, notes)
    left = without_values(inputs.ranged_plan, statistics.tensors, job.quantization.ranges)
    if not left:
        return inputs
    lines = (
        f"{node} stays float: {why}; give samples that do, or name it with --weights-only" for node, why in left.items()
    )
    settings = blank.settings.with_left("left_without_range", left)
    blank = replace(blank, settings=settings, warnings=(*blank.warnings, *lines))
    return replace(inputs, plan=replace(inputs.plan_for(settings), bodies=plan.bodies), blank=blank)


@dataclass(frozen=True)
class _Bodies:
    """What became of the bodies of If, Loop and Scan, by path; all but `runs` only of those that are quantized.

    `unscaled` is what there is without equalization, where latency is a goal.
    """

    runs: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Statistics] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    unscaled: dict[str, Result] = field(default_factory=dict)
    plans: dict[str, PlannedBody] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _BodyPart:
    """A body as a job of its own, the number of its runs, and what the pass over them hands on, if there are some."""

    job: Job
    planned: Planned
    seen: int
    result: Callable[[], Collected]


def _count_bodies(
    job: Job,
    planned: Planned,
    samples: Iterable[Sample],
    known: Statistics | None,
    *,
    keep: int,
    cluster: Cluster | None = None,
) -> dict[str, _BodyPart]:
    """Run every body on what samples give it, and count; by path."""
    prepared, threads = planned.prepared, job.calibration.threads
    jobs, countings = {}, {}
    for path, each in planned.plan.bodies.items():
        body = each.body
        inside = Prepared(body.model, body.signature, prepared.sha256, path, f"{prepared.where}: body {path!r}")
        taps = make_taps(each.plan, find_chains(body.model, each.plan))
        own = replace(planned, source=body.model, prepared=inside, plan=each.plan, taps=taps, uint8=None, metric=None)
        quantization = replace(job.quantization, uint8_input=False, ranges=_ranges_of(each.plan, job))
        inner = replace(job, quantization=quantization)
        jobs[path] = inner, own
        countings[path] = _counting(inner, own, known, path, keep=keep)
    if cluster is not None and known is None:
        tapped = [(each.body, jobs[path][1].taps) for path, each in planned.plan.bodies.items()]
        counts = cluster.added(BodyWork.of(prepared, tapped, keep), planned.feeds, "bodies").counted
        return {path: _BodyPart(*each, counts[path].kept.seen, counts[path].collected) for path, each in jobs.items()}

    def take(runs: BodyRuns) -> None:
        countings[runs.body.path].extend(runs)

    bodies = [each.body for each in planned.plan.bodies.values()]
    feed_bodies(prepared.model, prepared.signature, samples, bodies, take, threads=threads)
    return {path: _BodyPart(*each, countings[path].seen, countings[path].result) for path, each in jobs.items()}


def _calibrate_bodies(
    job: Job,
    planned: Planned,
    clock: Clock,
    samples: Iterable[Sample],
    known: Statistics | None,
    checkpoint: Checkpoint | None,
    cluster: Cluster | None,
) -> _Bodies:
    """Calibrate every body like a model of its own, whose samples are its runs; steps are scored on its outputs."""
    unranged: set[str] = set()  # bodies with weights that are int8 whether or not anything runs them
    for path, each in reversed(planned.plan.bodies.items()):  # one inside another comes behind it
        if each.plan.unranged or path in unranged:
            unranged |= {path, each.body.parent}
    with clock.station("calibrate"):
        keep = kept_samples(job, RECIPES[job.quantization.recipe])
        parts = _count_bodies(job, planned, samples, known, keep=keep, cluster=cluster)
    found = _Bodies()
    for path, part in parts.items():
        inner, own = part.job, part.planned
        if not part.seen:
            found.runs[path] = 0
            if path not in unranged:
                continue
        # weights alone need no run
        collected = part.result() if part.seen else uncounted(own.taps, planned.prepared.sha256)
        inputs = _search_inputs(inner, own, collected, checkpoint)
        result = run_recipe(inputs, clock)
        found.runs[path] = collected.statistics.samples
        found.results[path] = replace(result, model=onnx.ModelProto())  # it is built anew with the whole
        if job.quantization.optimize == "latency":
            found.unscaled[path] = _unscaled(result, inputs, clock)
        found.plans[path] = replace(planned.plan.bodies[path], plan=result.plan)  # steps may have left nodes in float
        lines = result.decisions
        if found.runs[path]:
            found.statistics[path] = collected.statistics
            lines = (f"calibrated on {found.runs[path]} runs", *lines)
        found.notes.extend(f"{path}: {line}" for line in lines)
    return found


def _ranges_of(plan: Plan, job: Job) -> dict[str, tuple[float, float]]:
    """Return the user's ranges that are about tensors of one graph."""
    known = {each.tensor for each in plan.tensors}
    return {name: ends for name, ends in job.quantization.ranges.items() if name in known}


def _entered(bodies: _Bodies, table: CalibrationTable, plan: Plan) -> CalibrationTable:
    """Enter what became of bodies into a model's table, and say which of them no sample reached.

    Raises:
        DataError: Nothing is left to quantize.
    """
    warnings = list(table.warnings)
    for path, runs in bodies.runs.items():
        body = plan.bodies[path].body
        if runs:
            warnings += (f"{path}: {warning}" for warning in bodies.results[path].table.warnings)
        elif not body.parent or bodies.runs[body.parent]:
            rest = " but those of weights_only" if path in bodies.results else ""
            warnings.append(f"{path} was run by no sample, so its layers{rest} stay float: {_why_not_run(body)}")
    if not (bodies.results or plan.weighted or plan.recurrent):
        raise DataError(
            "runs none of the branches and loops that hold layers",
            do=_why_not_run(next(iter(plan.bodies.values())).body),
        )
    data: TableData = {**table.data, "bodies": bodies.runs}
    parts = {path: replace(each.table, warnings=()) for path, each in bodies.results.items()}
    return replace(table, data=data, bodies=parts, warnings=tuple(warnings))


def _why_not_run(body: Body) -> str:
    if body.slot == "body":
        return f"give samples for which {body.node!r} makes at least one round"
    truth = "true" if body.slot == "then_branch" else "false"
    return f"give samples for which the condition of {body.node!r} is {truth}"


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
        StepResult(f"nothing but ranges by {method}", before, score, kept=True)
        for method, before, score in zip(methods, (None, *scores), scores, strict=False)
    )
