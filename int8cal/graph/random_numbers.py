"""Random numbers that two models share: a node takes them from a table, at a place that the feed decides.

onnxruntime begins a random node without a seed at the time of its start plus the node's place in the graph, and every
run of a node, with a seed too, goes on where the one before ended. So two models draw different numbers, as do two runs
of one, and what they differ by would count as the error of quantization. Here the numbers depend on the feed and on the
name of the node's output alone, in whatever order and in how many threads samples are run.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from int8cal.graph.edit import Builder, Names, refill
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard, opset_of
from int8cal.protos import ModelView, shell_of, subgraphs, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from int8cal.numerics import Array, Float32

_HOLDERS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_COMPOUND = "Bernoulli"  # the runtime makes other nodes of it, a RandomUniformLike among them
_LEAST_OPSET = 9  # has ConstantOfShape and NonZero
_EMPTY_OPSET, _LIKE_OPSET = 14, 15  # from which Reshape makes tensors without values, and there is CastLike
_INPUTS_APART = 4  # IR version from which an initializer need not be an input
_SIZE = 1 << 17  # numbers of a table; a node that draws more begins again
_ROUND = 7919  # places between two rounds of a Loop
_IMAGE_AXIS = 2  # along which no image has its channels


def random_ops(model: onnx.ModelProto | ModelView) -> tuple[str, ...]:
    """Return the op types of the nodes that draw random numbers, sorted; those in bodies and functions count.

    A Dropout in training mode is none: the runtime drops it.
    """
    source = shell_of(model)
    return tuple(sorted({node.op_type for node in _drawing(source.graph, *source.functions)}))


def can_repeat(model: onnx.ModelProto | ModelView) -> bool:
    """Whether the model's opset has the ops that `repeated` adds."""
    return opset_of(shell_of(model), 0) >= _LEAST_OPSET


def are_alike(first: onnx.ModelProto, second: onnx.ModelProto) -> bool:
    """Whether `repeated` gives the same numbers to both models: by the names of what is drawn, if not in functions."""
    models = (first, second)
    names = [{node.output[0] for node in _drawing(model.graph)} for model in models]
    return all(map(can_repeat, models)) and (names[0] == names[1] or any(map(_has_compound, models)))


def repeated(
    model: onnx.ModelProto | ModelView, simplify: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> tuple[ModelView, str] | None:
    """Let the random nodes of a model take their numbers from tables.

    The numbers of a node in a Loop differ between rounds, those of one in a Scan do not.

    Args:
        model: Any; its weights are shared, not copied.
        simplify: Puts nodes in place of functions that draw.

    Returns:
        The model, and the name of its further input, int64 (): it takes `place_of` the feed. None where no node draws,
        or where the opset is too old.

    Raises:
        ModelError: `simplify` does.
    """
    if not random_ops(model) or not can_repeat(model):
        return None
    if _has_compound(model):  # the runtime names what is in them as it does where a model is prepared
        model = simplify(model.assemble() if isinstance(model, ModelView) else model)
    view = view_of(model) if isinstance(model, onnx.ModelProto) else ModelView(onnx.ModelProto(), model.weights)
    if isinstance(model, ModelView):
        view.shell.CopyFrom(model.shell)
    shell, graph = view.shell, view.shell.graph
    built = Builder(Names(graph, view.weights.graph))
    tables = _Tables(built, opset_of(shell, 0))
    place = built.names.tensor("random_place")
    waiting = [(graph, place, False)]
    while waiting:
        inner, own, is_loop = waiting.pop()
        built.nodes = []
        if is_loop:
            own = tables.in_round(inner.input[0].name, own)
        for node in inner.node:
            if node.op_type in _READ and is_standard(node):
                tables.draw(node, own)
            else:
                built.nodes.append(node)
        refill(inner.node, built.nodes)
        for node in inner.node:
            if node.op_type in _HOLDERS:
                waiting += ((each, own, node.op_type == "Loop") for each in subgraphs(node) if any(_drawing(each)))
    shell.ir_version = max(shell.ir_version, _INPUTS_APART)
    graph.initializer.extend(built.initializers.values())
    graph.input.append(helper.make_tensor_value_info(place, TensorProto.INT64, []))
    return view, place


def place_of(feed: Mapping[str, Array]) -> int:
    """Return where in the tables the numbers of a feed begin.

    Of arrays with three axes and more counts along the third where values grow: an image is told alike by raw pixels
    and by what was made of them.
    """
    mark = 0
    for name in sorted(feed):
        array = np.asarray(feed[name])
        if array.ndim > _IMAGE_AXIS and array.shape[_IMAGE_AXIS] > 1 and array.dtype.kind in "fiu":
            content = np.packbits(array[:, :, 1:] > array[:, :, :-1]).tobytes()
        else:
            content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
        mark = zlib.crc32(content, zlib.crc32(name.encode(), mark))
    return mark % _SIZE


def _has_compound(model: onnx.ModelProto | ModelView) -> bool:
    """Whether numbers are drawn in a function, the model's own or one that the runtime knows."""
    source = shell_of(model)
    return any(_drawing(*source.functions)) or any(node.op_type == _COMPOUND for node in _drawing(source.graph))


def _drawing(*tops: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Iterate over the nodes that draw in graphs and functions, and in the bodies inside them."""
    waiting = [*tops]
    while waiting:
        for node in waiting.pop().node:
            op_type = node.op_type  # of a hundred thousand nodes hardly more is looked at
            if op_type in _HOLDERS:
                waiting += subgraphs(node)
            elif op_type in _RANDOM and is_standard(node):
                yield node


@cache
def _numbers(kind: str) -> Float32:
    # RandomState's stream is frozen for good
    uniform = (np.random.RandomState(0).randint(0, 1 << 23, _SIZE) + 0.5) / (1 << 23)
    if kind == "uniform":
        return uniform.astype(np.float32)
    if kind == "gumbel":
        return (-np.log(-np.log(uniform))).astype(np.float32)
    return np.random.RandomState(0).standard_normal(_SIZE).astype(np.float32)


class _Tables:
    """Adds nodes that take numbers from tables in place of drawing them.

    Args:
        built: Takes the nodes.
        opset: Of the model.
    """

    def __init__(self, built: Builder, opset: int) -> None:
        self.built, self._opset = built, opset
        self._empty = {"allowzero": 1} if opset >= _EMPTY_OPSET else {}

    def in_round(self, number: str, place: str) -> str:
        """Return the place for a round of a Loop, given its number and that for the graph around it."""
        return self._node("Add", self._node("Mul", number, self._whole(_ROUND)), place)

    def draw(self, node: onnx.NodeProto, place: str) -> None:
        """Add what stands for a node, from this place on."""
        own = zlib.crc32(node.output[0].encode()) % _SIZE
        start = self._node("Add", place, self._whole(own))
        self.built.node("Identity", [_READ[node.op_type](self, node, start)], node.output[0])

    def normal(self, node: onnx.NodeProto, start: str) -> str:
        numbers = self._taken("normal", self._shape(node), start)
        return self._scaled(node, numbers, attribute(node, "scale", 1.0), attribute(node, "mean", 0.0))

    def uniform(self, node: onnx.NodeProto, start: str) -> str:
        low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
        return self._scaled(node, self._taken("uniform", self._shape(node), start), high - low, low)

    def multinomial(self, node: onnx.NodeProto, start: str) -> str:
        """Take the class whose logarithm is the highest with a Gumbel number added."""
        shape, count = self._shape(node), self._whole([attribute(node, "sample_size", 1)])
        rows, classes = (self._node("Gather", shape, self._whole([axis])) for axis in (0, 1))
        numbers = self._taken("gumbel", self._node("Concat", rows, count, classes, axis=0), start)
        scores = self._node("Reshape", node.input[0], self._node("Concat", rows, self._whole([1]), classes, axis=0))
        chosen = self._node("ArgMax", self._node("Add", scores, numbers), axis=2, keepdims=0)
        return self._node("Cast", chosen, to=attribute(node, "dtype", TensorProto.INT32))

    def _shape(self, node: onnx.NodeProto) -> str:
        return self._node("Shape", node.input[0]) if node.input else self._whole(attribute(node, "shape", []))

    def _taken(self, kind: str, shape: str, start: str) -> str:
        """Return numbers of a table in a shape."""
        # of no axes there is one value
        count = self._node("ReduceProd", self._node("Concat", self._whole([1]), shape, axis=0), keepdims=1)
        ones = self._node("ConstantOfShape", count, value=numpy_helper.from_array(np.ones(1, np.int64)))
        at, size = self._node("Add", self._node("NonZero", ones), start), self._whole(_SIZE)
        within = self._node("Sub", at, self._node("Mul", self._node("Div", at, size), size))
        table = self.built.shared(f"random_{kind}", _numbers(kind))
        return self._node("Reshape", self._node("Gather", table, within), shape, **self._empty)

    def _scaled(self, node: onnx.NodeProto, numbers: str, scale: float, offset: float) -> str:
        values = self._node("Add", self._node("Mul", numbers, self._real(scale)), self._real(offset))
        dtype = attribute(node, "dtype", 0)
        if not dtype and node.input and self._opset >= _LIKE_OPSET:
            return self._node("CastLike", values, node.input[0])
        return self._node("Cast", values, to=dtype or TensorProto.FLOAT)

    def _node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        output = self.built.names.tensor(f"random_{op_type}")
        self.built.node(op_type, inputs, output, **attributes)
        return output

    def _whole(self, value: npt.ArrayLike) -> str:
        return self.built.constant("random_constant", np.asarray(value, np.int64))

    def _real(self, value: float) -> str:
        return self.built.constant("random_constant", np.asarray(value, np.float32))


_READ = {
    "RandomNormal": _Tables.normal,
    "RandomNormalLike": _Tables.normal,
    "RandomUniform": _Tables.uniform,
    "RandomUniformLike": _Tables.uniform,
    "Multinomial": _Tables.multinomial,
}
_RANDOM = frozenset({*_READ, _COMPOUND})
