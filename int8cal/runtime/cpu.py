"""What this machine's CPU says of itself, and what it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from int8cal.runtime.sessions import Session


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux lists them; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def measured_product() -> tuple[int, int]:
    """Let onnxruntime sum 16 products of 255 and 127 on this machine.

    Returns:
        What it gives, and the exact sum; a CPU that saturates gives about half of it (NUMERICS 3).
    """
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [1, 1])],
        [numpy_helper.from_array(np.full((16, 1), 127, np.int8), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = Session(model, threads=1).run({"x": np.full((1, 16), 255, np.uint8)})["y"]
    return int(found[0, 0]), 16 * 255 * 127


def exact_products() -> bool:
    """Whether onnxruntime sums u8 x s8 products exactly on this machine."""
    found, exact = measured_product()
    return found == exact
