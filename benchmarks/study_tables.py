"""The accuracy study as markdown: the slides' table, how many samples are enough, other tools, every cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.enough import judged
from benchmarks.study import ALL, LEADING, ModelStudy, Point, count_name, leading, middle, percent, settings_of
from benchmarks.table import Spread, optional
from benchmarks.table import markdown as table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.datasets import Peer

NONE = "-"


def tables(studies: Sequence[ModelStudy]) -> str:
    """Lay out the whole study; every study has at least one point or one failure."""
    measured = [study for study in studies if study.points]
    counts = tuple(sorted({count for study in measured for count in study.counts()}))
    parts = []
    if measured:
        parts += [summary(measured, counts), *judged(measured, counts), *beside(measured)]
    parts += [section(study, counts) for study in studies]
    return "\n\n".join(parts)


def summary(studies: Sequence[ModelStudy], counts: tuple[int, ...]) -> str:
    """Lay out FP32, int8 after so many batches, and the differences, as NVIDIA's slides do."""
    columns = (*counts, ALL)
    names = [count_name(count) for count in columns]
    header = ("model", "recipe", "figure, %", "FP32", *names, *(f"diff {name}" for name in names))
    rows, drops = [], []
    for study, recipe, method in leading(studies):
        cells = [study.at(recipe, method, count) for count in columns]
        tasks = [None if not points else middle(points).task for points in cells]
        known = next((task for task in tasks if task is not None), None)
        if known is None:
            continue
        rows.append(
            (
                study.name,
                recipe,
                known.name,
                f"{100 * known.fp32:.2f}",
                *(NONE if task is None else f"{100 * task.int8:.2f}" for task in tasks),
                *(_difference(points) for points in cells),
            )
        )
        drops += [
            (point.task.drop, f"{study.name}, {recipe}, {_after(point, study)}")
            for points in cells
            for point in points
            if point.task is not None
        ]
    method = next((method for _, _, method in leading(studies)), LEADING)
    head = f"### FP32, and int8 after calibration batches (method {method})\n\n"
    if not rows:
        return f"{head}No model has a figure of its task."
    worst = max(drops)
    notes = (
        "Differences are FP32 minus int8 in points, on test samples that calibration never saw: those of the draw with "
        f"the median difference, with its 95 % interval. {_batches(studies)} The largest difference of any draw is "
        f"{worst[0]:.2f} points ({worst[1]})."
    )
    return f"{head}{table(header, rows)}\n\n{notes}"


def beside(studies: Sequence[ModelStudy]) -> list[str]:
    """Lay out every model and setting with all calibration samples, the best peer below."""
    settings = settings_of(studies)
    parts = [
        _beside(studies, settings, "SQNR, dB", lambda point: point.sqnr_db, lambda peer: peer.sqnr_db, 2),
        _beside(studies, settings, "the task's figure, %", _int8, lambda peer: percent(peer.metric), 2),
    ]
    return [part for part in parts if part]


def _beside(
    studies: Sequence[ModelStudy],
    settings: Sequence[tuple[str, str]],
    title: str,
    own: Callable[[Point], float | None],
    other: Callable[[Peer], float | None],
    digits: int,
) -> str:
    columns: dict[str, list[float | None]] = {}
    for study in studies:
        cells = [study.at(recipe, method, ALL) for recipe, method in settings]
        columns[study.name] = [own(points[0]) if points else None for points in cells]
    if all(value is None for values in columns.values() for value in values):
        return ""
    rows = [
        (f"{recipe}, {method}", *(_bold(columns[study.name], index, digits) for study in studies))
        for index, (recipe, method) in enumerate(settings)
    ]
    best = [_best(study.peers, other) for study in studies]
    if any(each is not None for each in best):
        rows.append(("best peer", *(NONE if each is None else f"{each[0]:.{digits}f}" for each in best)))
        rows.append(("which", *(NONE if each is None else each[1] for each in best)))
    header = ("recipe, method", *(study.name for study in studies))
    return f"### All calibration samples, beside other tools: {title}\n\n{table(header, rows)}"


def section(study: ModelStudy, counts: tuple[int, ...]) -> str:
    """Lay out every cell of one model."""
    columns = (*counts, ALL)
    names = [count_name(count) for count in columns]
    header = ("recipe, method", *(f"dB, {name}" for name in names), *(f"diff {name}" for name in names))
    rows = []
    for recipe, method in study.settings():
        cells = [study.at(recipe, method, count) for count in columns]
        rows.append((f"{recipe}, {method}", *(_ratios(points) for points in cells), *(_difference(p) for p in cells)))
    facts = f"{study.calib} calibration samples, {study.test} test samples, {study.batch} to a batch."
    failed = [f"{setting} failed: {why}" for setting, why in study.failed.items()]
    grid = [table(header, rows)] if rows else []
    return "\n\n".join([f"### {study.name}", *grid, facts, *failed])


def _batches(studies: Sequence[ModelStudy]) -> str:
    sizes = sorted({study.batch for study in studies})
    short = [f"{study.name} has {study.calib}" for study in studies if study.counts() and _runs_out(study, studies)]
    note = f" Where samples run out there is a dash: {', '.join(short)}." if short else ""
    return f"A batch is {' or '.join(map(str, sizes))} samples.{note}"


def _runs_out(study: ModelStudy, studies: Sequence[ModelStudy]) -> bool:
    return study.counts()[-1] < max(other.counts()[-1] for other in studies if other.counts())


def _after(point: Point, study: ModelStudy) -> str:
    return f"all {study.calib} samples" if point.batches == ALL else f"{point.batches} batches"


def _difference(points: Sequence[Point]) -> str:
    task = middle(points).task if points else None
    if task is None:
        return NONE
    ends = "" if task.interval is None else f" [{task.interval[0]:.2f}, {task.interval[1]:.2f}]"
    return f"{task.drop:.2f}{ends}"


def _ratios(points: Sequence[Point]) -> str:
    ratios = [point.sqnr_db for point in points if point.sqnr_db is not None]
    if not ratios:
        return NONE
    return Spread.of(ratios).text() if len(ratios) > 1 else f"{ratios[0]:.2f}"


def _int8(point: Point) -> float | None:
    return None if point.task is None else 100 * point.task.int8


def _bold(values: Sequence[float | None], index: int, digits: int) -> str:
    known = [round(value, digits) for value in values if value is not None]
    text = optional(values[index], digits)
    return f"**{text}**" if values[index] is not None and float(text) == max(known) else text


def _best(peers: Mapping[str, Peer], figure: Callable[[Peer], float | None]) -> tuple[float, str] | None:
    known = [(value, tool) for tool, peer in peers.items() if (value := figure(peer)) is not None]
    return max(known) if known else None
