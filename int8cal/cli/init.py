"""`int8cal init` and `int8cal schema`: a YAML to start from, and its JSON Schema for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.console import tell, tell_written

_STANDARD_OUTPUT = "-"


@click.command("init")
@click.argument("model", type=options.PATH, metavar="MODEL")
@click.option(
    "-o", "--output", type=options.PATH, metavar="FILE", help="The YAML file (default ./<model>.yaml); - prints it."
)
@options.settings("output.overwrite")
@click.pass_context
def command(context: click.Context, *, model: str, output: str | None) -> None:
    """Write a commented YAML for MODEL, to fill in and give to `int8cal run`.

    Inputs, image layout and size, keys of .npz files and classes are told from the model; what it does not say stands
    in comments.
    """
    from int8cal.io.paths import require_apart, require_free
    from int8cal.job import model_stem

    values, _ = options.given_settings(context)
    source = Path(model)
    path = Path(output) if output is not None else Path(f"{model_stem(source)}.yaml")
    from int8cal.config.starter import starter_yaml
    from int8cal.io.atomic import atomic_write

    if output == _STANDARD_OUTPUT:
        click.echo(starter_yaml(source, Path()), nl=False)
        return
    require_apart([path], [source])
    require_free(path, overwrite=bool(values.get("output.overwrite", False)))
    atomic_write(path, starter_yaml(source, path.parent))
    tell(f"wrote {path}; fill in data, then: int8cal run {path} --dry-run")


@click.command("schema")
@click.option("-o", "--output", type=options.PATH, metavar="FILE", help="Write to FILE (default or -: print it).")
@options.settings("output.overwrite")
@click.pass_context
def schema(context: click.Context, *, output: str | None) -> None:
    """Print the JSON Schema of the YAML that `int8cal run` takes.

    An editor with a YAML language server completes and checks a file that begins with the line
    "# yaml-language-server: $schema=FILE".
    """
    from int8cal.config.json_schema import config_schema

    text = json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"
    if output is None or output == _STANDARD_OUTPUT:
        click.echo(text, nl=False)
        return
    from int8cal.io.atomic import atomic_write
    from int8cal.io.paths import require_free

    values, _ = options.given_settings(context)
    require_free(Path(output), overwrite=bool(values.get("output.overwrite", False)))
    atomic_write(Path(output), text)
    tell_written(output)
