"""python -m benchmarks calibration: seconds and peak memory of a calibration, as a ratio to plain FP32 inference."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benchmarks.commands import options
from benchmarks.errors import BenchmarkError
from benchmarks.models import expand, workload
from benchmarks.plot import Bar, bars
from benchmarks.request import Measured, Request
from benchmarks.run import interleave
from benchmarks.samples import stored_samples
from benchmarks.table import Spread, optional
from benchmarks.table import markdown as table
from benchmarks.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONTESTANTS = tuple(name for name, tool in TOOLS.items() if "calibrate" in tool.actions)
QUIET = 1.25  # between the slowest and the fastest round of plain inference
FLOOR = "floor: plain + one read of each tapped byte"
HEADER = ("", "samples", "÷ plain (min..max)", "seconds", "process s", "peak MB", "above plain", "stations, s")


@click.command()
@options.models
@click.option("--samples", type=click.IntRange(1), default=128, show_default=True, help="Samples per model.")
@click.option(
    "--peer-samples",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Samples for tools that hold every activation; their ratio is to plain inference of as many.",
)
@options.rounds(5)
@click.option("--tools", default=",".join(CONTESTANTS), show_default=True, help="Comma-separated contestants.")
@options.threads
@options.zoo
@options.keep
@options.plot
@options.markdown
@options.as_json
def command(
    *,
    models: str,
    samples: int,
    peer_samples: int,
    rounds: int,
    tools: str,
    threads: int,
    zoo: Path,
    folder: Path | None,
    plot: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Time calibrations against plain FP32 inference of the same samples, and their peak memory.

    Every contestant runs in a process of its own, once per round, the contestants in turns. The span of a calibration
    is opening the session, the pass over the data, and the thresholds; "process s" is everything, imports included.
    The floor is plain inference plus one read of every tapped byte from memory.
    """
    names = expand(models, zoo)
    chosen = contestants(tools)
    with options.folder_of(folder) as place:
        sections, measurements = [], {}
        for name in names:
            requests = {}
            for tool in chosen:
                count = min(samples, peer_samples) if TOOLS[tool].holds_activations else samples
                requests[tool] = Request(tool, "calibrate", name, count, threads, str(place), str(zoo))
                # made here, so that no contestant pays for making samples
                stored_samples(workload(name, place, zoo), count, place)
            measured, failed = interleave(requests, rounds, options.progress)
            if "plain" not in measured:
                raise BenchmarkError(f"{name}: plain inference failed: {failed.get('plain', 'not among --tools')}")
            sections.append(section(name, requests, measured, failed))
            if plot is not None:
                options.save_plot(plot, f"calibration-{name}", drawing(name, requests, measured))
            measurements[name] = {tool: [asdict(one) for one in results] for tool, results in measured.items()}
    options.deliver("\n\n".join(sections), measurements, threads, markdown, json_path)


def contestants(tools: str) -> list[str]:
    """Return the contestants that are installed, and say which are not; plain inference is always there.

    Raises:
        BenchmarkError: There is no contestant of a name.
    """
    chosen = ["plain"]
    for name in (part.strip() for part in tools.split(",") if part.strip()):
        if name not in CONTESTANTS:
            raise BenchmarkError(f'no contestant "{name}"; there are {", ".join(CONTESTANTS)}')
        if not TOOLS[name].available:
            options.progress(f"{TOOLS[name].title} is not installed, skipped")
        elif name not in chosen:
            chosen.append(name)
    return chosen


def ratios_to_plain(
    requests: Mapping[str, Request], measured: Mapping[str, Sequence[Measured]]
) -> dict[str, list[float]]:
    """Return each contestant's seconds over those of plain inference of as many samples, round by round.

    The floor stands after plain inference, where "taps" and "read" took part; "read" itself is no contestant.
    """
    plain, samples = measured["plain"], requests["plain"].samples
    result = {
        name: [
            one.seconds / plain_seconds(reference, samples, requests[name].samples)
            for one, reference in zip(results, plain, strict=True)
        ]
        for name, results in measured.items()
        if name != "read"
    }
    floor = floor_ratios(measured, samples)
    return {"plain": result.pop("plain"), **({"floor": floor} if floor else {}), **result}


def section(
    model: str,
    requests: Mapping[str, Request],
    measured: Mapping[str, Sequence[Measured]],
    failed: Mapping[str, str],
) -> str:
    """Lay out one model's table."""
    base = Spread.of([one.seconds for one in measured["plain"]]).median
    memory = _peak(measured["plain"])
    rows = []
    for name, ratios in ratios_to_plain(requests, measured).items():
        spread = Spread.of(ratios)
        if name == "floor":
            samples = str(requests["plain"].samples)
            seconds = f"{spread.median * base:.2f}"
            rows.append((FLOOR, samples, spread.text(), seconds, "-", "-", "-", _floor_facts(measured)))
            continue
        results = measured[name]
        peak = _peak(results)
        stations = {each: Spread.of([one.stations[each] for one in results]).median for each in results[0].stations}
        rows.append(
            (
                TOOLS[name].title,
                str(requests[name].samples),
                spread.text(),
                f"{Spread.of([one.seconds for one in results]).median:.2f}",
                f"{Spread.of([one.process_seconds for one in results]).median:.1f}",
                optional(peak),
                "-" if peak is None or memory is None else f"{peak - memory:+.0f}",
                ", ".join(f"{station} {seconds:.2f}" for station, seconds in stations.items()) or "-",
            )
        )
    lines = [f"### {model}", "", table(HEADER, rows), *_unrest(measured["plain"])]
    lines += [f"\n{TOOLS[name].title} failed: {reason}" for name, reason in failed.items()]
    return "\n".join(lines)


def drawing(model: str, requests: Mapping[str, Request], measured: Mapping[str, Sequence[Measured]]) -> str:
    """Draw one model's ratios as bars."""
    rows = []
    for name, ratios in ratios_to_plain(requests, measured).items():
        spread = Spread.of(ratios)
        label = FLOOR.partition(":")[0] if name == "floor" else TOOLS[name].title
        rows.append(Bar(label, spread.median, spread.low, spread.high, own=name == "int8cal"))
    return bars(f"{model}: calibration ÷ plain FP32 inference", "ratio", rows)


def plain_seconds(plain: Measured, measured: int, wanted: int) -> float:
    """Return the seconds of plain inference of another number of samples: the session once, the pass in proportion."""
    return plain.stations["session"] + plain.stations["pass"] * wanted / measured


def floor_ratios(measured: Mapping[str, Sequence[Measured]], samples: int) -> list[float]:
    """Return the floor of every round as a ratio to plain inference; empty when "taps" or "read" did not run."""
    if "taps" not in measured or "read" not in measured:
        return []
    return [
        1 + taps.facts["tapped_bytes"] * samples / (read.facts["gb_per_s"] * 1e9) / plain.seconds
        for plain, taps, read in zip(measured["plain"], measured["taps"], measured["read"], strict=True)
    ]


def _unrest(plain: Sequence[Measured]) -> list[str]:
    """Say so when plain inference itself did not take the same time in every round: ratios mean little then."""
    spread = Spread.of([one.seconds for one in plain])
    if spread.high <= QUIET * spread.low:
        return []
    return [f"\nThe machine was not quiet: FP32 inference took {spread.low:.2f} to {spread.high:.2f} s."]


def _floor_facts(measured: Mapping[str, Sequence[Measured]]) -> str:
    tapped = measured["taps"][0].facts["tapped_bytes"] / 1e6
    speed = Spread.of([one.facts["gb_per_s"] for one in measured["read"]]).median
    return f"{tapped:.1f} MB tapped per sample, memory read at {speed:.1f} GB/s"


def _peak(results: Sequence[Measured]) -> float | None:
    peaks = [one.peak_mb for one in results if one.peak_mb is not None]
    return Spread.of(peaks).median if peaks else None
