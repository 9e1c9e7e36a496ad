import numpy as np
import pytest

from int8cal.graph.chains import find_chains
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps
from int8cal.quantization.corrections.equalization import apply_factors

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
    _, (chain,) = chains(bench, IMAGE, body, **W, **V, B=(8,), S=(8, 1, 1))
    assert (chain.node, [layer.node for layer in chain.readers], chain.tensors) == ("Conv_c", ["Conv_y"], tensors)
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
    assert [(chain.node, chain.readers[0].node) for chain in found] == [("Conv_c", "Conv_d"), ("Conv_d", "Conv_y")]


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("c = Conv(x, W) r = Clip(c, zero, six) y = Conv(r, V)", {"zero": 0.0, "six": 6.0}),
        ("c = Conv(x, W) r = Sigmoid(c) y = Conv(r, V)", {}),
        ("c = Conv(x, W) t = Transpose <perm = [0, 2, 1, 3]> (c) y = Conv(t, V6)", {"V6": (3, 6, 1, 1)}),
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


def test_an_addition_of_constants_between_products_scales_with_the_channels(bench):
    rows = ROWS.replace("[N,", "[N,5,")
    body = "c = MatMul(x, W) a = Add(c, B) y = MatMul(a, V)"
    (chain,) = chains(bench, rows, body, W=(4, 8), B=(5, 8), V=(8, 3))[1]
    assert ([carrier.name for carrier in chain.carriers], chain.tensors) == (["W", "B"], ("c", "a"))


def test_the_bias_of_a_product_is_part_of_the_chain(bench):
    rows = ROWS.replace("[N,", "[N,5,")
    body = "c = MatMul(x, W) a = Add(B, c) r = Relu(a) y = MatMul(r, V)"
    (chain,) = chains(bench, rows, body, W=(4, 8), B=(8,), V=(8, 3))[1]
    assert ([carrier.name for carrier in chain.carriers], chain.tensors) == (["W", "B"], ("c", "a", "r"))


ATTENTION = "g (float[2,5,8] x) => (float[A,B,C] y)"
NORM = {"G": (8,), "H": (8,)}
QKV = {"Q": (8, 4), "K": (8, 4), "V": (8, 6)}
HEADS = "q = MatMul({t}, Q) k = MatMul({t}, K) v = MatMul({t}, V) y = Concat <axis = -1> (q, k, v)"
DECOMPOSED = (
    "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Mul(d, d) w = ReduceMean <axes = [-1]> (p) e = Add(w, tiny) "
    "r = Sqrt(e) u = Div(d, r) g = Mul(u, G) n = Add(g, H) "
)


def carriers(chain):
    return [(carrier.name, carrier.trailing) for carrier in chain.carriers]


def readers(chain):
    return sorted(layer.node for layer in chain.readers)


def test_a_normalization_takes_the_factors_of_all_that_read_it(bench):
    body = "n = LayerNormalization(x, G, H) " + HEADS.format(t="n")
    plan, (chain,) = chains(bench, ATTENTION, body, **NORM, **QKV)
    assert readers(chain) == ["MatMul_k", "MatMul_q", "MatMul_v"]
    assert carriers(chain) == [("G", 0), ("H", 0)]
    assert (chain.tensors, chain.axes, chain.tensor, chain.channels, chain.inserted) == (("n",), (-1,), "n", 8, False)
    tap = next(tap for tap in make_taps(plan, (chain,)) if tap.tensor == "n")
    assert (tap.channel_axis, tap.channels, tap.equalizable) == (-1, 8, True)


@pytest.mark.newest  # older versions of onnxruntime do not know this opset
def test_a_normalization_by_the_root_mean_square_takes_factors(bench):
    body = "n = RMSNormalization <axis = -1> (x, G) " + HEADS.format(t="n")
    model = bench.prepared(bench.text(f"{ATTENTION} {{ {body} }}", opset=23, G=(8,), **QKV)).model
    (chain,) = find_chains(model, make_plan(model, Selection()))
    assert readers(chain) == ["MatMul_k", "MatMul_q", "MatMul_v"]
    assert (carriers(chain), chain.inserted) == ([("G", 0)], False)
    scaled = apply_factors(model, find_chains(model, make_plan(model, Selection())), {"n": np.arange(8.0) - 4})
    assert [node.op_type for node in scaled.graph.node] == [node.op_type for node in model.graph.node]
    feed = {"x": np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)}
    np.testing.assert_allclose(bench.run(scaled, feed)["y"], bench.run(model, feed)["y"], rtol=1e-5, atol=1e-6)


def test_a_normalization_written_out_is_one_too(bench):
    _, (chain,) = chains(bench, ATTENTION, DECOMPOSED + HEADS.format(t="n"), tiny=1e-5, **NORM, **QKV)
    assert readers(chain) == ["MatMul_k", "MatMul_q", "MatMul_v"]
    assert carriers(chain) == [("G", 0), ("H", 0)]
    assert chain.tensors == ("g", "n")


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("n = LayerNormalization(x, G, H) q = MatMul(n, S) y = Add(q, n)", {"S": (8, 8), **NORM}),  # a residual
        ("n = Mul(x, half) s = Tanh(n) y = MatMul(s, S)", {"S": (8, 8), "half": 0.5}),  # nothing that scales with it
        ("u = Erf(x) v = Mul(x, u) n = Mul(v, half) y = MatMul(n, S)", {"S": (8, 8), "half": 0.5}),  # a Gelu stays one
    ],
)
def test_a_mul_is_inserted_where_no_constants_can_take_the_factors(bench, body, weights):
    _, (chain,) = chains(bench, ATTENTION, body, **weights)
    assert chain.inserted
    assert (len(chain.readers), chain.layer, chain.tensors) == (1, None, (chain.tensor,))


@pytest.mark.parametrize(
    ("head", "body", "weights"),
    [
        (ATTENTION[:-1] + ", float[A,B,C] n)", "n = Tanh(x) y = MatMul(n, S)", {"S": (8, 8)}),
        (ATTENTION, "n = Tanh(x) q = MatMul(n, S) r = MatMul(n, S) y = Add(q, r)", {"S": (8, 8)}),
        (ATTENTION, "y = MatMul(x, S)", {"S": (8, 8)}),
        (IMAGE, "c = Sigmoid(x) y = Conv(c, V4)", {"V4": (3, 4, 1, 1)}),
    ],
    ids=["graph output", "shared weight", "graph input", "convolution"],
)
def test_no_mul_is_inserted(bench, head, body, weights):
    assert chains(bench, head, body, **weights)[1] == ()


def test_every_branch_of_a_block_is_a_reader(bench):
    body = (
        "c = Conv(x, W, B) r = Relu(c) a = Conv(r, V) b = Conv(r, V2) "
        "m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r) d = Conv(m, V3) y = Concat <axis = 1> (a, b, d)"
    )
    _, (chain,) = chains(bench, IMAGE, body, **W, B=(8,), V=(3, 8, 1, 1), V2=(2, 8, 1, 1), V3=(5, 8, 1, 1))
    assert readers(chain) == ["Conv_a", "Conv_b", "Conv_d"]
    assert chain.tensors == ("c", "r", "m")
    assert chain.tensor == chain.readers[0].input


@pytest.mark.parametrize(
    "body",
    [
        "c = Conv(x, W) r = Relu(c) a = Conv(r, V) z = Sigmoid(r) y = Concat <axis = 1> (a, z)",
        "c = Conv(x, W) r = Relu(c) a = Conv(r, V) b = Conv(r, V) y = Concat <axis = 1> (a, b)",
        "c = Conv(x, W) r = Relu(c) a = Conv(r, V) y = Concat <axis = 1> (a, r)",
    ],
    ids=["a float reader", "a shared weight", "a concatenation"],
)
def test_one_reader_that_would_notice_spoils_a_chain(bench, body):
    assert chains(bench, IMAGE, body, **W, **V)[1] == ()


def test_channels_are_followed_where_tensors_change_their_shape(bench):
    head = "g (float[N,4,8,8] x) => (float[A,C] y)"
    body = "c = Conv(x, W) g = GlobalAveragePool(c) f = Flatten(g) y = Gemm(f, F)"
    _, (chain,) = chains(bench, head, body, **W, F=(8, 3))
    assert (chain.tensors, chain.axes) == (("c", "g", "f"), (1, 1, -1))
    body = "n = LayerNormalization(x, G, H) f = Reshape(n, rows) y = Gemm(f, F)"
    head = "g (float[2,5,8] x) => (float[A,C] y)"
    _, (chain,) = chains(bench, head, body, **NORM, F=(8, 3), rows=np.array([-1, 8]))
    assert (chain.tensors, chain.axes) == (("n", "f"), (-1, -1))
    body = "n = LayerNormalization(x, G, H) f = Reshape(n, rows) y = MatMul(f, F)"
    _, found = chains(bench, ATTENTION, body, **NORM, F=(4, 3), rows=np.array([2, 10, 4]))
    assert [chain.inserted for chain in found] == [True]


def test_constants_per_channel_are_written_by_more_than_layers(bench):
    more = {"M": (8, 1, 1), "A": (8, 1, 1), "T": (4, 8, 2, 2)}
    body = "c = Conv(x, W) s = Sigmoid(c) m = Mul(s, M) a = Add(m, A) y = Conv(a, V)"
    _, (chain,) = chains(bench, IMAGE, body, **W, **V, **more)
    assert carriers(chain) == [("M", 2), ("A", 2)]
    body = "c = Conv(x, W) n = InstanceNormalization(c, G, H) y = Conv(n, V)"
    _, (chain,) = chains(bench, IMAGE, body, **W, **V, **NORM)
    assert carriers(chain) == [("G", 0), ("H", 0)]
    body = "c = ConvTranspose(x, T, B) y = Conv(c, V)"
    _, (chain,) = chains(bench, IMAGE, body, **V, **more, B=(8,))
    assert carriers(chain) == [("T", 2), ("B", 0)]


def test_what_prepares_raw_pixels_is_left_to_them(bench):
    body = "m = Mul(x, M) a = Add(m, A) y = Conv(a, V4)"
    assert chains(bench, IMAGE, body, V4=(3, 4, 1, 1), M=(4, 1, 1), A=(4, 1, 1))[1] == ()


def test_a_constant_with_a_second_reader_keeps_its_value(bench):
    body = "n = LayerNormalization(x, G, H) q = MatMul(n, S) m = Mul(x, G) t = Add(q, m) y = MatMul(t, U)"
    _, found = chains(bench, ATTENTION, body, **NORM, S=(8, 8), U=(8, 3))
    assert all(chain.inserted for chain in found)
