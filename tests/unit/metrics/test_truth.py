import json

import numpy as np
import pytest

from int8cal.errors import DataError
from int8cal.metrics.truth import folder_of, truth_of


def test_truth_stands_in_a_folder_named_after_the_datas(truth, tmp_path):
    first, _ = truth(".json", [[1, 2], []])
    assert truth_of(first, ".json") == [1, 2]
    assert folder_of(first) == tmp_path / "val.truth"


def test_a_file_of_several_samples_has_a_row_for_each(tmp_path):
    (tmp_path / "d.truth").mkdir()
    np.save(tmp_path / "d.truth" / "frames.npy", np.array([[0, 1], [1, 1]]))
    (tmp_path / "d.truth" / "boxes.json").write_text(json.dumps([[1], [2]]), encoding="utf-8")
    assert truth_of(f"{tmp_path}/d/frames.npz[1]", ".npy").tolist() == [1, 1]
    assert truth_of(f"{tmp_path}/d/boxes.npz[0]", ".npy", ".json") == [1]
    with pytest.raises(DataError, match=r"boxes.json: cannot be read: IndexError.*truth of .*boxes.npz\[2\]"):
        truth_of(f"{tmp_path}/d/boxes.npz[2]", ".json")


def test_missing_truth_is_told_with_where_it_should_be(truth, tmp_path):
    with pytest.raises(DataError, match=r'no folder "town.truth" beside "town"; put the truth there'):
        truth_of(str(tmp_path / "town" / "0.jpg"), ".json")
    with pytest.raises(
        DataError, match=r'lies in no folder .*; move it into one, such as "val", and its truth into "val'
    ):
        truth_of("frames.npz[0]", ".json")
    truth(".json", [[]])
    with pytest.raises(DataError, match=r"has no truth: expected .*9.png or .*9.npy"):
        truth_of(str(tmp_path / "val" / "town" / "9.jpg"), ".png", ".npy")


def test_broken_truth_is_told(truth):
    (origin,) = truth(".json", ["{"])
    with pytest.raises(DataError, match="cannot be read: JSONDecodeError"):
        truth_of(origin, ".json")
