"""Bodies of If, Loop and Scan: each is counted and calibrated like a model of its own, whose samples are its runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx

from int8cal.calibration.body_samples import feed_bodies
from int8cal.calibration.engines.local import Counting, uncounted
from int8cal.calibration.engines.parts import BodyWork
from int8cal.calibration.engines.stored import Stored
from int8cal.errors import DataError
from int8cal.graph.bodies import full_name
from int8cal.graph.chains import find_chains
from int8cal.graph.prepare import Prepared
from int8cal.graph.taps import make_taps
from int8cal.search.goals.budget import kept_samples
from int8cal.search.recipes import RECIPES, ranges_in, run_recipe, search_inputs, without_equalization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from int8cal.calibration.body_samples import BodyRuns
    from int8cal.calibration.checkpoint import Checkpoint
    from int8cal.calibration.engines.local import Collected
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.calibration.statistics import Statistics
    from int8cal.data.sample import Sample
    from int8cal.graph.bodies import Body
    from int8cal.graph.plan import Plan, PlannedBody
    from int8cal.job import Job
    from int8cal.progress import Clock
    from int8cal.quantization.table import CalibrationTable, TableData
    from int8cal.search.candidate import Planned
    from int8cal.search.search import Result


def counting_of(
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


@dataclass(frozen=True)
class Bodies:
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
class BodyPart:
    """A body as a job of its own, the number of its runs, and what the pass over them hands on, if there are some."""

    job: Job
    planned: Planned
    seen: int
    result: Callable[[], Collected]


def count_bodies(
    job: Job,
    planned: Planned,
    samples: Iterable[Sample],
    known: Statistics | None,
    *,
    keep: int,
    cluster: Cluster | None = None,
) -> dict[str, BodyPart]:
    """Run every body on what samples give it, and count; by path."""
    prepared, threads = planned.prepared, job.calibration.threads
    jobs, countings = {}, {}
    for path, each in planned.plan.bodies.items():
        body = each.body
        inside = Prepared(body.model, body.signature, prepared.sha256, path, f"{prepared.where}: body {path!r}")
        taps = make_taps(each.plan, find_chains(body.model, each.plan))
        own = replace(planned, source=body.model, prepared=inside, plan=each.plan, taps=taps, uint8=None, metric=None)
        quantization = replace(job.quantization, uint8_input=False, ranges=ranges_in(each.plan, job))
        inner = replace(job, quantization=quantization)
        jobs[path] = inner, own
        countings[path] = counting_of(inner, own, known, path, keep=keep)
    if cluster is not None and known is None:
        tapped = [(each.body, jobs[path][1].taps) for path, each in planned.plan.bodies.items()]
        counts = cluster.added(BodyWork.of(prepared, tapped, keep), planned.feeds, "bodies").counted
        return {path: BodyPart(*each, counts[path].kept.seen, counts[path].collected) for path, each in jobs.items()}

    def take(runs: BodyRuns) -> None:
        countings[runs.body.path].extend(runs)

    bodies = [each.body for each in planned.plan.bodies.values()]
    feed_bodies(prepared.model, prepared.signature, samples, bodies, take, threads=threads)
    return {path: BodyPart(*each, countings[path].seen, countings[path].result) for path, each in jobs.items()}


def calibrate_bodies(
    job: Job,
    planned: Planned,
    clock: Clock,
    samples: Iterable[Sample],
    known: Statistics | None,
    checkpoint: Checkpoint | None,
    cluster: Cluster | None,
) -> Bodies:
    """Calibrate every body like a model of its own, whose samples are its runs; steps are scored on its outputs."""
    unranged: set[str] = set()  # bodies with weights that are int8 whether or not anything runs them
    for path, each in reversed(planned.plan.bodies.items()):  # one inside another comes behind it
        if each.plan.unranged or path in unranged:
            unranged |= {path, each.body.parent}
    with clock.station("calibrate"):
        keep = kept_samples(job, RECIPES[job.quantization.recipe])
        parts = count_bodies(job, planned, samples, known, keep=keep, cluster=cluster)
    found = Bodies()
    for path, part in parts.items():
        inner, own = part.job, part.planned
        if not part.seen:
            found.runs[path] = 0
            if path not in unranged:
                continue
        # weights alone need no run
        collected = part.result() if part.seen else uncounted(own.taps, planned.prepared.sha256)
        inputs = search_inputs(inner, own, collected, checkpoint)
        result = run_recipe(inputs, clock)
        found.runs[path] = collected.statistics.samples
        found.results[path] = replace(result, model=onnx.ModelProto())  # it is built anew with the whole
        if job.quantization.optimize == "latency":
            found.unscaled[path] = without_equalization(result, inputs, clock)
        found.plans[path] = replace(planned.plan.bodies[path], plan=result.plan)  # steps may have left nodes in float
        lines = result.decisions
        if found.runs[path]:
            found.statistics[path] = collected.statistics
            lines = (f"calibrated on {found.runs[path]} runs", *lines)
        found.notes.extend(f"{path}: {line}" for line in lines)
    return found


def entered(bodies: Bodies, table: CalibrationTable, plan: Plan) -> CalibrationTable:
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


def with_bodies(result: Result, bodies: dict[str, Result]) -> Result:
    """Add the tables and tensors of bodies to those of the main graph; its model has the bodies already."""
    tables = {path: replace(each.table, warnings=()) for path, each in bodies.items()}
    tensors = {full_name(path, name): each for path, own in bodies.items() for name, each in own.tensors.items()}
    return replace(result, table=result.table.with_graphs(tables), tensors=result.tensors | tensors)
