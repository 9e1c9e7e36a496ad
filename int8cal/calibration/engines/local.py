"""One pass over the data on this machine: run the tapped model on each sample and count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.calibration.engines.counting import Counting, Tapped, group_size
from int8cal.calibration.engines.kept import Collected, Smallest
from int8cal.calibration.statistics import Statistics
from int8cal.data.positions import kept
from int8cal.errors import DataError, StatisticsError
from int8cal.graph.taps import Tap, tapped_model
from int8cal.runtime.batching import batch_size, run_each
from int8cal.runtime.blocked import open_taps
from int8cal.runtime.reuse import ReusedOutputs
from int8cal.runtime.sessions import Session, cpu_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature


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
        keep: How many samples to keep for judging corrections; which ones does not depend on their order.

    Raises:
        StatisticsError: NaN or infinity in a tensor; names the first such tensor in graph order, and the sample.
        DataError: There was no sample.
    """
    smallest = Smallest(keep)
    with Counting(taps, threads or cpu_count()) as counting:
        count = _stream(model, signature, taps, _fingerprinted(samples, smallest), counting, threads)
        if not count:
            raise DataError("yields no sample", do="give at least one")
        # the session and its buffers are gone by now: the result takes memory of its own
        statistics = Statistics(model_sha256, smallest.total, count, counting.take(), smallest.padding)
    return Collected(statistics, smallest.samples())


def _stream(
    model: onnx.ModelProto,
    signature: Signature,
    taps: tuple[Tap, ...],
    samples: Iterable[Sample],
    counting: Counting,
    threads: int,
) -> int:
    """Run and count all samples, group by group; returns how many there were."""
    inputs = {spec.name for spec in signature.inputs}
    opened = open_taps(model, taps, threads=threads)
    names = {opened.outputs[tap.tensor]: tap.tensor for tap in taps if tap.tensor in opened.outputs}
    session = ReusedOutputs(opened.session)
    count = 0
    group: list[tuple[Sample, dict[str, Tapped]]] = []
    fed = [tap.tensor for tap in taps if tap.tensor in inputs]
    rows, runs = max(batch_size(signature), 1), 1  # samples per inference, inferences per group
    for sample, outputs in run_each(session, signature, samples, list(names) or None):
        tapped = {name: Tapped(kept(name, sample.feed[name], sample), 1) for name in fed}
        for out, name in names.items():
            block = opened.blocks[name]
            # blocked layouts are those of images
            tapped[name] = Tapped(kept(name, outputs[out], sample) if block == 1 else outputs[out], block)
        group.append((sample, tapped))
        count += 1
        fits = max(group_size(tapped) // rows, 1)
        if count % rows == 0 and len(group) >= min(runs, fits) * rows:
            _count(counting, group, model, signature, threads)
            group.clear()
            runs = fits
            session.keep(runs)
    if group:
        _count(counting, group, model, signature, threads)
    return count


def _count(
    counting: Counting,
    group: list[tuple[Sample, dict[str, Tapped]]],
    model: onnx.ModelProto,
    signature: Signature,
    threads: int,
) -> None:
    """Count a group; an error names the first sample that has one, and its first tensor in graph order."""
    try:
        counting.add([(sample.origin, tapped) for sample, tapped in group])
    except StatisticsError as error:
        for sample, tapped in group:
            if not all(np.isfinite(each.values).all() for each in tapped.values()):
                raise _first_nonfinite(model, signature, sample, threads) or error from None
        raise


def _fingerprinted(samples: Iterable[Sample], smallest: Smallest) -> Iterator[Sample]:
    for sample in samples:
        smallest.add(sample)
        yield sample


def _first_nonfinite(
    model: onnx.ModelProto, signature: Signature, sample: Sample, threads: int
) -> StatisticsError | None:
    """Find the first tensor in graph order, an input or tapped or not, that is not finite for a sample."""
    for spec in signature.inputs:
        values = sample.feed.get(spec.name)
        if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            return _nonfinite(f"input {spec.name!r}", values, sample, tensor=spec.name)
    floats = {
        value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    } | {value.name for value in model.graph.output}
    order = [(node, name) for node in model.graph.node for name in node.output if name in floats]
    everything = tuple(Tap(name) for _, name in order)
    session = Session(tapped_model(model, everything), threads=threads, optimization="none")
    for _, outputs in run_each(session, signature, [sample]):
        for node, name in order:
            values = outputs.get(name)
            if values is None or values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            what = f"tensor {name!r} (output of {node.op_type} {node.name!r})"
            return _nonfinite(what, values, sample, tensor=name, node=node.name)
    return None


def _nonfinite(what: str, values: npt.NDArray[np.generic], sample: Sample, **fields: str) -> StatisticsError:
    return StatisticsError(
        f"{what} holds {'NaN' if np.isnan(values).any() else 'infinity'}",
        where=sample.origin,
        do="check the FP32 model on this sample, or leave the sample out",
        sample=sample.origin,
        **fields,
    )
