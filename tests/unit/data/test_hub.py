"""datasets:NAME, on datasets of this disk: the Hub is not asked for anything."""

import io
import json
import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from int8cal.data.hub import dataset_below
from int8cal.errors import DataError
from int8cal.preprocess import AudioPreprocess, Preprocess

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def png(value):
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def test_images_with_labels_are_those_of_files(tmp_path, rgb, feeds):
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["no", "yes"]))
    made = datasets.Dataset.from_dict({"image": [png(1), png(2), png(3)], "label": [1, 0, 1]}, features=kinds)
    made.save_to_disk(tmp_path / "saved")
    opened = feeds("datasets:saved", rgb, preprocess=Preprocess(scale=0.5), require_labels=True)
    assert (opened.images, opened.count) == (True, 3)
    samples = list(opened)
    assert [(each.origin, each.label) for each in samples] == [(f"datasets:saved[{n}]", 1 - n % 2) for n in range(3)]
    for number, sample in enumerate(samples, 1):
        np.testing.assert_array_equal(sample.feed["x"], np.full((1, 3, 8, 8), number / 2, np.float32))


def test_arrays_feed_inputs_of_their_name(tmp_path, pair, feeds):
    made = datasets.Dataset.from_dict({"ids": [[1, 2], [3]], "weight": [[0.5, 1.0], [2.0]], "other": ["x", "y"]})
    datasets.DatasetDict(train=made, test=made).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"has the splits train, test; say which: datasets:saved:train"):
        feeds("datasets:saved", pair)
    samples = list(feeds("datasets:saved:test", pair))
    assert [sample.feed["ids"].tolist() for sample in samples] == [[[1, 2]], [[3]]]
    assert [sample.feed["weight"].tolist() for sample in samples] == [[[0.5, 1.0]], [[2.0]]]


@pytest.mark.parametrize(
    "name", ["datasets:rows/a.parquet", "datasets:rows", "datasets:rows:train", "datasets:rows:train[:2]"]
)
def test_folders_and_files_of_this_disk(tmp_path, vector, feeds, name):
    (tmp_path / "rows").mkdir()
    rows = {"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]}
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "rows" / "a.parquet"))
    values = [sample.feed["x"].tolist()[0] for sample in feeds(name, vector)]
    assert values == rows["x"][: 2 if "[" in name else 3]


def test_sounds_are_decoded_as_files_are(tmp_path, signature, feeds):
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    values = np.linspace(-0.5, 0.5, 400, dtype=np.float32)
    soundfile.write(stream, values, 8000, format="WAV", subtype="FLOAT")
    table = {"audio": [{"bytes": stream.getvalue(), "path": None}]}
    kept = datasets.Audio(decode=False)  # the library encodes and decodes only beside torch
    datasets.Dataset.from_dict(table).cast_column("audio", kept).save_to_disk(tmp_path / "saved")
    (sample,) = feeds("datasets:saved", signature(x=("N", "T")), preprocess=Preprocess(audio=AudioPreprocess(8000)))
    np.testing.assert_array_equal(sample.feed["x"][0], values)
    assert sample.fit is None
    sound = Preprocess(audio=AudioPreprocess(8000))
    for frames, fit in ((150, "cut"), (300, "cut"), (400, None)):
        (sample,) = feeds("datasets:saved", signature(x=("N", frames)), preprocess=sound)
        assert sample.fit == fit


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("datasets:nobody/nothing", "datasets:nobody/nothing: cannot be loaded: "),
        ("datasets:saved", 'nothing of the columns ("y") feeds input "x"'),
    ],
)
def test_what_cannot_be_had_is_said(tmp_path, vector, feeds, name, what):
    datasets.Dataset.from_dict({"y": [[1.0, 2.0, 3.0]]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError) as caught:
        feeds(name, vector)
    assert what in str(caught.value)


def test_a_dataset_of_the_hub_comes_from_the_cache_where_offline_and_only_int8cal_speaks(
    tmp_path, vector, feeds, caplog, monkeypatch
):
    rows = {"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "rows.parquet"))
    builder = datasets.load_dataset_builder("parquet", data_files={"train": str(tmp_path / "rows.parquet")})
    builder.download_and_prepare()
    cached = tmp_path / "cache" / "acme___reviews" / "default" / "0.0.0" / ("0" * 40)
    shutil.copytree(builder.cache_dir, cached)
    (arrow,) = cached.glob("*.arrow")
    arrow.rename(cached / "reviews-train.arrow")
    about = json.loads((cached / "dataset_info.json").read_text())
    (cached / "dataset_info.json").write_text(json.dumps(about | {"dataset_name": "reviews"}))
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [caplog.handler])
    before = datasets.logging.get_verbosity()
    assert [sample.feed["x"].tolist()[0] for sample in feeds("datasets:acme/reviews", vector)] == rows["x"]
    assert caplog.messages == []
    assert datasets.logging.get_verbosity() == before


def test_a_bad_row_is_named(tmp_path, rgb, feeds):
    table = {"image": [png(1), {"bytes": b"no image", "path": None}]}
    kinds = datasets.Features(image=datasets.Image())
    datasets.Dataset.from_dict(table, features=kinds).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"datasets:saved\[1\]: cannot be read: it is not a JPEG"):
        list(feeds("datasets:saved", rgb))


def test_a_path_is_told_from_the_yamls_directory_and_a_name_of_the_hub_is_not(tmp_path):
    (tmp_path / "here" / "rows").mkdir(parents=True)
    assert dataset_below("datasets:rows:train", tmp_path / "here") == f"datasets:{tmp_path / 'here' / 'rows'}:train"
    assert dataset_below("datasets:imdb:train", tmp_path / "here") == "datasets:imdb:train"
