"""Embeddings: NDCG of retrieval, by scikit-learn, and rank correlation with judged similarities, by scipy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import DataError
from int8cal.metrics.outputs import Outputs, first_float, needs, vectors
from int8cal.metrics.truth import truth_of

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float64, Int64


@needs("sklearn")
def ndcg(outputs: Outputs, labels: Int64 | None) -> Float64:
    """NDCG of the ten nearest others by cosine; one figure a sample.

    Args:
        outputs: The first of floats is the embedding; of one for each position the mean is taken.
        labels: Samples of one label belong together; each has another one.
    """
    from sklearn.metrics import ndcg_score

    if labels is None:
        raise DataError("the samples have no labels", do="give labels: samples of one label belong together")
    names, counts = np.unique(labels, return_counts=True)
    if (counts < 2).any():
        alone = names[np.argmin(counts)]
        raise DataError(f"label {alone} has one sample, which belongs to no other", do="give each label two or more")
    similar = _cosines(vectors(first_float(outputs)))
    others = ~np.eye(len(labels), dtype=bool)
    relevant = (labels[:, None] == labels[None]) & others
    return np.array(
        [
            ndcg_score(relevant[[row]][:, others[row]], similar[[row]][:, others[row]], k=10)
            for row in range(len(labels))
        ]
    )


@needs("scipy")
def spearman(outputs: Outputs, labels: object, origins: list[str]) -> float:  # noqa: ARG001 - every metric gets labels
    """Rank correlation of the cosines of pairs with how similar people find them.

    Args:
        outputs: The first of floats is the embedding.
        labels: Not used.
        origins: The samples: the first with the second is a pair, the third with the fourth, and so on. The .json or
            .txt file with the truth of the first of a pair holds the similarity, a number.
    """
    from scipy.stats import spearmanr

    rows = vectors(first_float(outputs))
    if len(rows) % 2:
        raise DataError(f"there are {len(rows)} samples, expected pairs", do="leave one out with --samples")
    norms = np.linalg.norm(rows, axis=1)
    cosines = (rows[::2] * rows[1::2]).sum(axis=1) / np.maximum(norms[::2] * norms[1::2], 1e-30)
    judged = [float(truth_of(origin, ".json", ".txt")) for origin in origins[::2]]
    return float(spearmanr(cosines, judged).statistic)


def _cosines(rows: Float64) -> Array:
    units: Float64 = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return units @ units.T
