"""`int8cal inspect` and `int8cal doctor`: any of int8cal's files, and this machine, readable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from int8cal.cli import options
from int8cal.cli.console import fitted, screen

if TYPE_CHECKING:
    from int8cal.report.screen import Sort

# of each list, on a terminal
ROWS = 30


@click.command("inspect")
@click.argument("file", type=options.PATH, metavar="FILE")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show every row, and nodes of one reason each: a terminal gets 30 rows of a list, a pipe all.",
)
@click.option(
    "--sort",
    type=click.Choice(["worst", "order", "name"]),
    help="Order of rows: worst (least SQNR, most clipped, largest values), order (of the graph), name.",
)
@click.option("--filter", "only", metavar="GLOB", default="", help="Only tensors, weights and nodes of such a name.")
def command(*, file: str, every: bool, sort: str | None, only: str) -> None:
    """Show FILE in the terminal: a model, table, statistics file, report, or a batch's summary.json or job.json.

    Of a directory with a report that is shown.
    """
    from int8cal.describe import describe_file

    shown = screen()
    rows = None if every or shown.whole_names else ROWS
    for line in describe_file(
        Path(file), replace(shown, rows=rows, every=every, sort=cast("Sort", sort or ""), only=only)
    ):
        click.echo(line)


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(*, as_json: bool) -> None:
    """Show what this machine offers: CPU flags, execution providers, optional parts, versions."""
    from int8cal.describe import describe_machine

    lines = describe_machine()
    if not as_json:
        for line in fitted(lines):
            click.echo(line)
        return
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
