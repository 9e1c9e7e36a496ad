"""How many calibration samples are enough, by model and by method, and what the ranges have to do with it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.study import ALL, LEADING, ModelStudy, Point, count_name, leading, percent, settings_of
from benchmarks.table import markdown as table
from benchmarks.table import optional

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOSE_DB = 0.5  # so near to all samples is enough
NONE = "-"
_BY_SETTING = ("enough", "loss", "moved")  # the columns of each number of batches


@dataclass(frozen=True)
class Enough:
    """The verdict on one model and setting.

    Attributes:
        batches: The smallest number that is enough, as are all larger ones; ALL when only all samples are.
        typical_db, worst_db: By number of batches, what the median draw and the worst one lose against all samples;
            negative is a gain.
        moved, values: By number of batches, those of its points, the median over draws.
    """

    batches: int
    typical_db: dict[int, float]
    worst_db: dict[int, float]
    moved: dict[int, float]
    values: dict[int, float]


def enough(study: ModelStudy, recipe: str, method: str) -> Enough | None:
    """Judge how many batches are enough: every draw at most 0.5 dB below all samples, and its drop in the interval.

    The interval is the 95 % interval of the drop with all samples: a drop within it cannot be told apart by these test
    samples. Only losses count; a draw that is better than all samples is not held against its number.

    Returns:
        None where there is no SQNR with all samples, or nothing to compare with it.
    """
    whole = study.at(recipe, method, ALL)
    if not whole or whole[0].sqnr_db is None:
        return None
    typical: dict[int, float] = {}
    worst: dict[int, float] = {}
    moved: dict[int, float] = {}
    values: dict[int, float] = {}
    least = ALL
    for batches in reversed(study.counts()):
        points = study.at(recipe, method, batches)
        ratios = [point.sqnr_db for point in points if point.sqnr_db is not None]
        if not points or len(ratios) < len(points):
            continue
        typical[batches] = whole[0].sqnr_db - statistics.median(ratios)
        worst[batches] = whole[0].sqnr_db - min(ratios)
        moved[batches] = statistics.median(point.moved for point in points)
        values[batches] = statistics.median(point.values for point in points)
        larger_are = least == min((count for count in worst if count != batches), default=ALL)
        if larger_are and worst[batches] <= CLOSE_DB and all(_indistinct(point, whole[0]) for point in points):
            least = batches
    return Enough(least, typical, worst, moved, values) if worst else None


def _indistinct(point: Point, whole: Point) -> bool:
    if point.task is None or whole.task is None or whole.task.interval is None:
        return True
    return point.task.drop <= whole.task.interval[1]


def judged(studies: Sequence[ModelStudy], counts: tuple[int, ...]) -> list[str]:
    """Say how many samples are enough, by model and by setting, and what the ranges have to do with it."""
    rows, verdicts = [], []
    for study, recipe, method in leading(studies):
        found = enough(study, recipe, method)
        if found is None:
            continue
        verdicts.append((study, recipe, found))
        rows.append(
            (
                study.name,
                recipe,
                str(study.calib),
                _enough(found, study),
                *(_losses([found], count) for count in counts),
                *(optional(percent(found.moved.get(count)), 1) for count in counts),
                *(NONE if count not in found.values else f"{found.values[count]:,.0f}" for count in counts[:1]),
            )
        )
    if not rows:
        return []
    names = [count_name(count) for count in counts]
    header = (
        "model",
        "recipe",
        "samples",
        "enough",
        *(f"loss, {name}" for name in names),
        *(f"ranges moved %, {name}" for name in names),
        f"values per tensor, {names[0]}",
    )
    method = next((method for _, _, method in leading(studies)), LEADING)
    notes = (
        f"Enough: of every draw the SQNR is at most {CLOSE_DB} dB below that of all samples, and the difference of the "
        "task's figure within the 95 % interval of theirs; so for all larger numbers too. Loss: of the "
        "median draw / of the worst one, in dB; negative is a gain. "
        "Ranges moved: how far the width of a tensor's range is from the one of all samples, the median over tensors. "
        "Values: how many of a tensor have been seen by then, the median over tensors."
    )
    by_model = f"### How many samples are enough (method {method})\n\n{table(header, rows)}\n\n{notes}"
    parts = [by_model + "\n\n" + conclusion(verdicts), apart(studies, counts), by_setting(studies, counts)]
    return [part for part in parts if part]


def apart(studies: Sequence[ModelStudy], counts: tuple[int, ...]) -> str:
    """Lay out what the worst draw loses, and what its ranges alone and its corrections alone lose."""
    rows, shares = [], []
    for study, recipe, method in leading(studies):
        whole = study.at(recipe, method, ALL)
        if not whole or whole[0].sqnr_db is None:
            continue
        cells = []
        for count in counts:
            points = [point for point in study.at(recipe, method, count) if point.sqnr_db is not None]
            worst = min(points, key=lambda point: point.sqnr_db or 0.0, default=None)
            if worst is None or worst.ranges_db is None or worst.corrections_db is None:
                cells.append(NONE)
                continue
            ratios = (worst.sqnr_db or 0.0, worst.ranges_db, worst.corrections_db)
            losses = [whole[0].sqnr_db - ratio for ratio in ratios]
            cells.append(" / ".join(_signed(loss) for loss in losses))
            if losses[0] > CLOSE_DB:
                shares.append(losses)
        rows.append((study.name, recipe, *cells))
    if all(cell == NONE for row in rows for cell in row[2:]):
        return ""
    names = [count_name(count) for count in counts]
    text = table(("model", "recipe", *names), rows)
    by_ranges = sum(ranges > corrections for _, ranges, corrections in shares)
    note = (
        "The worst draw's loss in dB / that of its ranges alone, with all else from all samples / that of its "
        f"corrections alone. Of {len(shares)} worst draws that lose more than {CLOSE_DB} dB, {by_ranges} lose it by "
        f"their ranges and {len(shares) - by_ranges} by their corrections."
    )
    return f"### Why few samples lose\n\n{text}\n\n{note}"


def conclusion(verdicts: Sequence[tuple[ModelStudy, str, Enough]]) -> str:
    """Say it in a sentence per recipe."""
    lines = []
    for recipe in dict.fromkeys(recipe for _, recipe, _ in verdicts):
        of = [(study, found) for study, name, found in verdicts if name == recipe]
        clauses = []
        for count in sorted({found.batches for _, found in of}, key=lambda count: (count == ALL, count)):
            models = [study for study, found in of if found.batches == count]
            named = ", ".join(study.name for study in models)
            samples = "only all samples" if count == ALL else f"{count} batches ({count * models[0].batch} samples)"
            clauses.append(f"{samples} on {len(models)} of {len(of)} models ({named})")
        lines.append(f"**Recipe {recipe}: enough are {'; '.join(clauses)}.** {_why([found for _, found in of])}")
    return "\n\n".join(lines)


def _why(found: Sequence[Enough]) -> str:
    parts = []
    for count in sorted({count for each in found for count in each.worst_db}):
        have = [each for each in found if count in each.worst_db]
        values = statistics.median(each.values[count] for each in have)
        moved = 100 * statistics.median(each.moved[count] for each in have)
        typical = statistics.median(each.typical_db[count] for each in have)
        worst = statistics.median(each.worst_db[count] for each in have)
        parts.append(
            f"after {count} batches ({len(have)} of {len(found)} models) it is {values:,.0f} values, a range is "
            f"{moved:.1f} % from that of all samples, and the median draw loses {_signed(typical)} dB, the worst one "
            f"{_signed(worst)} dB"
        )
    return f"A range is found from all values of a tensor, not one per sample. Medians: {'; '.join(parts)}."


def by_setting(studies: Sequence[ModelStudy], counts: tuple[int, ...]) -> str:
    """Lay out, for every recipe and method, on how many models each number is enough, and what it loses."""
    rows = []
    for recipe, method in settings_of(studies):
        found = [each for study in studies if (each := enough(study, recipe, method)) is not None]
        cells: list[str] = []
        for count in counts:
            have = [each for each in found if count in each.worst_db]
            close = sum(ALL < each.batches <= count for each in have)
            moved = [100 * each.moved[count] for each in have]
            cells += [
                f"{close} of {len(have)}",
                _losses(have, count),
                f"{statistics.median(moved):.1f}" if moved else NONE,
            ]
        rows.append((f"{recipe}, {method}", *cells))
    header = ("recipe, method", *(f"{count_name(count)}: {what}" for count in counts for what in _BY_SETTING))
    title = "By method: models for which it is enough, loss in dB, ranges moved in %"
    note = "Loss: of the median draw, the median over models / the largest of any draw and model."
    return f"### {title}\n\n{table(header, rows)}\n\n{note}"


def _losses(found: Sequence[Enough], count: int) -> str:
    have = [each for each in found if count in each.worst_db]
    if not have:
        return NONE
    typical = statistics.median(each.typical_db[count] for each in have)
    return f"{_signed(typical)} / {_signed(max(each.worst_db[count] for each in have))}"


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # never "-0.00"


def _enough(found: Enough, study: ModelStudy) -> str:
    return "all" if found.batches == ALL else f"{found.batches} ({found.batches * study.batch} samples)"
