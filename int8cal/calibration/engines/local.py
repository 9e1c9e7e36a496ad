"""What a pass over the data hands on, and the engine that counts here, in this process."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

from int8cal.calibration.collector import Collectors, TapValues, group_size, nonfinite
from int8cal.calibration.statistics import FINGERPRINT_MODULUS, Statistics
from int8cal.data.padding import kept, tally
from int8cal.errors import DataError, NonFiniteError, StatisticsError
from int8cal.graph.dims import named_dims
from int8cal.graph.index import Index
from int8cal.graph.taps import Tap, tapped_model
from int8cal.numerics import exactsum, kernels
from int8cal.numerics.affine import U8
from int8cal.numerics.kl import divergences
from int8cal.numerics.loglinear import BINS, SHIFT, histogram
from int8cal.numerics.mse import mse_range
from int8cal.runtime.batching import ReusedOutputs, batch_size, run_each
from int8cal.runtime.blocked import open_taps
from int8cal.runtime.memory import release
from int8cal.runtime.sessions import SIDE_BY_SIDE, Session, cpu_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import Arrays
    from int8cal.runtime.blocked import TapSession

KEPT_BYTES = 128_000_000
KEPT_ALWAYS = 8
RECORDED_BYTES = 64_000_000
# Of what is tapped of samples that run side by side; and of one of them, below which a run takes less than threads do.
BESIDE_BYTES, LEAST_BESIDE = 160_000_000, 500_000
HOLDING_BYTES = 600  # what Python takes to hold one sample's outputs, besides their values


@dataclass(frozen=True)
class Collected:
    """The statistics, and the samples that were kept to fit and to score on: the smallest fingerprints, in their order.

    Attributes:
        remark: What the user should know of the two, "" for nothing.
        outputs: Of the model, by fingerprint of the sample: of the first samples whose outputs take RECORDED_BYTES;
            none where they were not asked for.
    """

    statistics: Statistics
    kept: tuple[Sample, ...]
    remark: str = ""
    outputs: Mapping[int, Arrays] = field(default_factory=dict)


Position = tuple[int, ...]


class _Kept(NamedTuple):
    """A sample in a heap: the first one is the first to go."""

    order: int  # the fingerprint, negative
    at: Position
    size: int  # bytes
    sample: Sample | None


class KeptSamples:
    """Keeps the samples with the smallest fingerprints, the sum of all fingerprints, and what padding there was.

    At most `size` of them, and no more than fit into KEPT_BYTES beyond the first KEPT_ALWAYS. Choices of parts of the
    data add to the choice of all, whatever the parts and their order.

    Args:
        size: How many.
        hold: Whether the samples themselves are held; else only where they are.
    """

    def __init__(self, size: int, *, hold: bool = True) -> None:
        self._size, self._hold = size, hold
        self._heap: list[_Kept] = []
        self._bytes = 0
        # the first one that had to go for its size: later ones are not kept either, whatever their order
        self.first_gone: tuple[int, Position] | None = None
        self.total = 0
        self.seen = 0
        self.padding: tuple[Padding, ...] = ()

    def add(self, sample: Sample, at: Position | None = None) -> None:
        """Take part in the choice.

        Args:
            sample: The next one.
            at: Where it is in the data, which decides between equal samples; None for the number of those before it.
        """
        mark = sample.fingerprint
        self.total = (self.total + (mark if sample.mark is None else sample.mark)) % FINGERPRINT_MODULUS
        if sample.padding:
            self.padding = tally((*self.padding, *sample.padding))
        where = (self.seen,) if at is None else at
        self.seen += 1
        self._choose(_Kept(-mark, where, _bytes_of(sample), sample if self._hold else None))

    def __add__(self, other: KeptSamples) -> KeptSamples:
        both = KeptSamples(self._size, hold=self._hold)
        both.total = (self.total + other.total) % FINGERPRINT_MODULUS
        both.seen = self.seen + other.seen
        both.padding = tally((*self.padding, *other.padding))
        # what had to go for its size in one part has to go for the whole
        both.first_gone = max((each.first_gone for each in (self, other) if each.first_gone), default=None)
        for each in (*self._heap, *other._heap):
            both._choose(each)
        return both

    def behind(self, place: int) -> KeptSamples:
        """Return the choice as that of a part which is at this place of the data: in front of all of its positions."""
        moved = KeptSamples(self._size, hold=self._hold)
        moved.__dict__ |= self.__dict__
        moved._heap = [each._replace(at=(place, *each.at)) for each in self._heap]
        moved.first_gone = self.first_gone and (self.first_gone[0], (place, *self.first_gone[1]))
        return moved

    def _choose(self, one: _Kept) -> None:
        if not self._size or (self.first_gone is not None and one[:2] <= self.first_gone):
            return
        heapq.heappush(self._heap, one)
        self._bytes += one.size
        while len(self._heap) > self._size or (self._bytes > KEPT_BYTES and len(self._heap) > KEPT_ALWAYS):
            for_size = len(self._heap) <= self._size
            gone = self._pop()
            if for_size:
                self.first_gone = gone[:2]

    def _pop(self) -> _Kept:
        gone = heapq.heappop(self._heap)
        self._bytes -= gone.size
        return gone

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, each of which takes part in the choice."""
        for sample in samples:
            self.add(sample)
            yield sample

    def samples(self) -> tuple[Sample, ...]:
        """Return the kept samples by fingerprint."""
        return tuple(each.sample for each in sorted(self._heap, reverse=True) if each.sample is not None)

    def positions(self) -> tuple[Position, ...]:
        """Return where the kept samples are, in the order of `samples`."""
        return tuple(each.at for each in sorted(self._heap, reverse=True))

    def marks(self) -> tuple[int, ...]:
        """Return the fingerprints of the kept samples, in the order of `samples`."""
        return tuple(-each.order for each in sorted(self._heap, reverse=True))


@dataclass(frozen=True)
class Counted:
    """What was counted over some samples; adds to what was counted over others.

    Attributes:
        statistics: Of every tap.
        kept: The choice among the samples.
    """

    statistics: Statistics
    kept: KeptSamples

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.statistics + other.statistics, self.kept + other.kept)

    def collected(self) -> Collected:
        """Return what a pass that counted this hands on, which has held the samples that it kept."""
        return Collected(self.statistics, self.kept.samples())


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
    """Counts every tap over samples that come in parts; see `collect`.

    With `hold`, the session stays open between the parts.
    """

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
        hold: bool = False,
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
        self._keep, self._hold = keep, hold
        self._opened: TapSession | None = None
        self._begin()

    def _begin(self) -> None:
        self._keeping = KeptSamples(self._keep)
        self._collectors = Collectors(self._taps, self._threads or cpu_count())

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
        if not self._keeping.seen:
            raise DataError("yields no sample", do="give at least one")
        return self.collected(self.take())

    def collected(self, counted: Counted) -> Collected:
        """Make what a pass hands on of what was counted in all of its parts, before this one too."""
        release()  # of the last run's tensors, before int8 models are built
        return replace(counted.collected(), outputs=self._outputs)

    def take(self) -> Counted:
        """Return what was counted since the last time, and begin anew."""
        keeping = self._keeping
        with self._collectors:
            counted = self._collectors.take()
        self._begin()
        return Counted(Statistics(self._sha256, keeping.total, keeping.seen, counted, keeping.padding), keeping)

    def _stream(self, samples: Iterable[Sample]) -> None:
        model, signature, taps, threads = self._model, self._signature, self._taps, self._threads
        inputs = {spec.name for spec in signature.inputs}
        left = iter(samples)
        first = next(left, None)
        if first is None:
            return
        opened = self._opened or open_taps(
            model, taps, threads=threads, at_once=_at_once(model, signature, taps, first), plain=self._recorded
        )
        self._opened = opened if self._hold else None
        names = {opened.outputs[tap.tensor]: tap.tensor for tap in taps if tap.tensor in opened.outputs}
        session = ReusedOutputs(opened.session)
        fed = [tap.tensor for tap in taps if tap.tensor in inputs]
        rows, runs = max(batch_size(signature), 1), 1  # samples per inference, inferences per group
        wanted = [*dict.fromkeys((*names, *self._recorded))]
        left, seen = chain(iter((first,)), left), _bytes_of(first)
        del first  # nothing but the group is held: an iterator that has ended holds nothing

        def counted(part: list[Sample]) -> tuple[int, int]:
            # how many inferences the next group may have, and the size of the sample that says so
            group: list[tuple[Sample, dict[str, TapValues]]] = []
            # to its end before it is counted: nothing runs beside counting, and nothing is overwritten
            for sample, outputs in run_each(session, signature, part, wanted or None):
                self._record(sample, outputs)
                tapped = {name: TapValues(kept(name, sample.feed[name], sample), 1) for name in fed}
                for out, name in names.items():
                    block = opened.blocks[name]
                    # blocked layouts are those of images
                    tapped[name] = TapValues(kept(name, outputs[out], sample) if block == 1 else outputs[out], block)
                group.append((sample, tapped))
            _count(self._collectors, group, model, signature, threads)
            fits = max(group_size(group[-1][1]) // rows, 1)
            return max(fits - fits % session.at_once, session.at_once), _bytes_of(part[-1])

        while part := _part(left, rows, runs, session.at_once, seen):
            runs, seen = counted(part)
            session.keep(runs)
            del part

    def _record(self, sample: Sample, outputs: Arrays) -> None:
        found = {name: np.array(outputs[name]) for name in self._recorded}
        self._room -= HOLDING_BYTES + sum(value.nbytes for value in found.values())
        if self._room < 0:  # for good: which samples are recorded depends on their order alone
            self._recorded = ()
        elif found:
            self._outputs[sample.fingerprint] = found


def _part(samples: Iterator[Sample], rows: int, runs: int, at_once: int, seen: int) -> list[Sample]:
    """Take the samples of a group: of so many inferences, and of no more than run side by side where one is larger.

    Args:
        samples: What is left of them.
        rows: Samples per inference.
        runs: How many inferences may be held of a sample that has `seen` bytes.
        at_once: How many run side by side.
        seen: Size of the sample that `runs` was told by.
    """
    part: list[Sample] = []
    for sample in samples:
        part.append(sample)
        most = runs if _bytes_of(sample) <= seen else at_once
        if len(part) % rows == 0 and len(part) >= min(runs, most) * rows:
            break
    return part


def _at_once(model: onnx.ModelProto, signature: Signature, taps: Sequence[Tap], sample: Sample) -> int:
    """Say how many samples to run side by side: what they give has to be held at the same time.

    The first sample must not decide what others have to agree with: kernels may add up otherwise with another number of
    threads. So all sizes but the batch have to be the model's own.
    """
    inner = slice(0 if signature.batch is None else 1, None)
    if not all(isinstance(size, int) for spec in signature.inputs for size in (spec.shape or ("?",) * 2)[inner]):
        return 1
    dims = named_dims(model, {name: value.shape for name, value in sample.feed.items()})
    tapped = [dims.get(tap.tensor, ("unknown",)) for tap in taps]
    if not all(isinstance(size, int) for sizes in tapped for size in sizes):
        return 1
    held = 4 * sum(math.prod(size for size in sizes if isinstance(size, int)) for sizes in tapped)
    return SIDE_BY_SIDE if LEAST_BESIDE <= held <= BESIDE_BYTES // SIDE_BY_SIDE else 1


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
    """Find the first tensor in graph order, an input or tapped or not, that is not finite for a sample.

    A constant of the model that holds NaN is named in its place: no sample is to blame for that.
    """
    for spec in signature.inputs:
        values = sample.feed.get(spec.name)
        if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            return nonfinite(f"input {spec.name!r}", values, sample.origin, tensor=spec.name)
    floats = {
        value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    } | {value.name for value in model.graph.output}
    order = [(node, name) for node in model.graph.node for name in node.output if name in floats]
    index = Index(model)
    session = Session(tapped_model(model, [name for _, name in order]), threads=threads, optimization="none")
    for _, outputs in run_each(session, signature, [sample]):
        for node, name in order:
            values = outputs.get(name)
            if values is None or values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            for constant in filter(index.is_float_constant, node.input):
                if np.isnan(index.constant(constant)).any():
                    what = f"weight {constant!r} of {node.op_type} {node.name!r} holds NaN"
                    graph = model.graph.name
                    raise NonFiniteError(what, do="repair it", tensor=constant, node=node.name, graph=graph)
            what = f"tensor {name!r} (output of {node.op_type} {node.name!r})"
            return nonfinite(what, values, sample.origin, tensor=name, node=node.name)
    return None


def warm_up() -> None:
    """Load the loops of calibration: 0.1 to 0.2 s, or some seconds of compiling, once per installation."""
    nothing, sums = np.zeros(0, np.uint32), exactsum.zeros(0)
    table, low, high = np.zeros(kernels.FINE_SIZE, np.uint32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernels.observe(np.ones((1, 1, 1, 1), np.float32), table, nothing, low, high, sums, sums)
    kernels.gather(table.reshape(1, -1, 1), BINS, (0, 1))
    half = np.array([0x3F000000 >> SHIFT], np.int64)  # the bin of 0.5
    mse_range(histogram(half, np.ones(1, np.int64), 0, (0.5, 0.5)), U8, symmetric=False)
    divergences(np.ones(300, np.int64), 128)
