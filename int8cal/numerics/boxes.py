"""Boxes of detectors as corners (x1, y1, x2, y2): overlap, greedy suppression, greedy matching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from int8cal.numerics import Float64, Indices


def corners(boxes: Float64) -> Float64:
    """Turn boxes given as centre and size (cx, cy, w, h) into corners; shape (n, 4)."""
    half = boxes[:, 2:] / 2
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


def overlaps(boxes: Float64, others: Float64) -> Float64:
    """Intersection over union of boxes with others.

    Args:
        boxes, others: Shape (m, 4) and (n, 4); a box whose corners are in the wrong order has no area.

    Returns:
        Float64 (m, n) in [0, 1]; 0 where neither has an area.
    """
    left, top, right, bottom = boxes.T[:, :, None]
    width = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    height = np.minimum(bottom, others[:, 3]) - np.maximum(top, others[:, 1])
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    union = _areas(boxes)[:, None] + _areas(others) - shared
    found: Float64 = np.divide(shared, union, out=np.zeros_like(union), where=union > 0.0)
    return found


def _areas(boxes: Float64) -> Float64:
    areas: Float64 = np.maximum(boxes[:, 2] - boxes[:, 0], 0.0) * np.maximum(boxes[:, 3] - boxes[:, 1], 0.0)
    return areas


def suppress(boxes: Float64, classes: Indices, limit: float, most: int) -> Indices:
    """Keep the best of boxes that overlap: non-maximum suppression within each class.

    Args:
        boxes: Corners, shape (n, 4), the best score first.
        classes: Of each box, shape (n,).
        limit: A box that overlaps a kept one of its class by more than this goes.
        most: Boxes to keep at most.

    Returns:
        Indices of the boxes that stay, in order.
    """
    alive = np.ones(len(boxes), bool)
    kept: list[int] = []
    for index in range(len(boxes)):
        if len(kept) == most:
            break
        if not alive[index]:
            continue
        kept.append(index)
        rivals = index + 1 + (alive[index + 1 :] & (classes[index + 1 :] == classes[index])).nonzero()[0]
        alive[rivals[overlaps(boxes[index : index + 1], boxes[rivals])[0] > limit]] = False
    return np.asarray(kept, np.intp)


def match(boxes: Float64, classes: Indices, others: Float64, other_classes: Indices, least: float) -> list[float]:
    """Find boxes again among others: each takes the free one of its class that overlaps it most, the first box first.

    Args:
        boxes, classes: Corners (n, 4) and classes (n,), the best score first.
        others, other_classes: Likewise, of another model.
        least: Overlap from which on two boxes are the same.

    Returns:
        The overlaps of those that were found.
    """
    shared = np.where(classes[:, None] == other_classes, overlaps(boxes, others), -1.0)
    found: list[float] = []
    for row in shared if len(others) else ():
        best = int(row.argmax())
        if row[best] >= least:
            found.append(float(row[best]))
            shared[:, best] = -1.0  # taken
    return found
