"""`int8cal doctor`: what this machine offers."""

from __future__ import annotations

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """Show what this machine offers: CPU flags, execution providers, optional parts, versions."""
    from int8cal.describe import describe_machine

    lines = describe_machine()
    if not as_json:
        for line in lines:
            click.echo(line)
        return
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
