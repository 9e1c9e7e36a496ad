"""A shift or positive factor per channel in front of a MaxPool goes behind it, where it has a quarter of the values.

The largest of x + c is the largest of x, plus c, to the bit. Many Keras networks have a BatchNormalization behind a
Relu, and a pool behind that. Its factor goes into the layer; in front of the pool, the shift would keep this in float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite
from int8cal.graph.ops import is_standard
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.numerics import Array


def shifts_behind_pools(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find Adds, Muls and BatchNormalizations that can go behind a MaxPool.

    Must not touch values that anything else reads, or that are given out; operands that differ along height and width;
    factors that are not positive; pools that tell where they found their values.
    """
    for pool in index.graph.node:
        if pool.op_type != "MaxPool" or not is_standard(pool) or any(pool.output[1:]):
            continue
        node = index.producer.get(pool.input[0])
        if node is None or index.only_reader(pool.input[0]) is None:
            continue
        slot = _monotone(index, node)
        if slot is None:
            continue
        first, last, output = copied(pool), copied(node), str(pool.output[0])
        pooled = names.beside(output, "pooled")
        first.input[0], first.output[0] = node.input[slot], pooled
        last.input[slot], last.output[0] = pooled, output
        yield Rewrite({node.name: (), pool.name: (first, last)}, like={pooled: output})


def _monotone(index: Index, node: onnx.NodeProto) -> int | None:
    """Return the input of which a node's output is, channel by channel, a rising line; None where it is none."""
    if not is_standard(node) or len(list(filter(None, node.output))) != 1:
        return None
    if node.op_type == "BatchNormalization":
        if index.is_constant(node.input[0]) or not all(index.is_float_constant(name) for name in node.input[1:]):
            return None
        factors: Array = index.constant(node.input[1])
        return 0 if (factors > 0.0).all() else None
    if node.op_type not in ("Add", "Mul"):
        return None
    constant = [slot for slot, name in enumerate(node.input) if index.is_float_constant(name)]
    rank = index.rank(node.output[0])
    if len(constant) != 1 or rank is None or index.rank(node.input[1 - constant[0]]) != rank:
        return None
    value: Array = index.constant(node.input[constant[0]])
    dims = (1,) * (rank - value.ndim) + value.shape
    if len(dims) != rank or dims[0] != 1 or any(size != 1 for size in dims[2:]) or not np.isfinite(value).all():
        return None
    return 1 - constant[0] if node.op_type == "Add" or (value > 0.0).all() else None
