"""The pictures of the report in docs/how-to/reading-the-report.md: the shipped sample, with a gate that fails.

Run: python docs/screenshots.py [CHROMIUM], on a machine that does nothing else, since speed is measured. It needs
playwright (`pip install '.[browser]'`) and a Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from playwright.sync_api import sync_playwright

from int8cal.cli.main import main as int8cal

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
GATES = ("--gate", "top1.drop<=1.0", "--gate", "sqnr_db>=50")
CHARTS = "#ranges figure"
ZOOMED = (0.75, 0.99)  # the part of the second histogram that is dragged over


def main() -> None:
    """Calibrate the sample in a copy, and write both pictures."""
    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        shutil.copytree(ROOT / "sample_data", Path(scratch) / "sample_data")
        command = ["calibrate", "--config", "sample_data/sample.yaml", *GATES, "-o", "digits-int8"]
        with chdir(scratch):
            code = int8cal(command)
        if code != 7:
            raise SystemExit(f"exit code {code}; one gate of two should have failed")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        address = (Path(scratch) / "digits-int8" / "report.html").as_uri()

        page = browser.new_page(viewport={"width": 1180, "height": 880}, color_scheme="light")
        page.goto(address)
        page.screenshot(path=IMAGES / "report-top.png")

        page = browser.new_page(viewport={"width": 1180, "height": 620}, color_scheme="dark")
        page.goto(address)
        page.locator(CHARTS).first.evaluate("figure => scrollTo(0, figure.getBoundingClientRect().top + scrollY - 66)")
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
        browser.close()


if __name__ == "__main__":
    main()
