from __future__ import annotations

import re

import numpy as np
import pytest

from int8cal.data.labels import class_indices
from int8cal.errors import DataError
from int8cal.evaluation.data_checks import opened as findings_of
from int8cal.graph.signature import Signature, TensorSpec


def labels_of(feeds):
    return [sample.label for sample in feeds]


@pytest.fixture
def flat(tmp_path, paint):
    for name in ("a.png", "b.png", "c.png"):
        paint(tmp_path / name)
    return tmp_path


@pytest.fixture
def classes(tmp_path, paint):
    for name in ("cat/1.png", "cat/2.png", "ant/1.png", "bee/1.png"):
        paint(tmp_path / name)
    return tmp_path


def test_class_index_is_the_place_of_the_folder_in_sorted_order():
    assert class_indices(["dog", "ant", "10"]) == {"10": 0, "ant": 1, "dog": 2}


def test_folders_that_are_all_integers_are_the_labels():
    assert class_indices(["10", "9", "007"]) == {"007": 7, "9": 9, "10": 10}
    with pytest.raises(DataError, match="two class folders are class 1"):
        class_indices(["1", "01"])


def test_class_folders_label_their_images(classes, rgb, feeds):
    opened = feeds(classes, rgb)
    assert labels_of(opened) == [0, 1, 2, 2]


def test_glob_keeps_the_index_of_folders_it_does_not_choose(classes, rgb, feeds):
    assert labels_of(feeds("c*/*.png", rgb, base=classes)) == [2, 2]


def test_empty_folder_keeps_its_index_and_a_folder_of_other_files_has_none(classes, rgb, feeds):
    (classes / "asp").mkdir()
    (classes / "ball").mkdir()
    (classes / "ball/notes.txt").write_text("no image")
    assert labels_of(feeds(classes, rgb)) == [0, 2, 3, 3]


def test_flat_images_have_no_label(flat, rgb, feeds):
    opened = feeds(flat, rgb)
    assert not opened.labelled
    assert labels_of(opened) == [None] * 3
    with pytest.raises(
        DataError, match="has no labels, without which there is no top-1 and no top-5; use one folder per class"
    ):
        feeds(flat, rgb, require_labels=True)


def test_lone_folder_is_a_class_only_when_asked_or_a_number(tmp_path, rgb, feeds, paint):
    paint(tmp_path / "one/images/a.png")
    paint(tmp_path / "two/7/a.png")
    assert not feeds(tmp_path / "one", rgb).labelled
    assert labels_of(feeds(tmp_path / "one", rgb, labels="folders")) == [0]
    assert labels_of(feeds(tmp_path / "two", rgb)) == [7]


def test_labels_from_folders_for_flat_images_are_an_error(classes, rgb, feeds, paint):
    paint(classes / "stray.png")
    assert not feeds(classes, rgb).labelled
    with pytest.raises(DataError, match=r"stray\.png: lies in no class folder"):
        feeds(classes, rgb, labels="folders")


def with_classes(signature, count):
    return Signature(signature.inputs, (TensorSpec("y", np.dtype(np.float32), ("N", count)),))


@pytest.mark.parametrize(
    ("folders", "classes", "why"),
    [
        (("camera1", "camera2"), 10, r'\("camera1", "camera2"\): the model has 10'),
        (("2023", "2024"), 10, "the model's are 0 to 9"),
        (("1", "01"), 10, "two of them are the same number"),
        (("train", "val"), 2, "such names are those of parts of a set"),
        (("a", "b", "c", "d"), 2, r'\("a", "b", "c", ... \(4 in all\)\): the model has 2'),
    ],
)
def test_folders_that_cannot_be_the_classes_are_taken_when_asked_only(
    tmp_path, rgb, feeds, paint, folders, classes, why
):
    for folder in folders:
        paint(tmp_path / folder / "1.png")
    model = with_classes(rgb, classes)
    opened = feeds(tmp_path, model)
    assert labels_of(opened) == [None] * len(folders)
    assert not opened.labelled
    (found,) = findings_of(opened, model)
    assert found.check == "class-count"
    assert re.search(why, found.text)
    assert "--labels none" in found.do
    assert findings_of(feeds(tmp_path, model, labels="none"), model) == ()
    with pytest.raises(DataError, match=why):
        feeds(tmp_path, model, require_labels=True)
    if len(set(map(str.isdigit, folders))) == 1 and not folders[0].isdigit():
        assert labels_of(feeds(tmp_path, model, labels="folders")) == list(range(len(folders)))


@pytest.mark.parametrize(("folders", "classes"), [(("cat", "dog"), 2), (("3", "7"), 10), (("cat", "dog"), None)])
def test_folders_that_may_be_the_classes_are(tmp_path, rgb, feeds, paint, folders, classes):
    for folder in folders:
        paint(tmp_path / folder / "1.png")
    model = rgb if classes is None else with_classes(rgb, classes)
    opened = feeds(tmp_path, model)
    assert labels_of(opened) == [3, 7] if folders[0] == "3" else [0, 1]
    assert findings_of(opened, model) == ()
    assert labels_of(feeds(tmp_path, model, labels="none")) == [None, None]


def test_no_labels_may_be_asked_for_of_any_source(tmp_path, monkeypatch, vector, feeds):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), labels=np.array([0, 1]))
    assert labels_of(feeds(tmp_path / "a.npz", vector)) == [0, 1]
    assert labels_of(feeds(tmp_path / "a.npz", vector, labels="none")) == [None, None]
    (tmp_path / "made_labels.py").write_text(
        "import numpy as np\ndef samples():\n    yield {'x': np.zeros((1, 3), np.float32), 'labels': np.array([1])}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert labels_of(feeds("made_labels:samples", vector)) == [1]
    opened = feeds("made_labels:samples", vector, labels="none")
    assert labels_of(opened) == [None]
    assert not opened.labelled


def test_array_folders_are_classes_only_when_asked(tmp_path, vector, feeds):
    for folder in ("p", "q"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", np.ones((2, 3), np.float32))
    assert not feeds(tmp_path, vector).labelled
    assert labels_of(feeds(tmp_path, vector, labels="folders")) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "a.png,3\nb.png,0\nc.png,3\n",
        "file,label\na.png,3\nb.png,0\nc.png,3\n",
        "\ufefffile,label\r\nc.png,3\r\n\r\n b.png , 0 \r\na.png,3",
        "Label,Image\n3,a.png\n0,b.png\n3,c.png\n",
        '"a.png","3"\n"b.png",0\nc.png,3\n',
    ],
)
def test_labels_csv_beside_the_data_is_found(flat, rgb, feeds, text):
    (flat / "labels.csv").write_text(text, encoding="utf-8")
    assert labels_of(feeds(flat, rgb)) == [3, 0, 3]


def test_labels_csv_beats_class_folders(classes, rgb, feeds):
    (classes / "labels.csv").write_text("ant/1.png,5\nbee/1.png,6\ncat/1.png,7\ncat/2.png,8\n")
    assert labels_of(feeds(classes, rgb)) == [5, 6, 7, 8]


def test_label_file_may_lie_elsewhere_and_name_files_from_there(tmp_path, rgb, feeds, paint):
    paint(tmp_path / "photos/a.png")
    (tmp_path / "truth.csv").write_text("photos/a.png,4\n")
    assert labels_of(feeds("photos", rgb, base=tmp_path, labels="truth.csv")) == [4]
    (tmp_path / "truth.csv").write_text(f"{(tmp_path / 'photos/a.png').absolute()},5\n")
    assert labels_of(feeds("photos", rgb, base=tmp_path, labels=str(tmp_path / "truth.csv"))) == [5]


def test_class_names_are_numbered_in_sorted_order(flat, rgb, feeds):
    (flat / "labels.csv").write_text("file,label\na.png,dog\nb.png,cat\nc.png,dog\n")
    assert labels_of(feeds(flat, rgb)) == [1, 0, 1]


def test_class_names_that_are_folders_take_the_folders_numbers(classes, rgb, feeds):
    (classes / "labels.csv").write_text("ant/1.png,cat\nbee/1.png,cat\ncat/1.png,bee\ncat/2.png,bee\n")
    assert labels_of(feeds(classes, rgb)) == [2, 2, 1, 1]


def test_labels_of_a_column_are_not_those_of_another_key(tmp_path, vector, feeds):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3), np.float32), labels=[2, 0])
    with pytest.raises(DataError, match=r'"column:truth": only \.csv, \.tsv, \.jsonl and datasets have columns'):
        feeds(tmp_path, vector, labels="column:truth")
    assert labels_of(feeds(tmp_path, vector, labels="column:labels")) == [2, 0]


def test_rows_of_an_array_file_are_labelled_one_by_one(tmp_path, vector, feeds):
    np.save(tmp_path / "a.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((1, 3), np.float32))
    (tmp_path / "labels.csv").write_text("a.npy[0],5\na.npy[1],6\nb.npy,7\n")
    assert labels_of(feeds(tmp_path, vector)) == [5, 6, 7]
    (tmp_path / "labels.csv").write_text("a.npy,5\nb.npy,7\n")
    with pytest.raises(DataError, match=r'no row for "a\.npy\[0\]"'):
        feeds(tmp_path, vector)
    (tmp_path / "labels.csv").write_text("a.npy[0],5\na.npy[1],6\na.npy[2],6\nb.npy,7\n")
    with pytest.raises(DataError, match=r'line 3: "a\.npy\[2\]" is no sample, a\.npy holds 2'):
        feeds(tmp_path, vector)


def test_labels_of_one_file_may_be_a_list_in_the_order_of_its_samples(tmp_path, vector, feeds):
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 3), np.float32))
    (tmp_path / "l.txt").write_text("2\n0\n1\n")
    np.save(tmp_path / "l.npy", np.array([1, 0, 2]))
    assert labels_of(feeds(path, vector, labels=str(tmp_path / "l.txt"))) == [2, 0, 1]
    assert labels_of(feeds(path, vector, labels=str(tmp_path / "l.npy"))) == [1, 0, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", "2\n0\n", r"l\.txt: labels have shape \(2,\), expected \(3,\)"),
        ("l.npy", np.array([1, 0]), r"l\.npy: labels have shape \(2,\), expected \(3,\)"),
        ("l.npy", np.array([1.0, 0.0, 2.0]), "labels have dtype float64"),
        ("l.npy", "1\n", r"l\.npy: cannot be read"),
        (
            "l.csv",
            "a.npy,2\na.npy,1\na.npy,1\n",
            r'line 2: "a\.npy" is listed twice; give one integer per sample: .*npz',
        ),
        ("l.csv", "2\n0\ncat\n", 'line 1: "2" is not file,label; give one integer per sample'),
        ("folders", "", 'lies in no class folder; give one integer per sample: .* or the key "labels" of an .npz'),
    ],
)
def test_what_is_no_list_of_labels_says_what_works(tmp_path, vector, feeds, name, content, message):
    np.save(tmp_path / "a.npy", np.ones((3, 3), np.float32))
    label_file = tmp_path / name
    if isinstance(content, str):
        label_file.write_text(content)
    else:
        np.save(label_file, content)
    with pytest.raises(DataError, match=message):
        feeds(tmp_path / "a.npy", vector, labels=name if name == "folders" else str(label_file))


def test_a_list_of_labels_is_for_one_file(tmp_path, vector, feeds):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((1, 3), np.float32))
    np.save(tmp_path.parent / "l.npy", np.array([1, 0]))
    with pytest.raises(DataError, match="labels of 2 files need their names; write one line file,label per sample"):
        feeds(tmp_path, vector, labels=str(tmp_path.parent / "l.npy"))


def test_given_label_file_beats_labels_in_npz_files(tmp_path, vector, feeds):
    np.savez(tmp_path / "a.npz", x=np.ones(3, np.float32), labels=np.array(1))
    (tmp_path / "labels.csv").write_text("a.npz,2\n")
    assert labels_of(feeds(tmp_path, vector)) == [1]
    assert labels_of(feeds(tmp_path, vector, labels=str(tmp_path / "labels.csv"))) == [2]


def test_glob_may_choose_some_of_the_labelled_files(flat, rgb, feeds):
    (flat / "labels.csv").write_text("a.png,3\nb.png,0\nc.png,2\n")
    assert labels_of(feeds("[bc].png", rgb, base=flat)) == [0, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png,1\nb.png,1\n", r'no row for "c\.png"; add a line c\.png,<label>'),
        ("a.png,1\nb.png,1\nc.png,1\nd.png,1\n", r'line 4: "d\.png" does not exist'),
        ("a.png,1\nb.png,1\na.png,1\nc.png,1\n", r'line 3: "a\.png" is listed twice'),
        ("a\0.\0p\0n\0g\0,\0001\0\n\0", "line 1: holds zero bytes, as UTF-16 does; save it as UTF-8: write"),
        ("a.png,1\nb.png\nc.png,1\n", r'line 2: "b\.png" is not file,label'),
        ("a.png,1\nb.png,1,2\nc.png,1\n", r'line 2: "b\.png,1,2" is not file,label'),
        ("a.png,1\nb.png,\nc.png,1\n", "line 2"),
        ("a.png;1\nb.png;1\n", "line 1"),
        ("a.png,1\nb.png,-1\nc.png,1\n", 'line 2: label "-1" is outside >= 0'),
        ("a.png,1\nb.png,cat\nc.png,1\n", 'line 2: label "cat" is not an integer like the others'),
        ("a.png,2.0\nb.png,10.0\nc.png,2.0\n", 'line 1: label "2.0" is no class: neither an integer of at least 0'),
        ("a.png,cat\nb.png,-1.5e3\nc.png,cat\n", 'line 2: label "-1.5e3" is no class'),
        ("file,label\na.png,1\nb.png,1.5\nc.png,1\n", 'line 3: label "1.5" is not an integer'),
        ("", "the label file is empty"),
        ("file,label\n", "the label file is empty"),
    ],
)
def test_label_file_that_does_not_match_is_refused(flat, rgb, feeds, text, message):
    (flat / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        feeds(flat, rgb)
    assert "labels.csv" in str(caught.value)


def test_label_file_that_is_missing_or_no_text_is_refused(flat, rgb, feeds):
    with pytest.raises(DataError, match="the label file does not exist"):
        feeds(flat, rgb, labels="nowhere.csv")
    (flat / "labels.csv").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(DataError, match="the label file cannot be read"):
        feeds(flat, rgb)
    with pytest.raises(DataError, match="the label file cannot be read"):
        feeds(flat, rgb, labels=str(flat))


def test_chosen_samples_keep_their_labels(tmp_path, rgb, feeds, paint):
    for index in range(20):
        paint(tmp_path / f"{index}/a.png", pixels=np.full((8, 8, 3), index))
    opened = feeds(tmp_path, rgb, samples=6)
    samples = list(opened)
    assert [sample.feed["x"][0, 0, 0, 0] for sample in samples] == [sample.label for sample in samples]
    assert len(samples) == 6
