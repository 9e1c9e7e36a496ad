"""`int8cal table`: a calibration table in the format of another runtime, or the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from click.core import ParameterSource

from int8cal.cli import options
from int8cal.cli.endings import say, tell
from int8cal.cli.outcome import shown_path
from int8cal.job import DEFAULT_TARGET, WeightRange
from int8cal.runtime.targets import TARGETS

FORMATS = ("tensorrt", "ncnn", "onnxruntime", "openvino")


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
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
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
    from int8cal.converting import Choices, export_table, import_table
    from int8cal.interop.tensorrt import HEADER

    choices = Choices(
        model=None if model is None else Path(model),
        param=None if param is None else Path(param),
        header=HEADER if header is None else header,
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
    tell(f"wrote {shown_path(output)}")
