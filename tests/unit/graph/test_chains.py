import pytest

from int8cal.graph.chains import find_chains
from int8cal.graph.plan import make_plan
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps

IMAGE = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
ROWS = "g (float[N,4] x) => (float[N,3] y)"
W, V = {"W": (8, 4, 3, 3)}, {"V": (3, 8, 1, 1)}


def chains(bench, head, body, *, exclude=(), **weights):
    model = bench.prepared(bench.text(f"{head} {{ {body} }}", **weights)).model
    plan = make_plan(model, Selection((), exclude))
    return plan, find_chains(model, plan)


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        ("c = Conv(x, W, B) y = Conv(c, V)", ("c",)),
        ("c = Conv(x, W, B) r = Relu(c) y = Conv(r, V)", ("c", "r")),
        ("c = Conv(x, W, B) r = LeakyRelu(c) y = Conv(r, V)", ("c", "r")),
        ("c = Conv(x, W, B) r = Relu(c) m = MaxPool<kernel_shape = [2, 2]>(r) y = Conv(m, V)", ("c", "r", "m")),
        ("c = Conv(x, W, B) g = GlobalAveragePool(c) y = Conv(g, V)", ("c", "g")),
    ],
)
def test_a_chain_runs_through_what_commutes_with_a_positive_factor(bench, body, tensors):
    _, (chain,) = chains(bench, IMAGE, body, **W, **V, B=(8,))
    assert (chain.first.node, chain.second.node, chain.tensors) == ("Conv_c", "Conv_y", tensors)
    assert chain.tensor == tensors[-1]


def test_three_layers_make_two_chains_and_depthwise_layers_count(bench):
    _, found = chains(
        bench,
        IMAGE,
        "c = Conv(x, W) d = Conv <group = 8> (c, D) y = Conv(d, V)",
        **W,
        **V,
        D=(8, 1, 3, 3),
    )
    assert [(chain.first.node, chain.second.node) for chain in found] == [("Conv_c", "Conv_d"), ("Conv_d", "Conv_y")]


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("c = Conv(x, W) r = Clip(c, zero, six) y = Conv(r, V)", {"zero": 0.0, "six": 6.0}),
        ("c = Conv(x, W) r = Sigmoid(c) y = Conv(r, V)", {}),
        ("c = Conv(x, W) t = Transpose <perm = [0, 1, 3, 2]> (c) y = Conv(t, V)", {}),
        ("c = Conv(x, W) a = Add(c, c) y = Conv(a, V)", {}),
        ("c = Conv(x, W) m, i = MaxPool<kernel_shape = [2, 2]>(c) s = Shape(i) y = Conv(m, V) z = Abs(s)", {}),
        ("c = Conv(x, W) y = ConvTranspose(c, T)", {"T": (8, 3, 2, 2)}),
    ],
)
def test_no_chain_where_the_factor_would_not_pass(bench, body, more):
    head = IMAGE.replace("y)", "y, int64[4] z)") if "z =" in body else IMAGE
    assert chains(bench, head, body, **W, **V, **more)[1] == ()


def test_no_chain_where_somebody_else_reads_the_tensor(bench):
    head = "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[A,C,D,E] z)"
    assert chains(bench, head, "c = Conv(x, W) y = Conv(c, V) z = Tanh(c)", **W, **V)[1] == ()
    assert chains(bench, head, "z = Conv(x, W) y = Conv(z, V)", **W, **V)[1] == ()


def test_no_chain_where_a_branch_reads_the_tensor(bench):
    head = "g (float[N,4,8,8] x, bool k) => (float[A,C,D,E] y, float[A,C,D,E] z)"
    branches = """z = If (k) <
        then_branch = t () => (float[N,8,6,6] p) { p = Abs(c) }, else_branch = e () => (float[N,8,6,6] q) { q = Neg(c) }>"""
    assert chains(bench, head, f"c = Conv(x, W) y = Conv(c, V) {branches}", **W, **V)[1] == ()


@pytest.mark.parametrize(
    ("body", "exclude"),
    [
        ("c = Conv(x, S) y = Conv(c, S)", ()),  # one weight, two layers
        ("c = Conv(x, W, K) d = Conv(c, D, K) y = Sigmoid(d)", ()),  # one bias, two layers
        ("c = Conv(x, S) d = Conv(c, D4) y = Conv(d, S)", ("Conv_y",)),  # one weight, and the other reader is float
    ],
)
def test_no_chain_where_weights_have_another_reader(bench, body, exclude):
    weights = {"S": (4, 4, 1, 1), "D4": (4, 4, 1, 1), "K": (8,), "D": (8, 8, 1, 1), **W}
    assert chains(bench, IMAGE, body, exclude=exclude, **weights)[1] == ()


def test_no_chain_across_a_flatten_that_mixes_channels(bench):
    head = "g (float[N,4,8,8] x) => (float[A,C] y)"
    assert chains(bench, head, "c = Conv(x, W) f = Flatten(c) y = Gemm(f, G)", **W, G=(288, 3))[1] == ()


@pytest.mark.parametrize(
    ("body", "weights", "tensors"),
    [
        ("c = Gemm(x, W, B) r = Relu(c) y = Gemm(r, V)", {"W": (4, 8), "B": (8,), "V": (8, 3)}, ("c", "r")),
        ("c = Gemm <transB = 1> (x, W) y = Gemm <transB = 1> (c, V)", {"W": (8, 4), "V": (3, 8)}, ("c",)),
        ("c = MatMul(x, W) r = Relu(c) y = MatMul(r, V)", {"W": (4, 8), "V": (8, 3)}, ("c", "r")),
    ],
)
def test_matrix_products_chain_along_their_last_axis(bench, body, weights, tensors):
    plan, (chain,) = chains(bench, ROWS, body, **weights)
    assert chain.tensors == tensors
    tap = next(tap for tap in make_taps(plan, (chain,)) if tap.tensor == chain.tensor)
    assert (tap.channel_axis, tap.channels, tap.equalizable) == (-1, 8, True)


def test_an_addition_between_products_breaks_the_chain(bench):
    rows = ROWS.replace("[N,", "[N,5,")
    body = "c = MatMul(x, W) a = Add(c, B) y = MatMul(a, V)"
    assert chains(bench, rows, body, W=(4, 8), B=(5, 8), V=(8, 3))[1] == ()


def test_the_bias_of_a_product_is_part_of_the_chain(bench):
    rows = ROWS.replace("[N,", "[N,5,")
    body = "c = MatMul(x, W) a = Add(B, c) r = Relu(a) y = MatMul(r, V)"
    (chain,) = chains(bench, rows, body, W=(4, 8), B=(8,), V=(8, 3))[1]
    assert (chain.first.bias, chain.tensors) == ("B", ("a", "r"))
