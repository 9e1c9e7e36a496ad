"""A long graph as several models that run one after the other, cut where no kernel changes.

onnxruntime's time to open a graph of Q and DQ grows faster than the graph: 3 s of CPU time for a chain of 2,500
convolutions and 23 s for 10,000. So does that to lay out the weights of float convolutions, 9 s of 10,000. In segments
it takes time that grows with the graph, and they compute what the whole does:

- Integer kernels are made of a layer with the DQ in front of it and the Q behind it, which a cut at 8-bit codes leaves
  together.
- Which kernel a float convolution gets is decided by its own weights, whatever layout its input comes in, and nothing
  is fused across an input that a convolution, a sum or a Relu gives, and that convolutions alone read.

Where the last bits of floats are no matter, any graph is cut, so that what is known already need not be run again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import onnx

from int8cal.graph.index import tensors_read
from int8cal.graph.random_numbers import random_ops
from int8cal.protos import ModelView, outline, shell_of, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LEAST_NODES = 6000  # of a graph that is cut; the runtime opens smaller ones in two seconds
# In a segment, at least. Smaller ones are opened in half the time; but each session has worker threads of its own, and
# a graph that is written shows a change of layout more at each cut.
SEGMENT_NODES, SMALL_SEGMENT_NODES = 1500, 350
STAGE_PRODUCTS, MOST_STAGES = 4, 8  # products of a stage, at least; stages of a graph that is not long
# Nodes that take the time.
_PRODUCTS = {
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "Einsum",
    "Attention",
    "LSTM",
    "GRU",
    "RNN",
    "Loop",
    "Scan",
    "If",
}
_JOINED = ("Conv", "Relu", "Add")  # ops whose outputs may pass as floats
_FED_WEIGHTS = 4  # IR version from which an initializer that is an input, too, is but its default
_CODES = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a graph as a model of its own.

    Attributes:
        build: Makes its model: its nodes on the weights that they read.
        inputs: Tensors that it takes: inputs of the whole, and what passes from earlier segments.
        outputs: Tensors that it gives: what passes to later segments, and outputs of the whole.
        nodes: Its own, without copies of those that weights decide.
    """

    build: Callable[[], onnx.ModelProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[onnx.NodeProto]

    @property
    def model(self) -> onnx.ModelProto:
        """Its model, made anew: all of them at a time would take as much memory as the whole once more."""
        return self.build()


def is_long(model: onnx.ModelProto | ModelView) -> bool:
    """Whether a model has so many nodes that it is opened in segments, where it can be cut."""
    return len(shell_of(model).graph.node) >= LEAST_NODES


def segments_of(
    model: onnx.ModelProto | ModelView, *, small: bool = False, between_floats: bool = False
) -> list[Segment]:
    """Cut a long graph at its codes.

    Args:
        model: Nodes in topological order, as ONNX has it.
        small: Whether segments may be many: they are opened with one thread each, and not written.
        between_floats: Whether it may be cut between float convolutions, too: where the CPU provider runs it, and
            segments are not written, since in each the runtime makes up names of its own.

    Returns:
        The segments in their order; none where the graph is not long, or where no cut can be found.
    """
    if not is_long(model):
        return []
    source = model if isinstance(model, ModelView) else view_of(model)
    whole = _Whole(source)
    starts = whole.starts(SMALL_SEGMENT_NODES if small else SEGMENT_NODES, between_floats=between_floats)
    if len(starts) < 2 or not whole.outputs <= whole.producer.keys():
        return []
    ends = [*starts[1:], len(whole.nodes)]
    return [whole.segment(first, end) for first, end in zip(starts, ends, strict=True)]


def stages_of(model: ModelView) -> list[Segment]:
    """Cut a graph into stages with about as many products each, between which few values pass.

    Values of any op pass, so that last bits of floats may differ from those of the whole. Random numbers, which follow
    from what a session is fed, keep a model whole.

    Args:
        model: Nodes in topological order; the types of what may pass stand among its inner values.

    Returns:
        The stages in their order: one where no cut can be found, or where there are few products.
    """
    whole = _Whole(model)
    can_cut = whole.outputs <= whole.producer.keys() and not random_ops(model)
    starts = whole.even_starts() if can_cut else [0]
    ends = [*starts[1:], len(whole.nodes)]
    return [whole.segment(first, end) for first, end in zip(starts, ends, strict=True)]


def join(parts: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Make one model of what the runtime made of the segments of another; an initializer of several stays one."""
    result = onnx.ModelProto(ir_version=max(part.ir_version for part in parts))
    graph = result.graph
    made: set[str] = set()
    given: set[str] = set()
    weights: dict[str, onnx.TensorProto] = {}
    opsets: dict[str, onnx.OperatorSetIdProto] = {}
    for part in parts:
        opsets.update((each.domain, each) for each in part.opset_import)
        weights.update((each.name, each) for each in part.graph.initializer)
        # copies of nodes that weights decide are in several segments
        nodes = [node for node in part.graph.node if made.isdisjoint(node.output)]
        graph.node.extend(nodes)
        graph.input.extend(value for value in part.graph.input if value.name not in made and value.name not in given)
        given.update(value.name for value in part.graph.input)
        graph.value_info.extend([*part.graph.value_info, *part.graph.output])
        made.update(name for node in nodes for name in node.output if name)
    read = {name for node in graph.node for name in tensors_read(node)}
    graph.output.extend(value for part in parts for value in part.graph.output if value.name not in read)
    graph.initializer.extend(weights.values())
    result.opset_import.extend(opsets.values())
    return result


def _is_known(kind: onnx.TypeProto.Tensor) -> bool:
    """Whether a shape is known but for its first dimension, of which there is a name at least."""
    dims = kind.shape.dim
    return len(dims) > 1 and bool(dims[0].WhichOneof("value")) and all(dim.dim_value > 0 for dim in dims[1:])


def _is_array(value: onnx.ValueInfoProto) -> bool:
    """Whether a value is known to be a tensor of numbers."""
    return value.type.tensor_type.elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)


def _size(value: onnx.ValueInfoProto) -> int:
    """Return how many values a tensor has, as far as is known."""
    return math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)


class _Whole:
    """Where the tensors of a graph are made and last read; the order leaves out nodes that only constants decide."""

    def __init__(self, source: ModelView) -> None:
        self.source = source
        graph = source.shell.graph
        self.weights = {tensor.name: tensor for tensor in (*source.weights.graph.initializer, *graph.initializer)}
        fixed = set[str]() if source.shell.ir_version >= _FED_WEIGHTS else self.weights.keys()
        self.inputs = {value.name: value for value in graph.input if value.name not in fixed}
        decided = self.weights.keys() - self.inputs.keys()
        self.outputs = {value.name for value in graph.output}
        self.types = {value.name: value for value in (*graph.value_info, *graph.output)}
        self.joints: Mapping[str, onnx.ValueInfoProto] = {}
        # nodes that segments hold copies of, since they depend on weights alone; by their outputs the place of each
        self.constants: list[onnx.NodeProto] = []
        self.constant: dict[str, int] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.reads: list[list[str]] = []  # of each node
        for node in graph.node:
            read = tensors_read(node)
            if (read or node.op_type == "Constant") and all(n in decided or n in self.constant for n in read):
                self.constant.update((name, len(self.constants)) for name in node.output if name)
                self.constants.append(node)
            else:
                self.nodes.append(node)
                self.reads.append(read)
        self.producer = {name: place for place, node in enumerate(self.nodes) for name in node.output if name}
        self.last = {name: place for place, read in enumerate(self.reads) for name in read}

    def starts(self, least: int, *, between_floats: bool) -> list[int]:
        """Return where segments of so many nodes begin: at each all that is still to be read may pass, see above."""
        if between_floats:
            self.joints = self._joints()
        changes = [0] * (len(self.nodes) + 1)
        for name, place in self.producer.items():
            last = self.last.get(name, place)
            if last > place and name not in self.joints and not self.is_codes(name):
                changes[place + 1] += 1
                changes[last + 1] -= 1
        starts = [0]
        for place, passing in enumerate(accumulate(changes[:-1])):
            if not passing and place - starts[-1] >= least:
                starts.append(place)
        return starts

    def even_starts(self) -> list[int]:
        """Return where stages begin, see `stages_of`: behind what is fused with a product, where both are possible."""
        typed = {value.name: value for value in self._typed() if _is_array(value)}
        untyped = [0] * (len(self.nodes) + 1)  # tensors that may not pass, and values that do, by the place of a cut
        passing = [0] * (len(self.nodes) + 1)
        for name, place in self.producer.items():
            last = self.last.get(name, place)
            counts, size = (passing, _size(typed[name])) if name in typed else (untyped, 1)
            counts[place + 1] += size
            counts[last + 1] -= size
        untyped, passing = list(accumulate(untyped)), list(accumulate(passing))
        done = list(accumulate((node.op_type in _PRODUCTS for node in self.nodes), initial=0))
        stages = max(min(done[-1] // STAGE_PRODUCTS, MOST_STAGES), len(self.nodes) // SEGMENT_NODES, 1)
        starts = [0]
        for number in range(1, stages):
            middle, reach = done[-1] * number / stages, done[-1] / stages / 2
            first, end = bisect_left(done, middle - reach), bisect_right(done, middle + reach)
            near = [p for p in range(max(first, starts[-1] + 1), min(end, len(self.nodes))) if not untyped[p]]
            if near:
                starts.append(min(near, key=lambda p: (passing[p], abs(done[p] - middle), -p)))
        self.joints = typed
        return starts

    def _typed(self) -> Iterator[onnx.ValueInfoProto]:
        """Yield what is known of tensors; of outputs no shape, which the model's author declared."""
        for value in (*self.source.weights.graph.output, *self.source.shell.graph.output):
            bare = onnx.ValueInfoProto(name=value.name)
            bare.type.tensor_type.elem_type = value.type.tensor_type.elem_type
            yield bare
        yield from self.source.shell.graph.value_info

    def _joints(self) -> dict[str, onnx.ValueInfoProto]:
        """Return the float tensors that convolutions alone read, behind one, a sum or a Relu.

        In a segment the runtime has to know of its input's shape what it knows in the whole, and no more.
        """
        found = {name for node in self.nodes if node.op_type in _JOINED for name in node.output}
        found &= self.last.keys()
        for node, read in zip(self.nodes, self.reads, strict=True):
            weight = self.weights.get(node.input[1]) if node.op_type == "Conv" else None
            if weight is None or weight.name in self.inputs or weight.data_type != onnx.TensorProto.FLOAT:
                found.difference_update(read)
            found.difference_update(node.input[1:])
        values = list(self.source.shell.graph.value_info)
        if found and not found <= {value.name for value in values}:
            stub = onnx.ModelProto()
            stub.CopyFrom(self.source.shell)
            stub.graph.initializer.extend(outline(self.source.weights).graph.initializer)
            values = list(onnx.shape_inference.infer_shapes(stub).graph.value_info)
        infos = {value.name: value for value in values if value.name in found and _is_known(value.type.tensor_type)}
        # a sum with a tensor of any shape has any shape in the whole, too
        free = {name for name, value in self.inputs.items() if not value.type.tensor_type.HasField("shape")}
        for node in self.nodes:
            if node.op_type == "Add" and node.output[0] in found and not free.isdisjoint(node.input):
                infos[node.output[0]] = onnx.ValueInfoProto(name=node.output[0])
                infos[node.output[0]].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return infos

    def is_codes(self, name: str) -> bool:
        """Whether a tensor holds the 8-bit codes of a QuantizeLinear with a constant zero point."""
        node = self.nodes[self.producer[name]]
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            return False
        zero = self.weights.get(node.input[2])
        return zero is not None and zero.data_type in _CODES

    def segment(self, first: int, end: int) -> Segment:
        """Return the segment of the nodes from `first` to before `end`."""
        given = [name for node in self.nodes[first:end] for name in node.output if name]
        read = list(dict.fromkeys(name for each in self.reads[first:end] for name in each))
        inputs = tuple(name for name in read if name in self.inputs or self.producer.get(name, end) < first)
        outputs = tuple(name for name in given if name in self.outputs or self.last.get(name, -1) >= end)
        build = partial(self._model, first, end, read, inputs, outputs)
        return Segment(build, inputs, outputs, self.nodes[first:end])

    def _model(
        self, first: int, end: int, read: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        nodes = self.nodes[first:end]
        made = {name for node in nodes for name in node.output if name}
        copies = self._copies(name for name in read if name not in made)
        shell = self.source.shell
        model = onnx.ModelProto(ir_version=shell.ir_version)
        model.opset_import.extend(shell.opset_import)
        model.functions.extend(shell.functions)
        graph = model.graph
        graph.name = f"{shell.graph.name} from node {first}"
        graph.node.extend([*copies, *nodes])
        graph.input.extend(self.inputs.get(name) or self._info(name) for name in inputs)
        # the runtime infers type and shape of an output that states none
        graph.output.extend(self.types.get(name) or onnx.ValueInfoProto(name=name) for name in outputs)
        copied = (name for node in copies for name in tensors_read(node))
        needed = dict.fromkeys(name for name in (*copied, *read) if name in self.weights)
        graph.initializer.extend(self.weights[name] for name in needed)
        graph.value_info.extend(self.types[name] for name in sorted(made - set(outputs)) if name in self.types)
        return model

    def _copies(self, names: Iterable[str]) -> Sequence[onnx.NodeProto]:
        """Return the constant nodes that decide tensors, in their order."""
        found: set[int] = set()
        waiting = [self.constant[name] for name in names if name in self.constant]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += [
                    self.constant[name] for name in tensors_read(self.constants[place]) if name in self.constant
                ]
        return [self.constants[place] for place in sorted(found)]

    def _info(self, name: str) -> onnx.ValueInfoProto:
        """Return type and, where it is known, shape of a tensor that passes; codes have that of what they are of."""
        if name in self.joints:
            return self.joints[name]
        node = self.nodes[self.producer[name]]
        info = onnx.ValueInfoProto(name=name)
        info.type.tensor_type.elem_type = self.weights[node.input[2]].data_type
        real = self.inputs.get(node.input[0]) or self.types.get(node.input[0])
        if real is not None and real.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.CopyFrom(real.type.tensor_type.shape)
        return info
