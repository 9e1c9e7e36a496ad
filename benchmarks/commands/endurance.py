"""python -m benchmarks endurance: very many samples, very many files, a very large model, a very long one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.commands import options
from benchmarks.errors import BenchmarkError
from benchmarks.table import markdown as table

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.5
FEATURES = 8  # of the small model's input
WIDTH = 5000  # of the large model's products at most: 100 MB each

Facts = tuple[Path, Path, int]  # model, data, samples


@dataclass(frozen=True)
class Endured:
    """One `int8cal calibrate`.

    Attributes:
        seconds, cpu_seconds: Of the process.
        peak_mb: Largest memory of its own, without what it maps of files (MB are 10**6 bytes).
        peak_mapped_mb: Largest memory, files that it maps included.
        tenths: Memory of its own after a tenth of the time, two tenths, ..., all of it, in MB.
        model_mb: Size of the model's files.
    """

    seconds: float
    cpu_seconds: float
    peak_mb: float
    peak_mapped_mb: float
    tenths: tuple[float, ...]
    model_mb: float


@click.command()
@click.option(
    "--samples", default="10000,100000,1000000", show_default=True, help="Numbers of small samples in one .npy."
)
@click.option("--files", default="20000", show_default=True, help="Numbers of .npy files of one sample each.")
@click.option("--gigabytes", default="2.5", show_default=True, help="Sizes of models of products, in GB of weights.")
@click.option("--nodes", default="20000", show_default=True, help="Numbers of nodes of chains of convolutions.")
@options.threads
@options.keep
@options.markdown
@options.as_json
def command(
    *,
    samples: str,
    files: str,
    gigabytes: str,
    nodes: str,
    threads: int,
    folder: Path | None,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Calibrate what is extreme in one respect, each in a process of its own, and watch its memory.

    Numbers are comma-separated; "" leaves a part out. Everything is seeded, and made in --folder. Latency is not
    measured. The report is part of the run: it compares both models on all samples.
    """
    parts: list[tuple[str, str, Callable[[float, Path], Facts]]] = [
        ("samples in one file", samples, many_samples),
        ("files", files, many_files),
        ("GB of weights", gigabytes, large_model),
        ("nodes", nodes, long_model),
    ]
    measured: dict[str, Endured] = {}
    with options.folder_of(folder) as place:
        for what, numbers, make in parts:
            for number in _numbers(numbers):
                name = f"{number:,.10g} {what}"
                options.progress(name)
                own = place / name.replace(" ", "-")
                own.mkdir(exist_ok=True)
                measured[name] = endure(*make(number, own), own / "out", threads)
    header = ("one run", "s", "CPU s", "peak MB", "with mapped files", "model MB", "MB after tenths of the time")
    rows = [
        (
            name,
            *(
                f"{value:,.0f}"
                for value in (one.seconds, one.cpu_seconds, one.peak_mb, one.peak_mapped_mb, one.model_mb)
            ),
            " ".join(f"{value:.0f}" for value in one.tenths),
        )
        for name, one in measured.items()
    ]
    listed = {name: asdict(one) for name, one in measured.items()}
    options.deliver(table(header, rows), listed, threads, markdown, json_path)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.BadParameter(f'"{text}" is no list of numbers') from None


def many_samples(count: float, folder: Path) -> Facts:
    """Write a model of two small layers, and its samples as one array (count, FEATURES)."""
    rng = np.random.default_rng(1)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    np.save(data / "x.npy", rng.normal(size=(int(count), FEATURES)).astype(np.float32))
    return _products(folder, (FEATURES, 16, 4)), data, int(count)


def many_files(count: float, folder: Path) -> Facts:
    """Write the same model, and a file for each sample."""
    rng = np.random.default_rng(2)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for number in range(int(count)):
        np.save(data / f"{number:06d}.npy", rng.normal(size=(1, FEATURES)).astype(np.float32))
    return _products(folder, (FEATURES, 16, 4)), data, int(count)


def large_model(gigabytes: float, folder: Path) -> Facts:
    """Write a chain of square products whose weights are beside the model, and eight samples."""
    rng = np.random.default_rng(3)
    width = min(WIDTH, round((gigabytes * 1e9 / 4) ** 0.5))
    layers = round(gigabytes * 1e9 / (4 * width * width))
    np.save(folder / "data.npy", rng.normal(size=(8, width)).astype(np.float32))
    return _products(folder, (width,) * (layers + 1)), folder / "data.npy", 8


def _products(folder: Path, widths: tuple[int, ...]) -> Path:
    """Write Gemm, Relu, Gemm, Relu, ...; weights go into a data file as they are drawn, one in memory at a time."""
    rng = np.random.default_rng(4)
    path, data = folder / "model.onnx", folder / "model.onnx.data"
    nodes, constants, tensor = [], [], "x"
    with data.open("wb") as stream:
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            weight = rng.standard_normal((outputs, inputs), np.float32) * np.float32((2 / inputs) ** 0.5)
            stored = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=weight.shape)
            stored.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", stream.tell()), ("length", weight.nbytes)):
                stored.external_data.add(key=key, value=str(value))
            stream.write(weight.tobytes())
            bias = numpy_helper.from_array(rng.standard_normal(outputs, np.float32), f"b{number}")
            constants += [stored, bias]
            names = [tensor, stored.name, bias.name]
            nodes.append(helper.make_node("Gemm", names, [f"g{number}"], name=f"/gemm{number}", transB=1))
            tensor = f"r{number}" if number < len(widths) - 2 else "y"
            op = "Relu" if tensor != "y" else "Identity"
            nodes.append(helper.make_node(op, [f"g{number}"], [tensor], name=f"/{op.lower()}{number}"))
    _save(path, nodes, constants, ["N", widths[0]], ["N", widths[-1]], tensor)
    return path


def long_model(count: float, folder: Path) -> Facts:
    """Write Conv, Relu, Conv, Relu, ... of four channels on 4x4 images, and two samples."""
    rng = np.random.default_rng(5)
    nodes, constants, tensor = [], [], "x"
    for number in range(int(count) // 2):
        weight = np.eye(4) * 0.9 + rng.normal(size=(4, 4)) * 0.05
        constants.append(numpy_helper.from_array(weight.reshape(4, 4, 1, 1).astype(np.float32), f"w{number}"))
        constants.append(numpy_helper.from_array(rng.normal(size=4).astype(np.float32) * np.float32(0.1), f"b{number}"))
        inputs = [tensor, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("Conv", inputs, [f"c{number}"], name=f"/conv{number}"))
        tensor = f"r{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [tensor], name=f"/relu{number}"))
    path = folder / "model.onnx"
    _save(path, nodes, constants, ["N", 4, 4, 4], ["N", 4, 4, 4], tensor)
    np.save(folder / "data.npy", rng.normal(size=(2, 4, 4, 4)).astype(np.float32))
    return path, folder / "data.npy", 2


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    given: list[str | int],
    made: list[str | int],
    output: str,
) -> None:
    graph = helper.make_graph(
        nodes,
        path.parent.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, made)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def endure(model: Path, data: Path, samples: int, out: Path, threads: int) -> Endured:
    """Run `int8cal calibrate` and watch its memory.

    Raises:
        BenchmarkError: It failed; the message is its own last line. Or the system does not tell memory.
    """
    command = [sys.executable, "-m", "int8cal", "calibrate", str(model), "--data", str(data), "-o", str(out)]
    command += ["--samples", str(samples), "--threads", str(threads), "--no-latency", "--quiet", "--overwrite"]
    started = time.perf_counter()
    before = os.times()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        seen = []
        while process.poll() is None:
            if (found := memory_mb(process.pid)) is not None:
                seen.append(found)
            time.sleep(POLL_SECONDS)
        error = process.stderr.read() if process.stderr else ""
    after = os.times()
    if process.returncode:
        last = (error.strip().splitlines() or ["no message"])[-1]
        raise BenchmarkError(f"int8cal ended with status {process.returncode}: {last}")
    if not seen:
        raise BenchmarkError("this system does not tell the memory of a process (/proc/PID/status)")
    own = [mine for mine, _ in seen]
    return Endured(
        seconds=time.perf_counter() - started,
        cpu_seconds=after.children_user + after.children_system - before.children_user - before.children_system,
        peak_mb=max(own),
        peak_mapped_mb=max(whole for _, whole in seen),
        tenths=tuple(own[(len(own) - 1) * tenth // 10] for tenth in range(1, 11)),
        model_mb=sum(file.stat().st_size for file in model.parent.glob("model.onnx*")) / 1e6,
    )


def memory_mb(process: int) -> tuple[float, float] | None:
    """Return the memory of a process without and with the files that it maps; None where the system does not tell."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = {
        name: int(value.split()[0]) * 1024 / 1e6
        for name, _, value in (line.partition(":") for line in lines)
        if name.startswith("Rss") or name == "VmRSS"
    }
    return (told["VmRSS"] - told["RssFile"], told["VmRSS"]) if "RssFile" in told else None
