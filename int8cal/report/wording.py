"""How a figure reads: one function per unit, used by every view, so that all of them show the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.errors import printable
from int8cal.numerics.metrics import EXACT_DB

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

NOT_MEASURED = "not measured"
EXACT = "exact"
# Decimals of the units whose values have as many whatever their size.
DECIMALS = {"dB": 2, "similarity": 6, "fraction of 1": 4, "percentage points": 2}


def decibel(value: float | None) -> str:
    """Show a signal-to-noise ratio in dB; only what is equal to the last bit is called exact."""
    if value is None:
        return NOT_MEASURED
    return EXACT if value >= EXACT_DB else f"{value:.{DECIMALS['dB']}f} dB"


def cosine(value: float | None) -> str:
    """Show a cosine similarity; good ones differ from 1 late."""
    return NOT_MEASURED if value is None else f"{value:.{DECIMALS['similarity']}f}"


def plain(value: float | None) -> str:
    """Show a number without unit, four significant digits."""
    return NOT_MEASURED if value is None else f"{value:.4g}"


def fraction(value: float | None) -> str:
    """Show a fraction of 1 as files and gates have it."""
    return NOT_MEASURED if value is None else f"{value:.{DECIMALS['fraction of 1']}f}"


def small_fraction(value: float | None) -> str:
    """Show a fraction of 1 that is mostly near 0, two significant digits: a tiny one can be told from none."""
    return NOT_MEASURED if value is None else f"{value:.2g}"


def points(value: float | None) -> str:
    """Show percentage points."""
    return NOT_MEASURED if value is None else f"{_signless_zero(value)} points"


def interval(bounds: tuple[float | None, float | None]) -> str:
    """Show a 95 % interval of a drop in percentage points."""
    low, high = bounds
    if low is None or high is None:
        return NOT_MEASURED
    return f"{_signless_zero(low)} to {_signless_zero(high)}"


def size(count: float) -> str:
    """Show bytes in decimal units."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def smaller(fp32: float, int8: float) -> str:
    """Show how much smaller the int8 file is; both sizes in bytes, above 0."""
    times = f"{max(fp32 / int8, int8 / fp32):.2f}"
    return "about as large" if times == "1.00" else f"{times}x {'smaller' if int8 < fp32 else 'larger'}"


def milliseconds(value: float | None) -> str:
    """Show a latency given in ms, with digits enough that the ratio of two shown ones is the speedup shown."""
    if value is None:
        return NOT_MEASURED
    if value < 1:
        return f"{value:.4f} ms"
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"


def times(value: float | None) -> str:
    """Show a ratio."""
    return NOT_MEASURED if value is None else f"{value:.2f}x"


def seconds(value: float | None) -> str:
    """Show a duration given in seconds."""
    if value is None:
        return NOT_MEASURED
    if value < 100:
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


# How a value of a figure reads, by its unit in `evaluation.figures`.
OF_UNIT: dict[str, Callable[[float | None], str]] = {
    "dB": decibel,
    "similarity": cosine,
    "fraction of 1": fraction,
    "percentage points": points,
    "in the output's unit": plain,
    "in the metric's own unit": plain,
    "bytes": lambda value: NOT_MEASURED if value is None else size(value),
    "ms": milliseconds,
    "fp32 / int8": times,
    "channels": lambda value: NOT_MEASURED if value is None else f"{value:.0f}",
    "groups of channels": lambda value: NOT_MEASURED if value is None else f"{value:.0f}",
    "nodes": lambda value: NOT_MEASURED if value is None else f"{value:.0f}",
}


def channels_text(channels: Sequence[int]) -> str:
    """Name the channels of a group by the first and the last one."""
    ends = dict.fromkeys(channels)
    return f"channel{'s' if len(ends) > 1 else ''} {'..'.join(map(str, ends))}"


def kinds_text(kinds: Counter[str], most: int) -> str:
    """List kinds of things with their numbers, the most frequent first, at most so many of them."""
    shown = [f"{shortened(printable(kind))} {number}" for kind, number in kinds.most_common(most)]
    return ", ".join(shown) + (", …" if len(kinds) > len(shown) else "")


def ratio(value: float) -> str:
    """Show how many times one value is another, three significant digits and no exponent."""
    if value > 1e6:
        return ">×1,000,000"  # noqa: RUF001 (a factor)
    return f"×{value:.3g}" if value < 1000 else f"×{float(f'{value:.3g}'):,.0f}"  # noqa: RUF001 (likewise)


def headed(head: str) -> str:
    """Begin the head of a column with a capital, but for names as they are written elsewhere."""
    named = head.startswith(("int8", "float32")) or not {"_", "<", ">", "="}.isdisjoint(head)
    return head if named else head[:1].upper() + head[1:]


def shortened(name: str, most: int = 48) -> str:
    """Cut a long name in its middle, most of what is left from its end: graph names differ there."""
    if len(name) <= most:
        return name
    front = (most - 1) // 3
    return f"{name[:front]}…{name[front + 1 - most :]}"


def aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Write labels and texts in two columns, whatever characters they hold."""
    shown = [(printable(label), printable(text)) for label, text in rows]
    width = max((len(label) for label, _ in shown), default=0)
    return [f"{label:{width}}  {text}" for label, text in shown]


def _signless_zero(value: float) -> str:
    return f"{value:z.{DECIMALS['percentage points']}f}"
