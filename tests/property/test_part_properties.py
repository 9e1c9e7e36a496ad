"""What parts of the data leave behind adds to what the whole leaves, however it is cut and in whatever order it comes."""

import functools
import itertools
import operator
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.calibration.engines import local
from int8cal.calibration.statistics import Widths
from int8cal.data.checks import SampleWatch
from int8cal.data.sample import Sample
from int8cal.graph.signature import Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", np.dtype(np.float32), ("N", 3, 2, 2)),), ())


def sample(value, index):
    return Sample({"x": np.full((1, 3, 2, 2 + value % 3), value, np.float32)}, f"{index}.npy")


samples = st.lists(st.integers(0, 30), min_size=1, max_size=25).map(
    lambda values: [sample(value, index) for index, value in enumerate(values)]
)


def cut(data, items):
    """Cut a list into parts, in any order: (place of the first item, items)."""
    ends = sorted({0, len(items), *data.draw(st.lists(st.integers(0, len(items)), max_size=6))})
    parts = [(first, items[first:last]) for first, last in itertools.pairwise(ends)]
    return data.draw(st.permutations(parts))


@given(st.data(), samples, st.integers(0, 8), st.integers(1, 600), st.booleans())
def test_the_choice_of_parts_is_the_choice_of_the_whole(data, items, size, room, hold):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "KEPT_BYTES", room)
        patch.setattr(local, "KEPT_ALWAYS", 2)

        def chosen(first, part):
            kept = local.KeptSamples(size, hold=hold)
            for index, each in enumerate(part, first):
                kept.add(each, (index,))
            return kept

        whole = chosen(0, items)
        added = functools.reduce(operator.add, (chosen(*part) for part in cut(data, items)))
    assert added.positions() == whole.positions()
    assert (added.total, added.seen) == (whole.total, whole.seen)
    assert [each.origin for each in added.samples()] == [each.origin for each in whole.samples()]


@given(st.data(), samples)
def test_findings_of_parts_are_those_of_the_whole(data, items):
    def watched(first, part):
        watch = SampleWatch("calibration", SIGNATURE, first)
        for each in part:
            watch.add(each)
        return watch

    added = functools.reduce(operator.add, (watched(*part) for part in cut(data, items)))
    assert added.findings() == watched(0, items).findings()
    assert sorted(added.marks) == sorted(each.fingerprint & (1 << 64) - 1 for each in items)


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=2, max_size=30), st.randoms())
def test_widths_add_exactly_and_their_variation_is_that_of_the_numbers(values, order: random.Random):
    units = [int(value * 2.0**149) for value in values]
    found = functools.reduce(operator.add, (Widths(1, each, each * each) for each in units))
    order.shuffle(units)
    assert functools.reduce(operator.add, (Widths(1, each, each * each) for each in units)) == found
    if any(values):
        assert found.variation == pytest.approx(statistics.stdev(values) / statistics.fmean(values), rel=1e-9)
    else:
        assert found.variation is None
