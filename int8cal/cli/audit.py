"""`int8cal audit`: can an int8 model saturate on CPUs without VNNI, does it on data, and a repaired copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.console import say, screen, tell, tell_fitted, tell_written
from int8cal.cli.progress_line import shown_progress
from int8cal.errors import Int8calError
from int8cal.job import DEFAULT_TARGET
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.audit.audit import Audit
    from int8cal.evaluation.result_parts import Gate
    from int8cal.job import DataSettings

SAMPLES = 32  # of --data, unless --samples says otherwise
_TARGETS = "; ".join(f"{target.name}: {target.what}" for target in TARGETS.values())


@click.command("audit")
@click.argument("models", nargs=-1, required=True, type=options.PATH, metavar="MODEL...")
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    default=DEFAULT_TARGET,
    help=f"Where the model will run (default {DEFAULT_TARGET}). {_TARGETS}.",
)
@click.option(
    "--data",
    type=options.PATH,
    metavar="PATH",
    help="Run these samples and count what would saturate: a directory, file or glob, as in calibrate.",
)
@click.option("--samples", type=options.WholeWithin(min=1), metavar="N", help=f"At most N samples (default {SAMPLES}).")
@click.option("--skip-bad", is_flag=True, help="Count and skip unreadable files, not stop.")
@click.option("--config", type=options.PATH, metavar="FILE", help="YAML of a job; its data.preprocess is used.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="'NAME<=VALUE'",
    help="Exit with 7 unless this holds, such as 'unsafe_channels<=0'. Repeatable. Names: unsafe_channels, "
    "unsafe_pairs, unsafe_layers, worst_sum, accumulator (fraction of s32), data_dependent_layers, channels, layers, "
    "fusion.integer, fusion.float; with --data saturated_on_data, saturated_channels_on_data. With --fix the fixed "
    "model is judged.",
)
@click.option("--fix", is_flag=True, help="Write a model whose unsafe channels are quantized again.")
@click.option("-o", "--output", type=options.PATH, metavar="OUT.onnx", help="The model that --fix writes.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--threads", type=options.WholeWithin(min=0), default=0, metavar="N", help="Of the runtime (default 0: all)."
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON on stdout, and nothing else there.")
@click.pass_context
def command(
    context: click.Context,
    *,
    models: tuple[str, ...],
    target: str,
    data: str | None,
    samples: int | None,
    skip_bad: bool,
    config: str | None,
    gates: tuple[str, ...],
    fix: bool,
    output: str | None,
    overwrite: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Say which output channels of the int8 models MODEL, made by any tool, can saturate on a target.

    CPUs with AVX2 but without VNNI add two products in 16 bits. The audit looks at the weights that meet there. A float
    model is an error (exit code 3): there is nothing to audit. Of several models each is audited, and the exit code is
    that of the first that failed.
    """
    if len(models) > 1 and (fix or as_json):
        raise click.UsageError("--fix and --json take one MODEL", context)
    if fix != (output is not None):
        raise click.UsageError("--fix needs -o OUT.onnx, and -o needs --fix", context)
    if data is None and (samples is not None or config is not None or skip_bad or threads):
        raise click.UsageError("--samples, --skip-bad, --threads and --config need --data", context)

    def one(model: str) -> None:
        settings = None if data is None else _data(model, data, samples, config, skip_bad=skip_bad)
        from int8cal.audit.audit import audit_file
        from int8cal.audit.report import audit_lines, audit_to_json
        from int8cal.gating import require_held

        with shown_progress(quiet=quiet):
            audit = audit_file(
                Path(model),
                target=target,
                data=settings,
                gates=gates,
                fix=None if output is None else Path(output),
                overwrite=overwrite,
                threads=threads,
            )
        if as_json:
            tell(audit_to_json(audit), nl=False)
        elif not quiet:
            tell_fitted(audit_lines(audit, screen()))
        if output is not None and not quiet:
            tell_written(output, beside_json=as_json)
        require_held(audit.gates, lambda index: _value(audit.gates[index]), lambda _: _advice(audit))

    if len(models) == 1:
        one(models[0])
        return 0
    return _each(models, one, quiet=quiet)


def _each(models: Sequence[str], one: Callable[[str], None], *, quiet: bool) -> int:
    """Audit models one after the other; a message names its model, and the first failure decides the exit code."""
    first = 0
    for place, model in enumerate(models):
        if place and not quiet:
            tell("")
        try:
            one(model)
        except Int8calError as error:
            if error.exit_code == 1:
                raise
            place_of = "" if model in str(error) else f"{model}: "
            say(f"{place_of}{error}")
            first = first or error.exit_code
    return first


def _data(model: str, data: str, samples: int | None, config: str | None, *, skip_bad: bool) -> DataSettings:
    from dataclasses import replace

    from int8cal.config.load import job_from_options

    values: dict[str, object] = {"model": model, "data.path": data}
    if skip_bad:
        values["data.skip_bad"] = True
    flags = {"model": "MODEL", "data.path": "--data"}
    job = job_from_options(values, Path(config) if config else None, flags=flags)
    return replace(job.data, samples=samples or SAMPLES)


def _value(gate: Gate) -> str:
    return f"is {'unknown' if gate.value is None else f'{gate.value:g}'}"


def _advice(audit: Audit) -> str:
    """Say what helps: a repair where channels are unsafe and nobody asked for one yet."""
    if audit.repaired is None and audit.saturation.unsafe_channels:
        return "quantize again with --target portable, or repair the model with --fix -o OUT.onnx"
    if audit.saturation.unsafe_channels or any(layer.verdict == "data" for layer in audit.saturation.layers):
        return "quantize again with --target portable, or change the gate"
    return "change the model, or the gate"
