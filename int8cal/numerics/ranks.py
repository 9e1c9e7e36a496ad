"""Orders of scores: ranks with ties, how far two orders agree, which of the best of one are the best of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float64, Indices


def best_first(scores: Array) -> Indices:
    """Sort each row.

    Args:
        scores: Shape (rows, n), real and finite.

    Returns:
        Columns of each row from the largest score to the smallest; equal scores keep index order, as argmax does.
    """
    return np.argsort(-scores, axis=1, kind="stable")


def average_ranks(scores: Array, order: Indices | None = None) -> Float64:
    """Rank each row; equal scores share the mean of their places.

    Args:
        scores: Shape (rows, n), n >= 1, real and finite.
        order: What `best_first` gives for it, where that is known.

    Returns:
        Float64 (rows, n): 1 for the best score to n for the worst.
    """
    order = best_first(scores) if order is None else order
    rows, n = scores.shape
    ordered = np.take_along_axis(scores, order, axis=1)
    starts = np.ones((rows, n), bool)  # of runs of equal scores, which end with their row
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = np.cumsum(starts.reshape(-1)) - 1
    lengths = np.bincount(run)
    first = np.flatnonzero(starts) % n
    means = first + (lengths + 1) / 2
    ranks = np.empty((rows, n))
    np.put_along_axis(ranks, order, means[run].reshape(rows, n), axis=1)
    return ranks


def rank_correlations(x: Float64, y: Float64) -> Float64:
    """Spearman's correlation of each row: Pearson's of the ranks.

    Args:
        x, y: What `average_ranks` gives for a reference and for another, both of shape (rows, n).

    Returns:
        Float64 (rows,) in [-1, 1]. NaN where the reference has one value only, and no order that could be kept; 0 where
        only the other has one value: nothing of the order is left.
    """
    middle = (x.shape[1] + 1) / 2
    a, b = x - middle, y - middle
    both = np.einsum("ij,ij->i", a, b)
    of_x, of_y = np.einsum("ij,ij->i", a, a), np.einsum("ij,ij->i", b, b)
    scale = np.sqrt(of_x * of_y)
    found = np.divide(both, scale, out=np.zeros_like(both), where=scale > 0.0)
    found[of_x == 0.0] = np.nan
    clipped: Float64 = np.clip(found, -1.0, 1.0)
    return clipped


def best_recalls(x: Indices, y: Indices, k: int) -> Float64:
    """Tell how many of the k best of one order are among the k best of another.

    Args:
        x, y: What `best_first` gives, both of shape (rows, n).
        k: At least 1, at most n.

    Returns:
        Float64 (rows,): a share of k.
    """
    found = (x[:, :k, None] == y[:, None, :k]).any(axis=2)
    shares: Float64 = found.mean(axis=1)
    return shares
