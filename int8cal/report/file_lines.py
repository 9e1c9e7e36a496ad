"""Files other than reports in the terminal: tables, statistics, summary.json and job.json of a batch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from pydantic import StrictBool, TypeAdapter, ValidationError

from int8cal.data.shards import told_missing
from int8cal.errors import ConfigError, printable
from int8cal.evaluation.result_parts import (  # noqa: TC001 - pydantic reads the annotations
    Count,
    Gate,
    Number,
)
from int8cal.numerics.loglinear import linear_histogram
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.document import figures_from
from int8cal.report.reading import setting_rows
from int8cal.report.terminal import spread_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from int8cal.calibration.ranges import TensorEntry
    from int8cal.calibration.statistics import Statistics, TensorStatistics
    from int8cal.quantization.table import CalibrationTable, WeightEntry
    from int8cal.report.screen import Screen

# Settings that map every name of a kind: to their number unless every row is asked for.
_OF_NODES = "left_"
_OF_TENSORS = ("ranges",)
SUMMARY = "int8cal/summary"
JOB = "int8cal/job"
# What a row shows of a job.
COLUMNS = ("SQNR", "top-1 drop", "size", "speedup")


def table_lines(table: CalibrationTable, name: str, screen: Screen) -> list[str]:
    """Show a calibration table.

    Returns:
        What it is for; a line per tensor, with a bar for the part of the observed range that is kept; the scales of the
        weights; corrections and warnings.
    """
    settings = [text for key, value in table.settings.recorded.items() if value for text in _setting(key, value)]
    parts = table.data.get("shards", [])
    alone = f", of shards {', '.join(map(str, parts))} alone" if isinstance(parts, list) and parts else ""
    lines = [
        f"table        {name} for {table.model.get('name')} (sha256 {str(table.model.get('sha256'))[:12]})",
        f"calibrated   on {table.data.get('samples')} samples{alone}"
        if table.data.get("samples") != 0
        else f"converted    from {table.settings.recorded.get('method')}, its ranges were not measured here",
        *screen.wrap("settings     " + ", ".join(settings), 13),
        *_mappings(table, screen),
        "",
        *_entry_lines(table, screen),
    ]
    runs = table.data.get("bodies", {})
    for path in sorted(runs.keys() | table.bodies.keys()):
        lines += ["", f"body         {path}, run {counted(runs.get(path, 0), 'time')}"]
        if path in table.bodies:
            lines += _entry_lines(table.bodies[path], screen)
    lines += [part for each in table.warnings for part in screen.wrap(f"warning      {each}", 13)]
    return [printable(line) for line in lines]


def _entry_lines(table: CalibrationTable, screen: Screen) -> list[str]:
    """Show the entries and corrections of one graph."""
    lines = []
    affine = "" if screen.narrow else f"{'type':<5}  {'scale':>11} {'zero':>4} "
    kept = f"{'kept of seen':{_bar(screen)}}"
    lines.append(f"{affine}{'low':>10} {'high':>10}  {kept}  {'clipped':>9}  {'method':<10}  tensor")
    entries = screen.chosen(list(table.tensors.items()), lambda item: item[0], lambda item: -item[1].clipped)
    lines += screen.cut([_tensor(tensor, entry, screen) for tensor, entry in entries], "tensor")
    weights = [
        (key, _kind(entry, screen), min(scales), median(scales), max(scales))
        for key, entry in table.weights.items()
        if (scales := entry.told_scales)
    ]
    if weights:
        lines += ["", *spread_lines(weights, screen)]
    return lines + [f"correction   {each.key}: {each.summary}" for each in table.corrections]


def _setting(key: str, value: object) -> list[str]:
    """Show a setting of a table; of nodes and tensors how many there are."""
    if not isinstance(value, dict):
        return [f"{key} {value}"]
    kind = _mapped(key)
    if kind:
        return [f"{key} {counted(len(value), kind)}"]
    return [f"{name} {text}" for name, text in setting_rows({key: value})]


def _mapped(key: str) -> str:
    """Say of which kind of thing a setting maps every name; "" where it has keys of its own."""
    return "tensor" if key in _OF_TENSORS else "node" if key.startswith(_OF_NODES) else ""


def _mappings(table: CalibrationTable, screen: Screen) -> list[str]:
    """List what the settings map, where every row is shown."""
    if screen.rows is not None:
        return []
    return [
        part
        for key, value in table.settings.recorded.items()
        if isinstance(value, dict) and _mapped(key)
        for name, told in value.items()
        for part in screen.wrap(f"{key:<11}  {name}: {told}", 15)
    ]


def _kind(entry: WeightEntry, screen: Screen) -> str:
    if screen.narrow:
        return f"{entry.dtype} {entry.range}"
    axis = "per tensor" if entry.axis is None else f"axis {entry.axis}"
    return f"{entry.dtype} {entry.range}, {counted(len(entry.scales), 'scale')} ({axis})"


def _tensor(name: str, entry: TensorEntry, screen: Screen) -> str:
    method = entry.method + ("" if entry.source in ("calibrated", entry.method) else f", {entry.source}")
    low, high = entry.observed
    kept = " " * _bar(screen)
    if math.isfinite(low) and math.isfinite(high) and high > low:
        kept = screen.part((entry.low - low) / (high - low), (entry.high - low) / (high - low), _bar(screen))
    affine = "" if screen.narrow else f"{entry.dtype:<5}  {entry.scale:11.5g} {entry.zero_point:4d} "
    numbers = f"{affine}{entry.low:10.4g} {entry.high:10.4g}  {kept}  {wording.small_fraction(entry.clipped):>9}"
    line = f"{numbers}  {method:<10}  "
    return line + screen.name(name, len(line))


def _bar(screen: Screen) -> int:
    return 12 if screen.narrow else screen.bar_width


def statistics_lines(statistics: Statistics, name: str, screen: Screen) -> list[str]:
    """Show statistics.

    Returns:
        What they are of, and a line per tensor with a small histogram from its smallest value to its largest; heights
        are logarithms of counts.
    """
    shards = ", ".join(map(str, sorted(statistics.shards)))
    lines = [
        f"statistics   {name} of a model with sha256 {statistics.model_sha256[:12]}",
        f"samples      {statistics.samples} (fingerprint {statistics.fingerprint:032x})",
        *([f"shards       {shards}; {told_missing(statistics.shards)}"] if shards else []),
        *(line for each in statistics.padding for line in screen.wrap(f"padding      {each.text}", 13)),
        "",
        *_tensor_lines(statistics, screen),
    ]
    for path, body in statistics.bodies.items():
        lines += ["", f"body         {path}, run {counted(body.samples, 'time')}", *_tensor_lines(body, screen)]
    return [printable(line) for line in lines]


def _tensor_lines(statistics: Statistics, screen: Screen) -> list[str]:
    """Show the tensors of one graph."""
    values = "" if screen.narrow else f"{'values':>16}"
    head = f"{values}{'zeros':>6} {'min':>10} {'max':>10}  {'min to max':{screen.bar_width}}  tensor"
    tensors = screen.chosen(list(statistics.tensors.items()), lambda item: item[0], lambda item: -_amax(item[1]))
    return [head, *screen.cut([_statistics(tensor, each, screen) for tensor, each in tensors], "tensor")]


def _amax(tensor: TensorStatistics) -> float:
    return max(abs(tensor.minimum), abs(tensor.maximum))


def _statistics(name: str, tensor: TensorStatistics, screen: Screen) -> str:
    zeros = tensor.zeros / tensor.count if tensor.count else 0.0
    values = "" if screen.narrow else f"{tensor.count:16,}"
    line = f"{values}{zeros:6.1%} {tensor.minimum:10.4g} {tensor.maximum:10.4g}  {_histogram(tensor, screen)}  "
    return line + screen.name(name, len(line))


def _histogram(tensor: TensorStatistics, screen: Screen) -> str:
    low, high = tensor.minimum, tensor.maximum
    if not tensor.count or not high > low:
        return " " * screen.bar_width
    counts = linear_histogram(tensor.histogram, np.linspace(low, high, screen.bar_width + 1))
    heights = np.log1p(counts.astype(np.float64))
    return screen.sparkline((heights / heights.max()).tolist())


@dataclass(frozen=True)
class SummaryJob:
    """What became of one job of a batch."""

    name: str
    status: str
    ran: StrictBool
    why: str
    exit_code: Count
    error: str | None
    metrics: dict[str, Number | None]
    gates: tuple[Gate, ...]
    seconds: Number | None


@dataclass(frozen=True)
class Summary:
    """The content of summary.json that is shown."""

    configs: tuple[str, ...]
    exit_code: Count
    counts: dict[str, Count]
    jobs: tuple[SummaryJob, ...]


@dataclass(frozen=True)
class DataRecord:
    """The data of a job; `listing` is empty for a Python function."""

    files: Count
    size: Count
    listing: str


@dataclass(frozen=True)
class InputsRecord:
    """What the results of a job follow from; `evaluation` is None where that is on the same data."""

    model: str
    sha256: str
    data: DataRecord
    evaluation: DataRecord | None
    settings: dict[str, object]
    versions: dict[str, str]


@dataclass(frozen=True)
class JobRecord:
    """The content of job.json that is shown."""

    job: str
    config: str
    state: str
    exit_code: Count | None
    seconds: Number | None
    error: str | None
    inputs: InputsRecord | None
    outputs: dict[str, object]


def figure_cells(figures: Mapping[str, float | None]) -> tuple[str, ...]:
    """Write a job's figures as one cell per column; empty ones for a job without results."""
    if not figures:
        return ("",) * len(COLUMNS)
    fp32, int8 = figures["size.fp32_bytes"], figures["size.int8_bytes"]
    return (
        wording.decibel(figures["sqnr_db"]),
        wording.points(figures["top1.drop"]),
        wording.smaller(fp32, int8) if fp32 and int8 else "",
        _speedup(figures),
    )


def _speedup(figures: Mapping[str, float | None]) -> str:
    """Show a speedup no more surely than it was measured: of several rounds without an interval it is a guess."""
    speedup, name = figures["latency.speedup"], "latency.speedup_ci95.lo"
    guessed = speedup is not None and name in figures and figures[name] is None
    return f"perhaps {wording.times(speedup)}" if guessed else wording.times(speedup)


def gates_passed(gates: Sequence[Gate]) -> str:
    """Say how many of a job's gates hold; "" where it has none to tell of."""
    verdicts = [gate.passed for gate in gates if gate.is_told]
    return f"{sum(verdicts)} of {len(verdicts)} passed" if verdicts else ""


def load_batch_file(path: Path) -> Summary | JobRecord:
    """Read a summary.json or job.json.

    Raises:
        ConfigError: It is damaged, or of a newer version.
    """
    try:
        content = figures_from(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    reader = _readers().get(str(content.get("format"))) if isinstance(content, dict) else None
    if reader is None:
        raise _damaged(path, f'"format" is neither "{SUMMARY}" nor "{JOB}"')
    if content.get("version") != 1:
        raise ConfigError(
            f"its version is {content.get('version')!r}, this int8cal reads version 1",
            where=str(path),
            do="update int8cal, or run the batch again",
        )
    try:
        return reader.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@functools.cache
def _readers() -> dict[str, TypeAdapter[Summary | JobRecord]]:
    return {SUMMARY: TypeAdapter(Summary), JOB: TypeAdapter(JobRecord)}


def batch_file_names(content: Summary | JobRecord) -> list[str]:
    """Name what a glob chooses from: the jobs of a summary, the settings of a job."""
    if isinstance(content, Summary):
        return [job.name for job in content.jobs]
    return [name for name, _ in setting_rows(content.inputs.settings)] if content.inputs else []


def batch_file_lines(path: Path, content: Summary | JobRecord, screen: Screen) -> list[str]:
    """Show a summary.json or job.json.

    Raises:
        ConfigError: The file lacks a figure.
    """
    if isinstance(content, JobRecord):
        return _job(path.name, content, screen)
    try:
        return _summary(path.name, content, screen)
    except KeyError as error:
        raise _damaged(path, f"a job has no figure {error}") from error


def _summary(name: str, content: Summary, screen: Screen) -> list[str]:
    jobs = screen.chosen(content.jobs, lambda job: job.name, lambda job: -job.exit_code)
    counts = ", ".join(f"{number} {status}" for status, number in content.counts.items())
    head = [
        ("summary", f"{name} of {', '.join(content.configs)}"),
        ("jobs", f"{len(content.jobs)}: {counts}; exit code {content.exit_code}"),
    ]
    shown = screen.table([("job", *COLUMNS, "gates", "time", "result"), *map(_row, jobs)], "job")
    # why a job has no results, or failed
    reasons = [(job.name, job.error or (job.why if job.status == "not run" else "")) for job in jobs]
    rows = [(name, reason) for name, reason in reasons if reason]
    lines = [*screen.aligned(head), "", *shown]
    return lines + (["", *screen.aligned(rows)] if rows else [])


def _row(job: SummaryJob) -> tuple[str, ...]:
    time = "" if job.seconds is None else wording.seconds(job.seconds)
    again = ", up to date" if job.status == "gate failed" and not job.ran else ""
    passed = gates_passed(job.gates)
    return (job.name, *figure_cells(job.metrics), passed, time, f"{job.status}{again}")


def _job(name: str, record: JobRecord, screen: Screen) -> list[str]:
    inputs = record.inputs
    took = "" if record.seconds is None else f", in {wording.seconds(record.seconds)}"
    killed = " and not ended: it runs, or was killed" if record.state == "started" else ""
    rows = [
        ("record", f"{name} of job {record.job} in {record.config}"),
        ("state", f"{record.state}{killed}, exit code {record.exit_code}{took}"),
    ]
    rows += [("error", record.error)] if record.error else []
    if inputs is not None:
        settings = screen.chosen(setting_rows(inputs.settings), lambda item: item[0], lambda _: 0.0)
        rows += [
            ("model", f"{inputs.model} (sha256 {inputs.sha256[:12]})"),
            ("data", _source(inputs.data)),
            ("evaluation", "the same data" if inputs.evaluation is None else _source(inputs.evaluation)),
            ("settings", ", ".join(f"{key} {value}" for key, value in settings if value not in ("none", "no"))),
            ("versions", ", ".join(f"{key} {value}" for key, value in inputs.versions.items())),
        ]
    rows.append(("files", ", ".join(record.outputs) or "none"))
    return screen.aligned(rows)


def _source(source: DataRecord) -> str:
    if not source.listing:
        return "a Python function"
    return f"{counted(source.files, 'file')}, {wording.size(source.size)}"


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"is damaged ({what})", where=str(path), do="run the batch again")
