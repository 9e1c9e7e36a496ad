"""`int8cal calibrate`: the whole job for one model."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.console import Telling, command_line, say, show_report, shown_path, tell
from int8cal.cli.grouped import GroupedCommand
from int8cal.cli.junit import JUnitFile, junit_option
from int8cal.cli.progress_line import shown_progress, starting

# What a shard, whose samples are counted and nothing else, has no use for.
_BEHIND_THE_SUM = (
    "calibration.method",
    "calibration.percentile",
    "quantization.recipe",
    "quantization.optimize",
    "quantization.explain",
    "quantization.latency_allowance",
    "quantization.budget",
    "quantization.fallback",
    "evaluation.data.path",
    "evaluation.labels",
    "evaluation.metric",
    "evaluation.gates",
    "evaluation.runtimes",
    "evaluation.providers",
)


@click.command("calibrate", cls=GroupedCommand)
@click.argument("model", required=False, type=options.PATH, metavar="MODEL")
@options.settings(
    "data.path",
    "data.preprocess.set",
    "data.preprocess.text.*",
    "data.preprocess.audio.*",
    "data.preprocess.*",
    "output.dir",
    "calibration.method",
    "calibration.percentile",
    "quantization.*",
    "data.samples",
    "data.seed",
    "data.*",
    "calibration.*",
    "evaluation.data",
    "evaluation.*",
)
@options.config
@options.settings("output.overwrite", "quiet")
@options.as_json
@junit_option("calibrate")
@click.pass_context
def command(context: click.Context, junit: JUnitFile, *, model: str | None, config: str | None, as_json: bool) -> None:
    """Calibrate MODEL on data, and write its int8 model, table, statistics and accuracy report.

    Everything may stand in the YAML of --config instead, MODEL too.
    """
    values, flags = options.given_settings(context)
    if model is not None:
        values["model"] = model
    if config is None:
        for key, missing in (("model", "argument 'MODEL'"), ("data.path", "option '--data'")):
            if key not in values:
                raise click.UsageError(f"Missing {missing}", context)
    with starting(values):
        from int8cal.config.load import (
            gates_left_out,
            job_from_options,
            load_jobs,
            placed_patterns,
            require_available,
        )
        from int8cal.evaluation.gates import gate_texts

        job = job_from_options(values, Path(config) if config else None, flags=flags | {"model": "MODEL"})
        telling, left_out = Telling(), gates_left_out(values, Path(config) if config else None)
        for told in left_out:  # with --quiet too
            telling(told)
        read = [job.model, *([Path(config)] if config else [])]
        junit.expect(job.name, gate_texts(job.evaluation), read, overwrite=job.output.overwrite)
        require_available(job)
        from int8cal.calibrating import calibrate_job, count_shard, order_of
        from int8cal.gating import require_complete, require_gates, require_sound

    def place(key: str) -> str | None:
        if config is None or key in values:
            return None
        return load_jobs(Path(config), values, flags=flags)[0].place(key).text

    if job.calibration.shard is not None:
        if as_json or junit.wanted:
            raise click.UsageError("--shard writes statistics alone: no report for --json or --junit", context)
        unheeded = [flags[key] for key in _BEHIND_THE_SUM if key in values]
        if unheeded:
            without = f"without effect here: {', '.join(unheeded)}"
            say(f"warning: --shard counts samples alone; {without}; give that to the run that takes the sum by --stats")
        with placed_patterns(place), shown_progress(quiet=job.quiet):
            counted = count_shard(job, tell=None if job.quiet else say)
        if not job.quiet:
            tell(f"wrote {shown_path(counted.path)}: {counted.samples} samples, shard {job.calibration.shard}")
        return
    with placed_patterns(place), shown_progress(quiet=job.quiet) as line:
        if line is not None:
            line.announce(order_of(job))
        outcome = calibrate_job(
            job,
            command=command_line(context),
            tell=None if job.quiet else telling,
            warnings=left_out,
        )
    show_report(
        outcome.report,
        outcome.directory,
        quiet=job.quiet,
        as_json=as_json,
        told=telling.told,
        explain=job.quantization.explain,
    )
    require_complete(outcome.report)
    junit.record(outcome.report)
    require_sound(outcome.report)
    require_gates(outcome.report)
