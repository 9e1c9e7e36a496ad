"""The prepared model together with what later stations ask about the user's file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.errors import ModelError, TableError
from int8cal.graph.load import Watched, file_sha256, load_model, model_sha256, require_text
from int8cal.graph.plan import NO_KERNEL, Plan, make_plan
from int8cal.graph.prepare import finish, normalize
from int8cal.graph.signature import Signature, signature_of
from int8cal.protos import without_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from int8cal.graph.select import Selection


@dataclass(frozen=True)
class Prepared:
    """A model ready to be planned.

    Attributes:
        model: The prepared graph.
        signature: Inputs and outputs.
        sha256: Hash of the user's file (or of the model in memory).
        name: File name, for tables and reports.
        where: What messages call it.
    """

    model: onnx.ModelProto
    signature: Signature
    sha256: str
    name: str
    where: str


def prepare(source: Path | onnx.ModelProto, fold: Callable[[onnx.ModelProto], onnx.ModelProto]) -> Prepared:
    """Load and prepare a model.

    Args:
        source: A file, or a model in memory.
        fold: Folds constants and BatchNorm; `runtime.simplify.simplify`, handed in because graph/ knows no runtime.

    Raises:
        ModelError: It cannot be loaded, or is already quantized.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        original, sha, name = source, model_sha256(source), source.graph.name or "model"
        where = name
        require_text(source, where)
    else:
        watched = Watched(source)
        original, sha, name, where = load_model(source), file_sha256(source), source.name, str(source)
        watched.require_same()  # the hash is of what was loaded
    signature, header = signature_of(original), without_weights(original)
    _require_tensors(original, where)
    normal = normalize(original, where)
    del original  # a model of several GB should not stay in memory three times
    folded = fold(normal)
    del normal
    return Prepared(finish(folded, header), signature, sha, name, where)


def _require_tensors(model: onnx.ModelProto, where: str) -> None:
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if value.type.WhichOneof("value") not in (None, "tensor_type"):
                raise ModelError(
                    f"{kind} {value.name!r} is no tensor but a {value.type.WhichOneof('value').removesuffix('_type')}",
                    where=where,
                    do="give a model whose inputs and outputs are tensors",
                )


def require_layers(prepared: Prepared, selection: Selection) -> Plan:
    """Make the plan, and insist that something is quantized.

    Raises:
        ModelError: No layer can be; says why for up to three candidates.
        TableError: The table's left_for_latency leaves none, or names a node that the model does not have.
        UsageError: A pattern matches nothing.
    """
    plan = make_plan(prepared.model, selection)
    if plan.layers or plan.recurrent:
        return plan
    if selection.left and make_plan(prepared.model, replace(selection, left=())).layers:
        raise TableError(
            "leaves no layer in int8",
            where="settings.left_for_latency",
            do="remove a node from it, or calibrate again",
        )
    do = "give a float32 model with constant weights, or quantize less strictly with --include and --exclude"
    if plan.left and all(left.reason == NO_KERNEL for left in plan.left):
        do = "int8 would only cost here: run the model in float, or name a runtime that has such a kernel with --target"
    reasons = "; ".join(f"{left.op_type} {left.node!r}: {left.reason}" for left in plan.left[:3])
    raise ModelError(
        "has no Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU or RNN that can be quantized"
        + (f" ({reasons})" if reasons else ""),
        where=prepared.where,
        do=do,
    )
