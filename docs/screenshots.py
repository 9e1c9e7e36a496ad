"""The pictures of reports: of the start page, of docs/how-to/reading-the-report.md and of docs/guides/gallery.md.

Run: python docs/screenshots.py [CHROMIUM], on a machine that does nothing else, since speed is measured. It needs
playwright (`pip install '.[browser]'`) and a Chromium. All reports are of the shipped sample, and of networks that are
made here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from playwright.sync_api import sync_playwright

from int8cal.cli.main import main as int8cal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHARTS = "#ranges figure"
BUDGET = ".card:has(> h3:text-is('Mixed precision'))"
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
        shutil.copytree(ROOT / "sample_data", Path(scratch) / "sample_data")
        make_detectors(Path(scratch))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (command, expected, part) in SHOWN.items():
            with chdir(scratch):
                code = int8cal(list(command))
            if code != expected:
                raise SystemExit(f"{name}: exit code {code}, expected {expected}")
            page = opened(browser, Path(scratch) / command[-1], 880, "light")
            if part:
                scroll_to(page, part)
            page.screenshot(path=IMAGES / f"{name}.png")
        histograms(opened(browser, Path(scratch) / "digits-int8", 620, "dark"))
        browser.close()


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
    page.screenshot(path=IMAGES / "report-histograms.png")


if __name__ == "__main__":
    main()
