"""python -m benchmarks kernels: nanoseconds per element of the loops over activations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import numpy as np

from benchmarks.commands import options
from benchmarks.table import Spread
from benchmarks.table import markdown as table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

SPAN_SECONDS = 0.05  # a measurement repeats its call for at least this long


@click.command()
@click.option("--channels", type=click.IntRange(16), default=64, show_default=True, help="A multiple of 16.")
@click.option("--side", type=click.IntRange(1), default=112, show_default=True, help="Height and width.")
@options.rounds(7)
@options.markdown
@options.as_json
def command(*, channels: int, side: int, rounds: int, markdown: Path | None, json_path: Path | None) -> None:
    """Time each statistics kernel on one tensor (1, channels, side, side), one call after the other, kernels in turns.

    Beside them: numpy's histogram over 2048 bins, its minimum and maximum, and a sum, which is one read of the tensor.
    """
    if channels % 16:
        raise click.BadParameter(f"{channels} is not a multiple of 16", param_hint="--channels")
    rng = np.random.Generator(np.random.PCG64(31))
    normal = rng.standard_normal((1, channels, side * side), np.float32)
    kinds = {"normal values": normal, "after ReLU": np.maximum(normal, 0)}
    calls = {kind: calls_on(values) for kind, values in kinds.items()}
    names = list(calls["after ReLU"])
    measured: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in names} for kind in kinds}
    for kind, table_of_calls in calls.items():
        for number in range(rounds + 1):
            options.progress(f"{kind}, " + (f"round {number} of {rounds}" if number else "warm-up"))
            for name, call in table_of_calls.items():
                seconds = time_call(call, SPAN_SECONDS if number else 0.0)
                if number:
                    measured[kind][name].append(1e9 * seconds / normal.size)
    header = ("ns per element", *kinds)
    rows = [(name, *(Spread.of(measured[kind][name]).text() for kind in kinds)) for name in names]
    options.deliver(table(header, rows), measured, 1, markdown, json_path)


def calls_on(values: npt.NDArray[np.float32]) -> dict[str, Callable[[], object]]:
    """Return int8cal's kernels and their yardsticks as calls on one tensor (1, channels, inner)."""
    from benchmarks.tools.int8cal_numerics import kernel_calls

    flat = values.reshape(-1)
    return {
        **kernel_calls(values),
        "numpy histogram, 2048 bins": lambda: np.histogram(flat, 2048),
        "numpy minimum and maximum": lambda: (flat.min(), flat.max()),
        "numpy sum: one read": flat.sum,
    }


def time_call(call: Callable[[], object], least: float) -> float:
    """Return the seconds of one call, the mean of as many as take `least` seconds together."""
    count = 0
    started = time.perf_counter()
    while True:
        call()
        count += 1
        passed = time.perf_counter() - started
        if passed >= least:
            return passed / count
