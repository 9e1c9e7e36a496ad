"""A factor and a shift per channel, on their way from an elementwise node into what computes its input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.graph.folding.affine_step import Step

# A sum of two constants that is smaller than this part of either is a rounding trick, (x + 2**23) - 2**23, or as good
# as one: the float arithmetic in between is what the model wants.
CANCELLED = 1e-3


@dataclass(frozen=True)
class Change:
    """What happens to a tensor: x becomes x * factor + shift.

    Attributes:
        factor, shift: Float64, (1,) or (channels,).
        axis: Of the channels, counted from the right, below 0; without meaning where both have one value.
    """

    factor: npt.NDArray[np.float64]
    shift: npt.NDArray[np.float64]
    axis: int = -1

    @property
    def scalar(self) -> bool:
        """Whether all channels change alike."""
        return self.factor.size == self.shift.size == 1

    @property
    def scales(self) -> bool:
        """Whether the factor does anything."""
        return not bool((self.factor == 1).all())

    @property
    def shifts(self) -> bool:
        """Whether the shift does anything."""
        return bool(self.shift.any())

    @property
    def positive(self) -> bool:
        """Whether larger values stay larger."""
        return bool((self.factor > 0).all())

    def scaling(self) -> Change:
        """Return the factor alone."""
        return replace(self, shift=np.zeros(1))

    def reshaped(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return factor or shift in the shape in which it broadcasts to the tensor."""
        return values.reshape(-1, *[1] * (-self.axis - 1)) if values.size > 1 else values.reshape(())

    def per_channel(self, channels: int, axis: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """Return factor and shift of each of a layer's channels; None where they lie along another axis."""
        for values in (self.factor, self.shift):
            if values.size > 1 and (self.axis != axis or values.size != channels):
                return None
        return np.broadcast_to(self.factor, channels), np.broadcast_to(self.shift, channels)


def change_of(step: Step) -> Change | None:
    """Read a step as a change; None where its constants vary along more than one axis."""
    axes = {
        position - each.ndim
        for each in (step.factor, step.shift)
        for position, size in enumerate(each.shape)
        if size > 1
    }
    if len(axes) > 1:
        return None
    return Change(step.factor.reshape(-1), step.shift.reshape(-1), next(iter(axes), -1))


def as_float32(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32] | None:
    """Return a constant in the model's type; None where it does not hold one of the values, or holds 0 for it."""
    with np.errstate(over="ignore", under="ignore"):
        array = values.astype(np.float32)
    return array if np.isfinite(array).all() and bool(((array != 0) == (values != 0)).all()) else None


def added(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Add two constants; None where they cancel."""
    total = first + second
    larger = np.maximum(np.abs(first), np.abs(second))
    return None if (first.any() and second.any() and (np.abs(total) < CANCELLED * larger).any()) else total
