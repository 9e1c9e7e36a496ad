"""What padding samples had, and what became of it: a record that adds, for statistics, tables and reports.

Padding is the positions of a sequence at which a mask input is 0, to which samples are filled up; nobody reads what a
model computes there. `data.trimming` finds it and leaves it out. Where a sample cannot be trimmed, `Positions` says
along which axes of which tensors its padding lies.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from int8cal.errors import StatisticsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from int8cal.numerics import Array, Bools

Side = Literal["end", "start", "both ends", "inside"]
How = Literal["trimmed", "masked", "kept"]


FIXED = "the length is fixed"  # why padding was kept that the model asks for


@dataclass(frozen=True)
class Padding:
    """What padding samples had, and what became of it; adds with `+`.

    Attributes:
        mask: The input that is 0 there.
        side: Where it lies in a sample.
        how: "trimmed"; "masked" where positions are left out of each tensor; "kept" where it counts.
        why: It was not trimmed.
        axes: Hash of the axes of positions, where it is masked.
        samples: How many had any.
        positions, padding: Of these samples, and how many of them were padding.
    """

    mask: str
    side: Side
    how: How
    why: str
    samples: int
    positions: int
    padding: int
    axes: str = ""

    def __add__(self, other: Padding) -> Padding:
        if (self.how, self.axes) != (other.how, other.axes):
            same = " along other axes" if self.how == other.how else ""
            raise StatisticsError(
                f"shards that treat padding differently do not add ({self.mask} 0 at the {self.side} was {self.how} "
                f"in one, {other.how}{same} in the other)",
                do="calibrate every shard with one version and the same FP32 file",
            )
        return replace(
            self,
            why=min(self.why, other.why),  # whatever the order
            samples=self.samples + other.samples,
            positions=self.positions + other.positions,
            padding=self.padding + other.padding,
        )

    @property
    def text(self) -> str:
        """What there was and what became of it, in words."""
        share = 100 * self.padding / max(self.positions, 1)
        what = f"{self.mask} is 0 at {share:.1f} % of the positions of {self.samples} samples ({self.side})"
        if self.how == "trimmed":
            return f"{what}: trimmed, the outputs are the same without it"
        if self.how == "masked":
            return f"{what}: left out of every tensor by position, the other outputs do not depend on it"
        do = "export the model with a free one" if self.why == FIXED else "give samples of their own length"
        return f"{what} and counts in ranges and figures: {self.why}; {do}"

    def __str__(self) -> str:
        return f"padding: {self.text}"


def tally(paddings: Iterable[Padding]) -> tuple[Padding, ...]:
    """Add what concerns the same mask and side; in the order of these.

    Raises:
        StatisticsError: It was trimmed in one place and kept in another.
    """
    found: dict[tuple[str, str], Padding] = {}
    for each in paddings:
        key = (each.mask, each.side)
        found[key] = found[key] + each if key in found else each
    return tuple(found[key] for key in sorted(found))


def record(paddings: Iterable[Padding]) -> dict[str, dict[str, dict[str, object]]]:
    """Return paddings as plain objects for files: mask -> side -> the rest."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for each in paddings:
        fields = {key: value for key, value in asdict(each).items() if value != ""}
        found.setdefault(str(fields.pop("mask")), {})[str(fields.pop("side"))] = fields
    return found


def paddings_from(masks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[Padding, ...]:
    """Read what `record` gave.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: It is no such thing.
    """
    found = []
    for mask, sides in masks.items():
        for side, entry in sides.items():
            if side not in get_args(Side) or entry["how"] not in get_args(How):
                raise ValueError(f"padding {side} {entry['how']}")
            why, axes = (str(entry.get(key, "")) for key in ("why", "axes"))
            samples, positions, padding = (int(entry[key]) for key in ("samples", "positions", "padding"))
            found.append(Padding(mask, cast("Side", side), entry["how"], why, samples, positions, padding, axes))
    return tally(found)


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of one sample.

    Attributes:
        kept: Whether each position is kept, bool (L,).
        axes: Tensor name -> its axes of positions; a tensor that is not named has none.
    """

    kept: Bools
    axes: Mapping[str, tuple[int, ...]]


def has_positions(sample: object) -> bool:
    """Whether some positions of a sample are padding that was not trimmed."""
    return getattr(sample, "positions", None) is not None


def kept(name: str, array: Array, sample: object) -> Array:
    """Leave out of a tensor what a sample's padding made of it.

    Args:
        name: Of the tensor in the FP32 model.
        array: Its values for this sample, in either model.
        sample: A sample, or what stands for one; one without positions keeps everything.
    """
    positions: Positions | None = getattr(sample, "positions", None)
    if positions is not None:
        for axis in positions.axes.get(name, ()):
            array = np.compress(positions.kept, array, axis)
    return array


def with_other_padding(feed: Mapping[str, Array], way: Iterable[tuple[str, int]], is_kept: Bools) -> dict[str, Array]:
    """Write something else to the padding of a sample: ids 0 and 1, which every table has, or what stands elsewhere.

    Args:
        feed: Of the sample.
        way: Inputs and axes to write along; the mask is none of them.
        is_kept: Whether each position is kept, bool (L,).
    """
    result = dict(feed)
    first = int(np.argmax(is_kept))
    for name, axis in way:
        value = np.moveaxis(result[name].copy(), axis, -1)
        padding = value[..., ~is_kept]
        other = padding != 1 if value.dtype.kind in "iub" else np.where(padding == 0, value[..., first, None], 0)
        value[..., ~is_kept] = other
        result[name] = np.ascontiguousarray(np.moveaxis(value, -1, axis))
    return result


def axes_of_positions(x: Array, y: Array, is_kept: Bools) -> tuple[int, ...] | None:
    """Find the axes along which a tensor holds positions, by what other padding changes.

    Args:
        x, y: The tensor for a sample, and for one with other padding.
        is_kept: Whether each position is kept, bool (L,).

    Returns:
        The fewest axes such that nothing changed where none of them is at padding: () for a tensor that does not depend
        on padding, None for one that mixes it with the rest.
    """
    if x.shape != y.shape:
        return None
    changed = (x != y) & ((x == x) | (y == y))  # noqa: PLR0124 - NaN in both is no change
    if not changed.any():
        return ()
    axes = [axis for axis, size in enumerate(x.shape) if size == len(is_kept)]
    alone = [axis for axis in axes if not np.compress(is_kept, changed, axis).any()]
    if alone:
        return tuple(alone)
    for axis in axes:
        changed = np.compress(is_kept, changed, axis)
    return tuple(axes) if not changed.any() else None
