"""Chains of two layers between which each channel may be rescaled without changing the function.

Layer A -> activations that commute with a positive factor -> layer B, and nobody else reads what is in between.
Multiplying A's output channel c by f > 0 and dividing B's input channel c by f leaves B's output as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.index import Index

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.plan import Layer, Plan

# f(s x) = s f(x) for s > 0, and channels stay where they are
HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Dropout", "Identity"})
_PRODUCERS = frozenset({"Conv", "Gemm", "MatMul"})
_CONSUMERS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Chain:
    """Two layers and the tensors between them, from the first layer's output to the second layer's input."""

    first: Layer
    second: Layer
    tensors: tuple[str, ...]

    @property
    def channel_axis(self) -> int:
        """Axis of the channels in its tensors: 1 between convolutions, else the last."""
        return 1 if self.first.op_type == "Conv" else -1

    @property
    def tensor(self) -> str:
        """The second layer's input."""
        return self.tensors[-1]


def find_chains(model: onnx.ModelProto, plan: Plan) -> tuple[Chain, ...]:
    """Return all chains, in graph order of their second layer.

    Must not find one where a weight or bias has another reader, where the tensor is a graph output or read twice, or
    where the first layer's channels are not the second's (a Flatten between them).

    Args:
        model: The prepared model.
        plan: Its plan.
    """
    index = Index(model)
    by_output = {index_node(index, layer): layer for layer in plan.layers if layer.op_type in _PRODUCERS}
    shared = _shared_weights(index, plan)
    chains = []
    for second in plan.layers:
        if second.op_type not in _CONSUMERS or second.weight in shared:
            continue
        tensors = _walk_up(index, second, set(by_output))
        if tensors is None:
            continue
        first = by_output[tensors[0]]
        if {first.weight, first.bias} & shared or first.axis is None or second.axis is None:
            continue
        spatial = first.op_type == "Conv"
        if spatial != (second.op_type == "Conv") or _output_channels(index, first) != second.channels:
            continue
        chains.append(Chain(first, second, tensors))
    return tuple(chains)


def index_node(index: Index, layer: Layer) -> str:
    """Return the raw output tensor of a layer's node (before its fused activation)."""
    producer = index.producer[layer.output]
    return layer.output if producer.name in {layer.node, layer.bias_add} else producer.input[0]


def _walk_up(index: Index, second: Layer, outputs: set[str]) -> tuple[str, ...] | None:
    tensor = second.input
    reader = second.node
    path = [tensor]
    while True:
        only = index.only_reader(tensor)
        if only is None or only.name != reader:
            return None
        if tensor in outputs:
            return tuple(reversed(path))
        producer = index.producer.get(tensor)
        if (
            producer is None
            or producer.op_type not in HOMOGENEOUS
            or len([name for name in producer.output if name]) != 1
        ):
            return None
        reader, tensor = producer.name, producer.input[0]
        path.append(tensor)


def _shared_weights(index: Index, plan: Plan) -> set[str]:
    """Return the weights and biases with another reader too: a second layer, a float node, a subgraph, an output."""
    names = {name for layer in plan.layers for name in (layer.weight, layer.bias) if name}
    return {name for name in names if index.only_reader(name) is None}


def _output_channels(index: Index, layer: Layer) -> int:
    return int(index.initializers[layer.weight].dims[layer.axis or 0])
