"""Whatever fails after calibration, table, statistics and int8 model are on disk, and the report says what is missing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import int8cal
from int8cal import calibrating, evaluating, pipeline, quantizing
from int8cal.cli.main import main
from int8cal.errors import ModelError, NonFiniteError, OutputError
from int8cal.evaluation import evaluate as evaluation
from int8cal.graph.load import Watched, file_sha256
from int8cal.report import files as report_files

sys.path.append(str(Path(__file__).parent))

from small_batch import fill, network, start, write

MODEL_FILES = {"net.int8.onnx", "net.table.json", "net.stats.npz"}
REPORTS = {"report.json", "report.md", "report.html"}
CALIBRATE = ("calibrate", "net.onnx", "--data", "data", "-o", "out", "--no-latency", "--quiet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(logs))
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    def run(*arguments):
        code = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def written(directory):
    return {path.name for path in directory.iterdir()}


def report_in(directory):
    return json.loads((directory / "report.json").read_text())


class TestAFailingEvaluation:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (RecursionError, 1),
            (MemoryError, 2),
            (ModelError, 3),
            (NonFiniteError, 5),
            (KeyboardInterrupt, 130),
        ],
    )
    @pytest.mark.parametrize("command", ["calibrate", "run"])
    def test_costs_its_figures_alone_and_ends_with_its_code(self, run, folder, monkeypatch, error, code, command):
        monkeypatch.setattr(calibrating, "evaluate_pair", failing(error("cannot be done")))
        write(folder, "name: out", gates="'sqnr_db>=10'")
        done = run(*CALIBRATE) if command == "calibrate" else run("run", "batch.yaml", "--quiet")
        out = folder / ("out" if command == "calibrate" else "out/out")
        assert done.code == code
        assert f"model, table and statistics are kept in {out.relative_to(folder)}, and the report" in done.err
        assert written(out) - {"job.json"} == MODEL_FILES | REPORTS
        report = report_in(out)
        assert report["metrics"]["sqnr_db"] is None
        assert report["reasons"]["metrics"]
        assert not any(gate["passed"] for gate in report["gates"])
        assert run("inspect", out / "report.json").code == 0
        assert run("quantize", "net.onnx", "--table", out / "net.table.json", "-o", "again.onnx").code == 0
        assert (folder / "again.onnx").read_bytes() == (out / "net.int8.onnx").read_bytes()
        if code == 1:
            assert len(list((folder / "logs").glob("int8cal-crash-*.log"))) == 1

    def test_of_a_batch_is_made_up_for_by_the_next_run(self, run, folder, monkeypatch):
        write(folder, "name: one")
        assert run("run", "batch.yaml").code == 0
        before = report_in(folder / "out/one")["metrics"]
        with monkeypatch.context() as patch:
            patch.setattr(calibrating, "evaluate_pair", failing(RecursionError("too deep")))
            assert run("run", "batch.yaml", "--rerun").code == 1
        assert report_in(folder / "out/one")["metrics"]["sqnr_db"] is None
        done = run("run", "batch.yaml")
        assert (done.code, "up to date" in done.out) == (0, False)
        assert report_in(folder / "out/one")["metrics"] == before

    @pytest.mark.parametrize(
        ("modules", "part", "key"),
        [
            ([evaluation], "measure_layers", "layers"),
            ([evaluation], "audit_graph_file", "fusion"),
            ([calibrating, evaluating], "audit_saturation", "saturation"),
            ([evaluation], "measure_speed", "latency"),
        ],
    )
    def test_of_a_part_takes_no_other_with_it(self, run, folder, monkeypatch, modules, part, key):
        for module in modules:
            monkeypatch.setattr(module, part, failing(RecursionError("too deep")))
        timed = [] if key == "latency" else ["--no-latency"]
        done = run(*CALIBRATE[:6], *timed)
        assert done.code == 1
        report = report_in(folder / "out")
        assert report["metrics"]["sqnr_db"] > 10
        assert report["reasons"][key] == "it could not be computed: RecursionError: too deep"
        assert bool(report["layers"]) == (key != "layers")
        pair = run("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data", "-o", "pair", "--json", *timed)
        assert pair.code == 1
        assert json.loads(pair.out)["metrics"]["sqnr_db"] > 10
        assert written(folder / "pair") == REPORTS


def test_a_report_that_cannot_be_made_costs_itself_alone(run, folder, monkeypatch):
    assert run(*CALIBRATE).code == 0
    monkeypatch.setattr(report_files, "report_to_html", failing(ZeroDivisionError("no layers")))
    done = run(*CALIBRATE, "--overwrite")
    assert done.code == 1
    assert "model, table and statistics are kept in out, and the report could not be written" in done.err
    assert written(folder / "out") == MODEL_FILES | {"report.json", "report.md"}


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyboardInterrupt()])
@pytest.mark.parametrize("station", ["spend_budget", "leave_slow_layers"])
def test_what_improves_a_finished_model_may_fail(run, folder, monkeypatch, station, error):
    monkeypatch.setattr(pipeline, station, failing(error))
    more = ("--optimize", "latency") if station == "leave_slow_layers" else ("--budget", 50, "--gate", "sqnr_db>=10")
    done = run(*CALIBRATE, *more)
    assert done.code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert written(folder / "out") == MODEL_FILES | REPORTS
    assert report_in(folder / "out")["metrics"]["sqnr_db"] is None


def reader(function, then):
    """Call a function, and do something right after its first call."""
    done = []

    def wrapped(*arguments, **options):
        result = function(*arguments, **options)
        if not done:
            done.append(True)
            then()
        return result

    return wrapped


class TestAModelThatIsReplacedMeanwhile:
    @pytest.fixture
    def replace(self, folder):
        def replace():
            onnx.save(network(seed=7), folder / "new.onnx")
            (folder / "new.onnx").replace(folder / "net.onnx")

        return replace

    def test_leaves_the_evaluation_out(self, run, folder, monkeypatch, replace):
        monkeypatch.setattr(calibrating, "calibrate_planned", reader(calibrating.calibrate_planned, replace))
        done = run(*CALIBRATE)
        assert done.code == 3
        assert "model: net.onnx: changed while it was in use" in done.err
        assert report_in(folder / "out")["metrics"]["sqnr_db"] is None
        assert written(folder / "out") == MODEL_FILES | REPORTS

    @pytest.mark.parametrize("name", ["net.onnx", "out/net.int8.onnx"])
    def test_ends_an_evaluation_of_a_pair(self, run, folder, monkeypatch, name):
        import int8cal.evaluating

        assert run(*CALIBRATE).code == 0

        def change():
            model = onnx.load(folder / name)
            model.doc_string = "another"
            onnx.save(model, folder / name)

        monkeypatch.setattr(int8cal.evaluating, "evaluate_pair", reader(evaluation.evaluate_pair, change))
        done = run("evaluate", "net.onnx", "out/net.int8.onnx", "--data", "data", "-o", "pair", "--no-latency")
        assert done.code == 3
        assert f"{name}: changed while it was in use" in done.err
        assert not (folder / "pair").exists()

    def test_ends_quantize(self, run, folder, monkeypatch, replace):
        assert run(*CALIBRATE).code == 0
        monkeypatch.setattr(quantizing, "prepare", reader(quantizing.prepare, replace))
        done = run("quantize", "net.onnx", "--table", "out/net.table.json", "-o", "again.onnx")
        assert done.code == 3
        assert not (folder / "again.onnx").exists()

    def test_may_be_touched(self, run, folder, monkeypatch):
        touch = lambda: os.utime(folder / "net.onnx", (1, 1))  # noqa: E731
        monkeypatch.setattr(calibrating, "calibrate_planned", reader(calibrating.calibrate_planned, touch))
        assert run(*CALIBRATE).code == 0

    def test_is_told_by_its_data_files_too(self, folder):
        onnx.save(network(), folder / "split.onnx", save_as_external_data=True, location="split.data", size_threshold=0)
        watched, digest = Watched(folder / "split.onnx"), file_sha256(folder / "split.onnx")
        watched.require_same(digest)
        content = (folder / "split.data").read_bytes()
        (folder / "split.data").write_bytes(content[::-1])
        with pytest.raises(ModelError, match="changed while it was in use"):
            watched.require_same(digest)


class TestFilesOfDifferentRuns:
    @pytest.fixture
    def mixed(self, run, folder):
        """The directory that a run leaves when it is stopped behind its first file."""
        assert run(*CALIBRATE).code == 0
        assert run(*CALIBRATE[:5], "new", *CALIBRATE[6:], "--method", "max").code == 0
        (folder / "new/net.int8.onnx").replace(folder / "out/net.int8.onnx")
        return folder / "out"

    def test_are_told_by_inspect_quantize_and_evaluate(self, run, mixed):
        told = "files of different runs lie together in"
        for name in (*MODEL_FILES, "report.json"):
            assert told in run("inspect", mixed / name).out, name
        done = run("quantize", "net.onnx", "--table", mixed / "net.table.json", "-o", "again.onnx")
        assert (done.code, told in done.err) == (0, True)
        done = run("evaluate", "net.onnx", mixed / "net.int8.onnx", "--data", "data", "--no-latency", "-o", "pair")
        assert (done.code, told in done.out) == (0, True)

    def test_are_told_where_only_statistics_are_of_other_data(self, run, folder):
        assert run(*CALIBRATE).code == 0
        assert run(*CALIBRATE[:5], "new", *CALIBRATE[6:], "--samples", 5).code == 0
        (folder / "new/net.stats.npz").replace(folder / "out/net.stats.npz")
        assert "net.stats.npz of another model or other data" in run("inspect", folder / "out/net.table.json").out

    def test_are_not_an_edited_table_and_its_model(self, run, folder):
        assert run(*CALIBRATE).code == 0
        table = folder / "out/net.table.json"
        document = json.loads(table.read_text())
        next(iter(document["tensors"].values()))["high"] *= 0.5
        table.write_text(json.dumps(document))
        done = run("quantize", "net.onnx", "--table", table, "-o", "out/net.int8.onnx", "--overwrite")
        assert (done.code, "different runs" in done.err) == (0, False)
        for name in (*MODEL_FILES, "report.json"):
            assert "different runs" not in run("inspect", folder / "out" / name).out

    def test_are_not_those_of_one_run_which_has_the_same_identity_again(self, run, folder):
        runs = []
        for name in ("out", "again"):
            assert run(*CALIBRATE[:5], name, *CALIBRATE[6:]).code == 0
            runs.append(json.loads((folder / name / "net.table.json").read_text())["run"])
            assert report_in(folder / name)["model"]["run"] == runs[-1]
            assert "different runs" not in run("inspect", folder / name / "report.json").out
        assert runs[0] == runs[1]
        assert len(runs[0]) == 32


class TestTwoRunsAtATime:
    @pytest.mark.parametrize("existing", [False, True])
    def test_into_one_directory_are_one_run_and_one_error(self, run, folder, monkeypatch, existing):
        if existing:
            assert run(*CALIBRATE, "--method", "max").code == 0
        second = []

        def start_second():
            second.append(
                subprocess.run(
                    [sys.executable, "-m", "int8cal", *CALIBRATE, "--overwrite"],
                    env=os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])},
                    capture_output=True,
                    text=True,
                )
            )

        monkeypatch.setattr(calibrating, "calibrate_planned", reader(calibrating.calibrate_planned, start_second))
        assert run(*CALIBRATE, "--overwrite").code == 0
        assert second[0].returncode == 2
        assert second[0].stderr.startswith("int8cal: output: out: another run is writing to it")
        assert json.loads((folder / "out/net.table.json").read_text())["settings"]["method"] == "auto"

    def test_of_one_batch_do_each_job_once(self, folder):
        write(folder, "name: one, data: 'feeds:waits'")
        (folder / "wait").touch()
        first = start(folder, "batch.yaml")
        while not list(folder.glob("pid-*")):
            assert first.poll() is None
        second = start(folder, "batch.yaml")
        _, err = second.communicate(timeout=60)
        (folder / "wait").unlink()
        first.communicate(timeout=60)
        assert (first.returncode, second.returncode) == (0, 2)
        assert "one: output: " in err
        assert "another run is writing to it" in err


def test_a_job_goes_on_in_an_empty_directory(run, folder):
    write(folder, "name: one")
    (folder / "out/one").mkdir(parents=True)
    assert run("run", "batch.yaml").code == 0


@pytest.mark.parametrize(
    ("closed", "code"),
    [
        (">&-", 0),
        ("2>&-", 0),
        (">&- 2>&- <&-", 0),
        ("| true", 0),
        (">&- --gate 'sqnr_db>=300'", 7),
        ("2>&- --bogus", 2),
    ],
)
def test_results_and_exit_code_do_not_depend_on_who_listens(folder, closed, code):
    command = [sys.executable, "-m", "int8cal", *CALIBRATE[:-1]]
    line = f"{' '.join(command)} {closed}; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code != 2:
        assert written(folder / "out") == MODEL_FILES | REPORTS
        np.load(folder / "out/net.stats.npz").close()
        onnx.checker.check_model(onnx.load(folder / "out/net.int8.onnx"))


def test_a_batch_goes_on_when_its_reader_leaves(folder):
    write(folder, "name: one", "name: two")
    process = start(folder, "batch.yaml")
    process.stdout.close()
    told = process.stderr.read().splitlines()
    assert [line.split(":")[1:3] for line in told] == [[" one", " check the data"], [" two", " check the data"]]
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert {path.name for path in (folder / "out").iterdir()} == {"one", "two", "summary.json", "summary.md"}


def test_a_full_disk_is_still_an_output_error(run, folder, monkeypatch):
    monkeypatch.setattr("int8cal.calibrating.save_table", failing(OutputError("cannot be written", where="out")))
    assert run(*CALIBRATE).code == 2
    assert not (folder / "out").exists()


@pytest.mark.parametrize("which", ["fp32", "int8"])
def test_outputs_that_are_not_those_of_the_model_are_computed_again(run, folder, monkeypatch, which):
    assert run(*CALIBRATE).code == 0
    expected = report_in(folder / "out")["metrics"]
    real = calibrating.calibrate_planned

    def altered(*arguments, **settings):
        found = real(*arguments, **settings)
        known = getattr(found.outputs, which)
        assert known
        other = {mark: {name: value + 1 for name, value in each.items()} for mark, each in known.items()}
        return dataclasses.replace(found, outputs=dataclasses.replace(found.outputs, **{which: other}))

    monkeypatch.setattr(calibrating, "calibrate_planned", altered)
    assert run(*CALIBRATE, "--overwrite").code == 0
    report = report_in(folder / "out")
    assert report["metrics"] == expected
    assert any("is not that of the model in its file" in line for line in report["warnings"])
