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


ARENAS = """
import sys
import numpy as np
from onnx import parser
from int8cal.runtime.memory import release
from int8cal.runtime.sessions import Session

def own():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { a = Sin(x) b = Cos(a) c = Add(a, b) y = Tanh(c) }'
values = np.ones(5_000_000, np.float32)
before = own()
sessions = [Session(parser.parse_model(text), threads=2, at_once=int(sys.argv[1])) for _ in range(8)]
for each in sessions:
    each.run({"x": values})
after = own()
release()
print(after - before, own() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sessions_for_many_samples_keep_no_memory_each():
    def kept(at_once):
        run = subprocess.run([sys.executable, "-c", ARENAS, str(at_once)], capture_output=True, text=True, check=True)
        return map(float, run.stdout.split())

    alone, _ = kept(1)
    together, released = kept(2)  # what is left is the array that was fed, and the libraries
    assert alone > 8 * 30  # MB: two tensors of 20 each
    assert together < alone / 3
    assert released < together / 2
