"""Segmentation: mean intersection over union, in numpy: the libraries that have it bring a deep learning framework.

Truth: a .png or .npy file of class indexes for each image, (H, W); 255 for pixels that do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import DataError
from int8cal.metrics.truth import truth_of

if TYPE_CHECKING:
    from int8cal.metrics.outputs import Outputs
    from int8cal.numerics import Array, Int64

_IGNORED = 255


def mean_iou(outputs: Outputs, labels: object, origins: list[str]) -> float:  # noqa: ARG001 - every metric gets labels
    """Mean over the classes in the truth of intersection / union of pixels, over all images.

    Args:
        outputs: The first is a plane of scores for each class, (C, H, W) or (H, W, C), whose largest decides; or class
            indexes, (H, W); or one plane of probabilities, of which those above 0.5 are class 1.
        labels: Not used.
        origins: The images; their truth lies beside them.
    """
    scores = next(iter(outputs.values()))
    counts = np.zeros((256, 256), np.int64)
    for index, origin in enumerate(origins):
        truth = np.asarray(truth_of(origin, ".png", ".npy"))
        classes = _classes(np.asarray(scores[index]), truth.shape, origin)
        counted = truth != _IGNORED
        pairs = truth[counted].astype(np.int64) * 256 + classes[counted]
        counts += np.bincount(pairs, minlength=1 << 16).reshape(256, 256)
    shared, truths, found = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    present = truths > 0
    return float((shared[present] / (truths + found - shared)[present]).mean())


def _classes(scores: Array, shape: tuple[int, ...], origin: str) -> Int64:
    """Decide the class of each pixel."""
    if scores.shape in (shape, (1, *shape), (*shape, 1)):
        plane = scores.reshape(shape)
        return (plane > 0.5 if plane.dtype.kind == "f" else plane).astype(np.int64)
    axis = 0 if scores.shape[1:] == shape else -1
    if axis == 0 or scores.shape[:-1] == shape:
        return np.asarray(scores.argmax(axis=axis), np.int64)
    raise DataError(
        f"its truth has shape {shape}, and the model's output {scores.shape}",
        where=origin,
        do="store the truth in the size of the output",
    )
