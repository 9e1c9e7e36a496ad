"""report.html: one file with everything in it, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from typing import TYPE_CHECKING

from int8cal.report.page import page_of

if TYPE_CHECKING:
    import jinja2

    from int8cal.evaluation.result import Report


def report_to_html(report: Report) -> str:
    """Draw a report as one self-contained HTML page.

    Args:
        report: Any report; names of tensors and nodes are escaped, whatever they hold.

    Returns:
        HTML with inline styles, scripts and SVG, and the numbers of the plots as JSON. Its content security policy lets
        no request out, and knows the page's own styles and scripts by their hashes, so that nothing a model carries in
        its names can act. Equal reports give equal pages.
    """
    import markupsafe

    environment = _environment()
    page = page_of(report)
    drawn = any(page.data.values())
    styles = [*([_file("vendor/uplot/uPlot.min.css")] if drawn else []), _file("templates/style.css")]
    scripts = [_file("templates/page.js")]
    if drawn:
        scripts += [_vendored("uplot/uPlot.iife.min.js", "uplot/LICENSE"), _file("templates/plots.js")]
    return environment.get_template("report.html.j2").render(
        page=page,
        styles=[markupsafe.Markup(text) for text in styles],  # noqa: S704 (files of this package)
        scripts=[markupsafe.Markup(text) for text in scripts],  # noqa: S704 (likewise)
        style_hashes=[_hash(text) for text in styles],
        script_hashes=[_hash(text) for text in scripts],
        # in a block of text, only "<" could end it; JSON may hold it as an escape
        data=markupsafe.Markup(  # noqa: S704 (escaped here)
            json.dumps(page.data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        ),
    )


def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("int8cal.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _file(name: str) -> str:
    """Read a file of this package that is pasted as it is."""
    return importlib.resources.files("int8cal.report").joinpath(name).read_text(encoding="utf-8")


def _vendored(script: str, licence: str) -> str:
    """Read another project's script, with its licence in front, as the licence asks of copies."""
    return f"/*!\n{_file(f'vendor/{licence}').strip()}\n*/\n{_file(f'vendor/{script}')}"


def _hash(text: str) -> str:
    """Return what a content security policy calls a script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
