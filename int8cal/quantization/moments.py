"""Runs an int8 model over samples and takes the moments of what its layers read.

Inputs are those that the quantized layers in front make, for all layers from few passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

from int8cal.graph.index import Index, attribute
from int8cal.graph.signature import signature_of
from int8cal.graph.window import window_of
from int8cal.numerics.gram import (
    MomentSums,
    convolution_reads,
    convolution_rows,
    matrix_rows,
    some_of,
    transposed_reads,
)
from int8cal.protos import ModelView, view_of
from int8cal.runtime.batching import batch_size, run_samples
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from int8cal.numerics.gram import Float32, Int64, Moments, Reads
    from int8cal.runtime.batching import SampleLike

# The Grams of one pass take up to this; a single larger one has a pass of its own.
PASS_BYTES = 200_000_000
# A Gram of more columns is not formed: with the work on it, it would take more than 1.5 GB.
WIDEST = 6144
# Rows per layer over all samples: 8192, and more as long as products stay cheap.
_ROWS, _PRODUCTS = 8192, 2**34


@dataclass(frozen=True, eq=False)
class LayerInput:
    """What a layer of an int8 model reads.

    Attributes:
        node: Its name.
        codes: The tensor of its input's codes.
        zero_point: Of the codes.
        groups, size: Of its Gram.
        kernel: Sizes of its kernel; () for a matrix product.
    """

    node: str
    codes: str
    zero_point: int
    groups: int
    size: int
    kernel: tuple[int, ...]
    proto: onnx.NodeProto = field(repr=False)
    _known: dict[tuple[int, ...], Reads] = field(default_factory=dict, repr=False)

    @property
    def gram_bytes(self) -> int:
        """Size of its Gram."""
        return 8 * self.groups * self.size * self.size

    def rows(self, codes: npt.NDArray[Any], samples: int, limit: int) -> Float32:
        """Cut out what the layer reads: (groups, positions, K), code - zero point.

        Args:
            codes: Of one run.
            samples: Samples in the run.
            limit: Positions per sample.
        """
        if not self.kernel:
            split = codes.reshape(samples, -1, codes.shape[-1])
            return matrix_rows(split, self.zero_point, some_of(split.shape[1], limit))
        return convolution_rows(codes, self.zero_point, self._reads(codes.shape[2:], limit), self.groups)

    def positions(self, inputs: tuple[int, ...], outputs: int, limit: int) -> Int64:
        """Say at which output positions `rows` looks.

        Args:
            inputs: Spatial sizes of the input; () for a matrix product.
            outputs: Output positions per sample.
            limit: Positions per sample.
        """
        return self._reads(inputs, limit).positions if self.kernel else some_of(outputs, limit)

    def limit(self, samples: int) -> int:
        """Return how many positions to take of each of so many samples."""
        most = max(_ROWS, _PRODUCTS // (self.groups * self.size * self.size))
        return max(-(-most // max(samples, 1)), 1)

    def _reads(self, sizes: tuple[int, ...], limit: int) -> Reads:
        key = (*sizes, limit)
        if key not in self._known:
            if self.proto.op_type == "ConvTranspose":
                added = attribute(self.proto, "output_padding", None) or (0,) * len(sizes)
                window = window_of(self.proto, self.kernel, sizes)
                self._known[key] = transposed_reads(window, sizes, added, limit)
            else:
                self._known[key] = convolution_reads(window_of(self.proto, self.kernel, sizes), sizes, limit)
        return self._known[key]


def layer_inputs(model: onnx.ModelProto, nodes: Sequence[str]) -> tuple[dict[str, LayerInput], dict[str, str]]:
    """Find what layers of an int8 model read.

    Args:
        model: As `emit` made it.
        nodes: Names of the layers.

    Returns:
        The inputs by node in graph order, and why others have none.
    """
    index = Index(model)
    wanted = set(nodes)
    found: dict[str, LayerInput] = {}
    without: dict[str, str] = {}
    for node in index.graph.node:
        if node.name in wanted:
            entry = _input_of(index, node)
            if isinstance(entry, str):
                without[node.name] = entry
            else:
                found[node.name] = entry
    return found, without


def _input_of(index: Index, node: onnx.NodeProto) -> LayerInput | str:
    data, weight = (index.producer.get(name) for name in node.input[:2])
    if data is None or weight is None or not data.op_type == weight.op_type == "DequantizeLinear":
        return "its input is not behind a DequantizeLinear"
    dims = tuple(index.initializers[weight.input[0]].dims)
    point = int(index.constant(data.input[2]).reshape(-1)[0]) if len(data.input) > 2 and data.input[2] else 0
    group, kernel = int(attribute(node, "group", 1)), dims[2:]
    if node.op_type == "Conv":
        size = math.prod(dims[1:])
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
) -> Iterator[tuple[LayerInput, tuple[Moments, ...]]]:
    """Run splits of samples through an int8 model and give the moments of each layer's input, one per split.

    Args:
        model: The int8 model.
        inputs: Of its layers, in graph order.
        splits: Samples as the int8 model takes them.
        threads: Threads of the runtime; 0 for all CPUs.

    Yields:
        Layers in order; no more than PASS_BYTES of Grams are held, or one layer's.

    Raises:
        StatisticsError: A kernel failed.
    """
    for chunk in _chunks(inputs, len(splits)):
        session = Session(_tapped(model, [each.codes for each in chunk]), threads=threads)
        sums = {each.node: [MomentSums(each.groups, each.size) for _ in splits] for each in chunk}
        for number, samples in enumerate(splits):
            limits = {each.node: each.limit(len(samples)) for each in chunk}
            for count, values in _runs(session, model, samples):
                for each in chunk:
                    rows = each.rows(values[tap_name(each.codes)], count, limits[each.node])
                    sums[each.node][number].add(rows)
        del session
        for each in chunk:
            yield each, tuple(part.result() for part in sums.pop(each.node))


def tap_name(tensor: str) -> str:
    """Name the output that holds a tensor."""
    return f"{tensor}@moments"


def _runs(
    session: Session, model: onnx.ModelProto, samples: Sequence[SampleLike]
) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """Run samples: how many a run holds, and its outputs without the rows that only fill up a batch.

    `run_samples` cuts outputs of one row per sample; those of several, as a Gemm between Reshapes has, are cut here.
    """
    signature = signature_of(model)
    size = batch_size(signature)
    for group, values in run_samples(session, signature, samples):
        count = len(group)
        if count < size:
            values = {  # noqa: PLW2901 - a short last batch
                name: value[: len(value) // size * count] if len(value) != count and len(value) % size == 0 else value
                for name, value in values.items()
            }
        yield count, values


def _chunks(inputs: Sequence[LayerInput], splits: int) -> Iterator[list[LayerInput]]:
    chunk: list[LayerInput] = []
    used = 0
    for each in inputs:
        need = each.gram_bytes * splits
        if chunk and used + need > PASS_BYTES:
            yield chunk
            chunk, used = [], 0
        chunk.append(each)
        used += need
    if chunk:
        yield chunk


def _tapped(model: onnx.ModelProto, tensors: Sequence[str]) -> ModelView:
    """Copy a model with these tensors as its only outputs; what they do not need, the runtime drops."""
    result = view_of(model)
    graph = result.shell.graph
    del graph.output[:]
    for tensor in dict.fromkeys(tensors):
        # an Identity: a graph input cannot be an output, and the codes' own readers stay as they are
        graph.node.append(helper.make_node("Identity", [tensor], [tap_name(tensor)]))
        graph.output.append(onnx.ValueInfoProto(name=tap_name(tensor)))
    return result
