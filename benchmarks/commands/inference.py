"""python -m benchmarks inference: latency of int8 models, made by several tools, against FP32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.commands import options
from benchmarks.errors import BenchmarkError
from benchmarks.models import expand, workload
from benchmarks.plot import Bar, bars
from benchmarks.request import Request
from benchmarks.run import run
from benchmarks.samples import stored_samples
from benchmarks.table import Spread
from benchmarks.table import markdown as table
from benchmarks.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAKERS = tuple(name for name, tool in TOOLS.items() if "quantize" in tool.actions)
HEADER = ("", "FP32 ÷ int8 (min..max)", "ms per sample", "size")
TITLES = {"ort-minmax": "onnxruntime, static QDQ"}


@click.command()
@options.models
@click.option("--samples", type=click.IntRange(1), default=32, show_default=True, help="Samples to calibrate with.")
@options.rounds(15)
@click.option("--repeat", type=click.IntRange(1), default=10, show_default=True, help="Runs in a row in each turn.")
@click.option("--tools", default=",".join(MAKERS), show_default=True, help="Comma-separated tools.")
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
    rounds: int,
    repeat: int,
    tools: str,
    threads: int,
    zoo: Path,
    folder: Path | None,
    plot: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Time single samples through the FP32 model and the int8 models that each tool makes of it.

    All sessions of a model live in one process; FP32 and one int8 model take turns of --repeat runs. Figures are
    medians over rounds of each turn's median, ratios are within one round.
    """
    names = expand(models, zoo)
    chosen = makers(tools)
    with options.folder_of(folder) as place:
        sections, measurements = [], {}
        for name in names:
            found = workload(name, place, zoo)
            stored_samples(found, samples, place)
            rivals, failed = {}, {}
            for tool in chosen:
                output = place / f"{name.replace(':', '-')}.{tool}.int8.onnx"
                options.progress(f"{name}: {tool} quantizes")
                request = Request(tool, "quantize", name, samples, threads, str(place), str(zoo), output=str(output))
                try:
                    run(request)
                except BenchmarkError as error:
                    failed[tool] = str(error)
                else:
                    rivals[tool] = str(output)
            options.progress(f"{name}: {rounds} rounds")
            request = Request(
                "latency", "latency", name, samples, threads, str(place), str(zoo), False, "", rivals, rounds, repeat
            )
            series = run(request).series
            sizes = {"fp32": found.path, **{tool: Path(path) for tool, path in rivals.items()}}
            sections.append(section(name, series, {tool: path.stat().st_size for tool, path in sizes.items()}, failed))
            measurements[name] = series
            if plot is not None and rivals:
                options.save_plot(plot, f"inference-{name}", drawing(name, series))
    options.deliver("\n\n".join(sections), measurements, threads, markdown, json_path)


def makers(tools: str) -> list[str]:
    """Return the tools that are installed, and say which are not.

    Raises:
        BenchmarkError: No tool of a name makes models, or none is left.
    """
    chosen = []
    for name in (part.strip() for part in tools.split(",") if part.strip()):
        if name not in MAKERS:
            raise BenchmarkError(f'no tool "{name}" that makes models; there are {", ".join(MAKERS)}')
        if TOOLS[name].available:
            chosen.append(name)
        else:
            options.progress(f"{TOOLS[name].title} is not installed, skipped")
    if not chosen:
        raise BenchmarkError("none of --tools is installed")
    return chosen


def section(
    model: str, series: Mapping[str, Sequence[float]], sizes: Mapping[str, int], failed: Mapping[str, str]
) -> str:
    """Lay out one model's table.

    Args:
        model: Its name.
        series: Milliseconds per round, of each tool and of the FP32 model that took turns with it ("fp32:<tool>").
        sizes: Bytes of the model files.
        failed: Tool -> why it made no model.
    """
    rows = []
    if series:
        everything = [value for name, values in series.items() if name.startswith("fp32:") for value in values]
        rows.append(("FP32", "1.00", Spread.of(everything).text(), "1.00"))
    for name, ratios in speedups(series).items():
        size = f"{sizes[name] / sizes['fp32']:.2f}"
        rows.append((_title(name), Spread.of(ratios).text(), Spread.of(series[name]).text(), size))
    lines = [f"### {model}", "", table(HEADER, rows)]
    lines += [f"\n{_title(name)} failed: {reason}" for name, reason in failed.items()]
    return "\n".join(lines)


def speedups(series: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return FP32 over int8 milliseconds of each tool, round by round."""
    return {
        name: [fp32 / int8 for fp32, int8 in zip(series[f"fp32:{name}"], values, strict=True)]
        for name, values in series.items()
        if not name.startswith("fp32:")
    }


def drawing(model: str, series: Mapping[str, Sequence[float]]) -> str:
    """Draw one model's speedups as bars."""
    rows = [Bar("FP32", 1.0, 1.0, 1.0)]
    for name, ratios in speedups(series).items():
        spread = Spread.of(ratios)
        rows.append(Bar(_title(name), spread.median, spread.low, spread.high, own=name == "int8cal"))
    return bars(f"{model}: FP32 latency ÷ int8 latency", "speedup", rows)


def _title(tool: str) -> str:
    return TITLES.get(tool) or TOOLS[tool].title
