import platform
import subprocess
import sys

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
print(used, freed, own())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no malloc_trim")
def test_freed_memory_between_blocks_in_use_goes_back():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    used, freed, after = map(float, run.stdout.split())
    assert used - freed < 20
    assert used - after > 70


def test_a_c_library_without_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    memory._trim.cache_clear()
    try:
        assert memory._trim() is None
        memory.give_back()
    finally:
        memory._trim.cache_clear()
