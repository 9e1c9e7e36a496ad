"""`int8cal compare`: two reports side by side, and an exit code of 7 for a regression."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from int8cal.cli import options
from int8cal.cli.console import screen, shown_path, tell, tell_fitted, tell_written
from int8cal.cli.junit import JUnitFile, junit_option

if TYPE_CHECKING:
    from int8cal.report.comparison_views import JudgedComparison


@click.command("compare")
@click.argument("old", type=options.PATH, metavar="OLD.json")
@click.argument("new", type=options.PATH, metavar="NEW.json")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'FIGURE.CHANGE<=VALUE'",
    help="Exit with 7 unless this holds, such as 'sqnr_db.drop<=0.5'. Repeatable. FIGURE is one that gates know "
    "(int8cal gates), CHANGE is drop (old - new), rise (new - old) or ratio (new / old): 'top1.drop.rise<=0.2', "
    "'size.int8_bytes.ratio<=1.05'. Also layers.largest_drop_db (dB) and layers.to_float (nodes).",
)
@click.option(
    "--fail-on-regression",
    is_flag=True,
    help="Exit with 7 when something is worse and noise does not explain it: SQNR, agreement or top-k beyond the 95 % "
    "interval of the difference, your own metric likewise or without an interval by 1 %, speedup beyond that and 10 % "
    "(on one machine), size by more than 5 %, more channels that can saturate, more nodes in float, a gate that passed "
    "before or was loosened, a figure that is missing now.",
)
@click.option("-o", "--output", type=options.PATH, metavar="FILE.md", help="Write the comparison as Markdown.")
@click.option("--overwrite", is_flag=True, help="Replace the files if they exist.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON on stdout, and nothing else there.")
@junit_option("compare")
def command(
    junit: JUnitFile,
    *,
    old: str,
    new: str,
    limits: tuple[str, ...],
    fail_on_regression: bool,
    output: str | None,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare two reports: OLD.json, such as main's, and NEW.json.

    Both are a report.json, or a directory that holds one. Shown are figures and which way they went, layers by what
    they lost, nodes that went from integer to float, gates, and settings that changed. Different models or data are
    compared all the same, with a warning.

    A gate of OLD that NEW does not have ends with exit code 7.
    """
    from int8cal.io.atomic import atomic_write
    from int8cal.io.paths import require_apart, require_free
    from int8cal.report.comparison import compare_documents, metric_of_both
    from int8cal.report.comparison_views import (
        JudgedComparison,
        compare_json,
        compare_lines,
        compare_markdown,
        compare_suite,
    )
    from int8cal.report.files import load_report
    from int8cal.report.regressions import gates_gone, judge_limits, judge_regressions, parse_limit

    paths = _report(old), _report(new)
    junit.expect(str(paths[1]), limits, paths, overwrite=overwrite)
    if output is not None:
        require_free(Path(output), overwrite=overwrite)
        require_apart((Path(output),), paths)
    found = compare_documents(load_report(paths[0]), load_report(paths[1]))
    metric = metric_of_both(found.old, found.new) or ""
    parsed = [parse_limit(text, metric) for text in limits]
    judged = JudgedComparison(
        found,
        (shown_path(paths[0]), shown_path(paths[1])),
        judge_limits(parsed, found),
        judge_regressions(found) if fail_on_regression else (),
        gates_gone(found),
    )
    junit.keep([compare_suite(judged)])
    if output is not None:
        atomic_write(Path(output), compare_markdown(judged))
    if as_json:
        tell(compare_json(judged), nl=False)
    elif not quiet:
        tell_fitted(compare_lines(judged, screen()))
    if output is not None and not quiet:
        tell_written(output, beside_json=as_json)
    _require(judged)


def _report(path: str) -> Path:
    """Find the report that a directory stands for; that of a batch has a summary, which is refused as what it is."""
    from int8cal.batch.summary import NAME
    from int8cal.io.paths import REPORT

    if not Path(path).is_dir():
        return Path(path)
    files = [Path(path) / name for name in (REPORT, NAME)]
    return next((file for file in files if file.exists()), files[0])


def _require(judged: JudgedComparison) -> None:
    from int8cal.gating import require_held
    from int8cal.report.comparison_views import value_text

    def advice(_: object) -> str:
        if judged.gone:
            given = " ".join(f"--gate '{each.gate}'" for each in judged.found.gates if each.gone)
            return f"make the new report with {given}"
        if judged.found.warnings:
            return f"note that {'; '.join(judged.found.warnings)}"
        return "see what changed in the comparison, or relax the limit"

    require_held(judged.verdicts, lambda index: value_text(judged, judged.verdicts[index]), advice)
