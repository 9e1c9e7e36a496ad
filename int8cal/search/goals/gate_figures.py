"""The figures that gates about outputs are held against, and nothing else: no layers, no audits, no latency.

They are on disk while a search runs, so that one that was killed does not measure again: filed under the hash of the
int8 model, in a file for one FP32 model, set of samples and runtime. They follow from these alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from int8cal.errors import DataError
from int8cal.evaluation.metric_run import MetricRun
from int8cal.evaluation.output_groups import GroupFinder
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.pixel_feeds import feeds_for, match_outputs
from int8cal.evaluation.result import Metrics, OutputMetrics, UserMetric  # noqa: TC001 - pydantic reads the fields of Figures
from int8cal.graph.load import model_digest
from int8cal.graph.passes.float32 import float32_reference
from int8cal.graph.signature import signature_of
from int8cal.io.atomic import atomic_write
from int8cal.phrases import counted
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import QUIET, SIDE_BY_SIDE, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import onnx

    from int8cal.data.sample import Sample
    from int8cal.evaluation.user_metric import Metric
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import Arrays

    Elsewhere = Callable[[Sequence[onnx.ModelProto]], Iterator[tuple[Sample, tuple[Arrays, ...]]]]

KEPT_BYTES = 256_000_000  # of FP32 outputs; larger ones are computed again for each model
# 1 knew nothing of decisions on outputs, 2 named models by another hash, 3 took other outputs for boxes and scores
FORMAT = "int8cal/search/4"


@dataclass(frozen=True)
class Figures:
    """What gates about outputs are held against."""

    metrics: Metrics
    outputs: dict[str, OutputMetrics]
    metric: UserMetric | None = None


@dataclass(frozen=True)
class _Document:
    """The file; `key` is everything besides the int8 models that figures depend on."""

    format: str
    key: dict[str, str]
    measured: dict[str, Figures]


class GateEvaluator:
    """Evaluates int8 models of one FP32 model on the same samples, each model once.

    Args:
        fp32: The model before quantization.
        samples: Every `iter` is a pass over them.
        sha256: Of the FP32 model.
        path: The file that remembers figures; None for none. Anything else in its place is measured again.
        threads: Threads of the runtime; 0 for all CPUs.
        metric: The user's own; None for none.
        elsewhere: Runs models in place of this process: gives every sample, whose feed may be missing, with the outputs
            of each, in the order of `samples`.
    """

    def __init__(
        self,
        fp32: Path | onnx.ModelProto,
        samples: Iterable[Sample],
        *,
        sha256: str = "",
        path: Path | None = None,
        threads: int = 0,
        metric: Metric | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        reference = float32_reference(fp32)
        self._fp32, self._samples, self._sha256, self._path, self._threads = (
            reference.run,
            samples,
            sha256,
            path,
            threads,
        )
        self._given, self._metric, self._elsewhere = fp32, metric, elsewhere
        self._signature, self._groups = signature_of(reference.model), GroupFinder(reference.model, threads=threads)
        self._kept: list[Arrays] | None = None
        self._fingerprint, self._first = "", list[int]()  # the samples of the first pass, by their hashes
        self._measured: dict[str, Figures] | None = None

    def figures(self, int8: onnx.ModelProto) -> Figures:
        """Compare outputs: the same figures as `evaluate_pair` gives for them.

        Raises:
            ModelError, NonFiniteError, StatisticsError, DataError: As `evaluate_pair`.
            OutputError: The file cannot be written.
            MetricError: The user's metric fails.
        """
        key = {
            "model": self._sha256,
            "samples": self.fingerprint(),
            "threads": str(self._threads),
            **({"metric": f"{self._metric.text} {self._metric.digest}"} if self._metric else {}),
            **{name: importlib.metadata.version(name) for name in ("onnxruntime", "numpy")},
        }
        if self._measured is None:
            self._measured = {} if self._path is None else _read(self._path, key)
        model = model_digest(int8)
        if model not in self._measured:
            self._measured[model] = self._measure(int8)
            if self._path is not None:
                document = asdict(_Document(FORMAT, key, self._measured))
                atomic_write(self._path, json.dumps(document, indent=1) + "\n")
        return self._measured[model]

    def fingerprint(self) -> str:
        """Return the hash of all samples, in order and with their labels; the first call runs the FP32 model on them.

        Raises:
            DataError: There are no samples.
        """
        if not self._fingerprint:
            digest = hashlib.sha256()
            kept: list[Arrays] | None = []
            size = 0
            first: list[int] = []
            for sample, outputs in self._referenced():
                first.append(sample.fingerprint)
                digest.update(f"{sample.fingerprint:032x} {sample.label}\n".encode())
                size += sum(value.nbytes for value in outputs.values())
                if kept is not None:
                    kept.append(outputs)
                if size > KEPT_BYTES:
                    kept = None
            if not size:
                raise DataError(
                    "there are no samples to evaluate on",
                    do="check the path of --eval-data (evaluation.data in a YAML)",
                )
            self._kept, self._fingerprint, self._first = kept, digest.hexdigest(), first
        return self._fingerprint

    def _measure(self, int8: onnx.ModelProto) -> Figures:
        signature = signature_of(int8)
        names = match_outputs(self._signature, signature)
        comparison = OutputComparison(names, self._groups)
        own = None if self._metric is None else MetricRun(self._metric, names, self._signature)
        for sample, x, y in self._compared(int8, signature):
            comparison.add(sample, x, y)
            if own is not None:
                own.add(sample, x, y)
        return Figures(comparison.metrics(), comparison.outputs(), None if own is None else own.result()[0])

    def _compared(self, int8: onnx.ModelProto, signature: Signature) -> Iterator[tuple[Sample, Arrays, Arrays]]:
        """Give every sample with the outputs of the FP32 model, which runs again where they were not kept, and int8."""
        if self._elsewhere is None:
            first, second = itertools.tee(self._same_samples())
            expected = self._kept if self._kept is not None else (x for _, x in self._referenced())
            actual = run_each(self._open(int8), signature, feeds_for(int8, second))
            yield from ((sample, x, y) for sample, x, (_, y) in zip(first, expected, actual, strict=True))
        elif self._kept is None:
            yield from ((sample, x, y) for sample, (x, y) in self._elsewhere((self._reference(), int8)))
        else:
            rows = zip(self._elsewhere((int8,)), self._kept, strict=True)
            yield from ((sample, x, y) for (sample, (y,)), x in rows)

    def _same_samples(self) -> Iterator[Sample]:
        """Start a pass over the samples, which have to be those of the first: models that run in either are compared.

        Raises:
            DataError: A function yields others at each call.
        """
        count = 0
        for sample in self._samples:
            if self._first and (count == len(self._first) or sample.fingerprint != self._first[count]):
                raise _changed("is not the sample that it was", sample.origin)
            count += 1
            yield sample
        if count < len(self._first):
            raise _changed(f"ends after {counted(count, 'sample')}, and had {len(self._first)}", "data")

    def _open(self, model: Path | onnx.ModelProto) -> Session:
        return Session(model, threads=self._threads, entries=QUIET, at_once=SIDE_BY_SIDE)

    def _referenced(self) -> Iterator[tuple[Sample, Arrays]]:
        """Give every sample with the outputs of the FP32 model."""
        if self._elsewhere is not None:
            return ((sample, outputs) for sample, (outputs,) in self._elsewhere((self._reference(),)))
        first, second = itertools.tee(self._same_samples())
        runs = run_each(self._open(self._fp32), self._signature, second)
        return ((sample, outputs) for sample, (_, outputs) in zip(first, runs, strict=True))

    def _reference(self) -> onnx.ModelProto:
        return float32_reference(self._given).model


def _changed(what: str, where: str) -> DataError:
    return DataError(
        f"{what} when the data was read before",
        where=where,
        do="let the function yield the same feeds at every call, random ones from a fixed seed",
    )


def _read(path: Path, key: dict[str, str]) -> dict[str, Figures]:
    try:
        document = TypeAdapter(_Document).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document.measured if (document.format, document.key) == (FORMAT, key) else {}
