"""The end of a run by its report: what could not be evaluated, and gates that did not hold, are errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.errors import GateError
from int8cal.evaluation.gates import figure_named
from int8cal.report.document import document_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from int8cal.evaluation.result import Gate, Report


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


def gate_failure(report: Report) -> GateError | None:
    """Return what `require_gates` raises; None where every gate held."""
    try:
        require_gates(report)
    except GateError as error:
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
            f"{len(failed)} of {len(gates)} failed: {values}",
            do=advice(failed),
            gates=tuple(gate.gate for gate in failed),
        )


def _advice(failed: list[Gate], report: Report) -> str:
    kept = next((point for point in report.mixed.curve if point.kept), None) if report.mixed is not None else None
    if report.mixed is not None and kept is not None and not all(gate.passed for gate in kept.gates.values()):
        if report.mixed.needed_percent is None:
            return f"{report.mixed.outcome}; raise --budget, or relax the gate"
        budget = math.ceil(report.mixed.needed_percent)
        return f"{report.mixed.outcome}; give --budget {budget}, or relax the gate"
    own = report.evaluation.metric.name if report.evaluation.metric else ""
    if all(figure_named(gate.gate, own).startswith("saturation.") for gate in failed):
        return "quantize with --target portable and no --weights, or repair the model: int8cal audit --fix"
    return "try another --method, --exclude the worst layers, or relax the gate"


def _value(index: int, report: Report) -> str:
    gate = report.gates[index]
    if gate.value is not None:
        interval = "" if gate.ci95 is None else f", 95 % interval {gate.ci95[0]:g} to {gate.ci95[1]:g}"
        return f"is {gate.value:g}{interval}"
    document = document_of(report)
    return f"not computed: {document.why(f'gates.{index}.value')}"
