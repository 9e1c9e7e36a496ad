"""`int8cal schema`: the JSON Schema of the YAML, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.outcome import shown_path


@click.command("schema")
@click.option("-o", "--output", type=options.PATH, metavar="FILE", help="Write to FILE (default: print it).")
@options.settings("output.overwrite")
@click.pass_context
def command(context: click.Context, *, output: str | None) -> None:
    """Print the JSON Schema of the YAML that `int8cal run` takes.

    An editor with a YAML language server completes and checks a file that begins with the line
    "# yaml-language-server: $schema=FILE".
    """
    import json

    from int8cal.config.json_schema import config_schema

    text = json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    from int8cal.atomic import atomic_write
    from int8cal.output_paths import require_free

    values, _ = options.settings_of(context)
    require_free(Path(output), overwrite=bool(values.get("output.overwrite", False)))
    atomic_write(Path(output), text)
    click.echo(f"wrote {shown_path(output)}")
