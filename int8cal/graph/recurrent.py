"""Recurrent nodes: what of LSTM, GRU and RNN can be int8, and with which kernel on which target, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import onnx

from int8cal.graph.index import attribute

if TYPE_CHECKING:
    from int8cal.graph.index import Index
    from int8cal.job import TargetName

# kernel: products of integers. weights: int8 in the file, which the runtime turns into float32 when it loads the model.
Form = Literal["kernel", "weights"]

# Gates of each op: rows of W and R per element of the hidden state.
GATES: dict[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}

# The op of com.microsoft whose kernel multiplies integers. Its rows take their range from the values at hand.
KERNELS: dict[str, str] = {"LSTM": "DynamicQuantizeLSTM"}
_KERNEL_ATTRIBUTES = frozenset(
    {"activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "input_forget", "layout"}
)

# Targets whose runtime has these kernels. On others the model stays free of com.microsoft.
KERNEL_TARGETS: frozenset[TargetName] = frozenset({"portable", "x86-avx2", "x86-vnni", "arm64"})


@dataclass(frozen=True)
class Recurrent:
    """A recurrent node with constant weights.

    Attributes:
        weight, recurrence: Initializers W and R: (directions, gates * hidden, inputs or hidden).
        rows: Gate rows in all directions: directions * gates * hidden, each with a scale of its own.
        no_kernel: Why its products cannot be of integers; "" where the runtime has a kernel.
    """

    node: str
    op_type: str
    weight: str
    recurrence: str
    rows: int
    no_kernel: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """The weights, each once."""
        return tuple(dict.fromkeys((self.weight, self.recurrence)))


def recurrent_of(index: Index, node: onnx.NodeProto) -> Recurrent | str:
    """Describe a recurrent node, or say why its weights stay float.

    Args:
        index: The graph's index.
        node: An op of `GATES`.
    """
    names = (str(node.input[1]), str(node.input[2]))
    producers = [index.producer.get(name) for name in names]
    if any(each is not None and each.op_type == "Cast" and index.is_constant(each.input[0]) for each in producers):
        return "its weights are not float32"
    if not all(index.is_constant(name) for name in names):
        return "its weights are not constant"
    if any(index.elem_type(name) != onnx.TensorProto.FLOAT for name in names):
        return "its weights are not float32"
    weight, recurrence = (tuple(index.initializers[name].dims) for name in names)
    if 0 in (*weight, *recurrence):
        return "its weights are empty"
    rows = GATES[node.op_type] * recurrence[-1]
    if len(weight) != 3 or len(recurrence) != 3 or not weight[1] == recurrence[1] == rows:
        return f"its weights have shapes {weight} and {recurrence}"
    return Recurrent(node.name, node.op_type, *names, rows=weight[0] * rows, no_kernel=_no_kernel(index, node))


def _no_kernel(index: Index, node: onnx.NodeProto) -> str:
    if node.op_type not in KERNELS:
        return f"the runtime has no integer kernel for {node.op_type}"
    unknown = sorted({item.name for item in node.attribute} - _KERNEL_ATTRIBUTES)
    if unknown or attribute(node, "layout", 0):
        return f"{KERNELS[node.op_type]} does not know the attribute {unknown[0] if unknown else 'layout'}"
    batch = (index.dims(node.input[0]) or (None, None, None))[1]
    if batch is not None and batch > 1:
        # the runtime shares sequences out among its threads, and each thread takes a range from its own
        return f"with a batch of {batch}, {KERNELS[node.op_type]} depends on the number of threads"
    return ""
