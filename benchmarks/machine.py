"""What the figures were measured on, and how much memory this process has used at its peak."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path


def peak_mb() -> float | None:
    """Return the peak resident memory of this process in MB (10**6 bytes); None where the system does not tell.

    The kernel's own high-water mark of this address space: getrusage's ru_maxrss starts at the parent's size.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None


def installed(module: str) -> bool:
    """Tell whether a top-level module could be imported."""
    return importlib.util.find_spec(module) is not None


def describe(threads: int) -> str:
    """Return one line: processor, threads, and the versions that figures depend on."""
    names = ("int8cal", "onnxruntime", "onnx", "numpy", "numba", "nncf", "amd-quark")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cpus} CPUs, {threads} {'thread' if threads == 1 else 'threads'}; {', '.join(versions)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    isa = next(
        (
            text
            for flag, text in (("avx512_vnni", "AVX-512 VNNI"), ("avx_vnni", "AVX VNNI"), ("avx2", "AVX2"))
            if flag in flags
        ),
        "",
    )
    return " ".join(part for part in (name or platform.machine(), f"({isa})" if isa else "") if part)
