"""What each layer would take with it in float: as a plan without it says, from few plans."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from int8cal.graph.costs import float_us, layer_float_us
from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.probe.injection import sites_of
from int8cal.search.goals import optional_layers
from int8cal.search.goals.optional_layers import OptionalLayer, open_layers

CHANNELS = 4
# Each reads "{x}" and writes "{y}"; "{n}" makes names of its own.
BLOCKS = {
    "conv": "{y} = Conv({x}, W)",
    "relu": "{n}a = Conv({x}, W) {y} = Relu({n}a)",
    "clip": "{n}a = Conv({x}, W) {y} = Clip({n}a, zero, six)",
    "residual": "{n}a = Conv({x}, W) {n}b = Relu({n}a) {n}c = Conv({n}b, W) {y} = Add({n}c, {x})",
    "two layers added": "{n}a = Conv({x}, W) {n}b = Conv({x}, W) {n}c = Add({n}a, {n}b) {y} = Relu({n}c)",
    "gated": "{n}a = Conv({x}, W) {n}b = Sigmoid({n}a) {y} = Mul({n}a, {n}b)",
    "squeezed": "{n}a = GlobalAveragePool({x}) {n}b = Conv({n}a, W) {n}c = Sigmoid({n}b) {y} = Mul({x}, {n}c)",
    "joined": "{n}a = Conv({x}, W) {n}b = Concat<axis = 1>({x}, {n}a) {y} = Conv({n}b, V)",
    "pool": "{y} = MaxPool<kernel_shape = [1, 1]>({x})",
    "float": "{y} = Tanh({x})",
}


def network(bench, blocks):
    body, tensor = [], "x"
    for number, block in enumerate(blocks):
        made = "y" if number == len(blocks) - 1 else f"t{number}"
        body.append(BLOCKS[block].format(x=tensor, y=made, n=f"n{number}"))
        tensor = made
    shape = f"float[N,{CHANNELS},6,6]"
    weights = {"W": (CHANNELS, CHANNELS, 1, 1), "V": (CHANNELS, 2 * CHANNELS, 1, 1), "zero": 0.0, "six": 6.0}
    text = f"g ({shape} x) => ({shape} y) {{ {' '.join(body)} }}"
    return bench.prepared(bench.text(text, **weights)).model


def one_by_one(model, plan, elements):
    """Each layer, from a plan without it alone."""
    index, sites, found = Index(model), sites_of(model, plan), []
    scaled = {each.tensor for each in plan.tensors}
    codes = {each.tensor for each in plan.tensors if each.exclusive}
    for layer in plan.layers:
        smaller = make_plan(model, Selection(left=((layer.node, "as if"),)))
        if not scaled >= {each.tensor for each in smaller.tensors}:
            continue
        freed = codes - {each.tensor for each in smaller.tensors if each.exclusive}
        exact = {site.tensor for site in sites - sites_of(model, smaller) if site.readers == "others"}
        before, behind = ends_in_codes(index, plan, layer, smaller.integer_nodes)
        us = layer_float_us(layer, elements[layer.input], codes_before=before, codes_behind=behind)
        for name in sorted(plan.integer_nodes - smaller.integer_nodes - {layer.node, layer.bias_add}):
            us += float_us(index.nodes[name], elements)
        found.append(OptionalLayer(layer, frozenset(freed), frozenset(exact), us, layer.input not in codes))
    return tuple(found)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=14))
def test_layers_planned_together_change_what_each_changes_alone(bench, blocks):
    model = network(bench, blocks)
    plan = make_plan(model, Selection())
    elements = {each.tensor: 100.0 + number for number, each in enumerate(plan.tensors)}
    assert open_layers(model, plan, Selection(), elements, frozenset()) == one_by_one(model, plan, elements)


@pytest.mark.parametrize("block", ["relu", "residual", "squeezed", "gated"])
def test_a_longer_graph_takes_no_more_plans(bench, block, monkeypatch):
    made = []
    monkeypatch.setattr(optional_layers, "make_plan", lambda *given: (made.append(given), make_plan(*given))[1])

    def plans(count):
        made.clear()
        model = network(bench, [block] * count)
        plan = make_plan(model, Selection())
        found = open_layers(model, plan, Selection(), {each.tensor: 1.0 for each in plan.tensors}, frozenset())
        assert len(found) >= count - 1
        return len(made)

    assert plans(100) <= plans(50) + 8


def test_layers_that_must_stay_are_left_out(bench):
    model = network(bench, ["relu", "residual", "conv"])
    plan = make_plan(model, Selection())
    elements = {each.tensor: 1.0 for each in plan.tensors}
    every = open_layers(model, plan, Selection(), elements, frozenset())
    fixed = every[1].node
    without = tuple(each for each in every if each.node != fixed)
    assert open_layers(model, plan, Selection(), elements, frozenset({fixed})) == without
    assert replace(every[1], us=0.0) not in without
