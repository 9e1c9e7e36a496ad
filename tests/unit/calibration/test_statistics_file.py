import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from int8cal.calibration import statistics_file
from int8cal.calibration.statistics import Statistics, Widths
from int8cal.calibration.statistics_file import load_statistics, save_statistics
from int8cal.errors import StatisticsError
from int8cal.graph.taps import Tap

STORED = [Path(__file__).parents[2] / "golden" / f"statistics_v{version}.stats.npz" for version in (1, 2, 3)]


@pytest.fixture
def path(tmp_path, tools):
    target = tmp_path / "m.stats.npz"
    save_statistics(tools.statistics(), target)
    return target


def rewrite(path, change):
    """Rewrite a statistics file after `change` worked on its arrays and its header."""
    with np.load(path) as data:
        arrays = {key: data[key] for key in data.files}
    header = json.loads(arrays["header"].tobytes())
    header = change(arrays, header) or header
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            archive.writestr(f"{key}.npy", member.getvalue())


def refused(path, match):
    with pytest.raises(StatisticsError, match=match) as caught:
        load_statistics(path)
    assert str(path) in str(caught.value)
    assert caught.value.do


def test_the_same_statistics_are_the_same_bytes(tools):
    assert tools.file_bytes(tools.statistics()) == tools.file_bytes(tools.statistics())
    assert tools.file_bytes(tools.statistics(1)) != tools.file_bytes(tools.statistics(2))


def test_loading_gives_back_what_was_saved(path, tools):
    loaded = load_statistics(path)
    assert (loaded.model_sha256, loaded.fingerprint, loaded.samples) == ("a" * 64, 3 * 10**30, 2)
    assert list(loaded.tensors) == ["hidden", "plain"]
    assert loaded.tensors["plain"].channels is None
    assert tools.file_bytes(loaded) == path.read_bytes()


def test_how_much_single_samples_differ_is_the_same_of_shards(tools, tmp_path):
    shards = tools.statistics(1), tools.statistics(2)
    for number, shard in enumerate(shards):
        save_statistics(shard, tmp_path / f"{number}.stats.npz")
    loaded = load_statistics(tmp_path / "0.stats.npz") + load_statistics(tmp_path / "1.stats.npz")
    assert loaded.tensors["hidden"].widths == (shards[0] + shards[1]).tensors["hidden"].widths
    assert 0 < loaded.uncertainty == (shards[1] + shards[0]).uncertainty


def test_of_statistics_without_them_added_to_others_nobody_knows_how_much_samples_differ(tools):
    old = tools.statistics(1)
    old = replace(old, tensors={name: replace(each, widths=Widths()) for name, each in old.tensors.items()})
    news = tools.statistics(2) + tools.statistics(3)
    assert news.uncertainty is not None
    for total in (old + news, news + old, tools.statistics(2) + old + tools.statistics(3)):
        assert total.uncertainty is None


def test_names_with_slashes_colons_and_the_word_header_survive(tools, tmp_path):
    names = ["/layer1/conv:0", "header", "a.npy", "räume", "x:channel_low"]
    save_statistics(Statistics("0" * 64, 1, 1, {name: tools.count([1.0]) for name in names}), tmp_path / "s.npz")
    assert list(load_statistics(tmp_path / "s.npz").tensors) == names


def test_a_tensor_that_was_never_seen_stays_unseen(tools, tmp_path):
    empty = tools.count(np.zeros((1, 3, 0)), tap=Tap("t", 1, 3, True))
    save_statistics(Statistics("0" * 64, 1, 1, {"t": empty}), tmp_path / "s.npz")
    loaded = load_statistics(tmp_path / "s.npz").tensors["t"]
    assert (loaded.minimum, loaded.maximum, loaded.count) == (np.inf, -np.inf, 0)
    assert (loaded + tools.count(np.ones((1, 3, 2)), tap=Tap("t", 1, 3, True))).minimum == 1.0


def test_the_header_says_what_the_file_is(path):
    with np.load(path) as data:
        header = json.loads(data["header"].tobytes())
    assert (header["format"], header["version"]) == ("int8cal/statistics", 3)


def test_a_missing_file_says_so(tmp_path):
    refused(tmp_path / "no.stats.npz", "does not exist")


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9])
def test_a_truncated_file_is_not_readable(path, kept):
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    refused(path, "not a readable statistics file")


def test_a_damaged_array_is_found(path):
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("plain:counts.npy")
    data = bytearray(path.read_bytes())
    data[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    refused(path, "not a readable statistics file")


def test_other_files_are_refused(path, tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", header=np.frombuffer(b'{"format": "else", "version": 1}', np.uint8))
    np.savez(tmp_path / "list.npz", header=np.frombuffer(b"[1]", np.uint8))
    np.savez(tmp_path / "samples.npz", x=np.ones(3))
    (tmp_path / "text.npz").write_text("hello", encoding="utf-8")
    for name in ("array.npy", "other.npz", "list.npz", "samples.npz", "text.npz"):
        refused(tmp_path / name, "not a readable statistics file")


def test_a_pickle_is_never_loaded(path):
    rewrite_objects = np.array([{"a": 1}], dtype=object)
    np.savez(path, header=rewrite_objects)
    refused(path, "not a readable statistics file")


def test_a_newer_version_asks_for_an_update(path):
    rewrite(path, lambda arrays, header: header.update(version=4))
    refused(path, "version 4, this int8cal reads up to 3; update int8cal")


@pytest.mark.parametrize("version", ["1", None])
def test_a_version_that_is_no_number_is_refused(path, version):
    rewrite(path, lambda arrays, header: header.update(version=version))
    refused(path, "not a readable statistics file")


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, header: arrays.pop("plain:bins"),
        lambda arrays, header: arrays.update({"plain:counts": arrays["plain:counts"][:-1]}),
        lambda arrays, header: arrays.update({"plain:counts": arrays["plain:counts"].astype(np.float64)}),
        lambda arrays, header: arrays.update({"hidden:channel_low": arrays["hidden:channel_low"][:2]}),
        lambda arrays, header: header.update(tensors=[1, 2]),
        lambda arrays, header: header.update(fingerprint="xyz"),
        lambda arrays, header: header["tensors"]["plain"].pop("zeros"),
        lambda arrays, header: header["tensors"].update(more={"minimum": 0.0}),
    ],
    ids=["no bins", "short", "floats", "channels", "list", "fingerprint", "no zeros", "unknown"],
)
def test_a_file_that_contradicts_itself_is_damaged(path, change):
    def apply(arrays, header):
        change(arrays, header)
        return header

    rewrite(path, apply)
    refused(path, "damaged")


def axes(array):
    return array[..., None]


def first(value):
    def change(array):
        # types of histograms are as narrow as their values
        array = array.astype(
            np.promote_types(array.dtype, np.min_scalar_type(value)) if array.dtype.kind == "u" else array.dtype
        )
        array.reshape(-1)[0] = value
        return array

    return change


DAMAGED = {
    "histogram": {
        "bins": [axes, np.negative, np.zeros_like, lambda a: a[:-1], lambda a: a * np.nan, first(2**18 - 1), str],
        "counts": [axes, np.negative, np.zeros_like, first(0), first(2**62), lambda a: a.astype(np.int32)],
    },
    "channels": {
        "low": [axes, lambda a: a * np.nan, first(np.nan), first(-np.inf), first(1e9), lambda a: a.astype(float), str],
        "high": [axes, np.negative, np.zeros_like, lambda a: a[:2], first(np.inf), lambda a: a.astype(np.float16)],
        "total": [axes, np.negative, lambda a: a[:-1], lambda a: a[:, :-1], lambda a: a * np.nan, first(1 << 32), str],
        "square": [axes, np.negative, lambda a: a[:-1], lambda a: a * 1.0, first(-1), lambda a: a.reshape(-1)],
        "bins": [axes, np.negative, np.zeros_like, lambda a: a[:-1], lambda a: a * 1.0, first(3 * 8192), str],
        "counts": [axes, np.negative, np.zeros_like, lambda a: a[:-1], first(10**6)],
    },
    "header": {
        "zeros": [-1, 1.5, None, True, "x", 5],
        "minimum": [None, "x", float("nan"), float("-inf"), 1e9, -1e9, []],
        "maximum": [None, float("inf"), -1e9, 1e9, 10**400],
        "channel_count": [-1, 5, 1.0, "x", []],
        # samples, the sum of their widths, and that of the squares
        "widths": [["-1", "0", "0"], ["2", "3", "4"], ["2", "4", "11"], ["2", "-3", "5"], ["1", f"{1 << 279:x}", "0"]],
    },
}


@pytest.mark.parametrize(
    ("part", "key", "index"),
    [(part, key, i) for part, keys in DAMAGED.items() for key, changes in keys.items() for i in range(len(changes))],
)
def test_what_no_pass_leaves_is_damaged_and_names_the_tensor(path, part, key, index):
    change = DAMAGED[part][key][index]

    def apply(arrays, header):
        if part == "header":
            header["tensors"]["hidden"][key] = change
            return
        name = f"hidden:channel_{key}" if part == "channels" else f"hidden:{key}"
        arrays[name] = np.array("x") if change is str else change(arrays[name])

    rewrite(path, apply)
    refused(path, r"damaged \(.* of .*'hidden'\)")


def test_channel_histograms_cut_short_together_are_damaged(path):
    def apply(arrays, header):
        for key in ("bins", "counts"):
            arrays[f"hidden:channel_{key}"] = arrays[f"hidden:channel_{key}"][:-1]

    rewrite(path, apply)
    refused(path, "histogram of the channels of 'hidden'")


@pytest.mark.parametrize("samples", [-1, 1.5, True, None, "2"])
def test_a_number_of_samples_that_is_none_is_damaged(path, samples):
    rewrite(path, lambda arrays, header: header.update(samples=samples))
    refused(path, "damaged")


@pytest.mark.parametrize("stored", STORED)
def test_the_stored_artefact_stays_readable(stored):
    # written by each version; a later format may add to it but must keep reading it
    statistics = load_statistics(stored)
    assert statistics.model_sha256 == "c0ffee" * 10 + "0000"
    assert statistics.fingerprint == 0x0123456789ABCDEF0123456789ABCDEF
    assert statistics.samples == 2
    assert list(statistics.tensors) == ["input", "/conv/Conv_output_0", "empty"]
    hidden = statistics.tensors["/conv/Conv_output_0"]
    assert (hidden.count, hidden.zeros, hidden.minimum, hidden.maximum) == (8, 1, -3.0, 6.0)
    assert hidden.channels.mean.tolist() == [0.5, 1.375]
    assert hidden.channels.amax.tolist() == [3.0, 6.0]
    assert hidden.channels.mean_square.tolist() == [4.5, 9.03125]
    assert hidden.by_channel
    histogram = statistics.tensors["input"].histogram
    assert histogram.observed == (0.25, 1.0)
    assert histogram.counts.tolist() == [1, 1, 2]
    assert statistics.tensors["empty"].count == 0


def test_stored_artefacts_of_all_versions_are_the_same_and_add(tools):
    first, *others = map(load_statistics, STORED)
    for other in others:
        assert tools.file_bytes(other) == tools.file_bytes(first)
        assert (first + other).tensors["input"].count == 8


@pytest.mark.parametrize("key", ["plain:bins", "plain:counts", "hidden:channel_bins", "hidden:channel_counts"])
def test_histograms_as_earlier_versions_wrote_them_are_damaged_in_this_one(path, key):
    rewrite(path, lambda arrays, header: arrays.update({key: arrays[key].astype(np.int64)}))
    refused(path, rf"damaged \(histogram of .*'{key.partition(':')[0]}'\)")


def test_a_histogram_takes_the_narrowest_types(tools, tmp_path):
    path = tmp_path / "s.npz"
    values = np.repeat(np.float32([0.5, 0.5, 2.0]), 300)
    save_statistics(Statistics("0" * 64, 1, 1, {"t": tools.count(values)}), path)
    with np.load(path) as data:
        found = data["t:bins"], data["t:counts"]
    assert [each.dtype for each in found] == [np.uint32, np.uint16]
    assert found[1].tolist() == [600, 300]
    np.testing.assert_array_equal(found[0].cumsum(), load_statistics(path).tensors["t"].bins)


def test_what_packed_histograms_become_counts_against_what_an_archive_may(path, monkeypatch):
    monkeypatch.setattr(statistics_file, "_HARMLESS", 1_000)
    monkeypatch.setattr(statistics_file, "_GROWTH", 4)  # its bytes are below that, its int64 values are not
    ones = np.ones(100_000, np.uint8)
    rewrite(path, lambda arrays, header: arrays.update({"plain:bins": ones, "plain:counts": ones}))
    refused(path, "damaged .* bytes become")


def test_arrays_are_written_as_numpy_writes_them(path):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            stream = io.BytesIO()
            np.save(stream, np.load(io.BytesIO(archive.read(name))))
            assert archive.read(name) == stream.getvalue()
