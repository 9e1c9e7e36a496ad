"""report.html: one file with everything in it, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
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
        HTML with inline style, script and SVG. Its content security policy lets no request out and runs only the
        page's own script, known by its hash, so that nothing a model carries in its names can act.
    """
    import markupsafe

    environment = _environment()
    style, script = _source(environment, "style.css"), _source(environment, "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("report.html.j2").render(
        page=page_of(report),
        style=markupsafe.Markup(style),  # noqa: S704 (a file of this package)
        script=markupsafe.Markup(script),  # noqa: S704 (likewise)
        script_hash=digest,
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


def _source(environment: jinja2.Environment, name: str) -> str:
    """Read a file that is pasted as it is."""
    loader = environment.loader
    return "" if loader is None else loader.get_source(environment, name)[0]
