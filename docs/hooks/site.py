"""What mkdocs asks for while it builds the site.

- Patterns in the nav of mkdocs.yml become the pages they stand for, so that a new page needs no line there.
- `<!-- generated: NAME -->` on a page becomes the text that `generated.py` makes from the code.
- Texts of the repository outside docs/ that pages link to become pages of their own, below repository/ (`outside.py`).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated import GENERATORS
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel
from outside import outside_pages, relink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the patterns' pages into the nav, and the texts outside docs/ into the site."""
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    nav = config.nav or []
    listed = {entry for entry in _entries(nav) if "*" not in entry}
    config.nav = _expanded(nav, sorted(pages.keys() - listed))
    for uri, text in outside_pages(ROOT, pages, listed).items():
        # links lead to all of them, the nav only to some
        level = InclusionLevel.INCLUDED if uri in listed else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Fill in what is generated, and let links that leave docs/ lead to the pages below repository/."""
    return relink(ROOT, page.file.src_uri, _MARK.sub(_generate, markdown))


def _generate(mark: re.Match[str]) -> str:
    if mark[1] not in GENERATORS:
        raise PluginError(f"nothing generates {mark[1]!r}; there is {', '.join(GENERATORS)}")
    return GENERATORS[mark[1]]()


def _entries(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(value, list):
            yield from _entries(value)
        else:
            yield value


def _expanded(nav: list[Any], rest: list[str]) -> list[Any]:
    """Replace patterns by pages; each page is used once, and * does not go into folders."""
    result: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            title, value = next(iter(item.items()))
            result.append({title: _expanded(value, rest) if isinstance(value, list) else value})
        elif "*" in item:
            result += [page for page in rest if fnmatchcase(page, item) and page.count("/") == item.count("/")]
        else:
            result.append(item)
    return result
