"""`int8cal quantize`, `table` and `merge`: what comes of tables and statistics, without data and inference."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from click.core import ParameterSource

from int8cal.cli import options
from int8cal.cli.console import say, shown_path, tell, tell_written
from int8cal.interop import FORMATS, Choices
from int8cal.job import DEFAULT_TARGET, WeightRange
from int8cal.phrases import counted
from int8cal.runtime.targets import TARGETS


@click.command("table")
@click.argument("file", type=options.PATH, metavar="FILE")
@click.option(
    "--to",
    "to",
    type=click.Choice(FORMATS),
    help="Write the table FILE in this format. onnxruntime: the suffix of OUT says which of its forms, .json, "
    ".flatbuffers (which its TensorRT provider reads) or .cache. openvino: FakeQuantize parameters as JSON, or with "
    "--model and OUT.xml the model with these operations in it; --from reads both.",
)
@click.option("--from", "source", type=click.Choice(FORMATS), help="Make a table of FILE, which is in this format.")
@click.option("-o", "--output", required=True, type=options.PATH, metavar="OUT", help="The file to write.")
@click.option(
    "--model",
    type=options.PATH,
    metavar="MODEL",
    help="The FP32 model. With --from, the table is for it. With --to ncnn, it says what ncnn needs to know of layers.",
)
@click.option(
    "--param", type=options.PATH, metavar="FILE", help="ncnn's .param file; layers are called as in it (pnnx renames)."
)
@click.option("--header", metavar="TEXT", help="First line of a TensorRT cache (default TRT-8601-EntropyCalibration2).")
@click.option(
    "--missing",
    type=click.Choice(["error", "float"]),
    default="error",
    help="With --from: what becomes of layers for whose tensors FILE has no range (default error).",
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    help=f"With --from: where the model will run (default {DEFAULT_TARGET}, or what FILE says).",
)
@click.option(
    "--weights",
    type=click.Choice(get_args(WeightRange)),
    help="With --from: range of the weights' codes; s8 keeps the scales of an ncnn table. Default: as FILE says, or "
    "the target's own.",
)
@click.option("--force", is_flag=True, help="With --to: use a table that was made for another model.")
@options.overwrite
@click.option("-q", "--quiet", is_flag=True, help="Do not print what is lost.")
@click.pass_context
def command(
    context: click.Context,
    *,
    file: str,
    to: str | None,
    source: str | None,
    output: str,
    model: str | None,
    param: str | None,
    header: str | None,
    missing: str,
    target: str | None,
    weights: WeightRange | None,
    force: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Convert a calibration table to the format of another runtime, or a file of another runtime to a table.

    What the other format cannot say is printed on stderr, line by line.
    """
    if (to is None) == (source is None):
        raise click.UsageError("give --to FORMAT or --from FORMAT, one of them", context)
    form = to or source or ""
    if param is not None and form != "ncnn":
        raise click.UsageError("--param is for ncnn", context)
    if header is not None and to != "tensorrt":
        raise click.UsageError("--header is for --to tensorrt", context)
    for name in ("force",) if to is None else ("missing", "target", "weights"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is for {'--to' if to is None else '--from'}", context)
    from int8cal.interop.convert import export_table, import_table

    choices = Choices(
        model=None if model is None else Path(model),
        param=None if param is None else Path(param),
        header=header,
        target=target,
        weights=weights,
        missing_float=missing == "float",
        force=force,
    )
    convert = export_table if to is not None else import_table
    converted = convert(Path(file), form, Path(output), choices, overwrite=overwrite)
    if not quiet:
        for loss in converted.losses:
            say(f"lost: {loss}")
    tell_written(output)


@click.command("quantize")
@click.argument("model", type=options.PATH, metavar="MODEL")
@click.option("--table", required=True, type=options.PATH, metavar="TABLE", help="Calibration table, *.table.json.")
@click.option("-o", "--output", required=True, type=options.PATH, metavar="OUT.onnx", help="The int8 model to write.")
@click.option("--force", is_flag=True, help="Use a table that was made for another model.")
@options.overwrite
def quantize(*, model: str, table: str, output: str, force: bool, overwrite: bool) -> None:
    """Write the int8 model of MODEL from an existing, maybe hand-edited table: no data, no inference."""
    from int8cal.quantizing import quantize_file

    for warning in quantize_file(Path(model), Path(table), Path(output), force=force, overwrite=overwrite):
        say(f"warning: {warning}")
    tell_written(output)


@click.command("merge")
@click.argument("inputs", nargs=-1, required=True, type=options.PATH, metavar="A.stats.npz B.stats.npz...")
@click.option("-o", "--output", required=True, type=options.PATH, metavar="C.stats.npz", help="The file to write.")
@options.overwrite
def merge(*, inputs: tuple[str, ...], output: str, overwrite: bool) -> None:
    """Add the statistics of several shards; the result is bit for bit that of one run over all of them."""
    from int8cal.calibration.statistics_file import merge_files

    merged = merge_files([Path(each) for each in inputs], Path(output), overwrite=overwrite)
    for warning in merged.warnings:
        say(f"warning: {warning}")
    part = "" if not merged.shards else f", {len(merged.shards)} of {min(merged.shards).of} shards"
    tell(f"wrote {shown_path(output)}: {merged.samples} samples from {counted(len(inputs), 'file')}{part}")
