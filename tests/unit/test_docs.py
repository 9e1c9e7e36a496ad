"""The texts keep what they promise: links that resolve, commands that exist, the two set-up blocks."""

import ast
import re
from pathlib import Path

import pytest

import int8cal
from int8cal.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"\bint8cal ([a-z][a-z-]*)\b")
MODULE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")
CLASS = re.compile(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.\w+)?`")
# Pages that name classes; on others a capital may begin an ONNX op.
OF_CONTRIBUTORS = ("CONTRIBUTING.md", "docs/architecture.md", "docs/reference/glossary.md")
SHIPPED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "changelog.d",
    "docs",
    "configs",
    "sample_data",
)


def shipped_texts():
    paths = [ROOT / name for name in SHIPPED]
    return [file for path in paths for file in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]


def code_of(text):
    """Fenced blocks and `inline code`; prose may say "int8cal turns"."""
    blocks = FENCE.findall(text)
    return blocks + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def commands_in(text):
    return {name for code in code_of(text) for name in COMMAND.findall(code)}


def anchors_of(text):
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(text, folder):
    broken = []
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = folder / name
        if not path.exists():
            broken.append(target)
            continue
        titled = path.read_text(encoding="utf-8") if name and anchor else text
        if anchor and anchor not in anchors_of(titled):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", shipped_texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(path):
    assert broken_links(path.read_text(encoding="utf-8"), path.parent) == []


def test_a_planted_broken_link_is_found():
    assert broken_links("[a](no/such.md) [b](#no-such-title)\n\n# Title\n[c](#title)", ROOT) == [
        "no/such.md",
        "#no-such-title",
    ]


@pytest.mark.parametrize("path", shipped_texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_shown_exists(path):
    assert commands_in(path.read_text(encoding="utf-8")) - COMMANDS.keys() == set()


def test_a_planted_unknown_command_is_found():
    assert commands_in("`int8cal calibrat x`") == {"calibrat"}


@pytest.mark.parametrize("path", shipped_texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_named_exists(path):
    named = MODULE.findall(path.read_text(encoding="utf-8"))
    package = Path(int8cal.__file__).parent
    homes = (package, package.parent, ROOT, path.parent)
    assert [name for name in named if not any((home / name).is_file() for home in homes)] == []


def classes_in(text):
    return set(CLASS.findall(text))


@pytest.mark.parametrize("page", OF_CONTRIBUTORS)
def test_every_class_named_exists(page):
    files = Path(int8cal.__file__).parent.rglob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert classes_in((ROOT / page).read_text(encoding="utf-8")) - defined == set()


def test_a_planted_class_is_found():
    assert classes_in("`Plan` and `CalibrationTable.affines`, but not `OPS` or `propose`") == {
        "Plan",
        "CalibrationTable",
    }


@pytest.mark.parametrize("path", shipped_texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_with_prompts_are_marked_as_sessions(path):
    """The site's copy button leaves prompts and output of these out."""
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [text[:60] for info, text in fences if re.search(r"^\$ ", text, re.MULTILINE) and info != "console"] == []


def test_the_readme_shows_every_command():
    assert COMMANDS.keys() - commands_in((ROOT / "README.md").read_text(encoding="utf-8")) == set()


def test_the_first_two_blocks_of_the_readme_are_the_set_up():
    blocks = FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks[:2] == [
        "pip install .\nint8cal calibrate sample_data/model.onnx --data sample_data/calib\n",
        "pip install '.[dev]' && pytest\n",
    ]
