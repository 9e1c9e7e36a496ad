"""What befalls a run from outside: each is one line with its exit code, and nothing is lost. docs/reliability.md lists them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

from faults import main
from small_batch import fill, network

import int8cal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, limits and users are those of Unix")

SOURCE = str(Path(int8cal.__file__).parents[1])
JOB = ("calibrate", "net.onnx", "--data", "data", "-o", "out", "--no-latency", "--quiet")
RESULTS = {"net.int8.onnx", "net.table.json", "net.stats.npz", "report.json", "report.md", "report.html"}
SAME = ("net.int8.onnx", "net.table.json", "net.stats.npz")


@pytest.fixture(scope="module")
def results(tmp_path_factory, shared):
    """A folder with inputs, and with the results of an undisturbed run in `whole`."""
    folder = tmp_path_factory.mktemp("results")
    fill(folder)
    assert shared(folder, *JOB[:5], "whole", *JOB[6:]).code == 0
    return folder


@pytest.fixture
def work(results, tmp_path):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    return tmp_path


def start(folder, *arguments, before=(), limit=None, **variables):
    """Start int8cal in a new process; a variable that is None is taken away."""
    environment = os.environ | {"PYTHONPATH": SOURCE} | variables

    def set_limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [*before, sys.executable, "-m", "int8cal", *arguments],
        cwd=folder,
        env={name: value for name, value in environment.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if limit is None else set_limit,  # noqa: PLW1509 - no thread runs here
    )


def ended(process):
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return process.returncode, out, err


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in SAME}


def hidden(folder):
    return [path.name for path in folder.rglob("*") if ".int8cal-" in path.name or path.suffix == ".checkpoint"]


def test_no_kill_at_a_random_moment_does_harm(capsys):
    assert main(["--kills", "6", "--seed", "5"]) == 0, capsys.readouterr().out
    assert "nothing was lost" in capsys.readouterr().out


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_disk_that_is_full_leaves_what_was_there(work, limit, old, tmp_path_factory):
    if old:
        shutil.copytree(work / "whole", work / "out")
    code, _, err = ended(
        start(work, *JOB, "--overwrite", limit=limit, TMPDIR=str(tmp_path_factory.mktemp("elsewhere")))
    )
    assert (code, len(err.splitlines())) == (2, 1), err
    assert err.startswith("int8cal: output: ")
    assert "free some space" in err or "cannot be written" in err
    found = {path.name for path in (work / "out").iterdir()} if (work / "out").exists() else set()
    # what is there is whole: the old results, or new ones without a report that did not fit
    assert {*SAME} <= found <= RESULTS if found else not old
    if found:
        assert bytes_of(work / "out") == bytes_of(work / "whole")
    assert hidden(work) == []


@pytest.mark.parametrize(("kilobytes", "old"), [(0, False), (0, True), (24, True)])
def test_a_disk_that_has_no_room_left_keeps_what_was_there(work, kilobytes, old):
    # a file system of its own, which nobody else sees: its files are copied out before it ends
    mount = 'mount -t tmpfs -o "size=$1k" none disk'
    if subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mkdir disk && {mount}", "sh", "8"], cwd=work, check=False
    ).returncode:
        pytest.skip("no file system may be mounted here")
    there = f"{'cp -r whole disk/out' if old else 'true'}"
    room = 'dd if=/dev/zero of=disk/rest bs=1k 2>/dev/null; truncate -s "-$2k" disk/rest'
    run = 'shift 2; "$@"; code=$?; cp -r disk/. seen; exit $code'
    shell = ("unshare", "-rm", "sh", "-c", f"{mount}; {there}; {room}; {run}", "sh", "1024", str(kilobytes))
    (work / "seen").mkdir()
    code, _, err = ended(start(work, *JOB[:5], "disk/out", *JOB[6:], "--overwrite", before=shell))
    assert (code, len(err.splitlines())) == (2, 1), err
    assert err.startswith("int8cal: output: ")
    assert "cannot be written (no space left on device); free some space on that disk" in err
    found = {path.name for path in (work / "seen" / "out").iterdir()} if (work / "seen" / "out").exists() else set()
    assert {*SAME} <= found <= RESULTS if found else not old
    if found:
        assert bytes_of(work / "seen" / "out") == bytes_of(work / "whole")
    assert hidden(work) == []


def test_a_checkpoint_that_cannot_be_saved_is_a_warning_in_the_report(work):
    (work / "out.checkpoint").mkdir()
    code, _, err = ended(start(work, *JOB, "--checkpoint", "5"))
    assert (code, err) == (0, "")
    warnings = json.loads((work / "out" / "report.json").read_text())["warnings"]
    assert [each for each in warnings if each.startswith("the checkpoint out.checkpoint ")]
    assert bytes_of(work / "out") == bytes_of(work / "whole")


NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")


def can_be_nobody():
    if os.geteuid() or shutil.which("setpriv") is None:
        return False
    return not subprocess.run([*NOBODY, sys.executable, "-c", "import onnxruntime"], capture_output=True).returncode


@pytest.fixture
def shared_work(results):
    """A copy of the folder where every user may go: pytest's own are private."""
    if not can_be_nobody():
        pytest.skip("needs root, setpriv, and an interpreter that every user may run")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        work = Path(shutil.copytree(results, folder / "work"))
        work.chmod(0o755)
        yield work


def test_somebody_without_rights_and_without_a_home_gets_the_same_bytes(shared_work):
    shared_work.chmod(0o777)
    variables = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"))
    code, _, err = ended(start(shared_work, *JOB, before=NOBODY, TMPDIR=None, **variables))
    assert (code, err) == (0, "")
    assert bytes_of(shared_work / "out") == bytes_of(shared_work / "whole")


def test_a_folder_that_may_not_be_written_is_called_so(shared_work):
    code, _, err = ended(start(shared_work, *JOB, before=NOBODY, TMPDIR=None, HOME="/nonexistent"))
    assert (code, err) == (
        2,
        "int8cal: output: out: cannot be written (Permission denied); give another output path\n",
    )
    assert not (shared_work / "out").exists()
    shared_work.chmod(0o700)  # nor even be looked into
    code, _, err = ended(start(shared_work, *JOB, before=NOBODY, TMPDIR=None, HOME="/nonexistent"))
    assert code == 2
    assert err.startswith("int8cal: output: out: cannot be written (permission denied); check the permissions of its ")


@pytest.mark.parametrize("cache", ["/proc/nothing", "/dev/null/below"])
def test_a_cache_that_cannot_be_written_changes_no_byte(work, cache):
    code, _, err = ended(start(work, *JOB, NUMBA_CACHE_DIR=cache, XDG_CACHE_HOME=cache, HOME=cache))
    assert (code, err) == (0, "")
    assert bytes_of(work / "out") == bytes_of(work / "whole")


def test_of_two_runs_into_one_directory_one_is_refused(work):
    (work / "feeds.py").write_text((work / "feeds.py").read_text())
    (work / "wait").write_text("")
    job = (*JOB[:3], "feeds:waits", *JOB[4:])
    first = start(work, *job)
    deadline = time.monotonic() + 120
    while not list(work.glob("pid-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    code, _, err = ended(start(work, *JOB, "--overwrite"))
    (work / "wait").unlink()
    assert ended(first)[0] == 0
    assert code == 2
    assert err == (
        "int8cal: output: out: another run is writing to it; wait for its end, or give another output directory\n"
    )
    assert {path.name for path in (work / "out").iterdir()} == RESULTS


def begun(work, *arguments):
    """Start a run over many files, and wait until it has counted some."""
    for number in range(3, 200):
        np.save(
            work / "data" / f"{number:03}.npy", np.random.default_rng(number).normal(size=(1, 8)).astype(np.float32)
        )
    process = start(work, *JOB, "--checkpoint", "1", "--batch-size", "1", *arguments)
    deadline = time.monotonic() + 120
    while not (work / "out.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.poll() is None
    return process


@pytest.mark.parametrize("change", ["truncated", "gone"])
def test_data_that_change_while_the_run_reads_them_are_named(work, change):
    process = begun(work)
    last = work / "data" / "199.npy"
    if change == "gone":
        last.unlink()
    else:
        os.truncate(last, 100)
    code, _, err = ended(process)
    assert (code, len(err.splitlines())) == (4, 1), err
    assert err.startswith("int8cal: data: data/199.npy: ")
    assert not (work / "out").exists()
    assert hidden(work) == ["out.checkpoint"]


@pytest.mark.parametrize(
    ("change", "told"), [("replaced", "changed while it was in use"), ("truncated", "(corrupt or truncated)")]
)
def test_a_model_that_changes_while_it_is_in_use_keeps_its_results_and_has_no_figures(work, change, told):
    process = begun(work)
    if change == "replaced":
        onnx.save(network(9), work / "net.onnx")
    else:
        os.truncate(work / "net.onnx", 100)
    code, _, err = ended(process)
    assert code == 3
    assert err.startswith("int8cal: model: net.onnx: ")
    assert told in err
    assert "model, table and statistics are kept in out" in err
    assert json.loads((work / "out" / "report.json").read_text())["metrics"]["sqnr_db"] is None


def test_with_closed_streams_the_results_are_the_same(work):
    command = f'exec "{sys.executable}" -m int8cal {" ".join(JOB[:-1])} <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", command], cwd=work, env=os.environ | {"PYTHONPATH": SOURCE}, check=False)
    assert done.returncode == 0
    assert bytes_of(work / "out") == bytes_of(work / "whole")


def test_in_a_narrow_terminal_without_a_locale_everything_is_said(work):
    code, out, err = ended(start(work, *JOB[:-1], COLUMNS="40", LC_ALL="C", LANG=None, PYTHONUTF8=None))
    assert code == 0
    assert out.rstrip().endswith("Report    out/report.html")
    assert "Traceback" not in err
