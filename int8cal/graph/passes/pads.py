"""Pads of some axes are Pads of all: onnxruntime, when it moves a Transpose, takes pads for those of all axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite
from int8cal.graph.ops import is_standard
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index

_PADS, _AXES = 1, 3  # their places among the inputs


def whole_pads(index: Index, names: Names) -> Iterator[Rewrite]:
    """Write the pads of every axis where a Pad names its axes. Must not touch a tensor of unknown rank.

    Args:
        index: Of the graph, shapes inferred.
        names: Of the model.
    """
    for node in index.graph.node:
        if node.op_type != "Pad" or not is_standard(node) or len(node.input) <= _AXES or not node.input[_AXES]:
            continue
        rank = index.rank(node.input[0])
        if rank is None or not all(index.is_constant(node.input[slot]) for slot in (_PADS, _AXES)):
            continue
        axes = index.constant(node.input[_AXES]).astype(np.int64) % rank
        pads = np.zeros((2, rank), np.int64)
        pads[:, axes] = index.constant(node.input[_PADS]).reshape(2, -1)
        name = names.beside(str(node.input[_PADS]), "whole")
        result = copied(node)
        del result.input[_AXES]
        result.input[_PADS] = name
        yield Rewrite({node.name: (result,)}, {name: pads.reshape(-1)})
