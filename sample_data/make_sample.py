"""Rebuild sample_data/: train a small digit classifier and write its ONNX model, calibration and evaluation images.

Needs more than int8cal itself: `pip install torch==2.13.0 onnx scikit-learn pillow`. The ONNX graph is written node
by node from the trained weights, so that BatchNormalization and Clip stay nodes of their own, as in many models in
the wild, and int8cal has something to fold.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

SIDE = 32
EVAL_PER_CLASS = 45
CALIB_PER_CLASS = 20
SEED = 20
EPOCHS = 60
BATCH = 64
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True)
class Layer:
    """One Conv + BatchNormalization, with Clip(0, 6) behind it if `relu6`; depthwise if `groups` > 1."""

    name: str
    cin: int
    cout: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    relu6: bool = True


# 32x32 -> 16x16 -> 8x8 -> 4x4. The layer named RESIDUAL_TO adds the output of RESIDUAL_FROM to its own.
LAYERS = (
    Layer("stem", 1, 32, kernel=3, stride=2),
    Layer("block1/conv", 32, 64, kernel=3),
    Layer("block2/conv", 64, 64, kernel=3, stride=2),
    Layer("block3/expand", 64, 128),
    Layer("block3/depthwise", 128, 128, kernel=3, groups=128),
    Layer("block3/project", 128, 64, relu6=False),
    Layer("block4/conv", 64, 128, kernel=3, stride=2),
    Layer("block4/pointwise", 128, 128),
)
RESIDUAL_FROM, RESIDUAL_TO = "block2/conv", "block3/project"
FEATURES, CLASSES = LAYERS[-1].cout, 10


class DigitNet(nn.Module):
    """The network that LAYERS describes, then global average pooling and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(x.cin, x.cout, x.kernel, x.stride, x.kernel // 2, groups=x.groups, bias=False) for x in LAYERS
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(x.cout) for x in LAYERS)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Classify images.

        Args:
            image: float32 (N, 1, 32, 32), pixel values 0..255.

        Returns:
            Logits, float32 (N, 10).
        """
        x, kept = image * (1 / 255), image
        for layer, conv, norm in zip(LAYERS, self.convs, self.norms, strict=True):
            x = norm(conv(x))
            x = functional.relu6(x) if layer.relu6 else x
            x = x + kept if layer.name == RESIDUAL_TO else x
            kept = x if layer.name == RESIDUAL_FROM else kept
        return self.head(x.mean(dim=(2, 3)))


def upscaled_digits() -> tuple[np.ndarray, np.ndarray]:
    """Load the 8x8 digits (levels 0..16) and upscale them.

    Returns:
        Images, uint8 (1797, 32, 32), bilinear in Pillow's integer arithmetic; labels, int64 (1797,).
    """
    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    images = [Image.fromarray(x).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for x in small]
    return np.stack([np.asarray(x) for x in images]), digits.target.astype(np.int64)


def split(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the evaluation images per class, and the calibration images from what is left.

    Returns:
        Sorted indices of the training, calibration and evaluation images; calibration is part of training.
    """
    rng = np.random.default_rng(SEED)
    train, calib, held_out = [], [], []
    for digit in range(CLASSES):
        order = rng.permutation(np.flatnonzero(labels == digit))
        held_out.append(order[:EVAL_PER_CLASS])
        train.append(order[EVAL_PER_CLASS:])
        calib.append(order[EVAL_PER_CLASS : EVAL_PER_CLASS + CALIB_PER_CLASS])
    train_picks, calib_picks, eval_picks = (np.sort(np.concatenate(part)) for part in (train, calib, held_out))
    train_hashes, eval_hashes = (
        {hashlib.sha256(images[i].tobytes()).hexdigest() for i in picks} for picks in (train_picks, eval_picks)
    )
    if train_hashes & eval_hashes:
        raise SystemExit("an evaluation image is also a training image; choose another SEED")
    return train_picks, calib_picks, eval_picks


def jitter(image: torch.Tensor) -> torch.Tensor:
    """Turn, zoom, shift and brighten each image a little; float32 (N, 1, H, W) in and out."""
    n = len(image)
    angle = (torch.rand(n) - 0.5) * 0.4
    zoom = 1 + (torch.rand(n) - 0.5) * 0.24
    shift = (torch.rand(n, 2) - 0.5) * 0.24
    cos, sin = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    theta = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
    bright = 0.8 + 0.4 * torch.rand(n, 1, 1, 1)
    return (functional.grid_sample(image, grid, align_corners=False) * bright).clamp(0, 255)


def train(images: np.ndarray, labels: np.ndarray) -> DigitNet:
    """Train on (N, 32, 32) uint8 images for a fixed number of epochs; nothing is chosen by looking at other images."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    x, y = torch.from_numpy(images).float()[:, None], torch.from_numpy(labels)
    net = DigitNet()
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH)
        for pick in order:
            loss = functional.cross_entropy(net(jitter(x[pick])), y[pick], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}/{EPOCHS}: loss {loss.item():.4f}", flush=True)
    net.eval()
    return net


def build_onnx(net: DigitNet) -> onnx.ModelProto:
    """Write the trained network as an ONNX graph: image (batch, 1, 32, 32) of 0..255 -> logits (batch, 10)."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(name: str, value: torch.Tensor | float) -> str:
        array = np.asarray(value.detach().numpy() if isinstance(value, torch.Tensor) else value, dtype=np.float32)
        constants.append(numpy_helper.from_array(array, name))
        return name

    def node(op_type: str, inputs: list[str], name: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{name}_output"
        nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    low, high = constant("relu6.min", 0.0), constant("relu6.max", 6.0)
    x = kept = node("Mul", ["image", constant("pixel.scale", 1 / 255)], "/pixels/Mul")
    for layer, conv, norm in zip(LAYERS, net.convs, net.norms, strict=True):
        path, dotted, pad = f"/{layer.name}", layer.name.replace("/", "."), layer.kernel // 2
        x = node(
            "Conv",
            [x, constant(f"{dotted}.conv.weight", conv.weight)],
            f"{path}/Conv",
            kernel_shape=[layer.kernel] * 2,
            strides=[layer.stride] * 2,
            pads=[pad] * 4,
            group=layer.groups,
        )
        parts = {"weight": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
        inputs = [x, *(constant(f"{dotted}.norm.{key}", value) for key, value in parts.items())]
        x = node("BatchNormalization", inputs, f"{path}/BatchNormalization", epsilon=norm.eps)
        x = node("Clip", [x, low, high], f"{path}/Clip") if layer.relu6 else x
        x = node("Add", [x, kept], "/block3/Add") if layer.name == RESIDUAL_TO else x
        kept = x if layer.name == RESIDUAL_FROM else kept
    x = node("GlobalAveragePool", [x], "/pool/GlobalAveragePool")
    x = node("Flatten", [x], "/pool/Flatten", axis=1)
    head = [constant("head.weight", net.head.weight), constant("head.bias", net.head.bias)]
    node("Gemm", [x, *head], "/head/Gemm", output="logits", transB=1)

    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name, model.doc_string = "make_sample.py", "Handwritten digits, grey pixels 0..255, 32x32"
    onnx.checker.check_model(model, full_check=True)
    return model


def write_images(folder: Path, picks: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
    """Write images as <folder>/<digit>/<index in the data set>.png, replacing the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for i in picks:
        path = folder / str(labels[i]) / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(path, optimize=True)


def main() -> None:
    """Write model.onnx, calib/ and eval/, and print the FP32 accuracy on the evaluation images."""
    parser = argparse.ArgumentParser(description="Rebuild the sample model and its images.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    out: Path = parser.parse_args().out
    images, labels = upscaled_digits()
    train_picks, calib_picks, eval_picks = split(images, labels)
    net = train(images[train_picks], labels[train_picks])
    out.mkdir(parents=True, exist_ok=True)
    (out / "model.onnx").write_bytes(build_onnx(net).SerializeToString(deterministic=True))
    write_images(out / "calib", calib_picks, images, labels)
    write_images(out / "eval", eval_picks, images, labels)
    with torch.no_grad():
        predicted = net(torch.from_numpy(images[eval_picks]).float()[:, None]).argmax(1).numpy()
    print(f"{sum(p.numel() for p in net.parameters())} parameters, {len(train_picks)} training images")
    print(f"FP32 top-1 on {len(eval_picks)} evaluation images: {(predicted == labels[eval_picks]).mean():.4f}")


if __name__ == "__main__":
    main()
