"""Positions that a mask keeps where a sample cannot be trimmed to them: along which axes of which tensors they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of one sample.

    Attributes:
        kept: Whether each position is kept, bool (L,).
        axes: Tensor name -> its axes of positions; a tensor that is not named has none.
    """

    kept: npt.NDArray[np.bool_]
    axes: Mapping[str, tuple[int, ...]]


def kept(name: str, array: npt.NDArray[Any], sample: object) -> npt.NDArray[Any]:
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


def with_other_padding(
    feed: Mapping[str, npt.NDArray[Any]], way: Iterable[tuple[str, int]], is_kept: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[Any]]:
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


def axes_of_positions(
    values: Mapping[str, npt.NDArray[Any]], others: Mapping[str, npt.NDArray[Any]], is_kept: npt.NDArray[np.bool_]
) -> dict[str, tuple[int, ...] | None]:
    """Find the axes along which tensors hold positions, by what other padding changes.

    Args:
        values, others: Tensor name -> array for a sample, and for one with other padding.
        is_kept: Whether each position is kept, bool (L,).

    Returns:
        Per tensor the fewest axes such that nothing changed where none of them is at padding: () for a tensor that does
        not depend on padding, None for one that mixes it with the rest.
    """
    return {name: _axes(value, others[name], is_kept) for name, value in values.items()}


def _axes(x: npt.NDArray[Any], y: npt.NDArray[Any], is_kept: npt.NDArray[np.bool_]) -> tuple[int, ...] | None:
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
