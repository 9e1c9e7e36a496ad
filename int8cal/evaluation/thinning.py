"""Slices of tensors that are too large to be compared whole: every so many rows and columns, cut by the runtime.

A tensor of 64 channels of 1,024 x 1,024 values takes 268 MB of float32, and a network of images of that size has
hundreds. What an SQNR needs of one is far less, and a slice of it frees the rest as soon as it is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

from int8cal.graph.ops import opset_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx


@dataclass(frozen=True)
class Thinning:
    """Every so many-th index along some axes, from the middle of the first step on.

    Attributes:
        steps: By axis, two and more.
    """

    steps: Mapping[int, int]

    def count(self, dims: Sequence[int]) -> int:
        """Return how many values are left of a tensor of these dimensions."""
        every = ((size, self.steps.get(axis, 1)) for axis, size in enumerate(dims))
        return math.prod(-(-(size - step // 2) // step) for size, step in every)

    def nodes(self, tensor: str, output: str) -> list[onnx.NodeProto]:
        """Return the nodes that cut a tensor in a graph; their names begin with the output's."""
        axes, steps = zip(*sorted(self.steps.items()), strict=True)
        firsts, ends = [step // 2 for step in steps], [np.iinfo(np.int64).max] * len(axes)
        values = {"starts": firsts, "ends": ends, "axes": axes, "steps": steps}
        constants = [
            helper.make_node(
                "Constant", [], [f"{output}.{name}"], value=numpy_helper.from_array(np.array(value, np.int64))
            )
            for name, value in values.items()
        ]
        read = [tensor, *(node.output[0] for node in constants)]
        return [*constants, helper.make_node("Slice", read, [output])]


def slices_with_steps(model: onnx.ModelProto) -> bool:
    """Whether a Slice of the model's opset has steps."""
    return opset_of(model, 0) >= 10


def thinnings(
    dims: Sequence[Sequence[int]], most_bytes: int, value_bytes: Sequence[int], kept_axes: Sequence[Collection[int]]
) -> list[Thinning | None]:
    """Choose what is left of each tensor.

    Args:
        dims: Its dimensions in one inference; () for one that stays whole.
        most_bytes: What may be left, about: one index along the axis is left at least.
        value_bytes: Bytes of one value of each.
        kept_axes: Of each, the axes that are not cut; any from the end are negative.

    Returns:
        Alike along the two longest axes but the first, which counts samples, and of an image's tensor but its channels,
        whose errors differ more than those of neighbours; None where all of it may stay, or nothing can be cut.
    """
    found: list[Thinning | None] = []
    for sizes, each, kept in zip(dims, value_bytes, kept_axes, strict=True):
        need, rank = -(-math.prod(sizes) * each // max(most_bytes, 1)), len(sizes)
        own = {axis % rank for axis in kept} if rank else set()
        free = sorted(set(range(2 if rank > 3 else 1, rank)) - own, key=lambda axis: (-sizes[axis], axis))[:2]
        steps: dict[int, int] = {}
        # the shorter one first: what it is too short for is left to the other
        for axis, share in zip(reversed(free), (math.sqrt(need), need)[2 - len(free) :], strict=True):
            steps[axis] = min(math.ceil(share / math.prod(steps.values())), sizes[axis])
        steps = {axis: step for axis, step in steps.items() if step > 1}
        found.append(Thinning(steps) if steps else None)
    return found
