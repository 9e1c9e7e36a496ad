"""Embeddings in int8: the codes that a table asks for, and how they are written into the model.

Rows that are looked up: Gather of codes, Gather of their scales, Cast, Mul; with a scale per column Gather of codes,
Cast, Mul. A DequantizeLinear per column in their place takes twice as long, and com.microsoft's GatherBlockQuantized
one and a half times. A table that is read whole stands behind Cast and Mul, which the runtime folds when it loads the
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.errors import TableError
from int8cal.graph.edit import Builder, Names, rebuild
from int8cal.graph.index import Index
from int8cal.numerics.affine import S8, SMALLEST_SCALE
from int8cal.protos import copied
from int8cal.quantization.layers import require_finite_weight
from int8cal.quantization.table import WeightEntry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt

    from int8cal.graph.embeddings import Embedding, EmbeddingForm
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Float64, Int8
    from int8cal.quantization.table import CalibrationTable

_RANGE = "s8"  # nothing adds these codes up, so nothing saturates
_BLOCK = 1 << 22  # values that are float64 at a time


@dataclass(frozen=True, eq=False)
class QuantizedEmbedding:
    """A table's integers.

    Attributes:
        embedding: The table.
        form: Where the scales are.
        codes: int8, shaped as the table.
        scales: float64 values that are exact float32, one per position of the form's axis.
    """

    embedding: Embedding
    form: EmbeddingForm
    codes: Int8
    scales: Float64


def quantize_embeddings(
    model: onnx.ModelProto | Index, plan: Plan, table: CalibrationTable
) -> dict[str, QuantizedEmbedding]:
    """Quantize the embeddings that the table names under settings.embeddings; without that part they stay float.

    Args:
        model: The prepared model, or its index.
        plan: Its plan.
        table: Forms, and scales, which are computed where absent.

    Returns:
        Integers by node name, in graph order.

    Raises:
        TableError: The table names a node that is not there, or has scales of another form or number.
        NonFiniteError: A value is NaN or infinity.
    """
    forms = table.settings.embeddings
    if not forms:
        return {}
    index = Index.of(model)
    unknown = next((node for node in forms if node not in index.nodes), None)
    if unknown is not None:
        where = "settings.embeddings"
        raise TableError(f"names the node {unknown!r}, which the model does not have", where=where, do="remove it")
    result = {}
    for each in plan.embeddings:
        if each.node not in forms:
            continue
        form = forms[each.node]
        values = index.constant(each.weight).astype(np.float32)
        require_finite_weight(values, each.weight, each.node)
        key, axis = plan.weight_key(each.node, each.weight), each.axis(form)
        entry = table.weights.get(key)
        scales = None
        if entry is not None:
            entry.require_shape(key, axis, each.dims[axis])
            scales = entry.scales_for(_RANGE)
        scales = scales_along(values, axis) if scales is None else scales
        result[each.node] = QuantizedEmbedding(each, form, codes_of(values, scales, axis), scales)
    return result


def embedding_entries(plan: Plan, embeddings: dict[str, QuantizedEmbedding]) -> dict[str, WeightEntry]:
    """Return the table's weight entries."""
    return {
        plan.weight_key(node, each.embedding.weight): WeightEntry(
            "int8", each.embedding.axis(each.form), _RANGE, tuple(each.scales.tolist()), node
        )
        for node, each in embeddings.items()
    }


def scales_along(values: npt.NDArray[np.floating[Any]], axis: int) -> Float64:
    """Choose the scale of each position of an axis: max|values| / 127; exact float32, SMALLEST_SCALE for zeros."""
    others = tuple(each for each in range(values.ndim) if each != axis)
    largest = np.abs(values).max(axis=others).astype(np.float64)
    scales: Float64 = np.maximum((largest / S8.qmax).astype(np.float32).astype(np.float64), SMALLEST_SCALE)
    return scales


def codes_of(values: npt.NDArray[np.floating[Any]], scales: Float64, axis: int) -> Int8:
    """Round values to codes of [-127, 127], half to even."""
    codes: Int8 = np.empty(values.shape, np.int8)
    for rows, part, spread in _blocks(values, scales, axis):
        codes[rows] = _rounded(part, spread)
    return codes


def coding_error(values: npt.NDArray[np.floating[Any]], axis: int) -> tuple[float, float]:
    """Return the squared error of int8 codes with a scale per position of an axis, and the squared values."""
    error = signal = 0.0
    for _, part, spread in _blocks(values, scales_along(values, axis), axis):
        error += float(np.square(part - _rounded(part, spread) * spread).sum())
        signal += float(np.square(part).sum())
    return error, signal


def _rounded(values: Float64, scales: Float64) -> Float64:
    codes: Float64 = np.clip(np.rint(values / scales), -S8.qmax, S8.qmax)
    return codes


def _blocks(
    values: npt.NDArray[np.floating[Any]], scales: Float64, axis: int
) -> Iterator[tuple[slice, Float64, Float64]]:
    """Cut a table of any size into blocks of rows: where they are, their values, and scales that multiply them."""
    step = max(_BLOCK // max(values[:1].size, 1), 1)
    for first in range(0, len(values), step):
        rows = slice(first, first + step)
        yield rows, values[rows].astype(np.float64), _spread(scales[rows] if axis == 0 else scales, values.ndim, axis)


def emit_embeddings(model: onnx.ModelProto, embeddings: dict[str, QuantizedEmbedding]) -> onnx.ModelProto:
    """Write the integers into an emitted model.

    Args:
        model: As emitted; changed in place.
        embeddings: Integers by node name.

    Returns:
        The model; float tables that nobody reads any more are gone.
    """
    if not embeddings:
        return model
    readers = {
        node: each for each in embeddings.values() for node in (*each.embedding.gathers, *each.embedding.readers)
    }
    writer = _Writer(model)
    for node in model.graph.node:
        each = readers.get(node.name)
        if each is None or each.embedding.weight not in node.input:
            writer.built.nodes.append(node)
        elif each.embedding.gathers:
            writer.looked_up(node, each)
        else:
            writer.whole(node, each)
    rebuild(model, writer.built, {each.embedding.weight for each in embeddings.values()})
    return model


class _Writer:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.built = Builder(Names(model.graph))
        self.constants: dict[str, tuple[str, str]] = {}  # node of an embedding -> its codes and scales
        self.values: dict[str, str] = {}  # node of an embedding that is read whole -> its values

    def looked_up(self, node: onnx.NodeProto, each: QuantizedEmbedding) -> None:
        """Let a Gather look up codes, and make them real behind it."""
        codes, scales = self._constants(each)
        output, indices = str(node.output[0]), str(node.input[1])
        result, real = (self.built.names.tensor(f"{output}_{what}") for what in ("codes", "unscaled"))
        gather = copied(node)
        gather.input[0], gather.output[0] = codes, result
        self.built.nodes.append(gather)
        if each.form == "rows":
            rows = self.built.names.tensor(f"{output}_row_scales")
            self.built.node("Gather", [scales, indices], rows, axis=0)
            scales = rows
        self.built.node("Cast", [result], real, to=onnx.TensorProto.FLOAT)
        self.built.node("Mul", [real, scales], output)

    def whole(self, node: onnx.NodeProto, each: QuantizedEmbedding) -> None:
        """Let a node read the values of a table's codes."""
        table = each.embedding
        if table.node not in self.values:
            codes, scales = self._constants(each)
            real, value = (self.built.names.tensor(f"{table.weight}_{what}") for what in ("unscaled", "dequantized"))
            self.built.node("Cast", [codes], real, to=onnx.TensorProto.FLOAT)
            self.built.node("Mul", [real, scales], value)
            self.values[table.node] = value
        result = copied(node)
        result.input[:] = [self.values[table.node] if name == table.weight else name for name in node.input]
        self.built.nodes.append(result)

    def _constants(self, each: QuantizedEmbedding) -> tuple[str, str]:
        table = each.embedding
        if table.node not in self.constants:
            scales = _spread(each.scales, len(table.dims), table.axis(each.form)).astype(np.float32)
            self.constants[table.node] = (
                self.built.constant(f"{table.weight}_quantized", each.codes),
                self.built.constant(f"{table.weight}_scale", scales),
            )
        return self.constants[table.node]


def _spread(scales: Float64, rank: int, axis: int) -> Float64:
    """Give scales the shape that multiplies a table; of the last axis alone they stay a vector."""
    return scales.reshape(-1, *[1] * (rank - 1 - axis))
