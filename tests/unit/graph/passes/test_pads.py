"""Pads that name their axes."""

import numpy as np
import pytest

PADS = np.array([1, -1, 0, 2], np.int64)


@pytest.mark.parametrize("axes", [[2, 3], [-1, 1], [3, -3]])
def test_pads_of_some_axes_are_pads_of_all(bench, axes):
    text = "g (float[N,4,8,8] x) => (float[A,B,C,D] y) { c = Conv(x, W) y = Pad(c, pads, , axes) }"
    model = bench.text(text, opset=18, W=(4, 4, 1, 1), pads=PADS, axes=np.array(axes))
    prepared = bench.prepared(model).model
    (pad,) = [node for node in prepared.graph.node if node.op_type == "Pad"]
    assert len([name for name in pad.input if name]) == 2
    for sample in bench.samples(model):
        before, after = (bench.run(each, sample.feed)["y"] for each in (model, prepared))
        assert before.shape != (1, 4, 8, 8)
        assert np.array_equal(before, after)


def test_pads_that_the_data_decides_stay(bench):
    text = "g (float[N,4,8,8] x, int64[4] pads) => (float[A,B,C,D] y) { c = Conv(x, W) y = Pad(c, pads, , axes) }"
    prepared = bench.prepared(bench.text(text, opset=18, W=(4, 4, 1, 1), axes=np.array([2, 3]))).model
    (pad,) = [node for node in prepared.graph.node if node.op_type == "Pad"]
    assert pad.input[1] == "pads"
    assert pad.input[3]
