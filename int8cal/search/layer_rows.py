"""What layers of the float model read on a few samples: rows in the order of reduction, at some output positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from int8cal.graph.index import Index
from int8cal.graph.taps import Tap, tapped_model
from int8cal.graph.window import window_of
from int8cal.numerics.gram import convolution_reads, convolution_rows, matrix_rows, some_of
from int8cal.runtime.batching import run_samples
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from int8cal.graph.plan import Layer
    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import SampleLike

Float32 = npt.NDArray[np.float32]

_VALUES = 1 << 20  # of one layer, over all samples
_FEWEST, _MOST = 64, 512  # rows


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer's input.

    Attributes:
        values: float32 (groups, rows, K), columns in the order of `numerics.pairs.Rows`.
        channels: Input channel of each column, int64 (groups, K).
    """

    values: Float32
    channels: npt.NDArray[np.int64]


def read_rows(
    model: onnx.ModelProto,
    signature: Signature,
    layers: Sequence[Layer],
    samples: Sequence[SampleLike],
    *,
    threads: int = 0,
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
        StatisticsError: A kernel failed.
    """
    index = Index(model)
    tensors = tuple(dict.fromkeys(layer.input for layer in layers))
    fed = [name for name in tensors if name in index.inputs]
    session = Session(tapped_model(model, tuple(Tap(name) for name in tensors)), threads=threads)
    wanted = [name for name in tensors if name not in index.inputs]
    found: dict[str, list[Float32]] = {layer.node: [] for layer in layers}
    for group, outputs in run_samples(session, signature, samples, wanted or None):
        values = dict(outputs)
        for name in fed:
            values[name] = np.concatenate([sample.feed[name] for sample in group])
        for layer in layers:
            rows = _rows(index, index.nodes[layer.node], layer, values[layer.input], len(samples))
            if rows.size:
                found[layer.node].append(rows)
    return {
        layer.node: LayerRows(np.concatenate(found[layer.node], axis=1), _columns(layer, found[layer.node][0].shape[2]))
        for layer in layers
        if found[layer.node]
    }


def _rows(index: Index, node: onnx.NodeProto, layer: Layer, values: npt.NDArray[np.generic], samples: int) -> Float32:
    """Cut rows out of the input of one run; samples: of all runs, which share what is wanted."""
    dims = index.initializers[layer.weight].dims
    width = int(np.prod(dims[1:])) if layer.op_type == "Conv" else layer.channels
    wanted = int(np.clip(_VALUES // (width * layer.group), _FEWEST, _MOST))
    share = -(-wanted // max(samples, 1))
    if layer.op_type == "Conv":
        reads = convolution_reads(window_of(node, tuple(dims[2:]), values.shape[2:]), values.shape[2:], share)
        return convolution_rows(values, 0, reads, layer.group)
    # axis 0 need not be the batch here: rows of a product are rows, wherever they come from
    flat = values.reshape(1, -1, layer.channels)
    return matrix_rows(flat, 0, some_of(flat.shape[1], share))


def _columns(layer: Layer, width: int) -> npt.NDArray[np.int64]:
    per_group = layer.channels // layer.group
    within = np.arange(width, dtype=np.int64) % per_group
    return within[None] + per_group * np.arange(layer.group, dtype=np.int64)[:, None]
