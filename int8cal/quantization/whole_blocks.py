"""Channels of zeros around depthwise convolutions, up to whole blocks of what the runtime computes at once.

Its integer kernel for them takes 2.3 times as long where channels are left over behind the last block of 16, and for
fewer than 16 channels 1.3 to 3.3 times as long as for these. So the layers in front write channels of zeros behind
theirs, and the layers behind have weights of zero for them: each sum stays the same. What lies between handles every
channel alike. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

from int8cal.errors import ModelError
from int8cal.graph.edit import Names, constant, instead, refill
from int8cal.graph.index import Index, Use, attribute
from int8cal.protos import metadata_of, set_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from int8cal.numerics import Array

WIDE_KEY = "int8cal.wide"  # metadata: how many channels come before those of zeros, by tensor

# Ops that do the same to every channel, whatever it holds. What they read beside is one value, or in arithmetic a value
# for each channel; the first ones make zeros of zeros.
_KEEP_ZEROS = frozenset({
    "AveragePool", "DequantizeLinear", "GlobalAveragePool", "GlobalMaxPool", "HardSwish", "Identity", "LeakyRelu",
    "MaxPool", "Mul", "QuantizeLinear", "Relu",
})  # fmt: skip
_ALIKE = _KEEP_ZEROS | {"Add", "Cast", "Clip", "Elu", "HardSigmoid", "Mish", "Sigmoid", "Softplus", "Sub", "Tanh"}
_ARITHMETIC = frozenset({"Add", "Mul", "Sub"})


@dataclass
class _Region:
    """Tensors whose channels are widened together, and all that reads and writes them.

    Attributes:
        rank: Of each of them.
        tensors: Their channels by name.
        depthwise, writers, readers: Convolutions within it, in front of it and behind it.
        pads: Pads that add channels.
        vectors: Constants with a value for each channel: the node that reads them, and its input.
        keeps_zeros: Added channels are zero everywhere.
    """

    rank: int
    tensors: dict[str, int] = field(default_factory=dict)
    depthwise: dict[str, onnx.NodeProto] = field(default_factory=dict)
    writers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    pads: dict[str, onnx.NodeProto] = field(default_factory=dict)
    vectors: dict[tuple[str, int], onnx.NodeProto] = field(default_factory=dict)
    keeps_zeros: bool = True


def in_whole_blocks(model: onnx.ModelProto, block: int) -> onnx.ModelProto:
    """Add channels of zeros to an int8 model around depthwise convolutions whose channels leave a block unfinished.

    Args:
        model: The QDQ model, which stays as it is.
        block: Channels that the kernel computes at once; 0 for none.

    Returns:
        The model where there is nothing to add, else another one with the same outputs.
    """
    if not block or next(_unfinished(model, block), None) is None:
        return model  # before any copy
    result = onnx.ModelProto()
    result.CopyFrom(model)
    index = Index(result)
    regions = list(_regions(index, block))
    if not regions:
        return model
    _widen(index, regions, block)
    shown = {node.input[0] for node in result.graph.node if node.op_type == "QuantizeLinear"}
    channels = {
        name: count for each in regions for name, count in each.tensors.items() if name in shown and count % block
    }
    set_metadata(result, WIDE_KEY, json.dumps(channels))
    return result


def real_channels(model: onnx.ModelProto) -> dict[str, int]:
    """Return by tensor how many of its channels, in axis 1, come before those of zeros.

    Raises:
        ModelError: The record in the model is malformed.
    """
    text = metadata_of(model, WIDE_KEY) or "{}"
    try:
        found = json.loads(text)
        if all(isinstance(count, int) for count in found.values()):
            return dict(found)
    except (ValueError, AttributeError):
        pass
    raise ModelError(f"its record {WIDE_KEY!r} is damaged: {text[:60]!r}", do="quantize the model again")


def _unfinished(model: onnx.ModelProto, block: int) -> Iterator[onnx.NodeProto]:
    """Iterate over the convolutions with so many groups that the last block of them is not whole."""
    for node in model.graph.node:
        groups = attribute(node, "group", 1) if node.op_type == "Conv" else 1
        if groups > 1 and groups % block:
            yield node


def _regions(index: Index, block: int) -> Iterator[_Region]:
    """Find what can be widened as a whole: all that is connected with a depthwise convolution, up to other layers."""
    seen: set[str] = set()
    for node in _unfinished(index.model, block):
        if node.output[0] not in seen and _is_depthwise(index, node):
            region = _Region(len(_shape(index, node.input[1]) or ()))
            fits = _grow(region, index, node.output[0], attribute(node, "group", 1))
            seen.update(region.tensors)
            if fits and (region.keeps_zeros or not region.pads):
                yield region


def _grow(region: _Region, index: Index, first: str, channels: int) -> bool:
    """Take in all tensors that are as wide as this one; returns whether all around them can be widened.

    It goes on behind what cannot, so that nobody has to come this way again.
    """
    fits = True
    waiting = [(first, channels)]
    while waiting:
        tensor, count = waiting.pop()
        if tensor in region.tensors:
            fits = fits and region.tensors[tensor] == count
            continue
        region.tensors[tensor] = count
        node = index.producer.get(tensor)
        if node is None or tensor in index.outputs:
            fits = False
        uses = [Use(node, -1)] if node is not None else []
        for use in (*uses, *index.uses.get(tensor, ())):
            found = _joined(region, index, use, count)
            if found is None:
                fits = False
            else:
                waiting += found
    return fits


def _joined(region: _Region, index: Index, use: Use, channels: int) -> list[tuple[str, int]] | None:
    """Note a node that writes (slot -1) or reads a tensor with so many channels.

    Returns:
        The tensors that are widened with it, and their channels; None where it does something else with channels.
    """
    node, slot = use
    if node.op_type == "Conv" and not node.domain and slot <= 0:
        return _at_convolution(region, index, use, channels)
    if node.op_type == "Pad" and not node.domain and slot <= 0:
        return _at_pad(region, index, use, channels)
    if node.domain or node.op_type not in _ALIKE or len(node.output) != 1:
        return None
    wide = [(node.output[0], channels)]
    for position, name in enumerate(node.input):
        if name and name not in index.derived:
            wide.append((name, channels))
        elif name and not _is_single(index, name):
            if node.op_type not in _ARITHMETIC or not _is_vector(index, name, channels, region.rank):
                return None
            region.vectors[node.name, position] = node
        elif name and node.op_type in ("Add", "Sub"):
            region.keeps_zeros = False
    region.keeps_zeros = region.keeps_zeros and (node.op_type in _KEEP_ZEROS or node.op_type in _ARITHMETIC)
    return wide


def _at_convolution(region: _Region, index: Index, use: Use, channels: int) -> list[tuple[str, int]] | None:
    node, slot = use
    shape = _shape(index, node.input[1])
    if shape is None or not all(_is_own(index, name, node) for name in node.input[1:] if name):
        return None
    if _is_depthwise(index, node):
        region.depthwise[node.name] = node
        return [(node.input[0], shape[0]), (node.output[0], shape[0])]
    if attribute(node, "group", 1) != 1 or shape[1 if slot == 0 else 0] != channels:
        return None
    if slot == 0 and channels % 2 and math.prod(shape[2:]) > 1:
        return None  # other weights would meet in one instruction of CPUs without VNNI, see docs/saturation.md
    (region.readers if slot == 0 else region.writers)[node.name] = node
    return []


def _at_pad(region: _Region, index: Index, use: Use, channels: int) -> list[tuple[str, int]] | None:
    """Take in a Pad with zeros that adds channels behind the last one, or none."""
    node, slot = use
    stored = all(name in index.initializers for name in node.input[1:] if name)
    if attribute(node, "mode", b"constant") != b"constant" or len(node.input) > 3 or not stored:
        return None
    pads = index.constant(node.input[1])
    if not _adds_zeros(index, node) or len(pads) != 2 * region.rank or pads[1] != 0 or pads[1 + region.rank] < 0:
        return None
    more = int(pads[1 + region.rank])
    if more:
        region.pads[node.name] = node
    return [(node.output[0], channels + more)] if slot == 0 else [(node.input[0], channels - more)]


def _adds_zeros(index: Index, pad: onnx.NodeProto) -> bool:
    """Whether a Pad adds zeros, which of codes are zero points."""
    if len(pad.input) < 3 or not pad.input[2]:
        return True
    before = index.producer.get(pad.input[0])
    if before is not None and before.op_type in ("QuantizeLinear", "Pad"):
        return len(before.input) > 2 and before.input[2] == pad.input[2]
    value = index.constant(pad.input[2])
    return value.dtype.kind == "f" and not value.any()


def _is_depthwise(index: Index, node: onnx.NodeProto) -> bool:
    shape = _shape(index, node.input[1])
    return shape is not None and shape[1] == 1 and shape[0] == attribute(node, "group", 1) > 1


def _is_own(index: Index, name: str, node: onnx.NodeProto) -> bool:
    """Whether a constant of a convolution is stored as it is, or as codes that nobody else dequantizes there."""
    source = index.producer.get(name)
    if source is None:
        return name in index.initializers
    return (
        source.op_type == "DequantizeLinear"
        and all(each in index.initializers for each in source.input if each)
        and not attribute(source, "block_size", 0)
        and index.only_reader(name) is node
    )


def _shape(index: Index, name: str) -> tuple[int, ...] | None:
    """Return the shape of a stored constant, dequantized or not; None where it is not stored."""
    source = index.producer.get(name)
    if source is not None and source.op_type == "DequantizeLinear":
        name = source.input[0]
    tensor = index.initializers.get(name)
    return None if tensor is None else tuple(tensor.dims)


def _is_single(index: Index, name: str) -> bool:
    shape = _shape(index, name)
    return shape is not None and math.prod(shape) == 1


def _is_vector(index: Index, name: str, channels: int, rank: int) -> bool:
    """Whether a stored constant has a value for each channel, and one for all positions."""
    dims = list(index.initializers[name].dims) if name in index.initializers else []
    return len(dims) in (rank - 1, rank) and dims[1 - rank] == channels == math.prod(dims)


class _Edit(NamedTuple):
    """What input number `slot` of a node reads from now on."""

    node: onnx.NodeProto
    slot: int
    value: Array


def _widen(index: Index, regions: list[_Region], block: int) -> None:
    edits: list[_Edit] = []
    rows = {name: node for region in regions for name, node in (region.writers | region.depthwise).items()}
    columns = {name: node for region in regions for name, node in region.readers.items()}
    for name, node in (rows | columns).items():
        shape = _shape(index, node.input[1]) or ()
        added = {axis: -shape[axis] % block for axis, nodes in enumerate((rows, columns)) if name in nodes}
        edits += _of_constant(index, node, 1, added)
        if name in rows and len(node.input) > 2 and node.input[2]:
            edits += _of_constant(index, node, 2, {0: added[0]})
    for region in regions:
        for node in region.depthwise.values():
            group = next(each for each in node.attribute if each.name == "group")
            group.i += -group.i % block
        for (_, slot), node in region.vectors.items():
            value = index.constant(node.input[slot])
            axis = value.ndim + 1 - region.rank
            edits.append(_Edit(node, slot, _longer(value, {axis: -value.shape[axis] % block})))
        for node in region.pads.values():
            before, behind = (region.tensors[name] for name in (node.input[0], node.output[0]))
            pads = np.array(index.constant(node.input[1]))
            pads[1 + region.rank] += -behind % block - -before % block
            if pads.any():
                edits.append(_Edit(node, 1, pads))
            else:
                node.CopyFrom(instead(node, "Identity", node.input[:1]))
    _apply(index, edits)
    # what is told of shapes is not true any more
    stale = {name for region in regions for name in region.tensors} | {edit.node.output[0] for edit in edits}
    refill(index.graph.value_info, [value for value in index.graph.value_info if value.name not in stale])


def _of_constant(index: Index, node: onnx.NodeProto, slot: int, added: Mapping[int, int]) -> Iterator[_Edit]:
    """Make longer what a convolution reads: by zeros, as codes zero points, and where there are more rows by scales."""
    source = index.producer.get(node.input[slot])
    if source is None:
        yield _Edit(node, slot, _longer(index.constant(node.input[slot]), added))
        return
    values, *others = (index.constant(name) for name in source.input if name)
    yield _Edit(source, 0, _longer(values, added, others[1] if len(others) > 1 else None))
    more = added.get(attribute(source, "axis", 1) % values.ndim, 0)
    for position, each in enumerate(others, start=1):
        if each.size > 1:
            yield _Edit(source, position, _longer(each, {0: more}, each))


def _longer(values: Array, added: Mapping[int, int], like: Array | None = None) -> Array:
    """Append entries along axes: zeros, or the last value of another array."""
    last = 0 if like is None else like.reshape(-1)[-1]
    return np.pad(values, [(0, added.get(axis, 0)) for axis in range(values.ndim)], constant_values=last)


def _apply(index: Index, edits: list[_Edit]) -> None:
    """Write new constants, each under the name of the one before it where that is read no more."""
    graph = index.graph
    variants: dict[str, dict[bytes, list[_Edit]]] = defaultdict(lambda: defaultdict(list))
    for edit in edits:
        variants[edit.node.input[edit.slot]][edit.value.tobytes()].append(edit)
    names = Names(graph)
    made: dict[str, onnx.TensorProto] = {}
    for name, by_value in variants.items():
        is_free = len(index.uses[name]) == sum(map(len, by_value.values())) and name not in index.outputs
        for number, same in enumerate(by_value.values()):
            own = name if is_free and not number else names.beside(name, "wide")
            made[own] = constant(own, same[0].value)
            for edit in same:
                edit.node.input[edit.slot] = own
    refill(graph.initializer, [*(tensor for tensor in graph.initializer if tensor.name not in made), *made.values()])
