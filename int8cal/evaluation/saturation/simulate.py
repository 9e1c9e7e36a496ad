"""One layer on one input, exactly and as VPMADDUBSW saturates it, with numerics.reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import ModelError
from int8cal.graph.index import attribute
from int8cal.graph.window import window_of
from int8cal.numerics.reference.convolution import convolve
from int8cal.numerics.reference.matmul import gemm, matmul
from int8cal.numerics.reference.requantize import quantize_dynamically
from int8cal.numerics.reference.transposed import convolve_transposed

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.evaluation.saturation.linear import Linear, Runtime
    from int8cal.numerics.reference.dot import Sums


def zero_point(layer: Linear) -> int:
    """Return the zero point of a layer's data; 0 where it is not constant."""
    value = layer.constants.value(layer.data_zero_point)
    return 0 if value is None else int(value.reshape(-1)[0])


def is_padded(layer: Linear) -> bool:
    """Whether a convolution may read beyond the edges."""
    return any(attribute(layer.proto, "pads", ())) or attribute(layer.proto, "auto_pad", b"") not in (b"", b"VALID")


def compute(
    layer: Linear,
    x: npt.NDArray[Any],
    second: npt.NDArray[Any] | None,
    starts: npt.NDArray[np.int64],
    runtime: Runtime,
) -> tuple[Sums, int]:
    """Compute a layer both ways.

    Args:
        layer: Any but a recurrent one.
        x: What it reads: codes, or floats where it quantizes by itself.
        second: Codes of a second operand that is an activation.
        starts: Pairs along a row of its weights.
        runtime: onnxruntime fills pads with the zero point, oneDNN with zeros.

    Returns:
        Its sums without bias, and the axis of its output channels.

    Raises:
        ModelError: Shapes or types do not fit.
    """
    codes = quantize_dynamically(x)[0] if layer.form.quantizes else x
    weight = second if layer.weight is None else layer.weight.values
    if weight is None:
        raise ModelError("has no second operand of codes", where=f"node {layer.node!r}", do="audit without --data")
    if layer.form.kind in {"Conv", "ConvTranspose"}:
        if attribute(layer.proto, "channels_last", 0):
            codes = np.ascontiguousarray(np.moveaxis(codes, -1, 1))
        window = window_of(layer.proto, weight.shape[2:], codes.shape[2:])
        if layer.form.kind == "Conv":
            padding = 0 if runtime == "onednn" else None
            sums = convolve(
                codes, weight, window, group=layer.group, zero_point=zero_point(layer), padding=padding,
                pair_starts=starts,
            )  # fmt: skip
        else:
            sums = convolve_transposed(
                codes, weight, window, group=layer.group, zero_point=zero_point(layer), pair_starts=starts,
                output_padding=attribute(layer.proto, "output_padding", None),
            )  # fmt: skip
        return sums, 1
    if layer.form.kind == "Gemm":
        transposed = (bool(attribute(layer.proto, name, 0)) for name in ("transA", "transB"))
        return gemm(codes, weight, transpose_a=next(transposed), transpose_b=next(transposed), pair_starts=starts), -1
    rows = codes.reshape(1, -1) if codes.ndim == 1 else codes
    return matmul(rows, weight.reshape(-1, 1) if weight.ndim == 1 else weight, pair_starts=starts), -1
