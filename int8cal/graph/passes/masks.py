"""Masks of scores that are lower than needed for nothing, and not low enough for the CPU, become lower.

exp(-100) is a denormal float, 4e-44: too small to change any sum, and products of such numbers run ten times slower on
x86 CPUs. Swin's windows are masked by -100, so that its products of probabilities and values take a third of its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import Rewrite
from int8cal.graph.ops import is_standard
from int8cal.graph.scopes import MOVING
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.numerics import Array, Bools

# exp is denormal from -87.4 to -104: a mask in these bounds, beside scores some ten apart, ends there
_HIGHEST, _LOWEST = -80.0, -200.0
# exp is 0 of scores 140 above it; and a row that is masked as a whole keeps its differences to 1.5e-5
_DEEP = np.float32(-250.0)
_REACH = 32  # nodes between a mask and where it ends


def deep_masks(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find constants that mask scores in front of a Softmax by a value whose exponential is denormal.

    Must not touch a constant that anything but a Softmax may see: a sum that is given out, a LogSoftmax, a comparison.
    """
    for node in index.graph.node:
        if node.op_type not in ("Add", "Where") or not is_standard(node):
            continue
        slots = [slot for slot in range(node.op_type == "Where", len(node.input)) if _masks(index, node.input[slot])]
        if not slots or not _ends_in_softmax(index, node.output[0]):
            continue
        rebuilt = copied(node)
        constants: dict[str, Array] = {}
        for slot in slots:
            value = index.constant(node.input[slot])
            rebuilt.input[slot] = names.beside(node.output[0], "mask")
            constants[rebuilt.input[slot]] = np.where(_shallow(value), _DEEP, value)
        yield Rewrite({node.name: (rebuilt,)}, constants)


def _masks(index: Index, name: str) -> bool:
    return index.is_float_constant(name) and bool(_shallow(index.constant(name)).any())


def _shallow(value: Array) -> Bools:
    return (value >= _LOWEST) & (value <= _HIGHEST)


def _ends_in_softmax(index: Index, tensor: str) -> bool:
    """Whether all that is made of a tensor are sums and moved values that a Softmax reads."""
    waiting, steps = [tensor], 0
    while waiting:
        name = waiting.pop()
        uses = index.uses.get(name, [])
        steps += len(uses)
        if not uses or name in index.outputs or steps > _REACH:
            return False
        for use in uses:
            if use.slot < 0 or not is_standard(use.node):
                return False
            if use.node.op_type == "Softmax":
                continue
            if not (use.node.op_type in ("Add", "Where") or (use.node.op_type in MOVING and use.slot == 0)):
                return False
            waiting.extend(use.node.output)
    return True
