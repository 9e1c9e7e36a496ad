"""Machines to run models on, and the shared modules of this folder in reach of its tests."""

import functools
import importlib.util
import platform
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import arm64
from harness import HASWELL, Machine
from int8_variants import RANGES, SAFE, calibrate, zoo_feeds

from int8cal.runtime.machine import cpu_flags


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The onnxruntime of this CPU."""
    return Machine(tmp_path_factory.mktemp("native"), "run_onnxruntime.py")


@pytest.fixture(scope="session")
def haswell(tmp_path_factory):
    """The onnxruntime of a CPU with AVX2 and nothing later: its true kernels, under emulation."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("emulation of a Haswell runs this very Python, so it needs Linux on x86-64")
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("qemu-x86_64 is not installed (Debian and Ubuntu: apt-get install qemu-user)")
    return Machine(tmp_path_factory.mktemp("haswell"), "run_onnxruntime.py", (*HASWELL, sys.executable))


@pytest.fixture(scope="session", params=arm64.CPUS)
def arm(request, tmp_path_factory):
    """The onnxruntime of a 64-bit ARM CPU: its aarch64 wheel, under emulation."""
    if reason := arm64.missing():
        pytest.skip(reason)
    cpu = arm64.CPUS[request.param]
    python = arm64.command(cpu, tmp_path_factory.mktemp("root"))
    folder = tmp_path_factory.mktemp("arm")
    return Machine(folder, "run_onnxruntime.py", python, arm64.environment(), cpu.features)


@pytest.fixture(scope="session")
def vnni():
    """Asks for a CPU that multiplies u8 by s8 exactly; elsewhere the native run saturates like the emulated one."""
    if not cpu_flags() & {"avx512_vnni", "avx_vnni"}:
        pytest.skip("this CPU has no VNNI: it is not the exact one of the two")


@pytest.fixture(scope="session")
def onednn(tmp_path_factory):
    """OpenVINO's oneDNN by the newest instruction set it may use; "" for all that this CPU has."""
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("openvino is not installed (pip install '.[openvino]')")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("ONEDNN_MAX_CPU_ISA chooses among the kernels of x86-64")

    def machine(isa: str) -> Machine:
        if isa == "AVX512_CORE" and "avx512bw" not in cpu_flags():
            pytest.skip("this CPU has no AVX-512")
        environment = {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
        return Machine(tmp_path_factory.mktemp("onednn"), "run_openvino.py", environment=environment)

    return machine


@pytest.fixture(scope="session")
def zoo_models(zoo, tmp_path_factory):
    """By a zoo model's name: its int8 models by weight range, and feeds. Made once, whatever runs them."""

    @functools.cache
    def made(name):
        folder = tmp_path_factory.mktemp(name)
        data = zoo.write_calibration(name, folder / "data")
        paths = {kind: calibrate(zoo.model_path(name), data, folder / kind, *RANGES[kind]) for kind in (*SAFE, "s8")}
        return paths, zoo_feeds(zoo, name)

    return made
