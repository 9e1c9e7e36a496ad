"""Targets as data: which weights meet in one instruction there, and the ranges and types that are right by default.

What their runtimes make of each op is a table of graph.ops.

Measured with onnxruntime 1.31 under an emulated Haswell, and with oneDNN (OpenVINO 2026.4) held to AVX2 and AVX-512
without VNNI: see docs/saturation.md, and tests/emulated, which repeat the measurements. For 64-bit ARM with onnxruntime
1.32 under emulated CPUs with and without dot products: see docs/arm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.job import DEFAULT_TARGET

if TYPE_CHECKING:
    from int8cal.job import ActivationType, QuantizationSettings, TargetName, WeightRange
    from int8cal.numerics.pairs import Links, Order

ONNXRUNTIME: tuple[Order, ...] = ("flat",)
ONEDNN: tuple[Order, ...] = ("channels",)


@dataclass(frozen=True)
class Target:
    """A CPU, or a set of them, or a runtime.

    Attributes:
        name: As in `--target`.
        what: For whom it is, in a few words.
        orders: Orders in which weights may meet in VPMADDUBSW; empty where products are summed exactly.
        weights: The weight range when the user gives none.
        activations: Types that activations may have, the default first.
        onnxruntime: Whether it runs the model, so that its kernels' times say something of the target.
    """

    name: TargetName
    what: str
    orders: tuple[Order, ...]
    weights: WeightRange
    activations: tuple[ActivationType, ...] = ("u8", "s8", "auto", "u16")
    onnxruntime: bool = True


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("portable", "every CPU, under onnxruntime and oneDNN", ONNXRUNTIME + ONEDNN, "paired"),
        Target("x86-avx2", "x86 without VNNI, under onnxruntime", ONNXRUNTIME, "paired"),
        Target("x86-vnni", "x86 with VNNI (AVX512-VNNI, AVX-VNNI, AMX)", (), "s8"),
        Target("arm64", "64-bit ARM", (), "s8"),
        # with groups oneDNN pairs as onnxruntime does
        Target("openvino", "OpenVINO on every CPU", ONNXRUNTIME + ONEDNN, "paired", ("u8", "s8"), onnxruntime=False),
        Target("tensorrt", "NVIDIA GPUs under TensorRT", (), "s8", ("s8",), onnxruntime=False),
    )
}


def weight_range(settings: QuantizationSettings) -> WeightRange:
    """Return the weight range in force: the user's, or the target's own; nothing saturates beside 16 bits."""
    return settings.weights or ("s8" if settings.activations == "u16" else TARGETS[settings.target].weights)


def links_of(target: str, positions: int, channels: int, *, depthwise: bool) -> Links:
    """Flag which neighbours of a row may meet in one instruction on a target.

    Args:
        target: Name of a target. One whose products are exact is taken as "portable": who asks for safe weights there
            means them for another CPU.
        positions, channels: Of the row (see numerics.pairs.Rows).
        depthwise: One input and one output channel per group: its kernels multiply without adding neighbours.
    """
    from int8cal.numerics.pairs import link  # numpy, which the command line's help does without

    return link(() if depthwise else _orders(target), positions, channels)


def any_two_meet(target: str, kernel: tuple[int, ...], channels: int, *, depthwise: bool) -> bool:
    """Whether a row has no fixed neighbours: any two of its weights may meet.

    With one input channel oneDNN's AVX-512 kernels take the window by rows or by columns, as the image's size decides.

    Args:
        kernel: Sizes of the kernel; along a single one rows and columns are the same.
        target, channels, depthwise: As for `links_of`.
    """
    wide = sum(size > 1 for size in kernel) > 1
    return "channels" in _orders(target) and channels == 1 and wide and not depthwise


def _orders(target: str) -> tuple[Order, ...]:
    return TARGETS[target].orders or TARGETS[DEFAULT_TARGET].orders
