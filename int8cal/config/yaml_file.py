"""A YAML file as plain values, with the place in the file of every one of them.

The text is composed into yaml nodes, which know their line and column, and the values are built from the nodes: str
keys, shared aliases, environment variables.
What YAML lets pass but is a mistake here ends in a `ConfigError`: a key given twice, a tag, an undefined `${NAME}`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from int8cal.errors import ConfigError
from int8cal.io.paths import require_no_device
from int8cal.phrases import has_plain_digits

if TYPE_CHECKING:
    from pathlib import Path

Loc = tuple[str | int, ...]

_MERGE_TAG = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_VARIABLE = re.compile(r"(\$?)\$\{([^}]*)\}")
_UNCLOSED = re.compile(r"(?<!\$)\$\{[^}]*$")
# What YAML 1.1 reads as a number of base 8 or base 60: 010 is 8, and 1:30 is 90.
_OTHER_BASE = re.compile(r"[-+]?(?:0[0-7]+|.*(:).*)")
# A whole number beyond this stands for nothing that a setting counts; Python would not even print a long one.
_INTEGER_BITS = 64
_MOST_VALUES = 1_000_000
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Words of PyYAML's own message -> what to do.
_SYNTAX_ADVICE = {
    r"'\t'": "indent with spaces, YAML takes no tabs",
    "another document": 'remove the line "---"; several jobs of one file stand under "jobs:"',
    "constructor for the tag": "remove the tag (!...)",
    "undefined alias": "quote text that begins with *, or define it with & before",
    "mapping values are not allowed": 'align the keys of one mapping, and quote text that holds ": "',
}


@dataclass(frozen=True)
class SettingPlace:
    """Where a setting came from: `text` starts a message; line and column count from 1, 0 when not from a file."""

    text: str
    key: str
    line: int = 0
    column: int = 0

    def error(self, what: str, do: str, **fields: object) -> ConfigError:
        """Make the error of a setting that stands there."""
        return ConfigError(what, do=do, where=self.text, line=self.line, column=self.column, **fields)


@dataclass(frozen=True)
class YamlFile:
    """One YAML file: its values (str keys only) and the nodes that know where they are."""

    path: Path
    root: yaml.MappingNode
    values: dict[str, object]

    def place(self, loc: Loc, *, at_key: bool = False) -> SettingPlace:
        """Find the line and column of a value.

        Args:
            loc: Keys and list positions from the top of the file; steps that the file does not have are left out.
            at_key: Point at the last key rather than at its value.

        Returns:
            The place, whose text reads "file:line:column: key.path".
        """
        found = self._found(loc)
        mark = (found[-1][0 if at_key else 1] if found else self.root).start_mark
        key = key_path(loc)
        text = f"{self.path}:{mark.line + 1}:{mark.column + 1}"
        return SettingPlace(f"{text}: {key}" if key else text, key, mark.line + 1, mark.column + 1)

    def has(self, loc: Loc) -> bool:
        """Tell whether the file itself holds a value at `loc`."""
        return len(self._found(loc)) == len(loc)

    def _found(self, loc: Loc) -> list[tuple[yaml.Node, yaml.Node]]:
        """Find the key and value nodes of each step, as far as the file has them."""
        found: list[tuple[yaml.Node, yaml.Node]] = []
        for step in loc:
            child = _child(found[-1][1] if found else self.root, step)
            if child is None:
                break
            found.append(child)
        return found


def key_path(loc: Loc) -> str:
    """Write a location as users write key paths: jobs[0].calibration.method."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_yaml(path: Path) -> YamlFile:
    """Read one YAML file.

    Args:
        path: A YAML file with one document, a mapping, in UTF-8 or UTF-16.

    Returns:
        The document, environment variables replaced.

    Raises:
        ConfigError: The file cannot be read, is no YAML, holds a key twice, or names an undefined variable; carries
            path, line and column.
    """

    def refused(what: str, do: str) -> ConfigError:
        return ConfigError(what, do=do, where=str(path), path=path)

    require_no_device(path, ConfigError, "name an existing YAML file", may_be_pipe=True)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}", "name an existing YAML file") from error
    try:
        loader = _Loader(data)
        try:
            root = _root(path, loader)
            if root is None:
                raise refused("the file is empty", 'start with "model: FILE" and "data: PATH"')
            values = _Builder(path, loader).build(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(path, error) from error
    except yaml.YAMLError as error:
        raise refused(f"is not a YAML text file: {error}", "save it as UTF-8") from error
    except RecursionError as error:
        raise refused("is nested too deeply", "flatten it") from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise ConfigError(
            "expected a mapping of keys such as model and data",
            do='write "key: value" lines',
            where=f"{path}:{root.start_mark.line + 1}:{root.start_mark.column + 1}",
            path=path,
        )
    return YamlFile(path, root, values)


def _root(path: Path, loader: _Loader) -> yaml.Node | None:
    try:
        return loader.get_single_node()
    except ValueError as error:  # of a version with more digits than Python makes a number of
        line, column = loader.line + 1, loader.column + 1
        what = "is not valid YAML: a number in a line that begins with % is too long"
        do = "write %YAML 1.1, or leave the line out"
        raise ConfigError(what, do=do, where=f"{path}:{line}:{column}", path=path, line=line, column=column) from error


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
        if key.tag == _MERGE_TAG:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif key.value == step:
            return key, value
    found = (_child(other, step) for other in merged)
    return next((pair for pair in found if pair is not None), None)


class _Loader(yaml.SafeLoader):
    """SafeLoader that also reads 1e-5 as a number, as YAML 1.2 does (PyYAML wants 1.0e-5)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class _Builder:
    """Builds plain values from nodes, each node once, so that aliases stay shared and cannot recurse."""

    def __init__(self, path: Path, loader: _Loader) -> None:
        self._path = path
        self._loader = loader
        self._built: dict[int, object] = {}
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def build(self, node: yaml.Node) -> object:
        """Build the value of a node.

        Raises:
            ConfigError: A key given twice, a tag, an undefined environment variable, an alias into itself; carries
                path, line and column.
            yaml.MarkedYAMLError: A scalar that its explicit tag does not allow.
        """
        if id(node) in self._open:
            raise self._error(node, "an alias (*) points to a value that contains it", "write the value out")
        if id(node) not in self._built:
            self._open.add(id(node))
            self._built[id(node)] = self._value(node)
            self._sizes[id(node)] = self._size(node)
            self._open.remove(id(node))
        return self._built[id(node)]

    def _size(self, node: yaml.Node) -> int:
        """Count the values in a value, those behind an alias each time; the inner ones are counted before.

        Raises:
            ConfigError: They are too many: each level of aliases to aliases can multiply them.
        """
        inner = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
        nodes = () if isinstance(node, yaml.ScalarNode) else inner
        size = 1 + sum(self._sizes.get(id(each), 1) for each in nodes)
        if size > _MOST_VALUES:
            raise self._error(node, f"its aliases (*) stand for more than {_MOST_VALUES:,} values", "write fewer")
        return size

    def _value(self, node: yaml.Node) -> object:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, f"the tag {node.tag} has no meaning here", "remove it")
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item) for item in node.value]
        return self._mapping(node)

    def _mapping(self, node: yaml.Node) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        first: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be plain text", "quote it, or remove the brackets")
            if key.value in first:
                line = first[key.value].start_mark.line + 1
                raise self._error(key, f'key "{key.value}" is given twice, first on line {line}', "keep one of them")
            first[key.value] = key
            if key.tag == _MERGE_TAG:
                others = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for other in others:
                    built = self.build(other)
                    if not isinstance(built, dict):
                        raise self._error(other, "<< takes a mapping", "point it to one")
                    merged = built | merged
                continue
            own[key.value] = self.build(value)
        return merged | own

    def _scalar(self, node: yaml.ScalarNode) -> object:
        value = self._constructed(node)
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise self._too_large(node)
        return value

    def _too_large(self, node: yaml.Node) -> ConfigError:
        return self._error(node, "the whole number is too large", "give one of at most 18 digits")

    def _plain(self, node: yaml.ScalarNode) -> object:
        """Construct a value; a number is written as options and gates take it, not as 1_0, 010 or 1:30 of YAML 1.1."""
        value = self._loader.construct_object(node)
        if isinstance(value, int | float) and not has_plain_digits(node.value):
            raise self._error(node, f'the number "{node.value}" has underscores', "write it without, or quote text")
        if isinstance(value, int | float) and (other := _OTHER_BASE.fullmatch(node.value)):
            base = "base 60" if other[1] else "base 8"
            what = f'YAML reads "{node.value}" in {base}, as {value}'
            raise self._error(node, what, "write the number in base 10, or quote text")
        return value

    def _constructed(self, node: yaml.ScalarNode) -> object:
        try:
            if "${" not in node.value:
                return self._plain(node)
            if _UNCLOSED.search(node.value):
                raise self._error(node, 'a "${" without its "}"', "write ${NAME}, or $${ for a plain ${")
            text = _VARIABLE.sub(lambda match: self._variable(node, match), node.value)
            if node.style is not None or not node.tag.endswith(":str"):
                return text
            # A plain ${SAMPLES} may stand for a number, as it would if its text stood in the file.
            tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            return self._plain(yaml.ScalarNode(tag, text, node.start_mark, node.end_mark))
        except ValueError as error:
            if "integer string conversion" in str(error):  # Python refuses thousands of digits in its own words
                raise self._too_large(node) from error
            raise self._error(node, f"the value cannot be read: {error}", "quote it if it is text") from error
        except (KeyError, AttributeError, TypeError, OverflowError, IndexError) as error:
            # what PyYAML makes of text that its tag (!!bool, !!timestamp) does not allow
            kind = node.tag.rpartition(":")[2]
            raise self._error(node, f"the value is no {kind}", "remove the tag (!!), or correct the value") from error

    def _variable(self, node: yaml.Node, match: re.Match[str]) -> str:
        escape, name = match.groups()
        if escape:
            return match.group()[1:]
        if not _VARIABLE_NAME.fullmatch(name):
            raise self._error(
                node, f'"${{{name}}}" names no environment variable', "write ${NAME}, or $${ for a plain ${"
            )
        value = os.environ.get(name)
        if value is None:
            raise self._error(node, f"environment variable {name} is not defined", f"export {name}=VALUE first")
        return value

    def _error(self, node: yaml.Node, what: str, do: str) -> ConfigError:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        return ConfigError(
            what, do=do, where=f"{self._path}:{line}:{column}", path=self._path, line=line, column=column
        )
