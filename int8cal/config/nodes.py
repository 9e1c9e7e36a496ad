"""From yaml nodes to plain values: str keys, shared aliases, environment variables, and no mistake let through."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import yaml

from int8cal.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MERGE_TAG = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_VARIABLE = re.compile(r"(\$?)\$\{([^}]*)\}")
_UNCLOSED = re.compile(r"(?<!\$)\$\{[^}]*$")
# A whole number beyond this stands for nothing that a setting counts; Python would not even print a long one.
_INTEGER_BITS = 64
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Loader(yaml.SafeLoader):
    """SafeLoader that also reads 1e-5 as a number, as YAML 1.2 does (PyYAML wants 1.0e-5)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class Builder:
    """Builds plain values from nodes, each node once, so that aliases stay shared and cannot recurse."""

    def __init__(self, path: Path, loader: Loader) -> None:
        self._path = path
        self._loader = loader
        self._built: dict[int, object] = {}
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
            self._open.remove(id(node))
        return self._built[id(node)]

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
            if key.tag == MERGE_TAG:
                others = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for other in others:
                    built = self.build(other)
                    if not isinstance(built, dict):
                        raise self._error(other, "<< takes a mapping", "point it to one")
                    merged = built | merged
                continue
            if key.value in first:
                line = first[key.value].start_mark.line + 1
                raise self._error(key, f'key "{key.value}" is given twice, first on line {line}', "keep one of them")
            first[key.value] = key
            own[key.value] = self.build(value)
        return merged | own

    def _scalar(self, node: yaml.ScalarNode) -> object:
        value = self._constructed(node)
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise self._too_large(node)
        return value

    def _too_large(self, node: yaml.Node) -> ConfigError:
        return self._error(node, "the whole number is too large", "give one of at most 18 digits")

    def _constructed(self, node: yaml.ScalarNode) -> object:
        try:
            if "${" not in node.value:
                return self._loader.construct_object(node)
            if _UNCLOSED.search(node.value):
                raise self._error(node, 'a "${" without its "}"', "write ${NAME}, or $${ for a plain ${")
            text = _VARIABLE.sub(lambda match: self._variable(node, match), node.value)
            if node.style is not None or not node.tag.endswith(":str"):
                return text
            # A plain ${SAMPLES} may stand for a number, as it would if its text stood in the file.
            tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            return self._loader.construct_object(yaml.ScalarNode(tag, text, node.start_mark, node.end_mark))
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
