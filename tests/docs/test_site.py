"""The documentation site: it builds strictly, holds the whole reference, and fetches nothing from the network."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import click
import pytest
from docs_site import ROOT, build, built_site, require_mkdocs

import int8cal
from int8cal import errors
from int8cal.cli.main import COMMANDS, cli
from int8cal.evaluation.figures import FIGURES

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SOURCES = (
    *("mkdocs.yml", "docs", "configs", "sample_data", "benchmarks", "changelog.d"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
)
# what makes a browser fetch something; a link in <a> does not
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("link", "href"),
    ("source", "src"),
    ("object", "data"),
}

require_mkdocs()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return built_site(tmp_path_factory)


class Page(HTMLParser):
    """What a page makes the browser fetch, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for key, value in attrs if (tag, key) in FETCHED and value]

    def handle_data(self, data):
        self.text += data


def outside(text: str) -> list[str]:
    """URLs that style sheets fetch from elsewhere."""
    urls = re.findall(r"(?:url\(|@import )[\"']?([^\"')\s]+)", text)
    return [url for url in urls if re.match(r"(https?:)?//", url)]


def test_no_page_fetches_anything_from_the_network(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for path in pages:
        assert [url for url in Page(path).fetched if re.match(r"(https?:)?//", url)] == [], path
        assert outside(path.read_text(encoding="utf-8")) == [], path
        assert 'class="mermaid"' not in path.read_text(encoding="utf-8"), "mermaid is loaded from a server"
    for path in site.rglob("*.css"):
        assert outside(path.read_text(encoding="utf-8")) == [], path


def test_a_planted_font_from_a_server_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<link rel="stylesheet" href="https://example.org/font.css"><a href="https://example.org">a</a>')
    assert Page(page).fetched == ["https://example.org/font.css"]
    assert outside("@import 'https://example.org/a.css'; b {background: url(//example.org/c.png)}") != []


def planted(root: Path, lines: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build a copy of the site's sources, in an empty folder, with a line more at the end of pages."""
    for source in SOURCES:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, root / source)
    for page, line in lines.items():
        with (root / "docs" / page).open("a") as stream:
            stream.write(f"\n{line}\n")
    return build(root, root / "site")


def test_links_to_nothing_fail_the_build(tmp_path):
    index = "[a](numerics.md#no-such-title), [a](no-such-page.md)"
    done = planted(tmp_path, {"index.md": index, "decisions/half-even.md": "[a](../../configs/no-such.yaml)"})
    assert done.returncode != 0
    warnings = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("WARNING")]
    for fault in ("no-such-title", "no-such-page.md", "no-such.yaml"):
        assert any(fault in line for line in warnings), fault


def test_a_text_that_nothing_generates_fails_the_build(tmp_path):
    # on the first page, which ends the build there
    done = planted(tmp_path, {"index.md": "<!-- generated: nothing-of-that-name -->"})
    assert done.returncode != 0
    assert "nothing-of-that-name" in done.stdout + done.stderr


def test_the_command_line_page_names_every_command_and_option(site):
    text = " ".join(Page(site / "reference/command-line.html").text.split())
    top = click.Context(cli)
    options = {
        name
        for command in COMMANDS
        for option in cli.get_command(top, command).params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    assert {f"int8cal {command}" for command in COMMANDS if f"int8cal {command} [OPTIONS]" not in text} == set()
    assert {name for name in options if name not in text} == set()
    assert "None" not in text


def test_the_python_page_names_every_public_name_and_error(site):
    text = (site / "reference/python.html").read_text(encoding="utf-8")
    names = {f"int8cal.{name}" for name in int8cal.__all__ if name != "Int8calError"}
    own = (each for each in vars(errors).values() if getattr(each, "__module__", "") == errors.__name__)
    names |= {f"int8cal.errors.{each.__name__}" for each in own if isinstance(each, type)}
    assert {name for name in names if f'id="{name}"' not in text} == set()


def test_the_gates_page_names_every_figure_with_its_unit(site):
    text = Page(site / "reference/gates.html").text
    assert {name for name, figure in FIGURES.items() if name not in text or figure.unit not in text} == set()


def test_files_outside_docs_are_pages_that_links_lead_to(site):
    assert 'href="../repository/configs/index.html"' in (site / "reference/yaml.html").read_text(encoding="utf-8")
    assert "../sample_data/calib" in Page(site / "repository/configs/minimal.yaml.html").text
