"""The figures of two report documents: by name, which way is worse, and how they and their changes read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.evaluation.figures import OUTPUT
from int8cal.report import wording
from int8cal.report.parts import ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.report.document import Document
    from int8cal.report.parts import Part

    Interval = tuple[float, float] | None

# What the name of a figure begins with -> the part of a report that has it.
_PARTS: dict[str, Callable[[Document], Part | None]] = {
    "": lambda document: document.metrics,
    "top1": lambda document: document.metrics.top1,
    "top5": lambda document: document.metrics.top5,
    "size": lambda document: document.size,
    "latency": lambda document: document.latency,
    "saturation": lambda document: document.saturation,
    "fusion": lambda document: document.fusion,
    "layers": lambda _: None,  # its figure is of all layers, and has no interval
}
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
    if name == "layers.worst_sqnr_db":
        return min((layer.sqnr_db for layer in document.layers if layer.sqnr_db is not None), default=None)
    if name == "size.ratio":
        return document.size.int8_bytes / document.size.fp32_bytes if document.size.fp32_bytes else None
    part, key = _place(document, name)
    value = None if part is None else part.at_key(key)
    return None if value is None else float(value)


def interval_in(document: Document, name: str) -> Interval:
    """Look up the 95 % interval of a figure in a report; None where it has none, or is itself the end of one."""
    if name.endswith(_ENDS):
        return None
    part, key = _place(document, name)
    return None if part is None else ends(part.at_key(f"{key}_ci95"))


def held(name: str, value: float) -> float:
    """Hold decibels at ROUNDING_DB: above, they tell of rounding alone, and their changes of nothing."""
    return min(value, ROUNDING_DB) if name.endswith("_db") else value


def _place(document: Document, name: str) -> tuple[Part | None, str]:
    """Return the part of a report that a figure is in, None where the report lacks it, and the figure's key there."""
    output = OUTPUT.fullmatch(name)
    if output is not None:
        return document.outputs.get(output[1]), output[2]
    part, _, key = name.rpartition(".")
    return _PARTS[part](document), key


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
    names = [name for name in old.outputs if name in new.outputs]
    if len(names) < 2:
        return _FIGURES
    outputs = [Shown(f"outputs.{name}.sqnr_db", f"SQNR of {name}", 1, wording.decibel, _decibels) for name in names]
    return (*_FIGURES, *outputs)
