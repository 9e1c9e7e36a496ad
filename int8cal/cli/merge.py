"""`int8cal merge`: statistics of shards become those of the whole."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.endings import say, tell
from int8cal.cli.outcome import shown_path


@click.command("merge")
@click.argument("inputs", nargs=-1, required=True, type=options.PATH, metavar="A.stats.npz B.stats.npz...")
@click.option("-o", "--output", required=True, type=options.PATH, metavar="C.stats.npz", help="The file to write.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def command(*, inputs: tuple[str, ...], output: str, overwrite: bool) -> None:
    """Add the statistics of several shards; the result is bit for bit that of one run over all of them."""
    from int8cal.merging import merge_files

    merged = merge_files([Path(each) for each in inputs], Path(output), overwrite)
    for warning in merged.warnings:
        say(f"warning: {warning}")
    files = "1 file" if len(inputs) == 1 else f"{len(inputs)} files"
    tell(f"wrote {shown_path(output)}: {merged.samples} samples from {files}")
