"""Every example in README.md and docs/ runs: shell, Python, YAML and JSON blocks, page by page.

The pages share a directory in which README's blocks have run, as if a reader went through all of them; a tutorial has a
directory of its own. A command that has run there is not run again. A block may be left out only by a remark above it,
`<!-- not run: why -->`; one with `<!-- needs: package -->` runs where that is installed. What a page says that it comes
`<!-- after: page -->` has run before. `pytest --regen-golden` writes the
figures that were printed into the pages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import page_blocks
import pytest
import yaml
from page_blocks import ROOT, Block, Command, blocks_of, missing, renew, renewed
from pydantic import ValidationError

import int8cal
from int8cal.config.load import load_jobs
from int8cal.config.schema import ConfigFile
from int8cal.errors import Int8calError

sys.path.append(str(ROOT / "tests" / "cli"))

import forking
from forking import Forks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
_SHIMS = {
    "int8cal": 'exec "{python}" {int8cal} "$@"',
    "python": 'exec "{python}" "$@"',
    "pip": "exit 0  # what a page installs is installed already",
}
_RUN = """
{command}
code=$?; printf '\\n@@ %d\\n' $code; (exit $code)
"""

pytestmark = pytest.mark.newest  # the output that pages show follows the newest onnxruntime and click


@dataclass
class Workshop:
    """A directory with copies of sample_data and configs, and the commands that have run in it."""

    folder: Path
    environment: dict[str, str]
    done: dict[str, str] = field(default_factory=dict)
    regen: bool = False

    def run(self, block: Block) -> list[str]:
        """Run a block; what is wrong with it, in lines."""
        wrong = {"shell": self._shell, "python": self._python, "yaml": self._yaml, "json": _json}[block.kind](block)
        return [f"{block.page}:{block.line}: {each}" for each in wrong]

    def _shell(self, block: Block) -> list[str]:
        if block.title:
            return self._file(block)
        commands = block.commands()
        judged = {command.text for command, after in pairwise(commands) if after.text == "echo $?"}
        new = [command for command in commands if command.text in judged or command.text not in self.done]
        script = "".join(_RUN.format(command=command.text) for command in new)
        parts = self._call(["bash", "-c", f"exec 2>&1\n{script}"]).split("\n@@ ")
        wrong = []
        for place, command in enumerate(new):
            printed = parts[place].partition("\n")[2] if place else parts[0]
            code = int(parts[place + 1].partition("\n")[0])
            if code and command.text not in judged:
                wrong.append(f"{command.text}\nends with {code}:\n{printed}")
                continue
            if "$?" not in command.text and command.text not in judged:
                self.done[command.text] = printed
            self._renew(block, command, printed)
            lacking = list(command.shown) if _is_other_code(command, printed) else missing(command.shown, printed)
            wrong += [f"{command.text}\ndoes not print {line!r} there, but:\n{printed}" for line in lacking]
        for command in commands:
            if command not in new:
                printed = self.done[command.text]
                self._renew(block, command, printed)
                wrong += [f"{command.text}\ndoes not print {line!r}" for line in missing(command.shown, printed)]
        return wrong

    def _renew(self, block: Block, command: Command, printed: str) -> None:
        if self.regen and command.shown and command.text != "echo $?":
            renew(block, command.shown, printed)

    def _python(self, block: Block) -> list[str]:
        if block.title:
            return self._file(block)
        done = subprocess.run(
            [sys.executable, "-c", block.text], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        return [] if done.returncode == 0 else [done.stderr]

    def _yaml(self, block: Block) -> list[str]:
        try:
            if block.title:
                self._file(block)
                load_jobs(self.folder / block.title, {})
            else:  # a part of a job: the keys and their types
                ConfigFile.model_validate(yaml.safe_load(block.text))
        except (Int8calError, ValidationError, yaml.YAMLError) as error:
            return [str(error)]
        return []

    def _file(self, block: Block) -> list[str]:
        path = self.folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return []

    def _call(self, command: list[str]) -> str:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=600,  # a command that leaves a process behind, which keeps its output open
        ).stdout


def _is_other_code(command: Command, printed: str) -> bool:
    """Tell whether a command shows an exit code, which is no figure of a machine, that was another one."""
    return command.text == "echo $?" and [*filter(None, command.shown)] != printed.split()


def _json(block: Block) -> list[str]:
    try:
        json.loads(block.text)
    except ValueError as error:
        return [str(error)]
    return []


@contextmanager
def open_workshop(folder: Path, *, regen: bool = False, fork: bool = False) -> Iterator[Workshop]:
    """Make a workshop: copies of what the repository ships, and commands that call this very int8cal.

    Args:
        folder: Where to.
        regen: Whether pages get the figures that their commands print, as with `pytest --regen-golden`.
        fork: Whether int8cal runs in forks of one process where it can, which pays for more than a few commands.
    """
    for name in ("sample_data", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    shims = folder.parent / f"{folder.name}-bin"
    shims.mkdir()
    source = str(Path(int8cal.__file__).parents[1])
    path = f"{shims}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{source}{os.pathsep}{folder}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    forks = Forks(shims, environment)
    called = f'-I "{forking.__file__}" call "{forks.door}"' if fork and forks.can_run(environment) else "-m int8cal"
    for name, text in _SHIMS.items():
        (shims / name).write_text(f"#!/bin/sh\n{text.format(python=sys.executable, int8cal=called)}\n")
        (shims / name).chmod(0o755)
    yield Workshop(folder, environment, regen=regen)
    forks.close()


def read(page: str) -> list[Block]:
    return blocks_of((ROOT / page).read_text(encoding="utf-8"), page)


def examples(page: str) -> list[Block]:
    blocks = [block for block in read(page) if block.kind and not block.not_run]
    return [block for block in blocks if not block.needs or importlib.util.find_spec(block.needs) is not None]


def befores(page: str) -> list[str]:
    """Name the pages whose files a page takes."""
    return page_blocks.AFTER.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def planted(tmp_path) -> Iterator[Workshop]:
    """A directory in which nothing has run."""
    with open_workshop(tmp_path / "planted") as workshop:
        yield workshop


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory, request) -> Iterator[tuple[Workshop, list[str]]]:
    """The shared directory, and what was wrong with README's blocks."""
    regen = request.config.getoption("--regen-golden")
    with open_workshop(tmp_path_factory.mktemp("reader") / "shared", regen=regen, fork=True) as workshop:
        yield workshop, [each for block in examples("README.md") for each in workshop.run(block)]


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
def test_every_example_of_a_page_runs(page, request, tmp_path, stack):
    if page.startswith("docs/tutorial/"):
        regen = request.config.getoption("--regen-golden")
        workshop, wrong = stack.enter_context(open_workshop(tmp_path / "fresh", regen=regen, fork=True)), []
    else:
        workshop, of_readme = request.getfixturevalue("after_readme")
        wrong = of_readme if page == "README.md" else []
    if page != "README.md":
        wrong = [each for one in (*befores(page), page) for block in examples(one) for each in workshop.run(block)]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_a_remark_that_a_block_is_not_run_stands_above_an_example(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    used = [block for block in read(page) if block.not_run and block.kind]
    assert page_blocks.remarks_of(text) == len(used)


def test_a_planted_broken_command_is_found(planted):
    text = "```\nint8cal inspect sample_data/model.onnx\nint8cal inspect no-such.onnx\n```\n"
    (wrong,) = [each for block in blocks_of(text, "page.md") for each in planted.run(block)]
    assert wrong.startswith("page.md:1: int8cal inspect no-such.onnx\nends with 3:")


def test_planted_output_that_is_not_printed_is_found(planted):
    text = "```console\n$ echo there are 12 of them\nthere are 7 of them\nand more\n$ false\n$ echo $?\n1\n```\n"
    (wrong,) = [each for block in blocks_of(text, "page.md") for each in planted.run(block)]
    assert "does not print 'and more'" in wrong


def test_a_row_that_gave_way_to_that_of_another_runtime_is_not_missing():
    shown, fastest = ("Worst     3 dB at a (Add)", "Float     2 nodes"), "Fastest   OpenVINO: 1 ms\n"
    more = "More      Worst, Size: in the report\n"
    assert missing(shown, fastest + more) == ["Float     2 nodes"]
    assert missing(shown, more) == [*shown]


def test_a_planted_exit_code_is_found(planted):
    (block,) = blocks_of("```console\n$ false\n$ echo $?\n2\n```\n", "page.md")
    assert "does not print '2'" in planted.run(block)[0]


def test_figures_that_were_printed_take_the_place_of_those_shown():
    shown = ("SQNR  36.84 dB", "...", "no such line 1", "", "2 of 3")
    printed = "SQNR  42.9 dB\nmore\n\n2 of 4\n"
    assert renewed(shown, printed) == ("SQNR  42.9 dB", "...", "no such line 1", "", "2 of 4")


def test_a_planted_unknown_key_and_a_failing_program_are_found(planted):
    text = "```yaml\ncalibration: {methode: auto}\n```\n```python\nraise ValueError('planted')\n```\n```json\n{\n```\n"
    part, program, document = blocks_of(text, "page.md")
    assert "methode" in planted.run(part)[0]
    assert "planted" in planted.run(program)[0]
    assert planted.run(document)


def test_a_remark_is_read_with_its_reason():
    text = "<!-- not run: needs a camera -->\n```bash\nint8cal run a.yaml\n```\n```bash\nint8cal run b.yaml\n```\n"
    assert [block.not_run for block in blocks_of(text, "page.md")] == ["needs a camera", ""]


def test_a_block_says_which_package_it_needs():
    text = "<!-- needs: openvino -->\n```bash\nint8cal run a.yaml\n```\n```bash\nint8cal run b.yaml\n```\n"
    assert [block.needs for block in blocks_of(text, "page.md")] == ["openvino", ""]
