"""`int8cal evaluate`: the accuracy report of any pair of models."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.console import Telling, command_line, show_report
from int8cal.cli.grouped import GroupedCommand, GroupedOption
from int8cal.cli.junit import JUnitFile, junit_option
from int8cal.cli.progress_line import shown_progress, starting
from int8cal.errors import ConfigError
from int8cal.job import DEFAULT_TARGET, OutputSettings
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from int8cal.job import Job, TargetName

_SECTION = "evaluation.data."
_DATA = f"{_SECTION}path"
_PREPROCESS = f"{_SECTION}preprocess."
_NO_DATA = "Missing option '--data'; give it, or evaluation.data (or data) in the YAML of --config"


@click.command("evaluate", cls=GroupedCommand)
@click.argument("fp32", type=options.PATH, metavar="FP32")
@click.argument("int8", type=options.PATH, metavar="INT8")
@options.settings(
    "evaluation.data.path",
    "evaluation.data.columns",
    "evaluation.data.preprocess.set",
    "evaluation.data.preprocess.text.*",
    "evaluation.data.preprocess.audio.*",
    "evaluation.data.preprocess.*",
)
@click.option(
    "-o",
    "--output",
    cls=GroupedOption,
    group="Output",
    first=True,
    type=options.PATH,
    metavar="DIR",
    help="Write report.json, .md and .html there.",
)
@options.settings("evaluation.data.samples", "evaluation.data.seed", "evaluation.data.skip_bad")
@click.option(
    "--target",
    cls=GroupedOption,
    group="Where it runs",
    first=True,
    type=click.Choice(list(TARGETS)),
    help=f"Where the int8 model will run: can it saturate there (default {DEFAULT_TARGET})?",
)
@options.settings("evaluation.*", "calibration.threads")
@options.config
@options.settings("output.overwrite", "quiet")
@options.as_json
@junit_option("evaluate")
@click.pass_context
def command(
    context: click.Context,
    junit: JUnitFile,
    *,
    fp32: str,
    int8: str,
    output: str | None,
    target: TargetName | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Compare the model INT8, made by any tool, with its float model FP32 on data.

    From the YAML of --config come data, preprocessing, labels and gates (its sections evaluation and data), and the
    target. Without --data, its evaluation.data is used, or else its data.
    """
    values, flags = options.given_settings(context)
    if config is None and _DATA not in values:
        raise click.UsageError(_NO_DATA, context)
    with starting(values):
        job = _job(values | {"model": fp32}, Path(config) if config else None, flags | {"model": "FP32"})
        if job is None:
            raise click.UsageError(f"{config} names no data. {_NO_DATA}", context)
        from int8cal.config.load import gates_left_out

        telling, left_out = Telling(), gates_left_out(values | {"model": fp32}, Path(config) if config else None)
        for line in left_out:  # with --quiet too
            telling(line)
        from int8cal.evaluating import evaluate_files
        from int8cal.evaluation.gates import gate_texts
        from int8cal.gating import require_complete, require_gates, require_sound

    directory = Path(output) if output else None
    # That a YAML lets its own output be replaced says nothing about the directory named here.
    overwrite = bool(values.get("output.overwrite", False))
    job = replace(job, output=OutputSettings(directory, overwrite))
    if target is not None:
        job = replace(job, quantization=replace(job.quantization, target=target))
    read = [Path(each) for each in (fp32, int8, config) if each]
    junit.expect(Path(int8).name, gate_texts(job.evaluation), read, overwrite=overwrite)
    with shown_progress(quiet=job.quiet):
        report = evaluate_files(
            job,
            Path(int8),
            command=command_line(context),
            tell=None if job.quiet else telling,
            warnings=left_out,
        )
    show_report(report, directory, quiet=job.quiet, as_json=as_json, told=telling.told)
    require_complete(report)
    junit.record(report)
    require_sound(report)
    require_gates(report)


def _job(values: dict[str, object], config: Path | None, flags: dict[str, str]) -> Job | None:
    """Make the job whose evaluation data, or else data, the models are judged on; None when neither is named.

    Options about preprocessing win one by one over what a YAML says of these samples, or has them take over.
    """
    own = {key: value for key, value in values.items() if key.startswith(_PREPROCESS)}
    plain = {key: value for key, value in values.items() if key not in own}
    job = _job_on_data(values if config is None else plain, config, flags)
    if job is None or config is None or not own:
        return job
    from int8cal.data.preprocessing import shown
    from int8cal.preprocess import with_set

    known = (job.evaluation.data or job.data).preprocess
    below = {} if known is None else {key: shown(value) for key, value in asdict(known).items()}
    above = with_set({key.removeprefix(_PREPROCESS): value for key, value in own.items()})
    return _job_on_data(plain | {_PREPROCESS + key: value for key, value in (below | above).items()}, config, flags)


def _job_on_data(values: dict[str, object], config: Path | None, flags: dict[str, str]) -> Job | None:
    from int8cal.config.load import job_from_options

    # A job needs calibration data; beside evaluation data only its preprocessing counts, which that inherits.
    if _DATA in values:
        return job_from_options(values | {"data.path": values[_DATA]}, config, flags=flags)
    plain = {key: value for key, value in values.items() if not key.startswith(_SECTION)}
    if job_from_options(plain | {"data.path": "."}, config, flags=flags).evaluation.data is not None:
        return job_from_options(values | {"data.path": "."}, config, flags=flags)
    renamed = {key.replace(_SECTION, "data."): value for key, value in values.items()}
    names = {key.replace(_SECTION, "data."): name for key, name in flags.items()}
    try:
        return job_from_options(renamed, config, flags=names)
    except ConfigError as error:
        if error.fields.get("key") in {"data", "data.path"}:
            return None
        raise
