import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics.ranks import average_ranks, best_first, best_recalls, rank_correlations

# few values, so that many tie
ROWS = st.integers(2, 9).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-3, 3), min_size=n, max_size=n) for _ in range(2)])
)


def brute_ranks(row):
    return [1 + sum(b > a for b in row) + (sum(b == a for b in row) - 1) / 2 for a in row]


def row_of(values):
    return np.array([values], np.float32)


@given(ROWS)
def test_tied_scores_share_the_mean_of_their_places(rows):
    both = np.array(rows, np.float32)
    assert average_ranks(both).tolist() == [brute_ranks(row) for row in rows]


@given(ROWS)
def test_spearmans_correlation_is_pearsons_of_the_ranks(rows):
    (found,) = rank_correlations(*(average_ranks(row_of(row)) for row in rows))
    first, second = (np.array(brute_ranks(row)) for row in rows)
    if len(set(rows[0])) == 1:
        assert np.isnan(found)
    elif len(set(rows[1])) == 1:
        assert found == 0.0
    else:
        assert found == pytest.approx(np.corrcoef(first, second)[0, 1])


def test_spearmans_correlation_is_the_one_of_the_textbook():
    # 1 - 6 sum d^2 / (n (n^2 - 1)) without ties: d = 0, 1, -1, 1, -1 gives 1 - 24 / 120
    found = rank_correlations(*(average_ranks(row_of(row)) for row in ([5, 4, 3, 2, 1], [5, 3, 4, 1, 2])))
    assert found.tolist() == pytest.approx([0.8])


@given(ROWS)
def test_an_order_agrees_with_itself_and_its_reverse_is_the_opposite(rows):
    ranks = average_ranks(row_of(rows[0]))
    if len(set(rows[0])) > 1:
        assert rank_correlations(ranks, ranks) == 1.0
        assert rank_correlations(ranks, average_ranks(-row_of(rows[0]))) == -1.0


@given(ROWS, st.integers(1, 2))
def test_the_best_are_found_again_as_sorting_says(rows, k):
    orders = [best_first(row_of(row)) for row in rows]
    best = [set(sorted(range(len(row)), key=lambda at, row=row: (-row[at], at))[:k]) for row in rows]
    assert best_recalls(*orders, k).tolist() == [len(best[0] & best[1]) / k]
