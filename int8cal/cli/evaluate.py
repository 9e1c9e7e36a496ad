"""`int8cal evaluate`: the accuracy report of any pair of models."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.outcome import require_gates, show_report
from int8cal.cli.progress import Progress


@click.command("evaluate")
@click.argument("fp32", metavar="FP32")
@click.argument("int8", metavar="INT8")
@options.data(key="evaluation.data.path", required=True)
@click.option("-o", "--output", type=click.Path(), metavar="DIR", help="Write report.json, .md and .html there.")
@options.samples(section="evaluation.data")
@options.judgement
@options.threads
@options.config
@options.overwrite
@options.quiet
@options.as_json
@click.pass_context
def command(
    context: click.Context, *, fp32: str, int8: str, output: str | None, config: str | None, as_json: bool
) -> None:
    """Compare the model INT8, made by any tool, with its float model FP32 on data.

    From the YAML of --config come preprocessing, labels and gates (its sections data and evaluation).
    """
    values, flags = options.settings_of(context)
    # A job needs calibration data; here only its preprocessing counts, which the evaluation data inherits.
    values |= {"model": fp32, "data.path": values["evaluation.data.path"]}
    from int8cal.config.load import job_from_options

    job = job_from_options(values, Path(config) if config else None, flags=flags | {"model": "FP32"})
    data = job.evaluation.data
    if data is None:
        raise click.UsageError("Missing option '--data'", context)
    from int8cal.pipeline import evaluate_files

    directory = Path(output) if output else None
    report = evaluate_files(
        Path(fp32),
        Path(int8),
        data,
        output=directory,
        gates=job.evaluation.gates,
        threads=job.calibration.threads,
        latency=job.evaluation.latency,
        # That a YAML lets its own output be replaced says nothing about the directory named here.
        overwrite=bool(values.get("output.overwrite", False)),
        progress=Progress(quiet=job.quiet),
    )
    show_report(report, directory, quiet=job.quiet, as_json=as_json)
    require_gates(report)
