"""AveragePools with one window."""

import numpy as np
import pytest

TEXT = "g (float[N,4,6,8] x) => (float[A,B,C,D] y) {{ c = Conv(x, W) p = AveragePool<kernel_shape = [6, 8]{more}>(c) y = Conv(p, V) }}"


@pytest.mark.parametrize(
    ("more", "goes"),
    [
        ("", True),
        (", strides = [6, 8]", True),
        (', auto_pad = "SAME_UPPER", strides = [6, 8]', True),
        (', auto_pad = "SAME_UPPER"', False),
        (", pads = [1, 0, 1, 0]", False),
    ],
)
def test_a_pool_of_the_whole_image_is_a_global_one(bench, more, goes):
    model = bench.text(TEXT.format(more=more), W=(4, 4, 1, 1), V=(4, 4, 1, 1))
    after = bench.prepared(model).model
    assert ("GlobalAveragePool" in {node.op_type for node in after.graph.node}) == goes
    for sample in bench.samples(model):
        first, second = (bench.run(each, sample.feed)["y"] for each in (model, after))
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
