"""The pieces of GitHub-flavoured Markdown: escaped text, names as code, tables that stay short, folded details."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from int8cal.report import wording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")
# GitHub takes 65,536 characters; the rest is for what a workflow writes around it.
LIMIT = 64_000
_LONGEST = 300  # characters of a reason or a name, before escaping
_ROOM = 6_000  # characters of a table or list
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~$&]|^[-+=](?=[-+=\s]|$)|^\d+(?=[.)](?:\s|$)))")
_IN_CODE = re.compile(r"[\\`*_\[\]<>#|~$&@:!()]")
_PLAIN_CODE = re.compile(r"[^\\`|]*[^\\`| ]|")


def escape(text: str) -> str:
    """Keep any text from being read as Markdown, HTML, a table border or a mention of somebody; cut it where long."""
    shown = wording.printable(text)
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - 1]}…"
    escaped = _SPECIAL.sub(_escaped, shown)
    return escaped.replace("@", "@\N{ZERO WIDTH SPACE}")


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    if found.isdigit():  # "1." would begin a list
        return f"{found[:-1]}&#{ord(found[-1])};"
    return {"&": "&amp;", "<": "&lt;"}.get(found, f"\\{found}")


def code(text: str) -> str:
    r"""Show a name as code, in a table cell or out of one; a long one loses its front.

    A code span cannot hold every name: in a table `\|` would show its backslash or end the cell. Such names are HTML.
    """
    shown = wording.shortened(wording.printable(text), _LONGEST) or " "
    if _PLAIN_CODE.fullmatch(shown) and not shown.startswith(" "):
        return f"`{shown}`"
    return f"<code>{_IN_CODE.sub(lambda match: f'&#{ord(match[0])};', shown)}</code>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Write a table; cells are Markdown already.

    Args:
        heads: Of the columns.
        rows: Of cells.
        right: Columns that are aligned to the right.
    """
    rule = ["---:" if column in set(right) else "---" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *rows])


def long_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Iterable[int] = (),
    *,
    most: int,
    rest: str = "in report.json",
    room: int = _ROOM,
) -> str:
    """Write a table of at most so many rows and characters, and say how many rows are left out.

    Args:
        heads, rows, right: As for `table`.
        most: Rows at most.
        rest: Where the others are.
        room: Characters at most, from about which on rows are left out.
    """
    shown, left = _fitting(rows, most, room, lambda row: sum(len(cell) + 3 for cell in row))
    text = table(heads, shown, right)
    return f"{text}\n\nand {left} more, {rest}." if left else text


def bullets(lines: Sequence[str], *, most: int, rest: str = "in report.json", room: int = _ROOM) -> str:
    """Write a list of lines that are Markdown already, as `long_table` writes a table."""
    shown, left = _fitting(lines, most, room, len)
    more = [f"and {left} more, {rest}."] if left else []
    return "\n".join(f"- {line}" for line in [*shown, *more])


def _fitting(rows: Sequence[T], most: int, room: int, size: Callable[[T], int]) -> tuple[list[T], int]:
    shown: list[T] = []
    for row in rows[:most]:
        room -= size(row)
        if room < 0:
            break
        shown.append(row)
    return shown, len(rows) - len(shown)


def folded(summary: str, body: str) -> str:
    """Fold a part away under its summary, which is text; "" for an empty part."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>" if body else ""


def joined(parts: Iterable[str], limit: int = LIMIT) -> str:
    """Put parts under each other; those that would make the whole too long for a comment are left out, and counted."""
    kept: list[str] = []
    used, left = 100, 0  # for the line about what was left out
    for part in filter(None, parts):
        size = length(part) + 2
        if used + size > limit:
            left += 1
            continue
        used += size
        kept.append(part)
    if left:
        kept.append(f"{wording.count(left, 'part')} left out for length; see report.json.")
    return "\n\n".join(kept) + "\n"


def length(text: str) -> int:
    """Count characters as GitHub's interface does, in UTF-16 units: never fewer than code points."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
