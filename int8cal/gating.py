"""The end of a run by its report: what could not be evaluated, and gates that did not hold, are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.data.checks import strict_error
from int8cal.errors import GateError, Int8calError
from int8cal.evaluation.figures import faults_of
from int8cal.evaluation.gates import figure_named
from int8cal.report.advice import advice_on_all
from int8cal.report.document import document_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.evaluation.result import Report
    from int8cal.evaluation.result_parts import Gate


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
        lambda _: f"the results are kept; {advice_on_all(document_of(report))}",
    )


def require_sound(report: Report) -> None:
    """Fail when there are findings about the data and they are errors; everything has been written by then.

    Raises:
        DataError: Names the first, and the checks of all.
    """
    evaluation = report.settings.get("evaluation")
    if report.findings and isinstance(evaluation, dict) and evaluation.get("strict"):
        raise strict_error(report.findings, written=True)


def failure_of(report: Report) -> Int8calError | None:
    """Return what `require_sound` or `require_gates` raises; None where all is well."""
    try:
        require_sound(report)
        require_gates(report)
    except Int8calError as error:
        return error
    return None


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
        values = ", ".join(f"{gate.gate} ({shown(index)})" for index, gate in enumerate(gates) if not gate.passed)
        raise GateError(
            f"{len(failed)} of {sum(gate.is_told for gate in gates)} failed: {values}",
            do=advice(failed),
            gates=tuple(gate.gate for gate in failed),
        )


def _value(index: int, report: Report) -> str:
    gate = report.gates[index]
    if gate.value is not None:
        interval = "" if gate.ci95 is None else f", 95 % interval {gate.ci95[0]:g} to {gate.ci95[1]:g}"
        lines = faults_of(report.evaluation, figure_named(gate.gate))
        return (
            f"is {gate.value:g}{interval}"
            + "".join(f": {line}" for line in lines[:1])
            + (f"; {gate.why}" if gate.why else "")
        )
    document = document_of(report)
    return f"not computed: {document.why(f'gates.{index}.value')}"
