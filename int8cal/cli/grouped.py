"""Commands with many options: --help lists those that people need first, --help-all every one, both in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from int8cal.setting import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS: tuple[Group, ...] = get_args(Group)
_COLUMN = 24  # the widest flag beside which its text begins


class GroupedOption(click.Option):
    """An option that knows its place in the help of a `GroupedCommand`.

    Args:
        group: The heading it stands under.
        first: Whether --help lists it, and not --help-all alone.
    """

    def __init__(self, *args: Any, group: Group | None, first: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.first = first


class GroupedCommand(click.Command):
    """A command whose options are all `GroupedOption`s."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            GroupedOption(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option.",
                group=GROUPS[-1],
            )
        )

    def by_group(self) -> dict[Group, list[GroupedOption]]:
        """List the options under their headings."""
        grouped = [each for each in self.params if isinstance(each, GroupedOption)]
        return {group: [each for each in grouped if each.group == group] for group in GROUPS}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are to be shown, and how to see the others."""
        self._write(ctx, formatter, every=False)

    def help_all(self, ctx: click.Context) -> str:
        """Return the help with every option."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self._write(ctx, formatter, every=True)
        return formatter.getvalue().rstrip("\n")

    def _write(self, ctx: click.Context, formatter: click.HelpFormatter, *, every: bool) -> None:
        groups = self.by_group()
        for group, options in groups.items():
            rows = _rows(ctx, [each for each in options if every or each.first])
            if group == GROUPS[-1]:
                rows += _rows(ctx, [each for each in (self.get_help_option(ctx),) if each])
            with formatter.section(group):
                formatter.write_dl(rows, col_max=_COLUMN)
        left = sum(not each.first for options in groups.values() for each in options) - 1  # but for --help-all
        if left and not every:
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")


def _rows(ctx: click.Context, options: Sequence[click.Option]) -> list[tuple[str, str]]:
    return [row for each in options if (row := each.get_help_record(ctx)) is not None]


def _show_all(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing and isinstance(ctx.command, GroupedCommand):
        click.echo(ctx.command.help_all(ctx))
        ctx.exit()
