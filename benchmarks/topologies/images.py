"""ResNet-50 v1.5 and MobileNetV2, 224 x 224, BatchNorm folded; and a chain of convolutions for scaling."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from benchmarks.topologies.net import Net

HE = 2.0  # keeps the variance through a ReLU
BRANCH = 0.3  # of a residual branch beside its shortcut: sixteen blocks then add up without exploding

# (expansion, channels, blocks, stride) of MobileNetV2's stages
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _image(size: int, channels: int = 3) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["N", channels, size, size])


def resnet50(seed: int = 1) -> onnx.ModelProto:
    """Build ResNet-50 v1.5 (the stride in the 3x3 convolution): 25.5 M parameters, 53 convolutions, opset 13."""
    net = Net("resnet50", seed)
    x = net.node("Relu", [net.conv("input", "conv1", (3, 64), 7, stride=2, gain=HE)], "relu1")
    x = net.node("MaxPool", [x], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            stride = 2 if stage and not block else 1
            y = net.node("Relu", [net.conv(x, f"{name}.conv1", (channels, width), 1, gain=HE)], f"{name}.relu1")
            y = net.conv(y, f"{name}.conv2", (width, width), 3, stride=stride, gain=HE)
            y = net.node("Relu", [y], f"{name}.relu2")
            y = net.conv(y, f"{name}.conv3", (width, 4 * width), 1, gain=BRANCH)
            if not block:
                x = net.conv(x, f"{name}.downsample", (channels, 4 * width), 1, stride=stride, gain=1.0)
                channels = 4 * width
            x = net.node("Relu", [net.node("Add", [y, x], f"{name}.add")], f"{name}.relu3")
    logits = net.classifier(x, "fc", (2048, 1000))
    return net.model([_image(224)], (logits, "logits", ["N", 1000]), opset=13)


def mobilenetv2(seed: int = 2) -> onnx.ModelProto:
    """Build MobileNetV2 1.0: 3.5 M parameters, inverted residuals, ReLU6 as Clip(0, 6), opset 13."""
    net = Net("mobilenetv2", seed)
    bounds = [net.constant("zero", np.array(0.0, np.float32)), net.constant("six", np.array(6.0, np.float32))]

    def relu6(x: str, name: str) -> str:
        return net.node("Clip", [x, *bounds], name)

    x = relu6(net.conv("input", "stem.conv", (3, 32), 3, stride=2, gain=HE), "stem.relu6")
    channels = 32
    for stage, (expansion, width, blocks, first_stride) in enumerate(INVERTED):
        for block in range(blocks):
            name = f"block{stage + 1}.{block}"
            stride = first_stride if not block else 1
            hidden = channels * expansion
            y = x
            if expansion != 1:
                y = relu6(net.conv(y, f"{name}.expand", (channels, hidden), 1, gain=HE), f"{name}.relu6a")
            y = net.conv(y, f"{name}.depthwise", (hidden, hidden), 3, stride=stride, groups=hidden, gain=HE)
            y = relu6(y, f"{name}.relu6b")
            residual = stride == 1 and channels == width
            y = net.conv(y, f"{name}.project", (hidden, width), 1, gain=BRANCH if residual else 1.0)
            x = net.node("Add", [x, y], f"{name}.add") if residual else y
            channels = width
    x = relu6(net.conv(x, "head.conv", (320, 1280), 1, gain=HE), "head.relu6")
    logits = net.classifier(x, "fc", (1280, 1000))
    return net.model([_image(224)], (logits, "logits", ["N", 1000]), opset=13)


def chain(blocks: int, *, width: int = 32, size: int = 28, seed: int = 4) -> onnx.ModelProto:
    """Build a chain of `blocks` convolutions with ReLU: as many planned tensors as blocks, all of one size."""
    net = Net(f"chain{blocks}", seed)
    x = "input"
    for index in range(blocks):
        x = net.conv(x, f"conv{index}", (3 if index == 0 else width, width), 3, gain=HE)
        x = net.node("Relu", [x], f"relu{index}")
    logits = net.classifier(x, "fc", (width, 10))
    return net.model([_image(size)], (logits, "logits", ["N", 10]), opset=13)
