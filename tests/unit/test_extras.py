"""What the project says about installing itself is true today, and comes from one place."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import int8cal
from int8cal import extras
from int8cal.extras import PUBLISHED, extra_hint

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(int8cal.__file__).parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
HERE = {ROOT / "tests" / "unit" / "test_extras.py", ROOT / "docs" / "releasing.md"}
TEXTS = {".md", ".py", ".yml", ".yaml", ".toml", ".sh", "", ".html", ".j2", ".ipynb"}
BY_NAME = re.compile(r"int8cal\[[a-z,-]+\]|\bpip3? install [^\n`]*?(?<![\w./:@-])int8cal(?![\w./-])")
OF_A_CLONE = re.compile(r"""pip3? install [^\n`"']*["']?\.\[([a-z,-]+)\]""")


def texts() -> dict[str, str]:
    """Read what a clone holds beside the package, by path."""
    folders = (
        ROOT / name
        for name in (
            "benchmarks",
            "changelog.d",
            "configs",
            "docs",
            "integrations",
            "sample_data",
            "tests",
            ".ci",
            ".github",
        )
    )
    files = [*ROOT.glob("*"), *ROOT.glob(".*"), *(path for folder in folders for path in folder.rglob("*"))]
    kept = (path for path in files if path.is_file() and path.suffix in TEXTS and path not in HERE)
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8", errors="ignore") for path in kept}


def names_in(text: str) -> list[str]:
    return [found[0] for found in BY_NAME.finditer(text)]


def extras_in(text: str) -> set[str]:
    return {name for found in OF_A_CLONE.finditer(text) for name in found[1].split(",")}


def commands_in(source: str) -> list[str]:
    """Return the strings of a module that tell somebody to install something."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [node.value for node in nodes if isinstance(node.value, str) and re.search(r"pip3? install", node.value)]


def hints_in(source: str) -> set[str]:
    """Return the extras that a module asks `extra_hint` for."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    asked = (call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) == "extra_hint")
    return {call.args[0].value for call in asked}


@pytest.mark.parametrize(
    ("published", "command"), [(True, "'int8cal[ray]'"), (False, "'.[ray]' in a clone of int8cal")]
)
def test_a_hint_follows_what_is_published(monkeypatch, published, command):
    monkeypatch.setattr(extras, "PUBLISHED", published)
    assert extra_hint("ray") == f"pip install {command}"


def test_no_text_tells_to_install_what_is_not_published():
    assert not PUBLISHED, "the texts may say int8cal's own name now: docs/releasing.md"
    assert {path: names_in(text) for path, text in texts().items() if names_in(text)} == {}


def test_every_extra_that_a_text_names_exists():
    named = {name for text in texts().values() for name in extras_in(text)}
    assert {"dev", "docs", "openvino", "metrics"} <= named <= EXTRAS.keys()


def test_the_code_says_how_to_install_something_in_one_place():
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    elsewhere = {path.name: commands_in(text) for path, text in sources.items() if path.name != "extras.py"}
    assert {name: found for name, found in elsewhere.items() if found} == {}
    hinted = {name for text in sources.values() for name in hints_in(text)}
    assert {"openvino", "metrics"} <= hinted <= EXTRAS.keys()


@pytest.mark.parametrize(
    ("text", "names", "of_a_clone"),
    [
        ("pip install int8cal", 1, set()),
        ("pip install -U 'int8cal[ray]'", 1, set()),
        ("get int8cal[ray]", 1, set()),
        ("pip install dist/int8cal-0.2.0-py3-none-any.whl", 0, set()),
        ("pip install git+https://github.com/OWNER/int8cal", 0, set()),
        ("pip install -e '.[dev,docs]'", 0, {"dev", "docs"}),
        ("pip install .", 0, set()),
    ],
)
def test_planted_spellings_are_told_apart(text, names, of_a_clone):
    assert (len(names_in(text)), extras_in(text)) == (names, of_a_clone)
    assert commands_in(f"def f():\n    raise E(do={text!r})\n") == ([text] if "pip" in text else [])
