"""Single roundings, of a layer's input or weights or of a tensor, and the nodes that compute their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from int8cal.numerics.channels import along
from int8cal.probe.injection import ErrorSite
from int8cal.protos import copied
from int8cal.quantization.corrections.channel_copies import merged
from int8cal.quantization.corrections.residual_codes import fine_scale, first_plane
from int8cal.quantization.layers import scales_per_output

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.numerics import Float32
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer


@dataclass(frozen=True, eq=False)
class RoundedLayer:
    """A layer as it computes with integers.

    Attributes:
        layer: The layer.
        integers: Its weights and bias.
        affine: Of its input.
        residual: Its input has residual codes (see corrections.residual_codes).
        copies: Channels of its input that it reads once more (see corrections.channel_copies).
    """

    layer: Layer
    integers: QuantizedLayer
    affine: Affine
    residual: bool = False
    copies: tuple[int, ...] = ()

    def weight(self) -> Float32:
        """Return the dequantized weights, shaped as stored; with residual codes, those of the first codes."""
        codes, scales = self.integers.weight, self.integers.scales.astype(np.float32)
        if self.residual:
            codes = first_plane(codes, self.layer.reduction)
        whole = merged(codes, self.copies, self.layer).astype(np.float32)
        return whole * scales.reshape(along(self.layer.axis, whole.ndim))

    def bias(self) -> Float32 | None:
        """Return the dequantized bias, (M,); None where there is none."""
        if self.integers.bias is None:
            return None
        scales = np.float32(self.affine.scale) * scales_per_output(self.integers.scales.astype(np.float32), self.layer)
        return (self.integers.bias * scales.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class NoiseSource:
    """One thing that is rounded, and nothing else.

    Attributes:
        what: "input" or "weights" of a layer, or "others": a tensor, for readers that are no layers.
        name: The layer's node, or the tensor.
        residual: The layer's input has residual codes.
    """

    what: Literal["input", "weights", "others"]
    name: str
    residual: bool = False

    @property
    def site(self) -> ErrorSite:
        """Where its error enters."""
        return ErrorSite(self.name, "others" if self.what == "others" else "output")


class ErrorNodes:
    """Nodes beside a float model that compute the errors of single roundings.

    Beside each layer stand copies of it: one reads the dequantized codes of the same input, one has the dequantized
    codes of the weights. The difference between copy and layer is the error.

    Attributes:
        added, constants: The nodes in order, and their initializers.
        outputs: The tensor with the error of each source, where it enters: behind the layer and before its activation,
            or at the tensor.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.added: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: dict[NoiseSource, str] = {}

    def add(self, source: NoiseSource, rounded: RoundedLayer | Affine) -> None:
        """Compute the error of one source."""
        if isinstance(rounded, RoundedLayer):
            self._add_layer(source, rounded)
        else:
            self._add_rounding(source, rounded)

    def _add_layer(self, source: NoiseSource, rounded: RoundedLayer) -> None:
        layer, node = rounded.layer, self.index.nodes[rounded.layer.node]
        stem = f"{layer.node}/{source.what}{'/residual' if rounded.residual else ''}"
        other = copied(node)
        other.name = f"{stem}/rounded_layer"
        other.output[0] = f"{stem}/output"
        bias = None
        if source.what == "input":
            other.input[0] = self._rounded(f"{stem}/rounded", layer.input, rounded.affine, residual=rounded.residual)
        else:
            other.input[1] = self._constant(f"{stem}/weight", rounded.weight())
            bias = rounded.bias()
        if bias is not None and not layer.bias_add:
            other.input[2] = self._constant(f"{stem}/bias", bias)
        self.added.append(other)
        error = self._node("Sub", [other.output[0], node.output[0]], f"{stem}/error")
        if bias is not None and layer.bias_add and layer.bias is not None:
            # the bias is added behind the product; what rounding changes in it shows here already
            exact = self.index.constant(layer.bias).astype(np.float32).reshape(-1)
            shift = self._constant(f"{stem}/bias", bias - exact)
            error = self._node("Add", [error, shift], f"{stem}/error_with_bias")
        self.outputs[source] = error

    def _add_rounding(self, source: NoiseSource, affine: Affine) -> None:
        stem = f"{source.name}/others/rounded"
        value = self._rounded(stem, source.name, affine)
        self.outputs[source] = self._node("Sub", [value, source.name], f"{stem}/error")

    def _rounded(self, stem: str, tensor: str, affine: Affine, *, residual: bool = False) -> str:
        scale = self._constant(f"{stem}/scale", np.array(affine.scale, np.float32))
        zero = self._constant(f"{stem}/zero_point", np.array(affine.zero_point, affine.dtype.name))
        codes = self._node("QuantizeLinear", [tensor, scale, zero], f"{stem}/codes")
        first = self._node("DequantizeLinear", [codes, scale, zero], f"{stem}/dequantized")
        if not residual:
            return first
        fine = self._constant(f"{stem}/fine", fine_scale(affine))
        left = self._node("Sub", [tensor, first], f"{stem}/residual")
        second = self._node("QuantizeLinear", [left, fine, zero], f"{stem}/second")
        rest = self._node("DequantizeLinear", [second, fine, zero], f"{stem}/rest")
        return self._node("Add", [first, rest], f"{stem}/both")

    def _node(self, op_type: str, inputs: list[str], output: str) -> str:
        self.added.append(helper.make_node(op_type, inputs, [output], name=output))
        return output

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name
