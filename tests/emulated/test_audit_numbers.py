"""What the audit computes for a layer is what the kernels give: saturated sums on a Haswell, exact ones with VNNI."""

import numpy as np
import pytest
from harness import Case
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from int8cal.evaluation.saturation.on_data import measure_on_data
from int8cal.evaluation.saturation.simulate import compute
from int8cal.evaluation.saturation.worst_case import judge_layers
from int8cal.numerics.pairs import pair_starts
from int8cal.numerics.reference.requantize import multipliers, requantize

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


@pytest.mark.parametrize("layer", LAYERS)
def test_both_accumulations_are_those_of_the_kernels(native, haswell, vnni, layer):
    model, scales, x = convolution(*LAYERS[layer])
    (judged,) = judge_layers(model, "portable", None)
    rows = judged.rows
    starts = pair_starts("flat", rows.positions, rows.channels)
    sums, _ = compute(judged.layer, x[0], None, starts, "onnxruntime")
    factor = multipliers(INPUT_SCALE, scales, OUTPUT_SCALE)
    here, there = (machine.run([Case(model, {"x": x})])[0].first[0] for machine in (native, haswell))
    np.testing.assert_array_equal(requantize(sums.wide, factor, OUTPUT_ZERO, "uint8"), here)
    np.testing.assert_array_equal(requantize(sums.sums, factor, OUTPUT_ZERO, "uint8"), there)
    assert (here != there).any()

    found = measure_on_data(model, [judged], "portable", [Sample({"x": x[0]})]).layers[0].runtimes[0]
    assert found.runtime == "onnxruntime"
    assert found.saturated == sums.saturated.sum()
    broken = np.flatnonzero((here != there).any(axis=(0, 2, 3)))
    assert set(broken) <= set(found.channels)
    assert judged.result.unsafe_channels >= len(found.channels)
