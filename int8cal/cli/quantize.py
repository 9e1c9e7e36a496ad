"""`int8cal quantize`: a model and a table become the int8 model."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.endings import say, tell
from int8cal.cli.outcome import shown_path


@click.command("quantize")
@click.argument("model", type=options.PATH, metavar="MODEL")
@click.option("--table", required=True, type=options.PATH, metavar="TABLE", help="Calibration table, *.table.json.")
@click.option("-o", "--output", required=True, type=options.PATH, metavar="OUT.onnx", help="The int8 model to write.")
@click.option("--force", is_flag=True, help="Use a table that was made for another model.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def command(*, model: str, table: str, output: str, force: bool, overwrite: bool) -> None:
    """Write the int8 model of MODEL from an existing, maybe hand-edited table: no data, no inference."""
    from int8cal.quantizing import quantize_file

    outcome = quantize_file(Path(model), Path(table), Path(output), force=force, overwrite=overwrite)
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    tell(f"wrote {shown_path(outcome.output)}")
