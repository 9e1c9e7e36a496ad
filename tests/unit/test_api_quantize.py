import numpy as np
import pytest
from onnx import numpy_helper

import int8cal
from int8cal.errors import TableError


def constants(model):
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def test_a_table_is_taken_for_other_weights_if_forced(bench):
    old, new = (bench.text("g (float[N,4] x) => (float[N,4] y) { y = MatMul(x, W) }", W=(4, 4)) for _ in range(2))
    new.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(0.9) * constants(old)["W"], "W"))
    table = int8cal.calibrate(old, [sample.feed for sample in bench.samples(old, 4)], threads=1)
    with pytest.raises(TableError, match="made for another model"):
        int8cal.quantize(new, table)
    before, after = (
        constants(each) for each in (int8cal.quantize(old, table), int8cal.quantize(new, table, force=True))
    )
    assert before.keys() == after.keys()
    other = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {before[name].dtype for name in other} == {np.dtype(np.int8)}  # other codes, with the same scales
