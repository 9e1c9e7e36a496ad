"""What a model's outputs are: groups of channels of one meaning, found from the graph and the FP32 model's values.

Detectors join boxes and class scores in one output: together the larger numbers hide what became of the smaller ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper

from int8cal.evaluation.repeated import repeats
from int8cal.graph.index import Index, attribute
from int8cal.graph.ops import opset_of
from int8cal.graph.scopes import MOVING
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import tapped_model
from int8cal.probe.score_points import (
    COORDINATES,
    LEAST_OBJECTS,
    OBJECTS_RANK,
    SAME_RANGE,
    boxes_and_scores,
    ending,
    joining_of,
    loose_outputs,
)
from int8cal.runtime.batching import batch_size, make_feed, run_group
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.numerics import Array
    from int8cal.probe.score_points import Joining
    from int8cal.runtime.batching import Arrays, SampleLike


# What the values of a group are, by which it is known what a decision on them is.
GroupKind = Literal[
    "class scores",  # one row a sample, or one row a position: the largest decides
    "probabilities",  # each on its own between 0 and 1: a threshold decides
    "boxes",  # four coordinates an object
    "embedding",  # a row that is compared with other samples' rows by its direction
    "token logits",  # a row of a vocabulary a position
    "waveform",  # long rows of samples
    "signal",  # what the model reads, repeated or continued: a reconstruction, a forecast
    "image",  # planes of pixels
    "whole values",  # decisions already: classes, flags, indices or texts
    "values",  # anything else
]

_LEAST_WAVE = 2000  # samples of a waveform; a convolution may give as many as a thousand class scores
_LEAST_VOCABULARY = 1000  # token logits; smaller alphabets are class scores a position
_LEAST_EMBEDDING = 16
_LEAST_CLASSES = 2
_ROW_RANK = 2
_IMAGE_RANK, _PLANES = 4, (1, 3, 4)
_SERIES_RANK = 3
_SOFTMAX_OPSET = 13  # from which on the default axis is the last
_ROUNDING = 1e-3  # how far from 1 the sum of a row of float32 probabilities, or its norm, may be

_PRODUCTS = frozenset({"Gemm", "MatMul"})
_GIVEN_AT = {"Conv": 0, "ConvTranspose": 1}  # the axis of a convolution's weight along its output channels
_CONVOLUTIONS = frozenset(_GIVEN_AT)
_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
_SIGMOID = frozenset({"Sigmoid", "HardSigmoid"})
_DECIDING = _SOFTMAX | {"ArgMax"}  # they read rows of class scores
_MEANS = frozenset({"ReduceMean", "ReduceMax", "GlobalAveragePool", "AveragePool"})
# They end models that sum up a sample, or describe each position, for others to compare.
_POOLING = frozenset(
    {
        "GlobalAveragePool", "GlobalMaxPool", "LayerNormalization", "LpNormalization", "ReduceMean", "ReduceMax",
        "AveragePool", "MaxPool", "Tanh",
    }
)  # fmt: skip
_WAVES = _CONVOLUTIONS | {"Tanh"}
# Where channels are in what these compute.
_CHANNELS_AT = {"Conv": 1, "ConvTranspose": 1, "Gemm": -1, "MatMul": -1, "LayerNormalization": -1}
# Values between 0 and 1 are probabilities behind these; features behind a Relu, say, may be so small by chance.
_BOUNDING = frozenset({"Clip", "Div", "Exp", "Mul", "Max", "Min", "Where", "Pow"})
# Features, such as prototypes of masks, and no scores: nobody's order of classes is behind these. A swish ends in Mul.
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "HardSwish", "Mish", "Swish", "Mul"})
# Of these kinds may what repeats or continues an input look.
_MAY_REPEAT = frozenset({"class scores", "probabilities", "values"})
# Values of an input stay such behind these; series are normalized by their mean.
_FED = MOVING | {"ReduceMean"}
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})
_EMBEDDING_NAMES = re.compile(r"emb|feat|pool|hidden|vector|descriptor", re.IGNORECASE)


@dataclass(frozen=True)
class OutputGroup:
    """Channels of one output that mean the same kind of thing.

    Attributes:
        output: Name of the graph output in the FP32 model.
        kind: What its values are.
        axis: The channel axis in one sample's array, the batch axis included; None where it has none.
        first, end: Its channels along `axis`; 0 and 0 where `axis` is None.
        source: Tensor that the channels come from (an operand of a Concat), for people; "" for all of the output.
    """

    output: str
    kind: GroupKind
    axis: int | None = None
    first: int = 0
    end: int = 0
    source: str = ""

    def of(self, values: Array) -> Array:
        """Return the group's part of the output's values for one sample."""
        return values if self.axis is None else _taken(values, self.axis, self.first, self.end)


@dataclass(frozen=True)
class _Part:
    """A run of channels of one origin, with the range of its values on the sample."""

    axis: int
    first: int
    end: int
    source: str
    low: float
    high: float
    kind: GroupKind

    @property
    def amax(self) -> float:
        return max(abs(self.low), abs(self.high))


def whole_output(name: str, value: Array) -> OutputGroup:
    """Return the group of an output of which nothing is known: all of it, a row's values being its channels."""
    return OutputGroup(name, "values", 1, 0, value.shape[1]) if value.ndim == _ROW_RANK else OutputGroup(name, "values")


class GroupFinder:
    """Finds the groups of a model's outputs, once, on a sample.

    Args:
        fp32: The float model.
        threads: Of the runtime; 0 for all CPUs.

    Attributes:
        loose: Outputs whose shape may differ between two models of the graph, see `probe.score_points.loose_outputs`.
    """

    def __init__(self, fp32: onnx.ModelProto, *, threads: int = 0) -> None:
        self.loose = loose_outputs(fp32)
        self._graph: _Graph | None = _Graph(fp32, threads)
        self._found: dict[str, tuple[OutputGroup, ...]] = {}

    def __call__(self, sample: SampleLike, outputs: Mapping[str, Array]) -> dict[str, tuple[OutputGroup, ...]]:
        """Find the groups of every float output, in the order of their channels; further calls give the same.

        Args:
            sample: A sample; models with Concats in front of their outputs are run on it.
            outputs: What the FP32 model gives for it: name -> array, of this sample alone.

        Raises:
            DataError, ModelError: The parts of an output could not be run.

        Numerics: parts are told from the graph; which of them mean different things, by kind and by range (a factor of
        SAME_RANGE) on this sample.
        """
        if self._graph is not None:
            self._found = self._graph.groups(sample, outputs)
            self._graph = None  # with the model's weights
        return self._found


class _Graph:
    """What the graph says of outputs."""

    def __init__(self, fp32: onnx.ModelProto, threads: int) -> None:
        self._model, self._threads = fp32, threads
        self._index = Index(fp32)
        self._constants = self._index.derived
        self._opset = opset_of(fp32, _SOFTMAX_OPSET)

    def groups(self, sample: SampleLike, outputs: Mapping[str, Array]) -> dict[str, tuple[OutputGroup, ...]]:
        """Find the groups of every float output."""
        floats = {name: value for name, value in outputs.items() if value.dtype.kind == "f"}
        joinings = {name: each for name in floats if (each := joining_of(self._index, name, self._constants))}
        origins = self._origins(sample, floats, joinings) if joinings else {}
        return {name: self._groups(sample, name, value, origins.get(name, ())) for name, value in floats.items()}

    def _groups(
        self, sample: SampleLike, name: str, value: Array, origins: Sequence[Sequence[str]]
    ) -> tuple[OutputGroup, ...]:
        found = []
        for axis, sources in enumerate(origins):
            if any(1 < size < len(sources) for size in value.shape):
                continue  # of objects or positions, which are more than channels
            parts = _merged([self._part(value, *run) for run in _runs(axis, sources)])
            if len(parts) > 1:
                parts = [self._part(value, each.axis, each.first, each.end, each.source) for each in parts]
                found.append(_with_whole_boxes(value, parts))
        found = found or _boxes_and_scores(value)
        if found:  # objects are many, what is said of each is little
            parts = min(found, key=lambda each: each[-1].end)
            return tuple(OutputGroup(name, each.kind, each.axis, each.first, each.end, each.source) for each in parts)
        whole = self._channel_axis(name, value)
        kind = self._kind(sample, name, value, whole)
        whole = None if kind == "waveform" else whole
        return (OutputGroup(name, kind, whole, 0, 0 if whole is None else value.shape[whole]),)

    def _part(self, value: Array, axis: int, first: int, end: int, source: str) -> _Part:
        taken = _taken(value, axis, first, end)
        kind = kind_of(source, taken, axis, self._op(source))
        return _Part(axis, first, end, source, float(taken.min(initial=0)), float(taken.max(initial=0)), kind)

    def _kind(self, sample: SampleLike, name: str, value: Array, axis: int | None) -> GroupKind:
        """Tell what all values of an output are: by what computed and what reads them, and by the model's inputs."""
        op = self._op(name)
        if self._continues_input(name):
            return "values"
        if value.ndim and value.shape[-1] >= _LEAST_WAVE and self._gives_rows(name):
            return "waveform"
        scored = axis is not None and self._is_scored(name, axis, value.ndim)
        kind = kind_of(name, value, axis, op, scored=scored)
        if not value.size or scored or op in _SOFTMAX or kind not in _MAY_REPEAT or _sums_to_one(value, axis):
            return kind
        if repeats(value, sample.feed.values()):
            planes = value.ndim == _IMAGE_RANK and min(value.shape[2:]) > 1 and value.shape[1] in _PLANES
            return "image" if planes else "signal"
        return "signal" if axis is not None and self._is_shifted(sample, name, value, axis) else kind

    def _continues_input(self, name: str) -> bool:
        """Whether an output is an input with more joined on, as the keys and values are that a decoder reads again."""
        node = self._index.producer.get(self._same_values(name)[-1])
        return node is not None and node.op_type == "Concat" and not self._index.inputs.isdisjoint(node.input)

    def _same_values(self, name: str) -> list[str]:
        """Name the tensors that have a tensor's values: itself, and those that it is an Identity or a Cast of."""
        same = [name]
        while (node := self._index.producer.get(same[-1])) is not None and node.op_type in ("Identity", "Cast"):
            same.append(node.input[0])
        return same

    def _is_scored(self, name: str, axis: int, rank: int) -> bool:
        """Whether a Softmax or an ArgMax reads a tensor along an axis."""
        same = self._same_values(name)
        readers = [use.node for each in same for use in self._index.uses.get(each, ()) if use.slot == 0]
        return any(self._axis_of(node) % rank == axis for node in readers if node.op_type in _DECIDING)

    def _axis_of(self, node: onnx.NodeProto) -> int:
        default = 0 if node.op_type == "ArgMax" else 1 if self._opset < _SOFTMAX_OPSET else -1
        return int(attribute(node, "axis", default))

    def _gives_rows(self, name: str) -> bool:
        """Whether convolutions over time with one output channel gave an output, whose rows are no channels then."""
        node, _ = ending(self._index, name, self._constants)
        parts = [name] if node is None or node.op_type != "Concat" else node.input
        nodes = [ending(self._index, part, self._constants)[0] for part in parts]
        return all(node is not None and self._gives_one(node) for node in nodes)

    def _gives_one(self, node: onnx.NodeProto) -> bool:
        dims = self._index.dims(node.input[1]) if node.op_type in _CONVOLUTIONS else None
        if dims is None or len(dims) != _SERIES_RANK or int(attribute(node, "group", 1)) != 1:
            return False
        return dims[_GIVEN_AT[node.op_type]] == 1

    def _is_shifted(self, sample: SampleLike, name: str, value: Array, axis: int) -> bool:
        """Whether all channels have the same value of a model's input added, which does nothing to scores' order."""
        node, _ = ending(self._index, name, self._constants)
        if node is None or node.op_type != "Add" or value.shape[axis] < _LEAST_CLASSES:
            return False
        added = [tensor for tensor in node.input if self._is_fed(tensor)]
        if len(added) != 1:
            return False
        signature = signature_of(self._model)
        shift = make_feed(signature, [sample]).get(added[0])
        if shift is None:
            session = Session(tapped_model(self._model, added), threads=self._threads)
            shift = run_group(session, signature, [sample])[added[0]]
        return bool(shift.ndim == value.ndim and shift.shape[axis] == 1)

    def _is_fed(self, tensor: str) -> bool:
        """Whether a tensor holds values of a float input, or their mean."""
        node = self._index.producer.get(tensor)
        while node is not None and node.op_type in _FED:
            tensor = node.input[0]
            node = self._index.producer.get(tensor)
        return tensor in self._index.inputs and self._index.elem_type(tensor) in _FLOATS

    def _op(self, tensor: str) -> str:
        """Name the op that computed a tensor's values, of joined ones the first; "" for an input.

        A mean of what a Sigmoid gives is one still.
        """
        node, _ = ending(self._index, tensor, self._constants)
        while node is not None and node.op_type == "Concat":
            node, _ = ending(self._index, node.input[0], self._constants)
        if node is not None and node.op_type in _MEANS:
            before, _ = ending(self._index, node.input[0], self._constants)
            node = before if before is not None and before.op_type in _SIGMOID else node
        return "" if node is None else node.op_type

    def _channel_axis(self, name: str, value: Array) -> int | None:
        """Tell where an output's channels are: from what computed it, or the shorter of the first and the last axis."""
        if not value.ndim:
            return None
        node, moves = ending(self._index, name, self._constants)
        moved = not {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}.isdisjoint(moves)
        if node is not None and node.op_type in _SOFTMAX and not moved:
            return self._axis_of(node) % value.ndim
        if node is not None and node.op_type in _SIGMOID:
            node, more = ending(self._index, node.input[0], self._constants)
            moved = moved or not {"Transpose", "Reshape"}.isdisjoint(more)
        dims = self._index.dims(name) or (None,) * value.ndim
        axes = range(min(1, value.ndim - 1), value.ndim)
        # of a row an exporter may not know how long it is; more axes may be positions, of any number
        fixed = [axis for axis in axes if len(axes) == 1 or (len(dims) == value.ndim and dims[axis] is not None)]
        op = "" if node is None else node.op_type
        if not moved and op in _CHANNELS_AT:
            fixed = [axis for axis in fixed if axis == _CHANNELS_AT[op] % value.ndim]
        ends = [axis for axis in fixed if axis in (1, value.ndim - 1)] or fixed
        single = [axis for axis in ends if value.shape[axis] == 1]
        if value.ndim == _IMAGE_RANK and len(single) == 1 and value.size > max(value.shape):
            return single[0]  # a mask, whose rows and columns are no channels
        return min(ends, key=lambda axis: (value.shape[axis] == 1, value.shape[axis], -axis), default=None)

    def _origins(
        self, sample: SampleLike, floats: Mapping[str, Array], joinings: Mapping[str, Joining]
    ) -> dict[str, list[list[str]]]:
        """Return per output, axis and index the operand that its values come from; several stand for one of them."""
        signature = signature_of(self._model)
        tensors = {name for each in joinings.values() for name in (*each.operands, *each.read)}
        computed = sorted(tensors - self._index.initializers.keys())
        fed = make_feed(signature, [sample])
        shown = run_group(Session(tapped_model(self._model, computed), threads=self._threads), signature, [sample])
        values: Arrays = {**fed, **shown, **{name: self._index.constant(name) for name in tensors - set(computed)}}
        rows = batch_size(signature)
        found = {}
        for name, joining in joinings.items():
            labels = _labels(self._model, name, joining, values)
            if rows > 1 and labels.shape[0] == rows:
                labels = labels[:1]
            if labels.shape == floats[name].shape:
                found[name] = [_names(labels, axis, joining.operands) for axis in range(labels.ndim)]
        return found


def _labels(model: onnx.ModelProto, output: str, joining: Joining, values: Arrays) -> Array:
    """Run what joins an output on the numbers of its operands: which operand each value comes from."""
    operands = {
        name: np.full(values[name].shape, number, values[name].dtype) for number, name in enumerate(joining.operands)
    }
    feed = operands | {name: values[name] for name in joining.read}
    nodes = [
        helper.make_node("Identity", [joining.mapped[node.output[0]]], [node.output[0]])
        if node.output[0] in joining.mapped
        else node
        for node in joining.nodes
    ]
    used = {name for node in nodes for name in node.input}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feed.items()
    ]
    graph = helper.make_graph(
        nodes,
        "labels",
        inputs,
        [onnx.ValueInfoProto(name=output)],
        [each for each in model.graph.initializer if each.name in used and each.name not in feed],
    )
    small = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return Session(small, threads=1, optimization="none").run(feed)[output]


def _names(labels: Array, axis: int, operands: Sequence[str]) -> list[str]:
    """Name per index along an axis the first operand that is there; indices with the same operands have one name."""
    others = tuple(each for each in range(labels.ndim) if each != axis)
    present = [(labels == number).any(axis=others) for number in range(len(operands))]
    first = np.argmax(present, axis=0)
    seen: dict[bytes, int] = {}
    rows = np.packbits(np.transpose(present), axis=1)
    return [operands[seen.setdefault(row.tobytes(), int(number))] for row, number in zip(rows, first, strict=True)]


def _runs(axis: int, sources: Sequence[str]) -> list[tuple[int, int, int, str]]:
    """Return axis, first, end and name of equal neighbours."""
    starts = [0, *(at for at in range(1, len(sources)) if sources[at] != sources[at - 1])]
    return [
        (axis, first, end, sources[first])
        for first, end in zip(starts, [*starts[1:], len(sources)], strict=True)
        if sources
    ]


def _merged(parts: Sequence[_Part]) -> list[_Part]:
    """Join neighbours of one kind whose ranges are alike."""
    merged: list[_Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and last.kind == part.kind and _alike(last.amax, part.amax):
            low, high = min(last.low, part.low), max(last.high, part.high)
            merged[-1] = replace(last, end=part.end, low=low, high=high)
        else:
            merged.append(part)
    return merged


def _alike(first: float, second: float) -> bool:
    return min(first, second) == 0.0 or max(first, second) <= SAME_RANGE * min(first, second)


def _boxes_and_scores(value: Array) -> list[list[_Part]]:
    """Return boxes and scores that one node computed as parts; none elsewhere."""
    kinds: tuple[GroupKind, GroupKind] = ("boxes", "probabilities")
    parts = []
    for kind, (axis, first, end) in zip(kinds, boxes_and_scores(value), strict=False):
        taken = _taken(value, axis, first, end)
        parts.append(_Part(axis, first, end, "", float(taken.min()), float(taken.max()), kind))
    return [parts] if parts else []


def _with_whole_boxes(value: Array, parts: list[_Part]) -> list[_Part]:
    """Join parts in front of scores that are the centres and the sizes of boxes, as YOLOX and YOLOv5 compute them."""
    for boxes, _ in _boxes_and_scores(value):
        ends = [part.end for part in parts if part.axis == boxes.axis]
        if ends[:1] != [boxes.end] and boxes.end in ends:
            return [boxes, *parts[ends.index(boxes.end) + 1 :]]
    return parts


def _taken(value: Array, axis: int, first: int, end: int) -> Array:
    return value[(slice(None),) * axis + (slice(first, end),)]


def kind_of(name: str, value: Array, axis: int | None, op: str, *, scored: bool = False) -> GroupKind:
    """Tell what values are.

    Args:
        name: Of their tensor: exporters keep the names that people gave.
        value: Of one sample, the batch axis included.
        axis: Their channel axis; None for none.
        op: What computed them, see `ending`.
        scored: Whether a Softmax or an ArgMax reads them along that axis.
    """
    channels = 1 if axis is None else value.shape[axis]
    positions = value.size // max(channels, 1)
    if op in _WAVES and value.ndim and max(value.shape) == value.size >= _LEAST_WAVE:
        return "waveform"
    if not value.size or value.ndim < 2:
        return "values"
    if channels >= _LEAST_EMBEDDING and (op in _POOLING or _of_length_one(value) or _EMBEDDING_NAMES.search(name)):
        return "embedding"
    if scored or op in _SOFTMAX or _sums_to_one(value, axis):
        return "token logits" if channels >= _LEAST_VOCABULARY and positions > 1 else "class scores"
    if value.ndim == OBJECTS_RANK and channels == COORDINATES and positions >= LEAST_OBJECTS:
        return "boxes"
    low, high = float(value.min()), float(value.max())
    if op in _SIGMOID or (op in _BOUNDING and low >= 0.0 and high <= 1.0):
        return "probabilities"
    if value.ndim == _IMAGE_RANK and min(value.shape[2:]) > 1:
        if channels in _PLANES:
            return "image"
        return "values" if op in _ACTIVATIONS else "class scores"
    if op not in _PRODUCTS | _CONVOLUTIONS or channels < _LEAST_CLASSES:
        return "values"
    return "token logits" if channels >= _LEAST_VOCABULARY and positions > 1 else "class scores"


def _of_length_one(value: Array) -> bool:
    norms = np.sqrt(np.square(value.astype(np.float64)).sum(axis=-1))
    return bool(np.abs(norms - 1.0).max() < _ROUNDING)


def _sums_to_one(value: Array, axis: int | None) -> bool:
    if axis is None or value.shape[axis] < _LEAST_CLASSES or value.min() < 0.0:
        return False
    return bool(np.abs(value.sum(axis=axis, dtype=np.float64) - 1.0).max() < _ROUNDING)
