"""Plan + integers -> the QDQ model: one pass over the graph that rebuilds its node list."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.graph.edit import Builder, Names, instead, refill, without_attribute
from int8cal.graph.index import Index, attribute, tensors_read
from int8cal.graph.layers import line_of
from int8cal.numerics.affine import U16
from int8cal.numerics.channels import along
from int8cal.protos import copied, set_metadata, without_weights
from int8cal.quantization.corrections.residual_codes import fine_scale
from int8cal.quantization.depthwise import depthwise_of_codes, write_depthwise
from int8cal.quantization.factors import absorbed_factors
from int8cal.quantization.gelu import BY_TANH, EXACT, Gelus, find_gelus
from int8cal.quantization.image_channels import is_padded
from int8cal.quantization.layers import scales_per_output
from int8cal.quantization.moves import moves_into_bodies
from int8cal.quantization.norms import adds_before_norms
from int8cal.quantization.on_codes import on_codes, write_on_codes
from int8cal.quantization.pools import pools_before_codes, stop_codes
from int8cal.quantization.prelu import last_of_prelu, write_prelu
from int8cal.quantization.products import ProductRows, loses_kernel, reads_codes
from int8cal.quantization.transposes import kept_from_codes
from int8cal.quantization.wide_groups import groups_in_one, joined_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.graph.layers import Layer
    from int8cal.numerics.affine import Affine
    from int8cal.numerics.weights import QuantizedLayer
    from int8cal.quantization.corrections.correction import Draft

_LARGEST_TERM = 2.0**24  # in steps of the sum, where a kernel's float32 still tells one from the next


@dataclass(frozen=True)
class _Parameters:
    codes: str
    scale: str
    zero_point: str


def emit(
    draft: Draft, activations: Mapping[str, Affine], layers: Mapping[str, QuantizedLayer], metadata: Mapping[str, str]
) -> onnx.ModelProto:
    """Build the QDQ model.

    Every Q has its own DQ per reader, so that no float copy is shared; weights and biases are integers behind a DQ.
    Tensor and node names of the prepared model survive; added ones end in _quantized, _dequantized, _scale, _zero_point
    (and a number where the model already has a tensor of that name).

    Args:
        draft: The float model, with the recipe's corrections applied, and where Q/DQ go; not changed.
        activations: Affine of every planned tensor.
        layers: Integers of every layer, by node name.
        metadata: Entries for metadata_props.

    Returns:
        The int8 model; onnx.checker passes where it passed for the input.
    """
    return _Emitter(draft, activations, layers).build(metadata)


class _Emitter:
    def __init__(self, draft: Draft, activations: Mapping[str, Affine], layers: Mapping[str, QuantizedLayer]) -> None:
        model, plan = draft.model, draft.plan
        self.model, self.plan, self.activations = model, plan, activations
        self.integers, self.index, self.draft = layers, draft.index, draft
        self.layer_of: dict[str, Layer] = {layer.node: layer for layer in plan.layers}
        self.owners = Counter(layer.weight for layer in plan.layers)
        self.names = Names(model.graph)
        self.built = Builder(self.names)
        self.nodes = self.built.nodes
        self.parameters: dict[str, _Parameters] = {}
        # with s8 activations the runtime's Gemm takes several times as long as its MatMul: there the Add stays
        self.products = {layer.node for layer in plan.layers if layer.bias_add and self._unsigned(layer.input)}
        self.adds = {layer.bias_add: layer for layer in plan.layers if layer.bias_add}
        self.planes, self.copies, self.fine = draft.residual, draft.copies, draft.fine
        self.remainders: dict[tuple[str, tuple[int, ...]], str] = {}  # tensor, channels -> what first codes leave
        self.picked: dict[tuple[str, int, tuple[int, ...]], str] = {}  # codes, axis and channels -> these channels
        self.joined: dict[tuple[int, tuple[str, ...]], str] = {}  # axis and codes -> these side by side
        self.padded: dict[str, str] = {}  # codes -> these with a channel of zeros
        self.rows = ProductRows(self.built, model)
        self.repeated: dict[str, tuple[str, str]] = {}  # scales and zero points per channel
        looks_behind = plan.ops.looks_behind
        self.gelus = find_gelus(self.index, plan) if looks_behind else Gelus({}, frozenset(), "")
        joined = self.gelus.others | self.gelus.inputs.keys()
        self.factors = absorbed_factors(self.index, plan, joined) if looks_behind else {}
        self.gone = self.gelus.others | {each.node for each in self.factors.values()}
        self.into_bodies = moves_into_bodies(self.index, plan) if looks_behind else frozenset[str]()
        self.moved: dict[str, _Parameters] = {}  # tensors whose codes were moved
        self.flattened = kept_from_codes(self.index, plan) if looks_behind else frozenset[str]()
        self.pools = pools_before_codes(self.index, plan) if looks_behind else frozenset[str]()
        self.on_codes = on_codes(draft, activations) if looks_behind else {}
        self.sums = adds_before_norms(self.index, plan) if looks_behind else frozenset[str]()
        self.depthwise = depthwise_of_codes(self.index, plan, activations) if looks_behind else frozenset[str]()
        # a planned tensor that is a graph output, or that a subgraph reads by its name, has its name behind the DQ;
        # the float one before Q is renamed
        self.renamed = {
            each.tensor: self.names.tensor(f"{each.tensor}_float")
            for each in plan.tensors
            if each.exclusive and (each.tensor in self.index.outputs or self.index.read_inside(each.tensor))
        }

    def build(self, metadata: Mapping[str, str]) -> onnx.ModelProto:
        for value in self.model.graph.input:
            self._quantize(value.name)
        for node in self.model.graph.node:
            self._node(node)
        result = without_weights(self.model)
        refill(result.graph.node, self.nodes)
        result.graph.initializer.extend(self._used_initializers())
        self._drop_stale_types(result.graph)
        if self.gelus.inputs and all(item.domain != self.gelus.domain for item in result.opset_import):
            result.opset_import.append(helper.make_opsetid(self.gelus.domain, 1))
        for key, value in sorted(metadata.items()):
            set_metadata(result, key, value)
        return result

    def _node(self, node: onnx.NodeProto) -> None:
        owner = self.adds.get(node.name)
        if owner is not None and owner.node in self.products:
            return
        if node.name in self.gone:
            return
        if node.name in self.gelus.inputs:
            self._gelu(node, self.gelus.inputs[node.name])
            return
        if node.name in self.into_bodies:
            data = str(node.input[0])
            if data in self.moved or reads_codes(self.plan, node, 0, data):
                self._move(node)
                return
        if node.name in self.on_codes:
            self._on_codes(node, self.on_codes[node.name])
            return
        layer = self.layer_of.get(node.name)
        if layer is not None and node.name in self.products:
            self._product(node, layer)
            return
        copy, behind = copied(node), self.factors.get(node.name)
        for slot, name in enumerate(node.input):
            if name and reads_codes(self.plan, node, slot, name):
                codes = self._codes(layer) if layer is not None else ""
                value = self._dequantize(name, self.names.tensor(f"{name}_dequantized"), codes)
                channels = 0 if layer is not None or slot else float_channels(self.index, node)
                if channels > 1:
                    self._per_channel(name, channels)
                if behind is not None and slot == behind.slot:
                    self._scale(name, behind.value, "scaled")
                copy.input[slot] = value
        if node.name in self.flattened:
            flat = self.names.tensor(f"{node.input[0]}_flat")
            self.built.node("Flatten", [copy.input[0]], flat, axis=0)
            copy.input[0] = flat
        if layer is not None:
            self._weights(copy, layer)
        if owner is not None:
            self._float_bias(copy, owner)
        outputs = node.output if behind is None else [behind.output]
        for slot, name in enumerate(outputs):
            copy.output[slot] = self.renamed.get(name, name)
        line = self._line_of(node) if node.op_type == "HardSigmoid" and copy.input[0] != node.input[0] else None
        last = last_of_prelu(self.index, node) if self.plan.ops.looks_behind else ""
        if line is not None:
            self._line(copy, node, *line)
        elif last:
            write_prelu(self.built, copy, last)
        elif node.name in self.sums:
            self.nodes.append(instead(copy, "Sum", copy.input, copy.output[0]))
        elif node.name in self.depthwise:
            write_depthwise(self.built, self.index, copy, node, self.activations[node.input[0]])
        else:
            self.nodes.append(copy)
        if node.name in self.pools:
            stop_codes(self.built, self.index, node)
        if layer is not None:
            self._keep_kernel(copy, node.output[0])
        for name in outputs:
            if name:
                self._quantize(name)

    def _move(self, node: onnx.NodeProto) -> None:
        """Write a node that moves values as one that moves codes, and the DQ behind it."""
        data, output = str(node.input[0]), str(node.output[0])
        before = self.moved.get(data) or self.parameters[data]
        self.moved[output] = after = replace(before, codes=self.names.tensor(f"{output}_quantized"))
        copy = copied(node)
        copy.input[0], copy.output[0] = before.codes, after.codes
        self.nodes.append(copy)
        self.built.node("DequantizeLinear", [after.codes, after.scale, after.zero_point], output)

    def _on_codes(self, node: onnx.NodeProto, factors: tuple[int, int]) -> None:
        """Write a node that moves values as one that moves codes, which then need no Q."""
        before, output = self.parameters[node.input[0]], str(node.output[0])
        self.parameters[output] = after = replace(before, codes=self.names.tensor(f"{output}_quantized"))
        write_on_codes(self.built, self.index, node, factors, (before.codes, after.codes), before.zero_point)

    def _gelu(self, node: onnx.NodeProto, tensor: str) -> None:
        """Write a GELU as one node in the place of its last one."""
        value, output = tensor, str(node.output[0])
        if reads_codes(self.plan, node, 0, tensor):
            value = self._dequantize(tensor, self.names.tensor(f"{tensor}_dequantized"))
        op_type = BY_TANH if self.gelus.domain and node.name in self.gelus.by_tanh else EXACT
        gelu = instead(node, op_type, [value], self.renamed.get(output, output))
        gelu.domain = self.gelus.domain
        if not gelu.domain and node.name in self.gelus.by_tanh:
            gelu.attribute.append(helper.make_attribute("approximate", "tanh"))
        self.nodes.append(gelu)
        self._quantize(output)

    def _line_of(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """Return alpha and beta of a HardSigmoid that an Add gives: the Q behind clips at 0, and no term is large."""
        line, before, behind = line_of(node), self.activations[node.input[0]], self.activations.get(node.output[0])
        if line is None or behind is None or behind.low != 0.0:
            return None
        largest = line[0] * max(-before.low, before.high) + line[1]
        return line if largest < _LARGEST_TERM * behind.scale else None

    def _line(self, gate: onnx.NodeProto, node: onnx.NodeProto, alpha: float, beta: float) -> None:
        """Write a HardSigmoid as the Add that it is between 0 and 1: the runtime has an integer kernel for that alone.

        The DQ in front multiplies by alpha, which is in its scale. The Q behind clips, so that the runtime drops the
        Clip.
        """
        before, behind = self.activations[node.input[0]], self.activations[node.output[0]]
        # 0.5 may lie between two codes: which of them a CPU takes for zero, the most frequent value, must not depend on
        # the order of its float operations
        beta -= behind.scale / 32
        most = before.dtype.qmax
        self._scale(node.input[0], alpha, "slope")
        kind = before.dtype.name
        name, step = f"{gate.output[0]}_shift", np.array(beta / most, np.float32)
        shift = self.built.integers(name, np.array(most, kind), step, output=self.names.tensor(name))
        line = self.names.tensor(f"{gate.output[0]}_line")
        self.nodes.append(instead(gate, "Add", [gate.input[0], shift], line))
        least = self.built.constant(f"{line}_min", np.float32(0.0))
        # the runtime drops it where no code stands for more, and 255 codes of 1/255 as float32 may stand for 1 + 1e-7
        most_clipped = behind.high if 1.0 < behind.high < 1.0 + 1e-6 else 1.0
        greatest = self.built.constant(f"{line}_max", np.float32(most_clipped))
        self.built.node("Clip", [line, least, greatest], gate.output[0])

    def _product(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Write a MatMul and the Add behind it as one Gemm: its integer kernel adds the bias as well."""
        result = self.index.nodes[layer.bias_add].output[0]
        output = self.renamed.get(result, result)
        dims = self.index.dims(layer.input) or ()
        codes = self._codes(layer)
        rows, product = codes, output
        if len(dims) != 2:
            width = layer.channels + len(self.copies.get(layer.node, ())) + len(self.fine.get(layer.node, ()))
            rows = self.rows.of(codes, width * 2 if layer.node in self.planes else width)
            product = self.names.tensor(f"{node.output[0]}_rows")
        value = self._dequantize(layer.input, self.names.tensor(f"{layer.input}_dequantized"), rows)
        gemm = instead(node, "Gemm", [value, "", ""], product)
        self._weights(gemm, layer)
        self.nodes.append(gemm)
        if len(dims) != 2:
            width = self.index.initializers[layer.weight].dims[1]
            self.rows.restore(product, output, width=width, like=(layer.input, dims), codes=codes)
        else:
            self._keep_kernel(gemm, result)
        self._quantize(result)

    def _keep_kernel(self, product: onnx.NodeProto, result: str) -> None:
        """Put a Reshape to the same shape behind the last node where that keeps its integer kernel."""
        rank = self.index.rank(result)
        if not self.plan.ops.looks_behind or product.op_type not in ("MatMul", "Gemm") or not rank:
            return
        if not loses_kernel(self.draft, self.activations, result, product.op_type):
            return
        output, product.output[0] = product.output[0], self.names.tensor(f"{result}_product")
        same = self.built.constant(f"{result}_shape", np.zeros(rank, np.int64))
        self.built.node("Reshape", [product.output[0], same], output)

    def _unsigned(self, tensor: str) -> bool:
        return self.activations[tensor].dtype.name == "uint8"

    def _float_bias(self, add: onnx.NodeProto, layer: Layer) -> None:
        """Let an Add that stays beside its MatMul add what the layer's s32 bias stands for, corrections included."""
        integers = self.integers[layer.node]
        if integers.bias is None:
            return
        scales = np.float32(self.activations[layer.input].scale) * integers.scales.astype(np.float32)
        bias = (integers.bias * scales.astype(np.float64)).astype(np.float32)
        add.input[list(add.input).index(layer.bias)] = self.built.constant(f"{layer.bias}@{layer.node}", bias)

    def _quantize(self, tensor: str) -> None:
        if self.plan.tensor(tensor) is None:
            return
        affine = self.activations[tensor]
        parameters = self._affine_parameters(tensor, affine)
        inputs = [self.renamed.get(tensor, tensor), parameters.scale, parameters.zero_point]
        self.built.node("QuantizeLinear", inputs, parameters.codes, after=tensor)
        if tensor in self.renamed:
            self._dequantize(tensor, tensor)

    def _codes(self, layer: Layer) -> str:
        """Return the codes that a layer reads: its input's, and beside them those of the remainder, and copies."""
        tensor, axis = layer.input, layer.channel_axis
        copies, parts = self.copies.get(layer.node, ()), [self.parameters[tensor].codes]
        if layer.node in self.planes:
            parts.append(self._remainder(tensor))
        if is_padded(self.draft, layer):
            parts = [self._padded(part, self.parameters[tensor].zero_point) for part in parts]
        if copies:
            parts = [part for codes in parts for part in (codes, self._pick(codes, axis, copies))]
        if layer.node in self.fine:
            parts.append(self._remainder(tensor, axis, self.fine[layer.node]))
        if len(parts) == 1:
            return parts[0]
        key = (axis, tuple(parts))
        if key not in self.joined:
            self.joined[key] = self.names.tensor(
                f"{tensor}_planes" if layer.node in self.planes else f"{tensor}_copied"
            )
            self.built.node("Concat", parts, self.joined[key], axis=axis)
        return self.joined[key]

    def _padded(self, codes: str, zero_point: str) -> str:
        """Return the codes of an image with a channel of zeros behind them."""
        if codes not in self.padded:
            self.padded[codes] = output = self.names.tensor(f"{codes}_padded")
            behind = self.built.constant(f"{codes}_padding", np.array([0, 0, 0, 0, 0, 1, 0, 0]))
            self.built.node("Pad", [codes, behind, zero_point], output)
        return self.padded[codes]

    def _remainder(self, tensor: str, axis: int = 0, channels: tuple[int, ...] = ()) -> str:
        """Return the codes of what a tensor's first codes leave; of some channels, or of all."""
        key = (tensor, channels)
        if key not in self.remainders:
            first, value = self.parameters[tensor], self.renamed.get(tensor, tensor)
            read = first.codes
            if channels:
                value, read = self._pick(value, axis, channels), self._pick(read, axis, channels)
            fine = self.built.constant(f"{tensor}_remainder_scale", fine_scale(self.activations[tensor]))
            left = self.names.tensor(f"{tensor}_remainder")
            known = self._dequantize(tensor, self.names.tensor(f"{tensor}_dequantized"), read)
            self.remainders[key] = codes = self.names.tensor(f"{left}_quantized")
            self.built.node("Sub", [value, known], left)
            self.built.node("QuantizeLinear", [left, fine, first.zero_point], codes)
        return self.remainders[key]

    def _pick(self, codes: str, axis: int, channels: tuple[int, ...]) -> str:
        """Return some channels of codes, or of values."""
        key = (codes, axis, channels)
        if key not in self.picked:
            self.picked[key] = output = self.names.tensor(f"{codes}_copies")
            which = self.built.constant(f"{codes}_channels", np.array(channels, np.int64))
            self.built.node("Gather", [codes, which], output, axis=axis)
        return self.picked[key]

    def _affine_parameters(self, tensor: str, affine: Affine) -> _Parameters:
        if tensor not in self.parameters:
            self.parameters[tensor] = _Parameters(
                self.names.tensor(f"{tensor}_quantized"),
                self.built.constant(f"{tensor}_scale", np.float32(affine.scale)),
                self.built.constant(f"{tensor}_zero_point", np.array(affine.zero_point, affine.dtype.name)),
            )
        return self.parameters[tensor]

    def _dequantize(self, tensor: str, output: str, codes: str = "") -> str:
        parameters = self.parameters[tensor]
        self.built.node(
            "DequantizeLinear", [codes or parameters.codes, parameters.scale, parameters.zero_point], output
        )
        return output

    def _scale(self, tensor: str, factor: float, what: str) -> None:
        """Let the last DQ, of a tensor, multiply what it gives; the name of its scale ends in what that is."""
        scale = np.float32(self.activations[tensor].scale * factor)
        self.nodes[-1].input[1] = self.built.constant(f"{tensor}_{what}", scale)

    def _per_channel(self, tensor: str, channels: int) -> None:
        """Give the last DQ one scale per channel, all alike, so that the runtime leaves the layer behind it in float.

        Behind a DQ with one scale, onnxruntime's WeightBiasQuantization gives float weights int8 codes of its own, with
        one scale for the whole tensor: on depthwise layers that is far worse than any int8 model of ours.
        """
        if tensor not in self.repeated:
            affine = self.activations[tensor]
            self.repeated[tensor] = (
                self.built.constant(f"{tensor}_channel_scales", np.full(channels, affine.scale, np.float32)),
                self.built.constant(
                    f"{tensor}_channel_zero_points", np.full(channels, affine.zero_point, affine.dtype.name)
                ),
            )
        self.nodes[-1].input[1], self.nodes[-1].input[2] = self.repeated[tensor]
        self.nodes[-1].attribute.append(helper.make_attribute("axis", 1))

    def _weights(self, node: onnx.NodeProto, layer: Layer) -> None:
        integers = self.integers[layer.node]
        rule = self.plan.ops.rules["Gemm" if layer.node in self.products else layer.op_type]
        stem = layer.weight if self.owners[layer.weight] == 1 else f"{layer.weight}@{layer.node}"
        axis = layer.axis
        codes, count = integers.weight, groups_in_one(self.draft, layer)
        scales = integers.scales.astype(np.float32)
        if count > 1:
            codes = joined_groups(codes, layer.group, count)
            without_attribute(node, "group")
            node.attribute.append(helper.make_attribute("group", layer.group // count))
        if self.activations[layer.input].dtype is U16 and layer.op_type == "MatMul":
            node.input[rule.weight] = self._folded_weight(stem, integers.weight, scales, axis)
        else:
            apart = scales.reshape(()) if axis is None else scales
            node.input[rule.weight] = self.built.integers(stem, codes, apart, axis=axis or 0)
        if integers.bias is None or rule.bias is None or layer.bias is None:
            return
        bias_scales = np.float32(self.activations[layer.input].scale) * scales_per_output(scales, layer)
        stem = f"{layer.bias}@{layer.node}"
        if self.plan.ops.float_bias:
            value = integers.bias * bias_scales.astype(np.float64)
            node.input[rule.bias] = self.built.constant(stem, value.astype(np.float32))
            return
        scale = bias_scales[:1].reshape(()) if len(bias_scales) == 1 else bias_scales
        node.input[rule.bias] = self.built.integers(stem, integers.bias, scale)

    def _folded_weight(self, stem: str, codes: np.ndarray, scales: np.ndarray, axis: int | None) -> str:
        """Write int8 weights of a MatMul behind Cast and Mul, which the runtime folds when it loads the model.

        Behind DequantizeLinear it would make a MatMulNBits, whose kernel takes only 8 of the activations' 16 bits. A
        Conv or Gemm keeps DequantizeLinear: folded weights would get int8 codes again, with one scale for all of them.
        """
        output, real = (self.names.tensor(f"{stem}_{part}") for part in ("dequantized", "float"))
        quantized = self.built.shared(f"{stem}_quantized", codes)
        scale = self.built.constant(f"{stem}_scale", scales.reshape(along(axis, codes.ndim)))
        self.built.node("Cast", [quantized], real, to=onnx.TensorProto.FLOAT)
        self.built.node("Mul", [real, scale], output)
        return output

    def _used_initializers(self) -> list[onnx.TensorProto]:
        used = {name for node in self.nodes for name in tensors_read(node)}
        used |= {value.name for value in self.model.graph.output}
        kept = [tensor for tensor in self.model.graph.initializer if tensor.name in used]
        return kept + list(self.built.initializers.values())

    def _drop_stale_types(self, graph: onnx.GraphProto) -> None:
        # the runtime infers what a Reshape behind rows gives; told the symbol of a free batch, it would fuse the next
        # Add into SkipLayerNormalization, whose kernel takes longer than Add and LayerNormalization
        alive = {name for node in graph.node for name in node.output} - self.rows.restored
        alive -= {value.name for value in graph.output}  # these say their types as the user declared them
        refill(graph.value_info, [value for value in graph.value_info if value.name in alive])


def float_channels(index: Index, node: onnx.NodeProto) -> int:
    """Return the input channels of a layer with constant weights that the runtime could quantize by itself; else 0."""
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or not index.is_constant(node.input[1]):
        return 0
    dims = index.initializers[node.input[1]].dims
    if node.op_type == "Conv":
        return int(dims[1]) * int(attribute(node, "group", 1))
    return int(dims[1 if attribute(node, "transB", 0) else 0])
