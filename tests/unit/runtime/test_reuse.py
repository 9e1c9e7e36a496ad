"""Outputs that are written into the same memory again."""

import numpy as np
import onnx
import pytest

from int8cal.errors import DataError
from int8cal.runtime.batching import ReusedOutputs
from int8cal.runtime.sessions import Session
from int8cal.threads import in_order


def session(body, inputs="float[N,3] x", outputs="float[N,3] y"):
    return Session(
        onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{{body}}}')
    )


def feed(*rows):
    return {"x": np.array(rows, np.float32)}


def test_every_run_gives_its_own_values():
    runs = ReusedOutputs(session("y = Neg(x)"))
    for value in (1.0, 2.0, 3.0, 4.0):
        np.testing.assert_array_equal(runs.run(feed([value, 0, 1]))["y"], [[-value, 0, -1]])


def test_the_memory_is_the_same_from_the_second_run_on():
    runs = ReusedOutputs(session("y = Neg(x)"))
    places = [runs.run(feed([value, 0, 1]), ["y"])["y"].ctypes.data for value in (1, 2, 3)]
    assert places[1] == places[2]


def test_another_shape_gets_memory_of_its_own():
    runs = ReusedOutputs(session("y = Neg(x)"))
    for rows in ([[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3], [4, 5, 6]], [[4, 5, 6], [7, 8, 9]], [[1, 1, 1]]):
        np.testing.assert_array_equal(runs.run(feed(*rows))["y"], -np.array(rows, np.float32))


def test_a_shape_that_the_data_decide_is_found_out():
    model = session("n = NonZero(x)\n t = Transpose(n)\n y = GatherND(x, t)", outputs="float[M] y")
    runs = ReusedOutputs(model)
    for row in ([1, 0, 2], [3, 0, 4], [1, 2, 3], [0, 0, 5], [1, 2, 0]):
        np.testing.assert_array_equal(runs.run(feed(row))["y"], [value for value in row if value])


def test_a_kernel_that_fails_says_so():
    runs = ReusedOutputs(session("y = Reshape(x, s)", "float[N,3] x, int64[1] s", "float[M] y"))
    good = {**feed([1, 2, 3]), "s": np.array([3])}
    for _ in range(2):
        np.testing.assert_array_equal(runs.run(good)["y"], [1, 2, 3])
    with pytest.raises(DataError, match="inference failed"):
        runs.run({**feed([1, 2, 3]), "s": np.array([7])})
    np.testing.assert_array_equal(runs.run(good)["y"], [1, 2, 3])


def test_values_last_as_many_runs_as_asked_for():
    runs = ReusedOutputs(session("y = Neg(x)"))
    runs.run(feed([0, 0, 0]))
    for depth in (3, 5, 2, 4):
        runs.keep(depth)
        for start in range(0, 3 * depth, depth):
            found = [runs.run(feed([start + index, 0, 0]))["y"] for index in range(depth)]
            assert [int(values[0, 0]) for values in found] == [-start - index for index in range(depth)]


def test_a_single_number_stays_one():
    runs = ReusedOutputs(session("y = ReduceSum <keepdims = 0> (x)", outputs="float y"))
    assert [runs.run(feed([1, 2, 3]))["y"].shape for _ in range(4)] == [()] * 4


def test_runs_at_the_same_time_have_memory_of_their_own():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[N,3] x) => (float[N,3] y) {y = Neg(x)}'
    )
    runs = ReusedOutputs(Session(model, threads=2, at_once=2))
    assert runs.at_once == 2
    runs.keep(8)
    for first in range(0, 64, 8):
        values = range(first, first + 8)
        found = [*in_order(lambda value: runs.run(feed([value, 0, 1]))["y"], values, 2)]
        assert [row[0, 0] for row in found] == [-value for value in values]
