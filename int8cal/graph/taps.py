"""Models that show tensors, and taps: the planned tensors, with what is to be counted at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import onnx

from int8cal.graph.edit import refill
from int8cal.graph.index import nodes_behind, outer_references
from int8cal.protos import ModelView, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from int8cal.graph.chains import Chain
    from int8cal.graph.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Tap:
    """One tensor to observe.

    Attributes:
        channel_axis, channels: Where channels are, for per-channel figures; None and 0 for none.
        equalizable: A per-channel histogram is wanted, because the tensor's channels may be rescaled.
    """

    tensor: str
    channel_axis: int | None = None
    channels: int = 0
    equalizable: bool = False


def make_taps(plan: Plan, chains: tuple[Chain, ...] = ()) -> tuple[Tap, ...]:
    """Return one tap per planned tensor, in graph order.

    Args:
        plan: The plan.
        chains: Chains whose channels a correction may rescale; their planned tensors get per-channel histograms.
    """
    layouts = {
        tensor: (axis, chain.channels)
        for chain in chains
        for tensor, axis in zip(chain.tensors, chain.axes, strict=True)
    }
    taps = []
    for point in plan.tensors:
        axis, channels = layouts.get(point.tensor, (point.channel_axis, point.channels))
        taps.append(Tap(point.tensor, axis, channels, point.tensor in layouts))
    return tuple(taps)


def tapped_model(
    model: onnx.ModelProto, tensors: Iterable[str], nodes: Sequence[onnx.NodeProto] = (), *, keep_outputs: bool = False
) -> ModelView:
    """Return a model that shows tensors: they are its outputs, under their own names.

    Args:
        model: Any model; its weights are shared, not copied.
        tensors: Names, each of which counts once. A graph input cannot be an output and is left out: its value is in
            the feed.
        nodes: Appended to the model's, to compute tensors that it does not have.
        keep_outputs: The model's own outputs stay in front; else what the tensors do not need is dropped: the runtime
            would compute it.
    """
    inputs = {value.name for value in model.graph.input}
    result = view_of(model)
    result.shell.graph.node.extend(nodes)
    outputs = result.shell.graph.output
    given = {value.name for value in outputs} if keep_outputs else set[str]()
    if not keep_outputs:
        del outputs[:]
    for name in dict.fromkeys(tensors):
        if name not in inputs and name not in given:
            # the runtime infers type and shape of an output that states none
            outputs.append(onnx.ValueInfoProto(name=name))
    if not outputs:  # every tensor is a graph input: nothing has to be computed, but a model needs an output
        outputs.extend(model.graph.output)
    _drop_unneeded(result.shell.graph)
    return result


def _drop_unneeded(graph: onnx.GraphProto) -> None:
    """Drop the nodes that no output needs."""
    nodes = [*graph.node]
    read = {value.name for value in graph.output}
    for node in reversed(nodes):  # readers stand behind what they read: mostly every node has one
        if read.isdisjoint(node.output):
            break
        read.update(node.input)
        read |= outer_references(node)
    else:
        return
    producer = {name: node for node in nodes for name in node.output if name}
    needed = {id(node) for node in nodes_behind([value.name for value in graph.output], producer)}
    if len(needed) < len(nodes):
        refill(graph.node, [node for node in nodes if id(node) in needed])


def in_chunks(items: Iterable[T], size_of: Callable[[T], float], most: float) -> Iterator[list[T]]:
    """Cut items into lists in their order, whose sizes are at most so much together; a larger item stands alone."""
    chunk: list[T] = []
    used = 0.0
    for item in items:
        size = size_of(item)
        if chunk and used + size > most:
            yield chunk
            chunk, used = [], 0.0
        chunk.append(item)
        used += size
    if chunk:
        yield chunk
