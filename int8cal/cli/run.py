"""`int8cal run`: the jobs of YAML files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.console import command_line, say, screen, shown_path, tell, tell_fitted
from int8cal.cli.junit import JUnitFile, junit_option
from int8cal.cli.progress_line import shown_progress, starting
from int8cal.errors import Int8calError
from int8cal.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.batch.jobs import JobResult, Task
    from int8cal.batch.up_to_date import Checked
    from int8cal.report.screen import Columns

_WIDTH = 13
_HANG = 14  # where the values of a listed job begin


class RunCommand(click.Command):
    """`int8cal run`, which says where the settings of jobs belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an option of `calibrate` is answered with its key in the YAML."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from int8cal.cli import calibrate

            keys = {
                name: parameter.key
                for parameter in calibrate.command.params
                if isinstance(parameter, options.Setting)
                for name in parameter.opts
            }
            if error.option_name not in keys:
                raise
            raise click.UsageError(
                f"no option {error.option_name}: settings of jobs go into the YAML, as {keys[error.option_name]}, or "
                "use int8cal calibrate --config FILE for one job",
                ctx,
            ) from error


@click.command("run", cls=RunCommand)
@click.argument("configs", nargs=-1, required=True, type=options.PATH, metavar="CONFIG.yaml...")
@click.option("--dry-run", is_flag=True, help="List the jobs and check all that can be checked without running them.")
@click.option("--only", multiple=True, metavar="GLOB", help="Run only jobs whose name matches. Repeatable.")
@click.option("--keep-going", is_flag=True, help="Go on with the next job after one that gave no results.")
@click.option(
    "--jobs",
    "workers",
    type=options.WholeWithin(1, 256),
    default=1,
    metavar="N",
    help="Run N jobs at a time, each in a process of its own (default 1). Speed is measured with the others stopped.",
)
@click.option("--rerun", is_flag=True, help="Run jobs whose results are up to date, too.")
@click.option(
    "--summary",
    type=options.PATH,
    metavar="FILE",
    help="Where the summary goes, with a .md (default for several jobs: summary.json beside their directories).",
)
@options.settings("evaluation.strict", "calibration.resume", "output.overwrite", "quiet")
@junit_option("run")
@click.pass_context
def command(
    context: click.Context,
    junit: JUnitFile,
    *,
    configs: tuple[str, ...],
    dry_run: bool,
    only: tuple[str, ...],
    keep_going: bool,
    workers: int,
    rerun: bool,
    summary: str | None,
) -> int:
    """Run the jobs of YAML files, and print one row for each.

    All files are checked before the first job starts. A job whose results are there, unchanged, and made from the same
    model, data, settings and versions is up to date and does not run; so a batch that was stopped goes on where it was.
    A job whose gate failed has results: later jobs run, and so does the rest of the batch on a rerun. A job that stops
    without results stops the batch. The exit code is that of the first job that failed.
    """
    values, flags = options.given_settings(context)
    if dry_run and (junit.wanted or summary is not None):
        raise click.UsageError("--dry-run runs no job: no verdicts for --junit, no rows for --summary", context)
    with starting(values):
        from int8cal.batch.jobs import load_tasks, select_tasks

        tasks = load_tasks(configs, values, flags)
        selected = select_tasks(tasks, only)
        from int8cal.batch.chain import chains_of, record_samples, require_links, row_names, with_chains

        for chain in chains_of(tasks):
            require_links(chain)
    if dry_run:
        return _dry_run(selected, rerun=rerun)
    from int8cal.batch.run import BatchOptions, first_failure, run_batch
    from int8cal.batch.summary import (
        default_summary,
        describe_counts,
        inputs_of_batch,
        junit_suite,
        require_summary,
        write_summary,
    )
    from int8cal.evaluation.gates import gate_texts

    overwrite = bool(values.get("output.overwrite", False))
    junit.expect("run", (), inputs_of_batch(tasks), overwrite=overwrite)
    path = Path(summary) if summary else default_summary(tasks)
    if path is not None:
        require_summary(path, tasks, overwrite=overwrite)
    quiet = bool(values.get("quiet", False))
    for chain in chains_of(tasks):
        if any(task in selected for task in chain):
            record_samples(chain, None if quiet else tell)
    columns = _columns(selected, [name for task in selected for name in row_names(task)])
    if not quiet:
        tell(columns.head)
    reporter = _reporter({name for task in selected if task.job.quiet for name in row_names(task)}, columns)
    options_of_batch = BatchOptions(workers, keep_going, rerun, path, command_line(context))
    with shown_progress(quiet=quiet):
        results, interrupted = run_batch(selected, options_of_batch, reporter)
    if not interrupted:
        chosen = len(results)
        selected, results = with_chains(selected, results, reporter)
        if len(results) > chosen:
            write_summary(path, selected, results, first_failure(results))
    junit.keep(
        [junit_suite(result, gate_texts(task.job.evaluation)) for task, result in zip(selected, results, strict=True)]
    )
    left = sum(result.status == "not run" for result in results)
    if left and not interrupted:
        say(f"stopped, {counted(left, 'job')} not run; --keep-going runs them all the same")
    if not quiet:
        tell_fitted([describe_counts(results) + (f"; summary in {shown_path(path)}" if path else "")])
    if interrupted:
        raise interrupted
    return first_failure(results)


def _columns(tasks: Sequence[Task], names: Iterable[str]) -> Columns:
    """Lay out the table of jobs, whose rows are printed as they end."""
    from int8cal.calibrating import files_of
    from int8cal.report.file_lines import COLUMNS
    from int8cal.report.screen import Columns

    end = max(len(shown_path(files_of(task.job)[0])) for task in tasks)
    widths = (max(map(len, names)), *(_WIDTH for _ in COLUMNS), end)
    return Columns(screen(), ("job", *COLUMNS, "result"), widths, range(1, 1 + len(COLUMNS)))


def _reporter(quiet: set[str], columns: Columns) -> Callable[[JobResult, str], None]:
    """Make what prints a job as it ends: what it printed, its error, what its data show, its row.

    Args:
        quiet: Names of rows that are not shown.
        columns: Of the others.
    """
    from int8cal.report.file_lines import figure_cells

    def report(result: JobResult, printed: str) -> None:
        if printed.strip():
            tell(printed.rstrip(), err=True)
        if result.error:
            # a bug's line names its log; it reads the same whatever job it came from
            say(result.error if result.station == Int8calError.station else f"{result.name}: {result.error}")
        if result.name not in quiet:
            if result.findings and result.status != "failed":  # strict findings are its error
                more = len(result.findings) - 1
                others = f" (and {more} more, in the report)" if more else ""
                say(f"{result.name}: check the data: {result.findings[0]}{others}")
            row = columns.line((result.name, *figure_cells(result.metrics), _ending(result)))
            tell_fitted([row], columns.hang)
            sys.stdout.flush()

    return report


def _ending(result: JobResult) -> str:
    """Say where a job's results are, or where it failed."""
    up_to_date = "" if result.ran else " (up to date)"
    if not result.exit_code:
        return shown_path(result.directory) + up_to_date
    if result.station == Int8calError.station:
        return "failed: a bug in int8cal"
    return f"failed: {result.station}{up_to_date}"


def _dry_run(tasks: Sequence[Task], *, rerun: bool) -> int:
    """List the jobs, and give the exit code of the first one that cannot run."""
    from int8cal.batch.up_to_date import check_jobs
    from int8cal.runtime.scratch import weights_folder

    with weights_folder():
        return _checked(check_jobs(tasks, rerun=rerun))


def _checked(jobs: Iterable[Checked]) -> int:
    code, counts = 0, {"to run": 0, "up to date": 0, "cannot run": 0}
    for checked in jobs:
        up_to_date = checked.decision.up_to_date
        state = "cannot run" if checked.error else "up to date" if up_to_date else "to run"
        counts[state] += 1
        tell_fitted(_listing(checked, state), _HANG)
        if checked.error is not None:
            code = code or checked.error.exit_code
            say(f"{checked.task.job.name}: {checked.error}")
        elif up_to_date and checked.decision.record is not None:
            code = code or checked.decision.record.exit_code
    told = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    tell_fitted([f"{told}; nothing was written"])
    return code


def _listing(checked: Checked, state: str) -> list[str]:
    """Describe a job as it would be run."""
    job, decision = checked.task.job, checked.decision
    why = "" if state != "to run" else f" ({decision.why})"
    calibration, evaluation = (
        "" if number is None else f" ({counted(number, 'sample')})" for number in checked.samples
    )
    data = job.evaluation.data
    return [
        f"{job.name}: {state}{why}",
        f"  model       {shown_path(job.model)}",
        f"  data        {_place(job.data.path)}{calibration}",
        f"  evaluation  {'the same data' if data is None else _place(data.path) + evaluation}",
        *(
            f"  {'differs' if number == 0 else '':<10}  {key}: {text}"
            for number, (key, text) in enumerate(checked.task.differs.items())
        ),
        f"  output      {shown_path(decision.directory)}",
    ]


def _place(path: str) -> str:
    return shown_path(path) if Path(path).exists() else path
