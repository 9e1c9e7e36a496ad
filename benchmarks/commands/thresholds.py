"""python -m benchmarks thresholds: the search for a range, per tensor, by method."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands import options
from benchmarks.histograms import activation
from benchmarks.table import Spread
from benchmarks.table import markdown as table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HEADER = ("", "tensors timed", "seconds per 100 tensors (min..max)", "ms per tensor")
PEER_BINS = (128, 2048)


@click.command()
@click.option("--tensors", type=click.IntRange(1), default=100, show_default=True, help="Tensors per method.")
@click.option("--size", type=click.IntRange(100), default=200_000, show_default=True, help="Values per tensor.")
@click.option(
    "--peer-tensors",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Tensors for onnxruntime's search over 2048 bins, which takes seconds each.",
)
@options.rounds(5)
@options.markdown
@options.as_json
def command(
    *, tensors: int, size: int, peer_tensors: int, rounds: int, markdown: Path | None, json_path: Path | None
) -> None:
    """Time every threshold method on counted tensors of realistic shapes, one thread, methods in turns.

    onnxruntime's entropy search runs on its own histograms of the same tensors: with its default of 128 bins, where 128
    levels leave one candidate, and with as many bins as int8cal's search has.
    """
    from benchmarks.tools.int8cal_numerics import METHODS, spectrum_of, threshold

    values = [activation(index, size - size % 10) for index in range(tensors)]
    histograms = [spectrum_of(each) for each in values]
    jobs: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        f"int8cal {method}": (threshold(method), histograms) for method in METHODS
    }
    for bins in PEER_BINS:
        count = tensors if bins == PEER_BINS[0] else min(tensors, peer_tensors)
        search, histograms = _peer(values[:count], bins)
        jobs[f"onnxruntime Entropy, {bins} bins"] = (search, histograms)
    for search, items in jobs.values():  # compiles, or loads what was compiled before
        search(items[0])
    measured: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, (search, items) in jobs.items():
            options.progress(f"{name}, round {number + 1} of {rounds}")
            started = time.perf_counter()
            for item in items:
                search(item)
            measured[name].append((time.perf_counter() - started) / len(items))
    rows = []
    for name, (_, items) in jobs.items():
        spread = Spread.of([100 * seconds for seconds in measured[name]])
        rows.append((name, str(len(items)), spread.text(3), f"{10 * spread.median:.2f}"))
    options.deliver(table(HEADER, rows), measured, 1, markdown, json_path)


def _peer(values: Sequence[Any], bins: int) -> tuple[Callable[[Any], object], list[Any]]:
    """Return onnxruntime's entropy search, and its histograms of the tensors."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector("entropy", False, bins, 128, 99.999, "same")
    collector.collect_value({str(index): each for index, each in enumerate(values)})
    return lambda histogram: collector.get_entropy_threshold(histogram, 128), list(collector.histogram_dict.values())
