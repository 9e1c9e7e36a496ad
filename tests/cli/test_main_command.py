"""The command line as a whole: help, version, and how every ending becomes a message and an exit code."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click
import pytest
from click.shell_completion import ShellComplete

import int8cal
from int8cal import errors
from int8cal.cli.grouped import GROUPS
from int8cal.cli.main import COMMANDS, cli
from int8cal.data.checks import Finding
from int8cal.evaluation.figures import FIGURES, OUTPUT_FIGURES
from int8cal.io.signals import INTERRUPTS
from int8cal.quantization.table import StepResult

Engine = Literal["local", "ray"]

FAKE = """
import signal, sys, time, types
signal.signal(signal.SIGINT, signal.default_int_handler)
describe = types.ModuleType("int8cal.describe")

def linger():
    # not at a stretch: a signal that arrives just before a sleep begins is seen when it ends
    for _ in range(600):
        time.sleep(0.1)

{body}
sys.modules["int8cal.describe"] = describe
from int8cal.cli.grouped import GROUPS
from int8cal.cli.main import main
sys.exit(main({arguments}))
"""


def child(body: str, arguments: list[str], **kwargs) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", FAKE.format(body=body, arguments=arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def test_version(call):
    done = call("--version")
    assert (done.code, done.out, done.err) == (0, f"int8cal {int8cal.__version__}\n", "")


@pytest.mark.newest
def test_help_of_the_group_is_as_stored(call, golden):
    done = call("--help")
    assert done.code == 0
    golden("help/int8cal.txt", done.out)


@pytest.mark.newest
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_is_as_stored(call, golden, name):
    long, short = call(name, "--help"), call(name, "-h")
    assert (long.code, long.err) == (0, "")
    assert short.out == long.out
    golden(f"help/{name}.txt", long.out)


def test_help_imports_nothing_heavy(call):
    done = call("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rsplit("|", maxsplit=1)[-1].strip() for line in done.err.splitlines()}
    assert "click" in imported
    assert not imported & {"numpy", "onnx", "onnxruntime", "numba", "pydantic", "yaml", "PIL", "plotly", "tqdm"}
    assert {name for name in imported if name.startswith("int8cal")} <= {
        "int8cal",
        "int8cal.errors",
        "int8cal.progress",
        "int8cal.cli",
        "int8cal.cli.main",
        "int8cal.io",
        "int8cal.io.signals",
        "int8cal.cli.console",
    }


def test_without_arguments_the_help_is_shown_on_stderr(call):
    done = call()
    assert (done.code, done.out) == (2, "")
    assert "Commands:" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrat"], 'int8cal: usage: no command "calibrat", did you mean "calibrate"?; see int8cal --help'),
        (["xyzzy"], "the commands are calibrate, quantize"),
        (["--bogus"], "no such option"),
        (
            ["calibrate", "m", "--subset-size", "300"],
            "int8cal: usage: no such option --subset-size, did you mean --samples?; see int8cal calibrate --help",
        ),
        (["calibrate", "m", "--method", "entropy"], "'mse', 'max', did you mean 'kl'?; see int8cal calibrate --help"),
        (
            ["calibrate", "m.onnx", "--metod", "kl"],
            "int8cal: usage: no such option --metod, did you mean --method?; see int8cal calibrate --help",
        ),
        (["calibrate", "m.onnx", "--data", "d", "--method", "klm"], "'--method'"),
        (["calibrate", "m.onnx", "--data", "d", "--samples", "many"], "'many' is not a valid int"),
        (["calibrate", "m.onnx", "extra", "--data", "d"], "extra"),
        (["quantize", "m.onnx"], "missing option '--table'"),
        (["evaluate", "a.onnx", "b.onnx"], "missing option '--data'"),
        (["merge"], "missing argument"),
        (["run"], "missing argument"),
        (["inspect"], "missing argument"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_line(call, arguments, message):
    done = call(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.message


@pytest.mark.parametrize(
    ("kind", "code", "station"),
    [
        (errors.UsageError, 2, "usage"),
        (errors.ConfigError, 2, "config"),
        (errors.OutputError, 2, "output"),
        (errors.ModelError, 3, "model"),
        (errors.DataError, 4, "data"),
        (errors.StatisticsError, 5, "statistics"),
        (errors.NonFiniteError, 5, "statistics"),
        (errors.TableError, 6, "table"),
        (errors.GateError, 7, "gate"),
    ],
)
def test_each_error_ends_with_its_code_and_one_line(here, pipeline, kind, code, station):
    pipeline.error = kind("is\nbroken", where="x.bin", do="repair it")
    done = here("inspect", "x.bin")
    assert done.code == code
    assert done.message == f"int8cal: {station}: x.bin: is broken; repair it"


def test_every_error_class_is_covered_by_the_codes_of_the_contract():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {kind.exit_code for kind in classes} == {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("bug", [ZeroDivisionError("division by zero"), errors.Int8calError("lost"), EOFError("short")])
def test_a_bug_ends_with_1_and_keeps_its_traceback_in_a_log(here, pipeline, monkeypatch, tmp_path, bug):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipeline.error = bug
    done = here("doctor")
    log = tmp_path / f"int8cal-crash-{os.getpid()}.log"
    assert done.code == 1
    assert done.message.startswith(f"int8cal: internal: {type(bug).__name__}: ")
    assert str(log) in done.message
    assert "describe_machine" in log.read_text()


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), ImportError("Exception caught: std::bad_alloc")],
)
def test_memory_that_ran_out_is_no_bug(here, pipeline, monkeypatch, tmp_path, error):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipeline.error = error
    done = here("doctor")
    assert done.code == 2
    assert done.message.startswith(f"int8cal: memory: there is not enough for this job ({str(error) or 'MemoryError'})")
    assert not list(tmp_path.iterdir())


def test_a_crash_log_never_overwrites_a_file_or_follows_a_link(here, pipeline, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / f"int8cal-crash-{os.getpid()}.log").symlink_to(precious)
    pipeline.error = RuntimeError("x")
    assert here("doctor").code == 1
    assert precious.read_text() == "keep"


def test_a_crash_whose_log_cannot_be_written_shows_the_traceback(here, pipeline, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    pipeline.error = RuntimeError("x")
    done = here("doctor")
    assert done.code == 1
    assert "could not be written" in done.err
    assert "Traceback" in done.err


def test_an_interrupt_ends_with_130(here, pipeline):
    pipeline.error = KeyboardInterrupt()
    done = here("doctor")
    assert done.code == 130
    assert done.err.strip() == "int8cal: interrupted; nothing was half-written"


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_signal_ends_the_process_with_130(number):
    body = "describe.describe_machine = lambda: (print('ready', flush=True), linger())"
    with child(body, ["doctor"]) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == "int8cal: interrupted; nothing was half-written"


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_signal_after_the_end_changes_nothing(number):
    script = f"""
import atexit, signal, sys
from int8cal.cli.main import entry
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(signal.raise_signal, {int(number)})
sys.argv = ["int8cal", "--version"]
entry()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"int8cal {int8cal.__version__}\n", "")


def test_an_interrupt_waits_until_a_module_is_loaded(tmp_path):
    """Half-loaded extension modules may take the process with them."""
    (tmp_path / "slow_module.py").write_text(
        "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.3)\nopen('loaded', 'w')\n"
    )
    body = f"""
def inspect(*_):
    sys.path.insert(0, {str(tmp_path)!r})
    import slow_module
    linger()

describe.describe_file = inspect
"""
    process = child(body, ["inspect", __file__], cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "int8cal: interrupted; nothing was half-written"
    assert (tmp_path / "loaded").is_file()


def test_an_interrupt_that_compiled_code_drops_comes_again():
    body = """
import signal
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
def load():
    Finalized()  # what is raised there is told as ignored
    print('ready', flush=True)
    linger()
describe.describe_machine = load
"""
    with child(body, ["doctor"]) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "ready\n")
    assert err.strip() == "int8cal: interrupted; nothing was half-written"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no hangup on Windows")
def test_a_hangup_that_nohup_has_ignored_changes_nothing():
    body = "describe.describe_machine = lambda: [signal.raise_signal(signal.SIGHUP), 'done'][1:]"
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with child(f"{ignored}; {body}", ["doctor"]) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_an_interrupt_that_an_extension_module_turns_into_its_own_error_still_ends_with_130():
    body = """
def load():
    try:
        print('ready', flush=True)
        linger()
    except KeyboardInterrupt as error:
        raise ImportError('initialization failed') from error
describe.describe_machine = load
"""
    with child(body, ["doctor"]) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == "int8cal: interrupted; nothing was half-written"


def test_a_reader_that_left_ends_it_quietly():
    body = "describe.describe_machine = lambda: [f'line {i}: ' + 'x' * 100 for i in range(20000)]"
    with child(body, ["doctor"]) as process:
        assert process.stdout.readline().startswith("line 0")
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=30)
    assert (process.returncode, err) == (141, "")


def test_signal_handlers_are_put_back(here):
    before = signal.getsignal(signal.SIGTERM)
    here("doctor")
    assert signal.getsignal(signal.SIGTERM) is before


def test_bash_completion_offers_commands_and_options(call):
    def complete(words: str) -> list[str]:
        done = call(_INT8CAL_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
        return [line.split(",")[1] for line in done.out.splitlines()]

    assert complete("int8cal cal") == ["calibrate"]
    assert "--method" in complete("int8cal calibrate --me")
    assert complete("int8cal calibrate --method m") == ["mse", "max"]


@pytest.mark.parametrize(
    "words",
    [
        "calibrate mo",
        "calibrate m.onnx --data d",
        "calibrate m.onnx --eval-data d",
        "calibrate m.onnx --labels l",
        "calibrate m.onnx --config c",
        "calibrate m.onnx -o o",
        "quantize m",
        "quantize m.onnx --table t",
        "evaluate a",
        "evaluate a.onnx b",
        "evaluate a.onnx b.onnx --data d",
        "evaluate a.onnx b.onnx -o o",
        "run c",
        "run a.yaml c",
        "merge a.npz b",
        "inspect f",
    ],
)
def test_shells_are_told_to_complete_file_names(here, words):
    arguments = words.split()
    command = cli.get_command(click.Context(cli), arguments[0])
    complete = ShellComplete(command, {}, "int8cal", "_INT8CAL_COMPLETE")
    found = complete.get_completions(arguments[1:-1], arguments[-1])
    assert [(item.type, item.value) for item in found] == [("file", arguments[-1])]


def test_a_path_need_not_exist_and_a_callable_is_one(here, pipeline):
    done = here("calibrate", "no.onnx", "--data", "package.module:function", "--eval-data", "gone/*.npy")
    assert done.code == 0
    job = pipeline.calls[0].job
    assert (job.data.path, job.evaluation.data.path) == ("package.module:function", "gone/*.npy")


def test_gates_lists_every_name_with_unit_range_and_meaning(call):
    text = " ".join(call("gates").out.split())
    assert "agreement * Samples for which both models choose the same class (fraction of 1, from 0 to 1)" in text
    assert "outputs.NAME.cosine Cosine similarity (similarity, from -1 to 1)" in text
    for name, figure in FIGURES.items():
        if not name.endswith(("_ci95.lo", "_ci95.hi")):
            assert f"{name} {'* ' if figure.interval else ''}{figure.about} ({figure.unit}" in text
    for name in OUTPUT_FIGURES:
        assert f" outputs.NAME.{name} " in text


@pytest.mark.newest
@pytest.mark.parametrize("name", ["calibrate", "evaluate"])
def test_the_help_of_a_long_command_has_at_most_40_lines_and_every_option_under_help_all(call, golden, name):
    first, every = call(name, "--help", COLUMNS="80"), call(name, "--help-all", COLUMNS="80")
    assert (every.code, every.err) == (0, "")
    assert len(first.out.splitlines()) <= 40
    assert max(map(len, first.out.splitlines())) <= 80
    command = cli.get_command(click.Context(cli), name)
    flags = {max(each.opts, key=len) for each in command.params if isinstance(each, click.Option)}
    listed = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", every.out, re.MULTILINE)) - {"--help"}
    assert listed == flags
    shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", first.out, re.MULTILINE)) - {"--help"}
    assert f"{len(flags - shown - {'--help-all'})} more options: int8cal {name} --help-all" in first.out
    assert name != "calibrate" or len(shown) == 12
    headings = re.findall(r"^(\w.*):$", every.out, re.MULTILINE)
    assert headings == re.findall(r"^(\w.*):$", first.out, re.MULTILINE) == list(GROUPS)
    golden(f"help/{name}-all.txt", every.out)


@pytest.mark.parametrize("command", ["calibrate m.onnx --data d", "evaluate m.onnx q.onnx --data d"])
def test_what_was_said_before_the_work_is_not_said_again_by_the_results(here, pipeline, command):
    findings = tuple(Finding("grey", f"samples are {what}", "check them") for what in ("grey", "odd"))
    pipeline.report = replace(pipeline.report, findings=findings, warnings=(*map(str, findings), "slow"))
    pipeline.said = (f"warning: {findings[0]}", "slow")
    done = here(*command.split())
    assert done.err == "int8cal: warning: samples are grey; check them\nint8cal: slow\n"
    assert "Data      samples are odd; check them\n" in done.out
    assert not [text for text in ("samples are grey", "slow") if text in done.out]


@pytest.mark.parametrize("command", ["calibrate m.onnx --data d", "evaluate m.onnx q.onnx --data d"])
def test_the_advice_on_a_gate_that_failed_is_given_once(here, pipeline, gated, command):
    pipeline.report = gated(("fusion.float<=0", 2.0, False))
    done = here(*command.split())
    assert done.code == 7
    assert done.message.endswith("the results are kept; see Left in float")
    assert "see Left in float" not in done.out


def test_explain_says_first_what_each_step_gave(here, pipeline):
    steps = (
        StepResult("bias correction", 30.0, 31.5, kept=True),
        StepResult("all by max", 31.5, 31.0, kept=False),
        StepResult("rounding", 31.5, 31.6, kept=False),
    )
    pipeline.report = replace(pipeline.report, steps=steps)
    lines = here("calibrate", "m.onnx", "--data", "d", "--explain").out.splitlines()
    assert lines[:3] == [
        "Steps     bias correction   31.50 dB  +1.50 dB",
        "          all by max        31.00 dB  dropped (-0.50 dB)",
        "          rounding          31.60 dB  dropped (+0.10 dB, not surely enough)",
    ]
    assert lines[4].strip() == "bias correction: biases are changed by the mean error that rounded weights make"
    assert lines[5].startswith("Result    ")
    assert "Steps" not in here("calibrate", "m.onnx", "--data", "d").out


@pytest.mark.parametrize("arguments", [("--help",), ("calibrate", "--help"), ("inspect", "--help")])
def test_help_fits_a_narrow_terminal(call, arguments):
    lines = call(*arguments, COLUMNS="40").out.splitlines()
    # names of options that are longer stand alone
    assert not [line for line in lines if len(line) > 40 and not line.lstrip().startswith("--")]
    assert not [line for line in lines if line.startswith(" " * 25)]
