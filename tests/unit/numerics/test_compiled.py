import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import int8cal
from int8cal.numerics import compiled as module
from int8cal.numerics import exactsum, kernels, loglinear, mse
from int8cal.numerics.compiled import compiled
from int8cal.numerics.loglinear import SHIFT


def test_without_numba_the_twin_stands_in(monkeypatch):
    monkeypatch.setattr(module, "_numba", lambda: None)
    assert compiled(len, max) is max


def test_without_numba_a_loop_without_a_twin_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(module, "_numba", lambda: None)
    assert compiled(len) is len


def test_loops_without_a_twin_give_the_same_bits_in_plain_python(monkeypatch):
    rng = np.random.default_rng(5)
    table = rng.poisson(0.2, (2, 67, 16)).astype(np.uint32)
    values = rng.normal(size=300).astype(np.float32) * np.float32(2.0) ** rng.integers(-60, 60, 300).astype(np.float32)
    bins, counts = np.unique(values.view(np.uint32) >> np.uint32(SHIFT), return_counts=True)
    observed = (float(values.min()), float(values.max()))

    def results():
        limbs = exactsum.zeros(300)
        exactsum.add(limbs, values.astype(np.float64))
        exactsum.add(limbs, np.square(values, dtype=np.float64))
        source = loglinear.histogram(bins.astype(np.int64), counts, 3, observed)
        return [limbs, exactsum.canonical(limbs), *kernels.gather(table, 64, (2, 30)), *mse.points_of(source)]

    compiled_ones = results()
    for place, name, loop in (
        (exactsum, "add", exactsum._add_loop),
        (kernels, "gather", kernels._gather_loop),
        (loglinear, "_resample", loglinear._resample_loop),
    ):
        monkeypatch.setattr(place, name, loop)
    for one, other in zip(compiled_ones, results(), strict=True):
        np.testing.assert_array_equal(one, other)


def _double(values):
    return values * 2


def _triple(values):
    return values * 3


def test_a_twin_serves_for_a_little_work_then_the_loop(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(module, "_may_wait", lambda function, name: True)
    call = compiled(_double, _triple, value_s=0.1)
    assert [float(call(np.ones(size))[0]) for size in (4, 4, 4, 1)] == [3, 3, 2, 2]


def test_a_twin_whose_loop_is_cached_does_not_serve(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(module, "_may_wait", lambda function, name: False)
    assert compiled(_double, _triple, value_s=0.1)(np.ones(1)) == 2


def test_processes_wait_while_nothing_is_cached_and_not_for_ever(tmp_path):
    function = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path / "cache")))
    asked = [module._may_wait(function, "_loop") for _ in range(module.PROCESSES + 2)]
    assert asked == [True] * module.PROCESSES + [False] * 2
    (tmp_path / "cache" / "rounding._other-9.py311.nbi").touch()
    assert not module._may_wait(function, "_other")


def test_a_process_waits_where_nothing_can_be_cached(tmp_path):
    (tmp_path / "file").touch()
    for place in (None, str(tmp_path / "file" / "below")):
        assert module._may_wait(SimpleNamespace(stats=SimpleNamespace(cache_path=place)), "_loop")


def in_a_process(code, **variables):
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])} | variables
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_where_compiling_is_switched_off_the_twins_run_without_a_warning():
    code = """
import int8cal.calibration.engines as module
from int8cal.numerics import kernels
module.warm_up()
print(kernels.observe is kernels.observe_twin)
"""
    done = in_a_process(code, NUMBA_DISABLE_JIT="1")
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_a_variable_that_numba_cannot_work_with_is_a_usage_error_that_shows_it(value):
    pytest.importorskip("numba")
    code = """
from int8cal.errors import UsageError
try:
    import int8cal.numerics.kernels
except UsageError as error:
    print(error)
"""
    done = in_a_process(code, NUMBA_NUM_THREADS=value)
    assert f"NUMBA_NUM_THREADS={value}" in done.stdout
    assert done.stderr == ""


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
