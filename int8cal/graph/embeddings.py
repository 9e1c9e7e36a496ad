"""Embeddings: constant tables whose values, or rows of which, enter the graph as activations, in float32.

No product multiplies them, so no kernel is at stake: int8 codes with a scale per row or per column make the file
smaller. Rows that a Gather looks up become float behind it; a table that is read whole, as learned positions are, when
the runtime loads the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from int8cal.graph.index import Index, Use

# rows: a scale for each row that is looked up (of a table that is read whole, for each of its last axis but one).
# columns: a scale for each position of the last axis.
EmbeddingForm = Literal["rows", "columns"]

# Smaller tables stay float: what they save does not show in the file, and each costs nodes at run time.
LEAST_SHARE, LEAST_VALUES = 0.02, 1024  # of the values of all float32 constants; values
# Narrower ones hold coordinates (anchors of a detector), which take more than eight bits, or hardly more than scales.
LEAST_WIDTH = 16  # each of the dimensions, but those that are 1

# Ops that read a table whole, whose result is an activation. A factor is none: it would scale what it rounds.
WHOLE_OPS: frozenset[str] = frozenset({"Add", "Sub", "Concat", "Expand", "Tile", "Slice"})


@dataclass(frozen=True)
class Embedding:
    """A constant table that becomes int8.

    Attributes:
        node, op_type: The first node that reads it; the table of a calibration knows it by this name.
        weight: Its initializer.
        dims: Of the initializer, at least two.
        gathers: The Gathers that look up its rows, all there are; () where the table is read whole.
        readers: The nodes that read it whole; () beside Gathers.
    """

    node: str
    op_type: str
    weight: str
    dims: tuple[int, ...]
    gathers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()

    def axis(self, form: EmbeddingForm) -> int:
        """Return the axis that has a scale for each position."""
        if form == "columns":
            return len(self.dims) - 1
        return 0 if self.gathers else len(self.dims) - 2

    def form(self, axis: int | None) -> EmbeddingForm | None:
        """Return the form that has its scales along an axis; None where there is none."""
        forms: tuple[EmbeddingForm, ...] = ("rows", "columns")
        return next((form for form in forms if self.axis(form) == axis), None)


def find_embeddings(index: Index, weights: Collection[str]) -> Iterator[tuple[Embedding, str]]:
    """Find the tables that weigh enough, in the order of the nodes that read them first.

    Args:
        index: Of the prepared model.
        weights: Constants that layers and recurrent nodes have codes of their own of.

    Yields:
        A table, and why it stays float, "" where it need not. Tables that other nodes than these read are none.
    """
    floats = {name: math.prod(each.dims) for name, each in index.initializers.items() if index.is_float_constant(name)}
    least = max(LEAST_VALUES, LEAST_SHARE * sum(floats.values()))
    seen: set[str] = set()
    for node in index.graph.node:
        for name in node.input:
            if floats.get(name, 0) < least or name in seen:
                continue
            seen.add(name)
            uses = index.uses[name]
            lookups = [use for use in uses if _looks_up(use)]
            rest = [use for use in uses if not _looks_up(use) and not (name in weights and use.slot == 1)]
            if not lookups and (name in weights or not all(_reads_whole(index, use) for use in rest)):
                continue
            first = (lookups or rest)[0].node
            gathers = tuple(dict.fromkeys(use.node.name for use in lookups))
            readers = () if lookups else tuple(dict.fromkeys(use.node.name for use in rest))
            dims = tuple(index.initializers[name].dims)
            wide = [dim for dim in dims if dim > 1]
            if len(wide) < 2 or (min(wide) < LEAST_WIDTH and not (lookups and _holds_few_matrices(dims))):
                continue
            found = Embedding(first.name, first.op_type, name, dims, gathers, readers)
            yield found, _why_float(index, found, [*lookups, *rest])


def _holds_few_matrices(dims: tuple[int, ...]) -> bool:
    sides = [dim for dim in dims[1:] if dim > 1]
    return len(sides) > 1 and 1 < dims[0] < LEAST_WIDTH <= min(sides)


def _looks_up(use: Use) -> bool:
    """Whether a Gather reads the table."""
    return use.node.op_type == "Gather" and is_standard(use.node) and use.slot == 0


def _reads_whole(index: Index, use: Use) -> bool:
    node = use.node
    if node.op_type not in WHOLE_OPS or not is_standard(node) or use.slot < 0:
        return False
    return any(not index.is_constant(each) for each in node.input if each)


def _why_float(index: Index, table: Embedding, uses: list[Use]) -> str:
    if table.weight in index.outputs:
        return "the model gives its table out"
    other = next((use.node for use in uses if table.gathers and use.node.name not in table.gathers), None)
    if other is not None:
        return f"{other.op_type} {other.name} reads its table in float"
    if table.gathers and any(attribute(use.node, "axis", 0) not in (0, -len(table.dims)) for use in uses):
        return "its Gather does not look up rows (axis 0)"
    if table.gathers and _holds_few_matrices(table.dims):
        # measured on mixtures of 4 and 8 experts: 0.5 to 0.7 times float's speed
        return (
            f"it holds {table.dims[0]} matrices, and to make the one that is picked float takes as long as its product"
        )
    return ""
