"""Which nodes the user allows to be quantized: --include and --exclude patterns over node names and op types."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from int8cal.errors import TableError, UsageError
from int8cal.job import DEFAULT_TARGET

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from int8cal.graph.layers import LayerForm
    from int8cal.job import QuantizationSettings


EXCLUDED = "excluded by the user"
OF_U8 = frozenset({"u8", "auto"})  # types of activations whose codes are u8


def patterns_of(weights_only: bool | Sequence[str] | None) -> tuple[str, ...]:
    """Return the setting `weights_only` as patterns: true stands for all nodes."""
    if isinstance(weights_only, bool):
        return ("*",) if weights_only else ()
    return tuple(weights_only or ())


@dataclass(frozen=True)
class Selection:
    """Glob patterns over node names, or "op:Type" over op types. No include pattern means all; exclude wins.

    Attributes:
        left: Exact names of further nodes that stay float, and why: what measuring decided.
        target: Where the model will run (see graph.ops).
        weights_only: Patterns of nodes of which only the weights become int8.
        forms: Exact names of layers without a calibrated range, and the form of each (see graph.layers); they win over
            `weights_only`.
        pixels: The int8 model takes raw pixels, so that the layers which read the image take codes.
        of_u8: Codes of activations are u8, the one type that every integer kernel takes.
        partial: The nodes are those of one body of a model, so that a pattern may match none of them.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    target: str = DEFAULT_TARGET
    weights_only: tuple[str, ...] = ()
    forms: tuple[tuple[str, LayerForm], ...] = ()
    pixels: bool = False
    of_u8: bool = True
    partial: bool = False

    @staticmethod
    def of(settings: QuantizationSettings) -> Selection:
        """Return what a job's settings allow."""
        weights_only = patterns_of(settings.weights_only)
        return Selection(
            settings.include,
            settings.exclude,
            target=settings.target,
            weights_only=weights_only,
            pixels=settings.uint8_input,
            of_u8=settings.activations in OF_U8,
        )

    def resolve(self, nodes: Iterable[onnx.NodeProto], inside: Iterable[onnx.NodeProto] = ()) -> frozenset[str]:
        """Return the names of the nodes that may be quantized.

        Args:
            nodes: Of a graph.
            inside: Those of the graphs inside it, which a pattern may be about.

        Raises:
            UsageError: a pattern matches no node; names the pattern and the nearest name.
            TableError: `left` names a node that the model does not have.
        """
        nodes = list(nodes)
        names = {node.name for node in nodes}
        known = [*nodes, *inside]
        included = self._matching(self.include, "--include", known) & names if self.include else names
        return frozenset(included - self._matching(self.exclude, "--exclude", known) - self._left(names))

    def layer_forms(self, nodes: Iterable[onnx.NodeProto], inside: Iterable[onnx.NodeProto]) -> dict[str, LayerForm]:
        """Return the form of every node whose input gets no calibrated range, allowed or not, layer or not.

        Args:
            nodes, inside: See `resolve`.

        Raises:
            UsageError: A pattern matches no node.
            TableError: `forms` names a node that the model does not have.
        """
        nodes = list(nodes)
        known = {node.name for node in nodes}
        unknown = next((name for name, _ in self.forms if name not in known), None)
        if unknown is not None:
            raise TableError(
                f"names the node {unknown!r}, which the model does not have",
                where="settings.forms",
                do="remove it, or calibrate again",
            )
        matching = self._matching(self.weights_only, "--weights-only", [*nodes, *inside])
        found: dict[str, LayerForm] = dict.fromkeys(matching, "weights")
        return found | dict(self.forms)

    def reason(self, node: str) -> str:
        """Say why a node that is not allowed stays float."""
        return dict(self.left).get(node, EXCLUDED)

    def _left(self, known: set[str]) -> set[str]:
        names = {name for name, _ in self.left}
        unknown = sorted(names - known)
        if unknown:
            raise TableError(
                f"names the node {unknown[0]!r}, which the model does not have",
                where="settings.left_for_latency, left_for_accuracy, left_for_gates, left_without_range",
                do="remove it, or calibrate again",
            )
        return names

    def _matching(self, patterns: Sequence[str], option: str, nodes: Sequence[onnx.NodeProto]) -> set[str]:
        found: set[str] = set()
        for pattern in patterns:
            if pattern.startswith("op:"):
                matches = {node.name for node in nodes if fnmatchcase(node.op_type, pattern[3:])}
            else:
                matches = {node.name for node in nodes if node.name == pattern or fnmatchcase(node.name, pattern)}
            if not matches and not self.partial:
                near = _nearest(pattern, nodes)
                hint = f"did you mean {near!r}?" if near else "int8cal inspect lists the nodes"
                raise UsageError(f"pattern {pattern!r} matches no node", where=option, do=hint, pattern=pattern)
            found |= matches
        return found


def _nearest(pattern: str, nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the pattern that may be meant: op:Type for a bare type, its node for a tensor, else a like name."""
    types = {f"op:{node.op_type}" for node in nodes}
    bare = pattern.removeprefix("op:").lower()
    meant = next((op_type for op_type in sorted(types) if op_type[3:].lower() == bare), None)
    if meant is None:
        meant = next((node.name for node in nodes if pattern in node.output), None)
    if meant is None:
        known = types if pattern.startswith("op:") else {node.name for node in nodes}
        meant = next(iter(difflib.get_close_matches(pattern, sorted(known), 1)), None)
    return meant
