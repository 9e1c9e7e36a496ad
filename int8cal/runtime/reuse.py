"""Running a session into the same memory again and again.

A tapped model writes every layer's output, tens of megabytes per sample. Fresh arrays for them are fresh pages, which
the operating system clears first; arrays that stay cost nothing and are still warm in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import StatisticsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from int8cal.runtime.sessions import Session

    Arrays = dict[str, npt.NDArray[Any]]


class ReusedOutputs:
    """Runs like a Session, but what it returns is overwritten by the next run, or by one some runs later."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._places: list[_Place] = []
        self._runs = 0
        self._depth = 1

    def keep(self, depth: int) -> None:
        """Let outputs last until `depth` runs later from now on; those of earlier runs are given up."""
        if depth != self._depth:
            del self._places[depth:]
            self._depth, self._runs = depth, 0

    def run(self, feed: Arrays, outputs: Sequence[str] | None = None) -> Arrays:
        """Run one feed.

        Args:
            feed: Input name -> array.
            outputs: Names to compute; None for all.

        Returns:
            Output name -> array, valid until the next run, or as `keep` says.

        Raises:
            StatisticsError: A kernel failed on these values.
        """
        index = self._runs % self._depth
        self._runs += 1
        if index == len(self._places):
            self._places.append(_Place(self._session))
        return self._places[index].run(feed, outputs)


class _Place:
    """Memory for the outputs of one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fed: object = None  # names, types and shapes of the inputs that the buffers were made for
        self._buffers: Arrays = {}
        self._binding = session.binding()
        self._settled = True  # shapes of outputs follow from shapes of inputs, as far as was seen

    def run(self, feed: Arrays, outputs: Sequence[str] | None) -> Arrays:
        fed = (outputs, tuple((name, value.dtype, value.shape) for name, value in feed.items()))
        if fed == self._fed:
            try:
                self._binding.run(feed)
            except StatisticsError:
                self._settled = False  # the data decide a shape; a kernel that really fails does so again below
            else:
                return self._buffers
        self._fed = None
        values = self._session.run(feed, outputs)
        if self._settled and all(value.size and value.dtype.kind == "f" for value in values.values()):
            self._buffers = {name: np.ascontiguousarray(value) for name, value in values.items()}
            self._binding.bind(self._buffers)
            self._fed = fed
        return values
