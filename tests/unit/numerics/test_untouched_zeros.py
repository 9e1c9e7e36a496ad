import re
import sys
from pathlib import Path

import numpy as np
import pytest

from int8cal.numerics.kernels import untouched_zeros


def test_it_is_a_writable_array_of_zeros():
    table = untouched_zeros((3, 5), np.uint32)
    assert table.shape == (3, 5)
    assert not table.any()
    table[1, 2] += 7
    assert table.sum() == 7


def test_an_empty_shape_is_an_empty_array():
    assert untouched_zeros((0, 4), np.int64).shape == (0, 4)


def resident() -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_touched_pages_cost_memory():
    before = resident()
    tables = [untouched_zeros((1 << 23,), np.int64) for _ in range(8)]  # 64 MiB each
    for table in tables:
        table[:: 1 << 20] = 1
    assert resident() - before < 16_000  # kB
