"""Models of float16, bfloat16 or float64 as float32 models that take and give what they did."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, shape_inference

from int8cal.errors import ModelError, naming
from int8cal.graph.edit import Builder, Names, constant, instead, name_nodes, refill, without_initialized_inputs
from int8cal.graph.index import walk
from int8cal.graph.load import is_quantized, load_model
from int8cal.graph.random_numbers import random_ops
from int8cal.numerics.bfloat16 import from_bits
from int8cal.phrases import quoted
from int8cal.protos import all_tensors, graphs_within, metadata_of, outline, set_metadata, subgraphs, tensor_bytes
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from int8cal.numerics import Array

# Metadata of a model that was converted: the types that it had, "float16" or "bfloat16, float16".
CONVERTED = "int8cal.converted_from"
HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_NAMES: dict[int, str] = {
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
}
_SMALLEST_STORED = 1024  # bytes in float32
# Attributes that hold an element type.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"})
# Ops whose weights can become int8: a model that multiplies float64 only elsewhere stays as it is.
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN"})


def in_float32(model: onnx.ModelProto) -> None:
    """Make a model compute in float32, with a Cast behind each input and in front of each output of another type.

    Weights keep their values where they were float16 or bfloat16; float64 is rounded, and is converted only where a
    product has float64 weights. Must not touch a tensor that is made by a Cast to 16 bits and read by Casts alone: it
    is there to be rounded. The inner tensors of an input or output "x" are called "x_float32". The entry `CONVERTED` of
    the model's metadata says what was converted.

    Args:
        model: Not quantized; no initializer is a graph input. Changed in place.

    Raises:
        ModelError: A weight of a product is beyond float32.
    """
    kept = _rounded(model)
    types = _types_of(model, kept)
    if not types:
        return
    if onnx.TensorProto.DOUBLE in types:
        _require_range(model)
    for tensor in all_tensors(model.graph):
        _convert(tensor, types)
    functions = [node for function in model.functions for node in function.node]
    for node in (*walk(model.graph), *(each for outer in functions for each in _with_inner(outer))):
        if not kept & set(node.output):
            _convert_attributes(node, types)
    for number, graph in enumerate(graphs_within(model.graph)):
        # inference knows better than what is declared of inner tensors
        refill(graph.value_info, [value for value in graph.value_info if _element(value.type) not in types])
        for value in (*graph.input, *graph.output) if number else ():
            _convert_type(value.type, types)
    _cast_ends(model.graph, types)
    set_metadata(model, CONVERTED, ", ".join(sorted(_NAMES[each] for each in types)))


def plain_casts(model: onnx.ModelProto) -> None:
    """Turn each CastLike of the main graph into the Cast that it is, which the runtime folds; its types must be known.

    The runtime itself makes a Cast of it, but only after constants are folded.
    """
    found = [node for node in model.graph.node if node.op_type == "CastLike"]
    if not found:
        return
    graph = shape_inference.infer_shapes(outline(model)).graph
    types = {value.name: _element(value.type) for value in (*graph.input, *graph.value_info, *graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in found:
        if types.get(node.input[1]):
            node.CopyFrom(instead(node, "Cast", node.input[:1], to=types[node.input[1]]))


@dataclass(frozen=True, eq=False)
class Reference:
    """A float model, loaded once, and what is run for it.

    Attributes:
        given: The file or the model as it was given.
        model: In memory, in float32.
        run: What a session opens: a file where there is one and it is what is run; one that draws random numbers is
            run in memory, where its numbers repeat.
        shared: Names that several nodes of one graph had in it; in what is run each has one of its own.
    """

    given: Path | onnx.ModelProto
    model: onnx.ModelProto
    run: Path | onnx.ModelProto
    shared: tuple[str, ...] = ()


def float32_reference(model: Path | onnx.ModelProto | Reference) -> Reference:
    """Load a float model, and return what it is run as: itself, or its copy in float32.

    onnxruntime's CPU provider computes in float32 too, between Casts of its own; but of some models of 16 bits that it
    cannot load it says so, and of others it ends the process. It loads no model whose nodes share a name.

    Args:
        model: A file or a model in memory, one that is quantized is run as it is; or what this returned.

    Raises:
        ModelError: It cannot be loaded, or float32 cannot hold its weights.
    """
    if isinstance(model, Reference):
        return model
    loaded = load_model(model) if isinstance(model, Path) else model
    quantized = is_quantized(loaded)
    shared = () if quantized else _shared_names(loaded)
    if quantized or not (shared or _types_of(loaded, _rounded(loaded))):
        return Reference(model, loaded, loaded if random_ops(loaded) else model)
    copy = onnx.ModelProto()
    copy.CopyFrom(loaded)
    for graph in graphs_within(copy.graph) if shared else ():
        name_nodes(graph)
    without_initialized_inputs(copy.graph)
    with naming(str(model)) if isinstance(model, Path) else nullcontext():
        in_float32(copy)
    return Reference(model, copy, copy, shared)


def _shared_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names that several nodes of one graph have, in their order."""
    counts = [Counter(node.name for node in graph.node if node.name) for graph in graphs_within(model.graph)]
    return tuple(dict.fromkeys(name for each in counts for name, count in each.items() if count > 1))


def told(model: onnx.ModelProto) -> tuple[str, ...]:
    """Say of a model that was converted what it was, for warnings."""
    types = metadata_of(model, CONVERTED)
    if types is None:
        return ()
    how = "it was calibrated, and is compared, in float32, in speed too; size is beside its own file"
    return (f"the model has tensors in {types}: {how}",)


def told_shared(reference: Reference) -> tuple[str, ...]:
    """Say of a float model that its nodes shared names, for warnings."""
    if not reference.shared:
        return ()
    named = quoted(reference.shared[:3]) + ("…" if len(reference.shared) > 3 else "")
    return (f"several nodes are named {named}: onnxruntime does not load such a file, so each was given its own name",)


def in_their_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Store the weights of a converted model that are still float as they were: in 16 bits, behind a Cast to float32.

    The runtime computes these Casts when it loads the model. Must not touch a constant that 16 bits do not hold
    exactly, or so small that the node would be larger than what it saves.

    Args:
        model: Has the entry `CONVERTED` if it was converted; otherwise it is given back as it is. Changed in place.
    """
    types = [each for each in HALVES if _NAMES[each] in (metadata_of(model, CONVERTED) or "").split(", ")]
    if not types:
        return model
    names = Names(model.graph)
    for graph in graphs_within(model.graph):
        _store(graph, names, types)
    return model


def _store(graph: onnx.GraphProto, names: Names, types: Collection[int]) -> None:
    built = Builder(names)
    for tensor in graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or tensor_bytes(tensor) < _SMALLEST_STORED:
            continue
        values = values_of(tensor)
        for each in types:
            with np.errstate(over="ignore"):
                half = values.astype(helper.tensor_dtype_to_np_dtype(each))  # plain bits where onnx is before 1.19
            if half.dtype.kind != "u" and np.array_equal(half.astype(np.float32), values):
                name = tensor.name
                tensor.CopyFrom(constant(names.tensor(f"{name}_{_NAMES[each]}"), half))
                built.node("Cast", [tensor.name], name, to=onnx.TensorProto.FLOAT)
                break
    refill(graph.node, [*built.nodes, *graph.node])


def _types_of(model: onnx.ModelProto, kept: Collection[str]) -> set[int]:
    """Return the element types of a model that are to become float32; tensors that are kept do not count."""
    found = {tensor.data_type for tensor in all_tensors(model.graph)}
    found |= {_element(value.type) for value in (*model.graph.input, *model.graph.output)}
    for node in walk(model.graph):
        if not (node.output and node.output[0] in kept):
            found |= {item.i for item in node.attribute if item.name in _TYPE_ATTRIBUTES}
    for function in model.functions:
        for outer in function.node:
            for node in _with_inner(outer):
                found |= {item.t.data_type for item in node.attribute if item.type == onnx.AttributeProto.TENSOR}
    types = found & set(HALVES)
    if onnx.TensorProto.DOUBLE in found and _multiplies_float64(model):
        types.add(onnx.TensorProto.DOUBLE)
    return types


def _multiplies_float64(model: onnx.ModelProto) -> bool:
    """Whether a product reads a float64 constant, as it is or behind nodes that keep its type."""
    double = {
        tensor.name
        for graph in graphs_within(model.graph)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.DOUBLE
    }
    for node in walk(model.graph):
        values = [item.t for item in node.attribute if item.name == "value"]
        made = bool(node.input) and node.input[0] in double and node.op_type != "Cast"
        if made and node.op_type in _PRODUCTS:
            return True
        if any(name in double for name in node.input[1:3]) and node.op_type in _PRODUCTS:
            return True
        if made or any(value.data_type == onnx.TensorProto.DOUBLE for value in values):
            double.update(node.output)
    return False


def _rounded(model: onnx.ModelProto) -> set[str]:
    """Name the tensors that a Cast rounds to 16 bits, and that only Casts to other types read."""
    halves = {
        str(node.output[0])
        for node in walk(model.graph)
        if node.op_type == "Cast" and any(item.name == "to" and item.i in HALVES for item in node.attribute)
    }
    for node in walk(model.graph):
        if node.op_type != "Cast" or node.output[0] in halves:
            halves.difference_update(node.input)
    for graph in graphs_within(model.graph):
        halves.difference_update(value.name for value in graph.output)
    constants = {tensor.name for graph in graphs_within(model.graph) for tensor in graph.initializer}
    read = {name for node in walk(model.graph) for name in node.input}
    sources = {str(node.output[0]): node.input[0] for node in walk(model.graph) if node.output and node.input}
    return {name for name in halves if name in read and sources[name] not in constants}


def _require_range(model: onnx.ModelProto) -> None:
    """Refuse float64 weights of products beyond float32: cut to it, they would be those of another model.

    Raises:
        ModelError: Names the weight, its node and the value.
    """
    doubles = {
        tensor.name: tensor
        for graph in graphs_within(model.graph)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.DOUBLE
    }
    for node in walk(model.graph):
        if node.op_type not in _PRODUCTS:
            continue
        operands = 3 if node.op_type in ("LSTM", "GRU", "RNN") else 2  # a bias behind them may mask
        for name in filter(doubles.__contains__, node.input[:operands]):
            values = array_of(doubles.pop(name))
            far = values[np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)]
            if far.size:
                what = (
                    f"weight {name!r} of {node.op_type} {node.name!r} holds {far[0]:.4g}, and float32 ends at 3.4e+38"
                )
                fields = {"tensor": name, "node": node.name, "graph": model.graph.name}
                raise ModelError(what, do="scale the weight down, or repair it", **fields)


def _convert(tensor: onnx.TensorProto, types: Collection[int]) -> None:
    if tensor.data_type not in types:
        return
    values = array_of(tensor)
    if tensor.data_type == onnx.TensorProto.DOUBLE:
        # bounds such as 1.8e308 stand for no bound
        largest = float(np.finfo(np.float32).max)
        values = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    tensor.CopyFrom(constant(tensor.name, values.astype(np.float32)))


def array_of(tensor: onnx.TensorProto) -> Array:
    """Read a tensor, one of bfloat16 as float32."""
    if tensor.data_type != onnx.TensorProto.BFLOAT16:
        return values_of(tensor)
    # onnx before 1.19 has no numpy type for it, and reads something else
    bits = np.frombuffer(tensor.raw_data, "<u2") if tensor.HasField("raw_data") else np.array(tensor.int32_data)
    return from_bits(bits).reshape(tuple(tensor.dims))


def _convert_attributes(node: onnx.NodeProto, types: Collection[int]) -> None:
    for item in node.attribute:
        if item.type == onnx.AttributeProto.TENSOR:
            _convert(item.t, types)
        elif item.type == onnx.AttributeProto.INT and item.name in _TYPE_ATTRIBUTES and item.i in types:
            item.i = onnx.TensorProto.FLOAT
        elif item.type == onnx.AttributeProto.TYPE_PROTO:
            _convert_type(item.tp, types)


def _convert_type(kind: onnx.TypeProto, types: Collection[int]) -> None:
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = getattr(kind, kind.WhichOneof("value")).elem_type
    if _element(kind) in types:
        kind.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _element(kind: onnx.TypeProto) -> int:
    return int(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else 0


def _with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    yield node
    for graph in subgraphs(node):
        yield from walk(graph)


def _cast_ends(graph: onnx.GraphProto, types: Collection[int]) -> None:
    """Let inputs and outputs keep their types: what is computed from and for them is float32, behind a Cast."""
    names, first, last, renamed = Names(graph), [], [], dict[str, str]()
    inputs = {value.name for value in graph.input}
    for value in (*graph.input, *graph.output):
        element, name = _element(value.type), value.name
        if element not in types or name in renamed:
            continue
        renamed[name] = names.tensor(f"{name}_float32")
        node = names.node(f"{name}_Cast")
        if name in inputs:
            first.append(helper.make_node("Cast", [name], [renamed[name]], name=node, to=onnx.TensorProto.FLOAT))
        else:
            last.append(helper.make_node("Cast", [renamed[name]], [name], name=node, to=element))
    for number, each in enumerate(graphs_within(graph)):
        hidden = {value.name for value in each.input} if number else set()
        for inner in each.node:
            inner.input[:] = [name if name in hidden else renamed.get(name, name) for name in inner.input]
            inner.output[:] = [name if number else renamed.get(name, name) for name in inner.output]
        for value in each.output if number else ():
            value.name = renamed.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    refill(graph.node, [*first, *graph.node, *last])
