"""The jobs of a batch as suites of JUnit test cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.report import wording
from int8cal.report.junit import Case, Suite, not_judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from int8cal.batch.task import JobResult


def suite_of_result(result: JobResult, gates: Sequence[str] = ()) -> Suite:
    """Make a suite of what became of a job: whether it ended well, and a case per gate.

    Args:
        result: Of a job that ran, was up to date, failed or was not run.
        gates: What it was to be held to: without results, these are the gates that nobody could judge.
    """
    seconds = result.seconds or 0.0
    if result.status == "not run":
        why = result.why or "not run"
        return Suite(result.name, (Case("run", "skipped", why), *not_judged(gates, why)))
    if result.status == "failed":
        stopped = Case("run", "error", result.error, result.kind, seconds)
        return Suite(result.name, (stopped, *not_judged(gates, "run stopped")))
    job = Case("run", message=result.why, seconds=seconds)
    return Suite(result.name, (job, *(_of_gate(gate) for gate in result.gates)))


def _of_gate(gate: dict[str, Any]) -> Case:
    bounds = gate.get("ci95")
    interval = f", 95 % interval {' to '.join(map(wording.plain, bounds))}" if bounds else ""
    text = f"value {wording.plain(gate['value'])}{interval}"
    return Case(gate["gate"], message=text) if gate["passed"] else Case(gate["gate"], "failure", text, "gate")
