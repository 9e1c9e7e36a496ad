"""Texts of the repository outside docs/ as pages of the site.

A page below docs/ may link to ../configs/minimal.yaml: that works where the repository is read. In the site the file is
a page below repository/, and the link leads there. Markdown is rendered, anything else is shown as code.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOME = "repository/"
_FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".toml": "toml"}


def outside_pages(root: Path, pages: Mapping[str, str], listed: set[str]) -> dict[str, str]:
    """Make the pages for everything outside docs/ that is linked to, also by each other.

    Args:
        root: The repository.
        pages: Place in docs/ -> Markdown.
        listed: Places that the nav names; those below repository/ are made even if no page links to them.

    Returns:
        Place in the site -> Markdown.
    """
    made: dict[str, str] = {}
    waiting = [uri for uri in sorted(listed) if uri.startswith(HOME)]
    waiting += [target for uri, text in sorted(pages.items()) for target in _targets(root, uri, text)]
    while waiting:
        uri = waiting.pop()
        if uri not in made and uri.startswith(HOME):
            made[uri] = _text(root, uri)
            waiting += _targets(root, uri, made[uri])
    return made


def relink(root: Path, uri: str, text: str) -> str:
    """Let each link of a page whose target is no page of docs/ lead to where the target is in the site.

    Args:
        root: The repository.
        uri: The page's place in the site.
        text: Its Markdown.
    """

    def replaced(link: re.Match[str]) -> str:
        target = _in_site(root, uri, link[2])
        return link[0] if target is None else link[1] + posixpath.relpath(target, posixpath.dirname(uri)) + link[3]

    parts, end = [], 0
    for fence in _FENCE.finditer(text):  # code stays as it is
        parts += [_LINK.sub(replaced, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replaced, text[end:])])


def _targets(root: Path, uri: str, text: str) -> Iterator[str]:
    for link in _LINK.finditer(_FENCE.sub("", text)):
        target = _in_site(root, uri, link[2])
        if target is not None:
            yield target


def _in_site(root: Path, uri: str, target: str) -> str | None:
    """Say where in the site a link leads, or None if mkdocs finds that out itself."""
    if re.match(r"[a-z]+:", target):
        return None
    here = _in_repository(root, uri)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if (root / path).is_dir():
        path += "/README.md"
    if not (root / path).is_file():
        return None  # strict says so
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return HOME + path if path.endswith(".md") else f"{HOME}{path}.md"


def _in_repository(root: Path, uri: str) -> str:
    if not uri.startswith(HOME):
        return f"docs/{uri}"
    path = uri.removeprefix(HOME)
    return path if (root / path).is_file() else path.removesuffix(".md")


def _text(root: Path, uri: str) -> str:
    path = _in_repository(root, uri)
    text = (root / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n```{_LANGUAGES.get(PurePosixPath(path).suffix, 'text')}\n{text.rstrip()}\n```\n"
