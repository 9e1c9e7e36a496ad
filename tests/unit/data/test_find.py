from __future__ import annotations

import os

import numpy as np
import pytest

from int8cal.data.find import find
from int8cal.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def _relative(found):
    return [found.place(file) for file in found.files]


def test_directory_is_searched_to_any_depth_in_sorted_order(tmp_path):
    _touch(tmp_path, "b/2.png", "b/1.JPG", "a.png", "c/d/e.webp", "b-1/x.bmp")
    assert _relative(find(str(tmp_path))) == ["a.png", "b/1.JPG", "b/2.png", "b-1/x.bmp", "c/d/e.webp"]


def test_hidden_files_and_other_files_are_left_out(tmp_path):
    _touch(tmp_path, "a.png", ".b.png", ".cache/c.png", "labels.csv", "README.txt", "model.onnx", "output_0.pb")
    assert _relative(find(str(tmp_path))) == ["a.png"]


def test_results_that_lie_among_the_samples_are_left_out(tmp_path):
    _touch(tmp_path, "a.npz", "b.stats.npz", "out/net.stats.npz", "out/net.table.json", "out/report.json")
    assert _relative(find(str(tmp_path))) == ["a.npz", "b.stats.npz"]
    assert _relative(find("out/net.stats.npz")) == ["net.stats.npz"]


def test_directory_of_mixed_kinds_names_them_and_asks_for_a_glob(tmp_path):
    _touch(tmp_path, "a.png", "b.jpg", "c.npy", "d/input_0.pb")
    with pytest.raises(DataError) as caught:
        find(str(tmp_path))
    assert "1 .npy, 2 image, 1 input_*.pb" in str(caught.value)
    assert "glob" in str(caught.value)


def test_directory_with_nothing_usable_lists_what_is_accepted(tmp_path):
    _touch(tmp_path, "notes.md")
    with pytest.raises(
        DataError, match=r"holds nothing usable \(1 other files\); accepted are \.jpg, .*\.npz, .*test_data"
    ):
        find(str(tmp_path))


def test_empty_directory_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds nothing usable"):
        find(str(tmp_path))


def test_single_file(tmp_path):
    _touch(tmp_path, "a.npy", "b.npy")
    found = find("a.npy")
    assert [file.as_posix() for file in found.files] == ["a.npy"]
    assert found.root.resolve() == tmp_path.resolve()


def test_single_file_of_another_kind_is_an_error(tmp_path):
    _touch(tmp_path, "a.xls")
    with pytest.raises(DataError, match="accepted are"):
        find(str(tmp_path / "a.xls"))


@pytest.mark.parametrize("other", ["a.png", "a.npz", "a.wav", "test_data_set_0/input_0.pb"])
def test_text_beside_samples_of_other_kinds_is_left_alone(tmp_path, other):
    _touch(tmp_path, other, "README.txt", "labels.csv", "metadata.jsonl")
    assert [file.name for file in find(str(tmp_path)).files] == [other.rpartition("/")[2]]


def test_a_directory_of_text_is_one_and_its_labels_csv_is_none(tmp_path):
    _touch(tmp_path, "a.csv", "b/c.csv", "labels.csv")
    assert [file.name for file in find(str(tmp_path)).files] == ["a.csv", "c.csv"]
    _touch(tmp_path, "notes.txt")
    with pytest.raises(DataError, match=r"mixes kinds of samples: 2 .csv, 1 .txt"):
        find(str(tmp_path))


def test_missing_path_says_what_can_be_given(tmp_path):
    with pytest.raises(DataError, match="nowhere: does not exist; give a directory"):
        find("nowhere")


def test_glob_keeps_its_fixed_folder_as_root(tmp_path):
    _touch(tmp_path, "photos/cat/1.png", "photos/dog/2.png", "photos/dog/.3.png", "photos/dog/4.npy")
    found = find("photos/*/*.png")
    assert [(file.as_posix(), found.place(file)) for file in found.files] == [
        ("photos/cat/1.png", "cat/1.png"),
        ("photos/dog/2.png", "dog/2.png"),
    ]


def test_glob_may_match_folders(tmp_path):
    _touch(tmp_path, "test_data_set_0/input_0.pb", "test_data_set_1/input_0.pb", "other/input_0.pb")
    assert len(find("test_data_set_*").files) == 2


def test_recursive_glob(tmp_path):
    _touch(tmp_path, "a/b/c/1.npz", "2.npz")
    assert _relative(find("**/*.npz")) == ["2.npz", "a/b/c/1.npz"]


def test_glob_without_a_match_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"\*\.png: matches no file"):
        find("*.png")


def test_existing_path_with_brackets_is_a_path_and_no_glob(tmp_path):
    _touch(tmp_path, "set[1]/a.png")
    assert _relative(find("set[1]")) == ["a.png"]


def test_a_path_starts_in_the_working_directory(tmp_path):
    _touch(tmp_path, "calib/a.npz")
    assert [file.as_posix() for file in find("calib").files] == ["calib/a.npz"]
    assert [file.as_posix() for file in find("calib/*.npz").files] == ["calib/a.npz"]


def test_links_are_followed_and_circles_end(tmp_path):
    _touch(tmp_path, "data/a/1.png", "elsewhere/2.png")
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/twin").symlink_to(tmp_path / "data/a")
    (tmp_path / "data/a/circle").symlink_to(tmp_path / "data")
    found = _relative(find(str(tmp_path / "data")))
    assert found == ["a/1.png", "linked/2.png", "twin/1.png"]


def test_feeds_follow_a_linked_file(tmp_path, vector, feeds):
    np.save(tmp_path / "real.npy", np.ones((2, 3), np.float32))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/link.npy").symlink_to(tmp_path / "real.npy")
    assert len(list(feeds(tmp_path / "data", vector))) == 2


def test_a_link_that_leads_back_to_itself_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match="cannot be followed"):
        find(str(tmp_path))
    with pytest.raises(DataError):
        find(str(tmp_path / "loop"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_sample(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    os.mkfifo(tmp_path / "b.npy")
    assert [file.name for file in find(str(tmp_path)).files] == ["a.npy"]
    with pytest.raises(DataError, match="no regular file"):
        find(str(tmp_path / "b.npy"))


def test_a_link_to_nothing_is_not_passed_over(tmp_path):
    (tmp_path / "a.npy").symlink_to(tmp_path / "gone.npy")
    assert [file.name for file in find(str(tmp_path)).files] == ["a.npy"]
