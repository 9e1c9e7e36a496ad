from __future__ import annotations

import dataclasses
import json
import os
import zipfile

import numpy as np
import pytest

from int8cal.data.sample import fingerprint_of
from int8cal.errors import DataError, StatisticsError


def _x(rows, start=0):
    return np.arange(start, start + rows * 3, dtype=np.float32).reshape(rows, 3)


def message_of(action):
    try:
        action()
    except DataError as error:
        return str(error)
    return ""


def test_npy_batch_is_streamed_row_by_row(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", _x(4))
    opened = feeds(tmp_path / "a.npy", vector)
    samples = list(opened)
    assert opened.count == len(samples) == 4
    assert not opened.labelled
    np.testing.assert_array_equal(np.concatenate([sample.feed["x"] for sample in samples]), _x(4))
    assert samples[3].origin.endswith("a.npy[3]")
    assert samples[3].label is None


def test_npy_with_one_sample_has_no_row_in_its_origin(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", _x(1)[0])
    (sample,) = feeds("a.npy", vector, base=tmp_path)
    assert sample.origin == "a.npy"
    assert sample.feed["x"].shape == (1, 3)


def test_npy_for_a_model_with_two_inputs_advises_npz(tmp_path, pair, feeds):
    np.save(tmp_path / "a.npy", _x(1))
    with pytest.raises(DataError, match=r"the model has 2: ids, weight; use \.npz"):
        feeds(tmp_path, pair)


def test_of_a_big_npy_only_the_chosen_rows_are_read(tmp_path, signature, feeds):
    path = tmp_path / "big.npy"
    header = {"descr": "<f4", "fortran_order": False, "shape": (1_000_000, 3000)}
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 4 * 3000 * 1_000_000)  # 12 GB that take no space on disk
    opened = feeds(path, signature(x=("N", 3000)), samples=2)
    assert [sample.feed["x"].sum() for sample in opened] == [0, 0]


def test_npz_keys_are_the_input_names(tmp_path, pair, feeds):
    ids, weight = np.arange(10).reshape(2, 5), np.ones((2, 5), np.float32)
    np.savez_compressed(tmp_path / "b.npz", ids=ids, weight=weight)
    first, second = feeds(tmp_path, pair)
    np.testing.assert_array_equal(second.feed["ids"], [[5, 6, 7, 8, 9]])
    assert first.feed["weight"].dtype == np.float32


def test_input_names_with_slashes_and_colons_are_keys_too(tmp_path, signature, feeds):
    np.savez(tmp_path / "a.npz", **{"net/input:0": _x(2)})
    assert len(list(feeds(tmp_path, signature(**{"net/input:0": ("N", 3)})))) == 2


def test_npz_labels_are_known_before_iterating(tmp_path, vector, feeds):
    np.savez(tmp_path / "a.npz", x=_x(2), labels=np.array([4, 1]))
    np.savez(tmp_path / "b.npz", x=_x(1), label=np.array(7, np.int32))
    opened = feeds(tmp_path, vector, require_labels=True)
    assert opened.labelled
    assert [sample.label for sample in opened] == [4, 1, 7]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.5, 1.0]), "expected integers"),
        (np.array([1]), r"shape \(1,\), expected \(2,\)"),
        (np.eye(2, dtype=np.int64), r"shape \(2, 2\), expected \(2,\)"),
        (np.array([3, -1]), "label -1 is negative"),
    ],
)
def test_malformed_npz_labels_are_refused(tmp_path, vector, feeds, labels, message):
    np.savez(tmp_path / "a.npz", x=_x(2), labels=labels)
    with pytest.raises(DataError, match=message):
        feeds(tmp_path, vector)


def test_labels_in_some_npz_files_only_are_refused(tmp_path, vector, feeds):
    np.savez(tmp_path / "a.npz", x=_x(1), labels=np.array([0]))
    np.savez(tmp_path / "b.npz", x=_x(1))
    with pytest.raises(DataError, match=r'b\.npz: has no key "labels"'):
        feeds(tmp_path, vector)


def test_wrong_shape_in_the_last_file_is_reported_when_opened(tmp_path, vector, feeds):
    for index in range(20):
        np.savez(tmp_path / f"{index:02}.npz", x=_x(1))
    np.savez(tmp_path / "99.npz", x=np.zeros((1, 4), np.float32))
    with pytest.raises(DataError, match=r"99\.npz: input \"x\" has shape \(1, 4\)"):
        feeds(tmp_path, vector)


def test_wrong_dtype_in_the_last_file_is_reported_when_opened(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", _x(1))
    np.save(tmp_path / "b.npy", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"b\.npy: input \"x\" has dtype uint8, the model expects float32"):
        feeds(tmp_path, vector)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_pickled_objects_are_never_loaded(tmp_path, vector, feeds, name):
    objects = np.array([{"never": "loaded"}], dtype=object)
    if name == "a.npz":
        np.savez(tmp_path / name, x=objects)
    else:
        np.save(tmp_path / name, objects)
    with pytest.raises(DataError, match=f"{name}: cannot be read: it holds pickled"):
        feeds(tmp_path, vector)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00\xff\xff{'descr'", b"PK\x03\x04broken"])
def test_corrupt_file_is_named(tmp_path, vector, feeds, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: cannot be read"):
        feeds(tmp_path, vector)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
@pytest.mark.parametrize("text", [b"(", b"'", b"{", b"0", b"\xff", b"-", b"[", b"\x00", b"9" * 30, b"{}", b"'" * 3])
def test_every_damage_to_a_header_is_told_or_harmless(tmp_path, vector, feeds, name, text):
    np.save(tmp_path / "whole.npy", _x(2))
    whole = (tmp_path / "whole.npy").read_bytes()
    (tmp_path / "whole.npy").unlink()
    for place in range(8, 72):
        content = whole[:place] + text + whole[place + len(text) :]
        if name == "a.npz":
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("x.npy", content)
        else:
            (tmp_path / name).write_bytes(content)
        # some damages leave a sound header
        told = message_of(lambda: list(feeds(tmp_path / name, vector)))
        assert not told or (name in told and told.isprintable())


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_file_that_is_cut_off_is_reported_when_opened(tmp_path, vector, feeds, name):
    if name == "a.npz":
        np.savez(tmp_path / name, x=_x(50))
    else:
        np.save(tmp_path / name, _x(50))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-40])
    with pytest.raises(DataError, match=f"{name}: cannot be read"):
        feeds(tmp_path, vector)


def test_npz_member_that_is_cut_off_is_reported_when_opened(tmp_path, vector, feeds):
    np.save(tmp_path / "x.tmp.npy", _x(50))
    whole = (tmp_path / "x.tmp.npy").read_bytes()
    (tmp_path / "x.tmp.npy").unlink()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", whole[:-8])
    with pytest.raises(DataError, match='"x" misses 8 bytes'):
        feeds(tmp_path, vector)


def test_npz_with_a_wrong_checksum_is_named_when_read(tmp_path, vector, feeds):
    np.savez(tmp_path / "a.npz", x=_x(5000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"a\.npz: cannot be read"):
        list(feeds(tmp_path, vector))


def test_skip_bad_counts_unreadable_files_found_when_opened_and_when_read(tmp_path, vector, feeds):
    np.savez(tmp_path / "b.npz", x=_x(5000))
    content = bytearray((tmp_path / "b.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "b.npz").write_bytes(bytes(content))
    (tmp_path / "a.npz").write_bytes(b"broken")
    np.savez(tmp_path / "c.npz", x=_x(2))
    opened = feeds(tmp_path, vector, skip_bad=True)
    for _ in range(2):
        assert len(list(opened)) == 2
        assert [name.rpartition("/")[2] for name in opened.skipped] == ["a.npz", "b.npz"]


def test_skip_bad_does_not_hide_a_wrong_shape(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", _x(1))
    np.save(tmp_path / "b.npy", np.zeros((1, 4), np.float32))
    with pytest.raises(DataError, match="the model expects"):
        feeds(tmp_path, vector, skip_bad=True)


def test_skip_bad_does_not_hide_a_nan(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", np.full((1, 3), np.nan, np.float32))
    with pytest.raises(StatisticsError):
        list(feeds(tmp_path, vector, skip_bad=True))


def test_all_files_skipped_is_an_error(tmp_path, vector, feeds):
    (tmp_path / "a.npy").write_bytes(b"broken")
    with pytest.raises(DataError, match="none of 1 files can be read"):
        feeds(tmp_path, vector, skip_bad=True)


def test_files_without_rows_hold_no_sample(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", np.zeros((0, 3), np.float32))
    with pytest.raises(DataError, match="holds no sample"):
        feeds(tmp_path, vector)


def test_zero_sized_dimension_is_fed(tmp_path, signature, feeds):
    np.save(tmp_path / "a.npy", np.zeros((2, 0), np.float32))
    assert [sample.feed["x"].shape for sample in feeds(tmp_path, signature(x=("N", "past")))] == [(1, 0), (1, 0)]


def test_preprocess_on_arrays_is_refused_and_not_ignored(tmp_path, vector, feeds):
    from int8cal.preprocess import Preprocess

    np.save(tmp_path / "a.npy", _x(1))
    with pytest.raises(
        DataError,
        match=r"applies to images, .*; leave out --preprocess, --resize and the like \(data",
    ):
        feeds(tmp_path, vector, preprocess=Preprocess(scale=0.5))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_an_npy_gives_its_rows_in_any_order_of_bytes_and_axes(tmp_path, vector, feeds, order, dtype):
    np.save(tmp_path / "a.npy", np.asarray(_x(5), dtype=dtype, order=order))
    for samples in (None, 3):
        opened = feeds(tmp_path / "a.npy", vector, samples=samples)
        rows = [int(sample.feed["x"][0, 0]) // 3 for sample in opened]
        np.testing.assert_array_equal(np.concatenate([sample.feed["x"] for sample in opened]), _x(5)[rows])


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npy_that_is_cut_off_while_it_is_read_is_an_error_that_names_it(tmp_path, signature, feeds, order):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((4, 30000), np.float32, order=order))
    opened = feeds(path, signature(x=("N", 30000)))
    if order == "F":
        os.truncate(path, path.stat().st_size // 2)

    def read():
        for sample in opened:
            assert sample.feed["x"].sum() == 30000
            os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(DataError, match=r"a\.npy: cannot be read: \d+ bytes are missing at its end"):
        read()


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_file_that_is_replaced_by_one_with_fewer_rows_is_an_error_that_names_it(tmp_path, vector, feeds, suffix):
    path = tmp_path / f"a.{suffix}"

    def save(rows):
        if suffix == "npy":
            np.save(path, _x(rows))
        else:
            np.savez(path, x=_x(rows))

    save(4)
    opened = feeds(path, vector)
    save(2)
    with pytest.raises(DataError, match=rf"a\.{suffix}: cannot be read: it changed while it was in use"):
        list(opened)


def test_npy_may_be_a_stack_of_samples_that_have_no_batch_axis(tmp_path, signature, feeds):
    values = np.random.default_rng(0).normal(size=(5, 20, 2, 4)).astype(np.float32)
    model = dataclasses.replace(signature(x=(20, 2, 4)), whole=True)
    for name, array in {"rows": values, "columns": np.asfortranarray(values)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        found = [sample.feed["x"] for sample in feeds(tmp_path / f"{name}.npy", model)]
        np.testing.assert_array_equal(found, values)


def test_arrays_that_are_cut_into_samples_say_so(tmp_path, pair, vector, feeds):
    np.savez(tmp_path / "two.npz", ids=np.ones((3, 7), np.int64), weight=np.ones((3, 7), np.float32))
    np.save(tmp_path / "one.npy", _x(3))
    np.save(tmp_path / "single.npy", _x(1)[0])
    for name, model in (("two.npz", pair), ("one.npy", vector)):
        path = tmp_path / name
        assert feeds(path, model).made == (f"arrays of {path} are cut into 3 samples along their first axis",)
    assert feeds(tmp_path / "single.npy", vector).made == ()


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_files_of_text_feed_an_input_of_text(tmp_path, signature, feeds, name):
    texts = np.array(["red", "é", "blue"])
    np.save(tmp_path / name, texts) if name == "a.npy" else np.savez(tmp_path / name, x=texts)
    samples = list(feeds(tmp_path / name, signature(x=(("N",), object))))
    assert [sample.feed["x"].tolist() for sample in samples] == [["red"], ["é"], ["blue"]]


def test_fingerprints_of_text_are_those_of_what_it_says():
    texts = (["ab", "c"], ["a", "bc"], ["ab", "c"])
    # texts made anew, which lie elsewhere
    made = [fingerprint_of({"x": np.array(json.loads(json.dumps(each)), object)}) for each in texts]
    assert made[0] == made[2]
    assert made[0] != made[1]
