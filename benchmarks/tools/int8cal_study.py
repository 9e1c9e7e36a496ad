"""int8cal as the accuracy study sees it: its own job on chosen samples, and its own figures on test samples."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from operator import add
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from benchmarks.study import Task
from int8cal import Int8calError, quantize
from int8cal.calibration.engines.local import Collected, collect
from int8cal.config.load import job_from_options, require_available
from int8cal.data.sample import Sample
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.pixel_feeds import match_outputs
from int8cal.evaluation.result_parts import ends
from int8cal.graph.load import load_model
from int8cal.graph.signature import signature_of
from int8cal.job import RecipeName
from int8cal.numerics.intervals import paired_interval
from int8cal.pipeline import calibrate_model
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import onnx

    from benchmarks.datasets import Dataset
    from benchmarks.models import Feed
    from int8cal.evaluation.result import Metrics
    from int8cal.graph.signature import Signature
    from int8cal.graph.taps import Tap
    from int8cal.quantization.table import CalibrationTable

    Arrays = dict[str, npt.NDArray[Any]]

RECIPES = get_args(RecipeName)

__all__ = ["RECIPES", "HeldOut", "Int8calError", "Quantized", "SharedPasses", "crossed", "quantized"]


class SharedPasses:
    """The pass over the data, for many settings: statistics add, so no shard runs twice.

    Args:
        cuts: Where shards end, ascending, in samples. A call with the first cuts[1] samples is the sum of two shards.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self._lengths = [end - start for start, end in zip((0, *cuts), cuts, strict=False)]
        self._known: dict[tuple[object, ...], Collected] = {}

    def __call__(
        self,
        model: onnx.ModelProto,
        signature: Signature,
        taps: tuple[Tap, ...],
        samples: Iterable[Sample],
        *,
        keep: int,
        **settings: Any,
    ) -> Collected:
        """Collect as int8cal's own engine does, with the same bits; kept are the shards' smallest fingerprints.

        Args:
            model, signature, taps, samples, keep: As `collect` takes them.
            settings: Its other arguments.
        """
        source = iter(samples)
        shards: list[Collected] = []
        for length in chain(self._lengths, (None,)):
            shard = list(islice(source, length))
            if not shard and shards:
                break
            key = (taps, keep, *sorted(settings.items()), sum(sample.fingerprint for sample in shard))
            if key not in self._known:
                self._known[key] = collect(model, signature, taps, shard, keep=keep, **settings)
            shards.append(self._known[key])
        kept = sorted((sample for each in shards for sample in each.kept), key=lambda sample: sample.fingerprint)
        return Collected(reduce(add, (each.statistics for each in shards)), tuple(kept[:keep]))


@dataclass(frozen=True)
class Quantized:
    """An int8 model, its table, and what calibration saw.

    Attributes:
        widths: Width of the range of each tensor.
        values: Values seen of a tensor, the median over tensors.
    """

    model: onnx.ModelProto
    table: CalibrationTable
    widths: dict[str, float]
    values: float


def quantized(
    model: Path, feeds: Sequence[Feed], recipe: str, method: str, passes: SharedPasses, threads: int
) -> Quantized:
    """Run int8cal's job.

    Args:
        model: The FP32 file.
        feeds: The calibration samples.
        recipe: A recipe of this version.
        method: "auto", or "percentile 99.9" with the number.
        passes: Shared by all calls for one model.
        threads: Of the runtime.

    Raises:
        Int8calError: Of the station that failed.
    """
    name, _, percentile = method.partition(" ")
    options = {
        "model": str(model),
        "data.path": "data",
        "calibration.method": name,
        "calibration.threads": threads,
        "quantization.recipe": recipe,
    }
    if percentile:
        options["calibration.percentile"] = float(percentile)
    job = job_from_options(options)
    require_available(job)
    calibrated = calibrate_model(job, model, stream=lambda: feeds, engine=passes)
    seen = [tensor.count for tensor in calibrated.statistics.tensors.values()]
    table = calibrated.result.table
    widths = {name: entry.high - entry.low for name, entry in table.tensors.items()}
    return Quantized(calibrated.result.model, table, widths, statistics.median(seen))


def crossed(model: Path, ranges: CalibrationTable, rest: CalibrationTable) -> onnx.ModelProto | None:
    """Build the model of one table with the ranges of another.

    Returns:
        None where the two have rescaled or rounded their layers differently, or left other nodes in float, so that
        ranges of one mean nothing in the other; biases may differ.
    """
    others = [{each.key: each for each in table.corrections if each.key != "bias"} for table in (ranges, rest)]
    same = others[0] == others[1] and ranges.tensors.keys() == rest.tensors.keys()
    return quantize(model, replace(rest, tensors=ranges.tensors)) if same else None


class HeldOut:
    """The test samples of a dataset, with the FP32 model's outputs, which every int8 model is held against."""

    def __init__(self, data: Dataset, threads: int) -> None:
        labels: Sequence[int | None] = data.labels if data.labels is not None else [None] * len(data.test)
        self._data, self._threads = data, threads
        self._samples = [
            Sample(feed, f"test[{index}]", label)
            for index, (feed, label) in enumerate(zip(data.test, labels, strict=True))
        ]
        self._signature = signature_of(load_model(data.path))
        self._reference = self._run(data.path)

    def measure(self, int8: onnx.ModelProto) -> tuple[float | None, Task | None]:
        """Return the SQNR in dB, and the task's figure.

        Raises:
            Int8calError: The outputs do not correspond, or are not finite.
        """
        comparison = OutputComparison(match_outputs(self._signature, signature_of(int8)))
        outputs = self._run(int8)
        for sample, expected, actual in zip(self._samples, self._reference, outputs, strict=True):
            comparison.add(sample, expected, actual)
        metrics = comparison.metrics()
        return metrics.sqnr_db, self._task(metrics, outputs)

    def _run(self, model: Path | onnx.ModelProto) -> list[Arrays]:
        session = Session(model, threads=self._threads)
        return [dict(outputs) for _, outputs in run_each(session, self._signature, self._samples)]

    def _task(self, metrics: Metrics, outputs: list[Arrays]) -> Task | None:
        top1, figure = metrics.top1, self._data.figure
        if top1 is not None and top1.fp32 is not None and top1.int8 is not None and top1.drop is not None:
            return Task("top-1", top1.fp32, top1.int8, top1.drop, ends(top1.drop_ci95))
        if metrics.agreement is not None:
            return Task("agreement", 1.0, metrics.agreement, *self._disagreement(metrics.agreement))
        if figure is None:
            return None
        stacks = [self._stack(each) for each in (self._reference, outputs)]
        own, int8 = figure.measure(stacks[0], stacks[0]), figure.measure(*stacks)
        if figure.proportion:
            return Task(figure.name, own, int8, *self._disagreement(int8))
        return Task(figure.name, own, int8, 100 * (own - int8), None)

    def _disagreement(self, agreement: float) -> tuple[float, tuple[float, float]]:
        """Return the share of samples that differ, in points, with its interval: FP32 never differs from itself."""
        count = len(self._samples)
        low, high = paired_interval(round((1 - agreement) * count), 0, count)
        return 100 * (1 - agreement), (100 * low, 100 * high)

    def _stack(self, outputs: list[Arrays]) -> list[npt.NDArray[Any]]:
        names = [spec.name for spec in self._signature.outputs]
        return [np.concatenate([np.atleast_1d(each[name]) for each in outputs]) for name in names]
