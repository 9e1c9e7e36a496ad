"""A YAML file as plain values, with the place in the file of every one of them.

The text is composed into yaml nodes, which know their line and column, and the values are built from the nodes.
What YAML lets pass but is a mistake here ends in a `ConfigError`: a key given twice, a tag, an undefined `${NAME}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from int8cal.config.nodes import MERGE_TAG, Builder, Loader
from int8cal.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Loc = tuple[str | int, ...]

# Words of PyYAML's own message -> what to do.
_SYNTAX_ADVICE = {
    r"'\t'": "indent with spaces, YAML takes no tabs",
    "another document": 'remove the line "---"; several jobs of one file stand under "jobs:"',
    "constructor for the tag": "remove the tag (!...)",
    "undefined alias": "quote text that begins with *, or define it with & before",
    "mapping values are not allowed": 'align the keys of one mapping, and quote text that holds ": "',
}


@dataclass(frozen=True)
class ErrorSite:
    """Where a setting came from: `text` starts a message; line and column count from 1, 0 when not from a file."""

    text: str
    key: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Document:
    """One YAML file: its values (str keys only) and the nodes that know where they are."""

    path: Path
    root: yaml.MappingNode
    values: dict[str, object]

    def place(self, loc: Loc, *, at_key: bool = False) -> ErrorSite:
        """Find the line and column of a value.

        Args:
            loc: Keys and list positions from the top of the file; steps that the file does not have are left out.
            at_key: Point at the last key rather than at its value.

        Returns:
            The place, whose text reads "file:line:column: key.path".
        """
        node: yaml.Node = self.root
        mark = node.start_mark
        for step in loc:
            found = _child(node, step)
            if found is None:
                break
            key_node, node = found
            mark = (key_node if at_key else node).start_mark
        key = key_path(loc)
        text = f"{self.path}:{mark.line + 1}:{mark.column + 1}"
        return ErrorSite(f"{text}: {key}" if key else text, key, mark.line + 1, mark.column + 1)

    def has(self, loc: Loc) -> bool:
        """Tell whether the file itself holds a value at `loc`."""
        node: yaml.Node = self.root
        for step in loc:
            found = _child(node, step)
            if found is None:
                return False
            node = found[1]
        return True


def key_path(loc: Loc) -> str:
    """Write a location as users write key paths: jobs[0].calibration.method."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Args:
        path: A YAML file with one document, a mapping, in UTF-8 or UTF-16.

    Returns:
        The document, environment variables replaced.

    Raises:
        ConfigError: The file cannot be read, is no YAML, holds a key twice, or names an undefined variable; carries
            path, line and column.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}", do="name an existing YAML file", where=str(path), path=path
        ) from error
    try:
        loader = Loader(data)
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError(
                    "the file is empty", do='start with "model: FILE" and "data: PATH"', where=str(path), path=path
                )
            values = Builder(path, loader).build(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(path, error) from error
    except yaml.YAMLError as error:
        raise ConfigError(
            f"is not a YAML text file: {error}", do="save it as UTF-8", where=str(path), path=path
        ) from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", do="flatten it", where=str(path), path=path) from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise ConfigError(
            "expected a mapping of keys such as model and data",
            do='write "key: value" lines',
            where=f"{path}:{root.start_mark.line + 1}:{root.start_mark.column + 1}",
            path=path,
        )
    return Document(path, root, values)


def _syntax_error(path: Path, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    problem = error.problem or error.context or "malformed text"
    do = next(
        (do for words, do in _SYNTAX_ADVICE.items() if words in problem), "check quotes, brackets and indentation there"
    )
    return ConfigError(
        f"is not valid YAML: {problem}",
        do=do,
        where=f"{path}:{line}:{column}" if mark else str(path),
        path=path,
        line=line,
        column=column,
    )


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Key node and value node of one step down; merged mappings (<<) are searched last."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == MERGE_TAG:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif key.value == step:
            return key, value
    found = (_child(other, step) for other in merged)
    return next((pair for pair in found if pair is not None), None)
