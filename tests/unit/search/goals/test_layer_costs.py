"""Kernel times of an optimized graph, summed up per layer."""

import onnx

from int8cal.graph.plan import make_plan
from int8cal.graph.select import Selection
from int8cal.runtime.profile import Profile
from int8cal.search.goals.layer_costs import layer_costs, layer_links

DOMAINS = ', "com.microsoft" : 1'
TEXT = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { c = Conv(x, W) r = Relu(c) s = Sqrt(r) y = Conv(s, V) }"
FP32 = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    xr = com.microsoft.ReorderInput(x) rr = com.microsoft.Conv(xr, W) r = com.microsoft.ReorderOutput(rr)
    s = Sqrt(r) sr = com.microsoft.ReorderInput(s) yr = com.microsoft.Conv(sr, V) y = com.microsoft.ReorderOutput(yr)
}"""
FP32_TIMES = {"in1": 1.0, "Conv_c": 10.0, "out1": 2.0, "Sqrt_s": 4.0, "in2": 8.0, "Conv_y": 20.0, "out2": 16.0}


def named(model, names):
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


def profiled(bench, text, times, **weights):
    return Profile(named(bench.text(text, domains=DOMAINS, **weights), times), times)


def test_borders_count_with_the_layer_that_they_serve_and_other_nodes_with_none(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    plan = make_plan(model, Selection())
    both = profiled(bench, FP32, FP32_TIMES)
    (first, second) = layer_costs(plan, (both, model), (both, model))
    assert (first.node, first.fp32_us, first.int8_us) == ("Conv_c", 13.0, 13.0)
    assert (second.node, second.fp32_us, second.op_type) == ("Conv_y", 44.0, "Conv")


def test_a_layer_that_the_profile_does_not_know_is_left_out(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    nothing = Profile(onnx.ModelProto(), {})
    assert layer_costs(make_plan(model, Selection()), (nothing, model), (nothing, model)) == ()


def test_layers_are_linked_through_what_lies_between_them(bench):
    model = bench.prepared(bench.text(TEXT, W=(4, 4, 1, 1), V=(4, 4, 1, 1))).model
    assert layer_links(model, make_plan(model, Selection())) == (("Conv_c", "Conv_y"),)
