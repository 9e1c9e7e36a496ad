"""Where a model is scored: at its outputs, and in front of what hides errors there.

Behind a saturated Softmax or Sigmoid a good and a bad int8 model look alike, and an ArgMax or a box selection has no
error to speak of: such outputs are scored at what these nodes read, too or instead. In a Concat of boxes and scores the
larger numbers hide the smaller ones: its parts are scored apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.index import Index, attribute, tensors_read
from int8cal.graph.ops import opset_of
from int8cal.graph.scopes import ELEMENTWISE, MOVING
from int8cal.graph.taps import tapped_model
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.numerics import Array
    from int8cal.protos import ModelView

_REAL = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})
_REAL_OR_UNKNOWN = _REAL | {onnx.TensorProto.UNDEFINED}
# Saturating activations: their input is what is left of the difference between two models.
_SATURATING = frozenset({"Softmax", "Sigmoid", "HardSigmoid", "Hardmax"})
_MOVING = MOVING | {"GatherElements", "GatherND"}
# Nodes whose output's shape depends on values: what lies behind cannot be compared element by element.
_SELECTING = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_SHAPES = frozenset({"Shape", "Size"})  # nodes that read no values


# What a saturating node reads counts 20 dB less than what it writes: it decides where the output hides nearly all
# noise, and nearly vanishes where the output shows it.
HIDDEN_WEIGHT = 0.01
_MOST_PARTS = 64  # of a Concat; more are no groups of different meaning

# Neighbouring parts whose ranges are within this factor share a fault if they have one: eight bits over both still
# leave five for the smaller.
SAME_RANGE = 8.0
LEAST_OBJECTS = 16  # positions of an output of boxes
COORDINATES, OBJECTS_RANK = 4, 3  # of a box; axes of an output of boxes: batch, and objects and channels in any order


@dataclass(frozen=True)
class ScorePoint:
    """A tensor, or a part of one, at which a model is compared with its FP32 model.

    Attributes:
        tensor: Its name in the prepared model.
        node, slot: The node that reads it, and the position; "" and 0 for a graph output.
        centred: Axis of a Softmax behind it: a shift of all values along it changes nothing. None for no such axis.
        part: Axis, first and end of the part; None for all of the tensor.
        weight: Of its noise in a score, see HIDDEN_WEIGHT.
    """

    tensor: str
    node: str = ""
    slot: int = 0
    centred: int | None = None
    part: tuple[int, int, int] | None = None
    weight: float = 1.0

    @property
    def name(self) -> str:
        """Name of the tensor and the part; no two points of a model share it."""
        return self.tensor if self.part is None else f"{self.tensor}[{self.part[1]}:{self.part[2]}, {self.part[0]}]"

    def seen(self, values: Array) -> Array:
        """Return what counts of the tensor's values: the part, and under a Softmax the differences from their mean."""
        if self.part is not None:
            axis, first, end = self.part
            values = np.moveaxis(np.moveaxis(values, axis, 0)[first:end], 0, axis)
        if self.centred is None or not -values.ndim <= self.centred < values.ndim:
            return values
        # of values that are not finite, or whose sum is none, nothing is known: NaN or infinity, as in any other tensor
        with np.errstate(over="ignore", invalid="ignore"):
            centred: Array = values - values.mean(axis=self.centred, keepdims=True)
        return centred


@dataclass(frozen=True)
class Joining:
    """The nodes that put an output together of parts; on the way values are only moved, or mapped one by one.

    Attributes:
        nodes: In graph order, from what Concats join to the output.
        mapped: First output -> input of those nodes that map each value by itself (Sigmoid, a constant factor).
        operands: What Concats join, in order.
        read: Other tensors that the nodes read: shapes, indices; those that are no initializers.
    """

    nodes: tuple[onnx.NodeProto, ...]
    mapped: Mapping[str, str]
    operands: tuple[str, ...]
    read: tuple[str, ...]


def joining_of(index: Index, output: str, constants: frozenset[str]) -> Joining | None:
    """Find what joins an output of parts.

    Args:
        index: Of any float model.
        output: A tensor.
        constants: See `graph.index.derived_constants`.

    Returns:
        None where no Concat is on the way. An operand of a Concat is taken apart in its turn only where another Concat
        is all that it was moved from: what was computed in between is a part of its own.
    """
    taken, mapped = set[str](), dict[str, str]()
    read, operands = dict[str, None](), dict[str, None]()
    leading: set[str] = set()
    waiting, joined = [output], False
    while waiting:
        tensor = waiting.pop()
        node = index.producer.get(tensor)
        if joined:
            leading |= _leading_to_join(index, tensor, leading)
        slot = None if node is None or (joined and tensor not in leading) else _passed_slot(node, constants)
        if node is not None and _joins(node):
            joined = True
            taken.add(node.output[0])
            waiting += reversed(node.input)
        elif node is None or slot is None:
            operands.setdefault(tensor)
        else:
            taken.add(node.output[0])
            waiting.append(node.input[slot])
            if node.op_type in _MOVING:
                read.update(dict.fromkeys(name for at, name in enumerate(node.input) if name and at != slot))
            else:
                mapped[node.output[0]] = node.input[slot]
    if not joined:
        return None
    nodes = tuple(node for node in index.graph.node if node.output and node.output[0] in taken)
    computed = tuple(name for name in read if name not in index.initializers)
    return Joining(nodes, mapped, tuple(operands), computed)


def ending(index: Index, tensor: str, constants: frozenset[str]) -> tuple[onnx.NodeProto | None, tuple[str, ...]]:
    """Return the node that computed a tensor's values, before they were moved or scaled, and the ops that did that."""
    moves: list[str] = []
    node = index.producer.get(tensor)
    while node is not None and node.op_type not in _SATURATING:
        slot = _passed_slot(node, constants)
        if slot is None:
            break
        moves.append(node.op_type)
        node = index.producer.get(node.input[slot])
    return node, tuple(moves)


def _joins(node: onnx.NodeProto) -> bool:
    return node.op_type == "Concat" and 1 < len(node.input) <= _MOST_PARTS


def _leading_to_join(index: Index, tensor: str, known: set[str]) -> set[str]:
    """Return the tensors from here to what a Concat joined, where values are only moved; none where that is not so."""
    seen: set[str] = set()
    node = index.producer.get(tensor)
    while tensor not in known and node is not None and node.op_type in _MOVING:
        seen.add(tensor)
        tensor = node.input[0]
        node = index.producer.get(tensor)
    return seen if tensor in known or (node is not None and _joins(node)) else set()


def _passed_slot(node: onnx.NodeProto, constants: frozenset[str]) -> int | None:
    """Return the input whose values a node moves, or maps one by one; None where it does neither."""
    if node.op_type in _MOVING or node.op_type in _SATURATING:
        return 0
    if node.op_type not in ELEMENTWISE:
        return None
    variable = [place for place, name in enumerate(node.input) if name not in constants]
    return variable[0] if len(variable) == 1 else None


def score_points(model: onnx.ModelProto) -> tuple[ScorePoint, ...]:
    """Find where a model is scored.

    Returns:
        Points in float tensors that depend on the model's inputs, in the order in which the outputs lead to them; no
        two of one name. An output that only passes an input on has none.
    """
    index = Index(model)
    alive, loose = _reached(index)
    opset = opset_of(model, 13)
    found: dict[str, ScorePoint] = {}
    visited: set[str] = set()
    # a tensor that has a point as a part of another one is of interest only for what hides errors in front of it
    waiting = [(ScorePoint(value.name), True) for value in reversed(model.graph.output)]
    while waiting:
        point, wanted = waiting.pop()
        if point.tensor in visited or point.tensor not in alive:
            continue
        visited.add(point.tensor)
        hiding = _hiding(index, point, loose)
        if hiding is None:
            if wanted and not _is_input(index, point.tensor):
                found.setdefault(point.name, point)
            continue
        node, whole = hiding
        comparable = _comparable(index, point.tensor, loose)
        parts = _parts(index, node, whole) if comparable and node.op_type == "Concat" else []
        if comparable and (wanted or parts):
            found.update((each.name, each) for each in parts or [point])
        axis = _softmax_axis(index, node, opset)
        front = not comparable or node.op_type in _SATURATING
        weight = point.weight * (HIDDEN_WEIGHT if comparable and node.op_type in _SATURATING else 1.0)
        waiting += [
            (ScorePoint(name, node.name, slot, axis, weight=weight), front)
            for slot, name in reversed([*enumerate(node.input)])
            if name
        ]
    return tuple(found.values())


def loose_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the outputs whose shape may be another one in another model of the same graph, on the same inputs.

    Returns:
        Names of outputs behind a selection (NonMaxSuppression), a Loop, or a node that reads integers or conditions
        computed of real values: how many durations add up to, what is above a threshold.
    """
    index = Index(model)
    alive, loose = _reached(index)
    decided, real = set[str](), set[str]()
    for node in index.graph.node:
        read = set(tensors_read(node)) if node.op_type not in _SHAPES else set[str]()
        outputs = [name for name in node.output if name in alive]
        if read & (decided | loose) or (node.op_type == "Loop" and read & real):
            loose.update(outputs)
        discrete = {name for name in outputs if _is_discrete(index, node, name)}
        decided |= discrete if read & real else set()
        real.update(name for name in outputs if name not in discrete)
    return frozenset(value.name for value in model.graph.output if value.name in loose)


def _is_discrete(index: Index, node: onnx.NodeProto, name: str) -> bool:
    """Whether a tensor holds integers or conditions, as far as is known."""
    kind = int(attribute(node, "to", 0)) if node.op_type == "Cast" else index.elem_type(name)
    return kind not in _REAL_OR_UNKNOWN


def split_points(points: Sequence[ScorePoint], found: Mapping[str, Array]) -> tuple[ScorePoint, ...]:
    """Score boxes and scores that one node computed apart, as values tell them.

    Args:
        points: See `score_points`.
        found: The values of their tensors for a sample.

    Returns:
        The points, those of whole tensors in parts where these mean different things.
    """
    return tuple(
        each
        for point in points
        for each in (
            [replace(point, part=part) for part in boxes_and_scores(found[point.tensor])]
            if point.part is None and point.centred is None
            else []
        )
        or [point]
    )


def boxes_and_scores(value: Array) -> tuple[tuple[int, int, int], ...]:
    """Tell boxes in front of scores between 0 and 1, where one node computed both, by their values.

    Args:
        value: Of one sample, the batch axis included.

    Returns:
        Axis, first and end of the boxes, and of the scores; nothing where they are something else.
    """
    for axis in (2, 1) if value.ndim == OBJECTS_RANK else ():
        count = value.shape[axis]
        if count <= COORDINATES or value.size // count < max(count, LEAST_OBJECTS):
            continue
        boxes, scores = np.split(value, [COORDINATES], axis=axis)
        if scores.min() >= 0.0 and 0.0 < scores.max() <= 1.0 and boxes.max() > SAME_RANGE * scores.max():
            return (axis, 0, COORDINATES), (axis, COORDINATES, count)
    return ()


def output_points(model: onnx.ModelProto) -> tuple[ScorePoint, ...]:
    """Return the model's real outputs, whole; others have no error to speak of."""
    outputs = model.graph.output
    return tuple(ScorePoint(value.name) for value in outputs if value.type.tensor_type.elem_type in _REAL)


def tensors_of(points: Sequence[ScorePoint]) -> list[str]:
    """Return the tensors that points are in, each once."""
    return [*dict.fromkeys(point.tensor for point in points)]


def scored_int8(model: onnx.ModelProto, points: Sequence[ScorePoint]) -> tuple[ModelView, dict[str, str]]:
    """Return an int8 model with the points' tensors as its only outputs, and their names there.

    Args:
        model: Made of the prepared model by `emit`, so that its nodes have the same names.
        points: Of the prepared model. Where the node behind a point reads dequantized codes, these are compared,
            through a DequantizeLinear of its own that leaves the integer kernels around it as they are.

    Returns:
        The model, and per tensor of the points its name in it.
    """
    # a few nodes of perhaps ten thousand: no index is made
    wanted = {point.node for point in points if point.node}
    readers = {node.name: node for node in model.graph.node if node.name in wanted} if wanted else {}
    read = {name for node in readers.values() for name in node.input if name}
    producers = {name: node for node in model.graph.node for name in node.output if name in read} if read else {}
    nodes: list[onnx.NodeProto] = []
    names: dict[str, str] = {}
    for point in points:
        if point.tensor in names:
            continue
        reader = readers.get(point.node)
        name = point.tensor if reader is None else reader.input[point.slot]
        producer = producers.get(name)
        if reader is not None and producer is not None and producer.op_type == "DequantizeLinear":
            name = f"{name}/scored{len(names)}"
            node = copied(producer)
            node.name, node.output[0] = name, name
            nodes.append(node)
        names[point.tensor] = name
    return tapped_model(model, names.values(), nodes), names


def _reached(index: Index) -> tuple[set[str], set[str]]:
    """Return the tensors that depend on values of the inputs, and those whose shape depends on computed real values."""
    alive, real, loose = set(index.inputs), set[str](), set[str]()
    for node in index.graph.node:
        if node.op_type in _SHAPES:
            continue
        outputs = [name for name in node.output if name]
        read = set(tensors_read(node))
        if read & alive:
            alive.update(outputs)
            if read & real:
                real.update(outputs)
            else:
                real.update(name for name in outputs if index.elem_type(name) in _REAL_OR_UNKNOWN)
        if read & loose or (node.op_type in _SELECTING and read & real):
            loose.update(outputs)
    return alive - index.inputs, loose


def _hiding(index: Index, point: ScorePoint, loose: set[str]) -> tuple[onnx.NodeProto, ScorePoint] | None:
    """Return the node to look in front of, and the point of its output; None where the point itself is scored."""
    node: onnx.NodeProto | None = index.producer[point.tensor]
    if node is not None and not _comparable(index, point.tensor, loose):
        return node, point
    while node is not None:
        if node.op_type in _SATURATING or (node.op_type == "Concat" and len(node.input) <= _MOST_PARTS):
            return node, point
        slot = 0
        if node.op_type in ELEMENTWISE:
            variable = [place for place, name in enumerate(node.input) if not index.is_constant(name)]
            if len(variable) != 1:
                return None
            slot = variable[0]
        elif node.op_type not in _MOVING:
            return None
        point = replace(point, tensor=node.input[slot], node=node.name, slot=slot)
        node = index.producer.get(point.tensor)
    return None


def _comparable(index: Index, tensor: str, loose: set[str]) -> bool:
    """Whether a tensor can be compared element by element, and has an error to speak of."""
    if tensor in loose or not index.may_be_tensor(tensor):
        return False
    return index.elem_type(tensor) in _REAL_OR_UNKNOWN


def _is_input(index: Index, tensor: str) -> bool:
    """Whether a tensor has the values of an input: there is no error in it."""
    node = index.producer.get(tensor)
    while node is not None and node.op_type in _MOVING:
        tensor = node.input[0]
        node = index.producer.get(tensor)
    return node is None


def _parts(index: Index, node: onnx.NodeProto, whole: ScorePoint) -> list[ScorePoint]:
    """Return a point for each operand of a Concat, in its output; none where a size is not known."""
    axis = int(attribute(node, "axis", 0))
    sizes: list[int] = []
    for name in node.input:
        dims = index.dims(name)
        size = None if dims is None or not -len(dims) <= axis < len(dims) else dims[axis]
        if size is None and _is_new(index, name, axis):
            size = 1
        if size is None:
            return []
        sizes.append(size)
    ends = np.cumsum(sizes).tolist()
    return [
        replace(whole, tensor=node.output[0], part=(axis, end - size, end))
        for size, end in zip(sizes, ends, strict=True)
        if size
    ]


def _is_new(index: Index, name: str, axis: int) -> bool:
    """Whether an Unsqueeze made an axis of a tensor whose rank is unknown, as behind an If."""
    node = index.producer.get(name)
    known = node is not None and node.op_type == "Unsqueeze" and index.is_constant(node.input[1])
    return node is not None and known and axis in index.constant(node.input[1]).reshape(-1).tolist()


def _softmax_axis(index: Index, node: onnx.NodeProto, opset: int) -> int | None:
    """Return the axis along which a Softmax does not see a shift."""
    if node.op_type not in ("Softmax", "Hardmax"):
        return None
    axis = int(attribute(node, "axis", -1 if opset >= 13 else 1))
    rank = index.rank(node.input[0])
    # before opset 13 all axes from this one on are one
    return axis if opset >= 13 or (rank is not None and axis in (-1, rank - 1)) else None
