"""What the surroundings of a run can do to it: full disks, files that may not be read, odd variables and locales."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import int8cal

SOURCE = str(Path(int8cal.__file__).parents[1])
SAMPLE = Path(__file__).parents[2] / "sample_data"


def network(**names):
    """A chain of three nodes; `names` replaces the names of the model's parts."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["m"], name="first"),
        helper.make_node("Relu", ["m"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "V"], ["y"], name="last"),
    ]
    for node in nodes:
        node.name = names.get(node.name, node.name)
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), name) for name in "WV"]
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", 8])], [value("y", TensorProto.FLOAT, ["n", 8])], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save_work(folder):
    onnx.save(network(), folder / "m.onnx")
    np.save(folder / "x.npy", np.random.default_rng(1).normal(size=(400, 8)).astype(np.float32))


@pytest.fixture
def work(tmp_path):
    save_work(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory, shared):
    """A folder with the files of a run."""
    folder = tmp_path_factory.mktemp("done")
    save_work(folder)
    ended = shared(folder, "calibrate", "m.onnx", "--data", "x.npy", "-o", "out", "--no-latency")
    assert ended.code == 0, ended.err
    return folder


# root reads everything by two capabilities, which a child can be started without
_RIGHTS = "-dac_override,-dac_read_search"
AS_A_USER = ("setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}") if os.name == "posix" else ()


@pytest.fixture
def stranger(done, tmp_path):
    """Run int8cal as somebody who may not read the files of a run."""
    if sys.platform == "win32" or (os.geteuid() == 0 and shutil.which("setpriv") is None):
        pytest.skip("needs files that may not be read")
    shutil.copytree(done, tmp_path / "w")
    (tmp_path / "w" / "m.yaml").write_text("model: m.onnx\ndata: x.npy\n")
    for path in (tmp_path / "w").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o000)

    def run(*arguments):
        ended = subprocess.run(
            [*(AS_A_USER if os.geteuid() == 0 else ()), sys.executable, "-m", "int8cal", *arguments],
            cwd=tmp_path / "w",
            env=os.environ | {"PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            check=False,
        )
        (message,) = ended.stderr.splitlines()
        return ended.returncode, message

    return run


CALIBRATE = ("calibrate", "m.onnx", "--data", "x.npy", "-o", "new", "--no-latency")
PRINTING = [
    ("--help",),
    ("--version",),
    ("inspect", "m.onnx"),
    ("inspect", "out/report.json"),
    ("schema",),
    ("doctor",),
    ("doctor", "--json"),
    ("init", "m.onnx", "-o", "new.yaml"),
    CALIBRATE,
    (*CALIBRATE, "--json"),
    ("evaluate", "m.onnx", "out/m.int8.onnx", "--data", "x.npy", "--no-latency"),
    ("compare", "out/report.json", "out/report.json"),
    ("audit", "out/m.int8.onnx"),
    ("quantize", "m.onnx", "--table", "out/m.table.json", "-o", "new.onnx"),
    ("merge", "out/m.stats.npz", "-o", "new.npz"),
    ("table", "out/m.table.json", "--to", "openvino", "-o", "new.json"),
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is of Linux")  # noqa: PTH110
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_standard_output_that_is_full_is_said_in_one_line(done, arguments):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "int8cal", *arguments, *(["--overwrite"] if "-o" in arguments else [])],
            cwd=done,
            env=os.environ | {"PYTHONPATH": SOURCE},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    *losses, message = ended.stderr.splitlines()
    assert (ended.returncode, [line for line in losses if " lost: " not in line]) == (2, [])
    assert message.startswith("int8cal: output: standard output: cannot be written (no space left on device)")


def test_results_are_kept_when_only_the_summary_could_not_be_shown(work):
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is of Linux")
    with Path("/dev/full").open("w") as full:
        subprocess.run(
            [sys.executable, "-m", "int8cal", *CALIBRATE],
            cwd=work,
            env=os.environ | {"PYTHONPATH": SOURCE},
            stdout=full,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    assert len(list((work / "new").iterdir())) == 6


def test_without_compiled_loops_a_run_gives_the_same_bytes(call, work, done):
    ended = call(*CALIBRATE, NUMBA_DISABLE_JIT="1")
    assert (ended.code, ended.err) == (0, "")
    for name in ("m.int8.onnx", "m.table.json", "m.stats.npz"):
        assert (work / "new" / name).read_bytes() == (done / "out" / name).read_bytes()


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_variable_of_numba_without_sense_is_one_line(call, work, value):
    ended = call(*CALIBRATE, NUMBA_NUM_THREADS=value)
    assert ended.code == 2
    assert f"numba cannot start with NUMBA_NUM_THREADS={value}" in ended.message


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("inspect", "m.onnx"), 3),
        (("inspect", "out/report.json"), 2),
        (("calibrate", "m.onnx", "--data", "x.npy"), 3),
        (("quantize", "m.onnx", "--table", "out/m.table.json", "-o", "q.onnx"), 6),
        (("evaluate", "m.onnx", "out/m.int8.onnx", "--data", "x.npy"), 3),
        (("audit", "out/m.int8.onnx"), 3),
        (("init", "m.onnx", "-o", "other.yaml"), 3),
        (("merge", "out/m.stats.npz", "-o", "other.npz"), 5),
        (("compare", "out/report.json", "out/report.json"), 2),
        (("table", "out/m.table.json", "--to", "openvino", "-o", "t.json"), 6),
        (("run", "m.yaml"), 2),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_file_that_may_not_be_read_is_called_so(stranger, arguments, code):
    ended, message = stranger(*arguments)
    assert ended == code, message
    assert "permission denied" in message.lower()
    assert "corrupt" not in message


def test_data_of_a_batch_that_may_not_be_read_are_called_so(stranger, tmp_path):
    for name in ("m.yaml", "m.onnx"):
        (tmp_path / "w" / name).chmod(0o644)
    ended, message = stranger("run", "m.yaml")
    assert ended == 4, message
    assert "data: x.npy: cannot be read" in message


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are those of Unix")
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", SAMPLE / "model.onnx"),
        ("calibrate", SAMPLE / "model.onnx", "--data", SAMPLE / "calib", "--samples", "40", "-o", "new"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_temporary_directory_that_is_full_is_no_broken_model(tmp_path, arguments):
    import resource

    ended = subprocess.run(
        [sys.executable, "-m", "int8cal", *map(str, arguments)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": SOURCE, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        # no file may grow beyond this: to a program that writes, as if the disk were full
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    (message,) = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert message.startswith(f"int8cal: output: temporary directory {tmp_path}: cannot be written")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


WHOLE, OTHER = ("größe/modèle.onnx", "größe/数据.npy"), ("gr\udcff/m\udcfe.onnx", "gr\udcff/x.npy")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
@pytest.mark.parametrize(
    ("locale", "names"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, WHOLE),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, WHOLE),
        ({"LC_ALL": "C.UTF-8"}, OTHER),
    ],
    ids=["C without UTF-8", "ascii", "bytes that are no UTF-8"],
)
def test_names_beyond_ascii_work_in_every_locale(tmp_path, work, locale, names):
    model, data = (os.fsencode(name) for name in names)
    (tmp_path / os.fsdecode(model)).parent.mkdir()
    os.rename(work / "m.onnx", os.fsencode(tmp_path) + b"/" + model)  # noqa: PTH104
    os.rename(work / "x.npy", os.fsencode(tmp_path) + b"/" + data)  # noqa: PTH104
    folder = os.path.dirname(model)  # noqa: PTH120
    stem = os.path.basename(model).removesuffix(b".onnx")  # noqa: PTH119
    out = folder + b"/out"
    table, int8 = out + b"/" + stem + b".table.json", out + b"/" + stem + b".int8.onnx"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))}
    for arguments in (
        (b"calibrate", model, b"--data", data, b"-o", out, b"--no-latency"),
        (b"inspect", table),
        (b"quantize", model, b"--table", table, b"-o", folder + b"/q.onnx"),
        (b"evaluate", model, int8, b"--data", data, b"--no-latency", b"--json"),
        (b"init", model, b"-o", folder + b"/job.yaml"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "int8cal", *arguments],
            cwd=tmp_path,
            env=environment | locale | {"PYTHONPATH": SOURCE},
            capture_output=True,
            check=False,
        )
        # a slow machine gets lines of progress
        told = [line for line in ended.stderr.splitlines() if not line.startswith(b"int8cal: ")]
        assert (ended.returncode, told) == (0, []), arguments
        ended.stderr.decode()
        ended.stdout.decode()
    missing = subprocess.run(
        [sys.executable, "-m", "int8cal", "inspect", model + b"x"],
        cwd=tmp_path,
        env=environment | locale | {"PYTHONPATH": SOURCE},
        capture_output=True,
        check=False,
    )
    assert (missing.returncode, missing.stderr.count(b"\n")) == (2, 1)


def test_what_a_library_warns_of_is_one_line_that_names_the_file(call, tmp_path):
    (tmp_path / "photos").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("L", (32, 32)).save(buffer, "JPEG", exif=exif.tobytes())
    damaged = bytearray(buffer.getvalue())
    damaged[damaged.index(b"Exif\0\0") + 14] = 9  # more entries than there are
    for name in ("a", "b"):
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(damaged)
    ended = call("calibrate", SAMPLE / "model.onnx", "--data", "photos", "-o", "out", "--no-latency", "--quiet")
    assert ended.code == 0, ended.err
    assert ended.message.startswith("int8cal: warning: photos/a.jpg: its EXIF data is damaged")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the working directory of a process")
@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "{}/m.onnx", "--data", "{}/x.npy", "--no-latency"),
        ("init", "{}/m.onnx"),
        ("quantize", "{}/m.onnx", "--table", "{}/out/m.table.json", "-o", "q.onnx"),
        ("merge", "{}/out/m.stats.npz", "-o", "m.npz"),
        ("inspect", "../m.onnx"),
        ("run", "job.yaml"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_working_directory_that_is_gone_is_said_in_one_line(done, tmp_path, arguments):
    shutil.copy(done / "m.onnx", tmp_path)
    (tmp_path / "gone").mkdir()
    words = [word.format(done) for word in arguments]
    start = "import os, sys; from int8cal.cli.main import entry; os.rmdir(os.getcwd()); entry()"
    ended = subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=tmp_path / "gone",
        env=os.environ | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
    )
    (message,) = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert message.startswith("int8cal: usage: the working directory is gone; change to one that exists, and run again")
