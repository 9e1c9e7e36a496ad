"""Mul, Div, Add, Sub, Neg and BatchNormalization with constants go into the layers and constants before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from int8cal.graph.folding.absorb import Absorber
from int8cal.graph.folding.affine_step import step_of
from int8cal.graph.folding.change import change_of
from int8cal.graph.folding.rewrite import Rewrite, dropped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.folding.affine_step import Step
    from int8cal.graph.folding.change import Change
    from int8cal.graph.index import Index


def fold_affine(index: Index, given: frozenset[str]) -> Iterator[Rewrite]:
    """Find the steps that can go, in graph order.

    Must not fold a step whose input has other readers or is given out, or whose constant varies along two axes. See
    `Absorber` for what a step can go into.

    Args:
        index: Of the graph.
        given: See `Absorber`.
    """
    absorber = Absorber(index, given)
    for node in index.graph.node:
        step = step_of(index, node)
        change = None if step is None else change_of(step)
        if step is None or change is None:
            continue
        rewrite = _folded(index, absorber, step, change)
        if rewrite is not None:
            yield rewrite


def _folded(index: Index, absorber: Absorber, step: Step, change: Change) -> Rewrite | None:
    if not change.scales and not change.shifts:
        return dropped(index, step.node, step.data)
    rewrite = absorber.absorb(step.data, change, step.output)
    if rewrite is not None:
        rewrite.nodes[step.node.name] = ()
        return rewrite
    if not (change.scales and change.shifts):
        return None
    name = absorber.changed(step.data)
    rewrite = absorber.absorb(step.data, change.scaling(), name)
    shift = absorber.constant(step.output, step.shift)
    if rewrite is None or shift is None:
        return None
    rewrite.nodes[step.node.name] = (helper.make_node("Add", [name, shift[0]], [step.output], name=step.node.name),)
    rewrite.constants[shift[0]] = shift[1]
    return rewrite
