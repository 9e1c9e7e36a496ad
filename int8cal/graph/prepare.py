"""The float graph that everything after works on: constants folded, BatchNorm in the weights, every node named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import shape_inference

from int8cal.errors import ModelError, TableError
from int8cal.graph.bodies import Body, extracted
from int8cal.graph.edit import Names, apply, name_nodes, refill, separate, without_initialized_inputs
from int8cal.graph.index import Index, attribute, walk
from int8cal.graph.layers import SLOWER
from int8cal.graph.load import Watched, blaming, file_sha256, load_model, model_sha256, require_float, require_text
from int8cal.graph.ops import STANDARD, is_standard, opset_of
from int8cal.graph.passes.affine import fold_affine
from int8cal.graph.passes.ahead import factors_ahead
from int8cal.graph.passes.clips import clips_before_moves, fold_clips
from int8cal.graph.passes.computed import folded
from int8cal.graph.passes.einsum import einsum_products
from int8cal.graph.passes.expands import futile_expands
from int8cal.graph.passes.float32 import CONVERTED, in_float32, plain_casts
from int8cal.graph.passes.gemm import apart_biases, biased_products, unit_gemms
from int8cal.graph.passes.invariants import outside_invariants
from int8cal.graph.passes.masks import deep_masks
from int8cal.graph.passes.means import pool_means
from int8cal.graph.passes.operands import placed_operands
from int8cal.graph.passes.opsets import MAX_OPSET, OPSET_OF_16_BITS, lower_opset, name_standard, raise_opset
from int8cal.graph.passes.own_names import own_names
from int8cal.graph.passes.pads import whole_pads
from int8cal.graph.passes.parallel import parallel_convolutions
from int8cal.graph.passes.pools import shifts_behind_pools
from int8cal.graph.passes.rms_norms import divided_norms
from int8cal.graph.passes.shapes import constant_shapes
from int8cal.graph.passes.sizes import fold_sizes
from int8cal.graph.passes.swish import hard_sigmoids
from int8cal.graph.passes.tiny import without_tiny_weights
from int8cal.graph.plan import Plan, PlannedBody, Unquantized
from int8cal.graph.planner import make_plan
from int8cal.graph.signature import Signature, signature_of
from int8cal.protos import graphs_within, metadata_of, outline, set_metadata, with_values, without_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from int8cal.graph.select import Selection
    from int8cal.job import ActivationType

MIN_OPSET = 13  # per-axis QuantizeLinear and DequantizeLinear


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned.

    Attributes:
        model: The prepared graph.
        signature: Inputs and outputs.
        sha256: Hash of the user's file (or of the model in memory).
        name: File name, for tables and reports.
        where: What messages call it.
        bodies: Of If, Loop and Scan, at any depth, prepared likewise; one comes behind the one that it is in.
    """

    model: onnx.ModelProto
    signature: Signature
    sha256: str
    name: str
    where: str
    bodies: tuple[Body, ...] = ()

    @property
    def graphs(self) -> dict[str, onnx.ModelProto]:
        """The main graph under "", and bodies by path; one that stays float is empty."""
        return {"": self.model} | {body.path: body.model for body in self.bodies}


def prepare(
    source: Path | onnx.ModelProto,
    simplify: Callable[[onnx.ModelProto], onnx.ModelProto],
    activations: ActivationType = "u8",
) -> Prepared:
    """Load and prepare a model.

    Args:
        source: A file, or a model in memory.
        activations: What they will be: 16 bits want a later opset.
        simplify: Folds constants and BatchNorm; `runtime.sessions.simplify`, since graph/ knows no runtime.

    Raises:
        ModelError: It cannot be loaded, is already quantized, or is no sound ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        original, sha, name = source, model_sha256(source), source.graph.name or "model"
        where = name
        require_text(source, where)
    else:
        watched = Watched(source)
        original, sha, name, where = load_model(source), file_sha256(source), source.name, str(source)
        watched.require_same()  # the hash is of what was loaded
    # constants may be NaN of the kind that signals when it is converted: what becomes of them, each pass decides
    with blaming(source, where), np.errstate(invalid="ignore"):
        signature = signature_of(original)
        if not signature.outputs:
            raise ModelError("has no outputs, so nothing is computed", where=where, do="give a model with outputs")
        header = without_weights(original)
        _require_tensors(original, where)
        normal = normalize(original, where, OPSET_OF_16_BITS if activations == "u16" else MIN_OPSET)
        if metadata_of(normal, CONVERTED):
            set_metadata(header, CONVERTED, str(metadata_of(normal, CONVERTED)))
        del original  # a model of several GB should not stay in memory three times
        simple = folded(normal, simplify)
        del normal
        model = _decided(finish(simple, header), header, simplify)
        for node in walk(model.graph):
            for item in node.attribute:
                if item.ref_attr_name:  # told before any work, and of this file
                    attribute(node, item.name, None)
        return Prepared(model, signature, sha, name, where, _bodies(model, simplify))


def _decided(
    model: onnx.ModelProto, header: onnx.ModelProto, simplify: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> onnx.ModelProto:
    """Let branches on sizes that are known take the place of their Ifs."""
    while fold_sizes(model):  # every round takes a node away
        model = finish(folded(model, simplify), header)
    return model


def _bodies(model: onnx.ModelProto, simplify: Callable[[onnx.ModelProto], onnx.ModelProto]) -> tuple[Body, ...]:
    """Prepare the bodies of If, Loop and Scan, those inside them behind them; one that cannot be stays float."""
    found, graphs = list[Body](), [("", model)]
    for path, parent in graphs:  # which grows
        for each in extracted(parent, path):
            body = each if each.reason else _prepared_body(each, simplify)
            found.append(body)
            if not body.reason:
                graphs.append((body.path, body.model))
    return tuple(found)


def _prepared_body(body: Body, simplify: Callable[[onnx.ModelProto], onnx.ModelProto]) -> Body:
    try:
        _require_tensors(body.model, body.path)
        header = without_weights(body.model)
        model = _decided(finish(folded(normalize(body.model, body.path), simplify), header), header, simplify)
    except ModelError as error:
        return replace(body, model=onnx.ModelProto(), reason=error.what)
    signature = signature_of(model)
    inputs, outputs = (
        tuple(replace(spec, shape=None) for spec in specs) for specs in (signature.inputs, signature.outputs)
    )
    return replace(body, model=model, signature=Signature(inputs, outputs))


def normalize(model: onnx.ModelProto, where: str, least: int = MIN_OPSET) -> onnx.ModelProto:
    """First half of preparing, before the runtime folds constants: opset, inputs, names.

    Args:
        model: The user's model; not changed.
        where: What error messages call it.
        least: The lowest opset that will do.

    Returns:
        A copy at an opset from `least` to 27 whose initializers are no longer graph inputs and whose nodes have unique
        names, in subgraphs too. Tensor names are untouched.

    Raises:
        ModelError: it is already quantized, or its opset can be neither kept nor changed.
    """
    require_float(model, where)
    opset = opset_of(model, -1)
    if opset < 0:
        if any(node.domain in STANDARD for node in model.graph.node):
            raise ModelError("imports no ONNX operator set", where=where, do="export it again")
        domains = ", ".join(sorted({item.domain for item in model.opset_import}))
        raise ModelError(
            f"has ops of {domains} only, none of ONNX's own operator set, and so none that can be quantized",
            where=where,
            do="run the model in float",
        )
    copy = onnx.ModelProto()
    copy.CopyFrom(model if least <= opset <= MAX_OPSET else with_values(model))  # onnx's converter reads values
    copy.ir_version = max(copy.ir_version, 7)  # before 4 the converter wants every initializer among the inputs
    name_standard(copy)
    without_initialized_inputs(copy.graph)
    name_nodes(copy.graph)
    in_float32(copy)  # before the opset is raised: the converter adds constants of float32
    if opset < least:
        copy = raise_opset(copy, opset, where, least)
        without_initialized_inputs(copy.graph)
    elif opset > MAX_OPSET:
        copy = lower_opset(copy, opset, where)
    plain_casts(copy)
    outside_invariants(copy)
    for graph in graphs_within(copy.graph):
        name_nodes(graph)
    return copy


def finish(simplified: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Second half of preparing, after the runtime folded constants: restore what it dropped, infer shapes.

    Args:
        simplified: The folded graph; changed in place and returned.
        original: The user's model, for its inputs, outputs, metadata and descriptions.

    Returns:
        The prepared model: `Index` and `Plan` work on it. Gemm has alpha = beta = 1 where its operands are constant;
        a MatMul of matrices followed by a constant row is a Gemm under the MatMul's node name. Products have their
        constant operand on the right, as a matrix, where that pays, and Einsums that are one product are MatMuls.
    """
    used = {node.domain for node in walk(simplified.graph)} | {""}
    for function in simplified.functions:
        used |= {function.domain} | {node.domain for node in function.node}
    refill(simplified.opset_import, [item for item in simplified.opset_import if item.domain in used])
    refill(simplified.metadata_props, original.metadata_props)
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        setattr(simplified, field, getattr(original, field))
    simplified.model_version = original.model_version
    simplified.graph.name, simplified.graph.doc_string = original.graph.name, original.graph.doc_string
    _restore_values(simplified.graph.input, original.graph.input)
    _restore_values(simplified.graph.output, original.graph.output)
    own_names(simplified)
    for graph in graphs_within(simplified.graph):
        name_nodes(graph)
    unit_gemms(simplified.graph)
    _infer_shapes(simplified)
    if constant_shapes(simplified):
        _infer_shapes(simplified)
    _form_products(simplified)
    if fold(simplified):
        _infer_shapes(simplified)
    index = Index(simplified)
    products = [*biased_products(index)]
    if products:
        apply(simplified, index, products)
    without_tiny_weights(simplified)
    return simplified


def _form_products(model: onnx.ModelProto) -> None:
    """Write products with a constant operand in the forms that have integer kernels; shapes are inferred before."""
    names, index = Names(model.graph), Index(model)
    for each in (einsum_products, placed_operands, apart_biases):
        rewrites = separate(each(index, names))
        if rewrites:
            apply(model, index, rewrites)
            _infer_shapes(model)
            index = Index(model)


# The last one last: what goes into a layer does not go behind a pool.
_PASSES = (
    whole_pads,
    futile_expands,
    hard_sigmoids,
    divided_norms,
    factors_ahead,
    pool_means,
    fold_clips,
    clips_before_moves,
    deep_masks,
    fold_affine,
    parallel_convolutions,
    shifts_behind_pools,
)


def fold(model: onnx.ModelProto) -> bool:
    """Fold scale-shift chains and futile clips, over and over until nothing is found: the outputs stay, up to rounding.

    Tensors whose values change get another name, ending in "_folded"; all others keep theirs, and so do the nodes that
    are left, but for masks, which keep their names. Every rewrite takes a node, a factor or a mask away, or brings a
    clip nearer to its layer, a shift behind a pool or axes out of a Pad, so the rounds come to an end.

    Args:
        model: Node names are unique, shapes inferred; changed in place.

    Returns:
        Whether anything was folded.
    """
    folded, names, index = False, Names(model.graph), Index(model)
    while True:
        found = False
        for each in _PASSES:
            if each is shifts_behind_pools and found:
                continue
            rewrites = separate(each(index, names))
            if rewrites:
                apply(model, index, rewrites)
                found, folded, index = True, True, Index(model)
        if not found:
            return folded


def _infer_shapes(model: onnx.ModelProto) -> None:
    """Add types and shapes of inner tensors; on an outline, since weights add nothing but their size.

    Outputs stay as the user declared them, unless nothing is declared of their shape. What inference knows beyond that
    stands among the inner tensors, for `Index`.
    """
    inferred = shape_inference.infer_shapes(outline(model), data_prop=True).graph
    outputs = {value.name: value for value in inferred.output}
    for value in model.graph.output:
        if not value.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(outputs[value.name].type)
    declared = {value.name: value.type for value in model.graph.output}
    values = [value for value in inferred.value_info if value.name not in declared]
    values += [value for name, value in outputs.items() if value.type != declared[name]]
    refill(model.graph.value_info, values)


def _restore_values(values: object, originals: object) -> None:
    by_name = {value.name: value for value in originals}  # type: ignore[attr-defined]
    for value in values:  # type: ignore[attr-defined]
        if value.name in by_name:
            value.CopyFrom(by_name[value.name])


def _require_tensors(model: onnx.ModelProto, where: str) -> None:
    mapped = {name for node in model.graph.node if node.op_type == "ZipMap" for name in node.output}
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            found = value.type.WhichOneof("value")
            if found not in (None, "tensor_type"):
                what = found.removesuffix("_type")
                raise ModelError(
                    f"{kind} {value.name!r} is no tensor but a{'n' if what == 'optional' else ''} {what}",
                    where=where,
                    do="export it with probabilities as a tensor (skl2onnx: options={'zipmap': False})"
                    if value.name in mapped
                    else "give a model whose inputs and outputs are tensors",
                )
    sparse = [tensor.values.name for graph in graphs_within(model.graph) for tensor in graph.sparse_initializer]
    sparse += [
        node.output[0] for node in walk(model.graph) if any(item.name == "sparse_value" for item in node.attribute)
    ]
    if sparse:
        what = f"tensor {sparse[0]!r} is stored as a sparse tensor, which is not read"
        raise ModelError(what, where=where, do="export the model with dense tensors", tensor=sparse[0])


def plan_bodies(
    prepared: Prepared, selection: Selection, bodies: Mapping[str, Selection] | None = None
) -> tuple[dict[str, PlannedBody], tuple[Unquantized, ...]]:
    """Plan the bodies of If, Loop and Scan that hold a layer, at any depth; see `Plan.bodies`.

    Args:
        prepared: The prepared model.
        selection: Which nodes the user allows.
        bodies: What holds instead in single bodies, by path; these are planned whether they hold a layer or not.

    Returns:
        The planned bodies by path, and those that could not be taken out of their model.
    """
    plans: dict[str, PlannedBody] = {}
    left = []
    for body in prepared.bodies:
        own = (bodies or {}).get(body.path, replace(selection, left=(), forms=()))
        if body.reason:
            left.append(Unquantized(body.path, "body", body.reason))
        else:
            plans[body.path] = PlannedBody(body, make_plan(body.model, replace(own, partial=True)))
    wanted: set[str] = set()
    for body in reversed(prepared.bodies):  # one inside another comes behind it
        planned = plans.get(body.path)
        if planned is None:
            continue
        plan = planned.plan
        if body.path in wanted or body.path in (bodies or {}) or _quantizes(plan):
            wanted |= {body.path, body.parent}
    return {path: each for path, each in plans.items() if path in wanted}, tuple(left)


def _quantizes(plan: Plan) -> bool:
    return bool(plan.layers or plan.unranged or plan.recurrent or plan.embeddings)


def _plan_all(prepared: Prepared, selection: Selection, bodies: Mapping[str, Selection]) -> Plan:
    """Plan the main graph with its bodies."""
    plan = make_plan(prepared.model, selection)
    planned, left = plan_bodies(prepared, selection, bodies)
    return replace(plan, bodies=planned, unquantized=(*plan.unquantized, *left))


def _has_layers(plan: Plan) -> bool:
    inside = any(_quantizes(each.plan) for each in plan.bodies.values())
    return inside or bool(plan.layers or plan.unranged or plan.recurrent)


def require_layers(
    prepared: Prepared,
    selection: Selection,
    bodies: Mapping[str, Selection] | None = None,
    *,
    may_be_float: bool = False,
) -> Plan:
    """Make the plan, and insist that something is quantized.

    Args:
        prepared: The prepared model.
        selection: Which nodes the user allows, and what measuring left in float.
        bodies: Likewise for single bodies of If, Loop and Scan, by path.
        may_be_float: Whether every layer may stay float where that was found to be fastest.

    Raises:
        ModelError: No layer can be; says why for up to three candidates.
        TableError: What the table leaves in float is all, and may not be, or is a node that the model does not have.
        UsageError: A pattern matches nothing.
    """
    plan = _plan_all(prepared, selection, bodies or {})
    if _has_layers(plan):
        return plan
    unmeasured = {path: replace(each, left=()) for path, each in (bodies or {}).items()}
    if _has_layers(_plan_all(prepared, replace(selection, left=()), unmeasured)):
        if may_be_float:
            return plan
        raise TableError(
            "leaves no layer in int8",
            where="settings",
            do="remove a node from what is left for accuracy or gates, or calibrate again",
        )
    do = "give a float32 model with constant weights, or quantize less strictly with --include and --exclude"
    if plan.unquantized and all(each.reason in SLOWER for each in plan.unquantized):
        do = "int8 would only cost here: run the model in float, or name a runtime that has such a kernel with --target"
    reasons = "; ".join(f"{each.op_type} {each.node!r}: {each.reason}" for each in plan.unquantized[:3])
    others = Counter(f"{node.domain}.{node.op_type}" for node in walk(prepared.model.graph) if not is_standard(node))
    if others and not reasons:
        listed = ", ".join(f"{op} {number}" for op, number in sorted(others.items())[:3])
        reasons = f"it has ops of other domains, which are left as they are: {listed}"
        do = "give the model as it was exported, before an optimizer made such nodes of ONNX's own"
        if all(name.startswith("ai.onnx.ml.") for name in others):
            do = "run the model in float: trees, support vectors and linear models of that domain have no int8 kernels"
    raise ModelError(
        "has no Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU or RNN that can be quantized"
        + (f" ({reasons})" if reasons else ""),
        where=prepared.where,
        do=do,
    )
