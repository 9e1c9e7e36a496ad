"""Outputs that models have given already while one was calibrated, in place of running them again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.sample import fingerprint_of
from int8cal.errors import Int8calError
from int8cal.numerics.fills import unmasked
from int8cal.numerics.metrics import ErrorSums, error_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from int8cal.numerics import Array
    from int8cal.runtime.batching import Arrays
    from int8cal.runtime.sessions import Session

CHECKED = 1  # sample that is run all the same: what gave the outputs is a model in memory, as int8cal made it
SAME_DB = 80.0  # two orders of float32 sums differ by 120 to 140 dB


class UnlikeError(Int8calError):
    """Outputs that were kept are not those of the given model; it has to be run."""


@dataclass(frozen=True)
class KnownOutputs:
    """What models have given already.

    Attributes:
        fp32: Outputs of the FP32 model by the fingerprint of what it is fed, of the pass over the calibration data.
        int8: Likewise of the int8 model, of the search's last score.
    """

    fp32: Mapping[int, Arrays] = field(default_factory=dict)
    int8: Mapping[int, Arrays] = field(default_factory=dict)


class Recalled:
    """Runs like a Session of a model, which is opened for what is not known.

    Attributes:
        at_once: See runtime.batching.
    """

    def __init__(
        self, open_model: Callable[[], Session], known: Mapping[int, Arrays], at_once: int = 1, checked: int = CHECKED
    ) -> None:
        """Begin.

        Args:
            open_model: Opens the given model.
            known: Outputs by the feed's fingerprint; all that are asked for.
            at_once: Of the session.
            checked: Known samples that are run all the same; 0 where it is the very model that gave the outputs.
        """
        self.at_once = at_once
        self._open, self._known = open_model, known
        self._checked = {*list(known)[:checked]}
        self._session: Session | None = None
        self._opening = threading.Lock()

    def run(self, feed: dict[str, Array], outputs: Sequence[str] | None = None) -> Arrays:
        """Run one feed, or recall what it gives.

        Raises:
            UnlikeError: One of the first samples gives something else.
            DataError: A kernel failed on these values.
        """
        mark = fingerprint_of(feed) if self._known else 0
        found = self._known.get(mark)
        if found is not None and mark not in self._checked:
            return found
        with self._opening:
            self._session = self._session or self._open()
        values = self._session.run(feed, outputs)
        if found is not None:
            _require_like(values, found)
        return values


def recalling(session: Session, known: Mapping[int, Arrays]) -> Recalled | Session:
    """Let an open session recall what it has given, if there is anything."""
    return Recalled(lambda: session, known, session.at_once) if known else session


def _require_like(values: Arrays, known: Arrays) -> None:
    for name, value in values.items():
        alike = name in known and known[name].shape == value.shape
        pair = unmasked(value, known[name]) if alike else (value, value)
        alike = alike and bool(np.isfinite(pair[0]).all())
        sums = error_sums(*pair) if alike else ErrorSums()
        if not alike or not sums.noise <= sums.signal * 10 ** (-SAME_DB / 10):  # NaN is not alike either
            raise UnlikeError(f"output {name!r} of the calibration is not that of the model in its file")
