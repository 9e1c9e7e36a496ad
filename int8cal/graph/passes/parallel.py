"""Convolutions of one tensor whose sum is taken are one convolution: networks that are exported as they are trained.

x*A + x*B = x*(A + B), where a kernel that is smaller, or has more groups, is one with zeros around it. RepVGG,
MobileOne and FastViT have up to six branches in each block, and their authors keep one for inference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard
from int8cal.graph.passes.steps import LARGEST_SHIFT, as_float32, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index
    from int8cal.numerics import Float64

_SUMS = frozenset({"Add", "Sub"})
_LEAST_RANK = 3  # samples, channels and one spatial axis
_MOST_FORMS = 16  # of the branches of one tensor, that others are held against


@dataclass(frozen=True)
class _Branch:
    """A term of a sum as a convolution; a BatchNormalization is one of one tap and as many groups as channels.

    Attributes:
        node: The convolution or BatchNormalization.
        weight: Float64 (outputs, inputs of a group, *kernel), the term's sign in it.
        bias: Float64 (outputs,); None without.
        strides, dilations, before, after: For each spatial axis; the last two are the padding.
    """

    node: onnx.NodeProto
    weight: Float64
    bias: Float64 | None
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def data(self) -> str:
        """The tensor that it reads."""
        return str(self.node.input[0])

    @property
    def form(self) -> tuple[object, ...]:
        """All but what the weights are; branches of one form fit the same ones."""
        return (self.weight.shape, self.groups, self.strides, self.dilations, self.before, self.after)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps along each spatial axis."""
        _, _, *taps = self.weight.shape
        return tuple(taps)


def parallel_convolutions(index: Index, names: Names) -> Iterator[Rewrite]:
    """Find sums in which convolutions and BatchNormalizations of the same tensor have a place, and let them be one.

    Must not touch a branch that anything else reads, nor make a kernel larger than the largest among them. The tensor
    itself is taken in where two branches of it are: of a residual block it is not, whose weights would share a scale
    with its factor of 1.
    """
    inner = {node.name for node in index.graph.node if _is_sum(index, node) and _is_inner(index, node)}
    for node in index.graph.node:
        if node.name not in inner and _is_sum(index, node):
            rewrite = _merged(index, names, node, inner)
            if rewrite is not None:
                yield rewrite


def _is_sum(index: Index, node: onnx.NodeProto) -> bool:
    variable = not any(index.is_constant(name) for name in node.input)
    return node.op_type in _SUMS and is_standard(node) and variable and index.may_be_float(node.output[0])


def _is_inner(index: Index, node: onnx.NodeProto) -> bool:
    reader = index.only_reader(node.output[0])
    return reader is not None and _is_sum(index, reader)


def _merged(index: Index, names: Names, root: onnx.NodeProto, inner: set[str]) -> Rewrite | None:
    """Merge the branches of one sum of any number of terms; None where there are none."""
    sums, terms = [], list[tuple[str, int]]()  # tensors with their signs, in the order of the sum
    waiting: list[tuple[str, int]] = [(str(root.output[0]), 1)]
    while waiting:
        tensor, sign = waiting.pop()
        node = index.producer.get(tensor)
        if node is not None and (node is root or node.name in inner):
            sums.append(node)
            signs = (sign, -sign if node.op_type == "Sub" else sign)
            waiting += [(str(name), signs[min(slot, 1)]) for slot, name in reversed([*enumerate(node.input)])]
        else:
            terms.append((tensor, sign))
    readers = Counter(_read_by(index, tensor) for tensor, _ in terms)
    beside = [term for term in terms if readers[_read_by(index, term[0])] > 1]
    branches = {tensor: branch for tensor, sign in beside if (branch := _branch(index, tensor, sign)) is not None}
    results = dict[str, _Branch]()  # the first term of those that become one -> what they become
    gone = set[str]()
    by_data = sorted(branches, key=lambda tensor: branches[tensor].data)  # stable: in the order of the sum
    for data, tensors in groupby(by_data, key=lambda tensor: branches[tensor].data):
        alike = list(tensors)
        forms = {branches[tensor].form: tensor for tensor in reversed(alike)}
        for host in sorted(forms.values(), key=lambda tensor: -branches[tensor].weight[0].size)[:_MOST_FORMS]:
            parts = [tensor for tensor in alike if tensor not in gone and _fits(branches[tensor], branches[host])]
            if len(parts) < 2:
                continue
            merged = [branches[tensor] for tensor in parts]
            itself = _itself(sum(sign for tensor, sign in terms if tensor == data), branches[host])
            if data not in gone and itself.weight.any() and _fits(itself, branches[host]):
                parts, merged = [*parts, data], [*merged, itself]
            whole = _sum(merged, branches[host])
            if whole is not None:
                results[parts[0]] = whole
                gone.update(parts)
    if not results:
        return None
    rewrite = _rewrite(names, root, sums, terms, branches, results, gone)
    # sums that are taken in another order have other shapes where a term is broadcast
    shapes = {index.dims(tensor) for tensor, _ in terms}
    like = {new: old for new, old in rewrite.like.items() if len(shapes) == 1 or old in results}
    return replace(rewrite, like=like)


def _read_by(index: Index, tensor: str) -> str:
    """Return what a term's node reads first; the term itself where nothing computes it."""
    node = index.producer.get(tensor)
    return tensor if node is None or not node.input else str(node.input[0])


def _branch(index: Index, tensor: str, sign: int) -> _Branch | None:
    """Read what computes a term as a convolution; None where it is none that can be merged."""
    node = index.producer.get(tensor)
    if node is None or not is_standard(node) or index.only_reader(tensor) is None:
        return None
    step = step_of(index, node) if node.op_type == "BatchNormalization" else None
    if step is not None:
        rank = index.rank(step.data) or 0
        if rank < _LEAST_RANK:
            return None
        one, zero = (1,) * (rank - 2), (0,) * (rank - 2)
        factor, shift = sign * step.factor.reshape(-1, 1, *one), sign * step.shift.reshape(-1)
        return _Branch(node, factor, shift, len(factor), one, one, zero, zero)
    constants = node.input[1:]
    if node.op_type != "Conv" or not all(index.is_float_constant(name) for name in constants if name):
        return None
    if attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    weight = sign * index.constant(node.input[1]).astype(np.float64)
    bias = sign * index.constant(node.input[2]).astype(np.float64) if any(node.input[2:]) else None
    if bias is not None and not (np.abs(bias) < LARGEST_SHIFT).all():
        return None
    axes = weight.ndim - 2
    ones, pads = (1,) * axes, tuple(attribute(node, "pads", (0,) * (2 * axes)))
    strides, dilations = (tuple(attribute(node, name, ones)) for name in ("strides", "dilations"))
    return _Branch(node, weight, bias, attribute(node, "group", 1), strides, dilations, pads[:axes], pads[axes:])


def _itself(factor: int, host: _Branch) -> _Branch:
    """Write a multiple of the tensor that a branch reads as another branch."""
    axes, outputs = len(host.kernel), len(host.weight)
    one, zero = (1,) * axes, (0,) * axes
    return _Branch(host.node, np.full((outputs, 1, *one), float(factor)), None, outputs, one, one, zero, zero)


def _offsets(part: _Branch, host: _Branch) -> tuple[int, ...] | None:
    """Return the host's tap on which the first one of another branch lies, for each axis; None where there is none."""
    found = []
    axes = zip(part.kernel, host.kernel, part.dilations, host.dilations, part.before, host.before, strict=True)
    for taps, room, own, step, before, host_before in axes:
        offset, rest = divmod(host_before - before, step)
        if rest or offset < 0 or offset + taps > room or (taps > 1 and own != step):
            return None
        found.append(offset)
    return tuple(found)


def _fits(part: _Branch, host: _Branch) -> bool:
    """Whether a branch is the host's convolution with other weights: each output of it has the same place."""
    inputs = [branch.weight.shape[1] * branch.groups for branch in (part, host)]
    if part.weight.shape[0] != host.weight.shape[0] or inputs[0] != inputs[1] or part.groups % host.groups:
        return False
    if part.strides != host.strides or len(part.kernel) != len(host.kernel) or _offsets(part, host) is None:
        return False
    # what padding adds and the kernel takes off, along each axis
    left = [
        tuple(
            before + after - step * (taps - 1)
            for before, after, step, taps in zip(
                branch.before, branch.after, branch.dilations, branch.kernel, strict=True
            )
        )
        for branch in (part, host)
    ]
    return left[0] == left[1]


def _sum(parts: Sequence[_Branch], host: _Branch) -> _Branch | None:
    """Add branches up in the form of one of them; None where float32 cannot hold it."""
    weight, biases = np.zeros(host.weight.shape), [part.bias for part in parts if part.bias is not None]
    outputs, room = len(host.weight), host.weight.shape[1]
    for part in parts:
        width = part.weight.shape[1]
        taps = tuple(
            slice(offset, offset + size) for offset, size in zip(_offsets(part, host) or (), part.kernel, strict=True)
        )
        for group in range(part.groups):
            rows = slice(group * outputs // part.groups, (group + 1) * outputs // part.groups)
            first = group * width % room
            weight[(rows, slice(first, first + width), *taps)] += part.weight[rows]
    bias = np.sum(biases, axis=0) if biases else None
    if as_float32(weight) is None or (bias is not None and as_float32(bias) is None):
        return None
    return _Branch(host.node, weight, bias, host.groups, host.strides, host.dilations, host.before, host.after)


def _rewrite(
    names: Names,
    root: onnx.NodeProto,
    sums: Sequence[onnx.NodeProto],
    terms: Sequence[tuple[str, int]],
    branches: Mapping[str, _Branch],
    results: Mapping[str, _Branch],
    gone: set[str],
) -> Rewrite:
    """Write what a sum is now: the convolutions that became one, and the terms that are left."""
    nowhere: tuple[onnx.NodeProto, ...] = ()
    left_out = [*sums, *(branches[tensor].node for tensor in gone if tensor in branches)]
    rewrite = Rewrite({node.name: nowhere for node in left_out})
    left = [(tensor, sign) for tensor, sign in terms if tensor not in gone or tensor in results]
    left.sort(key=lambda term: term[0] not in results and term[1] < 0)  # one that is added comes first
    output, nodes, written = str(root.output[0]), list[onnx.NodeProto](), list[tuple[str, int]]()
    for tensor, sign in left:
        if tensor not in results:
            written.append((tensor, sign))
            continue
        whole = results[tensor]
        name = output if len(left) == 1 else names.changed(tensor)
        if name != output:
            rewrite.like[name] = tensor
        inputs = [whole.data, names.beside(whole.node.name, "weight")]
        rewrite.constants[inputs[1]] = whole.weight.astype(np.float32)
        if whole.bias is not None:
            inputs.append(names.beside(whole.node.name, "bias"))
            rewrite.constants[inputs[2]] = whole.bias.astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv",
                inputs,
                [name],
                name=whole.node.name,
                group=whole.groups,
                strides=whole.strides,
                dilations=whole.dilations,
                pads=[*whole.before, *whole.after],
                kernel_shape=whole.kernel,
            )
        )
        written.append((name, 1))
    # the sums that are left are the last ones of those that there were, which are listed from the root on
    before, _ = written[0]
    for (tensor, sign), node in zip(written[1:], reversed(sums[: len(written) - 1]), strict=True):
        name = output if node is root else names.changed(str(node.output[0]))
        if name != output:
            rewrite.like[name] = str(node.output[0])
        nodes.append(instead(node, "Add" if sign > 0 else "Sub", [before, tensor], name))
        before = name
    rewrite.nodes[root.name] = tuple(nodes)
    return rewrite
