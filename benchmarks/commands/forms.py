"""python -m benchmarks forms: small graphs in the forms that int8cal writes, and in others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from benchmarks.commands import options
from benchmarks.errors import BenchmarkError
from benchmarks.forms import TABLES, Table
from benchmarks.latency import in_turns, open_session
from benchmarks.table import Spread, optional
from benchmarks.table import markdown as table
from benchmarks.tools.int8cal_forms import sqnr_db

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Found:
    """What was measured of one form of a graph.

    Attributes:
        microseconds: CPU time of a run, the median of each turn.
        ratios: The first form's time over this one's, round by round.
        sqnr_db: Of the output against the first form's; None for the first form itself, and where both are codes.
        bytes: Of the model file.
    """

    microseconds: list[float]
    ratios: list[float]
    sqnr_db: float | None
    bytes: int


@click.command()
@click.option("--tables", default=",".join(TABLES), show_default=True, help="Comma-separated tables.")
@click.option("--tiny", is_flag=True, help="One tiny graph in each table, to try it out.")
@options.rounds(41)
@click.option("--repeat", type=click.IntRange(1), default=10, show_default=True, help="Runs in a row in each turn.")
@options.markdown
@options.as_json
def command(
    *, tables: str, tiny: bool, rounds: int, repeat: int, markdown: Path | None, json_path: Path | None
) -> None:
    """Run small seeded graphs in several forms, one thread, in turns: CPU time, SQNR, and size of the file.

    A ratio is the first form's time over that of another within one round, median and middle half over rounds.
    """
    sections, measurements = [], {}
    for name in (part.strip() for part in tables.split(",") if part.strip()):
        if name not in TABLES:
            raise BenchmarkError(f'no table "{name}"; there are {", ".join(TABLES)}')
        each = TABLES[name]
        shapes = {", ".join(map(str, each.tiny)): each.tiny} if tiny else each.shapes
        columns = {}
        for title, shape in shapes.items():
            options.progress(f"{name}: {title}")
            columns[title] = measure(each, shape, rounds, repeat)
        sections.append(f"### {name}\n\n{lay_out(each, columns)}")
        measurements[name] = {
            title: {form: vars(found) for form, found in column.items()} for title, column in columns.items()
        }
    options.deliver("\n\n".join(sections), measurements, 1, markdown, json_path)


def measure(each: Table, shape: tuple[int, ...], rounds: int, repeat: int) -> dict[str, Found]:
    """Measure all forms of one shape."""
    feeds, forms = each.forms(*shape)
    models = {form: model.SerializeToString() for form, model in forms}
    sessions = {form: open_session(model, 1) for form, model in models.items()}
    outputs = {form: session.run(None, feeds[0])[0] for form, session in sessions.items()}
    timed = in_turns(list(sessions.items()), feeds, rounds, repeat, clock=time.process_time)
    first = next(iter(models))
    return {
        form: Found(
            [1e3 * value for value in timed[form]],
            [reference / value for reference, value in zip(timed[first], timed[form], strict=True)],
            sqnr_db(outputs[first], outputs[form]) if form != first and "SQNR" in each.figures else None,
            len(model),
        )
        for form, model in models.items()
    }


def lay_out(each: Table, columns: dict[str, dict[str, Found]]) -> str:
    """Write forms as rows, and the figures of each shape as columns."""
    first = next(iter(next(iter(columns.values()))))

    def cell(form: str, found: Found, figure: str) -> str:
        if figure == "SQNR":
            return "" if form == first else f"{optional(found.sqnr_db, 1)} dB"
        if figure == "file":
            return f"{found.bytes / 1e6:.2f} MB"
        taken = f"{Spread.of(found.microseconds).median:.0f} µs"
        ratio = Spread.middle_half(found.ratios).text()
        return taken if figure == "time" or form == first else f"{taken}, {ratio}"

    titles = [f"{shape}: {figure}" if len(each.figures) > 1 else shape for shape in columns for figure in each.figures]
    rows = [
        (form, *(cell(form, column[form], figure) for column in columns.values() for figure in each.figures))
        for form in next(iter(columns.values()))
    ]
    return table((each.title, *titles), rows)
