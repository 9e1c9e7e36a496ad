import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import int8cal
from int8cal.numerics import compiled as module
from int8cal.numerics import exactsum, kernels, kl, loglinear, metrics, mse
from int8cal.numerics.affine import S8, U8, affine_from_range
from int8cal.numerics.compiled import compiled
from int8cal.numerics.loglinear import SHIFT


def test_without_numba_the_twin_stands_in(monkeypatch):
    monkeypatch.setattr(module, "_numba", lambda: None)
    assert compiled(len, max) is max


def test_without_numba_a_loop_without_a_twin_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(module, "_numba", lambda: None)
    assert compiled(len) is len


def values_of(kind):
    """Values whose histograms are hard in some way."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=3000) * 10.0 ** rng.integers(-3, 4)
    made = {
        "two-sided": x,
        "one-sided": np.maximum(x, 0.0),
        "negative": -np.abs(x),
        "clipped": np.clip(np.abs(x), 0.0, np.median(np.abs(x))),
        "heavy tails": x**3,
        "few values": np.rint(x / np.abs(x).max() * 8),
        "an outlier": np.append(x, 1e4 * np.abs(x).max()),
        "one": np.array([0.7]),
    }
    return made[kind].astype(np.float32)


KINDS = ("two-sided", "one-sided", "negative", "clipped", "heavy tails", "few values", "an outlier", "one")
TWINS = (
    (kernels, "gather", kernels.gather_twin),
    (loglinear, "_resample", loglinear._resample_twin),
    (metrics, "_error_sums", metrics._error_twin),
    (kl, "_search", kl._search_twin),
    (mse, "_search", mse._search_twin),
    (mse, "_error", mse._error_twin),
)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_and_their_twins_give_the_same_bits(kind, monkeypatch):
    values = values_of(kind)
    bins, counts = np.unique(values[values != 0].view(np.uint32) >> np.uint32(SHIFT), return_counts=True)
    table = np.random.default_rng(6).poisson(0.2, (2, 67, 16)).astype(np.uint32)
    zeros, observed = int((values == 0).sum()), (float(values.min()), float(values.max()))
    source = loglinear.histogram(bins.astype(np.int64), counts, zeros, observed)

    def results():
        yield from kernels.gather(table, 64, (2, 30))
        yield from (points := mse.points_of(source))
        for dtype, symmetric in ((U8, False), (S8, True), (S8, False)):
            yield (ends := mse.mse_range(source, dtype, symmetric=symmetric, points=points))
            yield mse.squared_error(*points, affine_from_range(*ends, dtype))
        magnitudes = loglinear.linear_histogram(source.nonzero, np.linspace(0, source.amax, 2049), magnitude=True)
        for levels in (128, 256):
            yield kl.divergences(magnitudes, levels)
            yield (kl.entropy_threshold(magnitudes, levels, 0.5) or (0.0, 0))
        for dtype in (np.float32, np.float64):
            sums = metrics.error_sums(values.astype(dtype), np.rint(values.astype(dtype) * 3) / 3)
            yield (sums.signal, sums.energy, sums.noise, sums.dot, sums.max_abs)

    loops = list(results())
    for place, name, twin in TWINS:
        monkeypatch.setattr(place, name, twin)
    for one, other in zip(loops, results(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_exact_sums_are_the_same_in_the_loop_that_other_loops_call():
    rng = np.random.default_rng(5)
    values = np.append(rng.normal(size=300) * 2.0 ** rng.integers(-400, 400, 300), [0.0, -0.0, np.inf, np.nan, 5e-324])
    limbs, others = exactsum.zeros(values.size), exactsum.zeros(values.size)
    for terms in (values, values[::-1].copy()):
        exactsum.add(limbs, terms)
        exactsum.add_part(others, terms)
    np.testing.assert_array_equal(limbs, others)
    assert limbs.any(axis=1).sum() > 200


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


def test_calls_of_a_twin_count_by_what_they_took(monkeypatch):
    pytest.importorskip("numba")
    ticks = itertools.count(step=0.4)  # each call takes this long, however small its array
    monkeypatch.setattr(module, "thread_time", lambda: next(ticks))
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(module, "_may_wait", lambda function, name: True)
    call = compiled(_double, _triple, value_s=1e-9)
    assert [float(call(np.ones(1))[0]) for _ in range(5)] == [3, 3, 3, 2, 2]


def test_a_twin_whose_loop_is_cached_does_not_serve(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(module, "_may_wait", lambda function, name: False)
    assert compiled(_double, _triple, value_s=0.1)(np.ones(1)) == 2


def test_processes_wait_while_nothing_is_cached_and_not_for_ever(tmp_path):
    function = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path / "cache")))
    asked = [module._may_wait(function, "kl._loop") for _ in range(module.PROCESSES + 2)]
    assert asked == [True] * module.PROCESSES + [False] * 2
    (tmp_path / "cache" / "rounding._other-9.py311.nbi").touch()
    assert not module._may_wait(function, "rounding._other")
    assert module._may_wait(function, "mse._other")  # of that name too, and not cached


def test_a_process_waits_where_nothing_can_be_cached(tmp_path):
    (tmp_path / "file").touch()
    for place in (None, str(tmp_path / "file" / "below")):
        assert module._may_wait(SimpleNamespace(stats=SimpleNamespace(cache_path=place)), "_loop")


def in_a_process(code, **variables):
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])} | variables
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_where_compiling_is_switched_off_the_twins_run_without_a_warning():
    code = """
import int8cal.calibration.engines.local as module
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


def test_a_tensor_that_was_only_zero_has_no_counts():
    table = np.zeros((2, 12, 4), np.uint32)
    for gather in (kernels.gather, kernels.gather_twin):
        assert [each.size for each in gather(table, 8, (3, 2))] == [0, 0]
