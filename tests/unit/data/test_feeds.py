from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from int8cal.data.opening import open_feeds
from int8cal.data.sample import Sample
from int8cal.errors import ModelError
from int8cal.graph.signature import Signature, TensorSpec
from int8cal.job import DataSettings

_VECTOR = Signature((TensorSpec("x", np.dtype(np.float32), ("N", 3)),), ())


def _save_rows(folder, count):
    for index in range(count):
        np.save(folder / f"{index:03}.npy", np.full(3, index, np.float32))


def _values(opened):
    return [int(sample.feed["x"][0, 0]) for sample in opened]


def test_every_pass_gives_the_same_samples(tmp_path, vector, feeds):
    _save_rows(tmp_path, 5)
    opened = feeds(tmp_path, vector)
    assert _values(opened) == _values(opened) == [0, 1, 2, 3, 4]


def test_two_passes_can_run_at_once(tmp_path, vector, feeds):
    _save_rows(tmp_path, 3)
    opened = feeds(tmp_path, vector)
    assert all(a.fingerprint == b.fingerprint for a, b in zip(opened, opened, strict=True))


def test_samples_is_a_seeded_choice_kept_in_order(tmp_path, vector, feeds):
    _save_rows(tmp_path, 40)
    chosen = _values(feeds(tmp_path, vector, samples=10))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 10
    assert chosen == _values(feeds(tmp_path, vector, samples=10))
    assert chosen != list(range(10))
    assert chosen != _values(feeds(tmp_path, vector, samples=10, seed=1))


def test_choice_of_samples_is_the_same_on_every_machine(tmp_path, vector, feeds):
    _save_rows(tmp_path, 10)
    assert _values(feeds(tmp_path, vector, samples=3, seed=0)) == [2, 4, 8]


def test_choice_does_not_depend_on_how_rows_are_spread_over_files(tmp_path, vector, feeds):
    rows = np.repeat(np.arange(40, dtype=np.float32)[:, None], 3, axis=1)
    np.save(tmp_path / "all.npy", rows)
    (tmp_path / "single").mkdir()
    _save_rows(tmp_path / "single", 40)
    assert _values(feeds(tmp_path / "all.npy", vector, samples=7)) == _values(
        feeds(tmp_path / "single", vector, samples=7)
    )


def test_more_samples_than_there_are_means_all(tmp_path, vector, feeds):
    _save_rows(tmp_path, 4)
    assert feeds(tmp_path, vector, samples=100).count == 4


def test_model_without_inputs_is_a_model_error(tmp_path, feeds):
    with pytest.raises(ModelError, match="has no inputs"):
        feeds(tmp_path, Signature((), ()))


def test_a_batch_of_no_rows_is_a_model_error(tmp_path, feeds):
    _save_rows(tmp_path, 2)
    with pytest.raises(ModelError, match=r"input 'x' has shape \(0, 3\): no sample has 0 rows"):
        feeds(tmp_path, Signature((TensorSpec("x", np.dtype(np.float32), (0, 3)),), ()))


def test_only_one_file_is_loaded_at_a_time(tmp_path, vector, feeds):
    _save_rows(tmp_path, 3)
    stream = iter(feeds(tmp_path, vector))
    next(stream)
    # a file that breaks later is met only when its turn comes
    (tmp_path / "001.npy").unlink()
    with pytest.raises(Exception, match=r"001\.npy: cannot be read"):
        next(stream)


def test_feeds_travel_to_other_processes(tmp_path, rgb, vector, feeds, paint):
    paint(tmp_path / "i/a.png")
    (tmp_path / "n").mkdir()
    _save_rows(tmp_path / "n", 2)
    for opened in (feeds(tmp_path / "i", rgb), feeds(tmp_path / "n", vector)):
        copy = pickle.loads(pickle.dumps(opened))  # noqa: S301 - what was pickled on this line
        assert [sample.fingerprint for sample in copy] == [sample.fingerprint for sample in opened]


def test_fingerprint_depends_on_names_dtypes_shapes_and_bytes_only():
    x = np.arange(6, dtype=np.float32).reshape(1, 6)
    known = Sample({"x": x, "y": x}, "here", 3).fingerprint
    assert 0 <= known < 2**128
    assert known == Sample({"y": x.copy(), "x": x.copy()}, "there", None).fingerprint
    assert known == Sample({"x": np.asfortranarray(x), "y": x.astype(">f4").astype("<f4")}, "", None).fingerprint
    others = [
        {"x": x},
        {"x": x, "z": x},
        {"x": x, "y": x.reshape(2, 3)},
        {"x": x, "y": x.view(np.int32)},
        {"x": x, "y": x + 1},
    ]
    hashes = {Sample(other, "").fingerprint for other in others}
    assert len(hashes | {known}) == 6


@settings(max_examples=25, deadline=None)
@given(data=st.data(), rows=st.integers(1, 12))
def test_any_split_of_rows_into_files_gives_the_same_fingerprints(data, rows):
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    order = data.draw(st.permutations(range(rows)))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    compressed = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "whole.npy"), Path(folder, "parts")
        np.save(whole, values)
        parts.mkdir()
        for index, rows_of_file in enumerate(np.split(values[list(order)], cuts)):
            if compressed:
                np.savez_compressed(parts / f"{index}.npz", x=rows_of_file)
            elif len(rows_of_file) == 1:
                np.save(parts / f"{index}.npy", rows_of_file[0])
            else:
                np.save(parts / f"{index}.npy", rows_of_file)
        split = sorted(sample.fingerprint for sample in open_feeds(DataSettings(str(parts)), _VECTOR))
        assert split == sorted(sample.fingerprint for sample in open_feeds(DataSettings(str(whole)), _VECTOR))


def test_importing_data_loads_nothing_heavy():
    code = "import sys, int8cal.data.opening; print(sorted({'PIL', 'onnx', 'onnxruntime', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
