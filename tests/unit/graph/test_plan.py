RESIDUAL = (
    "g (float[N,4,8,8] x) => (float[N,4,8,8] y)"
    " { a = Conv(x, A) r = Relu(a) b = Conv(r, B) s = Add(b, r) y = Conv(s, C) }"
)
SHAPES = {"A": (4, 4, 1, 1), "B": (4, 4, 1, 1), "C": (4, 4, 1, 1)}


def reasons(bench, *exclude):
    prepared = bench.prepared(bench.text(RESIDUAL, **SHAPES))
    return {left.op_type: left.reason for left in bench.plan(prepared.model, exclude=exclude).left}


def test_an_excluded_node_between_quantized_neighbours_says_that_it_may_be_fused(bench):
    assert "the runtime may fuse it" in reasons(bench, "op:Add")["Add"]


def test_an_excluded_node_with_a_float_neighbour_is_plainly_excluded(bench):
    found = reasons(bench, "op:Add", "op:Conv")
    assert found["Conv"] == "excluded by the user"
    assert "may fuse" not in found.get("Add", "")


def test_excluding_an_activation_says_which_node_it_belongs_to(bench):
    prepared = bench.prepared(bench.text(RESIDUAL, **SHAPES))
    first = next(node.name for node in prepared.model.graph.node if node.op_type == "Conv")
    assert reasons(bench, "op:Relu")["Relu"] == f"excluding it has no effect, it belongs to {first}"
