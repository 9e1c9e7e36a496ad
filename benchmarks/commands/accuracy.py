"""python -m benchmarks accuracy: int8 after few and many calibration batches, for every method and recipe."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.commands import options
from benchmarks.datasets import dataset, expand_datasets
from benchmarks.errors import BenchmarkError
from benchmarks.plot import Curve, curves
from benchmarks.study import ALL, LEADING, ModelStudy, join, load_study
from benchmarks.study_run import Settings, measure
from benchmarks.study_tables import tables
from benchmarks.table import Spread

if TYPE_CHECKING:
    from collections.abc import Sequence


METHODS = ("auto", "mse", "max", "percentile 99.9", "percentile 99.99", "percentile 99.999", "kl")


@click.command()
@click.option(
    "--models",
    help="Comma-separated: sample, zoo, zoo:NAME. [default: sample, and the zoo where it is there; none with --add]",
)
@click.option("--methods", default=", ".join(METHODS), show_default=True, help="Comma-separated.")
@click.option("--recipes", help="Comma-separated. [default: every recipe of this version]")
@click.option("--full", is_flag=True, help="Every recipe with every method.")
@click.option("--batches", default="5,10,50", show_default=True, help="Comma-separated numbers of batches.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Samples in a batch.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Draws of the samples, for each number."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which draws.")
@click.option(
    "--add",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="Put an earlier --json file into the tables; repeatable. A study may be run in pieces.",
)
@options.threads
@options.zoo
@options.plot
@options.markdown
@options.as_json
def command(
    *,
    models: str | None,
    methods: str,
    recipes: str | None,
    full: bool,
    batches: str,
    batch: int,
    repeats: int,
    seed: int,
    add: tuple[Path, ...],
    threads: int,
    zoo: Path,
    plot: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Quantize after 5, 10 and 50 calibration batches, and with all samples; judge each model on held-out data.

    Samples are drawn without replacement, the draws seeded; a draw's 10 batches begin with its 5. Statistics add, so
    every sample of a draw is run once for all methods and numbers. The first recipe runs with every method, the other
    recipes with the first method.
    """
    from benchmarks.tools.int8cal_study import RECIPES

    settings = Settings(
        _names(recipes or ",".join(RECIPES), RECIPES, "recipe"),
        _methods(methods),
        _counts(batches),
        batch,
        repeats,
        seed,
        threads,
        full,
    )
    pieces = [study for path in add for study in _stored(path)]
    names = () if add and models is None else expand_datasets(models, zoo)
    pieces += [measure(dataset(name, zoo), settings, options.progress) for name in names]
    studies = join(pieces)
    if plot is not None:
        for study in studies.values():
            for recipe in dict.fromkeys(point.recipe for point in study.points):
                drawn = drawing(study, recipe)
                if drawn:
                    options.save_plot(plot, f"accuracy-{study.name}-{recipe}", drawn)
    stored = {name: asdict(study) for name, study in studies.items()}
    options.deliver(tables(list(studies.values())), stored, threads, markdown, json_path)


def drawing(study: ModelStudy, recipe: str) -> str:
    """Draw SQNR over the number of samples, one line per method; empty where there is no SQNR."""
    columns = (*study.counts(), ALL)
    places = [f"{count * study.batch if count else study.calib}" for count in columns]
    rows = []
    for method in dict.fromkeys(point.method for point in study.points if point.recipe == recipe):
        values: list[tuple[float, float, float] | None] = []
        for count in columns:
            ratios = [point.sqnr_db for point in study.at(recipe, method, count) if point.sqnr_db is not None]
            spread = Spread.of(ratios) if ratios else None
            values.append(None if spread is None else (spread.median, spread.low, spread.high))
        if any(value is not None for value in values):
            rows.append(Curve(method, tuple(values), own=method == LEADING))
    if not rows:
        return ""
    return curves(f"{study.name}, recipe {recipe}: SQNR in dB", "calibration samples", places, rows)


def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in known:
            raise BenchmarkError(f'no {what} "{name}" in this version; there are {", ".join(known)}')
    if not names:
        raise BenchmarkError(f"--{what}s names none")
    return names


def _methods(text: str) -> tuple[str, ...]:
    from benchmarks.tools.int8cal_numerics import METHODS as KNOWN

    methods = []
    for part in text.split(","):
        name, *number = part.split()[:2] or [""]
        if name not in KNOWN or (number and (name != "percentile" or not _percent(number[0]))):
            raise BenchmarkError(f'no method "{part.strip()}"; there are {", ".join(KNOWN)}, and "percentile 99.9"')
        methods.append(" ".join([name, *number]))
    return tuple(dict.fromkeys(methods))


def _percent(text: str) -> bool:
    try:
        return 0 < float(text) <= 100
    except ValueError:
        return False


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        counts = ()
    if not counts or counts[0] < 1:
        raise click.BadParameter(f'"{text}" is not a list of positive numbers', param_hint="--batches")
    return counts


def _stored(path: Path) -> list[ModelStudy]:
    try:
        return [load_study(each) for each in json.loads(path.read_text(encoding="utf-8"))["measurements"].values()]
    except (ValueError, KeyError, TypeError, AttributeError, BenchmarkError) as error:
        raise BenchmarkError(f"--add {path}: {error}") from None
