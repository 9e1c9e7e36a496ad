"""Plan + integers -> the QDQ model: one pass over the graph that rebuilds its node list."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.graph.index import Index, attribute, free_number, outer_references
from int8cal.protos import copied, graphs_within, set_metadata, without_weights
from int8cal.quantization.corrections.residual_codes import fine_scale
from int8cal.quantization.layers import scales_per_output
from int8cal.quantization.product_ends import loses_kernel, reads_codes
from int8cal.quantization.rows import Names, from_rows, to_rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from int8cal.graph.plan import Layer, Plan
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.rows import Piece


@dataclass(frozen=True)
class _Parameters:
    codes: str
    scale: str
    zero_point: str


def emit(
    model: onnx.ModelProto,
    plan: Plan,
    activations: dict[str, Affine],
    layers: dict[str, QuantizedLayer],
    metadata: dict[str, str],
    *,
    planes: Collection[str] = (),
) -> onnx.ModelProto:
    """Build the QDQ model.

    Every Q has its own DQ per reader, so that no float copy is shared; weights and biases are integers behind a DQ.
    Tensor and node names of the prepared model survive; added ones end in _quantized, _dequantized, _scale, _zero_point
    (and a number where the model already has a tensor of that name).

    Args:
        model: The prepared model (with the recipe's corrections applied); not changed.
        plan: Where Q/DQ go.
        activations: Affine of every planned tensor.
        layers: Integers of every layer, by node name.
        metadata: Entries for metadata_props.
        planes: Nodes of layers whose input comes in two planes (see corrections.residual_codes).

    Returns:
        The int8 model; onnx.checker passes where it passed for the input.
    """
    return _Emitter(model, plan, activations, layers, planes).build(metadata)


class _Emitter:
    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Plan,
        activations: dict[str, Affine],
        layers: dict[str, QuantizedLayer],
        planes: Collection[str],
    ) -> None:
        self.model, self.plan, self.activations = model, plan, activations
        self.integers = layers
        self.index = Index(model)
        self.layer_of: dict[str, Layer] = {layer.node: layer for layer in plan.layers}
        self.owners = Counter(layer.weight for layer in plan.layers)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.taken = tensor_names(model.graph)
        self.taken_nodes = {node.name for node in model.graph.node}
        self.parameters: dict[str, _Parameters] = {}
        # with s8 activations the runtime's Gemm takes several times as long as its MatMul: there the Add stays
        self.products = {layer.node for layer in plan.layers if layer.bias_add and self._unsigned(layer.input)}
        self.adds = {layer.bias_add: layer for layer in plan.layers if layer.bias_add}
        self.planes = planes
        self.both: dict[tuple[str, int], str] = {}  # tensor and axis -> its codes in two planes
        self.rows: dict[str, str] = {}  # codes -> the same codes in two dimensions
        self.reshaped: set[str] = set()
        self.repeated: dict[str, tuple[str, str]] = {}  # scales and zero points per channel
        # a planned tensor that is a graph output, or that a subgraph reads by its name, has its name behind the DQ;
        # the float one before Q is renamed
        self.renamed = {
            point.tensor: self._fresh(f"{point.tensor}_float")
            for point in plan.tensors
            if point.exclusive and (point.tensor in self.index.outputs or self.index.read_inside(point.tensor))
        }

    def build(self, metadata: dict[str, str]) -> onnx.ModelProto:
        for value in self.model.graph.input:
            self._quantize_point(value.name)
        for node in self.model.graph.node:
            self._node(node)
        result = without_weights(self.model)
        del result.graph.node[:]
        result.graph.node.extend(self.nodes)
        result.graph.initializer.extend(self._used_initializers())
        self._drop_stale_types(result.graph)
        for key, value in sorted(metadata.items()):
            set_metadata(result, key, value)
        return result

    def _node(self, node: onnx.NodeProto) -> None:
        owner = self.adds.get(node.name)
        if owner is not None and owner.node in self.products:
            return
        layer = self.layer_of.get(node.name)
        if layer is not None and node.name in self.products:
            self._product(node, layer)
            return
        copy = copied(node)
        for slot, name in enumerate(node.input):
            if name and reads_codes(self.plan, node, slot, name):
                codes = self._codes(layer) if layer is not None else ""
                value = self._dequantize(name, self._fresh(f"{name}_dequantized"), codes)
                channels = 0 if layer is not None or slot else float_channels(self.index, node)
                if channels > 1:
                    self._per_channel(name, channels)
                copy.input[slot] = value
        if layer is not None:
            self._weights(copy, layer)
        if owner is not None:
            self._float_bias(copy, owner)
        for slot, name in enumerate(node.output):
            copy.output[slot] = self.renamed.get(name, name)
        self.nodes.append(copy)
        if layer is not None:
            self._keep_kernel(copy, node.output[0])
        for name in node.output:
            if name:
                self._quantize_point(name)

    def _product(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Write a MatMul and the Add behind it as one Gemm: its integer kernel adds the bias as well."""
        result = self.index.nodes[layer.bias_add].output[0]
        output = self.renamed.get(result, result)
        names = Names(self._fresh, self._fresh_node)
        dims = self.index.dims(layer.input) or ()
        codes = self._codes(layer)
        rows, product = codes, output
        if len(dims) != 2:
            if codes not in self.rows:
                width = layer.channels * (2 if layer.node in self.planes else 1)
                self.rows[codes] = self._append(to_rows(codes, width, names))
            rows, product = self.rows[codes], self._fresh(f"{node.output[0]}_rows")
        value = self._dequantize(layer.input, self._fresh(f"{layer.input}_dequantized"), rows)
        gemm = helper.make_node("Gemm", [value, "", ""], [product], name=node.name)
        self._weights(gemm, layer)
        self.nodes.append(gemm)
        if len(dims) != 2:
            width = self.index.initializers[layer.weight].dims[1]
            self._append(from_rows(product, output, width=width, like=(codes, dims), names=names))
            self.reshaped.add(output)
        else:
            self._keep_kernel(gemm, result)
        self._quantize_point(result)

    def _keep_kernel(self, product: onnx.NodeProto, result: str) -> None:
        """Put a Reshape to the same shape behind the last node where that keeps its integer kernel."""
        rank = self.index.rank(result)
        if not self.plan.ops.looks_behind or product.op_type not in ("MatMul", "Gemm") or not rank:
            return
        if not loses_kernel(self.index, self.plan, self.activations, result, product.op_type):
            return
        output, product.output[0] = product.output[0], self._fresh(f"{result}_product")
        same = self._fresh(f"{result}_shape")
        self._constant(same, np.zeros(rank, np.int64))
        name = self._fresh_node(f"{output}_Reshape")
        self.nodes.append(helper.make_node("Reshape", [product.output[0], same], [output], name=name))

    def _unsigned(self, tensor: str) -> bool:
        return self.activations[tensor].dtype.name == "uint8"

    def _float_bias(self, add: onnx.NodeProto, layer: Layer) -> None:
        """Let an Add that stays beside its MatMul add what the layer's s32 bias stands for, corrections included."""
        integers = self.integers[layer.node]
        if integers.bias is None:
            return
        scales = np.float32(self.activations[layer.input].scale) * integers.scales.astype(np.float32)
        name = self._fresh(f"{layer.bias}@{layer.node}")
        self._constant(name, (integers.bias * scales.astype(np.float64)).astype(np.float32))
        add.input[list(add.input).index(layer.bias)] = name

    def _append(self, piece: Piece) -> str:
        for name, value in piece.constants.items():
            self._constant(name, value)
        self.nodes.extend(piece.nodes)
        return piece.output

    def _quantize_point(self, tensor: str) -> None:
        if self.plan.tensor(tensor) is None:
            return
        affine = self.activations[tensor]
        parameters = self._affine_parameters(tensor, affine)
        self.nodes.append(
            helper.make_node(
                "QuantizeLinear",
                [self.renamed.get(tensor, tensor), parameters.scale, parameters.zero_point],
                [parameters.codes],
                name=self._fresh_node(f"{tensor}_QuantizeLinear"),
            )
        )
        if tensor in self.renamed:
            self._dequantize(tensor, tensor)

    def _codes(self, layer: Layer) -> str:
        """Return the codes that a layer reads: its input's, or these and those of the remainder side by side."""
        tensor = layer.input
        first = self.parameters[tensor]
        if layer.node not in self.planes:
            return first.codes
        axis = 1 if layer.op_type == "Conv" else -1
        if (tensor, axis) not in self.both:
            fine, left = self._fresh(f"{tensor}_remainder_scale"), self._fresh(f"{tensor}_remainder")
            self._constant(fine, fine_scale(self.activations[tensor]))
            known = self._dequantize(tensor, self._fresh(f"{tensor}_dequantized"))
            codes, both = self._fresh(f"{left}_quantized"), self._fresh(f"{tensor}_planes")
            source = self.renamed.get(tensor, tensor)
            for op_type, inputs, output in (
                ("Sub", [source, known], left),
                ("QuantizeLinear", [left, fine, first.zero_point], codes),
                ("Concat", [first.codes, codes], both),
            ):
                self.nodes.append(
                    helper.make_node(op_type, inputs, [output], name=self._fresh_node(f"{output}_{op_type}"))
                )
            self.nodes[-1].attribute.append(helper.make_attribute("axis", axis))
            self.both[tensor, axis] = both
        return self.both[tensor, axis]

    def _affine_parameters(self, tensor: str, affine: Affine) -> _Parameters:
        if tensor not in self.parameters:
            names = _Parameters(*(self._fresh(f"{tensor}_{part}") for part in ("quantized", "scale", "zero_point")))
            self._constant(names.scale, np.array(affine.scale, np.float32))
            self._constant(names.zero_point, np.array(affine.zero_point, affine.dtype.name))
            self.parameters[tensor] = names
        return self.parameters[tensor]

    def _fresh(self, name: str) -> str:
        """Return a tensor name that nobody has: this one, or this one with a number."""
        return free_name(name, self.taken)

    def _fresh_node(self, name: str) -> str:
        """Return a node name that nobody has."""
        return free_name(name, self.taken_nodes)

    def _dequantize(self, tensor: str, output: str, codes: str = "") -> str:
        parameters = self.parameters[tensor]
        self.nodes.append(
            helper.make_node(
                "DequantizeLinear",
                [codes or parameters.codes, parameters.scale, parameters.zero_point],
                [output],
                name=self._fresh_node(f"{output}_DequantizeLinear"),
            )
        )
        return output

    def _per_channel(self, tensor: str, channels: int) -> None:
        """Give the last DQ one scale per channel, all alike, so that the runtime leaves the layer behind it in float.

        Behind a DQ with one scale, onnxruntime's WeightBiasQuantization gives float weights int8 codes of its own, with
        one scale for the whole tensor: on depthwise layers that is far worse than any int8 model of ours.
        """
        if tensor not in self.repeated:
            affine = self.activations[tensor]
            scales, zeros = self._fresh(f"{tensor}_channel_scales"), self._fresh(f"{tensor}_channel_zero_points")
            self._constant(scales, np.full(channels, affine.scale, np.float32))
            self._constant(zeros, np.full(channels, affine.zero_point, affine.dtype.name))
            self.repeated[tensor] = (scales, zeros)
        self.nodes[-1].input[1], self.nodes[-1].input[2] = self.repeated[tensor]
        self.nodes[-1].attribute.append(helper.make_attribute("axis", 1))

    def _weights(self, node: onnx.NodeProto, layer: Layer) -> None:
        integers = self.integers[layer.node]
        rule = self.plan.ops.rules["Gemm" if layer.node in self.products else layer.op_type]
        stem = layer.weight if self.owners[layer.weight] == 1 else f"{layer.weight}@{layer.node}"
        axis = layer.axis
        scales = integers.scales.astype(np.float32)
        per_tensor = axis is None
        node.input[rule.weight] = self._integer_constant(
            stem,
            integers.weight,
            scales.reshape(()) if per_tensor else scales,
            np.zeros((), np.int8) if per_tensor else np.zeros(len(scales), np.int8),
            axis,
        )
        if integers.bias is None or rule.bias is None or layer.bias is None:
            return
        bias_scales = np.float32(self.activations[layer.input].scale) * scales_per_output(scales, layer)
        stem = f"{layer.bias}@{layer.node}"
        if self.plan.ops.float_bias:
            node.input[rule.bias] = self._fresh(stem)
            value = integers.bias * bias_scales.astype(np.float64)
            self._constant(node.input[rule.bias], value.astype(np.float32))
            return
        if len(bias_scales) == 1:
            scale, bias_axis = bias_scales[:1].reshape(()), None
        else:
            scale, bias_axis = bias_scales, 0
        zero = np.zeros(scale.shape, np.int32)
        node.input[rule.bias] = self._integer_constant(stem, integers.bias, scale, zero, bias_axis)

    def _integer_constant(
        self, stem: str, codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int | None
    ) -> str:
        output = self._fresh(f"{stem}_dequantized")
        names = [self._fresh(f"{stem}_{part}") for part in ("quantized", "scale", "zero_point")]
        for name, value in zip(names, (codes, scale, zero_point), strict=True):
            self._constant(name, value)
        node = helper.make_node(
            "DequantizeLinear", names, [output], name=self._fresh_node(f"{output}_DequantizeLinear")
        )
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        self.nodes.append(node)
        return output

    def _constant(self, name: str, value: np.ndarray) -> None:
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name)

    def _used_initializers(self) -> list[onnx.TensorProto]:
        used = {name for node in self.nodes for name in node.input}
        used |= {name for node in self.nodes for name in outer_references(node)}
        used |= {value.name for value in self.model.graph.output}
        kept = [tensor for tensor in self.model.graph.initializer if tensor.name in used]
        return kept + list(self.initializers.values())

    def _drop_stale_types(self, graph: onnx.GraphProto) -> None:
        # the runtime infers what a Reshape behind rows gives; told the symbol of a free batch, it would fuse the next
        # Add into SkipLayerNormalization, whose kernel takes longer than Add and LayerNormalization
        alive = {name for node in graph.node for name in node.output} - self.reshaped
        alive -= {value.name for value in graph.output}  # these say their types as the user declared them
        kept = [value for value in graph.value_info if value.name in alive]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def float_channels(index: Index, node: onnx.NodeProto) -> int:
    """Return the input channels of a layer with constant weights that the runtime could quantize by itself; else 0."""
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or not index.is_constant(node.input[1]):
        return 0
    dims = index.initializers[node.input[1]].dims
    if node.op_type == "Conv":
        return int(dims[1]) * int(attribute(node, "group", 1))
    return int(dims[1 if attribute(node, "transB", 0) else 0])


def tensor_names(graph: onnx.GraphProto) -> set[str]:
    """Return every tensor name of a graph and of the graphs in its nodes."""
    names: set[str] = set()
    for each in graphs_within(graph):
        names.update(value.name for value in (*each.input, *each.output, *each.initializer))
        for node in each.node:
            names.update(node.input, node.output)
    return names


def free_name(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, this one or this one with a number, and take it."""
    free = name if name not in taken else f"{name}_{free_number(f'{name}_', taken, 1)}"
    taken.add(free)
    return free
