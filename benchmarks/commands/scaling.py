"""python -m benchmarks scaling: calibration over the number of samples, and over the number of tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np

from benchmarks.commands import options
from benchmarks.models import expand, workload
from benchmarks.plot import Points, chart
from benchmarks.request import Measured, Request
from benchmarks.run import run
from benchmarks.samples import POOL, stored_samples
from benchmarks.table import Spread, optional
from benchmarks.table import markdown as table

HEADER = ("seconds (min..max)", "peak MB")


@dataclass(frozen=True)
class Line:
    """A least-squares line and how much of the variance it explains."""

    start: float
    slope: float
    r2: float


@click.command()
@click.option("--model", default="mobilenetv2", show_default=True, help="The model for the numbers of samples.")
@click.option("--samples", default="100,500,1000,2000", show_default=True, help="Comma-separated numbers of samples.")
@click.option(
    "--blocks", default="8,16,32,64", show_default=True, help="Comma-separated lengths of convolution chains."
)
@click.option("--chain-samples", type=click.IntRange(1), default=200, show_default=True, help="Samples for the chains.")
@options.rounds(3)
@options.threads
@options.zoo
@options.keep
@options.plot
@options.markdown
@options.as_json
def command(
    *,
    model: str,
    samples: str,
    blocks: str,
    chain_samples: int,
    rounds: int,
    threads: int,
    zoo: Path,
    folder: Path | None,
    plot: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Calibrate with more and more samples, then with more and more tensors; fit a line to each.

    The samples are drawn from a pool of 64, so that a long pass holds no more data than a short one. Seconds are those
    of the pass and the thresholds; every point is a process of its own.
    """
    (name,) = expand(model, zoo)[:1]
    sample_counts, block_counts = _numbers(samples, "--samples"), _numbers(blocks, "--blocks")
    with options.folder_of(folder) as place:
        base = Request("int8cal", "calibrate", name, 0, threads, str(place), str(zoo), streamed=True)
        by_samples = _sweep({count: replace(base, samples=count) for count in sample_counts}, rounds)
        chains = {count: replace(base, model=f"chain{count}", samples=chain_samples) for count in block_counts}
        by_blocks = _sweep(chains, rounds)
    by_tensors = {int(results[0].facts["tensors"]): results for results in by_blocks.values()}
    parts = [
        ("samples", f"{name} over samples", by_samples),
        ("tensors", f"Chains of convolutions over tensors, {chain_samples} samples", by_tensors),
    ]
    if plot is not None:
        for axis, title, points in parts:
            options.save_plot(plot, f"scaling-{axis}", drawing(title, axis, points))
    measurements = {
        axis: {str(count): [asdict(one) for one in results] for count, results in points.items()}
        for axis, _, points in parts
    }
    text = "\n\n".join(section(title, axis, points) for axis, title, points in parts)
    options.deliver(text, measurements, threads, markdown, json_path)


def _numbers(text: str, option: str) -> list[int]:
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        values = []
    if len(values) < 2 or values[0] < 1:
        raise click.BadParameter(f'"{text}" is not two or more different positive numbers', param_hint=option)
    return values


def _sweep(requests: dict[int, Request], rounds: int) -> dict[int, list[Measured]]:
    """Measure every point once per round; a first round over few samples fills the caches and is not counted."""
    measured: dict[int, list[Measured]] = {count: [] for count in requests}
    for number in range(rounds + 1):
        for count, request in requests.items():
            options.progress(
                f"{request.model}, {request.samples} samples, "
                + (f"round {number} of {rounds}" if number else "warm-up")
            )
            found = workload(request.model, Path(request.folder), Path(request.zoo))
            stored_samples(found, min(request.samples, POOL), Path(request.folder))
            result = run(request if number else replace(request, samples=min(request.samples, 2)))
            if number:
                measured[count].append(result)
    return measured


def fit(points: dict[int, list[Measured]]) -> Line:
    """Fit seconds = start + slope * count by least squares to the medians."""
    x = np.array(list(points), np.float64)
    y = np.array([Spread.of([one.seconds for one in results]).median for results in points.values()])
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - start - slope * x) ** 2).sum())
    return Line(float(start), float(slope), 1 - rest / spread if spread > 0 else 1.0)


def section(title: str, axis: str, points: dict[int, list[Measured]]) -> str:
    """Lay out one sweep."""
    line = fit(points)
    rows = [
        (str(count), Spread.of([one.seconds for one in results]).text(), optional(_peak(results)))
        for count, results in points.items()
    ]
    formula = f"seconds = {line.start:.2f} + {line.slope:.5f} · {axis}, R² = {line.r2:.4f}"
    return f"### {title}\n\n{table((axis, *HEADER), rows)}\n\nLeast squares: {formula}"


def drawing(title: str, axis: str, points: dict[int, list[Measured]]) -> str:
    """Draw seconds with their line, and peak memory."""
    line = fit(points)
    seconds = [(float(count), Spread.of([one.seconds for one in results]).median) for count, results in points.items()]
    peaks = [(float(count), peak) for count, results in points.items() if (peak := _peak(results)) is not None]
    panels = [Points("seconds", tuple(seconds), (line.start, line.slope), f"R² = {line.r2:.4f}")]
    if peaks:
        panels.append(Points("peak MB", tuple(peaks)))
    return chart(title, axis, panels)


def _peak(results: list[Measured]) -> float | None:
    peaks = [one.peak_mb for one in results if one.peak_mb is not None]
    return Spread.of(peaks).median if peaks else None
