"""A checkpoint: what was counted, scored and measured is not done again, and comes out the same."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from int8cal.calibration.checkpoint import Checkpoint, counted_in
from int8cal.calibration.engines.local import Counting
from int8cal.data.sample import Sample
from int8cal.errors import DataError, StatisticsError
from int8cal.graph.signature import signature_of
from int8cal.inputs import changes
from int8cal.job import CalibrationSettings, DataSettings, Job, QuantizationSettings
from int8cal.pipeline import calibrate_planned, plan_job
from int8cal.progress import Clock
from int8cal.quantization.table_file import table_to_json
from int8cal.search.goals import latency
from int8cal.search.scorer import Scorer

MADE_OF = {"model": "a" * 64, "calibration.method": "auto"}


class KilledError(Exception):
    """In the place of a signal that no process survives."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.checkpoint"


def counting(network, keep=4, **settings):
    return Counting(
        network.model, signature_of(network.model), network.taps, model_sha256="0" * 64, keep=keep, **settings
    )


def dying(samples, after):
    yield from samples[:after]
    raise KilledError


def resumed(path, every=1, made_of=MADE_OF):
    checkpoint = Checkpoint(path, made_of, every)
    checkpoint.resume(changes)
    return checkpoint


@pytest.mark.parametrize("batch", ["N", 1, 4])
@pytest.mark.parametrize("after", [5, 8, 11])
def test_a_pass_goes_on_to_the_same_statistics_kept_samples_and_uncertainty(tools, path, batch, after):
    network = tools.network(batch)
    samples = tools.samples(11)
    whole = network.collect(samples, keep=4)
    with pytest.raises(KilledError):
        Checkpoint(path, MADE_OF, 3).count(counting(network), dying(samples, after), 4)
    checkpoint = resumed(path)
    assert checkpoint.samples == counted_in(path) == after - after % 3
    ran = counting(network)
    found = ran.collected(checkpoint.count(ran, iter(samples), 4))
    assert tools.file_bytes(found.statistics) == tools.file_bytes(whole.statistics)
    assert [each.origin for each in found.kept] == [each.origin for each in whole.kept]
    assert found.statistics.uncertainty == whole.statistics.uncertainty


def test_samples_that_were_counted_are_not_run_again(tools, path):
    network, samples = tools.network(), tools.samples(6)
    with pytest.raises(KilledError):
        Checkpoint(path, MADE_OF, 4).count(counting(network), dying(samples, 5), 0)
    ran = counting(network, keep=0, record=True)
    resumed(path).count(ran, iter(samples), 0)
    assert len(ran.collected(ran.take()).outputs) == 2  # recorded as they run


@pytest.mark.parametrize("change", ["first", "order", "fewer"])
def test_other_samples_are_refused(tools, path, change):
    network, samples = tools.network(), tools.samples(7)
    Checkpoint(path, MADE_OF, 6).count(counting(network), iter(samples[:6]), 0)
    other = {
        "first": [*tools.samples(1, seed=8), *samples[1:]],
        "order": [samples[5], *samples[1:5], samples[0]],
        "fewer": samples[:5],
    }[change]
    said = {
        "first": "the first sample is not the one that was counted",
        "order": "the first sample is not the one that was counted",
        "fewer": "the first 5 samples, up to calib/0004.npz, are not those that were counted",
    }[change]
    with pytest.raises(StatisticsError, match=said):
        resumed(path).count(counting(network), iter(other), 0)


def test_without_a_sample_there_is_nothing(tools, path):
    with pytest.raises(DataError, match="yields no sample"):
        Checkpoint(path, MADE_OF, 1).count(counting(tools.network()), iter(()), 0)


def test_by_time_it_is_saved_once_a_minute_and_for_two_percent_of_the_time(tools, path, monkeypatch):
    from int8cal.calibration import checkpoint as module

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    saved = []

    def slow_save(self):
        saved.append(now[0])
        began = now[0]
        now[0] += 2.0  # longer than 2 % of a minute
        self._saved, self._cost = now[0], now[0] - began

    monkeypatch.setattr(Checkpoint, "save", slow_save)
    checkpoint = Checkpoint(path, MADE_OF)

    def samples():
        for sample in tools.samples(40):
            yield sample
            now[0] += 10.0

    checkpoint.count(counting(tools.network(), keep=0), samples(), 0)
    assert saved == [60.0, 162.0, 264.0, 366.0]  # 50 times the 2 s between them


def test_none_is_saved_where_none_is_asked_for(tools, path):
    Checkpoint(path, MADE_OF, 0).count(counting(tools.network()), iter(tools.samples(3)), 0)
    assert not path.exists()


def test_what_prevents_saving_is_a_warning(tools, tmp_path):
    checkpoint = Checkpoint(tmp_path / "missing" / "out.checkpoint", MADE_OF, 2)
    counted = checkpoint.count(counting(tools.network()), iter(tools.samples(3)), 0)
    assert counted.statistics.samples == 3
    (warning,) = checkpoint.warnings
    assert warning.endswith("missing/out.checkpoint cannot be written (no such file or directory)")


def test_notes_are_kept_by_name(path):
    checkpoint = Checkpoint(path, MADE_OF, 1)
    checkpoint.note("score/a", noise=np.array([[1.5, np.nan]]), signal=np.zeros((0, 2)))
    found = resumed(path).recall("score/a")
    np.testing.assert_array_equal(found["noise"], [[1.5, np.nan]])
    assert found["signal"].shape == (0, 2)
    assert resumed(path).recall("score/b") is None


def test_every_difference_is_named(path):
    Checkpoint(path, MADE_OF, 1).save()
    with pytest.raises(StatisticsError, match=r"model aaaaaaaaaaaa -> bbbbbbbbbbbb; numpy none -> 2\.0;"):
        resumed(path, made_of=MADE_OF | {"model": "b" * 64, "numpy": "2.0"})


@pytest.mark.parametrize("cut", [0, 1, 7, 20, -1])
def test_half_of_a_file_is_none(tools, path, cut):
    Checkpoint(path, MADE_OF, 2).count(counting(tools.network()), iter(tools.samples(2)), 0)
    content = path.read_bytes()
    path.write_bytes(content[:cut] if cut != 20 else content[: len(content) // 2] + b"\0" * 40 + content[-200:])
    with pytest.raises(StatisticsError, match="no checkpoint that this version can read"):
        resumed(path)


@pytest.mark.parametrize(("samples", "again"), [(40, 20), (300, 56)])
def test_finished_stages_are_not_done_again(tools, path, tmp_path, monkeypatch, samples, again):
    onnx.save(tools.network().model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(samples, 2, 5, 5)).astype(np.float32))
    job = Job(
        tmp_path / "m.onnx",
        DataSettings(str(tmp_path / "x.npy")),
        CalibrationSettings(threads=1),
        QuantizationSettings("balanced", optimize="latency"),
    )

    def calibrated(checkpoint):
        found = calibrate_planned(job, plan_job(job, job.model, Clock()), Clock(), checkpoint=checkpoint)
        table = replace(found.result.table, run="")
        return table_to_json(table), found.result.model.SerializeToString(deterministic=True), found.optimize

    first = calibrated(Checkpoint(path, MADE_OF, 8))
    counted, extend = [], Counting.extend

    def some(self, samples):  # steps count what they are fitted on, and note nothing of it
        samples = list(samples)
        counted.extend(sample.origin for sample in samples)
        extend(self, samples)

    def never(*_, **__):
        pytest.fail("it was done before")

    monkeypatch.setattr(Counting, "extend", some)
    monkeypatch.setattr(Scorer, "_score", never)
    monkeypatch.setattr(latency, "_measured", never)
    assert calibrated(resumed(path)) == first
    assert len(counted) == len({*counted}) == again


def test_samples_without_their_padding_are_told_by_what_was_stored(tools, path):
    network, samples = tools.network(), tools.samples(4)
    marked = [Sample(each.feed, each.origin, mark=number) for number, each in enumerate(samples, 1)]
    Checkpoint(path, MADE_OF, 4).count(counting(network), iter(marked), 0)
    assert resumed(path).count(counting(network), iter(marked), 0).statistics.fingerprint == 1 + 2 + 3 + 4
