"""What the property tests draw from: float32 arrays with every kind of value, batches of activations, statistics."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from int8cal.calibration.collector import Collector
from int8cal.calibration.statistics import Statistics
from int8cal.graph.taps import Tap

FLOAT32_MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149  # the smallest float32
SPECIAL = (0.0, -0.0, TINY, -TINY, float(np.float32(1.1754942e-38)), 1.0, -1.0, FLOAT32_MAX, -FLOAT32_MAX)
TAPS = (Tap("hidden", 1, 3, True), Tap("plain"))


def float32s(*, finite: bool = True):
    anything = st.floats(width=32, allow_nan=not finite, allow_infinity=not finite)
    return st.one_of(st.sampled_from(SPECIAL), anything)


def arrays(shape, *, finite: bool = True):
    return hnp.arrays(np.float32, shape, elements=float32s(finite=finite), fill=st.nothing())


def shaped(*, finite: bool = True):
    """(outer, groups, inner, block): ordinary and blocked layouts, single values, lanes used once, twice and in part."""
    shape = st.tuples(
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([1, 1, 2, 15, 16, 17, 33]),
        st.sampled_from([1, 1, 2, 8, 16]),
    )
    # drawing thousands of floats is slow: a few are drawn, and repeat in an order that is drawn too
    pool = st.lists(float32s(finite=finite), min_size=1, max_size=12)
    return st.builds(_tiled, shape, pool, st.integers(0, 2**32 - 1))


def _tiled(shape, pool, seed):
    return np.random.default_rng(seed).choice(np.array(pool, np.float32), shape)


def activations():
    """Values of a tensor (1, 3, n), some of them exact zeros of either sign."""
    return st.sampled_from([1, 2, 9]).flatmap(lambda inner: arrays((1, 3, inner)))


def ranges():
    """(low, high), ordered and finite."""
    end = st.floats(-1e30, 1e30, allow_nan=False)
    return st.tuples(end, end).map(sorted).map(tuple)


def collect_samples(samples, taps=TAPS):
    """Statistics of some samples as one run over them gives."""
    collectors = {tap.tensor: Collector(tap) for tap in taps}
    mark = 0
    for sample in samples:
        mark += int.from_bytes(sample.tobytes()[:16].ljust(16, b"\0"), "big")
        for collector in collectors.values():
            collector.add(sample, "sample")
    return Statistics("f" * 64, mark % 2**128, len(samples), {name: each.result() for name, each in collectors.items()})


def sample_lists(least: int = 1, most: int = 5):
    return st.lists(activations(), min_size=least, max_size=most)
