"""Scores, which Softmax reads, and masks on them: values so low that the others would have no codes beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from int8cal.graph.index import Index
    from int8cal.graph.ops import OpRule

# How far below the others a masked score is, at least: exp of it is 0 in float32. Scores have no unit of their own.
MASKED = 104.0


def are_scores(index: Index, rules: Mapping[str, OpRule], tensor: str) -> bool:
    """Whether a Softmax reads a tensor, or what only moves its values.

    Args:
        index: Of the model.
        rules: Say which ops only move values.
        tensor: Its name.
    """
    waiting = [tensor]
    while waiting:
        for use in index.uses.get(waiting.pop(), ()):
            if use.node.op_type in ("Softmax", "LogSoftmax"):
                return True
            rule = rules.get(use.node.op_type)
            if rule is not None and rule.kind == "pass" and use.slot == 0:
                waiting.append(use.node.output[0])
    return False


def is_mask(bias: npt.NDArray[Any]) -> bool:
    """Whether a bias of scores masks some of them."""
    return bool(bias.size) and float(np.ptp(bias.astype(np.float64))) >= MASKED
