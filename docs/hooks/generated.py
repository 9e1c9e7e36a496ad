"""Parts of the reference that are made from the code, so that they cannot differ from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from settings import settings_tables

from int8cal import errors
from int8cal.cli.grouped import GroupedCommand
from int8cal.cli.main import COMMANDS, cli
from int8cal.cli.options import Setting
from int8cal.evaluation.figures import DECISIONS, FIGURES
from int8cal.preprocess import SETS
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_OTHER_CODES = {0: "done", 1: "a bug in int8cal; the traceback is kept in a log file", 130: "interrupted"}


def cell(text: str) -> str:
    """Write text so that it stays in one cell of a table and means nothing to Markdown, but for `code`."""
    for mark in "\\*_[]":
        text = text.replace(mark, f"\\{mark}")
    for mark, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}.items():
        text = text.replace(mark, entity)
    return " ".join(text.split())


def code(text: str) -> str:
    """Write text without a bar as code inside a table."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def commands() -> str:
    """Every command with its arguments and options."""
    top = click.Context(cli, info_name="int8cal")
    parts = [table(["command", "does"], [[f"[`{name}`](#{name})", cell(what)] for name, what in COMMANDS.items()])]
    for name in COMMANDS:
        command = cli.get_command(top, name)
        if command is None:
            raise LookupError(f"no command {name!r}")
        parts.append(_command(name, command, top))
    return "\n".join(parts)


def _command(name: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(["int8cal", name, *command.collect_usage_pieces(context)])
    if isinstance(command, click.Group):
        inner = [(each, command.get_command(context, each)) for each in command.list_commands(context)]
        children = [_command(f"{name} {each}", found, parent) for each, found in inner if found is not None]
    else:
        children = []
    words = "\n\n".join(cell(part) for part in (command.help or "").split("\n\n"))
    return "\n".join([f"## {name}", "", f"```text\n{usage}\n```", "", words, "", _options(command), *children])


def _options(command: click.Command) -> str:
    """Show the options of a command, in the groups of its help."""
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    groups: dict[str, Sequence[click.Option]] = {"": shown}
    if isinstance(command, GroupedCommand):
        groups = {f"**{group}**\n\n": options for group, options in command.by_group().items()}
    head = ["option", "what it does"]
    return "\n".join(title + table(head, map(_option, options)) for title, options in groups.items() if options)


def _option(option: click.Option) -> list[str]:
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or ('NAME' if choices else option.type.name.upper())}"
    words = cell(option.help or "")
    if choices:
        words += f" One of {', '.join(code(str(choice)) for choice in choices)}."
    if option.required:
        words += " Required."
    if isinstance(option, Setting):
        words += f" In the YAML: {code(option.key)}{' (false)' if option.negated else ''}."
    return [code(names + value), words]


def gates() -> str:
    """Every figure that a gate of an evaluation may name."""
    rows = [
        [code(name), cell(figure.unit), cell(figure.range_text), cell(figure.about)] for name, figure in FIGURES.items()
    ]
    return table(["name", "unit", "can be", "what it is"], rows)


def decisions() -> str:
    """Every figure of decisions on an output, behind the output's name."""
    rows = [
        [code(f"outputs.NAME.{name}"), cell(label), cell(unit), "higher" if better > 0 else "lower"]
        for name, (unit, label, better) in DECISIONS.items()
    ]
    return table(["name", "what it is", "unit", "better"], rows)


def exit_codes() -> str:
    """Every exit code, with the errors that lead to it."""
    by_code: dict[int, list[type[errors.Int8calError]]] = {}
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.Int8calError) and each is not errors.Int8calError:
            by_code.setdefault(each.exit_code, []).append(each)
    rows = [[str(number), cell(what), "", ""] for number, what in _OTHER_CODES.items()]
    for number, classes in by_code.items():
        for each in classes:
            first = (each.__doc__ or "").splitlines()[0]
            rows.append([str(number), cell(first), code(f"{each.station}:"), code(each.__name__)])
    rows.sort(key=lambda row: int(row[0]))
    return table(["code", "meaning", "message starts with", "class"], rows)


def preprocess_sets() -> str:
    """Every named set of preprocessing, what it sets, whose it is, and where that is defined."""
    rows = []
    for name, each in SETS.items():
        keys = ", ".join(f"{key}: {_rounded(value)}" for key, value in each.keys.items() if value not in (None, []))
        rows.append([code(name), code(keys), cell(each.what), code(each.source)])
    return table(["name", "what it sets", "for", "as in"], rows)


def _rounded(value: object) -> str:
    for top in (1, 2):
        if value == top / 255:
            return f"{top}/255"
    return str(value)


def targets() -> str:
    """Every target, and the weights that it takes by itself."""
    rows = [[code(each.name), cell(each.what), code(each.weights)] for each in TARGETS.values()]
    return table(["target", "what it stands for", "weights"], rows)


GENERATORS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "decisions": decisions,
    "exit-codes": exit_codes,
    "gates": gates,
    "preprocess-sets": preprocess_sets,
    "settings": lambda: settings_tables(table, cell, code),
    "targets": targets,
}
