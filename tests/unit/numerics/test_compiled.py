from int8cal.numerics import compiled as module
from int8cal.numerics.compiled import compiled


def test_without_numba_the_twin_stands_in(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert compiled(len, max) is max


def test_without_numba_a_loop_without_a_twin_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert compiled(len) is len
