"""Nearest neighbours by cosine: which of them a sample keeps when every vector changes a little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.numerics import Float64

# Similarities closer than this are equal: float64 products of the same two vectors differ by less, in whatever order.
_TIE = 1e-9


def neighbour_recalls(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating], k: int) -> Float64:
    """Tell for each sample how many of its k nearest neighbours stay its nearest.

    Args:
        x: Vectors of the reference, shape (n, d), n > k + 1: with as many neighbours as samples all would stay.
        y: Vectors of the other model for the same samples, compared among themselves.
        k: At least 1.

    Returns:
        Float64 (n,): shares of k. Samples as near as the k-th count as nearest too in the reference; in the other model
        they share the last places evenly, so that vectors which all collapsed into one get what guessing gets.
    """
    first, second = _similarities(x), _similarities(y)
    last = len(first) - k
    nearest = first >= np.partition(first, last, axis=1)[:, last, None] - _TIE
    bound = np.partition(second, last, axis=1)[:, last, None]
    sure, tied = second > bound + _TIE, np.abs(second - bound) <= _TIE
    places = k - sure.sum(axis=1)
    hits = (sure & nearest).sum(axis=1) + places * (tied & nearest).sum(axis=1) / tied.sum(axis=1)
    shares: Float64 = hits / k
    return shares


def _similarities(vectors: npt.NDArray[np.floating]) -> Float64:
    """Cosines of all pairs, (n, n); a vector of zeros is like nothing, and none is its own neighbour."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
    wide = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0.0)
    found: Float64 = wide @ wide.T
    np.fill_diagonal(found, -np.inf)
    return found
