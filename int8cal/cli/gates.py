"""`int8cal gates`: what a gate may be about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from int8cal.cli.console import tell_lines

if TYPE_CHECKING:
    from int8cal.evaluation.figures import Figure


@click.command("gates")
@click.pass_context
def command(context: click.Context) -> None:
    """List the names that --gate takes, with unit, range and meaning.

    A gate is NAME<=VALUE, NAME>=VALUE, NAME<VALUE or NAME>VALUE, with the value in the unit that stands here. A
    fraction may be written in percent: agreement>=99% is agreement>=0.99.
    """
    from int8cal.evaluation.figures import FIGURES, OUTPUT_FIGURES, figure_of

    formatter = context.make_formatter()
    with formatter.section("Of the model"):
        formatter.write_dl([_row(name, figure) for name, figure in FIGURES.items() if "_ci95." not in name])
    of_output = [f"outputs.NAME.{each}" for each in OUTPUT_FIGURES]
    with formatter.section("Of one output, by its name in the FP32 model"):
        formatter.write_dl([_row(name, figure_of(name)) for name in of_output], col_max=36)
    formatter.write_paragraph()
    formatter.write_text(
        "* has a 95 % interval, whose ends are names too: top1.drop_ci95.hi<=1.0 holds when the data shows that the "
        "drop is at most 1 point."
    )
    tell_lines(formatter.getvalue().splitlines())


def _row(name: str, figure: Figure) -> tuple[str, str]:
    limits = ", ".join(each for each in (figure.unit, figure.range_text) if each)
    return f"{name} *" if figure.interval else name, f"{figure.about} ({limits})"
