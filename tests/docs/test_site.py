"""The documentation site: it builds strictly, holds the whole reference, and fetches nothing from the network."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import click
import pytest
from docs_site import ROOT, build, require_mkdocs

import int8cal
from int8cal import errors
from int8cal.cli.main import COMMANDS, cli
from int8cal.evaluation.figures import FIGURES

if TYPE_CHECKING:
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
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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


@pytest.mark.parametrize(
    ("page", "planted", "fault"),
    [
        ("index.md", "[a](numerics.md#no-such-title)", "no-such-title"),
        ("index.md", "[a](no-such-page.md)", "no-such-page.md"),
        ("decisions/half-even.md", "[a](../../configs/no-such.yaml)", "no-such.yaml"),
        ("reference/gates.md", "<!-- generated: nothing-of-that-name -->", "nothing-of-that-name"),
    ],
)
def test_a_planted_fault_fails_the_build(tmp_path, page, planted, fault):
    for source in SOURCES:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)
    with (tmp_path / "docs" / page).open("a") as stream:
        stream.write(f"\n{planted}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert fault in done.stdout + done.stderr


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
