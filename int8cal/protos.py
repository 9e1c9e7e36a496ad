"""Model protos of any size: protobuf cannot serialize 2 GiB, nor even say how large such a message is."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from int8cal.stored import file_place, folder, is_stored, values_of, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

# Bytes of weights above which they leave the message; below 2 GiB, with room for the graph around them.
LIMIT = 1_800_000_000
# Weights above this many bytes reach the runtime in a file that it maps, instead of a message that is copied twice.
MAPPED = 16_000_000
# Smaller tensors stay in the message: shapes and axes among them, which shape inference reads.
_SMALLEST_EXTERNAL = 1024
_ALIGNMENT = 4096
# of attributes; looked up once, and not for each of a hundred thousand
_TENSOR, _GRAPH, _GRAPHS = (getattr(onnx.AttributeProto, name) for name in ("TENSOR", "GRAPH", "GRAPHS"))


@dataclass(frozen=True)
class ModelView:
    """A model with other nodes or outputs, on the weights of the model that it was made from; nothing is copied.

    Attributes:
        shell: The changed graph, without the initializers of its main graph.
        weights: The model that holds them.
    """

    shell: onnx.ModelProto
    weights: onnx.ModelProto

    def assemble(self) -> onnx.ModelProto:
        """Return one model in memory, weights copied, and none of them stored."""
        result = onnx.ModelProto()
        result.CopyFrom(self.shell)
        result.graph.initializer.extend(self.weights.graph.initializer)
        return with_values(result)


def copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """Copy a node."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def metadata_of(model: onnx.ModelProto, key: str) -> str | None:
    """Return an entry of a model's metadata, None where it has none of that name."""
    return next((str(item.value) for item in model.metadata_props if item.key == key), None)


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    """Write an entry of a model's metadata, over one of that name."""
    entry = next((item for item in model.metadata_props if item.key == key), None)
    if entry is None:
        entry = model.metadata_props.add(key=key)
    entry.value = value


def with_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose message holds all values: itself where none of its tensors is stored."""
    if not any(is_stored(tensor) for tensor in all_tensors(model.graph)):
        return model
    result = without_weights(model)
    for tensor in model.graph.initializer:
        result.graph.initializer.append(whole(tensor))
    for tensor in all_tensors(result.graph, main=False):
        if is_stored(tensor):
            tensor.CopyFrom(whole(tensor))
    return result


def view_of(model: onnx.ModelProto) -> ModelView:
    """Start a view that equals the model; change its shell."""
    return ModelView(without_weights(model), model)


def shell_of(model: onnx.ModelProto | ModelView) -> onnx.ModelProto:
    """Return the message with the nodes, inputs and outputs of a model or view."""
    return model.shell if isinstance(model, ModelView) else model


def weight_bytes(model: onnx.ModelProto) -> int:
    """Return the size of all tensors of a model in bytes, whatever holds them."""
    return sum(tensor_bytes(tensor) for tensor in all_tensors(model.graph))


def is_large(model: onnx.ModelProto) -> bool:
    """Whether the model's weights are too large for one protobuf message."""
    return weight_bytes(model) >= LIMIT


def emptied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model except for its graph: opsets, functions, metadata."""
    result = onnx.ModelProto()
    _copy_fields(model, result, leave_out="graph")
    return result


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model except for the initializers of its main graph, so that no weight is copied only to be dropped."""
    result = emptied(model)
    _copy_fields(model.graph, result.graph, leave_out="initializer")
    return result


def outline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with large initializers as name, type and shape alone: what shape inference needs."""
    result = without_weights(model)
    for tensor in model.graph.initializer:
        if tensor_bytes(tensor) < _SMALLEST_EXTERNAL:
            result.graph.initializer.append(tensor)
            continue
        stub = result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        stub.data_location = onnx.TensorProto.EXTERNAL
        stub.external_data.add(key="location", value="outline")
    return result


def write_split(model: onnx.ModelProto | ModelView, path: Path, data: Path, location: str) -> None:
    """Write a model whose large tensors are in a second file, holding one of them in memory at a time.

    Args:
        model: Any size; not changed.
        path: Receives the graph. Tensors that are stored stay where they are if it comes into their folder.
        data: Receives the others, each at a multiple of 4096 bytes.
        location: What the graph calls the second file.
    """
    source = model if isinstance(model, ModelView) else view_of(model)
    result = onnx.ModelProto()
    result.CopyFrom(source.shell)
    stay = folder() if folder() == path.parent else None
    own = [tensor for tensor in result.graph.initializer if is_stored(tensor)]
    with data.open("wb") as stream:
        for tensor in source.weights.graph.initializer:
            result.graph.initializer.append(_moved(tensor, stream, location, stay))
        for tensor in (*own, *all_tensors(result.graph, main=False)):
            tensor.CopyFrom(_moved(tensor, stream, location, stay))
    path.write_bytes(result.SerializeToString(deterministic=True))


def _moved(tensor: onnx.TensorProto, stream: BinaryIO, location: str, stay: Path | None) -> onnx.TensorProto:
    if is_stored(tensor):
        file, offset, length = file_place(tensor)
        if stay is not None and file.is_relative_to(stay):
            return _external(tensor, file.relative_to(stay).as_posix(), offset, length)
        content = np.ascontiguousarray(values_of(tensor)).reshape(-1).view(np.uint8).data
    elif tensor_bytes(tensor) < _SMALLEST_EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        return tensor
    else:  # typed fields (float_data) are legal too, but only raw bytes can be external
        raw = tensor if tensor.HasField("raw_data") else numpy_helper.from_array(numpy_helper.to_array(tensor))
        content = memoryview(raw.raw_data)
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    result = _external(tensor, location, stream.tell(), len(content))
    stream.write(content)
    return result


def _external(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> onnx.TensorProto:
    result = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=b"")
    external_data_helper.set_external_data(result, location=location, offset=offset, length=length)
    result.ClearField("raw_data")
    return result


@dataclass(frozen=True)
class PackedModel:
    """A model of any size that another process can be sent: pickled, its weights are buffers that nobody copies.

    Attributes:
        shell: The message without the initializers of its main graph.
        tensors: Each of these without its values, and the values.
    """

    shell: bytes
    tensors: tuple[tuple[bytes, npt.NDArray[np.uint8]], ...]

    @staticmethod
    def of(model: onnx.ModelProto) -> PackedModel:
        """Pack a model, which is not changed."""
        tensors = []
        for tensor in model.graph.initializer:
            head, held = onnx.TensorProto(), whole(tensor)
            _copy_fields(held, head, leave_out="raw_data")
            tensors.append((head.SerializeToString(), np.frombuffer(held.raw_data, np.uint8)))
        return PackedModel(without_weights(model).SerializeToString(), tuple(tensors))

    def model(self) -> onnx.ModelProto:
        """Make the model again."""
        result = onnx.ModelProto()
        result.ParseFromString(self.shell)
        for head, values in self.tensors:
            tensor = result.graph.initializer.add()
            tensor.ParseFromString(head)
            if values.size:
                tensor.raw_data = values.tobytes()
        return result


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's values in bytes, from its type and shape; 0 for strings."""
    if tensor.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    values: int = math.prod(tensor.dims)
    return values * _item_bytes(tensor.data_type)


@functools.cache
def _item_bytes(data_type: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def fault_of(tensor: onnx.TensorProto) -> str:
    """Say what is wrong with how a tensor holds its values, such as fewer of them than its shape says; "" for nothing.

    Types of which several values are in a byte, and text, are not counted.
    """
    if tensor.data_type == onnx.TensorProto.UNDEFINED or min(tensor.dims, default=0) < 0:
        return "has no element type or a negative dimension"
    if tensor.HasField("segment"):
        return "is a part of a tensor, which nothing reads"
    if is_stored(tensor):  # of which the length was seen
        return ""
    if tensor.HasField("raw_data"):
        return fault_of_length(tensor, len(tensor.raw_data))
    if tensor.data_type in _NOT_COUNTED:
        return ""
    held = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    expected = math.prod(tensor.dims)
    return f"has {held} of {expected} values" if held != expected else ""


def fault_of_length(tensor: onnx.TensorProto, length: int) -> str:
    """Say that so many bytes are not what a tensor's shape and type take; "" where they are, or are not counted."""
    if tensor.data_type in _NOT_COUNTED or length == tensor_bytes(tensor):
        return ""
    return f"has {length} of {tensor_bytes(tensor)} bytes"


_NOT_COUNTED = frozenset(
    getattr(onnx.TensorProto, name, -1)
    for name in ("STRING", "UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2", "COMPLEX64", "COMPLEX128")
)


def texts(model: onnx.ModelProto) -> Iterator[tuple[str, str | bytes]]:
    """Walk over all text of a model: names of nodes, tensors and inputs, op types, metadata, documentation.

    Yields:
        What it is ("name of a NodeProto"), and the text; bytes where it is no UTF-8.
    """
    left: list[Any] = [model]
    while left:
        message = left.pop()
        for name, told, repeated in _fields(message.DESCRIPTOR):
            value = getattr(message, name)
            if told:
                if repeated:
                    for text in value:
                        yield told, text
                else:
                    yield told, value
            elif repeated:
                left.extend(value)
            elif message.HasField(name):
                left.append(value)


# values of a tensor are many, and none of them is text
_TENSOR_TEXTS = frozenset({"name", "doc_string", "external_data"})


@functools.cache
def _fields(descriptor: Any) -> tuple[tuple[str, str, bool], ...]:
    """List the fields that are or hold text: name, what its text is called or "", whether there are several."""
    kind = descriptor.name
    of = f"of {'an' if kind[0] in 'AEIOU' else 'a'} {kind}"
    return tuple(
        (field.name, f"{field.name} {of}" if field.message_type is None else "", bool(field.is_repeated))
        for field in descriptor.fields
        if (field.type == field.TYPE_STRING or field.message_type is not None)
        and (kind != "TensorProto" or field.name in _TENSOR_TEXTS)
    )


def all_tensors(graph: onnx.GraphProto, *, main: bool = True) -> Iterator[onnx.TensorProto]:
    """Walk over the initializers of a graph (`main`) and of the graphs and tensors in its nodes' attributes."""
    left = [(graph, main)]
    while left:
        each, own = left.pop()
        if own:
            yield from each.initializer
        inner: list[tuple[onnx.GraphProto, bool]] = []
        for node in each.node:
            for attribute in node.attribute:
                kind = attribute.type
                if kind == _TENSOR:
                    yield attribute.t
                elif kind == _GRAPH:
                    inner.append((attribute.g, True))
                elif kind == _GRAPHS:
                    inner += ((one, True) for one in attribute.graphs)
        left += reversed(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Iterate over the graphs in a node's attributes (If, Loop, Scan)."""
    for item in node.attribute:
        kind = item.type
        if kind == _GRAPH:
            yield item.g
        elif kind == _GRAPHS:
            yield from item.graphs


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Iterate over a graph, first, and the graphs in its nodes' attributes, at any depth."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_within(inner)


def _copy_fields(source: Any, target: Any, *, leave_out: str) -> None:
    for field, value in source.ListFields():
        if field.name == leave_out:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
