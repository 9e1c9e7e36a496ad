"""An Expand to the shape of what it is multiplied with, or added to, goes: these broadcast by themselves.

Exporters write `expand_as` so, in squeeze-and-excite blocks and normalizations. There is no integer kernel for it, and
what it writes has as many values as the other operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.edit import dropped
from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names, Rewrite
    from int8cal.graph.index import Index, Use

_BROADCASTS = frozenset({"Add", "Sub", "Mul", "Div"})


def futile_expands(index: Index, _names: Names) -> Iterator[Rewrite]:
    """Find Expands whose readers all broadcast what they expand to the same shape.

    Must not touch one of which the shape is not known, dimension by dimension, to be that of the other operand.
    """
    for node in index.graph.node:
        if node.op_type != "Expand" or not is_standard(node):
            continue
        uses = index.uses.get(node.output[0], [])
        if uses and all(_broadcasts(index, use) for use in uses):
            rewrite = dropped(index, node, str(node.input[0]))
            if rewrite is not None:
                yield rewrite


def _broadcasts(index: Index, use: Use) -> bool:
    if use.slot < 0 or use.node.op_type not in _BROADCASTS or not is_standard(use.node):
        return False
    expanded, other = (_sizes(index, use.node.input[slot]) for slot in (use.slot, 1 - use.slot))
    return expanded is not None and expanded == other and "" not in expanded and 0 not in expanded


def _sizes(index: Index, name: str) -> list[int | str] | None:
    """Return each dimension of a tensor, or the name that those have that are the same; "" where there is neither."""
    kind = index.types.get(name)
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.tensor_type.shape.dim]
