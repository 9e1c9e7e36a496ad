"""Layers without a calibrated range, written into an emitted model: codes made at run time, or int8 weights alone.

dynamic: DynamicQuantizeLinear, MatMulInteger, Cast and Mul, which onnxruntime joins into DynamicQuantizeMatMul, or into
MatMulIntegerToFloat where several products read one tensor; the bias goes into it too. The range is that of the tensor
of one inference, so what a sample gives depends on the others of its batch.

weights: behind a MatMul of two dimensions a DequantizeLinear, of which onnxruntime makes a MatMulNBits (sums of it
saturate on no CPU, measured under an emulated Haswell). Elsewhere Cast and Mul, which it folds when it loads the model:
behind DequantizeLinear it would convert all weights in every run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.edit import Builder, Names, instead, rebuild, refill
from int8cal.graph.index import attribute
from int8cal.graph.layers import is_plain
from int8cal.numerics.channels import along
from int8cal.protos import copied
from int8cal.quantization.products import ProductRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.layers import Layer
    from int8cal.numerics import Int8
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.corrections.correction import Draft


def emit_unranged(model: onnx.ModelProto, draft: Draft, integers: Mapping[str, QuantizedLayer]) -> onnx.ModelProto:
    """Write the integers of layers without a calibrated range into an emitted model.

    Args:
        model: As emitted, these layers in float; changed in place.
        draft: What it was emitted of; says what is added to biases.
        integers: Of every layer, by node name.

    Returns:
        The model, without the float weights that nobody reads any more.
    """
    unranged = draft.plan.unranged
    if not unranged:
        return model
    layers = {layer.node: layer for layer in unranged}
    adds = {layer.bias_add: layer for layer in unranged if layer.bias_add}
    writer = _Writer(model, draft, integers)
    for node in model.graph.node:
        layer = layers.get(node.name)
        if node.name in adds:
            writer.add(node, adds[node.name])
        elif layer is None:
            writer.built.nodes.append(node)
        elif layer.form == "dynamic":
            writer.dynamic(node, layer)
        else:
            writer.weights(node, layer)
    refill(
        model.graph.value_info, [value for value in model.graph.value_info if value.name not in writer.rows.restored]
    )
    rebuild(model, writer.built, {name for layer in unranged for name in (layer.weight, layer.bias) if name})
    return model


class _Writer:
    def __init__(self, model: onnx.ModelProto, draft: Draft, integers: Mapping[str, QuantizedLayer]) -> None:
        self.built = Builder(Names(model.graph))
        self.draft, self.index = draft, draft.index
        self.integers = integers
        self.inputs: dict[str, tuple[str, str, str]] = {}  # tensor -> its codes, scale and zero point
        self.rows = ProductRows(self.built, draft.model)
        self.taken_in: set[str] = set()  # Adds that are written with their product
        # layers that read the same weights in the same way share what is made of them
        self.written: dict[tuple[str, str, bytes, str], tuple[str, ...]] = {}

    def dynamic(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Write a product of codes that are made at run time; scale and bias follow it."""
        tensor, stem = str(node.input[0]), str(node.output[0])
        if tensor not in self.inputs:
            parts = tuple(self.built.names.tensor(f"{tensor}_dynamic_{part}") for part in ("codes", "scale", "zero"))
            made = self.built.node("DynamicQuantizeLinear", [tensor], parts[0], after=tensor)
            made.output.extend(parts[1:])
            self.inputs[tensor] = (parts[0], parts[1], parts[2])
        codes, scale, zero_point = self.inputs[tensor]
        output, dims = str(node.output[0]), self.index.dims(layer.input) or ()
        in_rows = len(dims) > 2 and self._meets_residual(layer.output)
        if in_rows:
            output = self.built.names.tensor(f"{stem}_rows")
        weight, scales = self._matrix(node, layer)
        names = {part: self.built.names.tensor(f"{stem}_{part}") for part in ("sums", "sums_float", "sums_scale")}
        read = self.rows.of(codes, layer.channels) if in_rows else codes
        self.built.nodes.append(instead(node, "MatMulInteger", [read, weight, zero_point], names["sums"]))
        self.built.node("Cast", [names["sums"]], names["sums_float"], to=onnx.TensorProto.FLOAT)
        self.built.node("Mul", [scale, scales], names["sums_scale"])
        product = self._before_bias(node) if _has_bias(node) else output
        self.built.node("Mul", [names["sums_float"], names["sums_scale"]], product)
        self._bias(node, layer, product)
        if in_rows:
            if layer.bias_add and layer.bias is not None:
                result = self.built.names.tensor(f"{layer.output}_rows")
                self.built.node("Add", [product, self._corrected(layer, layer.bias)], result)
                self.taken_in.add(layer.bias_add)
                product = result
            width = self.index.initializers[layer.weight].dims[1]
            self.rows.restore(product, layer.output, width=width, like=(layer.input, dims), codes=codes)

    def _meets_residual(self, result: str) -> bool:
        """Whether an Add of two activations reads a product.

        Told that both have the same shape, the runtime would make a SkipLayerNormalization of the Add and what follows,
        whose kernel takes longer than both. It cannot tell that of what a Reshape gives.
        """
        return any(
            use.node.op_type == "Add" and not any(self.index.is_constant(name) for name in use.node.input)
            for use in self.index.uses.get(result, ())
        )

    def weights(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Put int8 weights in front of a node that stays in float."""
        if layer.op_type not in ("MatMul", "Gemm") or layer.axis is None or not is_plain(node):
            result = copied(node)
            result.input[1] = self._float_weight(layer)
            self.built.nodes.append(result)
            return
        weight, scales = self._matrix(node, layer)
        key = ("behind DequantizeLinear", weight, b"", "")
        if key not in self.written:
            value = self.built.names.tensor(f"{layer.weight}_dequantized")
            zeros = np.zeros(self.integers[layer.node].scales.shape, np.int8)
            zero = self.built.constant(f"{layer.weight}_zero_point", zeros)
            self.built.node("DequantizeLinear", [weight, scales, zero], value, axis=1)
            self.written[key] = (value,)
        (value,) = self.written[key]
        product = self._before_bias(node)
        if product == node.output[0]:
            self.built.nodes.append(instead(node, "MatMul", [node.input[0], value], product))
            return
        # the runtime would make a Gemm of a MatMul and the Add behind it, and a Gemm dequantizes in every run
        rows = self.built.names.tensor(f"{node.output[0]}_rows")
        self.built.nodes.append(instead(node, "MatMul", [node.input[0], value], rows))
        shape = self.built.constant(f"{node.output[0]}_rows_shape", np.zeros(2, np.int64))
        self.built.node("Reshape", [rows, shape], product)
        self._bias(node, layer, product)

    def add(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Write the Add of a layer's bias, unless the layer has taken it in."""
        if node.name in self.taken_in:
            return
        result = copied(node)
        if layer.bias is not None:
            result.input[list(node.input).index(layer.bias)] = self._corrected(layer, layer.bias)
        self.built.nodes.append(result)

    def _before_bias(self, node: onnx.NodeProto) -> str:
        return self.built.names.tensor(f"{node.output[0]}_product") if _has_bias(node) else str(node.output[0])

    def _bias(self, node: onnx.NodeProto, layer: Layer, product: str) -> None:
        if _has_bias(node):
            self.built.node("Add", [product, self._corrected(layer, node.input[2])], node.output[0])

    def _corrected(self, layer: Layer, bias: str) -> str:
        """Return the name of a layer's bias with what is added to it."""
        delta = self.draft.bias_deltas.get(layer.node)
        if delta is None:
            return bias
        values = self.index.constant(bias).astype(np.float64).reshape(-1) + delta
        return self.built.constant(f"{bias}@{layer.node}", values.astype(np.float32))

    def _matrix(self, node: onnx.NodeProto, layer: Layer) -> tuple[str, ...]:
        """Return the names of a weight's codes (inputs, outputs) and of their scales (outputs,)."""
        codes = self.integers[layer.node].weight
        return self._codes(layer, "matrix", codes.T if attribute(node, "transB", 0) else codes, (-1,))

    def _float_weight(self, layer: Layer) -> str:
        codes = self.integers[layer.node].weight
        names = self._codes(layer, "float", codes, along(layer.axis, codes.ndim))
        key = ("behind Cast and Mul", names[0], b"", "")
        if key not in self.written:
            value = self.built.names.tensor(f"{layer.weight}_dequantized")
            real = self.built.names.tensor(f"{layer.weight}_float")
            self.built.node("Cast", [names[0]], real, after=value, to=onnx.TensorProto.FLOAT)
            self.built.node("Mul", [real, names[1]], value)
            self.written[key] = (value,)
        return self.written[key][0]

    def _codes(self, layer: Layer, how: str, codes: Int8, scale_shape: tuple[int, ...]) -> tuple[str, ...]:
        each = self.integers[layer.node]
        key = (how, layer.weight, hashlib.sha256(codes.tobytes() + each.scales.tobytes()).digest(), str(codes.shape))
        if key not in self.written:
            self.written[key] = (
                self.built.constant(f"{layer.weight}_quantized", codes),
                self.built.constant(f"{layer.weight}_scale", each.scales.astype(np.float32).reshape(scale_shape)),
            )
        return self.written[key]


def _has_bias(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gemm" and len(node.input) > 2 and bool(node.input[2])
