"""The documentation site opened as files: nothing from the network, nothing wrong on the console, a search that finds."""

from __future__ import annotations

import pytest
from docs_site import ROOT, build, require_mkdocs

pytestmark = pytest.mark.browser
require_mkdocs()

PAGES = ("index.html", "explanation/theory.html", "reference/command-line.html", "how-to/index.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def visit(chromium, site):
    contexts = []
    asked, complaints = [], []

    def visit(address: str, scheme: str = "light"):
        context = chromium.new_context(color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on(
            "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or asked.append(request.url)
        )
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{site.as_uri()}/{address}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert asked == []
    assert complaints == []


@pytest.mark.parametrize("address", PAGES)
def test_a_page_opens_without_the_network_and_without_complaints(visit, address):
    page = visit(address)
    assert page.locator("h1").first.is_visible()
    broken = page.eval_on_selector_all("img", "images => images.filter(i => !i.naturalWidth).map(i => i.src)")
    assert broken == []


def test_the_search_finds_words_when_pages_are_files(visit):
    page = visit("index.html?q=VPMADDUBSW")
    page.wait_for_selector(".md-search-result__link")
    found = page.eval_on_selector_all(".md-search-result__link", "links => links.map(a => a.href)")
    assert any("saturation.html" in each for each in found)


def test_the_page_is_dark_where_the_system_is(visit):
    grounds = [
        visit("index.html", scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert [sum(map(int, ground.strip("rgb()").split(", "))) > 380 for ground in grounds] == [True, False]
