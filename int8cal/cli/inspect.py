"""`int8cal inspect`: any of int8cal's files, readable."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options


@click.command("inspect")
@click.argument("file", type=options.PATH, metavar="FILE")
def command(*, file: str) -> None:
    """Show FILE in the terminal: a model, table, statistics file or report."""
    from int8cal.describe import describe_file

    for line in describe_file(Path(file)):
        click.echo(line)
