"""The figures that gates about outputs are held against, and nothing else: no layers, no audits, no latency."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.data.sample import fingerprint
from int8cal.errors import DataError
from int8cal.evaluation.outputs import OutputComparison, match_outputs
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.evaluation.result import Evaluation, Saturation
from int8cal.graph.load import load_model
from int8cal.graph.signature import signature_of
from int8cal.job import DEFAULT_TARGET
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    import numpy.typing as npt
    import onnx

    from int8cal.data.sample import Sample

    Outputs = dict[str, npt.NDArray[Any]]

KEPT_BYTES = 256_000_000  # of FP32 outputs; larger ones are computed again for each model


class GateEvaluator:
    """Evaluates int8 models of one FP32 model on the same samples.

    Args:
        fp32: The model before quantization.
        samples: Starts a pass over the samples.
        target: Named in evaluations.
        threads: Threads of the runtime; 0 for all CPUs.
    """

    def __init__(
        self,
        fp32: Path | onnx.ModelProto,
        samples: Callable[[], Iterable[Sample]],
        *,
        target: str = DEFAULT_TARGET,
        threads: int = 0,
    ) -> None:
        self._fp32, self._samples, self._target, self._threads = fp32, samples, target, threads
        self._signature = signature_of(load_model(fp32) if isinstance(fp32, Path) else fp32)
        self._kept: list[Outputs] | None = None
        self._fingerprint = ""

    def fingerprint(self) -> str:
        """Return the hash of all samples, in order and with their labels; the first call runs the FP32 model on them.

        Raises:
            DataError: There are no samples.
        """
        if not self._fingerprint:
            digest = hashlib.sha256()
            first, second = itertools.tee(self._samples())
            kept: list[Outputs] | None = []
            size = 0
            for sample, outputs in zip(first, self._reference(second), strict=True):
                digest.update(f"{fingerprint(sample):032x} {sample.label}\n".encode())
                size += sum(value.nbytes for value in outputs.values())
                if kept is not None:
                    kept.append(outputs)
                if size > KEPT_BYTES:
                    kept = None
            if not size:
                raise DataError("there are no samples to evaluate on", do="check the path under evaluation.data")
            self._kept, self._fingerprint = kept, digest.hexdigest()
        return self._fingerprint

    def evaluate(self, int8: onnx.ModelProto) -> Evaluation:
        """Compare outputs: the same figures as `evaluate_pair` gives for them.

        Raises:
            ModelError, NonFiniteError, StatisticsError, DataError: As `evaluate_pair`.
        """
        self.fingerprint()
        signature = signature_of(int8)
        comparison = OutputComparison(match_outputs(self._signature, signature))
        first, second = itertools.tee(self._samples())
        expected = self._kept if self._kept is not None else self._reference(self._samples())
        actual = run_each(Session(int8, threads=self._threads, entries=QUIET), signature, feeds_for(int8, second))
        for sample, x, (_, y) in zip(first, expected, actual, strict=True):
            comparison.add(sample, x, y)
        return Evaluation(
            samples=comparison.samples,
            metrics=comparison.metrics(),
            outputs=comparison.outputs(),
            layers=(),
            fusion=None,
            saturation=Saturation(self._target, None),
            size=(0, 0),
            latency=None,
            reasons=comparison.reasons(),
        )

    def _reference(self, samples: Iterable[Sample]) -> Iterator[Outputs]:
        session = Session(self._fp32, threads=self._threads, entries=QUIET)
        return (outputs for _, outputs in run_each(session, self._signature, samples))
