"""`int8cal run`: the jobs of YAML files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.endings import keep_crash, say, tell
from int8cal.cli.junit import junit_of, recorded
from int8cal.cli.outcome import require_gates, shown_path
from int8cal.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.batch.check import Checked
    from int8cal.batch.task import JobResult, Task

_WIDTH = 13


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
@click.option("--keep-going", is_flag=True, help="Go on with the next job after one failed.")
@click.option(
    "--jobs",
    "at_a_time",
    type=click.IntRange(1, 256),
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
@options.settings("output.overwrite", "quiet")
@recorded("run")
@click.pass_context
def command(
    context: click.Context,
    *,
    configs: tuple[str, ...],
    dry_run: bool,
    only: tuple[str, ...],
    keep_going: bool,
    at_a_time: int,
    rerun: bool,
    summary: str | None,
) -> int:
    """Run the jobs of YAML files, and print one row for each.

    All files are checked before the first job starts. A job whose results are there, unchanged, and made from the same
    model, data, settings and versions is up to date and does not run; so a batch that was stopped goes on where it was.
    The exit code is that of the first job that failed.
    """
    values, flags = options.settings_of(context)
    from int8cal.batch.tasks import chosen, load_tasks

    tasks = load_tasks(configs, values, flags)
    selected = chosen(tasks, only)
    if dry_run:
        return _dry_run(selected, rerun=rerun)
    from int8cal.batch.junit import suite_of_result
    from int8cal.batch.order import Course, run_batch
    from int8cal.batch.summary import counted, default_summary, read_by, require_summary
    from int8cal.batch.task import Endings
    from int8cal.report.batch_lines import COLUMNS

    overwrite = bool(values.get("output.overwrite", False))
    junit_of(context).expect("run", (), read_by(tasks), overwrite=overwrite)
    path = Path(summary) if summary else default_summary(tasks)
    if path is not None:
        require_summary(path, tasks, overwrite=overwrite)
    quiet = bool(values.get("quiet", False))
    width = max(len(task.job.name) for task in selected)
    if not quiet:
        tell("  ".join([f"{'job':<{width}}", *(f"{column:>{_WIDTH}}" for column in COLUMNS), "result"]))
    outcome = run_batch(
        selected,
        Course(at_a_time, keep_going, rerun, path),
        Endings(require_gates, keep_crash),
        Progress(quiet=quiet),
        _teller({task.job.name for task in selected if task.job.quiet}, width),
    )
    junit_of(context).keep(
        [
            suite_of_result(result, task.job.evaluation.gates)
            for task, result in zip(selected, outcome.results, strict=True)
        ]
    )
    left = sum(result.status == "not run" for result in outcome.results)
    if left and not outcome.interrupted:
        say(f"stopped, {left} {'job' if left == 1 else 'jobs'} not run; --keep-going runs them all the same")
    if not quiet:
        tell(counted(outcome.results) + (f"; summary in {shown_path(path)}" if path else ""))
    if outcome.interrupted:
        raise outcome.interrupted
    return outcome.exit_code


def _teller(quiet: set[str], width: int) -> Callable[[JobResult, str], None]:
    from int8cal.report.batch_lines import figure_cells

    def ended(result: JobResult, printed: str) -> None:
        if printed.strip():
            tell(printed.rstrip(), err=True)
        if result.error:
            # a bug's line names its log; it reads the same whatever job it came from
            say(result.error if result.error.startswith("internal:") else f"{result.name}: {result.error}")
        if result.name not in quiet:
            cells = (f"{cell:>{_WIDTH}}" for cell in figure_cells(result.metrics))
            tell("  ".join((f"{result.name:<{width}}", *cells, _ended(result))))
            sys.stdout.flush()

    return ended


def _ended(result: JobResult) -> str:
    up_to_date = "" if result.ran else " (up to date)"
    if not result.exit_code:
        return shown_path(result.directory) + up_to_date
    if result.error.startswith("killed:"):
        return "failed: killed"
    if result.exit_code == 1:
        return "failed: a bug in int8cal"
    station = "gate" if result.status == "gate failed" else result.error.split(":", 1)[0]
    return f"failed: {station}{up_to_date}"


def _dry_run(tasks: Sequence[Task], *, rerun: bool) -> int:
    """List the jobs, and give the exit code of the first one that cannot run."""
    from int8cal.batch.check import check

    code, counts = 0, {"to run": 0, "up to date": 0, "cannot run": 0}
    for checked in check(tasks, rerun=rerun):
        skipped = checked.decision.action == "skip"
        state = "cannot run" if checked.error else "up to date" if skipped else "to run"
        counts[state] += 1
        for line in _listing(checked, state):
            tell(line)
        if checked.error is not None:
            code = code or checked.error.exit_code
            say(f"{checked.task.job.name}: {checked.error}")
        elif skipped and checked.decision.record is not None:
            code = code or checked.decision.record.exit_code
    tell(", ".join(f"{number} {state}" for state, number in counts.items() if number) + "; nothing was written")
    return code


def _listing(checked: Checked, state: str) -> list[str]:
    job, decision = checked.task.job, checked.decision
    why = "" if state != "to run" else f" ({decision.why})"
    calibration, evaluation = ("" if number is None else f" ({number} samples)" for number in checked.samples)
    judged = job.evaluation.data
    return [
        f"{job.name}: {state}{why}",
        f"  model       {shown_path(job.model)}",
        f"  data        {_place(job.data.path)}{calibration}",
        f"  evaluation  {'the same data' if judged is None else _place(judged.path) + evaluation}",
        *(
            f"  {'differs' if number == 0 else '':<10}  {key}: {text}"
            for number, (key, text) in enumerate(checked.task.differs.items())
        ),
        f"  output      {shown_path(decision.directory)}",
    ]


def _place(path: str) -> str:
    return shown_path(path) if Path(path).exists() else path
