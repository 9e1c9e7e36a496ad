"""`int8cal run`: the jobs of YAML files, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.endings import crash, say
from int8cal.cli.outcome import require_gates, shown_path
from int8cal.cli.progress import Progress
from int8cal.errors import Int8calError

if TYPE_CHECKING:
    from int8cal.evaluation.result import Report
    from int8cal.job import Job

_COLUMNS = ("SQNR", "top-1 drop", "size", "speedup")
_WIDTH = 13


@click.command("run")
@click.argument("configs", nargs=-1, required=True, type=options.PATH, metavar="CONFIG.yaml...")
@click.option("--keep-going", is_flag=True, help="Go on with the next job after one failed.")
@options.overwrite
@options.quiet
@click.pass_context
def command(context: click.Context, *, configs: tuple[str, ...], keep_going: bool) -> int:
    """Run the jobs of YAML files, in order, and print one row for each.

    All files are checked before the first job starts. The exit code is that of the first job that failed.
    """
    values, flags = options.settings_of(context)
    jobs = _load(configs, values, flags)
    width = max(len(job.name) for job in jobs)
    quiet = bool(values.get("quiet", False))
    if not quiet:
        click.echo("  ".join([f"{'job':<{width}}", *(f"{column:>{_WIDTH}}" for column in _COLUMNS), "result"]))
    first_failure = 0
    for position, job in enumerate(jobs):
        code, cells, result = _run(job)
        first_failure = first_failure or code
        if not job.quiet:
            click.echo("  ".join([f"{job.name:<{width}}", *(f"{cell:>{_WIDTH}}" for cell in cells), result]))
        left = len(jobs) - position - 1
        if code and left and not keep_going:
            say(f"stopped, {left} {'job' if left == 1 else 'jobs'} not run; --keep-going runs them all the same")
            break
    return first_failure


def _load(configs: tuple[str, ...], values: dict[str, object], flags: dict[str, str]) -> list[Job]:
    from int8cal.config.available import require_available
    from int8cal.config.expand import require_distinct_outputs
    from int8cal.config.load import load_jobs

    jobs: list[Job] = []
    files: list[str] = []
    for config in configs:
        loaded = load_jobs(Path(config), values, flags=flags)
        jobs += loaded
        files += [config] * len(loaded)
    require_distinct_outputs(jobs, files)
    for job in jobs:
        require_available(job)
    return jobs


def _run(job: Job) -> tuple[int, tuple[str, ...], str]:
    """Run one job: exit code, the row's cells, and how it ended."""
    from int8cal.pipeline import calibrate_job

    cells: tuple[str, ...] = ("",) * len(_COLUMNS)
    try:
        outcome = calibrate_job(job, progress=Progress(quiet=job.quiet))
        cells = _cells(outcome.report)
        require_gates(outcome.report)
    except Int8calError as error:
        if error.exit_code == 1:
            return crash(error), cells, "failed: a bug in int8cal"
        say(f"{job.name}: {error}")
        return error.exit_code, cells, f"failed: {error.station}"
    except Exception as error:  # noqa: BLE001 - one job's bug must not hide the others' results; crash() keeps its traceback
        return crash(error), cells, "failed: a bug in int8cal"
    return 0, cells, shown_path(outcome.directory)


def _cells(report: Report) -> tuple[str, ...]:
    from int8cal.report import wording

    evaluation = report.evaluation
    top1, latency = evaluation.metrics.top1, evaluation.latency
    return (
        wording.decibel(evaluation.metrics.sqnr_db),
        wording.points(top1.drop if top1 else None),
        wording.smaller(*evaluation.size) if all(evaluation.size) else "",
        wording.times(latency.speedup if latency else None),
    )
