"""Write what a table knows of a model into a copy of it, where Netron shows it: descriptions of nodes and the model.

    python integrations/netron.py model-int8/model.int8.onnx -o described.onnx

int8cal itself writes no descriptions, which runtimes do not read and which would make each model larger. The copy
computes the same. In Netron a click on a QuantizeLinear then shows the range of its codes, what chose it, and what it
cuts off; one on a layer shows its weights' codes; the model's properties show recipe, target and data, beside the
metadata that each int8cal model has (`int8cal.run`, `int8cal.table`, `int8cal.preprocess` and others).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

import int8cal

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe(int8: onnx.ModelProto, table: int8cal.CalibrationTable) -> onnx.ModelProto:
    """Return a copy of an int8 model with descriptions; text that is there already stays in front.

    Args:
        int8: The model that was built of the table.
        table: Its ranges and settings.
    """
    described = onnx.ModelProto()
    described.CopyFrom(int8)
    settings = table.settings.recorded
    told = {key: settings.get(key) for key in ("recipe", "target", "method", "activations", "weights")}
    lines = [
        f"int8 model of {table.model.get('name', 'a float model')}, by int8cal {int8cal.__version__}",
        ", ".join(f"{key} {value}" for key, value in told.items() if value),
        f"calibrated on {table.data['samples']} samples",
    ]
    described.doc_string = "\n".join(filter(None, [described.doc_string, *lines]))
    weights = {entry.node: entry for entry in table.weights.values()}
    for node in described.graph.node:
        text = _of(node, table.tensors, weights)
        node.doc_string = "\n".join(filter(None, [node.doc_string, text]))
    return described


def _of(node: onnx.NodeProto, tensors: Mapping[str, Any], weights: Mapping[str, Any]) -> str:
    """Say what the table knows of a node; "" for nothing."""
    entry = tensors.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
    if entry is not None:
        low, high = entry.observed
        return (
            f"{entry.dtype} codes for {entry.low:.6g} to {entry.high:.6g} (chosen by {entry.method}); "
            f"observed {low:.6g} to {high:.6g}, {entry.clipped:.3%} of the values are clipped"
        )
    weight = weights.get(node.name)
    if weight is None:
        return ""
    scales = f"{len(weight.scales)} channels" if len(weight.scales) > 1 else "one scale"
    return f"int8 layer: weights {weight.range}, {scales}, scales {min(weight.scales):.4g} to {max(weight.scales):.4g}"


def main() -> None:
    """Describe the model of the command line."""
    parser = argparse.ArgumentParser(description="Write a table's ranges into a copy of its model, for viewers.")
    parser.add_argument("int8", type=Path, help="MODEL.int8.onnx as int8cal wrote it")
    parser.add_argument("--table", type=Path, help="its table (default: beside it)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    table = given.table or given.int8.with_name(given.int8.name.removesuffix(".int8.onnx") + ".table.json")
    described = describe(onnx.load(given.int8), int8cal.CalibrationTable.load(table))
    onnx.save(described, given.output)


if __name__ == "__main__":
    main()
