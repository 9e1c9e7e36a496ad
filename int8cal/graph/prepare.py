"""The float graph that everything after works on: constants folded, BatchNorm in the weights, every node named."""

from __future__ import annotations

import collections

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from int8cal.errors import ModelError
from int8cal.graph.folding.fold import fold
from int8cal.graph.index import Index, attribute, walk
from int8cal.graph.load import require_float
from int8cal.protos import outline

MIN_OPSET = 13  # per-axis QuantizeLinear and DequantizeLinear


def normalize(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """First half of preparing, before the runtime folds constants: opset, inputs, names.

    Args:
        model: The user's model; not changed.
        where: What error messages call it.

    Returns:
        A copy at opset >= 13 whose initializers are no longer graph inputs and whose nodes have unique names.
        Tensor names are untouched.

    Raises:
        ModelError: it is already quantized, or its opset cannot be raised.
    """
    require_float(model, where)
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), None)
    if opset is None:
        raise ModelError("imports no ONNX operator set", where=where, do="export it again")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if opset < MIN_OPSET:
        copy = _raise_opset(copy, opset, where)
    initialized = {tensor.name for tensor in copy.graph.initializer}
    inputs = [value for value in copy.graph.input if value.name not in initialized]
    del copy.graph.input[:]
    copy.graph.input.extend(inputs)
    copy.ir_version = max(copy.ir_version, 7)
    _name_nodes(copy.graph)
    return copy


def finish(simplified: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Second half of preparing, after the runtime folded constants: restore what it dropped, infer shapes.

    Args:
        simplified: The folded graph; changed in place and returned.
        original: The user's model, for its inputs, outputs, metadata and descriptions.

    Returns:
        The prepared model: `Index` and `Plan` work on it. Gemm has alpha = beta = 1 where its operands are constant;
        a MatMul of matrices followed by a constant row is a Gemm under the MatMul's node name.
    """
    used = {node.domain for node in walk(simplified.graph)} | {""}
    for function in simplified.functions:
        used |= {function.domain} | {node.domain for node in function.node}
    imports = [item for item in simplified.opset_import if item.domain in used]
    del simplified.opset_import[:]
    simplified.opset_import.extend(imports)
    del simplified.metadata_props[:]
    simplified.metadata_props.extend(original.metadata_props)
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        setattr(simplified, field, getattr(original, field))
    simplified.model_version = original.model_version
    simplified.graph.name, simplified.graph.doc_string = original.graph.name, original.graph.doc_string
    _restore_values(simplified.graph.input, original.graph.input)
    _restore_values(simplified.graph.output, original.graph.output)
    _name_nodes(simplified.graph)
    _unit_gemms(simplified.graph)
    _infer_shapes(simplified)
    if fold(simplified):
        _infer_shapes(simplified)
    _biased_products(simplified)
    return simplified


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
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)


def _raise_opset(model: onnx.ModelProto, opset: int, where: str) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, MIN_OPSET)
    except Exception as error:  # the converter raises RuntimeError and ValidationError of several kinds
        raise ModelError(
            f"opset {opset} cannot be raised to {MIN_OPSET}: {str(error).splitlines()[0][:200]}",
            where=where,
            do=f"export it with opset {MIN_OPSET} or higher",
        ) from error


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give nodes without a name, or with another's name, one made of op type and first output."""
    seen = collections.Counter(node.name for node in graph.node)
    taken = {name for name, count in seen.items() if name and count == 1}
    for node in graph.node:
        if node.name and seen[node.name] == 1:
            continue
        stem = f"{node.op_type}_{next((name for name in node.output if name), 'none')}"
        name, number = stem, 1
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.add(name)
        node.name = name


def _restore_values(values: object, originals: object) -> None:
    by_name = {value.name: value for value in originals}  # type: ignore[attr-defined]
    for value in values:  # type: ignore[attr-defined]
        if value.name in by_name:
            value.CopyFrom(by_name[value.name])


def _unit_gemms(graph: onnx.GraphProto) -> None:
    """Fold alpha and beta of Gemm into constant weights and bias, so that its bias can be a plain s32."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Gemm":
            continue
        for name, slot in (("alpha", 1), ("beta", 2)):
            factor = attribute(node, name, 1.0)
            if factor == 1.0 or len(node.input) <= slot or node.input[slot] not in constants:
                continue
            array = numpy_helper.to_array(constants[node.input[slot]])
            scaled = f"{node.input[slot]}_{node.name}_{name}"
            graph.initializer.append(numpy_helper.from_array((array * np.float32(factor)).astype(array.dtype), scaled))
            node.input[slot] = scaled
            kept = [item for item in node.attribute if item.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, 1.0)])


def _biased_products(model: onnx.ModelProto) -> None:
    """Turn MatMul and the Add of a constant row behind it into one Gemm, so that the row becomes its s32 bias.

    The runtime would do so by itself, but with a float bias, for which it has no integer kernel. Must not touch
    products whose input is not known to be a matrix, or whose own output is read by anyone else.
    """
    index = Index(model)
    gemms: dict[str, onnx.NodeProto] = {}
    adds: set[str] = set()
    products: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "Add" or node.domain not in ("", "ai.onnx"):
            continue
        for product, bias in (tuple(node.input), tuple(node.input)[::-1]):
            matmul = index.producer.get(product)
            if matmul is not None and _takes_bias(index, matmul, node, bias):
                gemms[matmul.name] = helper.make_node("Gemm", [*matmul.input, bias], node.output, name=matmul.name)
                adds.add(node.name)
                products.add(product)
                break
    if gemms:
        rebuilt = onnx.GraphProto()
        rebuilt.node.extend(gemms.get(node.name, node) for node in model.graph.node if node.name not in adds)
        rebuilt.value_info.extend(value for value in model.graph.value_info if value.name not in products)
        for field in ("node", "value_info"):
            values = getattr(model.graph, field)
            del values[:]
            values.extend(getattr(rebuilt, field))


def _takes_bias(index: Index, matmul: onnx.NodeProto, add: onnx.NodeProto, bias: str) -> bool:
    reader = index.only_reader(matmul.output[0])
    if matmul.op_type != "MatMul" or matmul.domain not in ("", "ai.onnx") or reader is None or reader.name != add.name:
        return False
    weight, row = index.initializers.get(matmul.input[1]), index.initializers.get(bias)
    if weight is None or row is None or len(weight.dims) != 2 or index.rank(matmul.input[0]) != 2:
        return False
    width = weight.dims[1]
    return weight.data_type == row.data_type == onnx.TensorProto.FLOAT and list(row.dims) in ([width], [1, width])
