"""int8 models as the command line writes them: the same integers on a CPU without VNNI, unless their weights are s8."""

import numpy as np
import pytest
from int8_variants import RANGES, calibrate, variants
from onnx import TensorProto as T
from onnx import helper, numpy_helper

pytestmark = pytest.mark.emulated

NODES = (
    ("Conv", ["x", "w0", "b0"], "c0", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Relu", ["c0"], "r0", {}),
    ("Conv", ["r0", "w1", "b1"], "c1", {"pads": [1, 1, 1, 1]}),
    ("Relu", ["c1"], "r1", {}),
    ("Conv", ["r1", "w2", "b2"], "c2", {"pads": [1, 1, 1, 1], "group": 48}),
    ("HardSigmoid", ["c2"], "h2", {"alpha": 1 / 6}),
    ("Mul", ["c2", "h2"], "r2", {}),
    ("Conv", ["r2", "w3", "b3"], "c3", {"group": 3, "pads": [1, 0, 1, 0]}),
    ("Relu", ["c3"], "r3", {}),
    ("Conv", ["r3", "w4", "b4"], "c4", {}),
    ("Add", ["c4", "r2"], "s", {}),
    ("BatchNormalization", ["s", "factors", "shifts", "means", "variances"], "n", {}),
    ("Relu", ["n"], "r4", {}),
    ("GlobalAveragePool", ["r4"], "g", {}),
    ("Flatten", ["g"], "f", {}),
    ("Gemm", ["f", "w5", "b5"], "y", {"transB": 1}),
)
# an odd number of channels, an even one, depthwise, groups of odd channels in, 1x1, fully connected
SHAPES = ((23, 3, 3, 3), (48, 23, 3, 3), (48, 1, 3, 3), (51, 16, 3, 1), (48, 51, 1, 1), (10, 48))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """An FP32 network of random, uniform weights (many pairs of large ones), and a folder of samples."""
    folder = tmp_path_factory.mktemp("network")
    rng = np.random.default_rng(4)
    weights = {}
    for index, shape in enumerate(SHAPES):
        bound = (3 / np.prod(shape[1:])) ** 0.5
        weights[f"w{index}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        weights[f"b{index}"] = rng.normal(0, 0.1, shape[0]).astype(np.float32)
    weights |= {name: rng.normal(0, 0.5, 48).astype(np.float32) for name in ("factors", "shifts", "means")}
    weights["variances"] = rng.uniform(0.2, 1, 48).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], name=out, **more) for op, inputs, out, more in NODES],
        "network",
        [helper.make_tensor_value_info("x", T.FLOAT, ("N", 3, 32, 32))],
        [helper.make_tensor_value_info("y", T.FLOAT, ("N", 10))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (folder / "network.onnx").write_bytes(model.SerializeToString())
    samples = rng.uniform(0, 1, (48, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "calib.npz", x=samples[:32])
    return folder, {"x": samples[32:].reshape(2, 8, 3, 32, 32)}


@pytest.fixture(scope="module")
def runs(network, native, haswell):
    folder, feeds = network
    model, data = folder / "network.onnx", folder / "calib.npz"
    paths = {kind: calibrate(model, data, folder / kind, *more) for kind, more in RANGES.items() if kind != "default"}
    return variants(paths, feeds, native, haswell)


@pytest.mark.parametrize("kind", ["s7", "paired"])
def test_safe_weights_give_the_same_integers(runs, kind):
    run = runs[kind]
    assert {"QLinearConv", "QLinearAdd", "QLinearMul", "QGemm"} <= set(run.kernels)
    assert {"Conv", "HardSigmoid", "BatchNormalization"}.isdisjoint(run.kernels)
    assert len(run.codes) >= 7
    assert run.changed() == {}
    assert all(np.array_equal(run.here[name], run.there[name]) for name in run.outputs)


def test_s8_weights_do_not(runs, vnni):
    assert len(runs["s8"].changed()) >= 5
    assert max(runs["s8"].output_steps().values()) > 1
