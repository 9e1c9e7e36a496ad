"""A batch of small jobs in a folder: a network of two layers, arrays for it, and functions that wait, print or die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import int8cal

FEEDS = '''
import os, pathlib, sys, time
import numpy as np

def some():
    yield from ({"x": row[None]} for row in np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32))

def waits():
    """Says that it is there, and never comes to an end while the file "wait" exists."""
    with open(f"pid-{os.getpid()}", "w") as file:
        file.write("here")
    while os.path.exists("wait"):
        time.sleep(0.02)
    yield from some()

def prints():
    for _ in range(200):
        print(f"line of {os.getpid()}", flush=True)
        time.sleep(0.001)
    yield from some()

def dies():
    os.kill(os.getpid(), 9)
    yield from some()
'''


def network(seed: int = 0) -> onnx.ModelProto:
    """A network x (n, 8) -> y (n, 4)."""
    rng = np.random.default_rng(seed)
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32), "v": rng.normal(size=(8, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "v"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fill(folder: Path) -> None:
    """Put the network, arrays and functions into a folder."""
    onnx.save(network(), folder / "net.onnx")
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for index in range(3):
        np.save(folder / "data" / f"{index}.npy", rng.normal(size=(8, 8)).astype(np.float32))
    (folder / "feeds.py").write_text(FEEDS)


def write(folder: Path, *jobs: str, gates: str = "", data: str = "data", name: str = "batch.yaml") -> str:
    """Write a batch; each job is the inside of a YAML mapping."""
    lines = "\n".join(f"  - {{model: net.onnx, {job}}}" for job in jobs)
    text = (
        f"defaults:\n  data: {data}\n  evaluation: {{latency: false, gates: [{gates}]}}\n"
        f"  output: {{dir: 'out/{{name}}'}}\njobs:\n{lines}\n"
    )
    (folder / name).write_text(text)
    return name


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start `int8cal run` and go on."""
    environment = os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1]), "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "int8cal", "run", *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
