"""Batches: which jobs run, what is skipped, what survives a kill, and that N at a time give what one gives."""

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from int8cal.cli.main import main

sys.path.append(str(Path(__file__).parent))
import itertools

from small_batch import fill, network, start, write

pytestmark = pytest.mark.slow

TWO = ("name: one, calibration: {method: max}", "name: two, calibration: {method: kl}")
RESULTS = ("net.int8.onnx", "net.table.json", "net.stats.npz")


@pytest.fixture
def batch(tmp_path):
    fill(tmp_path)
    return tmp_path


@pytest.fixture
def run(batch, monkeypatch, capfd):
    """Call `int8cal run` in this process: the libraries are loaded once."""
    monkeypatch.chdir(batch)

    def run(*arguments):
        code = main(["run", *map(str, arguments)])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Finished(code, captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def message(self):
        (line,) = self.err.splitlines()
        return line


def rows(done):
    """Name -> how it ended, of the table that was printed."""
    _, *lines, _ = done.out.splitlines()
    return {line.split()[0]: line.rpartition("  ")[2] for line in lines}


def results(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for name in RESULTS for path in folder.rglob(name)}


def summary(folder):
    return json.loads((folder / "out" / "summary.json").read_text())


def await_files(folder, pattern, number):
    deadline = time.monotonic() + 60
    while len(list(folder.glob(pattern))) < number:
        assert time.monotonic() < deadline, f"no {number} of {pattern}"
        time.sleep(0.02)
    return sorted(folder.glob(pattern))


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def await_end(pids):
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process was left over"
        time.sleep(0.05)


class TestResume:
    def test_a_job_whose_inputs_are_unchanged_is_skipped_and_its_row_filled(self, run, batch):
        file = write(batch, *TWO)
        first = run(file)
        assert (first.code, rows(first)) == (0, {"one": "out/one", "two": "out/two"})
        before = {path: path.stat().st_mtime_ns for path in (batch / "out").rglob("*.onnx")}
        second = run(file)
        assert (second.code, rows(second)) == (0, {"one": "out/one (up to date)", "two": "out/two (up to date)"})
        cells = [line.split("out/")[0] for line in first.out.splitlines()[:3]]
        assert [line.split("out/")[0] for line in second.out.splitlines()[:3]] == cells
        assert {path: path.stat().st_mtime_ns for path in before} == before
        assert [job["status"] for job in summary(batch)["jobs"]] == ["up to date"] * 2

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda folder: onnx.save(network(1), folder / "net.onnx"), "changed: the model"),
            (lambda folder: np.save(folder / "data" / "3.npy", np.ones((2, 8), np.float32)), "changed: the data"),
            (lambda folder: np.save(folder / "data" / "0.npy", np.ones((8, 8), np.float32)), "changed: the data"),
            (lambda folder: (folder / "out/one/net.table.json").unlink(), "net.table.json missing"),
            (
                lambda folder: write(folder, "name: one, calibration: {percentile: 99}"),
                "changed: calibration.percentile 99.99 -> 99",
            ),
            (lambda folder: replace_in_record(folder, "onnxruntime", "0.1"), "changed: onnxruntime 0.1 -> "),
            (lambda folder: replace_in_record(folder, "int8cal", "0.0.1"), "changed: int8cal 0.0.1 -> "),
        ],
    )
    def test_a_job_whose_inputs_changed_runs_again_without_overwrite(self, run, batch, change, why):
        file = write(batch, "name: one")
        assert run(file).code == 0
        change(batch)
        done = run(file, "--summary", "s.json")
        assert (done.code, rows(done)) == (0, {"one": "out/one"})
        (job,) = json.loads((batch / "s.json").read_text())["jobs"]
        assert job["why"].startswith(why)
        assert "up to date" in run(file).out

    def test_files_that_were_only_touched_or_copied_are_unchanged(self, run, batch):
        file = write(batch, "name: one, calibration: {batch_size: 3}")
        assert run(file).code == 0
        shutil.copytree(batch / "data", batch / "copy")
        shutil.rmtree(batch / "data")
        (batch / "copy").rename(batch / "data")
        os.utime(batch / "net.onnx")
        write(batch, "name: one, calibration: {batch_size: 4}")
        assert "(up to date)" in run(file).out

    def test_a_failed_gate_is_remembered_and_fails_again(self, run, batch):
        file = write(batch, *TWO, gates='"sqnr_db>=200"')
        first, second = run(file), run(file)
        assert (first.code, second.code) == (7, 7)
        assert rows(first) == {"one": "failed: gate", "two": "failed: gate"}
        assert first.err == second.err
        assert "one: gate: 1 of 1 failed: sqnr_db>=200" in second.err
        assert rows(second) == {"one": "failed: gate (up to date)", "two": "failed: gate (up to date)"}
        job = summary(batch)["jobs"][0]
        assert (job["status"], job["ran"], job["gates"][0]["passed"]) == ("gate failed", False, False)

    def test_a_batch_goes_on_behind_a_gate_that_failed_and_that_job_runs_anew_where_it_is_asked_to(self, run, batch):
        file = write(batch, "name: one", "name: two, data: nowhere", gates='"sqnr_db>=200"')
        first = run(file)
        assert (first.code, rows(first)) == (7, {"one": "failed: gate", "two": "failed: data"})
        write(batch, "name: one", "name: two, calibration: {method: kl}", gates='"sqnr_db>=200"')
        again = run(file)
        assert (again.code, rows(again)) == (7, {"one": "failed: gate (up to date)", "two": "failed: gate"})
        anew = run(file, "--only", "one", "--rerun")
        assert (anew.code, rows(anew)) == (7, {"one": "failed: gate"})

    def test_what_was_edited_by_hand_is_not_lost(self, run, batch):
        file = write(batch, "name: one")
        assert run(file).code == 0
        table = batch / "out/one/net.table.json"
        table.write_text(table.read_text() + "\n")
        done = run(file)
        assert done.code == 2
        assert "out/one: net.table.json changed since this job wrote it; keep a copy and give --overwrite" in done.err
        assert table.read_text().endswith("\n\n")
        assert run(file, "--overwrite").code == 0
        assert not table.read_text().endswith("\n\n")

    def test_a_directory_of_something_else_is_never_replaced_without_overwrite(self, run, batch):
        file = write(batch, "name: one")
        (batch / "out/one").mkdir(parents=True)
        (batch / "out/one/notes.txt").write_text("mine")
        done = run(file)
        assert (done.code, rows(done)) == (2, {"one": "failed: output"})
        assert [path.name for path in (batch / "out/one").iterdir()] == ["notes.txt"]
        assert run(file, "--overwrite").code == 0
        assert (batch / "out/one/notes.txt").read_text() == "mine"

    def test_another_jobs_directory_is_not_replaced(self, run, batch):
        assert run(write(batch, "name: one")).code == 0
        other = write(batch, "name: one, calibration: {method: max}", name="other.yaml")
        done = run(other)
        assert done.code == 2
        assert 'out/one: holds results of job "one" of ../../batch.yaml' in done.err
        assert "(up to date)" in run(write(batch, "name: one", name="third.yaml")).out

    def test_rerun_runs_what_is_up_to_date(self, run, batch):
        file = write(batch, "name: one")
        run(file)
        before = results(batch / "out")
        done = run(file, "--rerun")
        assert rows(done) == {"one": "out/one"}
        assert results(batch / "out") == before

    def test_files_of_the_earlier_model_go_when_the_job_takes_another(self, run, batch):
        file = write(batch, "name: one")
        run(file)
        (batch / "net.onnx").rename(batch / "other.onnx")
        (batch / file).write_text((batch / file).read_text().replace("net.onnx", "other.onnx"))
        assert run(file).code == 0
        names = {path.name for path in (batch / "out/one").iterdir()}
        assert "other.int8.onnx" in names
        assert "net.int8.onnx" not in names

    def test_samples_of_a_function_are_never_taken_for_the_same(self, call, batch):
        file = write(batch, "name: one", data="feeds:some")
        assert call("run", file).code == 0
        done = call("run", file, "--dry-run")
        assert "one: to run (samples come from a function, which may give others)" in done.out

    def test_a_job_that_fails_leaves_nothing_and_the_earlier_results(self, run, batch):
        file = write(batch, "name: one")
        (batch / "net.onnx").rename(batch / "away.onnx")
        assert run(file).code == 3
        assert not (batch / "out").exists()
        (batch / "away.onnx").rename(batch / "net.onnx")
        assert run(file).code == 0
        before = {path.name: path.read_bytes() for path in (batch / "out/one").iterdir()}
        (batch / "net.onnx").write_bytes(b"broken")
        assert run(file).code == 3
        assert {path.name: path.read_bytes() for path in (batch / "out/one").iterdir()} == before


def replace_in_record(folder, library, version):
    path = folder / "out/one/job.json"
    record = json.loads(path.read_text())
    record["inputs"]["versions"][library] = version
    path.write_text(json.dumps(record))


class TestKilled:
    @pytest.mark.parametrize("at_a_time", [1, 2])
    def test_a_batch_that_was_killed_goes_on_with_what_was_not_done(self, call, batch, at_a_time):
        (batch / "wait").touch()
        file = write(batch, "name: one", "name: two, data: 'feeds:waits'", "name: three")
        with start(batch, file, "--jobs", at_a_time) as parent:
            await_files(batch, "pid-*", 1)
            if at_a_time == 2:
                await_files(batch, "out/three/report.json", 1)
                while json.loads((batch / "out/three/job.json").read_text())["state"] != "done":
                    time.sleep(0.02)
            workers = [int(path.name.removeprefix("pid-")) for path in batch.glob("pid-*")]
            parent.kill()
        await_end(workers)
        assert summary(batch)["jobs"][1]["status"] == "not run"
        if at_a_time == 1:  # a worker finds its parent gone, and tidies up
            assert json.loads((batch / "out/two/job.json").read_text())["state"] == "started"
        (batch / "wait").unlink()
        done = call("run", file, "--jobs", at_a_time)
        up_to_date = {"one": "out/one (up to date)", "two": "out/two", "three": "out/three"}
        if at_a_time == 2:
            up_to_date["three"] += " (up to date)"
        assert (done.code, rows(done)) == (0, up_to_date)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt_ends_all_processes_and_leaves_nothing_half_written(self, batch, number):
        (batch / "wait").touch()
        file = write(batch, "name: one", "name: two", "name: three", data="'feeds:waits'")
        with start(batch, file, "--jobs", 2) as parent:
            pids = [int(path.name.removeprefix("pid-")) for path in await_files(batch, "pid-*", 2)]
            parent.send_signal(number)
            _, err = parent.communicate(timeout=60)
        assert (parent.returncode, err.strip()) == (130, "int8cal: interrupted; nothing was half-written")
        await_end(pids)
        assert len(pids) == 2
        assert sorted(path.name for path in (batch / "out").iterdir()) == ["summary.json", "summary.md"]
        assert summary(batch)["exit_code"] == 130
        assert [job["status"] for job in summary(batch)["jobs"]] == ["not run"] * 3


class TestSeveralAtATime:
    def test_results_are_the_same_bytes(self, run, batch):
        file = write(batch, *TWO, "name: three, quantization: {weights: s7}")
        assert run(file).code == 0
        expected = results(batch / "out")
        assert len(expected) == 9
        assert run(file, "--jobs", 3, "--rerun").code == 0
        assert results(batch / "out") == expected
        assert "3 jobs: 3 up to date" in run(file, "--jobs", 2).out

    def test_what_jobs_print_comes_in_one_block_each(self, call, batch):
        file = write(batch, "name: one", "name: two", data="'feeds:prints'")
        done = call("run", file, "--jobs", 2)
        assert done.code == 0
        printed = [line for line in done.err.splitlines() if line.startswith("line of ")]
        changes = sum(first != second for first, second in itertools.pairwise(printed))
        assert len(set(printed)) == 2
        assert changes == 1
        assert "line of" not in done.out

    def test_the_code_is_that_of_the_first_failed_job_of_the_file(self, call, batch):
        file = write(batch, "name: one, data: nowhere", "name: two", "name: three, data: gone")
        done = call("run", file, "--jobs", 3, "--keep-going")
        assert done.code == 4
        assert rows(done)["two"] == "out/two"
        # a slow machine gets progress too, and six samples are few
        told = [line for line in done.err.splitlines() if " jobs done, " not in line and "check the data" not in line]
        assert {line.split(":")[1].strip() for line in told} == {"one", "three"}

    def test_a_process_that_dies_is_a_failed_job(self, call, batch):
        file = write(batch, "name: one, data: 'feeds:dies'", "name: two")
        done = call("run", file, "--jobs", 2, "--keep-going")
        assert done.code == 1
        assert rows(done)["one"] == "failed: killed"
        assert "one: killed: the job's process was killed by signal 9 (out of memory?); give fewer --jobs" in done.err
        assert rows(done)["two"] == "out/two"

    def test_speed_is_measured(self, call, batch):
        file = write(batch, "name: one, evaluation: {latency: true}", "name: two, evaluation: {latency: true}")
        assert call("run", file, "--jobs", 2).code == 0
        assert all(job["metrics"]["latency.speedup"] > 0 for job in summary(batch)["jobs"])


class TestOnly:
    def test_patterns_choose_jobs_and_the_summary_holds_those(self, run, batch):
        file = write(batch, "name: a-max", "name: a-kl", "name: b-max", "name: c")
        done = run(file, "--only", "a-*", "--only", "c")
        assert (done.code, list(rows(done))) == (0, ["a-max", "a-kl", "c"])
        assert [job["name"] for job in summary(batch)["jobs"]] == ["a-max", "a-kl", "c"]

    def test_a_pattern_that_matches_nothing_names_the_nearest_jobs(self, run, batch):
        file = write(batch, "name: resnet-max", "name: resnet-kl")
        done = run(file, "--only", "resnet-*", "--only", "resnt-kl")
        assert done.code == 2
        assert '--only "resnt-kl" matches no job; did you mean "resnet-kl"' in done.message
        assert 'the jobs are "resnet-max" and "resnet-kl"' in run(file, "--only", "zzz*").message
        assert not (batch / "out").exists()


class TestDryRun:
    def test_jobs_are_listed_and_nothing_is_written(self, run, batch):
        file = write(batch, *TWO)
        before = sorted(path.name for path in batch.rglob("*"))
        done = run(file, "--dry-run")
        assert (done.code, done.err) == (0, "")
        assert sorted(path.name for path in batch.rglob("*")) == before
        assert done.out.splitlines()[:6] == [
            "one: to run (no results yet)",
            "  model       net.onnx",
            "  data        data (24 samples)",
            "  evaluation  the same data",
            "  differs     calibration.method: max",
            "  output      out/one",
        ]
        assert done.out.splitlines()[-1] == "2 to run; nothing was written"

    def test_it_tells_what_is_up_to_date_and_what_changed(self, run, batch):
        run(write(batch, *TWO))
        write(batch, TWO[0], "name: two, calibration: {method: mse}")
        done = run("batch.yaml", "--dry-run")
        assert "one: up to date" in done.out
        assert "two: to run (changed: calibration.method kl -> mse)" in done.out

    @pytest.mark.parametrize(
        ("job", "code", "message"),
        [
            ("name: one, data: nowhere", 4, "data: nowhere: does not exist"),
            ("name: one, quantization: {exclude: ['/head/*']}", 2, "matches"),
            ("name: one, quantization: {ranges: {z: [0, 1]}}", 2, "quantization.ranges names 'z'"),
            ("name: one, data: {path: data, labels: none.csv}", 4, "the label file does not exist"),
            ("name: one, data: {path: data, preprocess: {resize: 8}}", 4, "preprocessing applies to images"),
            ("name: one, output: {dir: data}", 2, "exists"),
            ("name: one, output: {dir: data, overwrite: true}", 2, "is also an input"),
        ],
    )
    def test_what_can_be_known_before_running_is_checked(self, run, batch, job, code, message):
        done = run(write(batch, "name: fine", job), "--dry-run")
        assert done.code == code
        assert done.message.startswith("int8cal: one: ")
        assert message in done.message
        assert "one: cannot run" in done.out
        assert "fine: to run" in done.out

    def test_a_broken_model_is_told(self, run, batch):
        (batch / "net.onnx").write_bytes(b"no model")
        done = run(write(batch, "name: one"), "--dry-run")
        assert done.code == 3


class TestSummary:
    def test_it_holds_every_job_with_figures_gates_and_errors(self, run, batch):
        file = write(batch, TWO[0], "name: bad, data: nowhere", "name: never", gates='"sqnr_db>=1"')
        assert run(file).code == 4
        document = summary(batch)
        assert (document["format"], document["version"]) == ("int8cal/summary", 1)
        assert (document["exit_code"], document["configs"]) == (4, ["batch.yaml"])
        assert document["counts"] == {"done": 1, "failed": 1, "not run": 1}
        done, bad, never = document["jobs"]
        assert (done["status"], done["exit_code"], done["error"], done["output"]) == ("done", 0, None, "out/one")
        assert done["metrics"]["sqnr_db"] > 1
        assert done["metrics"]["top1.drop"] is None
        gate, standing = done["gates"]
        assert (standing["gate"], standing["passed"]) == ("outputs.dead<=0", True)
        expected = {"gate": "sqnr_db>=1", "value": done["metrics"]["sqnr_db"], "passed": True}
        assert expected.items() <= gate.items()
        assert done["seconds"] > 0
        assert (bad["status"], bad["exit_code"]) == ("failed", 4)
        assert bad["error"].startswith("data: nowhere: does not exist")
        assert (never["status"], never["ran"], never["metrics"]) == ("not run", False, {})
        table = (batch / "out/summary.md").read_text()
        assert "| one |" in table
        assert "1 of 1 passed" in table

    def test_one_job_alone_needs_no_summary_unless_asked_for(self, run, batch):
        file = write(batch, "name: one")
        assert run(file).code == 0
        assert not (batch / "out/summary.json").exists()
        assert run(file, "--summary", "deep/s.json").code == 0
        assert sorted(path.name for path in (batch / "deep").iterdir()) == ["s.json", "s.md"]

    @pytest.mark.parametrize("name", ["s.json", "s.md"])
    def test_a_file_that_is_no_summary_is_not_replaced(self, run, batch, name):
        (batch / name).write_text("{}")
        done = run(write(batch, "name: one"), "--summary", "s.json")
        assert (done.code, (batch / name).read_text()) == (2, "{}")
        assert f"{name}: exists and is no summary of a batch" in done.message
        assert not (batch / "out").exists()


def test_directories_that_cannot_be_are_refused_in_a_dry_run_too(run, batch):
    (batch / "dangling").symlink_to("nowhere")
    long = "n" * 300
    (batch / "out").mkdir()
    for name, job, what in (
        ("long.yaml", f"name: {long}", "is longer than 255 bytes"),
        ("link.yaml", "output: {dir: dangling}", "is a link to nowhere"),
    ):
        write(batch, job, name=name)
        for arguments in (["--dry-run"], [], ["--overwrite"]):
            done = run(name, *arguments)
            assert (done.code, what in done.message) == (2, True), done.message
    assert list((batch / "out").iterdir()) == []


class TestSummaryPlace:
    def test_a_summary_never_replaces_what_the_batch_reads_or_writes(self, run, batch):
        (batch / "labels.csv").write_text(
            "file,label\n" + "".join(f"{index}.npy[{row}],{row % 4}\n" for index in range(3) for row in range(8))
        )
        (batch / "batch.md").write_text("notes")
        file = write(batch, *TWO)
        single = "model: net.onnx\ndata: {path: data, labels: labels.csv}\nevaluation: {latency: false}\noutput: {dir: res}\n"
        (batch / "single.yaml").write_text(single)
        (batch / "linked.json").symlink_to("net.onnx")
        assert run("single.yaml").code == 0
        assert run(file).code == 0
        before = {path: path.read_bytes() for path in batch.rglob("*") if path.is_file()}
        for config, places in (
            ("single.yaml", ("single.yaml", "labels.csv", "net.onnx", "linked.json", "data/0.npy")),
            ("single.yaml", ("res/report.json", "res/job.json", "res/net.int8.onnx", "res/report")),
            (file, (file, "net.onnx", "data/1.npy", "out/one/report.json", "out/two/job.json", "out/two/report")),
        ):
            for place in places:
                for overwrite in ([], ["--overwrite"]):
                    done = run(config, "--summary", place, *overwrite)
                    assert done.code == 2, place
                    assert "is also an input" in done.message or 'is a file of job "' in done.message
        assert {path: path.read_bytes() for path in batch.rglob("*") if path.is_file()} == before

    def test_a_junit_file_replaces_no_input(self, run, batch):
        file = write(batch, "name: one")
        for place in ("net.onnx", "data/0.npy", file):
            before = (batch / place).read_bytes()
            assert run(file, "--junit", place, "--overwrite").code == 2
            assert (batch / place).read_bytes() == before
