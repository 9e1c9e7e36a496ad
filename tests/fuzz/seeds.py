"""Sound files of every kind that int8cal reads: what one small calibration wrote and read, and what libraries write."""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import int8cal

GOLDEN = Path(__file__).parents[1] / "golden"
YAML = """\
defaults:
  data: {path: data.npz, samples: 4}
  evaluation: {latency: false, gates: ["sqnr_db>=1"]}
jobs:
  - model: net.onnx
    output: {dir: out}
"""
CONFIGS = (
    YAML,
    """\
model: net.onnx  # one job
data: &data {path: data.npz, samples: 3, seed: 1}
calibration: {method: percentile, percentile: 99.9, batch_size: 1, threads: 1}
quantization:
  recipe: fast
  target: portable
  activations: u8
  weights: paired
  exclude: ["op:Softmax"]
  ranges: {image: [-2.2, 2.7]}
evaluation:
  data: *data
  gates: [sqnr_db>=20, "cosine>=0.9"]
output: {dir: elsewhere, overwrite: true}
""",
    """\
defaults: {data: {path: data.npz}, evaluation: {latency: false}}
jobs:
  - {model: "*.onnx", name: first, output: {dir: "out/{stem}"}}
  - model: net.onnx
    name: second
    <<: {output: {dir: b}}
matrix:
  calibration.method: [max, mse]
  quantization.weights: [s8, s7]
""",
    """\
model: net.onnx
data:
  path: photos
  preprocess: {resize: 9, crop: 8, color: RGB, layout: NCHW, scale: 0.0039, mean: [0.485, 0.456, 0.406], std: [0.2, 0.2, 0.2]}
  labels: folders
  skip_bad: true
""",
)


def network() -> onnx.ModelProto:
    """A network (N, 3, 8, 8) -> (N, 4) and (N, 6, 8, 8): convolutions, a branch, a Concat, a Gemm, a Softmax."""
    rng = np.random.default_rng(0)
    weights = {"W0": (6, 3, 3, 3), "B0": (6,), "W1": (6, 1, 3, 3), "W2": (4, 12), "B2": (4,), "scale": (1, 6, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["image", "W0", "B0"], ["a"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "W1"], ["c"], "depthwise", pads=[1, 1, 1, 1], group=6),
        helper.make_node("Mul", ["c", "scale"], ["m"], "scaled"),
        helper.make_node("Add", ["b", "m"], ["features"], "add"),
        helper.make_node("Concat", ["features", "b"], ["d"], "concat", axis=1),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "pool"),
        helper.make_node("Flatten", ["e"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "W2", "B2"], ["g"], "head", transB=1),
        helper.make_node("Softmax", ["g"], ["classes"], "softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [
            helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", 6, 8, 8]),
        ],
        [numpy_helper.from_array(rng.normal(0, 0.4, size).astype(np.float32), name) for name, size in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branching() -> onnx.ModelProto:
    """A network with an If, whose branches hold products."""
    rng = np.random.default_rng(1)
    weight = numpy_helper.from_array(rng.normal(size=(5, 5)).astype(np.float32), "W")

    def branch(name: str, op: str) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["x", "W"], ["p"], f"{name}_m"), helper.make_node(op, ["p"], ["r"], name)]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", 5])])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["is_large"]),
        helper.make_node(
            "If", ["is_large"], ["y"], "if", then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "branching",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [weight, numpy_helper.from_array(np.float32(0), "zero")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def old() -> onnx.ModelProto:
    """A network of opset 9 in float16, with its weights among the inputs."""
    rng = np.random.default_rng(2)
    weight = rng.normal(0, 0.3, (7, 5)).astype(np.float16)
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["p"], "m"),
        helper.make_node("Clip", ["p"], ["q"], "c", min=0.0, max=6.0),
        helper.make_node("Transpose", ["q"], ["t"], "t", perm=[1, 0]),
        helper.make_node("Squeeze", ["t"], ["y"], "s", axes=[1]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, size) for name, size in (("x", [1, 7]), ("W", [7, 5]))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [5])
    graph = helper.make_graph(nodes, "old", values, [output], [numpy_helper.from_array(weight, "W")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=3)


def reader() -> onnx.ModelProto:
    """A network of tokens (n, tokens), and a mask on them."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "W"], ["p"], "m"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["masks"]),
        helper.make_node("Mul", ["p", "masks"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    constants = [
        numpy_helper.from_array(rng.normal(size=(8, 5)).astype(np.float32), "table"),
        numpy_helper.from_array(rng.normal(size=(5, 5)).astype(np.float32), "W"),
        numpy_helper.from_array(np.array([-1]), "last"),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "tokens", 5])
    graph = helper.make_graph(nodes, "reader", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tokenizers() -> list[str]:
    """tokenizer.json files of words, word pieces, byte pairs and unigrams, as the library `tokenizers` writes them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5, "film": 6, "##s": 7}
    made = [
        Tokenizer(models.WordLevel(words, unk_token="[UNK]")),  # noqa: S106 - a token of text
        Tokenizer(models.WordPiece(words, unk_token="[UNK]")),  # noqa: S106
        Tokenizer(models.BPE({"g": 0, "o": 1, "d": 2, "go": 3, "od": 4, "<pad>": 5}, [("g", "o"), ("o", "d")])),
        Tokenizer(models.Unigram([("<unk>", 0.0), ("good", -1.0), ("o", -2.5), ("<pad>", -9.0)], 0, False)),
    ]
    for each in made[:2]:
        each.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
        each.pre_tokenizer = pre_tokenizers.Whitespace()
        each.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
        )
        each.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
        each.enable_truncation(6)
        each.enable_padding(pad_id=0, pad_token="[PAD]")  # noqa: S106
    made[2].pre_tokenizer = pre_tokenizers.ByteLevel()
    made[2].decoder = decoders.ByteLevel()
    made[3].pre_tokenizer = pre_tokenizers.Metaspace()
    return [each.to_str(pretty=True) for each in made]


def images() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(4, 3, 8, 8)).astype(np.float32)


@functools.cache
def calibrated() -> Path:
    """Run a batch of one job, once for this process; returns its output directory, beside which its files are."""
    folder = Path(tempfile.mkdtemp(prefix="int8cal-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    onnx.save(network(), folder / "net.onnx")
    np.savez(folder / "data.npz", image=images(), labels=np.array([0, 1, 2, 3]))
    (folder / "job.yaml").write_text(YAML)
    subprocess.run(
        [sys.executable, "-m", "int8cal", "run", "job.yaml", "--quiet", "--summary", "summary.json"],
        cwd=folder,
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(Path(int8cal.__file__).parents[1])},
    )
    return folder / "out"


def text_of(document: object) -> bytes:
    return json.dumps(document, indent=1).encode()


def npy_of(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz_of(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def pictures() -> list[bytes]:
    """PNG, JPEG, BMP and WebP files in several modes, one with a turned orientation, one animated."""
    rng = np.random.default_rng(3)
    colour = Image.fromarray(rng.integers(0, 255, (9, 12, 3), np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray(rng.integers(0, 65535, (9, 9), np.uint16))
    made: list[tuple[Image.Image, str, dict[str, object]]] = [
        *((colour, form, {}) for form in ("PNG", "JPEG", "BMP", "WEBP")),
        (colour.convert("P"), "PNG", {"transparency": 3}),
        (colour.convert("LA"), "PNG", {}),
        (colour.convert("1"), "PNG", {}),
        (colour.convert("1"), "BMP", {}),
        (colour.convert("P"), "BMP", {}),
        (colour.convert("CMYK"), "JPEG", {}),
        (colour.convert("L"), "JPEG", {"progressive": True}),
        (colour, "JPEG", {"exif": turned}),
        (colour, "PNG", {"exif": turned}),
        (deep, "PNG", {}),
        (colour, "PNG", {"save_all": True, "append_images": [colour.rotate(90)]}),
        (colour, "WEBP", {"save_all": True, "append_images": [colour.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]}),
        (colour, "WEBP", {"lossless": True}),
    ]
    found = []
    for image, form, options in made:
        stream = io.BytesIO()
        image.save(stream, form, **options)
        found.append(stream.getvalue())
    return found
