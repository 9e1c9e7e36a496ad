"""What rounded inputs and integer weights change in the outputs of layers, for many layers in one inference.

Beside each layer of the float model stand its twins: one reads the dequantized codes of the same input, one has the
dequantized codes of the weights. The difference between twin and layer is an output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.index import Index
from int8cal.graph.injection import ErrorSite
from int8cal.protos import copied, view_of
from int8cal.quantization.corrections.residual_codes import fine_scale, first_plane
from int8cal.quantization.layers import scales_per_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from int8cal.graph.plan import Layer
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.protos import ModelView


@dataclass(frozen=True, eq=False)
class Twin:
    """A layer as it computes with integers.

    Attributes:
        layer: The layer.
        integers: Its weights and bias.
        affine: Of its input.
        planes: Its input comes in two planes (see corrections.residual_codes).
    """

    layer: Layer
    integers: QuantizedLayer
    affine: Affine
    planes: bool = False

    def weight(self) -> npt.NDArray[np.float32]:
        """Return the dequantized weights, shaped as stored; those of the first plane."""
        codes, scales = self.integers.weight, self.integers.scales.astype(np.float32)
        if self.planes:
            codes = first_plane(codes, self.layer.reduction)
        if self.layer.axis is None:
            return codes.astype(np.float32) * scales.reshape(())
        shape = [1] * codes.ndim
        shape[self.layer.axis] = -1
        return codes.astype(np.float32) * scales.reshape(shape)

    def bias(self) -> npt.NDArray[np.float32] | None:
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
        planes: The layer's input comes in two planes.
    """

    what: Literal["input", "weights", "others"]
    name: str
    planes: bool = False

    @property
    def place(self) -> ErrorSite:
        """Where its error enters."""
        return ErrorSite(self.name, "others" if self.what == "others" else "output")


@dataclass(frozen=True)
class ErrorModel:
    """The model, and the output that holds the error of each cause."""

    model: ModelView
    outputs: dict[NoiseSource, str]


def make_error_model(
    model: onnx.ModelProto, twins: Mapping[NoiseSource, Twin], rounded: Mapping[NoiseSource, Affine]
) -> ErrorModel:
    """Add twins to a model, and drop its outputs.

    Args:
        model: The prepared (and equalized) float model that the integers stand for; its weights are shared.
        twins: For causes in layers.
        rounded: For causes "others".

    Returns:
        The error of each cause, where it enters: behind the layer and before its activation, or at the tensor.
    """
    builder = _Builder(model)
    for cause, twin in twins.items():
        builder.add_twin(cause, twin)
    for cause, affine in rounded.items():
        builder.add_rounding(cause, affine)
    return builder.build()


class _Builder:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.index = model, Index(model)
        self.added: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: dict[NoiseSource, str] = {}

    def build(self) -> ErrorModel:
        result = view_of(self.model)
        graph = result.shell.graph
        graph.node.extend(self.added)
        graph.initializer.extend(self.constants)
        del graph.output[:]
        for name in self.outputs.values():
            graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        return ErrorModel(result, dict(self.outputs))

    def add_twin(self, cause: NoiseSource, twin: Twin) -> None:
        layer, node = twin.layer, self.index.nodes[twin.layer.node]
        stem = f"{layer.node}/{cause.what}{'/planes' if twin.planes else ''}"
        other = copied(node)
        other.name = f"{stem}/twin"
        other.output[0] = f"{stem}/output"
        error = f"{stem}/error"
        if cause.what == "input":
            other.input[0] = self._rounded(f"{stem}/rounded", layer.input, twin.affine, planes=twin.planes)
            self.added.append(other)
            self._node("Sub", [other.output[0], node.output[0]], error)
        else:
            other.input[1] = self._constant(f"{stem}/weight", twin.weight())
            bias = twin.bias()
            if bias is not None and layer.bias is not None and not layer.bias_add:
                other.input[2] = self._constant(f"{stem}/bias", bias)
            self.added.append(other)
            self._node("Sub", [other.output[0], node.output[0]], error)
            if bias is not None and layer.bias is not None and layer.bias_add:
                # the bias is added behind the product; what rounding changes in it shows here already
                exact = self.index.constant(layer.bias).astype(np.float32).reshape(-1)
                shift = self._constant(f"{stem}/bias", bias - exact)
                error = self._node("Add", [error, shift], f"{stem}/error_with_bias")
        self.outputs[cause] = error

    def add_rounding(self, cause: NoiseSource, affine: Affine) -> None:
        stem = f"{cause.name}/others/rounded"
        value = self._rounded(stem, cause.name, affine)
        self.outputs[cause] = self._node("Sub", [value, cause.name], f"{stem}/error")

    def _rounded(self, stem: str, tensor: str, affine: Affine, *, planes: bool = False) -> str:
        scale = self._constant(f"{stem}/scale", np.array(affine.scale, np.float32))
        zero = self._constant(f"{stem}/zero_point", np.array(affine.zero_point, affine.dtype.name))
        codes = self._node("QuantizeLinear", [tensor, scale, zero], f"{stem}/codes")
        first = self._node("DequantizeLinear", [codes, scale, zero], f"{stem}/dequantized")
        if not planes:
            return first
        fine = self._constant(f"{stem}/fine", fine_scale(affine))
        left = self._node("Sub", [tensor, first], f"{stem}/remainder")
        second = self._node("QuantizeLinear", [left, fine, zero], f"{stem}/second")
        rest = self._node("DequantizeLinear", [second, fine, zero], f"{stem}/rest")
        return self._node("Add", [first, rest], f"{stem}/both")

    def _node(self, op_type: str, inputs: list[str], output: str) -> str:
        self.added.append(helper.make_node(op_type, inputs, [output], name=output))
        return output

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name
