"""A Ray cluster of this machine: the bytes of a local run, whatever is lost meanwhile; a bad sample is told as it is here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from control_flow import branches, feeds, save_feeds
from padded_models import encoder, padded, sentences, write

from int8cal.batch import run as batches
from int8cal.batch.jobs import load_tasks
from int8cal.calibrating import calibrate_job
from int8cal.calibration.checkpoint import Checkpoint
from int8cal.calibration.engines import ray as engine
from int8cal.calibration.engines import schedule
from int8cal.config.load import job_from_options
from int8cal.errors import Int8calError
from int8cal.probe import probe
from int8cal.progress import watching

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
        assign = schedule.ClusterRun._assign

        def assigned(run) -> None:
            before = set(run._running)
            assign(run)
            for ref in set(run._running) - before if run.name == stage else ():
                self.calls += 1
                if self.calls in moments:
                    end(run._running[ref][0])
                    self.ended += 1

        monkeypatch.setattr(schedule.ClusterRun, "_assign", assigned)


def kill(worker) -> None:
    with contextlib.suppress(ProcessLookupError):  # killed before, and the cluster has not noticed yet
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
def test_bodies_and_a_budget_come_out_as_by_a_local_run(tmp_path, monkeypatch):
    """Branches are run, and models with layers in float are measured on all samples, by workers that are killed."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 3)
    onnx.save(branches(), tmp_path / "net.onnx")
    items = [*feeds(8, flag=True), *feeds(8, seed=8, flag=False)]
    save_feeds(tmp_path / "data", [each for pair in zip(items[:8], items[8:], strict=True) for each in pair])
    run, found = samples_run(monkeypatch), []
    losses = [Losses(monkeypatch, {2}, kill, name) for name in ("bodies", "outputs")]
    options = {"quantization.budget": 90.0, "evaluation.gates": ["sqnr_db>=60"]}
    for name in ("local", "ray"):
        calibrate_job(job(tmp_path, tmp_path / name, **options, **{"calibration.engine": name}))
        document = json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
        found.append((files(tmp_path / name), document["mixed_precision"], document["metrics"]))
    assert [each.ended for each in losses] == [1, 1]
    assert found[0] == found[1]
    assert len(found[0][1]["curve"]) > 2
    table = json.loads(found[0][0]["net.table.json"])
    assert table["data"]["bodies"] == {"choice/then_branch": 8, "choice/else_branch": 8}
    # the FP32 model, each model of the curve and the report's pair
    assert run["outputs"] >= 16 * (2 + len(found[0][1]["curve"]))


@pytest.mark.usefixtures("four_workers")
def test_sweeps_come_out_as_by_a_local_run(made, tmp_path, monkeypatch):
    """The noise of tensors, for a recipe, and that of layers, for a budget, are measured by workers that are killed."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 3)
    monkeypatch.setattr(schedule, "PART_S", 1e-9)
    monkeypatch.setattr(schedule, "LEAST_PART_S", 1e-9)
    monkeypatch.setattr(probe, "ELSEWHERE_S", 0.0)
    run, found = samples_run(monkeypatch), []
    losses = [Losses(monkeypatch, {2, 3}, kill, name) for name in ("noise of tensors", "noise of layers")]
    options = {"quantization.recipe": "accurate", "quantization.budget": 50.0, "evaluation.gates": ["sqnr_db>=90"]}
    for name in ("local", "ray"):
        calibrate_job(job(made, tmp_path / name, **options, **{"calibration.engine": name}))
        document = json.loads((tmp_path / name / "report.json").read_text(encoding="utf-8"))
        found.append((files(tmp_path / name), document["mixed_precision"], document["decisions"]))
        assert run.keys() >= {"noise of tensors", "noise of layers"} or name == "local"
    assert [each.ended for each in losses] == [2, 2]
    assert found[0] == found[1]
    assert len(found[0][1]["layers"]) == 2


@pytest.mark.usefixtures("four_workers")
def test_a_rounding_that_ends_every_process_is_named(made, tmp_path, monkeypatch):
    assign = schedule.ClusterRun._assign

    def assigned(run) -> None:
        assign(run)
        for worker, call, _ in run._running.values() if run.name == "noise of layers" else ():
            if call.ranges[0][0] <= 1 < call.ranges[0][1]:
                kill(worker)

    monkeypatch.setattr(schedule.ClusterRun, "_assign", assigned)
    options = {"quantization.budget": 50.0, "evaluation.gates": ["sqnr_db>=90"], "calibration.engine": "ray"}
    outcome = calibrate_job(job(made, tmp_path / "out", **options))
    (failure,) = outcome.report.evaluation.failures
    assert re.search("rounding of weights of .*: ends the process that runs it, 3 times", str(failure))
    assert files(outcome.directory).keys() == set(WRITTEN)


@pytest.mark.usefixtures("four_workers")
def test_a_sample_that_ends_every_process_is_named(made, tmp_path, monkeypatch):
    """A part that costs workers is cut until one sample is left."""
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 8)
    assign = schedule.ClusterRun._assign

    def assigned(run) -> None:
        assign(run)
        for worker, call, _ in run._running.values():
            if not call.inputs and call.ranges[0][0] <= 5 < call.ranges[0][1]:
                kill(worker)

    monkeypatch.setattr(schedule.ClusterRun, "_assign", assigned)
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


def in_small_parts(monkeypatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 2)
    monkeypatch.setattr(schedule, "PART_S", 1e-9)
    monkeypatch.setattr(schedule, "LEAST_PART_S", 1e-9)
    monkeypatch.setattr(engine, "FAN_IN", 3)


def samples_run(monkeypatch) -> dict[str, int]:
    """Count the samples that are given to workers, by the stage."""
    found = dict[str, int]()
    assign = schedule.ClusterRun._assign

    def assigned(run) -> None:
        before = set(run._running)
        assign(run)
        for ref in set(run._running) - before:
            call = run._running[ref][1]
            found[run.name] = found.get(run.name, 0) + (0 if call.inputs else call.samples)

    monkeypatch.setattr(schedule.ClusterRun, "_assign", assigned)
    return found


class KilledError(BaseException):
    """In the place of a signal that no process survives."""


@pytest.fixture(scope="module")
def killed(made, four_workers, tmp_path_factory) -> Path:
    """The checkpoint of a run that was killed when it had saved it three times."""
    output = tmp_path_factory.mktemp("killed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, made, output, 3)
    return output.with_name("out.checkpoint")


def killed_after(monkeypatch, made, output, saves, **options) -> None:
    """End a run when it has saved its checkpoint some times."""
    take, count = Checkpoint._take, 0

    def dying(*given) -> None:
        nonlocal count
        take(*given)
        count += 1
        if count == saves:
            raise KilledError

    with monkeypatch.context() as own:
        in_small_parts(own)
        own.setattr(Checkpoint, "_take", dying)
        with pytest.raises(KilledError):
            calibrate_job(job(made, output, **{"calibration.engine": "ray", "calibration.checkpoint": 5} | options))


@pytest.mark.usefixtures("four_workers")
def test_a_killed_run_goes_on_to_the_same_bytes(made, local, killed, tmp_path, monkeypatch):
    """Some samples are counted, here and there in the data; none of them is run again, and the others are, once."""
    shutil.copy(killed, tmp_path / "out.checkpoint")
    in_small_parts(monkeypatch)
    found = samples_run(monkeypatch)
    losses = Losses(monkeypatch, {2}, kill)
    told = list[str]()
    options = {"calibration.engine": "ray", "calibration.resume": True, "calibration.checkpoint": 5}
    with pytest.warns(schedule.ClusterWarning, match="is lost"):
        calibrate_job(job(made, tmp_path / "out", **options), tell=told.append)
    counted = found["samples that are counted"]
    assert 15 <= counted < SAMPLES
    assert f"{counted} samples are counted" in told[0]
    lost = 2 * losses.ended  # what the killed worker had is run again
    assert SAMPLES <= counted + found["samples"] <= SAMPLES + lost
    assert files(tmp_path / "out") == local
    assert not (tmp_path / "out.checkpoint").exists()


@pytest.mark.long
@pytest.mark.usefixtures("four_workers")
def test_a_killed_process_leaves_a_checkpoint_that_goes_on(made, local, tmp_path):
    """Kill -9, as a scheduler does it; its workers go with it."""
    code = (
        "import os, signal, sys\n"
        "from int8cal.calibration import checkpoint\n"
        "from int8cal.calibration.engines import schedule\n"
        "from int8cal.cli.main import entry\n"
        "schedule.FIRST_SAMPLES, schedule.PART_S, schedule.LEAST_PART_S = 2, 1e-9, 1e-9\n"
        "take = checkpoint.Checkpoint._take\n"
        "checkpoint.Checkpoint._take = lambda *given: (take(*given), os.kill(os.getpid(), signal.SIGKILL))\n"
        "entry()\n"
    )
    address = ray.get_runtime_context().gcs_address
    command = ["calibrate", made / "net.onnx", "--data", made / "data", "--recipe", "balanced", "--threads", "1"]
    command += ["--no-latency", "--engine", "ray", "--address", address, "--checkpoint", "5", "-o", tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "out").exists()
    command = [sys.executable, "-m", "int8cal", *command, "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"going on from {tmp_path / 'out.checkpoint'}: " in done.stderr
    assert files(tmp_path / "out") == local


def other_data(folder: Path) -> None:
    for path in (folder / "data").iterdir():  # which of them are counted already is a matter of time
        np.save(path, np.load(path) + 1)


def fewer_data(folder: Path) -> None:
    for path in sorted((folder / "data").iterdir())[1:]:
        path.unlink()


@pytest.mark.usefixtures("four_workers")
@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        (other_data, {}, "is of other data: .* samples are not those that were counted"),
        (fewer_data, {}, "is of other data: sample .* was counted, and there are 1"),
        (None, {"calibration.method": "max"}, "is of another run: calibration.method auto -> max"),
        (None, {"calibration.engine": "local"}, "is of another run: calibration.engine ray -> local"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(made, killed, tmp_path, change, options, text):
    shutil.copytree(made, tmp_path / "made")
    shutil.copy(killed, tmp_path / "out.checkpoint")
    if change is not None:
        change(tmp_path / "made")
    options = {"calibration.engine": "ray", "calibration.resume": True} | options
    with pytest.raises(Int8calError, match=text) as caught:
        calibrate_job(job(tmp_path / "made", tmp_path / "out", **options))
    assert caught.value.exit_code == 5
    assert (tmp_path / "out.checkpoint").exists()


@pytest.mark.usefixtures("four_workers")
def test_a_run_that_goes_on_decides_on_padding_as_it_did(tmp_path, monkeypatch):
    """The sample that decides is among those that are counted; another one would decide otherwise."""
    onnx.save(encoder(), tmp_path / "net.onnx")
    plain, *others = (sentences(8, seed=seed) for seed in range(3))
    write(tmp_path / "data", [*padded(others[0], 14), *plain, *padded(others[1], 13, side="start")])
    calibrate_job(job(tmp_path, tmp_path / "whole"))
    killed_after(monkeypatch, tmp_path, tmp_path / "out", 2)
    calibrate_job(job(tmp_path, tmp_path / "out", **{"calibration.engine": "ray", "calibration.resume": True}))
    assert b'"trimmed"' in files(tmp_path / "out")["net.table.json"]
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.usefixtures("four_workers")
@pytest.mark.parametrize("adding", [False, True])
def test_a_worker_that_hangs_does_not_hold_the_run(made, local, tmp_path, monkeypatch, adding):
    """What a slow worker has, samples or results to add, is done by another one, and the run ends without waiting for it."""
    monkeypatch.setattr(schedule, "LEAST_SLOW_S", 0.5)
    monkeypatch.setattr(schedule, "FIRST_SAMPLES", 4)
    monkeypatch.setattr(engine, "FAN_IN", 2)
    assign, hung = schedule.ClusterRun._assign, []

    def assigned(run) -> None:
        assign(run)
        for worker, call, _ in run._running.values() if run.name == "samples" and not hung else ():
            if bool(call.inputs) == adding and (adding or call.first):
                os.kill(worker.process, signal.SIGSTOP)
                hung.append(worker.process)
                break

    monkeypatch.setattr(schedule.ClusterRun, "_assign", assigned)
    calibrate_job(job(made, tmp_path / "out", **{"calibration.engine": "ray"}))
    assert len(hung) == 1
    assert files(tmp_path / "out") == local


BATCH = """
defaults:
  data: {path: DATA}
  quantization: {recipe: balanced}
  calibration: {threads: 1, engine: ENGINE}
  evaluation: {latency: false}
  output: {dir: "{name}"}
jobs:
  - {name: first, model: net.onnx}
  - {name: broken, model: net.onnx, data: {path: BROKEN}}
  - {name: third, model: net.onnx, calibration: {method: max}}
"""


@pytest.fixture(scope="module")
def batch(made, tmp_path_factory) -> Path:
    """A batch of three jobs, one of which fails on a sample, with the results of a run on this machine."""
    folder = tmp_path_factory.mktemp("batch")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    shutil.copytree(made / "data", folder / "broken")
    np.save(folder / "broken" / "030.npy", np.full((1, 3, 8, 8), np.nan, np.float32))
    text = BATCH.replace("DATA", "data").replace("BROKEN", "broken")
    (folder / "local.yaml").write_text(text.replace("ENGINE", "local").replace("{name}", "local/{name}"))
    (folder / "ray.yaml").write_text(text.replace("ENGINE", "ray").replace("{name}", "ray/{name}"))
    done = run_batch(folder, "local.yaml", "--keep-going")
    assert done.returncode == 5, done.stderr
    return folder


def run_batch(folder: Path, *arguments) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "int8cal", "run", *arguments]
    others = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=others)


def require_same(folder: Path) -> None:
    for name in ("first", "third"):
        assert files(folder / "ray" / name) == files(folder / "local" / name)
    assert not (folder / "ray" / "broken").exists()


def test_jobs_of_a_batch_share_a_cluster_that_loses_workers(batch, tmp_path):
    """Two at a time in processes of their own, in the cluster that the batch has started: one fails, workers are killed."""
    ray.shutdown()
    folder = tmp_path / "batch"
    shutil.copytree(batch, folder)
    ended = threading.Event()
    killed = set[int]()

    def killing() -> None:
        while not ended.wait(0.05) and len(killed) < 3:
            for process in workers_that_run() - killed:
                killed.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                break

    thread = threading.Thread(target=killing)
    thread.start()
    try:
        done = run_batch(folder, "ray.yaml", "--jobs", "2", "--keep-going")
    finally:
        ended.set()
        thread.join()
    assert killed
    assert "warning: ray: a worker on node" in done.stderr
    assert done.returncode == 5, done.stderr
    assert re.search(r"int8cal: broken: statistics: .*broken.030\.npy: input \"x\" .* holds nan", done.stderr)
    require_same(folder)


def workers_that_run() -> set[int]:
    """Find the processes of the cluster that this process or one of its children has started which are at work with samples."""
    parents, names = dict[int, int](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "stat").read_text()
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
            names[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
    found = set[int]()
    for process, name in names.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and name.startswith("ray::_Worker.run"):
            found.add(process)
    return found


@pytest.mark.usefixtures("four_workers")
def test_a_batch_connects_once_and_its_lines_name_the_job(batch, tmp_path, monkeypatch):
    """One job after the other in this process; what is watched and told names it."""
    folder = tmp_path / "batch"
    shutil.copytree(batch, folder)
    monkeypatch.chdir(folder)
    in_small_parts(monkeypatch)
    losses = Losses(monkeypatch, {4, 9}, kill)
    jobs, watched = load_tasks(["ray.yaml"], {}, {}), set[tuple[str, str]]()
    with (
        pytest.warns(schedule.ClusterWarning, match="is lost"),
        watching(lambda each: watched.add((each.job, each.detail))),
    ):
        results, _ = batches.run_batch(jobs, batches.BatchOptions(1, True, False, None), lambda *_: None)
    assert [each.status for each in results] == ["done", "failed", "done"]
    assert losses.ended == 2
    assert {("first", "samples"), ("broken", "samples"), ("third", "samples"), ("first", "outputs")} <= watched
    require_same(folder)


def test_speed_is_not_measured_beside_workers_of_other_jobs(batch):
    text = (batch / "ray.yaml").read_text().replace("latency: false", "latency: true")
    (batch / "speed.yaml").write_text(text)
    done = run_batch(batch, "speed.yaml", "--jobs", "2")
    assert done.returncode == 2
    assert 'job "first" measures speed, and workers of a Ray cluster are not stopped meanwhile' in done.stderr
    assert "set latency: false" in done.stderr


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
