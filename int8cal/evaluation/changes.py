"""Whether an output of two models changes at all, from sample to sample or from place to place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = npt.NDArray[Any]


class _OfOne:
    """One output of one model.

    Attributes:
        same: Every sample gave the same array.
        flat: Every value of every sample was the same.
    """

    def __init__(self) -> None:
        self.same = self.flat = True
        self._first: Values | None = None

    def add(self, values: Values) -> None:
        if not values.size or not (self.same or self.flat):
            return
        if self._first is None:
            self._first = values.copy()  # the runtime may write into its arrays again
        elif self.same:
            self.same = np.array_equal(self._first, values)
        self.flat = self.flat and bool((values == self._first.flat[0]).all())
        if not self.same and not self.flat:
            self._first = None


class Changes:
    """An output of a reference model and of another; `add` each sample, then read `lost`."""

    def __init__(self) -> None:
        self._models = (_OfOne(), _OfOne())

    def add(self, reference: Values, other: Values) -> None:
        """Look at one sample: arrays of any shape."""
        for model, values in zip(self._models, (reference, other), strict=True):
            model.add(values)

    @property
    def lost(self) -> bool:
        """Whether it is constant in the other model only: over samples, or over all values."""
        reference, other = self._models
        return (other.same and not reference.same) or (other.flat and not reference.flat)
