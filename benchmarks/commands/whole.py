"""python -m benchmarks whole: int8cal's whole command beside other tools' whole scripts, a process each."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.commands import options
from benchmarks.commands.inference import MAKERS, makers
from benchmarks.models import expand, workload
from benchmarks.request import Measured, Request
from benchmarks.run import interleave, run, run_command
from benchmarks.samples import sample_files, stored_samples
from benchmarks.table import Spread, optional
from benchmarks.table import markdown as table
from benchmarks.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN, BASE = "int8cal", "ort-minmax"
HEADER = ("", "seconds", "÷ onnxruntime's (min..max)", "CPU s", "÷ onnxruntime's (min..max)", "peak MB")


@click.command()
@options.models
@click.option("--samples", type=click.IntRange(1), default=128, show_default=True, help="Samples to calibrate with.")
@options.rounds(3)
@click.option("--tools", default=f"{OWN},{BASE}", show_default=True, help=f"Comma-separated, of {', '.join(MAKERS)}.")
@options.threads
@options.zoo
@options.keep
@options.markdown
@options.as_json
def command(
    *,
    models: str,
    samples: int,
    rounds: int,
    tools: str,
    threads: int,
    zoo: Path,
    folder: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Time whole processes, imports included: `int8cal calibrate` with its report, other tools' scripts without one.

    int8cal reads the samples from files and compares both models on all of them; the other tools have them in memory,
    write an int8 model and say nothing of it. Ratios are within a round.
    """
    names, chosen = expand(models, zoo), makers(tools)
    with options.folder_of(folder) as place:
        sections, measurements = [], {}
        for name in names:
            stored_samples(workload(name, place, zoo), samples, place)  # made here, so that no contestant pays for it
            requests = {
                tool: Request(
                    tool, "quantize", name, samples, threads, str(place), str(zoo), output=str(place / f"{tool}.onnx")
                )
                for tool in chosen
            }
            measured, failed = interleave(requests, rounds, options.progress, whole)
            sections.append(section(name, measured, failed))
            measurements[name] = {tool: [asdict(one) for one in results] for tool, results in measured.items()}
    options.deliver("\n\n".join(sections), measurements, threads, markdown, json_path)


def whole(request: Request) -> Measured:
    """Run a tool's whole script, or int8cal's whole command.

    Raises:
        BenchmarkError: It failed.
    """
    if request.tool != OWN:
        return run(request)
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    data = sample_files(found, request.samples, folder)
    out = folder / f"{request.tool}-results"
    given = [str(found.path), "--data", str(data), "-o", str(out), "--threads", str(request.threads)]
    command = [sys.executable, "-m", "int8cal", "calibrate", *given, "--overwrite"]
    return run_command(request.tool, command, request.threads)


def section(model: str, measured: Mapping[str, Sequence[Measured]], failed: Mapping[str, str]) -> str:
    """Lay out one model's table."""
    rows = []
    for tool, results in measured.items():
        seconds, cpu = ([getattr(one, each) for one in results] for each in ("process_seconds", "cpu_seconds"))
        peaks = [one.peak_mb for one in results if one.peak_mb is not None]
        rows.append(
            (
                TOOLS[tool].title,
                f"{Spread.of(seconds).median:.1f}",
                _ratios(seconds, measured, "process_seconds"),
                f"{Spread.of(cpu).median:.1f}",
                _ratios(cpu, measured, "cpu_seconds"),
                optional(Spread.of(peaks).median if peaks else None),
            )
        )
    lines = [f"### {model}", "", table(HEADER, rows)]
    lines += [f"\n{TOOLS[tool].title} failed: {reason}" for tool, reason in failed.items()]
    return "\n".join(lines)


def _ratios(values: Sequence[float], measured: Mapping[str, Sequence[Measured]], what: str) -> str:
    if BASE not in measured:
        return "-"
    base = [getattr(one, what) for one in measured[BASE]]
    return Spread.of([mine / theirs for mine, theirs in zip(values, base, strict=True)]).text()
