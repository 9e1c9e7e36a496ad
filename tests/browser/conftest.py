"""Report pages in a real browser, with everything that must not happen on them written down."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from made_reports import make_report

from int8cal.calibration.ranges import TensorEntry
from int8cal.evaluation.result import LayerSaturation, LayerScales, Saturation
from int8cal.quantization.table import WeightEntry
from int8cal.report.html import report_to_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from int8cal.evaluation.result import Report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# said by the page itself, before any of its own scripts
WATCH = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"


@dataclass
class Opened:
    """A page, and what it did: `requests` beside the file itself, `complaints` on the console, and dialogs."""

    page: object
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.page, name)


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium or Chrome is installed (Debian: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_html(chromium, tmp_path) -> Callable[..., Opened]:
    """Open the text of a page in a window of its own."""
    contexts = []

    def open_html(text: str, *, scheme: str = "light", width: int = 1280, scripts: bool = True) -> Opened:
        file = tmp_path / f"report{len(contexts)}.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts
        )
        contexts.append(context)
        context.set_default_timeout(15_000)
        context.add_init_script(WATCH)
        opened = Opened(context.new_page())
        opened.page.on("request", lambda request: request.url == file.as_uri() or opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("dialog", lambda dialog: (opened.complaints.append(dialog.message), dialog.dismiss()))
        opened.page.goto(file.as_uri())
        return opened

    yield open_html
    for context in contexts:
        context.close()


@pytest.fixture
def show(open_html) -> Callable[..., Opened]:
    """Open a report; at the end of the test, whatever it asked for or complained of is a failure."""
    shown = []

    def show(report: Report, **how: object) -> Opened:
        shown.append(open_html(report_to_html(report), **how))
        return shown[-1]

    yield show
    for opened in shown:
        assert opened.requests == []
        assert opened.complaints == []


@pytest.fixture
def build() -> Callable[[int], Report]:
    """Make a report as `calibrate` writes it, with tables of ranges and weights; every third layer can saturate."""

    def build(layers: int = 12) -> Report:
        report = make_report(layers)
        convs = [layer for layer in report.evaluation.layers if layer.op_type == "Conv"]
        scales = [tuple(1e-3 * (1 + (7 * i + 3 * j) % 23) for j in range(8 if i else 300)) for i in range(len(convs))]
        saturated = [
            LayerSaturation(
                node=layer.node,
                op_type="Conv",
                weight="w",
                verdict="safe" if i % 3 else "unsafe",
                why="",
                channels=8,
                unsafe_channels=0 if i % 3 else 2,
                unsafe_pairs=5,
                worst_sum=130,
            )
            for i, layer in enumerate(convs)
        ]
        return replace(
            report,
            evaluation=replace(report.evaluation, saturation=Saturation("x86-avx2", 2, 8, 5, tuple(saturated))),
            tensors={
                histogram.tensor: TensorEntry(
                    "uint8", 0.1, 3, histogram.low, histogram.high, "kl", 9.0, (-9.0, 9.0), 0.01, "calibrated"
                )
                for histogram in report.histograms
            },
            weights=tuple(
                LayerScales(layer.node, "Conv", f"w{i}", layer.tensor, WeightEntry("int8", 0, "s8", scales[i]))
                for i, layer in enumerate(convs)
            ),
        )

    return build
