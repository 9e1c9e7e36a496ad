"""What int8cal makes of a few models in many ways, as digests: a change that should change nothing is held to them.

`python tests/digests.py [-o FILE]` prints them for all cases, with the sample and the zoo where it is there; two trees are
compared on one machine by the files that they wrote. The models made here compute on multiples of small powers of two,
so that every sum is exact and all CPUs agree on every bit: their digests are golden files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 48


class Net:
    """A model whose weights are quarters, node by node; `add` returns the output's name."""

    def __init__(self, shape, seed):
        self.shape, self.rng = shape, np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, *shape):
        values = self.rng.integers(-1, 2, shape) / 4
        values[0] *= 4  # one channel far larger than the others
        return self.constant(values.astype(np.float32))

    def add(self, op_type, *inputs, **attributes):
        output = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, [*inputs], [output], name=output, **attributes))
        return output

    def conv(self, tensor, out, inputs, size=1, **attributes):
        weight = self.weights(out, inputs, size, size)
        bias = self.constant((self.rng.integers(-8, 9, out) / 4).astype(np.float32))
        return self.add("Conv", tensor, weight, bias, kernel_shape=[size, size], pads=[size // 2] * 4, **attributes)

    def gemm(self, tensor, inputs, out):
        bias = self.constant((self.rng.integers(-8, 9, out) / 4).astype(np.float32))
        return self.add("Gemm", tensor, self.weights(inputs, out), bias)

    def model(self, outputs):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.shape])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def residual():
    """Convolutions with a sum of two branches, pooled."""
    net = Net((3, 8, 8), 1)
    first = net.add("Relu", net.conv("x", 8, 3, 3))
    second = net.conv(net.add("Relu", net.conv(first, 8, 8, 3)), 8, 8)
    pooled = net.add("MaxPool", net.add("Relu", net.add("Add", first, second)), kernel_shape=[2, 2], strides=[2, 2])
    flat = net.add("Flatten", net.add("GlobalAveragePool", pooled))
    return net.model([net.gemm(flat, 8, 10)])


def separable():
    """Depthwise convolutions with Clip(0, 6)."""
    net = Net((3, 8, 8), 2)
    ends = [net.constant(np.float32(end)) for end in (0, 6)]
    tensor = net.add("Clip", net.conv("x", 8, 3, 3), *ends)
    for _ in range(2):
        tensor = net.add("Clip", net.conv(tensor, 8, 1, 3, group=8), *ends)
        tensor = net.add("Clip", net.conv(tensor, 8, 8), *ends)
    return net.model([net.conv(tensor, 4, 8)])


def perceptron():
    """Matrix products, with an output on the way."""
    net = Net((12,), 3)
    first = net.add("Relu", net.gemm("x", 12, 16))
    second = net.add("LeakyRelu", net.gemm(first, 16, 16), alpha=0.25)
    return net.model([net.gemm(second, 16, 5), net.add("Transpose", second, perm=[1, 0])])


def heads():
    """A detector's end: boxes and scores joined."""
    net = Net((3, 8, 8), 4)
    tensor = net.add("Relu", net.conv(net.add("Relu", net.conv("x", 8, 3, 3)), 8, 8, 3))
    boxes = net.add("Mul", net.conv(tensor, 4, 8), net.constant(np.float32(64)))
    return net.model([net.add("Concat", boxes, net.conv(tensor, 2, 8), axis=1)])


MODELS = {made.__name__: made for made in (residual, separable, perceptron, heads)}
# options of `calibrate`; GATE stands for a gate that eight bits do not reach
GOLDEN = {
    "residual": ["", "--recipe accurate", "--target openvino --method kl", "--activations s8", "GATE"],
    "separable": ["", "--recipe balanced", "--method percentile --percentile 99.9", "--include op:Conv --weights s7"],
    "perceptron": ["", "--recipe accurate --method max", "--target tensorrt --activations s8"],
    "heads": ["", "--recipe accurate", "--method mse --latency-allowance 0"],
}
EVERYWHERE = ["", "--recipe accurate", "--target openvino", "--activations s8 --weights s8 --method kl"]
GATE = "--gate sqnr_db>=60 --budget 40"


def images(model):
    """Samples of whole numbers for a model made here."""
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    rng = np.random.default_rng(9)
    return rng.integers(0, 8, (SAMPLES, *shape)).astype(np.float32)


@dataclass(frozen=True)
class Digest:
    """What one command made: digests of table and graph, and figures of the report."""

    table: str
    graph: str
    figures: str

    def __str__(self) -> str:
        return f"table {self.table}  graph {self.graph}  {self.figures}"


def digest(folder: Path) -> Digest:
    """Read what `calibrate` wrote into a folder; versions, dates, and the names of files do not count."""
    table = json.loads(next(folder.glob("*.table.json")).read_text(encoding="utf-8"))
    graph = onnx.load(next(folder.glob("*.int8.onnx"))).graph
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    parts = [table["tensors"], table["weights"], table.get("corrections")]
    figures = {
        "sqnr": report["metrics"]["sqnr_db"],
        "cosine": report["metrics"]["cosine"],
        "worst": min((layer["sqnr_db"] for layer in report["layers"] if layer["sqnr_db"] is not None), default=None),
        "integer": report["fusion"]["integer"],
        "unsafe": report["saturation"]["unsafe_channels"],
        "decisions": len(report["decisions"]),
    }
    told = ", ".join(f"{key} {value:.5g}" if value is not None else f"{key} none" for key, value in figures.items())
    return Digest(_sha(json.dumps(parts).encode()), _sha(graph.SerializeToString(deterministic=True)), told)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def calibrate(model: Path, data: Path, options: str, folder: Path) -> Digest:
    """Run the command in this process, in the folder that holds model and data; the output goes below `folder`."""
    from int8cal.cli.main import main

    more = options.replace("GATE", GATE).split()
    folder = folder / f"{model.stem}.out"
    with chdir(model.parent):
        arguments = ["calibrate", model.name, "--data", data.name, "-o", str(folder), "--no-latency", "--quiet"]
        code = main([*arguments, "--overwrite", *more])
    if code not in (0, 7):
        sys.exit(f"{model.name} {options}: exit code {code}")
    return digest(folder)


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a model made here, and its data."""
    model = MODELS[name]()
    onnx.save(model, folder / f"{name}.onnx")
    np.save(folder / f"{name}.npy", images(model))
    return folder / f"{name}.onnx", folder / f"{name}.npy"


def lines(name: str, folder: Path) -> list[str]:
    """Digest a model made here in all its ways."""
    model, data = write(name, folder)
    return [f"{options or 'as it is'}: {calibrate(model, data, options, folder)}" for options in GOLDEN[name]]


def _elsewhere(folder: Path) -> list[str]:
    """Digest the sample and the zoo; their bits are those of this machine."""
    found = []
    sample = ROOT / "sample_data"
    for options in EVERYWHERE:
        with chdir(sample):
            made = calibrate(sample / "model.onnx", sample / "calib", options, folder)
        found.append(f"sample {options or 'as it is'}: {made}")
    root = Path(os.environ.get("INT8CAL_ZOO", ROOT.parent / "shared" / "zoo"))
    if not (root / "zoo.py").is_file():
        return found
    sys.path.insert(0, str(root))
    import zoo

    for name in zoo.ENTRIES:
        data = zoo.write_calibration(name, folder / name)
        link = folder / f"{name}.onnx"
        link.symlink_to(zoo.model_path(name))
        for options in ("--samples 64", "--samples 64 --recipe accurate"):
            found.append(f"{name} {options}: {calibrate(link, data, options, folder)}")
            sys.stdout.write(f"{found[-1]}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write them here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = [f"{name} {line}" for name in MODELS for line in lines(name, folder)]
        sys.stdout.write("\n".join(found) + "\n")
        found += _elsewhere(folder)
    if arguments.output is not None:
        arguments.output.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
