"""Merging is `+`: the same bits for any order, any split, any shard."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import TAPS, collect_samples, sample_lists

from int8cal.calibration.collector import Collector
from int8cal.calibration.statistics_file import load_statistics, save_statistics


def file_bytes(statistics):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.stats.npz"
        save_statistics(statistics, path)
        return path.read_bytes()


@given(sample_lists().flatmap(lambda each: st.tuples(st.just(each), st.permutations(each))))
def test_the_order_of_samples_does_not_show(orders):
    one, other = (collect_samples(order) for order in orders)
    assert file_bytes(one) == file_bytes(other)


@given(sample_lists(2), st.integers(1, 4))
def test_two_shards_are_one_run(samples, cut):
    cut = min(cut, len(samples) - 1)
    merged = collect_samples(samples[:cut]) + collect_samples(samples[cut:])
    assert file_bytes(merged) == file_bytes(collect_samples(samples))


@given(sample_lists(1, 2), sample_lists(1, 2))
def test_addition_is_commutative(first, second):
    a, b = collect_samples(first), collect_samples(second)
    assert file_bytes(a + b) == file_bytes(b + a)


@given(sample_lists(1, 2), sample_lists(1, 2), sample_lists(1, 2))
def test_addition_is_associative(first, second, third):
    a, b, c = (collect_samples(each) for each in (first, second, third))
    expected = file_bytes((a + b) + c)
    assert file_bytes(a + (b + c)) == expected
    assert file_bytes(c + a + b) == expected


@given(sample_lists(1, 3))
def test_nothing_is_the_identity(samples):
    some, none = collect_samples(samples), collect_samples([])
    assert file_bytes(some + none) == file_bytes(none + some) == file_bytes(some)


@given(sample_lists(0, 3))
def test_saving_and_loading_keeps_every_bit(samples):
    statistics = collect_samples(samples)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.stats.npz"
        save_statistics(statistics, path)
        loaded = load_statistics(path)
    assert file_bytes(loaded) == file_bytes(statistics)
    assert list(loaded.tensors) == list(statistics.tensors)
    for name, tensor in statistics.tensors.items():
        assert (loaded.tensors[name].minimum, loaded.tensors[name].maximum) == (tensor.minimum, tensor.maximum)


@given(sample_lists(1, 3), st.lists(st.integers(-30, 30), min_size=3, max_size=3))
def test_equalized_statistics_are_those_of_the_scaled_tensor(samples, exponents):
    factor = np.exp2(np.array(exponents, np.float64)).reshape(1, 3, 1)
    # a power of two is exact as long as nothing leaves the normal float32 numbers
    kept = [np.where(in_reach(x) & in_reach(x * factor), x, np.float32(1)) for x in samples]
    equalized = collect_samples(kept).tensors["hidden"].equalized(np.array(exponents, np.int64))
    counted = collect_samples([(x * factor).astype(np.float32) for x in kept]).tensors["hidden"]
    assert equalized.count == counted.count
    assert equalized.zeros == counted.zeros
    assert (equalized.minimum, equalized.maximum) == (counted.minimum, counted.maximum)
    np.testing.assert_array_equal(coarse(equalized), coarse(counted))
    for field in ("low", "high", "total", "square", "bins", "counts"):
        np.testing.assert_array_equal(getattr(equalized.channels, field), getattr(counted.channels, field), field)


def in_reach(x):
    return (x == 0) | ((np.abs(x) > 1e-37) & (np.abs(x) < 1e38))


def coarse(tensor):
    """The histogram in the per-channel histogram's bins, which are 64 times as wide."""
    return np.bincount(tensor.bins >> 6, weights=tensor.counts, minlength=8192)


@given(sample_lists(1, 3), st.lists(st.integers(-30, 30), min_size=3, max_size=3))
def test_equalizing_keeps_signs_and_counts_at_the_ends_of_float32(samples, exponents):
    statistics = collect_samples(samples).tensors["hidden"]
    with np.errstate(over="ignore"):
        equalized = statistics.equalized(np.array(exponents, np.int64))
    assert equalized.count == statistics.count
    negative = statistics.bins >= 1 << 18
    assert equalized.counts[equalized.bins >= 1 << 18].sum() == statistics.counts[negative].sum()


@given(st.sampled_from(TAPS), sample_lists(1, 3))
def test_every_value_is_counted_once(tap, samples):
    collector = Collector(tap)
    for sample in samples:
        collector.add(sample, "sample")
    result = collector.result()
    values = np.concatenate([sample.reshape(-1) for sample in samples])
    assert result.count == values.size
    assert result.zeros == np.count_nonzero(values == 0)
    assert (result.minimum, result.maximum) == (values.min(), values.max())
    assert (np.diff(result.bins) > 0).all()
