"""What this machine has and does: its CPU, how that sums products, onnxruntime's execution providers."""

from __future__ import annotations

import difflib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from int8cal.errors import UsageError
from int8cal.graph.edit import one_node_model
from int8cal.runtime.sessions import CPU, Session

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIX = "ExecutionProvider"
# What decides how u8 x s8 products are added up, and how fast (docs/saturation.md, docs/arm.md).
X86_FLAGS = ("avx2", "avx512bw", "avx512_vnni", "avx_vnni", "amx_int8")
ARM_FLAGS = ("asimddp", "i8mm", "sve", "sme")
FLAGS = (*X86_FLAGS, *ARM_FLAGS)
# Linux tells an ARM CPU's maker and part alone: names of the parts that are common in servers, boards and phones.
_ARM_PARTS = {
    ("0x41", "0xd03"): "Arm Cortex-A53",
    ("0x41", "0xd05"): "Arm Cortex-A55",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd41"): "Arm Cortex-A78",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0xc0", "0xac3"): "Ampere-1",
}


def _processors() -> list[dict[str, str]]:
    """Read what Linux tells of each logical CPU; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    rows = [[line.partition(":") for line in part.splitlines()] for part in text.strip().split("\n\n")]
    return [{name.strip(): value.strip() for name, _, value in row} for row in rows]


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux lists them; empty where the system does not tell."""
    told = (each.get("flags") or each.get("Features") for each in _processors())
    return frozenset((next(filter(None, told), "") or "").split())


def cpu_name() -> str:
    """Return the CPU's model as the system names it, or its architecture where it does not."""
    told = (each.get("model name") or _arm_name(each) for each in _processors())
    return " ".join((next(filter(None, told), "") or platform.processor() or platform.machine()).split())


def _arm_name(processor: dict[str, str]) -> str:
    maker, part = processor.get("CPU implementer", ""), processor.get("CPU part", "")
    return _ARM_PARTS.get((maker, part)) or (f"ARM, maker {maker}, part {part}" if maker and part else "")


def physical_cores() -> int | None:
    """Count the physical cores that this process may use; None where the system does not tell."""
    allowed = {str(number) for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    mine = [each for each in _processors() if each.get("processor") in allowed]
    if not mine or any("core id" not in each for each in mine):
        return None
    return len({(each.get("physical id"), each["core id"]) for each in mine})


def measured_product(activation: int = 255, weight: int = 127) -> tuple[int, int]:
    """Let onnxruntime sum 16 equal products on this machine.

    Args:
        activation: u8.
        weight: s8.

    Returns:
        What it gives, and the exact sum. Of the largest codes a CPU that saturates gives about half of it
        (docs/saturation.md); of 0 and -128 NEON without dot products gives something else than 0 (docs/arm.md).
    """
    text = "(uint8[1,16] x) => (int32[1,1] y) { y = MatMulInteger(x, w) }"
    model = one_node_model(text, np.full((16, 1), weight, np.int8))
    found = Session(model, threads=1).run({"x": np.full((1, 16), activation, np.uint8)})["y"]
    return int(found[0, 0]), 16 * activation * weight


def exact_products() -> bool:
    """Whether onnxruntime sums u8 x s8 products exactly on this machine."""
    found, exact = measured_product()
    return found == exact


def providers() -> tuple[str, ...]:
    """Return the execution providers of the installed runtime."""
    return tuple(ort.get_available_providers())


def short_name(provider: str) -> str:
    """Return what users may write for a provider: "cuda" for "CUDAExecutionProvider"."""
    return provider.removesuffix(_SUFFIX).lower()


def resolve(names: Iterable[str]) -> tuple[str, ...]:
    """Turn names into those of providers.

    Args:
        names: Full or short names, upper or lower case, in the order of preference.

    Returns:
        Full names in the same order, each once; CPU alone where none is given.

    Raises:
        UsageError: The installed runtime does not have one of them; lists those that it has.
    """
    offered = {short_name(each): each for each in providers()}
    known = {short_name(each) for each in ort.get_all_providers()}
    found: dict[str, None] = {}
    for name in names:
        short = name.strip().lower().removesuffix(_SUFFIX.lower())
        if short not in offered:
            near = difflib.get_close_matches(short, offered, 1)
            unknown = f", did you mean {near[0]!r}?" if near else ""
            what = (
                "is not in the installed onnxruntime" if short in known else f"is no provider of onnxruntime{unknown}"
            )
            listed = ", ".join(f"{key} ({full})" for key, full in offered.items())
            raise UsageError(what, where=f"provider {name!r}", do=f"the installed onnxruntime offers {listed}")
        found[offered[short]] = None
    return tuple(found) or (CPU,)
