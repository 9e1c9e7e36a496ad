import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.numerics.boxes import corners, match, overlaps, suppress


def brute_iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    area = [max(box[2] - box[0], 0) * max(box[3] - box[1], 0) for box in (a, b)]
    return shared / (sum(area) - shared) if sum(area) - shared > 0 else 0.0


def brute_suppress(boxes, classes, limit, most):
    kept = []
    for at, box in enumerate(boxes):
        if all(classes[at] != classes[k] or brute_iou(box, boxes[k]) <= limit for k in kept):
            kept.append(at)
    return kept[:most]


def brute_match(boxes, classes, others, other_classes, least):
    found, taken = [], set()
    for box, kind in zip(boxes, classes, strict=True):
        free = [
            (brute_iou(box, other), -at)
            for at, other in enumerate(others)
            if at not in taken and other_classes[at] == kind
        ]
        if free and max(free)[0] >= least:
            found.append(max(free)[0])
            taken.add(-max(free)[1])
    return found


def scene(seed, n):
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 12, (n, 2))
    return np.concatenate((low, low + rng.integers(-1, 8, (n, 2))), axis=1).astype(float), rng.integers(0, 2, n)


@given(st.integers(0, 10**6), st.integers(0, 25), st.integers(0, 25))
def test_overlaps_suppression_and_matching_are_those_of_plain_loops(seed, n, m):
    boxes, classes = scene(seed, n)
    others, other_classes = scene(seed + 1, m)
    expected = np.array([[brute_iou(a, b) for b in others] for a in boxes]).reshape(n, m)
    np.testing.assert_allclose(overlaps(boxes, others), expected)
    assert suppress(boxes, classes, 0.3, 7).tolist() == brute_suppress(boxes, classes, 0.3, 7)
    found = match(boxes, classes, others, other_classes, 0.2)
    assert found == pytest.approx(brute_match(boxes, classes, others, other_classes, 0.2))


def test_a_centre_and_a_size_are_corners():
    assert corners(np.array([[5.0, 6.0, 4.0, 2.0]])).tolist() == [[3.0, 5.0, 7.0, 7.0]]
