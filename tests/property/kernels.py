"""One node run by onnxruntime: the oracle of the reference executor; and the layers that hypothesis draws for it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}
X86 = platform.machine().lower() in {"x86_64", "amd64"}


def saturates() -> bool:
    """Whether this CPU's 8-bit kernels may saturate: x86 without VNNI, or a CPU that does not say."""
    if not X86:
        return False
    path = Path("/proc/cpuinfo")
    return not path.is_file() or "vnni" not in path.read_text(encoding="utf-8", errors="replace")


# weights that no kernel saturates on: all of s8 where the CPU is exact, else s7
WEIGHTS = (-64, 63) if saturates() else (-128, 127)


def run(op, inputs, out, *, domain="", constant=(), **attributes):
    """Run one node; inputs by name in their order, None for one left out; those in `constant` become initializers."""
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    node = helper.make_node(op, [name if name in given else "" for name in inputs], ["y"], domain=domain, **attributes)
    feeds = {name: value for name, value in given.items() if name not in constant}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, TYPES[str(value.dtype)], value.shape) for name, value in feeds.items()],
        [helper.make_tensor_value_info("y", TYPES[str(np.dtype(out))], None)],
        [numpy_helper.from_array(value, name) for name, value in given.items() if name in constant],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@cache
def conv_integer_weights():
    """Weight types that this version's ConvInteger takes: before s8 it was u8 alone."""
    zero = np.zeros((1, 1, 1))
    try:
        run("ConvInteger", {"x": zero.astype(np.uint8), "w": zero.astype(np.int8)}, "int32")
    except NoKernel:
        return ["uint8"]
    return ["uint8", "int8"]


def codes(rng, dtype, shape, *, extreme=False, limits=None):
    """Codes of a type: all of them alike, or mostly its ends."""
    low, high = limits or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if extreme:
        return rng.choice(np.array([low, low, high, high, 0 if low < 0 else 1], dtype), shape)
    return rng.integers(low, high + 1, shape).astype(dtype)


def weights_of(rng, dtype, shape, *, extreme=False):
    """Weights that every kernel multiplies exactly on this CPU; u8 weights never meet VPMADDUBSW."""
    return codes(rng, dtype, shape, extreme=extreme, limits=WEIGHTS if dtype == "int8" else None)


def scale_of(rng):
    """A float32 scale; one in three is a power of two, so that halves come up."""
    exponent = rng.uniform(-8, 0)
    return np.float32(2.0 ** (np.rint(exponent) if rng.integers(3) == 0 else exponent))


@dataclass(frozen=True)
class Layer:
    """Shapes and attributes of a convolution, and the random numbers for its values."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    seed: int
    extreme: bool

    def attributes(self):
        return {
            "group": self.group,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "kernel_shape": self.weight[2:],
        }


@st.composite
def convolutions(draw, *, transposed=False):
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    each, made = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilations = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(2 * rank))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if transposed:  # pads are cut off: something must be left
        sizes = tuple(max(1, pads[i] + pads[i + rank] + 2 - reach[i]) + draw(st.integers(0, 3)) for i in range(rank))
    else:
        sizes = tuple(max(1, reach[i] - pads[i] - pads[i + rank]) + draw(st.integers(0, 4)) for i in range(rank))
    x = (draw(st.integers(1, 2)), group * each, *sizes)
    weight = (group * each, made, *kernel) if transposed else (group * made, each, *kernel)
    return Layer(x, weight, group, strides, dilations, pads, draw(st.integers(0, 2**32 - 1)), draw(st.booleans()))
