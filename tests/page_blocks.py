"""The fenced blocks of the texts: which of them are examples that must run, and what they show as output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks) *$", re.MULTILINE | re.DOTALL
)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->\s*\Z")
_NEEDS = re.compile(r"<!-- needs: (?P<package>\w+) -->\s*\Z")
AFTER = re.compile(r"^<!-- after: (\S+) -->$", re.MULTILINE)  # a page whose files this one takes
_TITLE = re.compile(r'title="([^"]+)"')
SHELL = {"bash", "sh", "console"}
_CALL = re.compile(r"^(\$ )?([\w=./-]+ )*(int8cal|python -m int8cal) [a-z-]", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command of a block, and the lines that the page shows below it."""

    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page, line: Where it starts.
        language: First word behind the ticks.
        title: File name that the page gives it, or "".
        text: What is between the ticks, without the fence's indentation.
        not_run: Why the page says that it is not to be run, or "".
        needs: The optional package without which it cannot run, or "".
    """

    page: str
    line: int
    language: str
    title: str
    text: str
    not_run: str
    needs: str = ""

    @property
    def kind(self) -> str:
        """Return shell, python, yaml, json, or "" for a picture, a formula or plain output."""
        if self.language in {"python", "yaml", "json"}:
            return self.language
        if self.language in SHELL or (self.language in {"", "text"} and _CALL.search(self.text)):
            return "shell"
        return ""

    def commands(self) -> list[Command]:
        """Split a shell block: with "$ " in front of commands everything else is output, without it all are commands."""
        lines = self.text.splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        found: list[tuple[list[str], list[str]]] = []
        open_ended = False
        for line in lines:
            if open_ended:
                found[-1][0].append(line)
            elif prompted and not line.startswith("$ "):
                found[-1][1].append(line)
                continue
            elif line.strip() and not line.startswith("#"):
                found.append(([line.removeprefix("$ ") if prompted else line], []))
            open_ended = line.endswith("\\")
        return [Command("\n".join(command), tuple(shown)) for command, shown in found]


def blocks_of(text: str, page: str) -> list[Block]:
    """Read every fenced block of a page."""
    blocks = []
    end = 0
    for fence in _FENCE.finditer(text):
        remark, needs = (each.search(text, end, fence.start()) for each in (_NOT_RUN, _NEEDS))
        indent = len(fence["indent"])
        language, _, rest = fence["info"].strip().partition(" ")
        title = _TITLE.search(rest)
        blocks.append(
            Block(
                page,
                text.count("\n", 0, fence.start()) + 1,
                language,
                title[1] if title else "",
                "".join(line[indent:] if line.strip() else line for line in fence["text"].splitlines(keepends=True)),
                remark["reason"] if remark else "",
                needs["package"] if needs else "",
            )
        )
        end = fence.end()
    return blocks


def remarks_of(text: str) -> int:
    """Count the remarks that a block is not run, wherever they stand."""
    return text.count("<!-- not run")


def plain(line: str) -> str:
    """Reduce a line to what is the same on every machine.

    Figures, hashes and a speedup, told as a busy machine lets it be told, become #, runs of spaces one space. That a result
    is no faster than FP32 is said or not said by the same machine.
    """
    without_speed = re.sub(r"^Speedup .+", "Speedup #", line)
    without_speed = re.sub(r"; (slower|no faster) than FP32 \([^)]*\)$", "", without_speed)
    without_speed = re.sub(r" +perhaps (?=\d)", " ", without_speed)  # of a row, where other processes had the cores
    without_hashes = re.sub(r"\b[0-9a-f]{12,}\b", "#", without_speed)
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", without_hashes).split())


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Return the shown lines that were not printed, in this order; a line of dots stands for any lines.

    Where another runtime is clearly faster, a summary says so in a line more, and leaves others out for it.
    """
    left = [plain(line) for line in printed.splitlines()]
    named = re.search(r"^Fastest .*^More +(.+): in the report$", printed, re.MULTILINE | re.DOTALL)
    left_out = named[1].split(", ") if named else []
    lacking = []
    for line in shown:
        if plain(line) in left:
            left = left[left.index(plain(line)) + 1 :]
        elif line.split(" ", 1)[0] in left_out:
            continue
        elif line.strip() not in {"", "...", "…"}:
            lacking.append(line)
    return lacking


def renewed(shown: tuple[str, ...], printed: str) -> tuple[str, ...]:
    """Return the shown lines with the figures that were printed; lines that were not printed stay as they are."""
    left = printed.splitlines()
    result = []
    for line in shown:
        found = [plain(each) for each in left]
        if plain(line) not in found:
            result.append(line)
            continue
        at = found.index(plain(line))
        result.append(left[at].rstrip())
        left = left[at + 1 :]
    return tuple(result)


def renew(block: Block, shown: tuple[str, ...], printed: str) -> None:
    """Write the figures that were printed into the lines that a block shows."""
    path = ROOT / block.page
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(
        start
        for start in range(block.line, len(lines))
        if all(mine.strip() == line.strip() for mine, line in zip(lines[start:], shown, strict=False))
    )
    for place, (old, new) in enumerate(zip(shown, renewed(shown, printed), strict=True), at):
        lines[place] = lines[place].replace(old, new) if old.strip() else lines[place]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
