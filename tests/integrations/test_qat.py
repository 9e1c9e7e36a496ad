"""An int8 model goes back to PyTorch: the module with fake quantization gives the int8 model's outputs."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[2] / "integrations"))

import qat  # noqa: E402 - where torch is
from torch import nn  # noqa: E402 - likewise

import int8cal  # noqa: E402 - likewise


class Net(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU())
        self.head = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def exported(net):
    """The ONNX of `Net`, with the names that torch.onnx gives nodes."""
    node, weights = helper.make_node, {name: each.detach().numpy() for name, each in net.state_dict().items()}
    nodes = [
        node(
            "Conv",
            ["x", "features.0.weight", "features.0.bias"],
            ["a"],
            "/features/features.0/Conv",
            kernel_shape=[3, 3],
        ),
        node("Relu", ["a"], ["b"], "/features/features.1/Relu"),
        node("MaxPool", ["b"], ["c"], "/features/features.2/MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
        node(
            "Conv",
            ["c", "features.3.weight", "features.3.bias"],
            ["d"],
            "/features/features.3/Conv",
            kernel_shape=[3, 3],
        ),
        node("Relu", ["d"], ["e"], "/features/features.4/Relu"),
        node("Flatten", ["e"], ["f"], "/Flatten"),
        node("Gemm", ["f", "head.weight", "head.bias"], ["y"], "/head/Gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 14, 14])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def handed(tmp_path):
    """The int8 model's file, and samples that it was calibrated on."""
    fp32 = exported(Net())
    rng = np.random.default_rng(0)
    samples = [{"x": rng.normal(0, 1, (1, 3, 14, 14)).astype(np.float32)} for _ in range(16)]
    table = int8cal.calibrate(fp32, samples)
    onnx.save(int8cal.quantize(fp32, table), tmp_path / "net.int8.onnx")
    return tmp_path / "net.int8.onnx", [each["x"] for each in samples]


def noise(x, y):
    return float(np.square(x - y).sum() / np.square(x).sum())


def test_outputs_are_those_of_the_int8_model(handed):
    path, samples = handed
    session = onnxruntime.InferenceSession(path)
    module = qat.hand_over(Net(), path)
    plain = Net().eval()
    for x in samples:
        (expected,) = session.run(None, {"x": x})
        with torch.no_grad():
            found, float_ = module(torch.from_numpy(x)).numpy(), plain(torch.from_numpy(x)).numpy()
        assert noise(expected, found) < 1e-3 * noise(expected, float_)


def test_every_layer_and_its_activations_come_along(handed):
    path, _ = handed
    module = qat.hand_over(Net(), path)
    assert isinstance(module.features[0], torch.ao.nn.qat.Conv2d)
    assert isinstance(module.head, torch.ao.nn.qat.Linear)
    taken, left = qat.carried(path)
    assert {"x"} <= taken
    assert left <= {"c", "f"}  # codes of what only passes them on
    assert all(float(fake.observer_enabled[0]) == 0 for fake in module.modules() if isinstance(fake, qat.FakeQuantize))


def test_training_goes_on_and_the_checkpoint_reads_back(handed, tmp_path):
    path, samples = handed
    module = qat.hand_over(Net(), path).train()
    x, wanted = torch.from_numpy(np.concatenate(samples)), torch.arange(16) % 10
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        loss = nn.functional.cross_entropy(module(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    torch.save(module.state_dict(), tmp_path / "qat.pt")
    again = qat.hand_over(Net(), path)
    again.load_state_dict(torch.load(tmp_path / "qat.pt"))
    torch.testing.assert_close(again(x), module.eval()(x))


def test_a_layer_without_a_module_is_named(handed):
    path, _ = handed
    with pytest.raises(ValueError, match=r'node "/features/features.0/Conv" has no Conv2d or Linear'):
        qat.hand_over(nn.Sequential(), path)
