"""What a pass over the data hands on, and two engines that do it: one counts, one reads statistics from a file."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.calibration.collector import Collectors, TapValues, group_size, nonfinite
from int8cal.calibration.statistics import FINGERPRINT_MODULUS, Statistics
from int8cal.data.padding import kept, tally
from int8cal.errors import DataError, StatisticsError
from int8cal.graph.taps import Tap, tapped_model
from int8cal.numerics import exactsum, kernels
from int8cal.numerics.affine import U8
from int8cal.numerics.kl import divergences
from int8cal.numerics.loglinear import BINS, SHIFT, histogram
from int8cal.numerics.mse import mse_range
from int8cal.runtime.batching import ReusedOutputs, batch_size, run_each
from int8cal.runtime.blocked import open_taps
from int8cal.runtime.sessions import Session, cpu_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import Arrays

KEPT_BYTES = 128_000_000
KEPT_ALWAYS = 8
RECORDED_BYTES = 64_000_000


@dataclass(frozen=True)
class Collected:
    """The statistics, and the samples that were kept to fit and to score on: the smallest fingerprints, in their order.

    Attributes:
        remark: What the user should know of the two, "" for nothing.
        variation: How much the ranges that single samples need differ: standard deviation relative to the mean, the
            median over tensors. None where it was not counted.
        outputs: Of the model, by fingerprint of the sample: of the first samples whose outputs take RECORDED_BYTES;
            none where they were not asked for.
    """

    statistics: Statistics
    kept: tuple[Sample, ...]
    remark: str = ""
    variation: float | None = None
    outputs: Mapping[int, Arrays] = field(default_factory=dict)


class KeptSamples:
    """Keeps the samples with the smallest fingerprints, the sum of all fingerprints, and what padding there was.

    At most `size` of them, and no more than fit into KEPT_BYTES beyond the first KEPT_ALWAYS.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Sample]] = []
        self._bytes = 0
        # the smallest fingerprint that had to go for its size: larger ones are not kept either, whatever their order
        self._least_gone: int | None = None
        self.total = 0
        self.seen = 0
        self.padding: tuple[Padding, ...] = ()

    def add(self, sample: Sample) -> None:
        """Take part in the choice."""
        mark = sample.fingerprint
        self.total = (self.total + (mark if sample.mark is None else sample.mark)) % FINGERPRINT_MODULUS
        self.seen += 1
        if sample.padding:
            self.padding = tally((*self.padding, *sample.padding))
        if not self._size or (self._least_gone is not None and mark >= self._least_gone):
            return
        heapq.heappush(self._heap, (-mark, self.seen, sample))
        self._bytes += _bytes_of(sample)
        while len(self._heap) > self._size or (self._bytes > KEPT_BYTES and len(self._heap) > KEPT_ALWAYS):
            for_size = len(self._heap) <= self._size
            gone, _, largest = heapq.heappop(self._heap)
            self._bytes -= _bytes_of(largest)
            if for_size:
                self._least_gone = -gone

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, each of which takes part in the choice."""
        for sample in samples:
            self.add(sample)
            yield sample

    def samples(self) -> tuple[Sample, ...]:
        """Return the kept samples by fingerprint."""
        return tuple(sample for _, _, sample in sorted(self._heap, key=lambda entry: -entry[0]))


def _bytes_of(sample: Sample) -> int:
    return sum(value.nbytes for value in sample.feed.values())


def collect(
    model: onnx.ModelProto,
    signature: Signature,
    taps: tuple[Tap, ...],
    samples: Iterable[Sample],
    *,
    model_sha256: str,
    threads: int = 0,
    keep: int = 0,
) -> Collected:
    """Count every tap over all samples.

    Args:
        model: The prepared model.
        signature: The user's model's signature.
        taps: What to observe.
        samples: Streamed once; at most one group and the kept ones are held.
        model_sha256: Hash of the FP32 file, stored in the statistics.
        threads: Intra-op threads; 0 for one per CPU.
        keep: How many samples to keep to fit and to score on; which ones does not depend on their order.

    Raises:
        StatisticsError: NaN or infinity in a tensor; names the first such tensor in graph order, and the sample.
        DataError: There was no sample.
    """
    counting = Counting(model, signature, taps, model_sha256=model_sha256, threads=threads, keep=keep)
    counting.extend(samples)
    return counting.result()


class Counting:
    """Counts every tap over samples that come in parts: a session is open only while a part is; see `collect`."""

    def __init__(
        self,
        model: onnx.ModelProto,
        signature: Signature,
        taps: tuple[Tap, ...],
        *,
        model_sha256: str,
        threads: int = 0,
        keep: int = 0,
        record: bool = False,
    ) -> None:
        self._model, self._signature, self._taps = model, signature, taps
        # codes, counts and indices may have other shapes each time: outputs in memory of the caller's are floats alone
        floats = {each.type.tensor_type.elem_type for each in model.graph.output} == {onnx.TensorProto.FLOAT}
        own = {value.name for value in model.graph.input}
        shown = tuple(value.name for value in model.graph.output)
        alone = batch_size(signature) == 1 and not own & {*shown}
        self._recorded: tuple[str, ...] = shown if record and floats and alone else ()
        self._outputs: dict[int, Arrays] = {}
        self._room = RECORDED_BYTES
        self._sha256, self._threads = model_sha256, threads
        self._keeping = KeptSamples(keep)
        self._collectors = Collectors(taps, threads or cpu_count())

    @property
    def seen(self) -> int:
        """Number of samples so far."""
        return self._keeping.seen

    def extend(self, samples: Iterable[Sample]) -> None:
        """Run and count samples, group by group.

        Raises:
            StatisticsError: As `collect`.
        """
        with self._collectors:
            self._stream(self._keeping.watch(samples))

    def result(self) -> Collected:
        """Return what was counted, and give the tables up.

        Raises:
            DataError: There was no sample.
        """
        keeping = self._keeping
        if not keeping.seen:
            raise DataError("yields no sample", do="give at least one")
        variation = self._collectors.variation
        with self._collectors:
            counted = self._collectors.take()
        statistics = Statistics(self._sha256, keeping.total, keeping.seen, counted, keeping.padding)
        return Collected(statistics, keeping.samples(), variation=variation, outputs=self._outputs)

    def _stream(self, samples: Iterable[Sample]) -> None:
        model, signature, taps, threads = self._model, self._signature, self._taps, self._threads
        inputs = {spec.name for spec in signature.inputs}
        opened = open_taps(model, taps, threads=threads, plain=self._recorded)
        names = {opened.outputs[tap.tensor]: tap.tensor for tap in taps if tap.tensor in opened.outputs}
        session = ReusedOutputs(opened.session)
        group: list[tuple[Sample, dict[str, TapValues]]] = []
        fed = [tap.tensor for tap in taps if tap.tensor in inputs]
        rows, runs = max(batch_size(signature), 1), 1  # samples per inference, inferences per group
        wanted = [*dict.fromkeys((*names, *self._recorded))]
        for count, (sample, outputs) in enumerate(run_each(session, signature, samples, wanted or None), 1):
            self._record(sample, outputs)
            tapped = {name: TapValues(kept(name, sample.feed[name], sample), 1) for name in fed}
            for out, name in names.items():
                block = opened.blocks[name]
                # blocked layouts are those of images
                tapped[name] = TapValues(kept(name, outputs[out], sample) if block == 1 else outputs[out], block)
            group.append((sample, tapped))
            fits = max(group_size(tapped) // rows, 1)
            if count % rows == 0 and len(group) >= min(runs, fits) * rows:
                _count(self._collectors, group, model, signature, threads)
                group.clear()
                runs = fits
                session.keep(runs)
        if group:
            _count(self._collectors, group, model, signature, threads)

    def _record(self, sample: Sample, outputs: Arrays) -> None:
        found = {name: np.array(outputs[name]) for name in self._recorded}
        self._room -= sum(value.nbytes for value in found.values())
        if self._room < 0:  # for good: which samples are recorded depends on their order alone
            self._recorded = ()
        elif found:
            self._outputs[sample.fingerprint] = found


def uncounted(taps: tuple[Tap, ...], model_sha256: str) -> Collected:
    """Return what there is of a graph that no sample ran.

    Args:
        taps: What would be observed.
        model_sha256: Hash of the FP32 file.
    """
    with Collectors(taps, 1) as collectors:
        return Collected(Statistics(model_sha256, 0, 0, collectors.take()), ())


def _count(
    collectors: Collectors,
    group: list[tuple[Sample, dict[str, TapValues]]],
    model: onnx.ModelProto,
    signature: Signature,
    threads: int,
) -> None:
    """Count a group; an error names the first sample that has one, and its first tensor in graph order."""
    try:
        collectors.add([(sample.origin, tapped) for sample, tapped in group])
    except StatisticsError as error:
        for sample, tapped in group:
            if not all(np.isfinite(each.values).all() for each in tapped.values()):
                raise _first_nonfinite(model, signature, sample, threads) or error from None
        raise


def _first_nonfinite(
    model: onnx.ModelProto, signature: Signature, sample: Sample, threads: int
) -> StatisticsError | None:
    """Find the first tensor in graph order, an input or tapped or not, that is not finite for a sample."""
    for spec in signature.inputs:
        values = sample.feed.get(spec.name)
        if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            return nonfinite(f"input {spec.name!r}", values, sample.origin, tensor=spec.name)
    floats = {
        value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    } | {value.name for value in model.graph.output}
    order = [(node, name) for node in model.graph.node for name in node.output if name in floats]
    session = Session(tapped_model(model, [name for _, name in order]), threads=threads, optimization="none")
    for _, outputs in run_each(session, signature, [sample]):
        for node, name in order:
            values = outputs.get(name)
            if values is None or values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            what = f"tensor {name!r} (output of {node.op_type} {node.name!r})"
            return nonfinite(what, values, sample.origin, tensor=name, node=node.name)
    return None


class Stored:
    """Takes the statistics of a file, called as `Counting` is: samples are read for those to keep, and nothing is run.

    Args:
        statistics: Of the main graph or a body; None where the file holds none.
        where: The file, for messages.
        body: Path of the body of an If, Loop or Scan whose statistics they are; "" for the main graph's.
        taps: What the job quantizes.
        model_sha256: Of the job's FP32 model.
        keep: How many samples to keep, the same ones that `collect` would keep.
    """

    def __init__(
        self,
        statistics: Statistics | None,
        where: str,
        body: str,
        taps: tuple[Tap, ...],
        *,
        model_sha256: str,
        keep: int = 0,
    ) -> None:
        self._statistics, self._where, self._body = statistics, where, body
        self._taps, self._sha256 = taps, model_sha256
        self._keeping = KeptSamples(keep)

    @property
    def seen(self) -> int:
        """Number of samples so far, or in the file."""
        return self._keeping.seen or (0 if self._statistics is None else self._statistics.samples)

    def extend(self, samples: Iterable[Sample]) -> None:
        """Choose from samples those to keep.

        Raises:
            StatisticsError: As `result`, before any sample is read.
        """
        self._fitting()
        for sample in samples:
            self._keeping.add(sample)

    def result(self) -> Collected:
        """Return the file's statistics and the samples that were kept.

        Raises:
            StatisticsError: They are of another model, or lack a tensor or the body.
            DataError: There is no sample.
        """
        statistics, keeping = self._fitting(), self._keeping
        if not keeping.seen and not self._body:
            raise DataError("yields no sample", do="give at least one")
        tally((*statistics.padding, *keeping.padding))  # refuses statistics that count what is trimmed now
        remark = f"ranges follow {statistics.samples} samples of {self._where}, which are not the data's {keeping.seen}"
        return Collected(statistics, keeping.samples(), "" if keeping.total == statistics.fingerprint else remark)

    def _fitting(self) -> Statistics:
        if self._statistics is None:
            raise StatisticsError(
                f"holds nothing of {self._body}, which the data run",
                where=self._where,
                do="calibrate shards whose samples run it too, or leave the statistics out",
            )
        _require_fitting(self._statistics, self._taps, self._sha256, self._where)
        return self._statistics


def _require_fitting(statistics: Statistics, taps: tuple[Tap, ...], model_sha256: str, where: str) -> None:
    if statistics.model_sha256 != model_sha256:
        raise StatisticsError(
            f"is of another model (sha256 {statistics.model_sha256[:12]}…, this one is {model_sha256[:12]}…)",
            where=where,
            do="give statistics of this model, or leave them out to calibrate on the data",
        )
    for tap in taps:
        held = statistics.tensors.get(tap.tensor)
        channels = 0 if held is None or held.channels is None else len(held.channels.low)
        lacks = "no tensor" if held is None else f"{channels} channels, not {tap.channels}, of"
        if held is None or (tap.channel_axis is not None and channels != tap.channels):
            raise StatisticsError(
                f"holds {lacks} {tap.tensor!r}, which this job quantizes",
                where=where,
                do="calibrate the shards with the same version, --include and --exclude",
                tensor=tap.tensor,
            )


def warm_up() -> None:
    """Load the loops of calibration: 0.1 to 0.2 s, or some seconds of compiling, once per installation."""
    nothing, sums = np.zeros(0, np.uint32), exactsum.zeros(0)
    table, low, high = np.zeros(kernels.FINE_SIZE, np.uint32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernels.observe(np.ones((1, 1, 1, 1), np.float32), table, nothing, low, high, sums, sums)
    kernels.gather(table.reshape(1, -1, 1), BINS, (0, 1))
    half = np.array([0x3F000000 >> SHIFT], np.int64)  # the bin of 0.5
    mse_range(histogram(half, np.ones(1, np.int64), 0, (0.5, 0.5)), U8, symmetric=False)
    divergences(np.ones(300, np.int64), 128)
