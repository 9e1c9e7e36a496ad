"""The pictures of reports in the docs have what a report's page has today."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from PIL import Image

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def screenshots():
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")
    spec = importlib.util.spec_from_file_location("screenshots", IMAGES.parent / "screenshots.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(screenshots, chromium, tmp_path_factory):
    """The headings of each picture's page, made anew; speed is not measured, and only for that there is one more."""
    made = screenshots.made_reports(tmp_path_factory.mktemp("reports"), "--no-latency")
    shown = {name: screenshots.opened(chromium, folder, 880, "light") for name, folder in made}
    return {name: set(screenshots.headings(page)) - {"What was not measured, and why"} for name, page in shown.items()}


def taken(name: str) -> list[str]:
    with Image.open(IMAGES / f"{name}.png") as picture:
        return json.loads(picture.text["headings"])


def test_no_picture_lacks_what_its_page_has_today(screenshots, pages):
    assert pages.keys() == screenshots.SHOWN.keys()
    lacking = {name: sorted(headings - set(taken(name))) for name, headings in pages.items()}
    assert not any(lacking.values()), f"{lacking}: python docs/screenshots.py takes the pictures again"
    assert set(taken("report-histograms")) == set(taken("report-top"))


def test_a_picture_that_lacks_something_is_found(pages):
    assert "Layer table" in pages["report-top"]
    assert pages["report-top"] - (set(taken("report-top")) - {"Layer table"}) == {"Layer table"}
