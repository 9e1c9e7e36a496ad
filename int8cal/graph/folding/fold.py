"""The folding passes in their order, over and over until none finds anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.folding.affine import fold_affine
from int8cal.graph.folding.clips import fold_clips
from int8cal.graph.folding.names import Names
from int8cal.graph.folding.rewrite import apply, separate
from int8cal.graph.index import Index

if TYPE_CHECKING:
    import onnx

PASSES = (fold_clips, fold_affine)


def fold(model: onnx.ModelProto) -> bool:
    """Fold scale-shift chains and futile clips: the outputs stay, up to float rounding.

    Tensors whose values change get another name, ending in "_folded"; all others keep theirs, and so do the nodes that
    are left. Every rewrite takes a node away, or a factor out of one, so the rounds come to an end.

    Args:
        model: Node names are unique, shapes inferred; changed in place.

    Returns:
        Whether anything was folded.
    """
    folded, names = False, Names(model.graph)
    while True:
        found = False
        for each in PASSES:
            index = Index(model)
            rewrites = separate(each(index, names))
            if rewrites:
                apply(model, index, rewrites)
                found = folded = True
        if not found:
            return folded
