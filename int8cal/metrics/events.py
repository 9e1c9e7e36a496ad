"""Detectors of events, such as of voices: F1 and the area under the ROC curve, by scikit-learn.

Truth: the samples' labels, 0 or 1; or a .json or .npy file for each sample with one 0 or 1 for each of its frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import DataError
from int8cal.metrics.outputs import Outputs, first_float, needs
from int8cal.metrics.truth import truth_of

if TYPE_CHECKING:
    from int8cal.numerics import Array, Int64


@needs("sklearn")
def f1(outputs: Outputs, labels: Int64 | None, origins: list[str]) -> float:
    """F1 of all frames; an event is a probability of at least 0.5.

    Args:
        outputs: The first of floats is the probability of an event, one or (frames,) a sample; of two columns the
            second.
        labels: 0 or 1 for each sample; None where each has a file of frames.
        origins: The samples.
    """
    from sklearn.metrics import f1_score

    truth, probabilities = _frames(outputs, labels, origins)
    return float(f1_score(truth, probabilities >= 0.5, zero_division=0.0))


@needs("sklearn")
def auc(outputs: Outputs, labels: Int64 | None, origins: list[str]) -> float:
    """Area under the ROC curve of all frames; outputs, labels and origins as for `f1`, of any monotonous score."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_frames(outputs, labels, origins)))


def _frames(outputs: Outputs, labels: Int64 | None, origins: list[str]) -> tuple[Array, Array]:
    """Put truth and scores of all frames in a row each."""
    if labels is not None:
        truths = [np.reshape(label, 1) for label in labels]
    else:
        truths = [np.asarray(truth_of(origin, ".json", ".npy")).reshape(-1) for origin in origins]
    scores = [_score(np.asarray(each), truth.size) for each, truth in zip(first_float(outputs), truths, strict=True)]
    for score, truth, origin in zip(scores, truths, origins, strict=True):
        if score.shape != truth.shape:
            raise DataError(
                f"its truth has {truth.size} frames, and the model's output {score.size}",
                where=origin,
                do="write one 0 or 1 for each frame of the output, or give class scores a metric of your own",
            )
        if not np.isin(truth, (0, 1)).all():
            raise DataError(
                f"its truth holds {truth[~np.isin(truth, (0, 1))][0]}, expected 0 or 1", where=origin, do="correct it"
            )
    return np.concatenate(truths), np.concatenate(scores)


def _score(output: Array, frames: int) -> Array:
    """Take the second of two columns, where there are two for each frame."""
    two = output.ndim and output.shape[-1] == 2 and output.size == 2 * frames
    return output[..., 1].reshape(-1) if two else output.reshape(-1)
