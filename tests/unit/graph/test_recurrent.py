"""Which recurrent nodes a plan takes, and why it leaves others."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.errors import UsageError
from int8cal.graph.layers import KERNEL_TARGETS, KERNELS

HEAD = "g (float[6,1,5] x) => (float[A,B,C,D] y)"
SHAPES = {"W": (1, 16, 5), "R": (1, 16, 4), "B": (1, 32)}


def lstm(bench, head=HEAD, node="y = LSTM <hidden_size = 4> (x, W, R, B)", **weights):
    return bench.text(f"{head} {{ {node} }}", opset=14, **{**SHAPES, **weights})


def only(plan):
    (each,) = plan.recurrent
    return each


def reason(plan):
    assert plan.recurrent == ()
    (left,) = plan.unquantized
    return left.reason


def test_an_lstm_with_constant_weights_is_taken(bench):
    each = only(bench.plan(lstm(bench)))
    assert (each.op_type, each.weight, each.recurrence, each.rows, each.no_kernel) == ("LSTM", "W", "R", 16, "")


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("RNN", 1)])
def test_ops_without_a_kernel_are_taken_for_their_weights(bench, op, gates):
    weights = {"W": (1, 4 * gates, 5), "R": (1, 4 * gates, 4), "B": (1, 8 * gates)}
    each = only(bench.plan(lstm(bench, node=f"y = {op} <hidden_size = 4> (x, W, R, B)", **weights)))
    assert (each.rows, each.no_kernel) == (4 * gates, f"the runtime has no integer kernel for {op}")


def test_rows_count_all_directions(bench):
    node = 'y = LSTM <hidden_size = 3, direction = "bidirectional"> (x, W, R)'
    assert only(bench.plan(lstm(bench, node=node, W=(2, 12, 5), R=(2, 12, 3)))).rows == 24


def test_weights_that_folding_makes_constant_are_taken(bench):
    node = "v = Concat <axis = 1> (V, V) y = LSTM <hidden_size = 4> (x, v, R, B)"
    assert only(bench.plan(lstm(bench, node=node, V=(1, 8, 5)))).weight == "v"


def test_weights_from_outside_leave_it_float(bench):
    plan = bench.plan(lstm(bench, "g (float[6,1,5] x, float[1,16,5] w) => (float[A,B,C,D] y)",
                           "y = LSTM <hidden_size = 4> (x, w, R, B)"))  # fmt: skip
    assert reason(plan) == "its weights are not constant"


def test_half_precision_is_converted(bench):
    weights = {name: np.zeros(shape, np.float16) for name, shape in SHAPES.items()}
    plan = bench.plan(lstm(bench, "g (float16[6,1,5] x) => (float16[A,B,C,D] y)", **weights))
    assert [each.op_type for each in plan.recurrent] == ["LSTM"]


def test_shapes_that_are_no_gates_are_named(bench):
    model = lstm(bench, R=(1, 16, 5))
    assert reason(bench.plan(model)) == "its weights have shapes (1, 16, 5) and (1, 16, 5)"


def test_the_batch_of_several_sequences_keeps_the_cell_in_float(bench):
    head = "g (float[6,3,5] x) => (float[A,B,C,D] y)"
    expected = "with a batch of 3, DynamicQuantizeLSTM depends on the number of threads"
    assert only(bench.plan(lstm(bench, head))).no_kernel == expected
    assert only(bench.plan(lstm(bench, "g (float[6,N,5] x) => (float[A,B,C,D] y)"))).no_kernel == ""


@pytest.mark.parametrize("pattern", ["op:LSTM", "LSTM_*"])
def test_a_pattern_leaves_it_out(bench, pattern):
    assert reason(bench.plan(lstm(bench), exclude=(pattern,))) == "excluded by the user"


def test_include_takes_it_alone(bench):
    node = "y = LSTM <hidden_size = 4> (x, W, R, B) z = MatMul(y, V)"
    model = lstm(bench, "g (float[6,1,5] x) => (float[A,B,C,D] z)", node, V=(4, 2))
    plan = bench.plan(model, include=("op:LSTM",))
    assert (plan.layers, len(plan.recurrent)) == ((), 1)


def test_a_pattern_that_matches_no_node_is_an_error(bench):
    with pytest.raises(UsageError, match="'op:GRU' matches no node"):
        bench.plan(lstm(bench), exclude=("op:GRU",))


def test_a_node_of_another_domain_is_none(bench):
    nodes = [helper.make_node("LSTM", ["x", "W", "R"], ["y"], domain="mine", name="other")]
    from int8cal.graph.planner import make_plan
    from int8cal.graph.select import Selection

    graph = helper.make_graph(nodes, "g", [], [], [numpy_helper.from_array(np.zeros((1, 4, 1), np.float32), "W")])
    assert make_plan(helper.make_model(graph), Selection()).recurrent == ()


def test_the_kernels_exist_in_the_runtime_and_the_targets_are_those_of_the_settings():
    from typing import get_args

    from int8cal.job import TargetName

    assert set(get_args(TargetName)) >= KERNEL_TARGETS
    assert set(KERNELS) == {"LSTM"}
    assert not onnx.defs.has("DynamicQuantizeLSTM")  # so a model of ONNX alone cannot hold it
