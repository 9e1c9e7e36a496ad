"""What the audit computes for a layer is what the kernels give: saturated sums on a Haswell, exact ones with VNNI."""

import numpy as np
import pytest
from harness import Case
from im2col import patches
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from int8cal.audit.on_data import measure_on_data
from int8cal.audit.simulate import lost_sums
from int8cal.audit.worst_case import worst_cases
from int8cal.graph.layers import window_of
from int8cal.numerics.pairs import pair_starts

pytestmark = pytest.mark.emulated

INPUT_SCALE, OUTPUT_SCALE, INPUT_ZERO, OUTPUT_ZERO = np.float32(0.02), np.float32(0.7), 100, 128
# weight shape, attributes of the QLinearConv; shapes with an odd number of channels pair across positions
LAYERS = {
    "even": ((8, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "odd": ((8, 5, 3, 3), {"strides": [2, 2]}),
    "groups": ((6, 3, 3, 3), {"group": 2, "pads": [0, 1, 0, 1]}),
    "pointwise": ((16, 32, 1, 1), {}),
    "dilated": ((4, 6, 3, 3), {"dilations": [2, 2]}),
}


def convolution(shape, attributes):
    """A QLinearConv with weights that saturate, their scales, and inputs."""
    rng = np.random.default_rng(shape[1])
    weight = rng.integers(-127, 128, shape, np.int8)
    scales = rng.uniform(0.002, 0.01, shape[0]).astype(np.float32)
    channels = shape[1] * attributes.get("group", 1)
    constants = {
        "xs": INPUT_SCALE,
        "xz": np.uint8(INPUT_ZERO),
        "w": weight,
        "ws": scales,
        "wz": np.zeros(shape[0], np.int8),
        "ys": OUTPUT_SCALE,
        "yz": np.uint8(OUTPUT_ZERO),
    }
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", ["x", *constants], ["y"], name="conv", **attributes)],
        "net",
        [helper.make_tensor_value_info("x", T.UINT8, [1, channels, 9, 9])],
        [helper.make_tensor_value_info("y", T.UINT8, [1, shape[0], None, None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model, scales, rng.integers(0, 256, (1, 1, channels, 9, 9), np.uint8)


class Sample:
    """One feed, as the audit takes them."""

    def __init__(self, feed):
        self.feed, self.origin = feed, "drawn"


def exact_sums(layer, x):
    """Sums of (x - zero point) * w by channel: (channels, positions)."""
    rows = layer.rows().values[:, 0].reshape(layer.group, -1, layer.rows().values.shape[2])
    cut = patches(x, window_of(layer.proto, layer.rows().kernel, x.shape[2:]), INPUT_ZERO, layer.group)
    sums = rows.astype(np.int64) @ (cut.astype(np.int64) - INPUT_ZERO).swapaxes(1, 2)
    return sums.reshape(-1, sums.shape[2])


def requantized(sums, scales):
    """u8 codes of sums as onnxruntime makes them, in float32."""
    factor = INPUT_SCALE * scales / OUTPUT_SCALE
    scaled = np.clip(sums.astype(np.float32) * factor[:, None], -np.float32(OUTPUT_ZERO), np.float32(255 - OUTPUT_ZERO))
    return (np.rint(scaled).astype(np.int32) + OUTPUT_ZERO).astype(np.uint8)


@pytest.fixture(scope="module")
def outputs(native, haswell):
    """Of every layer, by its name: what both machines make of it."""
    drawn = [convolution(*layer) for layer in LAYERS.values()]
    here, there = (machine.run([Case(model, {"x": x}) for model, _, x in drawn]) for machine in (native, haswell))
    return {name: (one.first[0], other.first[0]) for name, one, other in zip(LAYERS, here, there, strict=True)}


@pytest.mark.parametrize("layer", LAYERS)
def test_both_accumulations_are_those_of_the_kernels(outputs, vnni, layer):
    model, scales, x = convolution(*LAYERS[layer])
    (case,) = worst_cases(model, "portable", None)
    rows = case.rows
    starts = pair_starts("flat", rows.positions, rows.channels)
    lost = lost_sums(case.layer, x[0], None, starts, "onnxruntime")
    here, there = outputs[layer]
    exact = exact_sums(case.layer, x[0])
    np.testing.assert_array_equal(requantized(exact, scales), here.reshape(len(exact), -1))
    np.testing.assert_array_equal(requantized(exact + lost.sums, scales), there.reshape(len(exact), -1))
    assert (here != there).any()

    found = measure_on_data(model, [case], "portable", [Sample({"x": x[0]})]).layers[0].runtimes[0]
    assert found.runtime == "onnxruntime"
    assert found.saturated == lost.saturated.sum()
    broken = np.flatnonzero((here != there).any(axis=(0, 2, 3)))
    assert set(broken) <= set(found.channels)
    assert case.result.unsafe_channels >= len(found.channels)
