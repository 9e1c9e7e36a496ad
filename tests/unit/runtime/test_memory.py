import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from int8cal.runtime import memory

# blocks below the size that glibc maps by themselves; what is left in use keeps it from shrinking the heap by itself
SCRIPT = """
import numpy as np
from int8cal.runtime.memory import give_back

def own():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

blocks = [np.ones(64_000, np.uint8) for _ in range(2000)]
used = own()
del blocks[1::2], blocks[:-500]
freed = own()
give_back()
kept = own()
give_back(1_000_000)
print(used, freed, kept, own())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no malloc_trim")
def test_much_freed_memory_between_blocks_in_use_goes_back():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    used, freed, kept, after = map(float, run.stdout.split())
    assert used - freed < 20
    assert used - kept < 20  # less than it is worth
    assert used - after > 70


def test_a_c_library_without_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    memory._glibc.cache_clear()
    try:
        assert memory._glibc() is None
        memory.give_back()
    finally:
        memory._glibc.cache_clear()


def test_where_the_c_library_does_not_tell_how_much_is_freed_all_goes_back(monkeypatch):
    given = []
    monkeypatch.setattr(memory, "_glibc", lambda: SimpleNamespace(malloc_trim=given.append))
    memory.give_back()
    assert given == [0]
