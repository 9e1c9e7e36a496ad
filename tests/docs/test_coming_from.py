"""Pages for those who come from another tool: what they say of its options is in its source, and ours exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from int8cal.cli.main import COMMANDS, cli

PAGES = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
SOURCES = {  # page -> package, and the files that declare its options
    "onnxruntime.md": ("onnxruntime", ("quantization/quantize.py", "quantization/calibrate.py")),
    "quark.md": (
        "quark",
        (
            "onnx/quantization/api.py",
            "onnx/quantization/quantize.py",
            *(f"onnx/quantization/config/{name}.py" for name in ("algorithm", "config", "maps", "spec")),
        ),
    ),
    "nncf.md": (
        "nncf",
        ("quantization/quantize_model.py", "quantization/advanced_parameters.py", "parameters.py", "scopes.py"),
    ),
}
ROW = re.compile(r"^\| (?P<theirs>[^|]+) \| (?P<ours>[^|]+) \|", re.MULTILINE)


def rows(text: str) -> list[re.Match[str]]:
    """Return the rows of a page's tables: their heads name a tool, and are no options."""
    return [row for row in ROW.finditer(text) if "int8cal" not in row["ours"].split(" ")[0]]


def theirs(text: str) -> set[str]:
    """Return the names that the left columns have in code: of calls what stands before the bracket."""
    names = {name for row in rows(text) for name in re.findall(r"`([\w.]+)`", row["theirs"])}
    return {name.rpartition(".")[2] for name in names}


def ours(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", "\n".join(row["ours"] for row in rows(text))))


def known() -> set[str]:
    context = cli.make_context("int8cal", ["inspect", "--help"], resilient_parsing=True)
    commands = [cli.get_command(context, name) for name in COMMANDS]
    return {option for each in commands for parameter in each.params for option in parameter.opts}


@pytest.mark.parametrize("page", SOURCES)
def test_every_option_of_the_other_tool_is_in_its_source(page):
    package, files = SOURCES[page]
    found = importlib.util.find_spec(package)  # nothing of it is imported
    if found is None:
        pytest.skip(f"{package} is not installed, whose options the page names")
    folder = Path(found.submodule_search_locations[0])
    source = "\n".join((folder / name).read_text(encoding="utf-8") for name in files)
    names = theirs((PAGES / page).read_text(encoding="utf-8"))
    assert len(names) > 15
    assert {name for name in names if not re.search(rf"\b{name}\b", source)} == set()


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_every_option_of_ours_exists(page):
    named = ours((PAGES / page).read_text(encoding="utf-8"))
    assert len(named) > 3
    assert named - known() == set()


def test_planted_names_are_read():
    text = "| `quantize_static` | int8cal | |\n|---|---|---|\n| `per_chanel` | `--per-chanel` | |\n"
    assert (theirs(text), ours(text)) == ({"per_chanel"}, {"--per-chanel"})
