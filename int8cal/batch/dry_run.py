"""A dry run: everything about a job that can be known without running it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.batch.inputs import FileCache
from int8cal.batch.up_to_date import Decision, decide, job_to_run
from int8cal.calibration.ranges import require_known_tensors
from int8cal.config.patterns import placed_patterns
from int8cal.data.feeds import open_feeds
from int8cal.errors import Int8calError
from int8cal.evaluation.gates import need_labels, parse_gate
from int8cal.graph.prepared import Prepared, prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.pipeline import require_writable
from int8cal.quantization.uint8_input import plan_uint8_input
from int8cal.runtime.simplify import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from int8cal.batch.jobs import Task
    from int8cal.job import Job


@dataclass(frozen=True)
class Checked:
    """A job as it would be run.

    Attributes:
        task, decision: The job, and whether it would run.
        samples: Number of samples for calibration and for evaluation; None where only a pass can tell.
        error: The first thing that would stop it.
    """

    task: Task
    decision: Decision
    samples: tuple[int | None, int | None]
    error: Int8calError | None


def check_jobs(tasks: Sequence[Task], *, rerun: bool = False) -> Iterator[Checked]:
    """Check jobs without any inference, in order.

    Models are loaded and planned, patterns and ranges matched, data listed and its headers read, labels matched,
    preprocessing held against the input, output directories tried.

    Args:
        tasks: The jobs.
        rerun: Whether those would run whose results are up to date.

    Yields:
        One verdict per job; nothing is raised for a mistake in one.
    """
    files = FileCache()
    last: tuple[Path, Prepared] | None = None  # jobs of a matrix follow each other with one model
    for task in tasks:
        decision = decide(task, files, rerun=rerun)
        job = job_to_run(task, decision)
        samples: tuple[int | None, int | None] = (None, None)
        error: Int8calError | None = None
        if not decision.up_to_date:
            try:
                if decision.error is not None:
                    raise decision.error
                require_writable(job)
                if last is None or last[0] != job.model:
                    last = (job.model, prepare(job.model, simplify))
                with placed_patterns(task.places.get):
                    samples = _require_fit(job, last[1])
            except Int8calError as found:
                error = found
        yield Checked(replace(task, job=job), decision, samples, error)


def _require_fit(job: Job, prepared: Prepared) -> tuple[int | None, int | None]:
    """Hold the settings and the data's headers against the model; count samples for calibration and evaluation."""
    quantization = job.quantization
    plan = require_layers(prepared, Selection(quantization.include, quantization.exclude, target=quantization.target))
    plan_uint8_input(prepared, plan, job.data.preprocess, quantization)
    require_known_tensors(plan, quantization.ranges)
    feeds = open_feeds(job.data, prepared.signature)
    gates = [parse_gate(text) for text in job.evaluation.gates]
    evaluation = open_feeds(job.evaluation.data or job.data, prepared.signature, require_labels=need_labels(gates))
    return feeds.count, evaluation.count
