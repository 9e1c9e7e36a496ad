"""What a command prints of a report, and the failure when a gate did not hold."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from int8cal.cli.endings import tell
from int8cal.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from int8cal.evaluation.result import Gate, Report


def show_report(report: Report, directory: Path | None, *, quiet: bool, as_json: bool) -> None:
    """Print a report in the form that was asked for.

    Args:
        report: What was measured.
        directory: Where the files are; None when none were written.
        quiet: Print no summary.
        as_json: Print the text of report.json on stdout, and nothing else there.
    """
    if as_json:
        if directory is not None:
            text = (directory / "report.json").read_text(encoding="utf-8")
        else:
            from int8cal.report.document import report_to_json

            text = report_to_json(report)
        tell(text, nl=not text.endswith("\n"))
    elif not quiet:
        from int8cal.report.terminal import summary_lines

        for line in summary_lines(report):
            tell(line)
    if directory is not None and not quiet:
        tell(f"results are in {shown_path(directory)}", err=as_json)


def shown_path(path: Path | str) -> str:
    """Write a path without its detours ("configs/../results"), unless they lead through a link to somewhere else."""
    short = os.path.normpath(path)
    return short if os.path.realpath(short) == os.path.realpath(path) else str(path)


def require_complete(report: Report) -> None:
    """Fail when a part could not be evaluated; everything else has been written by then.

    Raises:
        Exception: The first error.
    """
    for error in report.evaluation.failures:
        raise error


def require_gates(report: Report) -> None:
    """Fail when an accuracy gate did not hold; everything has been written by then.

    Raises:
        GateError: Names every gate that failed, with the value it was held against.
    """
    require_held(
        report.gates,
        lambda index: _value(index, report),
        lambda failed: f"the results are kept; {_advice(failed, report)}",
    )


def require_held(gates: Sequence[Gate], shown: Callable[[int], str], advice: Callable[[list[Gate]], str]) -> None:
    """Fail when a gate did not hold.

    Args:
        gates: All gates.
        shown: The value of the gate at a position, as text.
        advice: What to do about those that failed.

    Raises:
        GateError: Names every gate that failed, with its value.
    """
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        told = ", ".join(f"{gate.gate} ({shown(index)})" for index, gate in enumerate(gates) if not gate.passed)
        raise GateError(
            f"{len(failed)} of {len(gates)} failed: {told}",
            do=advice(failed),
            gates=tuple(gate.gate for gate in failed),
        )


def _advice(failed: list[Gate], report: Report) -> str:
    from int8cal.evaluation.gates import figure_named

    kept = next((point for point in report.mixed.curve if point.kept), None) if report.mixed is not None else None
    if report.mixed is not None and kept is not None and not all(gate.passed for gate in kept.gates):
        if report.mixed.needed_percent is None:
            return f"{report.mixed.outcome}; raise --budget, or relax the gate"
        budget = math.ceil(report.mixed.needed_percent)
        return f"{report.mixed.outcome}; give --budget {budget}, or relax the gate"
    if all(figure_named(gate.gate).startswith("saturation.") for gate in failed):
        return "quantize with --target portable and no --weights, or repair the model: int8cal audit --fix"
    return "try another --method, --exclude the worst layers, or relax the gate"


def _value(index: int, report: Report) -> str:
    gate = report.gates[index]
    if gate.value is not None:
        interval = "" if gate.ci95 is None else f", 95 % interval {gate.ci95[0]:g} to {gate.ci95[1]:g}"
        return f"is {gate.value:g}{interval}"
    from int8cal.report.document import document_of
    from int8cal.report.reasons import gate_paths, why

    document = document_of(report)
    return f"not computed: {why(document, *gate_paths(index, document.gates[index]))}"
