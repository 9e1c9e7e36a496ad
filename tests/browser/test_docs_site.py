"""The documentation site opened as files: nothing from the network, nothing wrong on the console, a search that finds."""

from __future__ import annotations

import pytest
from docs_site import built_site, require_mkdocs

pytestmark = pytest.mark.browser
require_mkdocs()

PAGES = ("index.html", "explanation/theory.html", "reference/command-line.html", "how-to/index.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built_site(tmp_path_factory)


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


@pytest.mark.parametrize(
    ("address", "shown", "copied"),
    [
        ("tutorial/from-photos-to-a-gate.html", "would be quantized", "int8cal inspect sample_data/model.onnx"),
        ("tutorial/from-photos-to-a-gate.html", "digits-int8", "int8cal run digits.yaml\necho $?"),
        (
            "index.html",
            "pip install .",
            "pip install .\nint8cal calibrate sample_data/model.onnx --data sample_data/calib",
        ),
    ],
)
def test_the_copy_button_takes_commands_without_prompts_and_output(visit, address, shown, copied):
    page = visit(address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator(".highlight").filter(has_text=shown).filter(has_text=copied.partition("\n")[0]).first
    block.hover()
    block.locator("button[data-md-type=copy], button.md-clipboard, button.md-code__button").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert [line for line in lines if line] == copied.splitlines()


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
