"""A Ray cluster of this machine: the bytes of a local run, whatever is lost meanwhile; a bad sample is told as it is here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from padded_models import encoder, padded, sentences, write

from int8cal.calibrating import calibrate_job
from int8cal.calibration.engines import ray as engine
from int8cal.calibration.engines import schedule
from int8cal.config.load import job_from_options
from int8cal.errors import Int8calError

if TYPE_CHECKING:
    from pathlib import Path

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

MEMORY = 150_000_000
SAMPLES = 60
WRITTEN = ("net.int8.onnx", "net.table.json", "net.stats.npz")
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n,3,8,8] x) => (float[n,4] y)
<float[8,3,3,3] w, float[4,8] v> {
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  r = Relu (a)
  p = GlobalAveragePool (r)
  f = Flatten (p)
  y = Gemm <transB = 1> (f, v)
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A convolution with its data: one sample per file, and files of several."""
    folder = tmp_path_factory.mktemp("ray")
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8))):
        weights = random.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(model, folder / "net.onnx")
    (folder / "data").mkdir()
    for index in range(0, SAMPLES, 3):
        rows = 1 + index % 2 * 4
        values = random.normal(0, 1 + index / 20, (rows, 3, 8, 8)).astype(np.float32)
        np.save(folder / "data" / f"{index:03}.npy", values)
    return folder


def job(made: Path, output: Path, **options):
    given = {"model": str(made / "net.onnx"), "data.path": str(made / "data"), "output.dir": str(output)}
    given |= {"evaluation.latency": False, "quantization.recipe": "balanced", "calibration.threads": 1}
    return job_from_options(given | options)


def files(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.name in WRITTEN}


@pytest.fixture(scope="module")
def local(made, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("local") / "out"
    calibrate_job(job(made, output))
    found = files(output)
    assert len(found) == len(WRITTEN)
    return found


@pytest.fixture(scope="module")
def four_workers():
    engine.require_ray()
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=MEMORY
    )
    yield
    ray.shutdown()


class Losses:
    """Ends workers when calls have been given to them, and notes how many."""

    def __init__(self, monkeypatch, moments, end, stage="samples") -> None:
        self.calls, self.ended = 0, 0
        assign = schedule.Run._assign

        def assigned(run) -> None:
            before = set(run._running)
            assign(run)
            for ref in set(run._running) - before if run.name == stage else ():
                self.calls += 1
                if self.calls in moments:
                    end(run._running[ref][0])
                    self.ended += 1

        monkeypatch.setattr(schedule.Run, "_assign", assigned)


def kill(worker) -> None:
    os.kill(worker.process, signal.SIGKILL)


@pytest.mark.usefixtures("four_workers")
@pytest.mark.parametrize(("first", "seconds", "moments"), [(1, 1e-9, {2, 5, 11}), (8, 10.0, {1, 2, 3})])
def test_killed_workers_leave_no_trace(made, local, tmp_path, monkeypatch, first, seconds, moments):
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", first)
    monkeypatch.setattr(schedule, "PART_S", seconds)
    monkeypatch.setattr(schedule, "LEAST_PART_S", 1e-9)
    monkeypatch.setattr(engine, "FAN_IN", 3)
    losses = Losses(monkeypatch, moments, kill)
    with pytest.warns(schedule.ClusterWarning, match="is lost .* are run again"):
        calibrate_job(job(made, tmp_path / "out", **{"calibration.engine": "ray"}))
    assert losses.ended == len(moments)
    assert files(tmp_path / "out") == local


@pytest.mark.usefixtures("four_workers")
def test_an_evaluation_in_the_cluster_has_the_figures_of_one_here(made, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 2)
    monkeypatch.setattr(schedule, "PART_S", 1e-9)
    monkeypatch.setattr(schedule, "LEAST_PART_S", 1e-9)
    losses, found = Losses(monkeypatch, {3, 9}, kill, "outputs"), []
    for name in ("local", "ray"):
        options = {"evaluation.data": {"path": str(made / "data")}, "calibration.engine": name}
        outcome = calibrate_job(job(made, tmp_path / name, **options))
        document = json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
        found.append((document["metrics"], document["outputs"], document["layers"], outcome.report.warnings))
    assert losses.ended == 2
    assert found[0] == found[1]
    assert found[0][0]["sqnr_db"] > 10


@pytest.mark.usefixtures("four_workers")
def test_a_sample_that_ends_every_process_is_named(made, tmp_path, monkeypatch):
    """A part that costs workers is cut until one sample is left."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 8)
    assign = schedule.Run._assign

    def assigned(run) -> None:
        assign(run)
        for worker, call, _ in run._running.values():
            if not call.inputs and call.ranges[0][0] <= 5 < call.ranges[0][1]:
                kill(worker)

    monkeypatch.setattr(schedule.Run, "_assign", assigned)
    with pytest.raises(Int8calError, match=r"003\.npy.*: ends the process that runs it, 3 times") as caught:
        calibrate_job(job(made, tmp_path / "out", **{"calibration.engine": "ray"}))
    assert caught.value.exit_code == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("four_workers")
def test_a_sample_that_fails_is_told_as_by_a_local_run(made, tmp_path, monkeypatch):
    """The first one is told, though a worker that begins with the second one is sooner."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 3)
    data = tmp_path / "data"
    data.mkdir()
    for path in (made / "data").iterdir():
        values = np.load(path)
        if path.name in ("009.npy", "012.npy"):
            values[-1, 1, 2, 3] = np.nan
        np.save(data / path.name, values)
    told = []
    for name in ("local", "ray"):
        with pytest.raises(Int8calError) as caught:
            calibrate_job(job(made, tmp_path / name, **{"data.path": str(data), "calibration.engine": name}))
        told.append((type(caught.value), str(caught.value), caught.value.exit_code))
    assert told[0] == told[1]
    assert "009.npy[4]" in told[0][1]


@pytest.mark.usefixtures("four_workers")
def test_padding_is_decided_as_by_a_local_run(tmp_path, monkeypatch):
    """What becomes of padding is decided on its first sample, which another worker may meet than the first part's."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 2)
    onnx.save(encoder(), tmp_path / "net.onnx")
    plain, *others = (sentences(8, seed=seed) for seed in range(3))
    feeds = [*plain, *padded(others[0], 14), *padded(others[1], 13, side="start")]
    write(tmp_path / "data", feeds)
    found = []
    for name in ("local", "ray"):
        calibrate_job(job(tmp_path, tmp_path / name, **{"calibration.engine": name}))
        found.append(files(tmp_path / name))
        assert b'"trimmed"' in found[-1]["net.table.json"]
    assert found[0] == found[1]


@pytest.mark.usefixtures("four_workers")
def test_unreadable_files_are_left_out_as_by_a_local_run(made, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in (made / "data").iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    reports = []
    for index in (21, 45):
        content = bytearray((data / f"{index:03}.npy").read_bytes())
        (data / f"{index:03}.npy").write_bytes(content[:40])
    for name in ("local", "ray"):
        options = {"data.path": str(data), "data.skip_bad": True, "calibration.engine": name}
        outcome = calibrate_job(job(made, tmp_path / name, **options))
        reports.append([line for line in outcome.report.warnings if "skipped" in line])
    assert files(tmp_path / "local") == files(tmp_path / "ray")
    assert reports[0] == reports[1] != []


def test_the_bytes_are_the_same_when_a_node_is_lost(made, local, tmp_path, monkeypatch):
    """Two raylets on this machine; one goes with its workers and with the results that lie there."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 1)
    monkeypatch.setattr(schedule, "PART_S", 1e-9)
    monkeypatch.setattr(schedule, "LEAST_PART_S", 1e-9)
    monkeypatch.setattr(engine, "FAN_IN", 3)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False},
    )
    try:
        second = cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
        losses = Losses(monkeypatch, {12}, lambda _: cluster.remove_node(second, allow_graceful=False))
        options = {"calibration.engine": "ray", "calibration.address": cluster.address}
        with pytest.warns(schedule.ClusterWarning, match="is lost"):
            calibrate_job(job(made, tmp_path / "out", **options))
        assert losses.ended == 1
        assert files(tmp_path / "out") == local
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_the_command_starts_a_cluster_and_ends_it(made, local, tmp_path):
    command = [sys.executable, "-m", "int8cal", "calibrate", str(made / "net.onnx"), "--data", str(made / "data")]
    command += [
        "--recipe",
        "balanced",
        "--threads",
        "1",
        "--no-latency",
        "--engine",
        "ray",
        "-o",
        str(tmp_path / "out"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "out") == local


def test_a_cluster_that_does_not_answer_is_named(made, tmp_path):
    ray.shutdown()
    with pytest.raises(Int8calError, match=r"no Ray cluster answers at 127\.0\.0\.1:1") as caught:
        calibrate_job(
            job(made, tmp_path / "out", **{"calibration.engine": "ray", "calibration.address": "127.0.0.1:1"})
        )
    assert caught.value.exit_code == 2
