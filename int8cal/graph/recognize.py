"""How each family is recognized in a graph: one function each, that yields the parts it found.

What is looked for is how nodes stand to each other, never their names, the exporter or the opset. A function must
rather miss a family than see one where there is none: what it must not take for one is in its docstring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.index import attribute
from int8cal.graph.layers import GATES
from int8cal.graph.scopes import ACTIVATIONS, ELEMENTWISE, MOVING, REACH, Scope, is_depthwise

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

# Where a constant this low is added to scores, it masks them. Swin's masks are -100, the highest in use.
LOWEST_SCORE = -100.0
_BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization"})
_ENLARGES = frozenset({"Resize", "Upsample", "ConvTranspose", "DepthToSpace"})
_PASSES = MOVING | ACTIVATIONS | ELEMENTWISE
# What may lie between pooled channels and the gate they make.
_EXCITES = _PASSES | {"Conv", "Gemm", "MatMul"}
_LEAST_TABLE = 0.01  # of a model's weights; a smaller table of rows changes nobody's file


@dataclass(frozen=True)
class FamilyPart:
    """A place where a family was found.

    Attributes:
        node: Name of the node that it was known by.
        what: What that node is there, a noun in the singular.
        tensors: Where an error of the kind that the family is prone to would show.
        figure: What its constants say: a ratio, a value, bytes; 0 where they say nothing.
        mixed: One scale over these tensors is wrong whatever their SQNR: small values beside large ones that hide them.
    """

    node: str
    what: str
    tensors: tuple[str, ...] = ()
    figure: float = 0.0
    mixed: bool = False


def _part(node: onnx.NodeProto, what: str, figure: float = 0.0, tensor: str = "") -> FamilyPart:
    return FamilyPart(node.name, what, (tensor,) if tensor else tuple(name for name in node.output if name), figure)


def detection_heads(scope: Scope) -> Iterator[FamilyPart]:
    """Find what makes boxes and scores of features: behind the last weights, boxes with scores or with other boxes.

    Not a Concat of rank 2 (a policy beside a value), nor one of features, behind which more weights lie.
    """
    for node in scope.nodes:
        if "NonMaxSuppression" in node.op_type or "NMS" in node.op_type:
            yield _part(node, "selection of boxes")
        elif node.op_type in ("RoiAlign", "MaxRoiPool"):
            yield _part(node, "pool of regions")
        elif node.op_type == "Softmax":
            behind = scope.readers(node.output[0], MOVING)
            if any(scope.projects(each) for each in behind if each.op_type in ("Conv", "MatMul", "Mul")):
                yield _part(node, "distribution over places of a box edge")
        elif node.op_type == "Concat" and node.output[0] in scope.final and scope.index.rank(node.output[0]) != 2:
            what = _joined(scope, node)
            if what:
                yield replace(_part(node, what), mixed="scores" in what)


def _joined(scope: Scope, node: onnx.NodeProto) -> str:
    """Say what a Concat behind the last weights joins; "" where it is no head of a detector."""
    ways = [(str(name), *scope.origin(str(name))) for name in node.input if not scope.is_constant(str(name))]
    bounded = [maker is not None and maker.op_type in _BOUNDED for _, _, maker in ways]
    if any(bounded) and not all(bounded):
        return "Concat of boxes and scores"
    # one row an anchor: maps were laid out as rows before they were joined
    heads = [maker is not None and maker.op_type == "Conv" and name != start for start, name, maker in ways]
    return "Concat of heads of several scales" if sum(heads) > 1 else ""


def query_decoders(scope: Scope) -> Iterator[FamilyPart]:
    """Find decoders of queries: attention between two sources, and a head of four values between 0 and 1.

    Not attention with keys of fewer places than queries (no box head), nor a detector without attention.
    """
    crossing = [node for node in scope.nodes if node.op_type == "GridSample" or _crosses(scope, node)]
    heads = [node for node in scope.nodes if node.op_type == "Sigmoid" and _makes_boxes(scope, node)]
    if crossing and heads:
        yield from (_part(node, "attention of queries to an image") for node in crossing)
        yield from (_part(node, "head of boxes") for node in heads)


def _makes_boxes(scope: Scope, node: onnx.NodeProto) -> bool:
    if node.output[0] not in scope.final:
        return False
    name = node.input[0]
    maker = scope.origin(name, MOVING | ELEMENTWISE)[1]
    if maker is not None and maker.op_type == "Add":  # the place that a box is counted from
        made = [scope.origin(each, MOVING | ELEMENTWISE)[1] for each in maker.input]
        maker = next((each for each in made if each is not None and scope.weight_dims(each)), maker)
    dims = scope.weight_dims(maker) if maker is not None and maker.op_type in ("Gemm", "MatMul") else ()
    transposed = bool(dims) and maker is not None and maker.op_type == "Gemm" and attribute(maker, "transB", 0)
    return len(dims) == 2 and dims[0 if transposed else 1] == 4


def _crosses(scope: Scope, node: onnx.NodeProto) -> bool:
    """Whether a Softmax weighs places of one source for another: queries and keys are made of different tensors."""
    if node.op_type != "Softmax":
        return False
    product = scope.origin(node.input[0], MOVING | ELEMENTWISE)[1]
    if product is not None and product.op_type in ("Add", "Where"):  # of a mask
        made = [scope.origin(each, MOVING | ELEMENTWISE)[1] for each in product.input]
        product = next((each for each in made if each is not None and each.op_type == "MatMul"), product)
    if product is None or product.op_type != "MatMul":
        return False
    # queries that depend on no input are constant here
    sources = [_source(scope, str(name)) for name in product.input]
    return None not in sources and len(set(sources)) == 2


def _source(scope: Scope, name: str) -> str | None:
    """Return what queries or keys are made of: the input of their layer, "" where they are constant; None otherwise."""
    if scope.is_constant(name):
        return ""
    maker = scope.origin(name, MOVING | ELEMENTWISE)[1]
    return scope.origin(str(maker.input[0]))[0] if maker is not None and scope.weight(maker) else None


def masks(scope: Scope) -> Iterator[FamilyPart]:
    """Find constants of at most `LOWEST_SCORE` that are added to scores in front of a Softmax, or take their place.

    Not a bound (Max, Clip), nor a factor of scores, as of distances that become similarities.
    """
    carried = _masking(scope)
    for node in scope.nodes:
        if node.op_type == "Attention" and len(node.input) > 3 and node.input[3]:
            yield _part(node, "Attention with a mask", carried.get(node.input[3], 0.0))
        elif node.op_type in ("Softmax", "LogSoftmax"):
            name, maker = scope.origin(node.input[0])
            if maker is not None and name in carried and name in scope.computed:
                yield FamilyPart(maker.name, f"mask by {maker.op_type}", (name,), carried[name], mixed=True)


def _masking(scope: Scope) -> dict[str, float]:
    """Return the tensors that hold a mask, each with its lowest value."""
    found: dict[str, float] = {}
    for node in scope.nodes:
        low = min((found[name] for name in node.input if name in found), default=0.0)
        if node.op_type in ("Add", "Sub", "Where") or (
            node.op_type == "Mul" and not any(name in scope.computed for name in node.input)
        ):
            low = min(low, *(_lowest(scope, name) for name in node.input))
        if low <= LOWEST_SCORE and node.op_type in MOVING | ELEMENTWISE | {"Where"}:
            found.update((name, low) for name in node.output)
    return found


def _lowest(scope: Scope, name: str) -> float:
    value = scope.read(name) if scope.is_constant(name) else None
    if value is None or value.dtype.kind != "f" or not value.size:
        return 0.0
    return float(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=0.0, neginf=-np.inf).min())


def norms(scope: Scope) -> Iterator[FamilyPart]:
    """Find LayerNorm and RMSNorm, as one op or many, whose output products with weights read.

    Not BatchNorm, which is folded away, nor a norm that only convolutions or outputs read.
    """
    for node in scope.nodes:
        end, factors = (str(node.output[0]), str(node.input[1])) if node.op_type in _NORMS else _norm_end(scope, node)
        readers = scope.readers(end, MOVING) if end else []
        if any(each.op_type in ("Gemm", "MatMul") and scope.weight(each) for each in readers):
            yield _part(node, "norm in front of a product", _spread(scope, factors), end)


def _norm_end(scope: Scope, node: onnx.NodeProto) -> tuple[str, str]:
    """Return the end of a norm whose root a node takes, and its factors; "" where it is none or has none."""
    squared = node.op_type == "Pow" and _scalar(scope, node.input[1]) in (0.5, -0.5)
    if node.op_type != "Sqrt" and not squared:
        return "", ""
    _, mean = scope.origin(node.input[0], MOVING | {"Add"})
    if mean is None or mean.op_type != "ReduceMean":
        return "", ""
    _, square = scope.origin(mean.input[0])
    if square is None or not (
        (square.op_type == "Pow" and _scalar(scope, square.input[1]) == 2.0)
        or (square.op_type == "Mul" and square.input[0] == square.input[1])
    ):
        return "", ""
    root = scope.end(node.output[0], MOVING | {"Reciprocal"})
    scaled = scope.index.only_reader(root)
    if scaled is None and len(reading := scope.readers(root)) == 1:
        scaled = reading[0]
    if scaled is None or scaled.op_type not in ("Div", "Mul"):
        return "", ""
    end = scope.end(scaled.output[0], MOVING | {"Mul", "Add"})
    return end, _factors(scope, scaled.output[0])


def _factors(scope: Scope, name: str) -> str:
    """Return the constant of the Mul behind a tensor; "" where there is none."""
    node = scope.index.only_reader(scope.end(name))
    if node is None or node.op_type != "Mul":
        return ""
    return next((str(each) for each in node.input if scope.is_constant(each)), "")


def _scalar(scope: Scope, name: str) -> float | None:
    value = scope.read(name)
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _spread(scope: Scope, name: str) -> float:
    """How many times the middle one the largest of a constant's rows is; 0 where unknown."""
    value = scope.read(name) if name and scope.is_constant(name) else None
    if value is None or value.ndim < 1 or value.dtype.kind != "f":
        return 0.0
    rows = np.abs(value.astype(np.float64)).reshape(value.shape[0], -1).max(axis=1)
    middle = float(np.median(rows)) if rows.size else 0.0
    return float(rows.max()) / middle if middle > 0 and np.isfinite(rows).all() else 0.0


def depthwise(scope: Scope) -> Iterator[FamilyPart]:
    """Find convolutions of which each channel is a group; those right behind another one are told apart.

    Not a convolution of several groups that each mix channels.
    """
    for node in scope.nodes:
        if is_depthwise(scope, node):
            _, maker = scope.origin(node.input[0], _PASSES)
            stacked = maker is not None and is_depthwise(scope, maker)
            what = "depthwise convolution behind another" if stacked else "depthwise convolution"
            end = scope.end(node.output[0], frozenset({"BatchNormalization", "Relu", "Clip"}))
            yield FamilyPart(node.name, what, (node.output[0], end), _spread(scope, scope.weight(node)))


def excitations(scope: Scope) -> Iterator[FamilyPart]:
    """Find gates that are made of the means of the channels which they multiply.

    Not a swish (no pool), nor attention over places (no pool, or of another tensor).
    """
    for node in scope.nodes:
        if node.op_type != "Mul" or len(scope.variable(node)) != 2:
            continue
        for gate, gated in (tuple(node.input), tuple(node.input)[::-1]):
            way = _way(scope, gate, _EXCITES, _POOLS)
            if way and scope.origin(way[-1].input[0])[0] == scope.origin(gated)[0] and _weighted(scope, way):
                yield _part(node, "gate of channels")
                break


def _weighted(scope: Scope, way: list[onnx.NodeProto]) -> bool:
    return any(scope.weight(each) for each in way)


def _way(
    scope: Scope, name: str, through: frozenset[str], end: frozenset[str], start: str = ""
) -> list[onnx.NodeProto]:
    """Return the nodes on the way back from a tensor to a node of some ops or to `start`; none where it leads away."""
    path: list[onnx.NodeProto] = []
    for _ in range(REACH):
        if start and name == start:
            return path
        node = scope.index.producer.get(name)
        if node is None:
            return []
        path.append(node)
        if node.op_type in end:
            return path
        variable = scope.variable(node)
        # of a swish, which both its operands come from, either way will do
        if node.op_type not in through or not variable or (len(variable) > 1 and node.op_type != "Mul"):
            return []
        name = variable[0]
    return []


def swishes(scope: Scope) -> Iterator[FamilyPart]:
    """Find swish and hard swish: a tensor times its own Sigmoid, or its own clipped line; or as one op.

    Not a gated linear unit, whose two operands are made apart.
    """
    for node in scope.nodes:
        if node.op_type in ("HardSwish", "Swish"):
            yield _part(node, node.op_type)
        elif node.op_type == "Mul" and len(scope.variable(node)) == 2:
            for gate, gated in (tuple(node.input), tuple(node.input)[::-1]):
                way = _way(scope, gate, frozenset(ELEMENTWISE | ACTIVATIONS), frozenset(), start=str(gated))
                if any(each.op_type in ("Sigmoid", "HardSigmoid", "Clip") for each in way):
                    yield _part(node, "tensor times its own gate")
                    break


def vocoders(scope: Scope) -> Iterator[FamilyPart]:
    """Find stacks of transposed convolutions along time that end in a Tanh.

    Not a generator of images (two dimensions), nor a decoder of features (no Tanh at its end).
    """
    stack = [node for node in scope.nodes if node.op_type == "ConvTranspose" and len(scope.weight_dims(node)) == 3]
    behind = {name for node in stack for name in node.output}
    ends = []
    for node in scope.nodes:
        if len(stack) > 1 and not behind.isdisjoint(node.input):
            behind.update(node.output)
            if node.op_type == "Tanh" and node.output[0] in scope.final:
                ends.append(node)
    if ends:
        yield from (_part(node, "transposed convolution along time") for node in stack)


def tables(scope: Scope) -> Iterator[FamilyPart]:
    """Find tables of rows that an input picks from, where they are a share of the file that counts.

    Not a table of positions with constant indices, which is folded, nor one of a few rows.
    """
    initializers = scope.index.initializers.values()
    total = sum(math.prod(tensor.dims) for tensor in initializers)
    for node in scope.nodes:
        table = scope.index.initializers.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or len(table.dims) != 2 or attribute(node, "axis", 0) or scope.is_constant(node.input[1]):
            continue
        size = math.prod(table.dims)
        if scope.index.is_float_constant(table.name) and size >= _LEAST_TABLE * total:
            yield _part(node, "table of rows", 4.0 * size)


def embeddings(scope: Scope) -> Iterator[FamilyPart]:
    """Find outputs of length 1: rows that are compared by their direction.

    Not a norm between layers, such as of the queries and keys of some attentions.
    """
    for node in scope.nodes:
        if node.output[0] not in scope.final or node.output[0] not in scope.computed:
            continue
        if node.op_type in ("LpNormalization", "ReduceL2"):
            yield _part(node, "row of length 1")
        elif node.op_type == "Sqrt":
            _, total = scope.origin(node.input[0], MOVING | {"Clip", "Add"})
            if total is not None and total.op_type in ("ReduceSum", "ReduceSumSquare"):
                yield _part(node, "row of length 1")


def recurrent(scope: Scope) -> Iterator[FamilyPart]:
    """Find cells that read their own output of the step before."""
    yield from (_part(node, node.op_type) for node in scope.nodes if node.op_type in GATES)


def skips(scope: Scope) -> Iterator[FamilyPart]:
    """Find Concats of an enlarged map and one from before: the skips of a U-Net, or of a pyramid of features.

    Not a Concat of maps of one size (a dense block), nor one of nothing but enlarged maps.
    """
    for node in scope.nodes:
        if node.op_type == "Concat" and node.output[0] in scope.computed and node.output[0] not in scope.final:
            makers = [scope.origin(str(name), MOVING | ACTIVATIONS | {"Pad"})[1] for name in node.input]
            enlarged = [maker is not None and maker.op_type in _ENLARGES for maker in makers]
            if any(enlarged) and not all(enlarged):
                yield _part(node, "Concat of an enlarged map and an earlier one")
