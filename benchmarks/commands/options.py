"""Options that several subcommands share, declared once."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.machine import describe
from benchmarks.models import TOPOLOGIES, ZOO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Option = Callable[[Callable[..., None]], Callable[..., None]]

models = click.option(
    "--models",
    default=",".join(TOPOLOGIES),
    show_default=True,
    help='Comma-separated: topologies, "zoo" for every model of the zoo, "zoo:NAME", or "chainK" for K convolutions.',
)
threads = click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Threads of every tool.")
zoo = click.option(
    "--zoo", type=click.Path(path_type=Path), default=ZOO, help="Directory of the zoo. [default: ../shared/zoo]"
)
keep = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep models and samples here, for the next run. [default: a temporary directory]",
)
markdown = click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Also write the tables here."
)
plot = click.option("--plot", type=click.Path(path_type=Path, file_okay=False), help="Write plots here, as SVG.")
as_json = click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write every measurement here."
)


def rounds(default: int) -> Option:
    """Return --rounds with a default."""
    return click.option(
        "--rounds",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Medians are over this many rounds.",
    )


@contextlib.contextmanager
def folder_of(given: Path | None) -> Iterator[Path]:
    """Give the directory for models and samples; a temporary one is removed at the end."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="int8cal-benchmarks-") as name:
        yield Path(name)


def progress(line: str) -> None:
    """Say on stderr what is running."""
    click.echo(f"  {line}", err=True)


def save_plot(directory: Path, name: str, drawing: str) -> None:
    """Write one SVG file; the directory is made when it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name.replace(':', '-')}.svg").write_text(drawing, encoding="utf-8")


def deliver(text: str, measurements: object, threads: int, markdown: Path | None, json_path: Path | None) -> None:
    """Print the tables with the machine below them, and write the files that were asked for."""
    machine = describe(threads)
    text = f"{text}\n\nMeasured on: {machine}.\n"
    click.echo(text)
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    if json_path is not None:
        json_path.write_text(json.dumps({"machine": machine, "measurements": measurements}, indent=1), encoding="utf-8")
