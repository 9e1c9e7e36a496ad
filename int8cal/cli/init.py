"""`int8cal init`: a YAML to start from."""

from __future__ import annotations

from pathlib import Path

import click

from int8cal.cli import options
from int8cal.cli.endings import tell


@click.command("init")
@click.argument("model", type=options.PATH, metavar="MODEL")
@click.option("-o", "--output", type=options.PATH, metavar="FILE", help="The YAML file (default ./<model>.yaml).")
@options.settings("output.overwrite")
@click.pass_context
def command(context: click.Context, *, model: str, output: str | None) -> None:
    """Write a commented YAML for MODEL, to fill in and give to `int8cal run`.

    Inputs, image layout and size, keys of .npz files and classes are told from the model; what it does not say stands
    in comments.
    """
    from int8cal.output_paths import require_free

    values, _ = options.settings_of(context)
    source = Path(model)
    path = Path(output) if output is not None else Path(source.name.removesuffix(".onnx") + ".yaml")
    require_free(path, overwrite=bool(values.get("output.overwrite", False)))
    from int8cal.atomic import atomic_write
    from int8cal.config.starter import starter_yaml

    atomic_write(path, starter_yaml(source, path.parent))
    tell(f"wrote {path}; fill in data, then: int8cal run {path} --dry-run")
