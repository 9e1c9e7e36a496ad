"""An Expand that its reader does by itself goes, and no other."""

import numpy as np
import pytest

HEAD = "g (float[{}] x, float[{}] g) => (float[A,B,C,D] y)"
SAME = np.array([2, 3, 8, 8])

# name -> (dimensions of x, of the gate, body, constants)
FUTILE = {
    "a gate": ("2,3,8,8", "2,3,1,1", "e = Expand(g, s) y = Mul(x, e)", {"s": SAME}),
    "on the left": ("2,3,8,8", "3,1,1", "e = Expand(g, s) y = Div(e, x)", {"s": SAME}),
    "the shape of the other": ("N,3,8,8", "N,3,1,1", "h = Shape(x) e = Expand(g, h) y = Sub(x, e)", {}),
    "read twice": ("2,3,8,8", "2,3,1,1", "e = Expand(g, s) m = Mul(x, e) y = Add(m, e)", {"s": SAME}),
}
NEEDED = {
    "the reader has another shape": ("1,3,8,8", "2,3,1,1", "e = Expand(g, s) y = Mul(x, e)", {"s": SAME}),
    "a batch that may be one": ("N,3,8,8", "M,3,1,1", "h = Shape(g) e = Expand(g, s) y = Mul(x, e)", {"s": SAME}),
    "its reader does not broadcast": (
        "2,3,8,8",
        "2,3,1,1",
        "e = Expand(g, s) y = Concat <axis = 1> (x, e)",
        {"s": SAME},
    ),
    "one of two readers does not": (
        "2,3,8,8",
        "2,3,1,1",
        "e = Expand(g, s) t = Mul(x, e) y = Concat <axis = 1> (t, e)",
        {"s": SAME},
    ),
    "it is an output": ("2,3,8,8", "2,3,1,1", "y = Expand(g, s) m = Mul(x, y)", {"s": SAME}),
}


def folded(bench, dims, gate, body, constants):
    return bench.folded(bench.text(f"{HEAD.format(dims, gate)} {{ {body} }}", **constants), data_prop=True)


def count(model):
    return [node.op_type for node in model.graph.node].count("Expand")


@pytest.mark.parametrize("name", FUTILE)
def test_an_expand_to_the_shape_of_the_other_operand_goes(bench, name):
    before, after = folded(bench, *FUTILE[name])
    assert (count(before), count(after)) == (1, 0)
    random = np.random.default_rng(0)
    gate = (3, 1, 1) if FUTILE[name][1].count(",") == 2 else (2, 3, 1, 1)
    feed = {
        "x": random.uniform(1, 2, (2, 3, 8, 8)).astype(np.float32),
        "g": random.normal(size=gate).astype(np.float32),
    }
    first, second = (bench.run(model, feed, "none")["y"] for model in (before, after))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("name", NEEDED)
def test_any_other_stays(bench, name):
    before, after = folded(bench, *NEEDED[name])
    assert (count(before), count(after)) == (1, 1)
