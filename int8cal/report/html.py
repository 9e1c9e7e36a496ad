"""report.html: one file with everything in it, that loads nothing from anywhere.

The template gets figures as text and pictures as coordinates; what can be zoomed goes to the page's script as numbers.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import inspect
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from int8cal.errors import printable
from int8cal.phrases import counted
from int8cal.report import advice, charts, plots, reading, tables, wording
from int8cal.report.document import LaidOut
from int8cal.report.reading import Headline, for_another_runtime
from int8cal.report.words import WORDS

if TYPE_CHECKING:
    import jinja2

    from int8cal.evaluation.result import Report
    from int8cal.report.document import Document


def report_to_html(report: Report, laid_out: LaidOut | None = None) -> str:
    """Draw a report as one self-contained HTML page.

    Args:
        report: Any report; names of tensors and nodes are escaped, whatever they hold.
        laid_out: What views show of it, where it is made already.

    Returns:
        HTML with inline styles, scripts and SVG, and the numbers of the plots as JSON. Its content security policy lets
        no request out, and knows the page's own styles and scripts by their hashes, so that nothing a model carries in
        its names can act. Equal reports give equal pages.
    """
    import markupsafe

    environment, document = _environment(), (laid_out or LaidOut(report)).document
    data: dict[str, list[dict[str, Any] | None]] = {
        "histograms": [plots.histogram_data(histogram) for histogram in report.histograms],
        "weights": [plots.weights_data(weights) for weights in report.weights],
    }
    drawn = any(data.values())
    styles = [*([_file("vendor/uplot/uPlot.min.css")] if drawn else []), _file("templates/style.css")]
    scripts = [_file("templates/page.js")]
    if drawn:
        scripts += [_vendored("uplot/uPlot.iife.min.js", "uplot/LICENSE"), _file("templates/plots.js")]
    return environment.get_template("report.html.j2").render(
        page=_page(report, document, data["histograms"]),
        d=document,
        styles=[markupsafe.Markup(text) for text in styles],  # noqa: S704 (files of this package)
        scripts=[markupsafe.Markup(text) for text in scripts],  # noqa: S704 (likewise)
        style_hashes=[_hash(text) for text in styles],
        script_hashes=[_hash(text) for text in scripts],
        # in a block of text, only "<" could end it; JSON may hold it as an escape
        data=markupsafe.Markup(  # noqa: S704 (escaped here)
            json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        ),
    )


def _page(report: Report, document: Document, histograms: list[dict[str, Any] | None]) -> dict[str, object]:
    """Prepare what the template shows in an order of its own, or on one axis."""
    rows = tables.layer_rows(document, {histogram.tensor: index for index, histogram in enumerate(report.histograms)})
    by_tensor = {row.layer.tensor: row for row in reversed(rows)}
    drawn = [
        (anchor, histogram, histograms[anchor] is not None, by_tensor.get(histogram.tensor))
        for anchor, histogram in enumerate(report.histograms)
    ]
    speed, speed_text = charts.speed_picture(document)
    return {
        "title": printable(reading.name_of(document)),
        "verdict": reading.verdict(document, complete=not report.evaluation.failures),
        "figures": _grouped(document),
        "layers": rows,
        "in_order": sorted(rows, key=lambda row: row.order),
        "scale": charts.decibel_scale([each.sqnr_db for each in document.layers if each.sqnr_db is not None]),
        # those of the worst layers first, tensors without a layer last
        "plots": sorted(drawn, key=lambda plot: plot[3].rank if plot[3] else len(rows) + 1),
        "weights": plots.weight_rows(document),
        "weight_scale": plots.weight_scale(document),
        "speed": speed,
        "speed_text": speed_text,
        "settings": reading.shown_settings(document),
    }


def _environment() -> jinja2.Environment:
    import jinja2

    from int8cal.report.compiled_templates import CompiledTemplates

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("int8cal.report", "templates"),
        bytecode_cache=CompiledTemplates(),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # what the templates call: as filters the texts of single values, as functions all else
    environment.filters |= dict(inspect.getmembers(wording, inspect.isfunction))
    for module in (advice, charts, plots, reading, tables):
        environment.globals |= dict(inspect.getmembers(module, inspect.isfunction))
    environment.globals["WORDS"] = WORDS
    environment.globals |= {
        name: getattr(tables, name) for name in ("HEADS", "SPEED_HEADS", "GROUP_HEADS", "DECISION_HEADS")
    }
    return environment


def _file(name: str) -> str:
    """Read a file of this package that is pasted as it is."""
    return importlib.resources.files("int8cal.report").joinpath(name).read_text(encoding="utf-8")


def _vendored(script: str, licence: str) -> str:
    """Read another project's script, with its licence in front, as the licence asks of copies."""
    return f"/*!\n{_file(f'vendor/{licence}').strip()}\n*/\n{_file(f'vendor/{script}')}"


def _hash(text: str) -> str:
    """Return what a content security policy calls a script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


# Figures whose question is not whether the model is good enough.
_COST = ("Speedup", "Fastest here", "Size")
_SAFETY = "Can saturate"


def _grouped(document: Document) -> list[tuple[str, list[Headline]]]:
    """Sort the headline figures by the question that they answer."""
    figures = [_short(item) if item.label == "Fastest here" else item for item in tables.shown_headlines(document)]
    safety = [item for item in figures if item.label == _SAFETY]
    good = [item for item in figures if item.label not in (*_COST, _SAFETY)]
    cost = sorted((item for item in figures if item.label in _COST), key=lambda item: _COST.index(item.label))
    return [
        ("Is it good enough?", good),
        ("Is it faster and smaller?", cost),
        ("Where to look", [tables.worst_layer(document), _on_integers(document), *safety]),
    ]


def _short(fastest: Headline) -> Headline:
    """Leave the runtime's name alone in large letters."""
    runtime, _, times = fastest.text.partition(": ")
    return replace(fastest, text=runtime, aside=", ".join(filter(None, (times, fastest.aside))))


def _on_integers(document: Document) -> Headline:
    fusion = document.fusion
    if fusion is None:
        return Headline("On integers", wording.NOT_MEASURED, document.why("fusion"), measured=False)
    left = f"{fusion.float_} left in float" if fusion.float_ else "none left in float"
    left += " in onnxruntime" if for_another_runtime(document) else ""
    return Headline("On integers", f"{fusion.integer} of {counted(fusion.total, 'node')}", left)
