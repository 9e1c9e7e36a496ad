"""The accuracy study on one model: draw samples, calibrate, quantize, judge on the test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.study import ALL, ModelStudy, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.datasets import Dataset
    from benchmarks.tools.int8cal_study import HeldOut, Quantized, SharedPasses


@dataclass(frozen=True)
class Settings:
    """What is measured on every model.

    Attributes:
        recipes, methods: The first recipe runs with every method, the others with the first method.
        full: Every recipe with every method instead.
        counts: Numbers of batches, ascending.
        batch: Samples in one.
        repeats, seed: How many draws of the samples, and what they start from.
    """

    recipes: tuple[str, ...]
    methods: tuple[str, ...]
    counts: tuple[int, ...]
    batch: int
    repeats: int
    seed: int
    threads: int
    full: bool = False

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(recipe, method), as they are measured."""
        return [
            (recipe, method)
            for recipe in self.recipes
            for method in self.methods
            if self.full or recipe == self.recipes[0] or method == self.methods[0]
        ]


def measure(data: Dataset, settings: Settings, report: Callable[[str], None]) -> ModelStudy:
    """Measure every setting on one model.

    Args:
        data: The model with its samples.
        settings: What to measure.
        report: Takes a line on what is running.

    Returns:
        Its points; a setting that int8cal refuses is a line in `failed`.
    """
    from benchmarks.tools.int8cal_study import HeldOut, Int8calError, SharedPasses

    sizes = {count: count * settings.batch for count in settings.counts}
    fitting = {count: size for count, size in sizes.items() if size < len(data.calib)}
    passes = SharedPasses(tuple(fitting.values()))
    held_out = HeldOut(data, settings.threads)
    points: list[Point] = []
    failed: dict[str, str] = {}
    for recipe, method in settings.pairs:
        report(f"{data.name}: {recipe}, {method}")
        try:
            points += _setting(data, settings, fitting, recipe, method, passes, held_out)
        except Int8calError as error:
            failed[f"{recipe}, {method}"] = " ".join(str(error).split())
    return ModelStudy(
        data.name,
        settings.batch,
        settings.seed,
        len(data.calib),
        len(data.test),
        tuple(points),
        failed,
        dict(data.peers),
    )


def _setting(
    data: Dataset,
    settings: Settings,
    fitting: dict[int, int],
    recipe: str,
    method: str,
    passes: SharedPasses,
    held_out: HeldOut,
) -> list[Point]:
    """Measure one recipe and method: all samples first, since the others' ranges are held against theirs."""
    from benchmarks.tools.int8cal_study import crossed, quantized

    cells = [(ALL, len(data.calib), 0)]
    cells += [(count, size, repeat) for count, size in fitting.items() for repeat in range(settings.repeats)]
    points: list[Point] = []
    whole: Quantized | None = None
    for count, size, repeat in cells:
        order = draw(len(data.calib), settings.seed, repeat)
        feeds = [data.calib[index] for index in order[:size]]
        made = quantized(data.path, feeds, recipe, method, passes, settings.threads)
        sqnr_db, task = held_out.measure(made.model)
        apart: list[float | None] = [None, None]
        if whole is None:
            whole = made
        elif method == settings.methods[0]:
            for index, pair in enumerate(((made.table, whole.table), (whole.table, made.table))):
                mixed = crossed(data.path, *pair)
                apart[index] = None if mixed is None else held_out.measure(mixed)[0]
        moved = [abs(made.widths[name] / width - 1) for name, width in whole.widths.items() if name in made.widths]
        points.append(
            Point(recipe, method, count, size, repeat, sqnr_db, task, made.values, float(np.median(moved)), *apart)
        )
    return points


def draw(count: int, seed: int, repeat: int) -> list[int]:
    """Return the order in which samples are taken: a permutation of range(count) for each seed and repeat."""
    order: list[int] = np.random.Generator(np.random.PCG64([31, seed, repeat])).permutation(count).tolist()
    return order
