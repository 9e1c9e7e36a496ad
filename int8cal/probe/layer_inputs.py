"""What layers read on samples: rows of the float model's inputs, second moments of the codes in an int8 model.

Rows are in the order of reduction, at some output positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.index import Index, attribute
from int8cal.graph.layers import window_of
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import in_chunks, tapped_model
from int8cal.numerics.gram import (
    MomentSums,
    centred,
    chosen_rows,
    convolution_reads,
    convolution_rows,
    transposed_reads,
)
from int8cal.progress import track
from int8cal.runtime.batching import batch_size, grouped_feed, run_samples
from int8cal.runtime.code_products import CodeSums, moments_bytes
from int8cal.runtime.sessions import SIDE_BY_SIDE, Session, cpu_count
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from int8cal.graph.layers import Layer
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array, Float32, Int64
    from int8cal.numerics.gram import Moments
    from int8cal.runtime.batching import Arrays, SampleLike


# What one pass sees takes up to this; what a single larger input takes has a pass of its own.
PASS_BYTES = 256_000_000
# A Gram of more columns is not formed: with the work on it, it would take more than 1.5 GB.
WIDEST = 6144
# Rows per layer over all samples for moments, and more as long as cutting them out and their products stay cheap. To
# say which of two roundings is better, half of them is enough.
ROWS, UNSEEN_ROWS = 4096, 2048
SMALL = 64  # columns whose products float64 adds up as fast as the integer kernel, which has one group at a time
LEAST_SAMPLES = 16  # that rows are taken of, however many each has
_CHEAP = 2**21  # products per row
_CUT_OUT = 2**12  # values per row, likewise
_VALUES = 1 << 20  # of one layer of the float model, over all samples
_FEWEST, _MOST = 64, 512  # and how many rows they may be


@dataclass(frozen=True, eq=False)
class LayerInput:
    """What a layer reads: codes in an int8 model, real values in a float model.

    Attributes:
        node: Its name.
        tensor: The codes of its input, or its input.
        zero_point: Of the codes; 0 for real values.
        groups, size: Of its Gram.
        kernel: Sizes of its kernel; () for a matrix product.
    """

    node: str
    tensor: str
    zero_point: int
    groups: int
    size: int
    kernel: tuple[int, ...]
    proto: onnx.NodeProto = field(repr=False)
    _known: dict[tuple[int, ...], Int64] = field(default_factory=dict, repr=False)

    @property
    def read(self) -> tuple[object, ...]:
        """What is the same for layers whose rows are."""
        return self.tensor, self.zero_point, self.groups, self.size, self.kernel, self._window

    @property
    def _window(self) -> tuple[bytes, ...]:
        if not self.kernel:
            return ()
        return self.proto.op_type.encode(), *sorted(each.SerializeToString() for each in self.proto.attribute)

    def rows(self, values: Array, samples: int, limit: int) -> Float32:
        """Cut out what the layer reads: (groups, positions, K), minus the zero point.

        Args:
            values: Of one run.
            samples: Samples in the run.
            limit: Positions per sample.
        """
        return centred(self.rows_of(self.codes(values, samples, limit), limit), self.zero_point)

    def codes(self, values: Array, samples: int, limit: int) -> Array:
        """Choose of a run's values what `rows_of` makes the same rows of: (positions, K) for a product, else all."""
        return values if self.kernel else chosen_rows(values.reshape(samples, -1, values.shape[-1]), limit)

    def rows_of(self, codes: Array, limit: int) -> Array:
        """Cut the rows out of what was chosen, with the same limit: (groups, positions, K) of codes."""
        if not self.kernel:
            return codes[None]
        return convolution_rows(codes, self.zero_point, self._reads(codes.shape[2:], limit), self.groups)

    def limit(self, samples: int, rows: int) -> int:
        """Return how many positions to take of each of so many samples, for so many rows at least where there are."""
        row = self.groups * self.size
        most = max(rows, min(rows * _CHEAP // (row * self.size), rows * _CUT_OUT // row))
        return max(-(-most // max(samples, 1)), 1)

    def _reads(self, sizes: tuple[int, ...], limit: int) -> Int64:
        key = (*sizes, limit)
        if key not in self._known:
            if self.proto.op_type == "ConvTranspose":
                added = attribute(self.proto, "output_padding", None) or (0,) * len(sizes)
                window = window_of(self.proto, self.kernel, sizes)
                self._known[key] = transposed_reads(window, sizes, added, limit)
            else:
                self._known[key] = convolution_reads(window_of(self.proto, self.kernel, sizes), sizes, limit)
        return self._known[key]


def layer_inputs(model: onnx.ModelProto, layers: Sequence[Layer]) -> tuple[dict[str, LayerInput], dict[str, str]]:
    """Find what layers of an int8 model read.

    Args:
        model: As `emit` made it.
        layers: Of its plan: groups that are joined in the int8 model have an input each.

    Returns:
        The inputs by node in graph order, and why others have none.
    """
    index = Index(model)
    wanted = {layer.node: layer for layer in layers}
    found: dict[str, LayerInput] = {}
    without: dict[str, str] = {}
    for node in index.graph.node:
        if node.name in wanted:
            entry = _input_of(index, node, wanted[node.name].group)
            if isinstance(entry, str):
                without[node.name] = entry
            else:
                found[node.name] = entry
    return found, without


def _input_of(index: Index, node: onnx.NodeProto, groups: int) -> LayerInput | str:
    data, weight = (index.producer.get(name) for name in node.input[:2])
    if data is None or weight is None or not data.op_type == weight.op_type == "DequantizeLinear":
        return "its input is not behind a DequantizeLinear"
    dims = tuple(index.initializers[weight.input[0]].dims)
    point = int(index.constant(data.input[2]).reshape(-1)[0]) if len(data.input) > 2 and data.input[2] else 0
    group, kernel = int(attribute(node, "group", 1)), dims[2:]
    if node.op_type == "Conv":
        size = math.prod(dims[1:]) * group // groups
        group = groups
    elif node.op_type == "ConvTranspose":
        if attribute(node, "output_shape", None) or attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return "its pads follow from its output's size"
        size = dims[0] // group * math.prod(kernel)
    else:
        if len(dims) != 2:
            return "its weights are a stack of matrices"
        size, kernel = dims[1] if attribute(node, "transB", 0) else dims[0], ()
    if size > WIDEST:
        return f"its {size} inputs are more than the {WIDEST} that memory is planned for"
    return LayerInput(node.name, data.input[0], point, group, size, kernel, node)


def take_moments(
    model: onnx.ModelProto,
    inputs: Sequence[LayerInput],
    splits: Sequence[Sequence[SampleLike]],
    *,
    threads: int = 0,
) -> Iterator[tuple[list[LayerInput], Callable[[], tuple[Moments, ...]]]]:
    """Run splits of samples through an int8 model and give the moments of what its layers read, one per split.

    Args:
        model: The int8 model.
        inputs: Of its layers.
        splits: Samples as the int8 model takes them: those to fit on, and unseen ones, of which fewer rows are taken.
        threads: Threads of the runtime; 0 for all CPUs.

    Yields:
        Layers that read the same rows, in the order of the first ones, and what computes the moments of these, once;
        no more than PASS_BYTES is held until then, or what one read takes.

    Raises:
        DataError: A kernel failed.
    """
    threads = threads or cpu_count()
    alike: dict[tuple[object, ...], list[LayerInput]] = {}
    for each in inputs:
        alike.setdefault(each.read, []).append(each)
    firsts = [layers[0] for layers in alike.values()]
    first = _first_codes(model, firsts, splits)
    splits = [_enough(firsts, first, samples, _rows(number)) for number, samples in enumerate(splits)]
    codes = {each.node: _bytes_of_codes(each, first[each.tensor], splits) for each in firsts if first}
    sums = {each.node: moments_bytes(each.groups, each.size) * len(splits) for each in firsts}
    kept = {node for node, size in codes.items() if size < sums[node]}
    held = sums | {node: codes[node] for node in kept}
    for chunk in in_chunks(alike.values(), lambda layers: held[layers[0].node], PASS_BYTES):
        firsts = [layers[0] for layers in chunk]
        tapped = tapped_model(model, [each.tensor for each in firsts])
        session = Session(tapped, threads=threads, at_once=SIDE_BY_SIDE)
        seen = [[_Seen(each, threads, each.node in kept) for _ in splits] for each in firsts]
        for number, samples in enumerate(splits):
            limits = [each.limit(len(samples), _rows(number)) for each in firsts]
            for count, values in _runs(session, model, samples):

                def show(part: tuple[_Seen, int], count: int = count, values: Arrays = values) -> None:
                    own, limit = part
                    own.see(values, count, limit)

                own = [each[number] for each in seen]
                for _ in in_parts(show, zip(own, limits, strict=True), threads):
                    pass
        del session
        for layers in chunk:
            yield layers, partial(_moments, seen.pop(0))


class _Seen:
    """What one layer reads of one split: sums, or the codes that they are made of, where these take less."""

    def __init__(self, source: LayerInput, threads: int, keeps_codes: bool) -> None:
        self._source, self._threads, self._keeps_codes = source, threads, keeps_codes
        self._codes: list[tuple[Array, int]] = []
        self._sums: CodeSums | MomentSums | None = None

    def see(self, values: Arrays, samples: int, limit: int) -> None:
        """Add a run of so many samples, up to `limit` positions of each."""
        codes = self._source.codes(values[self._source.tensor], samples, limit)
        if self._keeps_codes:
            # a copy: the session may write the next run's values to the same place
            self._codes.append((codes.copy(), limit))
        else:
            self._add(codes, limit)

    def moments(self) -> Moments:
        """Return the moments; what they are made of is gone then."""
        codes, self._codes = self._codes, []
        for each in codes:
            self._add(*each)
        codes.clear()
        sums = self._sums or MomentSums(self._source.groups, self._source.size)
        self._sums = None
        return sums.result()

    def _add(self, codes: Array, limit: int) -> None:
        each = self._source
        if self._sums is None:
            shape = each.groups, each.size, each.zero_point
            is_small = codes.dtype.itemsize > 1 or each.size <= SMALL
            self._sums = MomentSums(*shape) if is_small else CodeSums(*shape, self._threads)
        self._sums.add(each.rows_of(codes, limit))


def _moments(seen: Sequence[_Seen]) -> tuple[Moments, ...]:
    return tuple(part.moments() for part in seen)


def _first_codes(
    model: onnx.ModelProto, inputs: Sequence[LayerInput], splits: Sequence[Sequence[SampleLike]]
) -> Arrays:
    """Return what layers read on the first sample, by tensor; nothing where there is none."""
    if not inputs or not splits[0]:
        return {}
    session = Session(tapped_model(model, [each.tensor for each in inputs]), threads=1)
    ((_, values),) = _runs(session, model, splits[0][:1])
    return values


def _enough(
    inputs: Sequence[LayerInput], first: Arrays, samples: Sequence[SampleLike], rows: int
) -> Sequence[SampleLike]:
    """Cut samples to those that give every layer its rows, going by the first sample.

    Rows of a product differ as tokens do. What a convolution reads at places side by side is alike, so it is shown all.
    """
    if any(each.kernel for each in inputs) or not first:
        return samples
    fewest = min(max(math.prod(first[each.tensor].shape[:-1]), 1) for each in inputs)
    return samples[: max(-(-rows // fewest), LEAST_SAMPLES)]


def _bytes_of_codes(source: LayerInput, first: Array, splits: Sequence[Sequence[SampleLike]]) -> int:
    """Say what the codes that a layer reads on all samples take, going by those of the first one."""
    return sum(
        len(samples) * source.codes(first, 1, source.limit(len(samples), _rows(number))).nbytes
        for number, samples in enumerate(splits)
    )


def _rows(split: int) -> int:
    return UNSEEN_ROWS if split else ROWS


def _runs(session: Session, model: onnx.ModelProto, samples: Sequence[SampleLike]) -> Iterator[tuple[int, Arrays]]:
    """Run samples: how many a run holds, and its outputs without the rows that only fill up a batch.

    `run_samples` cuts outputs of one row per sample; those of several, as a Gemm between Reshapes has, are cut here.
    """
    signature = signature_of(model)
    size = batch_size(signature)
    runs = run_samples(session, signature, samples)
    for group, values in track(runs, -(-len(samples) // size), "what layers read"):
        count = len(group)
        if count < size:
            values = {  # noqa: PLW2901 - a short last batch
                name: value[: len(value) // size * count] if len(value) != count and len(value) % size == 0 else value
                for name, value in values.items()
            }
        yield count, grouped_feed(group) | values


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer's input.

    Attributes:
        values: float32 (groups, rows, K), columns in the order of `numerics.pairs.Rows`.
        channels: Input channel of each column, int64 (groups, K).
    """

    values: Float32
    channels: Int64


def read_rows(
    model: onnx.ModelProto,
    signature: Signature,
    layers: Sequence[Layer],
    samples: Sequence[SampleLike],
    *,
    threads: int,
) -> dict[str, LayerRows]:
    """Run the float model once per sample and keep some rows of what each layer reads.

    Args:
        model: The prepared model.
        signature: Of its inputs.
        layers: Conv, Gemm and MatMul layers with weights of two or more dimensions.
        samples: A few; all rows are held in memory.
        threads: Threads of the runtime.

    Returns:
        Rows by node; a layer that read nothing is not among them.

    Raises:
        DataError: A kernel failed.
    """
    index = Index(model)
    inputs = {layer.node: _float_input(index, layer) for layer in layers}
    tapped = tapped_model(model, [each.tensor for each in inputs.values()])
    session = Session(tapped, threads=threads, at_once=SIDE_BY_SIDE)
    found: dict[str, list[Float32]] = {node: [] for node in inputs}
    for group, outputs in run_samples(session, signature, samples):
        values = grouped_feed(group) | outputs
        for node, each in inputs.items():
            wanted = int(np.clip(_VALUES // (each.size * each.groups), _FEWEST, _MOST))
            share = -(-wanted // len(samples))
            # axis 0 need not be the batch here: rows of a product are rows, wherever they come from
            rows = each.rows(values[each.tensor], 1, share)
            if rows.size:
                found[node].append(rows)
    return {
        layer.node: LayerRows(np.concatenate(found[layer.node], axis=1), _columns(layer, found[layer.node][0].shape[2]))
        for layer in layers
        if found[layer.node]
    }


def _float_input(index: Index, layer: Layer) -> LayerInput:
    node, dims = index.nodes[layer.node], tuple(index.initializers[layer.weight].dims)
    if layer.op_type == "Conv":
        return LayerInput(layer.node, layer.input, 0, layer.group, math.prod(dims[1:]), dims[2:], node)
    return LayerInput(layer.node, layer.input, 0, layer.group, layer.channels, (), node)


def _columns(layer: Layer, width: int) -> Int64:
    per_group = layer.channels // layer.group
    within = np.arange(width, dtype=np.int64) % per_group
    return within[None] + per_group * np.arange(layer.group, dtype=np.int64)[:, None]
