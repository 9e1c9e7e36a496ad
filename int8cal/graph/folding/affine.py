"""Mul, Div, Add, Sub, Neg and BatchNormalization with constants go into the layers and constants before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from int8cal.graph.folding.absorb import Absorber
from int8cal.graph.folding.affine_step import step_of
from int8cal.graph.folding.change import added, change_of
from int8cal.graph.folding.rewrite import Rewrite, dropped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.folding.affine_step import Step
    from int8cal.graph.folding.change import Change
    from int8cal.graph.folding.names import Names
    from int8cal.graph.index import Index


def fold_affine(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find the steps that can go, in graph order.

    Must not fold a step whose shift the next one takes back, whose input has other readers or is given out, or whose
    constant varies along two axes. See `Absorber` for what a step can go into.

    Args:
        index: Of the graph.
        names: Of the model.
    """
    absorber = Absorber(index, names)
    for node in index.graph.node:
        step = step_of(index, node)
        change = None if step is None else change_of(step)
        if step is None or change is None or _is_taken_back(index, step):
            continue
        rewrite = _folded(index, absorber, step, change)
        if rewrite is not None:
            yield rewrite


def _is_taken_back(index: Index, step: Step) -> bool:
    """Whether the next node takes the shift away again: then the sum in between is there to round."""
    reader = index.only_reader(step.output)
    after = None if reader is None else step_of(index, reader)
    return after is not None and added(step.shift * after.factor, after.shift) is None


def _folded(index: Index, absorber: Absorber, step: Step, change: Change) -> Rewrite | None:
    if not change.scales and not change.shifts:
        return dropped(index, step.node, step.data)
    rewrite = absorber.absorb(step.data, change, step.output)
    if rewrite is not None:
        rewrite.nodes[step.node.name] = ()
        return rewrite
    if not (change.scales and change.shifts):
        return None
    name = absorber.names.changed(step.data)
    rewrite = absorber.absorb(step.data, change.scaling(), name)
    shift = absorber.constant(step.output, step.shift)
    if rewrite is None or shift is None:
        return None
    rewrite.nodes[step.node.name] = (helper.make_node("Add", [name, shift[0]], [step.output], name=step.node.name),)
    rewrite.constants[shift[0]] = shift[1]
    return rewrite
