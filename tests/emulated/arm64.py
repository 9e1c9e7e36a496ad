"""A 64-bit ARM Python with onnxruntime's aarch64 wheel in a folder, and the CPUs that qemu-aarch64 runs it on.

    python tests/emulated/arm64.py FOLDER

makes the folder: Debian's packages for arm64, unpacked there by apt and dpkg with a state of their own, so that nothing of
the system changes and no root is needed, and wheels that pip takes for that Python. Tests read it from INT8CAL_ARM64.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-aarch64"
FOLDER = Path(os.environ.get("INT8CAL_ARM64", Path(__file__).parents[2] / "build" / "arm64"))
DEBIAN = ("python3", "libstdc++6")
# what `int8cal doctor` imports; numba has numpy twins that stand in for it
WHEELS = ("onnxruntime", "onnx", "numpy", "click", "PyYAML")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux2014_aarch64")
# Linux's names of the features that kernels are chosen by: (entry of the auxiliary vector, bit)
FEATURES = {
    "fp": (16, 0),
    "asimd": (16, 1),
    "atomics": (16, 8),
    "fphp": (16, 9),
    "asimdhp": (16, 10),
    "asimddp": (16, 20),
    "sve": (16, 22),
    "sve2": (26, 1),
    "i8mm": (26, 13),
    "bf16": (26, 14),
}


@dataclass(frozen=True)
class Cpu:
    """A CPU of the emulator.

    Attributes:
        name: As in `qemu-aarch64 -cpu`.
        part: Its number in /proc/cpuinfo.
        features: Those of its features that decide between int8 kernels.
    """

    name: str
    part: int
    features: frozenset[str]


CPUS = {
    cpu.name: cpu
    for cpu in (
        Cpu("cortex-a53", 0xD03, frozenset()),  # NEON alone
        Cpu("cortex-a76", 0xD0B, frozenset({"asimddp"})),
        # the emulator's SME gives wrong sums (QEMU 7.2), so kernels that use it are not measured
        Cpu("max,sme=off", 0xD40, frozenset({"asimddp", "i8mm", "sve"})),
    )
}


def missing() -> str:
    """Say in one line what is missing to emulate ARM; empty where nothing is."""
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not installed (Debian and Ubuntu: apt-get install qemu-user)"
    if not (FOLDER / "made").is_file():
        return f"there is no ARM Python in {FOLDER} (python tests/emulated/arm64.py FOLDER, and INT8CAL_ARM64=FOLDER)"
    return ""


def command(cpu: Cpu, folder: Path) -> tuple[str, ...]:
    """Return what starts the ARM Python on a CPU.

    Args:
        cpu: The CPU.
        folder: An empty folder that outlives the command. It becomes the file system that the Python sees first: qemu-user
            shows a program the host's /proc/cpuinfo, from which onnxruntime would learn nothing but that it is an x86.
    """
    for part in (FOLDER / "root").iterdir():
        (folder / part.name).symlink_to(part)
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(_cpuinfo(cpu))
    return _python(cpu, folder)


def environment() -> dict[str, str]:
    """Return the variables under which the ARM Python finds the wheels, and what it compiled of them."""
    return {"PYTHONPATH": str(FOLDER / "site"), "PYTHONPYCACHEPREFIX": str(FOLDER / "compiled")}


def _python(cpu: Cpu, root: Path) -> tuple[str, ...]:
    return (QEMU, "-L", str(root), "-cpu", cpu.name, str(FOLDER / "root" / "usr" / "bin" / "python3"))


def _cpuinfo(cpu: Cpu) -> str:
    """Write /proc/cpuinfo as Linux does on ARM, with the features that the emulated CPU tells programs of."""
    ask = "import ctypes; print(*map(ctypes.CDLL(None).getauxval, (16, 26)))"
    run = [*_python(cpu, FOLDER / "root"), "-c", ask]
    first, second = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    words = {16: int(first), 26: int(second)}
    features = " ".join(name for name, (entry, bit) in FEATURES.items() if words[entry] >> bit & 1)
    lines = {
        "processor": "0",
        "BogoMIPS": "100.00",
        "Features": features,
        "CPU implementer": "0x41",
        "CPU architecture": "8",
        "CPU variant": "0x1",
        "CPU part": f"{cpu.part:#x}",
        "CPU revision": "1",
    }
    return "".join(f"{name}\t: {value}\n" for name, value in lines.items()) + "\n"


def make(folder: Path) -> None:
    """Download and unpack everything; a folder that is whole already is left as it is.

    Raises:
        subprocess.CalledProcessError: apt, dpkg or pip cannot do it; they have said why.
    """
    if (folder / "made").is_file():
        return
    root, apt = folder / "root", folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    get = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*get, "update"], check=True)
    subprocess.run([*get, "install", "--download-only", "--no-install-recommends", "-y", *DEBIAN], check=True)
    root.mkdir(exist_ok=True)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    if not (root / "lib").exists():  # where all of it is in /usr, a package that is not needed makes this link
        (root / "lib").symlink_to("usr/lib")
    version = (root / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "site", "--only-binary=:all:"]
    pip += [f"--platform={name}" for name in PLATFORMS]
    same = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
    subprocess.run([*map(str, pip), f"--python-version={version}", *same], check=True)
    shutil.rmtree(apt)
    (folder / "made").touch()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    make(parser.parse_args().folder.resolve())
