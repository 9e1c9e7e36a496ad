import importlib.util

import pytest

from int8cal.numerics import compiled as module
from int8cal.numerics.compiled import compiled


def test_without_numba_the_twin_stands_in(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert compiled(len, max) is max


def test_without_numba_a_loop_without_a_twin_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert compiled(len) is len


# pickles that are cut short, of a protocol that does not exist, that are no text, that call what they must not
@pytest.mark.parametrize(
    "damage", [b"", b"\x80\xff.", b"\x80\x04\x8c\x02\xc0\xc0.", b"\x80\x04K\x01)\x81.", b"\x00" * 99]
)
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache_file_is_passed_over(tmp_path, suffix, damage):
    pytest.importorskip("numba")
    source = tmp_path / "loops.py"
    source.write_text("def double(value):\n    return 2 * value\n")
    spec = importlib.util.spec_from_file_location("loops", source)
    loops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loops)
    assert compiled(loops.double)(21) == 42
    files = list(tmp_path.rglob(f"*.{suffix}"))
    for path in files:
        path.write_bytes(damage)
    assert files
    assert compiled(loops.double)(21) == 42
