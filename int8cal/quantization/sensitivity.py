"""What single errors do where the model is scored: one session, one inference per error and sample, no new models.

The error that a tensor's codes make is added to the float model at that tensor alone, and what the model is scored
by is compared with that without. Errors of different tensors have little to do with each other, so their powers add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.graph.injection import ErrorSite, make_injection
from int8cal.graph.scoring import score_points, tensors_of, weights_of
from int8cal.graph.taps import Tap, tapped_model
from int8cal.numerics.affine import fake_quantized
from int8cal.quantization.noise import ReferenceOutputs, scored_values
from int8cal.runtime.batching import make_feed
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.graph.signature import Signature
    from int8cal.numerics.affine import Affine
    from int8cal.runtime.batching import SampleLike

Float64 = npt.NDArray[np.float64]
Values = npt.NDArray[Any]


@dataclass
class Sensitivity:
    """Measures roundings on a model.

    Args:
        model: The prepared (and equalized) float model.
        plan: Its plan.
        signature: Its inputs.
        threads: Of the runtime; 0 for all CPUs.
    """

    model: onnx.ModelProto
    plan: Plan
    signature: Signature
    threads: int = 0
    _sessions: list[Session] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._points = score_points(self.model)
        self._names = [point.name for point in self._points]
        self._outputs = tensors_of(self._points)
        self._injection = make_injection(self.model, self.plan, ends=self._outputs)

    @property
    def places(self) -> frozenset[ErrorSite]:
        """Where errors can be added."""
        return frozenset(self._injection.inputs)

    def measure(
        self, samples: Sequence[SampleLike], roundings: Sequence[Mapping[ErrorSite, Affine]]
    ) -> tuple[Float64, Float64]:
        """Run every rounding on every sample.

        Args:
            samples: One inference each.
            roundings: What is rounded, each by itself: places, and the affine of the codes that are read there.

        Returns:
            Squared errors where the model is scored (see graph.scoring), float64 (roundings, samples, points), and
            squared values without, (samples, points). Only what is finite without errors counts. A sample whose error
            is not finite counts as one as large as its values.
        """
        errors = np.zeros((len(roundings), len(samples), len(self._names)))
        signal = np.zeros((len(samples), len(self._names)))
        if not self._names:  # asked for no output, the runtime would compute all
            return errors, signal
        for row, sample in enumerate(samples):
            feed = make_feed(self.signature, [sample])
            values = self._values(feed)
            exact = ReferenceOutputs.of(scored_values(self._points, values, sample), self._names)
            signal[row] = exact.power / weights_of(self._points)
            for index, rounding in enumerate(roundings):
                added = {
                    self._injection.inputs[place]: fake_quantized(values[place.tensor], affine) - values[place.tensor]
                    for place, affine in rounding.items()
                }
                noisy = self._noisy().run({**feed, **added}, self._outputs)
                errors[index, row] = exact.noise(scored_values(self._points, noisy, sample), self._names)
        return errors, signal

    def close(self) -> None:
        """Give the sessions' memory back; the next measurement opens them again."""
        self._sessions.clear()

    def _values(self, feed: dict[str, Values]) -> dict[str, Values]:
        if not self._sessions:
            names = dict.fromkeys([*(each.tensor for each in self.plan.tensors), *self._outputs])
            tapped = tapped_model(self.model, tuple(Tap(name) for name in names))
            self._sessions = [
                Session(tapped, threads=self.threads),
                Session(self._injection.model, threads=self.threads),
            ]
        return {**feed, **self._sessions[0].run(feed)}

    def _noisy(self) -> Session:
        return self._sessions[1]


def places_of(places: Collection[ErrorSite], tensor: str) -> tuple[ErrorSite, ...]:
    """Return the places of one tensor, of a set of them."""
    return tuple(place for place in (ErrorSite(tensor, "layers"), ErrorSite(tensor, "others")) if place in places)
