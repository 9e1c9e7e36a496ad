"""python -m benchmarks: what subcommands there are, and how errors become one line."""

from __future__ import annotations

import importlib
import sys

import click

from benchmarks.errors import BenchmarkError

COMMANDS = {
    "whole": "Whole commands beside other tools' whole scripts: seconds, CPU time, peak memory.",
    "calibration": "Calibration against plain FP32 inference: seconds as ratios, peak memory.",
    "inference": "Latency of int8 models against FP32.",
    "forms": "Small graphs in every form that was weighed for a layer: CPU time, SQNR, file size.",
    "thresholds": "Time per tensor of every threshold method.",
    "scaling": "Calibration over numbers of samples and of tensors: seconds, peak memory, plots.",
    "accuracy": "Accuracy after 5, 10 and 50 calibration batches, by method and recipe.",
    "endurance": "A million samples, thousands of files, gigabytes of weights, thousands of nodes: time and memory.",
    "kernels": "Nanoseconds per element of the statistics kernels.",
}


class _Commands(click.Group):
    """Imports a subcommand only to call it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Name the subcommands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import one subcommand."""
        if cmd_name not in COMMANDS:
            return None
        found = importlib.import_module(f"benchmarks.commands.{cmd_name}").command
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the subcommands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Time int8cal beside other tools, interleaved in one run, and print markdown tables.

    Tools that are not installed are skipped with a line. Models have real topologies and seeded weights; the zoo's
    models join with --models zoo. See benchmarks/README.md for how to read the tables.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; errors of the user's are one line on stderr and status 2."""
    try:
        cli.main(arguments, prog_name="python -m benchmarks", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        click.echo(f"benchmarks: usage: {' '.join(error.format_message().split())}", err=True)
        return 2
    except (BenchmarkError, OSError) as error:
        click.echo(f"benchmarks: {' '.join(str(error).split())}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("benchmarks: interrupted", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
