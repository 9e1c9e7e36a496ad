"""One model for each kernel that an int8 model may run: onnxruntime's integer kernels by name, and float ones beside them.

Weights and activations of products hold the largest codes side by side as well as drawn ones: whatever is added up in too
few bits falls short there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from harness import Case, Result
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

CODES = {"u8": np.uint8, "s8": np.int8}
PAIRS = [(x, w) for x in CODES for w in CODES]  # of activations and weights
UNKNOWN = ("s8", "u8")  # only MatMulInteger and ConvInteger take these two


@dataclass(frozen=True)
class Fed:
    """An input that is fed: one run of it."""

    value: Array


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


def case(op: str, *inputs: Fed | Array | None, domain: str = "", outputs: int = 1, **attributes: object) -> Case:
    """Make a model of one node; what is not fed is a constant, None an input that is left out."""
    names, fed, constants = [], {}, []
    for place, each in enumerate(inputs):
        names.append("" if each is None else f"i{place}")
        if isinstance(each, Fed):
            fed[names[-1]] = each.value
        elif each is not None:
            constants.append(numpy_helper.from_array(np.asarray(each), names[-1]))
    found = [f"y{place}" for place in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, found, name=op, domain=domain, **attributes)],
        "kernel",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in fed.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in found],
        constants,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return Case(model, {name: value[None] for name, value in fed.items()})


def codes(rng: np.random.Generator, kind: str, shape: tuple[int, ...], *, lowest: int = -128) -> Array:
    """Draw codes of at least `lowest`: the first third is all the largest one, the second the smallest."""
    limits = np.iinfo(CODES[kind])
    low, third = max(limits.min, lowest), shape[0] // 3
    values = rng.integers(low, limits.max + 1, shape).astype(CODES[kind])
    values[:third], values[third : 2 * third] = limits.max, low
    return values


def zero(kind: str, value: int = 0) -> Array:
    """Return a zero point: `value` above the smallest code of u8, `value` itself in s8."""
    return np.array(value, CODES[kind])


def products(lowest: int) -> dict[str, Case]:
    """Return the kernels that multiply codes by constant weights.

    Args:
        lowest: Of s8 weights: -127 is the least that int8cal writes, other tools write -128.
    """
    rng, made = np.random.default_rng(1), {}
    a, b, y = scalar(0.02), scalar(0.01), scalar(0.9)
    for x, w in PAIRS:
        kinds, wz, half = f"{x} x {w}", zero(w, 128 if w == "u8" else 0), zero(x, 128 if x == "u8" else 0)
        rows, matrix = Fed(codes(rng, x, (12, 96))), codes(rng, w, (33, 96), lowest=lowest).T.copy()
        made[f"MatMulInteger {kinds}"] = case("MatMulInteger", rows, matrix, zero(x), wz)
        for name, image, weight, more in (
            ("3x3", (6, 16, 9, 9), (24, 16, 3, 3), {"pads": [1] * 4}),
            ("odd channels", (6, 5, 9, 9), (7, 5, 3, 3), {"strides": [2, 2]}),
            ("1x1", (6, 32, 8, 8), (18, 32, 1, 1), {}),
            ("depthwise", (6, 24, 9, 9), (24, 1, 3, 3), {"group": 24, "pads": [1] * 4}),
            ("groups", (6, 12, 9, 9), (6, 4, 3, 3), {"group": 3}),
        ):
            fed, kernel = Fed(codes(rng, x, image)), codes(rng, w, weight, lowest=lowest)
            made[f"ConvInteger {kinds}, {name}"] = case("ConvInteger", fed, kernel, zero(x), wz, **more)
            if (x, w) == UNKNOWN:
                continue
            scales = rng.uniform(0.004, 0.01, weight[0]).astype(np.float32)
            made[f"QLinearConv {kinds}, {name}"] = case(
                "QLinearConv", fed, a, zero(x, 3), kernel, scales, np.full(weight[0], wz), y, half, **more
            )
        if (x, w) == UNKNOWN:
            continue
        made[f"QLinearMatMul {kinds}"] = case("QLinearMatMul", rows, a, zero(x, 3), matrix, b, wz, y, half)
        made[f"QGemm {kinds}"] = case(
            *("QGemm", rows, a, zero(x, 3), matrix, b, wz, rng.integers(-900, 900, 33).astype(np.int32), y, half),
            domain="com.microsoft",
        )
        made[f"MatMulIntegerToFloat {kinds}"] = case(
            "MatMulIntegerToFloat", rows, matrix, a, b, zero(x, 3), wz, domain="com.microsoft"
        )
    for w in CODES:
        made[f"DynamicQuantizeMatMul f32 x {w}"] = case(
            *("DynamicQuantizeMatMul", Fed(rng.normal(size=(12, 96)).astype(np.float32))),
            *(codes(rng, w, (96, 33), lowest=lowest), b, zero(w, 128 if w == "u8" else 0)),
            domain="com.microsoft",
        )
    return made


def elementwise() -> dict[str, Case]:
    """Return the kernels that make codes of codes."""
    rng, made = np.random.default_rng(2), {}
    a, b, y = scalar(0.021), scalar(0.037), scalar(0.043)
    for kind in CODES:
        half = zero(kind, 120 if kind == "u8" else -8)
        first, second = (Fed(codes(rng, kind, (3, 8, 17, 16))) for _ in range(2))
        own = {"domain": "com.microsoft"}
        for op in ("QLinearAdd", "QLinearMul"):
            made[f"{op} {kind}"] = case(op, first, a, half, second, b, half, y, half, **own)
        made[f"QLinearConcat {kind}"] = case("QLinearConcat", y, half, first, a, half, second, b, half, axis=1, **own)
        made[f"QLinearSigmoid {kind}"] = case("QLinearSigmoid", first, a, half, scalar(1 / 255), half, **own)
        made[f"QLinearLeakyRelu {kind}"] = case("QLinearLeakyRelu", first, a, half, b, half, alpha=0.1, **own)
        made[f"QLinearSoftmax {kind}"] = case(
            "QLinearSoftmax", first, a, half, scalar(1 / 256), zero(kind, 0 if kind == "u8" else -128), opset=13, **own
        )
        for name, last in (("", 0), (", channels last", 1)):
            pool = {"kernel_shape": [3, 3], "channels_last": last, **own}
            made[f"QLinearAveragePool {kind}{name}"] = case("QLinearAveragePool", first, a, half, b, half, **pool)
            made[f"QLinearGlobalAveragePool {kind}{name}"] = case(
                "QLinearGlobalAveragePool", first, a, half, b, half, channels_last=last, **own
            )
        made[f"MaxPool {kind}"] = case("MaxPool", first, kernel_shape=[3, 3], strides=[2, 2])
        double = np.array([1, 1, 2, 2], np.float32)
        for mode in ("nearest", "linear"):
            made[f"Resize {mode} {kind}"] = case("Resize", first, None, double, mode=mode)
        made[f"Transpose {kind}"] = case("Transpose", first, perm=[0, 2, 3, 1])
        made[f"DequantizeLinear {kind}"] = case("DequantizeLinear", first, a, half)
        # every tie, and the values beside it
        ties = (np.arange(-140, 140, dtype=np.float32) + 0.5) * a
        ties = np.stack([np.nextafter(ties, -np.inf, dtype=np.float32), ties, np.nextafter(ties, np.float32(np.inf))])
        made[f"QuantizeLinear {kind}"] = case("QuantizeLinear", Fed(ties), a, half)
    made["DynamicQuantizeLinear"] = case(
        "DynamicQuantizeLinear", Fed(rng.normal(size=(9, 33)).astype(np.float32)), outputs=3
    )
    return made


def sums() -> dict[str, Case]:
    """Return QLinearAdd on every pair of u8 codes, with scales of many ratios."""
    rng, made = np.random.default_rng(3), {}
    first, second = (Fed(grid.astype(np.uint8)) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    for number in range(12):
        a, b, y = (scalar(value) for value in np.exp(rng.normal(scale=0.5, size=3)) * [0.03, 0.03, 0.06])
        zeros = [zero("u8", int(value)) for value in rng.integers(0, 200, 3)]
        inputs = (first, a, zeros[0], second, b, zeros[1], y, zeros[2])
        made[f"QLinearAdd, scales {number}"] = case("QLinearAdd", *inputs, domain="com.microsoft")
    return made


def floats() -> dict[str, Case]:
    """Return the float kernels that stay in int8 models."""
    rng, made = np.random.default_rng(3), {}
    x = Fed(rng.normal(scale=3, size=(3, 16, 9, 32)).astype(np.float32))
    for op in ("Sigmoid", "Tanh", "Erf", "Exp", "Gelu", "HardSwish", "Softmax", "LogSoftmax", "Softplus", "Elu"):
        made[op] = case(op, x)
    made["Sqrt"] = case("Sqrt", Fed(np.abs(x.value)))
    for op in ("Add", "Mul", "Div"):
        made[op] = case(op, x, Fed(rng.normal(size=x.value.shape).astype(np.float32)))
    made["LayerNormalization"] = case("LayerNormalization", x, *rng.normal(size=(2, 32)).astype(np.float32))
    made["InstanceNormalization"] = case("InstanceNormalization", x, *rng.normal(size=(2, 16)).astype(np.float32))
    made["ReduceMean"] = case("ReduceMean", x, np.array([2, 3]))
    made["GlobalAveragePool"] = case("GlobalAveragePool", x)
    made["AveragePool"] = case("AveragePool", x, kernel_shape=[3, 3])
    made["Conv"] = case("Conv", x, rng.normal(size=(24, 16, 3, 3)).astype(np.float32))
    made["ConvTranspose"] = case("ConvTranspose", x, rng.normal(size=(16, 8, 3, 3)).astype(np.float32))
    made["MatMul"] = case("MatMul", x, rng.normal(size=(32, 24)).astype(np.float32))
    made["Resize linear"] = case("Resize", x, None, np.array([1, 1, 2, 2], np.float32), mode="linear")
    return made


@dataclass(frozen=True)
class Difference:
    """How far two machines are apart on one kernel.

    Attributes:
        share: Of the values that differ.
        largest: Difference in codes, or of floats in 255ths of their range.
    """

    share: float
    largest: float

    @classmethod
    def of(cls, here: Result, there: Result) -> Difference:
        differing = count = 0
        largest = 0.0
        for name, one in here.outputs.items():
            gap = np.abs(one.astype(np.float64) - there.outputs[name].astype(np.float64))
            if one.dtype.kind == "f":
                gap *= 255 / (np.ptp(one) or 1.0)
            differing, count = differing + int(np.count_nonzero(gap)), count + gap.size
            largest = max(largest, float(gap.max()))
        return cls(differing / count, largest)
