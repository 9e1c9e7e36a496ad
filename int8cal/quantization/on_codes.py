"""What moves values is written as what moves codes, where onnxruntime does not do that by itself, or slowly.

A Pad with zeros adds zero points: between a DQ and a Q it is a node of real numbers.

A Resize that repeats each pixel is copies of whole rows. onnxruntime's Resize of codes looks each value up, in 0.9 ns:
ten times as long as two Concats of a tensor with itself take where channels come last, one beside each pixel and one
beside each row. Its integer convolutions write and read codes so, and the Transposes here meet theirs. The figures:
docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import instead
from int8cal.graph.index import attribute
from int8cal.quantization.products import reads_codes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Index
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.corrections.correction import Draft

# Ways to find the pixel of a position, and to round it, that give position // factor for any whole factor.
_WAYS = frozenset(
    {
        ("asymmetric", "floor"),
        ("tf_half_pixel_for_nn", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
        ("pytorch_half_pixel", "round_prefer_floor"),
        ("pytorch_half_pixel", "round_prefer_ceil"),
    }
)

_SCALES = 2  # their place among the inputs


def on_codes(draft: Draft, activations: Mapping[str, Affine]) -> dict[str, tuple[int, int]]:
    """Name the Pads, and the Resizes that repeat pixels, of which nobody reads but codes, with the scale of before.

    Args:
        draft: The float model and its plan.
        activations: Affine of every planned tensor.

    Returns:
        How often each repeats a pixel, along height and width.
    """
    index, plan, found = draft.index, draft.plan, dict[str, tuple[int, int]]()
    fine = {layer.input for layer in plan.layers if layer.node in draft.residual or layer.node in draft.fine}
    for name in plan.integer_nodes:
        node = index.nodes[name]
        factors = whole_factors(index, node) if node.op_type == "Resize" else (1, 1)
        if factors is None or (factors == (1, 1) and node.op_type != "Pad"):
            continue
        data, output = node.input[0], node.output[0]
        uses = index.uses.get(output, ())
        as_codes = all(use.slot >= 0 and reads_codes(plan, use.node, use.slot, output) for use in uses)
        as_floats = not as_codes or output in index.outputs or output in fine
        if not as_floats and activations[data] == activations[output]:
            found[name] = factors
    return found


def write_on_codes(
    built: Builder, index: Index, node: onnx.NodeProto, factors: tuple[int, int], codes: tuple[str, str], zero: str
) -> None:
    """Write the nodes of one of these; the last one has its name.

    Args:
        built: Gets the nodes.
        index: Of the float model.
        node: The Pad or Resize in it.
        factors: See `on_codes`.
        codes: What it reads, and those that it gives.
        zero: Their zero point.
    """
    if node.op_type == "Pad":
        built.nodes.append(instead(node, "Pad", [codes[0], node.input[1], zero], codes[1]))
    else:
        _write_repeated(built, index, node, factors, *codes)


def whole_factors(index: Index, node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return how often a Resize repeats each pixel along height and width; None where it does anything else."""
    dims = index.dims(node.input[0])
    if dims is None or len(dims) != 4 or dims[1] is None or any(item.name == "axes" for item in node.attribute):
        return None
    way = tuple(
        attribute(node, name, default).decode()
        for name, default in (
            ("coordinate_transformation_mode", b"half_pixel"),
            ("nearest_mode", b"round_prefer_floor"),
        )
    )
    scales = _scales(index, node, dims)
    if scales is None or any(scale < 1.0 or not scale.is_integer() for scale in scales) or scales[:2] != [1.0, 1.0]:
        return None
    height, width = (int(scale) for scale in scales[2:])
    known = way in _WAYS or (way == ("asymmetric", "round_prefer_floor") and max(height, width) <= 2)
    return (height, width) if known else None


def _scales(index: Index, node: onnx.NodeProto, dims: Sequence[int | None]) -> list[float] | None:
    scales = node.input[2] if len(node.input) > _SCALES else ""
    if scales:
        given = index.constant(scales).reshape(-1) if index.is_constant(scales) else ()
        return [float(scale) for scale in given] if len(given) == len(dims) else None
    # by sizes, which exporters often compute from those of the batch: nobody enlarges that
    after = index.dims(node.output[0])
    if after is None or None in (*dims[1:], *after[1:]) or 0 in dims:
        return None
    return [1.0, *(one / other for one, other in zip(after[1:], dims[1:], strict=True) if one and other)]


def _write_repeated(
    built: Builder, index: Index, node: onnx.NodeProto, factors: tuple[int, int], codes: str, output: str
) -> None:
    _, channels, height, width = index.dims(node.input[0]) or ()

    def added(what: str) -> str:
        return built.names.tensor(f"{output}_{what}")

    last = added("channels_last")
    built.node("Transpose", [codes], last, perm=[0, 2, 3, 1])
    if height is None or width is None:
        shape, target = added("shape"), added("sizes")
        built.node("Shape", [last], shape)
        built.node("Mul", [shape, built.constant(f"{output}_factors", np.array([1, *factors, 1]))], target)
    else:
        sizes = np.array([0, height * factors[0], width * factors[1], channels])
        target = built.constant(f"{output}_sizes", sizes)
    pixels, rows, rows_twice, whole = (added(what) for what in ("pixels", "rows", "rows_repeated", "repeated"))
    built.node("Concat", [last] * factors[1], pixels, axis=3)
    built.node("Reshape", [pixels, built.constant(f"{output}_by_row", np.array([0, 0, 1, -1]))], rows)
    built.node("Concat", [rows] * factors[0], rows_twice, axis=2)
    built.node("Reshape", [rows_twice, target], whole)
    built.nodes.append(instead(node, "Transpose", [whole], output, perm=[0, 3, 1, 2]))
