"""Islands of layers: what exchanges codes is one, what floats part are two."""

import pytest

from int8cal.graph.index import Index
from int8cal.graph.islands import ends_in_codes, find_islands

BETWEEN = """g (float[N,6,8] x) => (float[N,6,4] y) {
    f = MatMul (x, A) p = Tanh (f) m = MatMul (p, B) l = Elu (m) y = MatMul (l, C)
}"""
JOINED = """g (float[N,3,8,8] x) => (float[A,C,D,E] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, W) r = Relu (a) b = Conv <pads = [1, 1, 1, 1]> (r, U)
    s = Add (r, b) c = Conv (s, V) t = Tanh (c) y = Conv (t, T)
}"""
SHARED = "g (float[N,6,8] x) => (float[N,6,4] y) { a = MatMul (x, A) b = MatMul (x, B) y = Mul (a, b) }"
WEIGHTS = {
    "between": (BETWEEN, {"A": (8, 8), "B": (8, 8), "C": (8, 4)}),
    "joined": (JOINED, {"W": (80, 3, 3, 3), "U": (80, 80, 3, 3), "V": (80, 80, 1, 1), "T": (4, 80, 1, 1)}),
    "shared": (SHARED, {"A": (8, 4), "B": (8, 4)}),
}


def planned(bench, name):
    text, weights = WEIGHTS[name]
    model = bench.text(text, **weights)
    return Index(bench.prepared(model).model), bench.plan(model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("between", [{"MatMul_f"}, {"MatMul_m"}, {"MatMul_y"}]),
        ("joined", [{"Conv_a", "Conv_b", "Conv_c"}, {"Conv_y"}]),
        ("shared", [{"MatMul_a", "MatMul_b"}]),
    ],
)
def test_floats_part_islands_and_codes_join_them(bench, name, expected):
    index, plan = planned(bench, name)
    islands = find_islands(index, plan)
    assert [{layer.node for layer in each.layers} for each in islands] == expected


def test_every_group_of_codes_is_on_one_island_and_nodes_between_layers_are_on_theirs(bench):
    index, plan = planned(bench, "joined")
    first, second = find_islands(index, plan)
    assert first.others == ("Add_s",)
    assert second.others == ()
    assert sorted((*first.groups, *second.groups)) == sorted(plan.groups)


def test_codes_are_exchanged_with_integer_nodes_alone(bench):
    index, plan = planned(bench, "joined")
    ends = {layer.node: ends_in_codes(index, plan, layer, plan.integer_nodes) for layer in plan.layers}
    assert ends == {
        "Conv_a": (False, True), "Conv_b": (True, True), "Conv_c": (True, False), "Conv_y": (False, False)
    }  # fmt: skip
    # with nobody else on integers there is nothing to exchange
    assert {ends_in_codes(index, plan, layer, ()) for layer in plan.layers} == {(False, False)}
