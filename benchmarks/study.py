"""What the accuracy study measures, as values; pieces of a study go into files and come together again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmarks.datasets import Peer
from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALL = 0  # in place of a number of batches: every calibration sample there is
LEADING = "auto"  # the default method; the summary tables are about it


@dataclass(frozen=True)
class Task:
    """The task's own figure on the test samples.

    Attributes:
        name: "top-1", "agreement" or "F1".
        fp32, int8: Fractions; FP32 agrees with itself.
        drop: fp32 - int8 in percentage points.
        interval: 95 % interval of `drop`; None where the figure is no proportion of samples.
    """

    name: str
    fp32: float
    int8: float
    drop: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Point:
    """One int8 model.

    Attributes:
        recipe, method: The setting, "percentile 99.9" with its number.
        batches: As asked for, or ALL.
        samples: How many that is.
        repeat: Which draw of the samples; ALL has one.
        sqnr_db: Mean over the float outputs, on the test samples; None where an output is zero everywhere.
        task: None where the model has none.
        values: Values that calibration saw of a tensor, the median over tensors.
        moved: How far the tensors' ranges are from those of ALL, |width / width of ALL - 1|, the median over tensors.
        ranges_db, corrections_db: SQNR where only the ranges, or only the corrections, are from these samples and all
            else is from ALL. None for ALL, for methods after the first, and where the two do not fit together.
    """

    recipe: str
    method: str
    batches: int
    samples: int
    repeat: int
    sqnr_db: float | None
    task: Task | None
    values: float
    moved: float
    ranges_db: float | None = None
    corrections_db: float | None = None


@dataclass(frozen=True)
class ModelStudy:
    """All points of a model.

    Attributes:
        name: Of the model, as on the command line.
        batch, seed: Samples per batch, and what the draws started from.
        calib, test: How many samples there are.
        points: In the order of measurement.
        failed: "recipe, method" -> why there are no points.
        peers: Tool -> what it reached with all calibration samples.
    """

    name: str
    batch: int
    seed: int
    calib: int
    test: int
    points: tuple[Point, ...]
    failed: dict[str, str] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Return the (recipe, method) pairs that have points, in order."""
        return tuple(dict.fromkeys((point.recipe, point.method) for point in self.points))

    def at(self, recipe: str, method: str, batches: int) -> tuple[Point, ...]:
        """Return the repeats of one cell; empty where there are not so many samples."""
        wanted = (recipe, method, batches)
        return tuple(point for point in self.points if (point.recipe, point.method, point.batches) == wanted)

    def counts(self) -> tuple[int, ...]:
        """Return the numbers of batches that were measured, ascending, without ALL."""
        return tuple(sorted({point.batches for point in self.points} - {ALL}))


def middle(points: Sequence[Point]) -> Point:
    """Return the repeat with the median drop, or the median SQNR where there is no task; a run, not an average."""

    def figure(point: Point) -> float:
        if point.task is not None:
            return point.task.drop
        return point.sqnr_db if point.sqnr_db is not None else float("-inf")

    return sorted(points, key=figure)[len(points) // 2]


def load_study(stored: dict[str, Any]) -> ModelStudy:
    """Read back one model of a --json file.

    Raises:
        BenchmarkError: It is not one.
    """
    try:
        points = tuple(_load_point(each) for each in stored["points"])
        peers = {tool: Peer(**figures) for tool, figures in stored["peers"].items()}
        return ModelStudy(**{**stored, "points": points, "peers": peers})
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchmarkError(f"is not a file that accuracy --json wrote ({error})") from None


def _load_point(stored: dict[str, Any]) -> Point:
    task = stored["task"]
    if task is not None:
        ends = task["interval"]
        task = Task(**{**task, "interval": None if ends is None else (ends[0], ends[1])})
    return Point(**{**stored, "task": task})


def join(studies: Iterable[ModelStudy]) -> dict[str, ModelStudy]:
    """Put pieces of a study together; of a cell that was measured twice the later one counts.

    Raises:
        BenchmarkError: Two pieces of one model were made with different batches, draws or data.
    """
    found: dict[str, ModelStudy] = {}
    for study in studies:
        other = found.get(study.name, study)
        facts = ("batch", "seed", "calib", "test")
        if any(getattr(study, fact) != getattr(other, fact) for fact in facts):
            raise BenchmarkError(f"{study.name}: pieces with other --batch, --seed or data do not belong together")
        points = {_cell(point): point for point in (*other.points, *study.points)}
        measured = {f"{point.recipe}, {point.method}" for point in study.points}
        failed = {setting: why for setting, why in other.failed.items() if setting not in measured}
        found[study.name] = replace(study, points=tuple(points.values()), failed={**failed, **study.failed})
    return found


def _cell(point: Point) -> tuple[str, str, int, int]:
    return point.recipe, point.method, point.batches, point.repeat


def leading(studies: Sequence[ModelStudy]) -> list[tuple[ModelStudy, str, str]]:
    """Return (study, recipe, method) of the default method; the first one where it was not asked for."""
    settings = settings_of(studies)
    methods = [method for _, method in settings]
    chosen = LEADING if LEADING in methods else methods[0]
    return [
        (study, recipe, method)
        for study in studies
        for recipe, method in study.settings()
        if method == chosen and study.counts()
    ]


def settings_of(studies: Sequence[ModelStudy]) -> list[tuple[str, str]]:
    """Return the (recipe, method) pairs of all studies, in order."""
    return list(dict.fromkeys(setting for study in studies for setting in study.settings()))


def count_name(count: int) -> str:
    """Name a number of batches in a header."""
    return "all" if count == ALL else str(count)


def percent(value: float | None) -> float | None:
    """Turn a fraction into percent."""
    return None if value is None else 100 * value
