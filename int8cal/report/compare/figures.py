"""The figures of two report documents: by name, which way is worse, and how they and their changes read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from int8cal.evaluation.figures import OUTPUT
from int8cal.report import wording

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.report.document import Document

    Interval = tuple[float, float] | None

_ENDS = ("_ci95.lo", "_ci95.hi")
# From here on the error is no more than float32 rounding.
ROUNDING_DB = 120.0


def value_in(document: Document, name: str) -> float | None:
    """Look a figure up in a report, by the name that gates have for it.

    Args:
        document: What `load_report` gave.
        name: One of `evaluation.figures.FIGURES`, or "outputs.NAME.sqnr_db" and the like.

    Returns:
        The value in its unit; None where the report has none.
    """
    if name.endswith(_ENDS):
        interval = interval_in(document, name[: -len(_ENDS[0])])
        return None if interval is None else interval[_ENDS.index(name[-len(_ENDS[0]) :])]
    output = OUTPUT.fullmatch(name)
    if output is not None:
        return _number((document["outputs"].get(output[1]) or {}).get(output[2]))
    if name == "layers.worst_sqnr_db":
        known = [layer["sqnr_db"] for layer in document["layers"] if layer["sqnr_db"] is not None]
        return min(known, default=None)
    if name == "size.ratio":
        sizes = document["size"]
        return sizes["int8_bytes"] / sizes["fp32_bytes"] if sizes["fp32_bytes"] else None
    part, _, key = name.rpartition(".")
    return _number((_part(document, part) or {}).get(key))


def interval_in(document: Document, name: str) -> Interval:
    """Look up the 95 % interval of a figure in a report; None where it has none, or is itself the end of one."""
    if name.endswith(_ENDS):
        return None
    output = OUTPUT.fullmatch(name)
    if output is not None:
        bounds = (document["outputs"].get(output[1]) or {}).get(f"{output[2]}_ci95")
    else:
        part, _, key = name.rpartition(".")
        bounds = (_part(document, part) or {}).get(f"{key}_ci95")
    if bounds is None or None in bounds:
        return None
    return float(bounds[0]), float(bounds[1])


def held(name: str, value: float) -> float:
    """Hold decibels at ROUNDING_DB: above, they tell of rounding alone, and their changes of nothing."""
    return min(value, ROUNDING_DB) if name.endswith("_db") else value


def _part(document: Document, name: str) -> dict[str, Any] | None:
    """Return the part of a report that figures of a name's first half are in."""
    if name in ("", "top1", "top5"):
        metrics: dict[str, Any] = document["metrics"]
        return metrics if not name else metrics[name]
    part = document["latency_ms" if name == "latency" else name]
    return part if isinstance(part, dict) else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


@dataclass(frozen=True)
class Shown:
    """A figure that a comparison shows.

    Attributes:
        name, label: For gates, and for people.
        better: 1 where higher is better, -1 where lower is, 0 where the change alone decides nothing.
        text: Shows a value.
        change: Shows the way from an old value to a new one.
    """

    name: str
    label: str
    better: int
    text: Callable[[float | None], str]
    change: Callable[[float, float], str]


def _by(unit: str, digits: int = 2, factor: float = 1.0) -> Callable[[float, float], str]:
    def change(old: float, new: float) -> str:
        number = f"{factor * (new - old):+.{digits}f}"
        zero = not float(number)
        return f"{number.lstrip('+-') if zero else number}{unit}"

    return change


def _decibels(old: float, new: float) -> str:
    return _by(" dB")(held("_db", old), held("_db", new))


def _percent(old: float, new: float) -> str:
    if not old:
        return "0 %" if new == old else "from 0"
    return _by(" %")(0.0, 100 * (new / old - 1))


def _count(value: float | None) -> str:
    return wording.NOT_MEASURED if value is None else f"{value:.0f}"


def _size(value: float | None) -> str:
    return wording.NOT_MEASURED if value is None else wording.size(value)


_FIGURES = (
    Shown("sqnr_db", "SQNR", 1, wording.decibel, _decibels),
    Shown("cosine", "Cosine similarity", 1, wording.cosine, _by("", 6)),
    Shown("agreement", "Agreement", 1, wording.percent, _by(" points", factor=100.0)),
    Shown("top1.drop", "Top-1 drop", -1, wording.points, _by(" points")),
    Shown("top5.drop", "Top-5 drop", -1, wording.points, _by(" points")),
    Shown("max_abs_error", "Largest error", -1, wording.plain, _percent),
    Shown("layers.worst_sqnr_db", "Worst layer", 1, wording.decibel, _decibels),
    Shown("size.int8_bytes", "Int8 model", -1, _size, _percent),
    Shown("latency.int8", "Int8 latency", 0, wording.milliseconds, _percent),
    Shown("latency.speedup", "Speedup", 1, wording.times, _percent),
    Shown("saturation.unsafe_channels", "Channels that can saturate", -1, _count, _by("", 0)),
    Shown("fusion.float", "Nodes left in float", -1, _count, _by("", 0)),
)


def shown_figures(old: Document, new: Document) -> tuple[Shown, ...]:
    """Choose the figures to show of two reports: those of the model, and of each output where there are several."""
    names = [name for name in old["outputs"] if name in new["outputs"]]
    if len(names) < 2:
        return _FIGURES
    outputs = [Shown(f"outputs.{name}.sqnr_db", f"SQNR of {name}", 1, wording.decibel, _decibels) for name in names]
    return (*_FIGURES, *outputs)
