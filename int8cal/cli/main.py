"""The `int8cal` command: which subcommands there are, and how every ending becomes a message and an exit code.

Only click and the errors are imported here; a command's module is imported when that command is called, so that
`int8cal --help` and shell completion answer at once.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import io
import os
import shlex
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import click

import int8cal
from int8cal.cli.console import discard, open_closed_streams, say
from int8cal.errors import (
    DISK_ERRORS,
    GateError,
    Int8calError,
    OutputError,
    keep_crash,
    notes_of,
    reason_of,
    shortage_of,
)
from int8cal.io.signals import INTERRUPTS, heeded, signal_main
from int8cal.progress import tell_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

EXIT_CRASH = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports of a program that it ended
_NARROW = 60  # columns
_OBJECTS = 10_000  # made between two looks for garbage; every 700 took a tenth of a long graph's time
_IMPORT_S = 0.05  # after which an interrupt comes again, where a module was being loaded or compiled code dropped it
# Name -> what `int8cal --help` says; the command is `command` in int8cal.cli.<name>, but for those beside another.
COMMANDS = {
    "calibrate": "Calibrate a model on data and write its int8 model, table and accuracy report.",
    "quantize": "Write the int8 model from an existing table: no data, no inference.",
    "evaluate": "Compare an int8 model, from any tool, with its FP32 model on data.",
    "run": "Run the jobs of YAML files.",
    "table": "Convert a calibration table to the format of another runtime, or back.",
    "merge": "Add the statistics of several shards into one file.",
    "compare": "Compare two reports, and fail on a regression.",
    "gates": "List the names that gates may use, with units and ranges.",
    "audit": "Say whether an int8 model can saturate on CPUs without VNNI, and repair it.",
    "inspect": "Show a model, table, statistics file or report.",
    "init": "Write a commented YAML to start from, made from a model's inputs.",
    "schema": "Print the JSON Schema of the YAML, so that editors complete and check it.",
    "doctor": "Show what this machine offers: CPU, execution providers, versions.",
}
# Name -> the module of int8cal.cli where the command stands under its own name.
BESIDE = {"merge": "table", "quantize": "table", "schema": "init", "doctor": "inspect"}

_EPILOG = """Shell completion: eval "$(_INT8CAL_COMPLETE=bash_source int8cal)", or zsh_source, or fish_source.

Exit codes: 0 done, 1 a bug in int8cal, 2 usage or config, 3 model, 4 data, 5 statistics, 6 table, 7 an accuracy gate
failed, 130 interrupted."""


class _HelpFormatter(click.HelpFormatter):
    """Fits help to narrow terminals: click writes 50 columns at least, and texts of ten beside long options."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(indent_increment, columns - 2 if width is None and columns < _NARROW else width, max_width)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and texts in two columns, on a narrow terminal texts below all but short names."""
        super().write_dl(list(rows), min(col_max, self.width // 3) if self.width < _NARROW else col_max, col_spacing)


class _Context(click.Context):
    """What help is written with."""

    formatter_class = _HelpFormatter


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to call it."""

    context_class = _Context

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"int8cal.cli.{BESIDE.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name if cmd_name in BESIDE else "command")
        if not isinstance(command, click.Command):
            return None
        command.context_class = _Context
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called, and name the nearest one when it does not exist."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            advice = f'did you mean "{near[0]}"?' if near else f"the commands are {', '.join(COMMANDS)}"
            raise click.UsageError(f'no command "{args[0]}", {advice}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the command line; --help prints from here."""
        with _own_endings():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Call the command."""
        with _own_endings():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


class _ReaderLeftError(Exception):
    """Nobody reads stdout any more, as in `int8cal inspect FILE | head`."""


class _EndOfFileError(Exception):
    """A file ended early and nobody said which; click would take it for the end of the terminal's input."""


@contextlib.contextmanager
def _own_endings() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        # What is still buffered has no reader; without this the interpreter complains while it shuts down.
        discard(sys.stdout)
        raise _ReaderLeftError from error
    except EOFError as error:
        raise _EndOfFileError from error
    except OSError as error:
        # files are written by int8cal.io.atomic, which tells its own errors; no other write is without a file's name
        if error.filename is not None or error.errno not in DISK_ERRORS:
            raise
        discard(sys.stdout)
        raise OutputError(
            f"cannot be written ({reason_of(error)})",
            where="standard output",
            do="free some space there, or send it elsewhere",
        ) from error


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(int8cal.__version__, prog_name="int8cal", message="%(prog)s %(version)s")
def cli() -> None:
    """Calibrate and quantize ONNX models to int8, and measure what that costs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        The exit code. Every error is one line on stderr; a bug also leaves its traceback in a log file.
    """
    signals: list[int] = []
    try:
        with _interrupts(signals):
            given = sys.argv[1:] if arguments is None else arguments
            written = shlex.join(["int8cal", *given])
            result = cli.main(arguments, prog_name="int8cal", standalone_mode=False, obj=written)
    except Int8calError as error:
        if not isinstance(error, GateError) and not _has_directory():
            return _without_directory(f" ({error})")
        if error.exit_code == 1:
            return _crash(error)
        say(str(error))
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        say(f"usage: {_usage(error)}")
        return EXIT_USAGE
    except _ReaderLeftError:
        return EXIT_BROKEN_PIPE
    except _EndOfFileError as error:
        return _crash(error.__cause__ or error)
    except (KeyboardInterrupt, click.Abort) as error:
        return _interrupted(error.__cause__ or error)  # click wraps the interrupt
    except Exception as error:  # noqa: BLE001 - the last resort for bugs; nothing is swallowed, _crash() keeps the traceback
        if isinstance(error, OSError) and not _has_directory():
            return _without_directory()
        if signals:  # an interrupt while an extension module loads comes out as its ImportError
            return _interrupted(error)
        shortage = shortage_of(error)
        if shortage is None:
            return _crash(error)
        say(str(shortage))
        return shortage.exit_code
    return result if isinstance(result, int) else 0


def entry() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code."""
    gc.set_threshold(_OBJECTS)
    open_closed_streams()
    _require_utf8_paths()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and paths may hold what the encoding of the locale has not
            stream.reconfigure(errors="backslashreplace")
    tell_warnings(say)
    code = main()
    for number in INTERRUPTS:  # all is done and told: it must not end with another code, or words
        signal.signal(number, signal.SIG_IGN)
    if code == EXIT_INTERRUPTED:
        # a thread may still be inside compiled code, which does not survive the interpreter's own way of shutting down
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _require_utf8_paths() -> None:
    """Start the process anew in Python's UTF-8 mode where the locale has another encoding.

    There Python reads names of files that onnxruntime, YAML and reports cannot take. Only paths change: output keeps
    the encoding of the locale.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"  # for the processes of a batch
    os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:backslashreplace")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - this very command


def _crash(error: BaseException) -> int:
    """Report a bug in int8cal: one line for the user, the traceback in a log file."""
    say(keep_crash(error))
    return EXIT_CRASH


def _without_directory(met: str = "") -> int:
    say(f"usage: the working directory is gone; change to one that exists, and run again{met}")
    return EXIT_USAGE


def _has_directory() -> bool:
    """Whether this process has a working directory: in one that was removed, relative paths lead nowhere."""
    try:
        return os.path.exists(os.getcwd())  # noqa: PTH109, PTH110 - nothing may raise for what is asked here
    except OSError:
        return False


def _interrupted(error: BaseException) -> int:
    say(f"interrupted; nothing was half-written{notes_of(error)}")
    return EXIT_INTERRUPTED


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption):
        from int8cal.config.words import meant_setting

        params = error.ctx.command.get_params(error.ctx) if error.ctx else ()
        near = meant_setting(
            error.option_name, [flag for each in params for flag in (*each.opts, *each.secondary_opts)]
        )
        message = f"no such option {error.option_name}{f', did you mean {near}?' if near else ''}"
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "int8cal"
    return f"{message}; see {path} --help"


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: an extension module that is stopped there may take the process with it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _interrupts(signals: list[int]) -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: a job stopped by a scheduler, too, leaves no half-written file.

    Compiled code may drop what a handler raises, which Python tells as an error that it ignored; then it comes again.

    Args:
        signals: Takes the number of each signal that arrives.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if _is_importing(frame):
            _come_again(number)
            return
        raise KeyboardInterrupt

    def dropped(told: sys.UnraisableHookArgs) -> None:
        if signals and issubclass(told.exc_type, KeyboardInterrupt):
            _come_again(signals[-1])
        else:
            unraisable(told)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = [(number, signal.signal(number, interrupt)) for number in heeded()]
    unraisable, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for number, handler in before:
            signal.signal(number, handler)


def _come_again(number: int) -> None:
    again = threading.Timer(_IMPORT_S, signal_main, (number,))
    again.daemon = True
    again.start()
