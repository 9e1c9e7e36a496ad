"""The pictures of reports: of the start page, of docs/how-to/reading-the-report.md and of docs/guides/gallery.md.

Run: python docs/screenshots.py [CHROMIUM], on a machine that does nothing else, since speed is measured. It needs
playwright (`pip install '.[browser]'`), OpenVINO and a Chromium. All reports are of the shipped sample, and of networks
that are made here. A picture holds the headings of its page; a test finds what it lacks of what the page has today.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import sync_playwright

from int8cal.cli.main import main as int8cal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHARTS = "#ranges figure"
BUDGET = ".card:has(> h3:text-is('Mixed precision'))"
HEADINGS = "nav a, h2, h3, th[scope=col], .label"
ZOOMED = (0.75, 0.99)  # the part of the second histogram that is dragged over
SAMPLE = ("calibrate", "--config", "sample_data/sample.yaml")
# picture -> the command, the exit code that it ends with, and the part of its report that is shown ("" for the top)
SHOWN = {
    "report-top": ((*SAMPLE, "--gate", "top1.drop<=1.0", "--gate", "sqnr_db>=50", "-o", "digits-int8"), 7, ""),
    "gallery-layers": ((*SAMPLE, "-o", "layers-int8"), 0, "#layers"),
    "gallery-budget": ((*SAMPLE, "--gate", "sqnr_db>=45", "--budget", "100", "-o", "budget-int8"), 0, BUDGET),
    "gallery-detector": (("evaluate", "detector.onnx", "one-scale.onnx", "--data", "frames.npz", "-o", "found"), 7, ""),
}


def main() -> None:
    """Make the reports in a copy of the sample, and write all pictures."""
    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, folder in made_reports(Path(scratch)):
            page = opened(browser, folder, 880, "light")
            if SHOWN[name][2]:
                scroll_to(page, SHOWN[name][2])
            take(page, name)
        histograms(opened(browser, Path(scratch) / "digits-int8", 620, "dark"))
        browser.close()


def made_reports(folder: Path, *options: str) -> Iterable[tuple[str, Path]]:
    """Yield each picture's name and the directory of its report, made below a folder with further options."""
    shutil.copytree(ROOT / "sample_data", folder / "sample_data")
    make_detectors(folder)
    for name, (command, expected, _) in SHOWN.items():
        with chdir(folder):
            code = int8cal([*command, *options])
        if code != expected:
            raise SystemExit(f"{name}: exit code {code}, expected {expected}")
        yield name, folder / command[-1]


def headings(page: Page) -> list[str]:
    """Return what parts of a page are called, with 0 for each number."""
    found: list[str] = page.locator(HEADINGS).all_text_contents()
    return sorted({re.sub(r"[\d,.]*\d", "0", " ".join(text.split())) for text in found} - {""})


def take(page: Page, name: str) -> None:
    """Write the picture of what a page shows, and its headings into it."""
    known = PngInfo()
    known.add_text("headings", json.dumps(headings(page)))
    Image.open(io.BytesIO(page.screenshot())).save(IMAGES / f"{name}.png", pnginfo=known, optimize=True)


def make_detectors(folder: Path) -> None:
    """Write a detector, the int8 model of a tool that joins boxes and scores under one scale, and frames for both."""
    sys.path.append(str(ROOT / "tests"))
    import detection_head

    model = detection_head.detector()
    onnx.save(model, folder / "detector.onnx")
    onnx.save(detection_head.with_one_scale(model), folder / "one-scale.onnx")
    np.savez(folder / "frames.npz", x=detection_head.pictures(64))


def opened(browser: Browser, folder: Path, height: int, scheme: str) -> Page:
    """Open the report of a directory."""
    page = browser.new_page(viewport={"width": 1180, "height": height}, color_scheme=scheme)
    page.goto((folder / "report.html").as_uri())
    return page


def scroll_to(page: Page, part: str) -> None:
    """Put a part of the page right below its head."""
    page.locator(part).first.evaluate("part => scrollTo(0, part.getBoundingClientRect().top + scrollY - 66)")


def histograms(page: Page) -> None:
    """Zoom into the tail of the second histogram."""
    scroll_to(page, CHARTS)
    page.locator(f"{CHARTS} canvas").nth(1).wait_for()
    box = page.locator(f"{CHARTS} .u-over").nth(1).bounding_box()
    if box is None:
        raise SystemExit("the second histogram is not shown")
    start, end = (box["x"] + share * box["width"] for share in ZOOMED)
    page.mouse.move(start, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(end, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    take(page, "report-histograms")


if __name__ == "__main__":
    main()
