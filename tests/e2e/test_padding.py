"""Padding that nobody reads changes nothing: samples filled up to one length give what samples of their own length do."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from padded_models import encoder, padded, sentences, write

import int8cal
from int8cal.calibrating import calibrate_job
from int8cal.calibration.statistics_file import load_statistics, merge_files, save_statistics
from int8cal.errors import StatisticsError
from int8cal.evaluating import evaluate_files
from int8cal.job import CalibrationSettings, DataSettings, EvaluationSettings, Job, OutputSettings, QuantizationSettings

FEEDS = sentences(12)


def calibrated(place, feeds, model=None, name="out", quantization=None, **calibration):
    path = place / "encoder.onnx"
    if not path.exists():
        onnx.save(model or encoder(), path)
    job = Job(
        path,
        DataSettings(str(write(place / f"{name}.data", feeds))),
        CalibrationSettings(**calibration),
        quantization or QuantizationSettings(),
        evaluation=EvaluationSettings(latency=False),
        output=OutputSettings(place / name),
    )
    return calibrate_job(job)


def evaluated(fp32, int8, data):
    return evaluate_files(Job(fp32, DataSettings(str(data)), evaluation=EvaluationSettings(latency=False)), int8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("padding")
    feeds = {"own": FEEDS, "end": padded(FEEDS, 16), "mixed": FEEDS[:5] + padded(FEEDS[5:], 16)}
    for name, each in feeds.items():
        calibrated(place, each, name=name)
    return place


def table_of(folder):
    table = json.loads((folder / "encoder.table.json").read_text())
    return {key: table[key] for key in ("settings", "tensors", "weights", "corrections")}


def report_of(folder):
    report = json.loads((folder / "report.json").read_text())
    return {key: report[key] for key in ("metrics", "outputs", "layers", "samples")}


@pytest.mark.parametrize("name", ["end", "mixed"])
def test_padded_samples_give_the_statistics_of_samples_of_their_own_length(runs, tmp_path, name):
    for each in ("own", name):
        statistics = load_statistics(runs / each / "encoder.stats.npz")
        save_statistics(replace(statistics, fingerprint=0, padding=()), tmp_path / each)
    assert (tmp_path / name).read_bytes() == (tmp_path / "own").read_bytes()


@pytest.mark.parametrize("name", ["end", "mixed"])
def test_padded_samples_give_the_table_and_report_of_samples_of_their_own_length(runs, name):
    assert table_of(runs / name) == table_of(runs / "own")
    assert report_of(runs / name) == report_of(runs / "own")


def test_report_table_and_statistics_say_what_became_of_padding(runs):
    positions, kept = 12 * 16, sum(feed["input_ids"].size for feed in FEEDS)
    entry = {"how": "trimmed", "samples": 12, "positions": positions, "padding": positions - kept}
    report = json.loads((runs / "end/report.json").read_text())
    table = json.loads((runs / "end/encoder.table.json").read_text())
    assert report["settings"]["evaluation"]["padding"] == {"attention_mask": {"end": entry}}
    assert table["data"]["padding"] == {"attention_mask": {"end": entry}}
    (padding,) = load_statistics(runs / "end/encoder.stats.npz").padding
    assert str(padding) in report["decisions"]
    own = json.loads((runs / "own/encoder.table.json").read_text())
    assert "padding" not in own["data"]


def test_quantize_makes_the_same_model_of_such_a_table(runs):
    table = int8cal.calibrate(runs / "encoder.onnx", runs / "end.data")
    again = int8cal.quantize(runs / "encoder.onnx", table)
    assert again.SerializeToString() == (runs / "end/encoder.int8.onnx").read_bytes()


def test_a_pair_is_evaluated_without_padding(runs):
    models = (runs / "encoder.onnx", runs / "own/encoder.int8.onnx")
    reports = [evaluated(*models, runs / f"{name}.data") for name in ("own", "end")]
    first, second = (report.evaluation for report in reports)
    assert first.metrics == second.metrics
    assert first.outputs == second.outputs
    assert first.layers == second.layers
    assert any("trimmed" in line for line in reports[1].decisions)


def test_streams_of_feeds_are_trimmed_too(runs):
    for feeds in (FEEDS, padded(FEEDS, 16)):
        table = int8cal.calibrate(runs / "encoder.onnx", iter(feeds))
        assert {name: entry.scale for name, entry in table.tensors.items()} == {
            name: entry["scale"] for name, entry in table_of(runs / "own")["tensors"].items()
        }


def test_shards_with_and_without_padding_merge_to_one_run(runs, tmp_path):
    model = onnx.load(runs / "encoder.onnx")
    calibrated(tmp_path, FEEDS[:5], model, "a")
    calibrated(tmp_path, padded(FEEDS[5:], 16), model, "b")
    for order in ("ab", "ba"):
        merge_files([tmp_path / each / "encoder.stats.npz" for each in order], tmp_path / f"{order}.stats.npz")
        assert (tmp_path / f"{order}.stats.npz").read_bytes() == (runs / "mixed/encoder.stats.npz").read_bytes()
    calibrated(tmp_path, FEEDS[:5] + padded(FEEDS[5:], 16), name="c", statistics=tmp_path / "ab.stats.npz")
    assert table_of(tmp_path / "c")["tensors"] == table_of(runs / "mixed")["tensors"]


def test_a_shard_that_counted_padding_does_not_merge_with_one_that_trimmed_it(runs, tmp_path):
    trimmed = load_statistics(runs / "end/encoder.stats.npz")
    (padding,) = trimmed.padding
    kept = replace(trimmed, padding=(replace(padding, how="kept", why="it was"),))
    paths = [tmp_path / "kept.stats.npz", tmp_path / "trimmed.stats.npz"]
    for path, each in zip(paths, (kept, trimmed), strict=True):
        save_statistics(each, path)
    with pytest.raises(StatisticsError) as error:
        merge_files(paths, tmp_path / "all.stats.npz")
    assert all(str(path) in str(error.value) for path in paths)


def test_padding_that_outputs_follow_is_counted_and_warned_of(tmp_path):
    calibrated(tmp_path, padded(FEEDS, 16), encoder(masked=False))
    report = json.loads((tmp_path / "out/report.json").read_text())
    (line,) = [line for line in report["warnings"] if line.startswith("padding:")]
    assert "the outputs are not the same without it" in line
    assert report["settings"]["evaluation"]["padding"]["attention_mask"]["end"]["how"] == "kept"


def test_the_order_of_padded_samples_changes_no_bit(runs, tmp_path):
    order = np.random.default_rng(0).permutation(len(FEEDS))
    feeds = padded(FEEDS, 16)
    calibrated(tmp_path, [feeds[index] for index in order], onnx.load(runs / "encoder.onnx"))
    for name in ("encoder.stats.npz", "encoder.int8.onnx"):
        assert (tmp_path / "out" / name).read_bytes() == (runs / "end" / name).read_bytes()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    place = tmp_path_factory.mktemp("fixed")
    calibrated(place, padded(FEEDS, 16), encoder(16, batch=1))
    return place


def test_a_fixed_length_counts_kept_positions_alone(runs, fixed):
    own, masked = (load_statistics(path / "encoder.stats.npz").tensors for path in (runs / "own", fixed / "out"))
    positions = sum(feed["input_ids"].size for feed in FEEDS)
    for name, tensor in masked.items():
        assert tensor.count % positions == 0 or name == "weights", name
        assert tensor.minimum == pytest.approx(own[name].minimum, rel=1e-4, abs=1e-5)
        assert tensor.maximum == pytest.approx(own[name].maximum, rel=1e-4, abs=1e-5)
        if tensor.channels is not None:
            np.testing.assert_allclose(tensor.channels.mean, own[name].channels.mean, rtol=1e-4, atol=1e-5)


def test_a_fixed_length_is_judged_on_kept_positions_alone(fixed, tmp_path):
    # or one may have more precision for a tensor than the other, which has no table of places
    alike = QuantizationSettings(latency_allowance=0, exclude=("op:Gather",))
    calibrated(tmp_path, FEEDS, name="own", quantization=alike)
    (tmp_path / "encoder.onnx").unlink()
    calibrated(tmp_path, padded(FEEDS, 16), encoder(16, batch=1), name="masked", quantization=alike)
    own, masked = (report_of(tmp_path / name) for name in ("own", "masked"))
    assert masked["metrics"]["sqnr_db"] == pytest.approx(own["metrics"]["sqnr_db"], abs=1.0)
    layers = {layer["tensor"]: layer["sqnr_db"] for layer in own["layers"]}
    for layer in masked["layers"]:
        assert layer["sqnr_db"] == pytest.approx(layers[layer["tensor"]], abs=2.0)
    report = json.loads((fixed / "out/report.json").read_text())
    assert report["settings"]["evaluation"]["padding"]["attention_mask"]["end"]["how"] == "masked"
    assert any("left out of every tensor by position" in line for line in report["decisions"])


def test_the_order_of_masked_samples_changes_no_bit(fixed, tmp_path):
    feeds = padded(FEEDS, 16)[::-1]
    calibrated(tmp_path, feeds, onnx.load(fixed / "encoder.onnx"))
    for name in ("encoder.stats.npz", "encoder.int8.onnx"):
        assert (tmp_path / "out" / name).read_bytes() == (fixed / "out" / name).read_bytes()


def test_what_stands_in_padding_that_is_masked_does_not_matter(fixed, tmp_path):
    feeds = [{name: value.copy() for name, value in feed.items()} for feed in padded(FEEDS, 16)]
    for feed in feeds:
        feed["input_ids"][feed["attention_mask"] == 0] = 7
    calibrated(tmp_path, feeds, onnx.load(fixed / "encoder.onnx"))
    for place, name in ((fixed, "zeros"), (tmp_path, "sevens")):
        statistics = load_statistics(place / "out/encoder.stats.npz")
        save_statistics(replace(statistics, fingerprint=0), tmp_path / name)
    assert (tmp_path / "zeros").read_bytes() == (tmp_path / "sevens").read_bytes()


def test_padding_at_the_start_is_masked_where_it_shifts_positions(tmp_path):
    calibrated(tmp_path, padded(FEEDS, 16, side="start"))
    (padding,) = load_statistics(tmp_path / "out/encoder.stats.npz").padding
    assert (padding.how, padding.side) == ("masked", "start")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_pair_of_fixed_length_is_evaluated_on_kept_positions_alone(tmp_path, batch):
    calibrated(tmp_path, padded(FEEDS, 16), encoder(16, batch=batch))
    models = (tmp_path / "encoder.onnx", tmp_path / "out/encoder.int8.onnx")
    report = evaluated(*models, tmp_path / "out.data").evaluation
    kept = json.loads((tmp_path / "out/report.json").read_text())
    assert report.metrics.sqnr_db == kept["metrics"]["sqnr_db"]
    assert {layer.tensor: layer.sqnr_db for layer in report.layers} == {
        layer["tensor"]: layer["sqnr_db"] for layer in kept["layers"]
    }
