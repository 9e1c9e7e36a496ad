"""`--resume`: a run that was killed goes on from its checkpoint, to the bytes of one that was not."""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parent))

from small_batch import fill, network

CALIBRATE = (
    "calibrate",
    "net.onnx",
    "--data",
    "mortal:samples",
    "-o",
    "out",
    "--no-latency",
    "--checkpoint",
    "5",
    "--batch-size",
    "1",
)
SAME = ("net.int8.onnx", "net.table.json", "net.stats.npz")
# 24 samples; the file "fatal" says with which one the pass that counts is killed. One more at most is read ahead of those
# that were counted, so what is saved by then is known.
MORTAL = """
import os, pathlib, signal, threading
import numpy as np

def samples():
    fatal = pathlib.Path("fatal")
    counts = threading.current_thread().name == "int8cal-read-ahead"
    last = int(fatal.read_text()) if fatal.exists() and counts else -1
    seed = int(pathlib.Path("seed").read_text()) if pathlib.Path("seed").exists() else 1
    for number, row in enumerate(np.random.default_rng(seed).normal(size=(24, 8)).astype(np.float32)):
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"x": row[None]}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory, shared):
    """A folder with a model, data, and the results of an undisturbed run."""
    folder = tmp_path_factory.mktemp("results")
    fill(folder)
    (folder / "mortal.py").write_text(MORTAL)
    done = shared(folder, *CALIBRATE[:4], "-o", "whole", "--no-latency")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def work(results, tmp_path):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    return tmp_path


def kill(call, work, *arguments, after=13):
    """Kill a run in its pass over the data."""
    (work / "fatal").write_text(str(after))
    assert call(*(arguments or CALIBRATE)).code == -9
    (work / "fatal").unlink()


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in SAME}


def rewrite(path, change):
    """Change the header of a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members["header.json"])
    change(header)
    members["header.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_killed_run_goes_on_to_the_same_bytes_and_removes_its_checkpoint(call, work):
    kill(call, work)
    assert not (work / "out").exists()
    done = call(*CALIBRATE, "--resume")
    assert done.code == 0
    assert "int8cal: going on from out.checkpoint: 10 samples are counted" in done.err
    assert bytes_of(work / "out") == bytes_of(work / "whole")
    assert not list(work.glob("*.checkpoint"))
    first, second = (json.loads((work / name / "report.json").read_text()) for name in ("whole", "out"))
    assert (first["metrics"], first["warnings"]) == (second["metrics"], second["warnings"])


def test_a_run_may_be_killed_again_and_again(call, work):
    for after in (8, 12, 22):
        kill(call, work, *CALIBRATE, *(["--resume"] if after > 8 else []), after=after)
    done = call(*CALIBRATE, "--resume")
    assert "20 samples are counted" in done.err
    assert bytes_of(work / "out") == bytes_of(work / "whole")


def test_without_resume_it_is_told_of_and_the_run_begins_anew(call, work):
    kill(call, work)
    done = call(*CALIBRATE, "--checkpoint", "0")
    assert done.code == 0
    assert "out.checkpoint has 10 samples of a run that was stopped: --resume goes on from there" in done.err
    assert bytes_of(work / "out") == bytes_of(work / "whole")
    assert not (work / "out.checkpoint").exists()


def test_with_nothing_to_go_on_from_the_run_begins_with_the_first_sample(call, work):
    done = call(*CALIBRATE, "--resume")
    assert done.code == 0
    assert "there is no out.checkpoint to go on from: the run begins anew" in done.err
    assert bytes_of(work / "out") == bytes_of(work / "whole")


def other_model(work):
    onnx.save(network(7), work / "net.onnx")


def other_data(work):
    (work / "seed").write_text("2")


def other_version(work):
    rewrite(work / "out.checkpoint", lambda header: header["made_of"].update(numpy="1.0"))


def cut_off(work):
    content = (work / "out.checkpoint").read_bytes()
    (work / "out.checkpoint").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("change", "more", "text"),
    [
        (other_model, (), "is of another run: model "),
        (other_data, (), "is of other data: the first sample is not the one that was counted"),
        (None, ("--method", "max"), "is of another run: calibration.method auto -> max"),
        (None, ("--threads", "3"), "is of another run: calibration.threads "),
        (other_version, (), "is of another run: numpy 1.0 -> "),
        (cut_off, (), "is no checkpoint that this version can read"),
    ],
)
def test_a_stale_checkpoint_is_refused_by_name_of_what_differs(call, work, change, more, text):
    kill(call, work)
    if change is not None:
        change(work)
    before = (work / "out.checkpoint").read_bytes()
    done = call(*CALIBRATE, *more, "--resume", "--quiet")
    assert done.code == 5
    assert done.message.startswith(f"int8cal: statistics: out.checkpoint: {text}")
    assert done.message.endswith("leave --resume out to begin anew")
    assert (work / "out.checkpoint").read_bytes() == before
    assert not (work / "out").exists()
    assert call(*CALIBRATE, *more, "--quiet").code == 0


def test_data_that_change_behind_the_first_samples_are_found_where_they_do(call, work):
    arrays = np.load(work / "data" / "0.npy"), np.load(work / "data" / "1.npy")
    (work / "rows").mkdir()
    for number, row in enumerate(np.concatenate(arrays)):
        np.save(work / "rows" / f"{number:02}.npy", row)
    np.save(work / "rows" / "99.npy", np.full(8, np.nan, np.float32))
    job = ("calibrate", "net.onnx", "--data", "rows", "-o", "out", "--checkpoint", "3", "--quiet")
    done = call(*job)
    assert (done.code, "99.npy" in done.message) == (5, True)
    assert "15 samples are counted in out.checkpoint; --resume goes on" in done.message
    np.save(work / "rows" / "06.npy", np.ones(8, np.float32))
    done = call(*job, "--resume")
    assert done.code == 5
    assert "the first 8 samples, up to rows/07.npy, are not those that were counted" in done.message


def test_a_shard_goes_on_too(call, work):
    shard = ("--shard", "1/2")
    kill(call, work, *CALIBRATE, *shard, after=17)
    assert [path.name for path in (work / "out").iterdir()] == ["net.1-of-2.checkpoint"]
    done = call(*CALIBRATE, *shard, "--resume")
    assert (done.code, done.out) == (0, "wrote out/net.1-of-2.stats.npz: 12 samples, shard 1/2\n")
    assert "5 samples are counted" in done.err
    assert call(*CALIBRATE, "--shard", "2/2", "--quiet").code == 0
    parts = sorted((work / "out").iterdir())
    assert [path.name for path in parts] == ["net.1-of-2.stats.npz", "net.2-of-2.stats.npz"]
    assert call("merge", *parts, "-o", "sum.stats.npz").code == 0
    assert (work / "sum.stats.npz").read_bytes() == (work / "whole" / "net.stats.npz").read_bytes()


def test_a_job_of_a_batch_goes_on(call, work):
    (work / "batch.yaml").write_text(
        "defaults: {data: 'mortal:samples', evaluation: {latency: false}, calibration: {checkpoint: 5, batch_size: 1}}\n"
        "jobs: [{model: net.onnx, output: {dir: out}}]\n"
    )
    kill(call, work, "run", "batch.yaml")
    assert [path.name for path in (work / "out").iterdir()] == ["job.json"]
    kill(call, work, "run", "batch.yaml", "--resume", after=18)
    with zipfile.ZipFile(work / "out.checkpoint") as archive:
        assert json.loads(archive.read("header.json"))["samples"] == 15
    assert call("run", "batch.yaml", "--resume").code == 0
    assert bytes_of(work / "out") == bytes_of(work / "whole")
    assert not (work / "out.checkpoint").exists()


def test_results_of_a_run_that_was_killed_before_its_checkpoint_went_are_its_own(call, work):
    kill(call, work)
    shutil.copytree(work / "whole", work / "out")
    assert call(*CALIBRATE, "--quiet").code == 2
    assert call(*CALIBRATE, "--quiet", "--resume").code == 0
    assert bytes_of(work / "out") == bytes_of(work / "whole")
