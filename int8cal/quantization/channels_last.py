"""Where integer layers begin behind float ones, codes pass one convolution that changes nothing.

onnxruntime's integer convolutions read and write codes with channels last. It moves the Transposes around them through
the nodes between, to where they meet: through an Add where all operands come with one. A sum of what a convolution
wrote and of what was quantized with channels in front keeps them, and so does every sum behind it: a residual network
behind a float layer had 94 Transposes, and MaxPools with channels in front, which take four times as long. A
convolution with one weight of 1 for each channel has Transposes of its own. Its codes are those that it reads, to the
bit, since 64 / 64 is exact. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import onnx

from int8cal.graph.edit import Builder, Names, refill
from int8cal.graph.index import Index, attribute, connected
from int8cal.graph.ops import op_of

_ONE = 64  # the code of the weights: products of two codes stay far below what an instruction can hold
_WORTH = 6  # sums for each convolution, which takes as long as some Transposes
_JOINS = frozenset({"Add", "Concat", "Mul"})
_KEEPS = frozenset({
    "AveragePool", "Clip", "Elu", "FastGelu", "Gelu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu",
    "MaxPool", "Pad", "Relu", "Sigmoid", "Softmax", "Softplus", "Tanh",
})  # fmt: skip


class _Begin(NamedTuple):
    """Codes that are made of a float tensor with channels in front, and how many channels there are."""

    quantize: onnx.NodeProto
    channels: int


def with_channels_last(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write such convolutions where codes of a float tensor meet those of a convolution.

    Args:
        model: The QDQ model, which stays as it is.

    Returns:
        The model where there is nothing to write, else another one with the same outputs.
    """
    index = Index(model)
    begins = _Layouts(index).begins()
    if not begins:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _insert(result, begins)
    return result


class _Layouts:
    """Where channels are in each tensor of codes, as far as the runtime's way of moving Transposes decides it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._last: dict[str, bool] = {}  # by codes: whether channels come last
        self._begins: dict[str, _Begin] = {}  # by their codes
        self._begin: dict[str, str] = {}  # by codes: one of those without which their channels come first
        self._joins: Counter[str] = Counter()  # sums and the like that are brought round, by one of these
        self._together: list[tuple[str, str]] = []  # beginnings that bring a sum round together

    def begins(self) -> list[_Begin]:
        """Return the codes behind which a convolution is worth it, in graph order."""
        for node in self._index.graph.node:
            if node.op_type == "QuantizeLinear" or (node.op_type in ("Concat", "Pad") and node.input[0] in self._last):
                self._enter(node)
        groups = connected(self._begins, self._together)
        worth = [group for group in groups if sum(self._joins[name] for name in group) >= _WORTH * len(group)]
        wanted = {name for group in worth for name in group}
        return [begin for name, begin in self._begins.items() if name in wanted]

    def _enter(self, node: onnx.NodeProto) -> None:
        """Decide where channels are in what a node writes."""
        source: onnx.NodeProto | None = node
        if node.op_type == "QuantizeLinear":
            source = self._index.producer.get(node.input[0])
            while source is not None and op_of(source).clips:
                source = self._index.producer.get(source.input[0])
        operands = [] if source is None else self._operands(source)
        op, codes = source.op_type if source is not None and operands else "", node.output[0]
        if op in _KEEPS:
            self._take(codes, operands[0])
        elif op in _JOINS:
            self._join(codes, operands)
        elif op == "Conv":
            self._last[codes] = True
        else:
            self._last[codes] = False
            begin = self._begin_of(node) if node.op_type == "QuantizeLinear" else None
            if begin is not None:
                self._begin[codes], self._begins[codes] = codes, begin

    def _join(self, codes: str, operands: list[str]) -> None:
        """Decide it for a sum and the like: where a convolution would bring the last operand round, it counts one."""
        first = [name for name in operands if not self._last[name]]
        begins = sorted({self._begin[name] for name in operands if name in self._begin})
        self._last[codes] = not first or (len(first) < len(operands) and all(name in self._begin for name in first))
        if not self._last[codes] or not begins:
            return
        self._last.update(dict.fromkeys(begins, True))
        self._begin[codes] = begins[0]
        self._joins[begins[0]] += 1
        self._together += pairwise(begins)

    def _take(self, codes: str, operand: str) -> None:
        self._last[codes] = self._last[operand]
        if operand in self._begin:
            self._begin[codes] = self._begin[operand]

    def _operands(self, node: onnx.NodeProto) -> list[str]:
        """Return the codes that a node reads as its data; none where it computes on anything else."""
        if node.op_type == "Conv" and not self._is_dequantized(node.input[1]):
            return []
        found = []
        for name in node.input[:1] if node.op_type not in _JOINS else node.input:
            codes = self._index.producer[name].input[0] if self._is_dequantized(name) else name
            if codes not in self._last and (node.op_type not in _JOINS or codes not in self._index.derived):
                return []
            if codes in self._last:
                found.append(codes)
        return found

    def _is_dequantized(self, name: str) -> bool:
        before = self._index.producer.get(name)
        return before is not None and before.op_type == "DequantizeLinear"

    def _begin_of(self, quantize: onnx.NodeProto) -> _Begin | None:
        """Say how many channels the codes of 8 bits have, by a convolution that reads them; None where none does."""
        index = self._index
        zero = index.initializers.get(quantize.input[2]) if len(quantize.input) > 2 else None
        scale = index.initializers.get(quantize.input[1])
        kinds = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
        if (
            zero is None
            or scale is None
            or zero.data_type not in kinds
            or scale.dims
            or quantize.output[0] in index.outputs
        ):
            return None
        for use in index.uses.get(quantize.output[0], ()):
            for reader in index.uses.get(use.node.output[0], ()) if use.node.op_type == "DequantizeLinear" else ():
                weight = index.producer.get(reader.node.input[1]) if reader.node.op_type == "Conv" else None
                if reader.slot == 0 and weight is not None and weight.op_type == "DequantizeLinear":
                    codes = index.initializers.get(weight.input[0])
                    dims = [] if codes is None else list(codes.dims)
                    if len(dims) == 4:
                        return _Begin(quantize, dims[1] * attribute(reader.node, "group", 1))
        return None


def _insert(model: onnx.ModelProto, begins: list[_Begin]) -> None:
    built = Builder(Names(model.graph))
    channels = {begin.quantize.output[0]: begin.channels for begin in begins}
    again = {codes: built.names.tensor(f"{codes}_channels_last") for codes in channels}
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    for node in nodes:
        for slot, name in enumerate(node.input):
            node.input[slot] = again.get(name, name)
    for node in nodes:
        built.nodes.append(node)
        codes = node.output[0] if node.output else ""
        if codes not in channels:
            continue
        _, scale, zero = node.input
        real, value = (built.names.tensor(f"{again[codes]}_{what}") for what in ("read", "written"))
        one = np.array(1 / _ONE, onnx.helper.tensor_dtype_to_np_dtype(types[scale]))
        built.node("DequantizeLinear", [codes, scale, zero], real)
        weight = built.integers(f"{again[codes]}_ones", np.full((channels[codes], 1, 1, 1), _ONE, np.int8), one)
        built.node("Conv", [real, weight], value, group=channels[codes], kernel_shape=[1, 1])
        built.node("QuantizeLinear", [value, scale, zero], again[codes])
    refill(model.graph.node, built.nodes)
    model.graph.initializer.extend(built.initializers.values())
