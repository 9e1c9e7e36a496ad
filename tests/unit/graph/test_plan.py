import numpy as np
import pytest

FASTER = "beside floats, where its float kernel is faster"

RESIDUAL = (
    "g (float[N,4,8,8] x) => (float[N,4,8,8] y)"
    " { a = Conv(x, A) r = Relu(a) b = Conv(r, B) s = Add(b, r) y = Conv(s, C) }"
)
SHAPES = {"A": (4, 4, 1, 1), "B": (4, 4, 1, 1), "C": (4, 4, 1, 1)}


def reasons(bench, *exclude):
    prepared = bench.prepared(bench.text(RESIDUAL, **SHAPES))
    return {left.op_type: left.reason for left in bench.plan(prepared.model, exclude=exclude).unquantized}


IMAGE = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
DENSE = "g (float[4,5] x) => (float[A,C] y)"


@pytest.mark.parametrize(
    ("head", "product", "reason"),
    [
        (IMAGE, "ConvTranspose(x, T)", "no integer kernel"),
        ("g (float[5,6] x) => (float[A,C] y)", "MatMul(W, x)", "its weights are the left operand"),
        ("g (float[5,6] x) => (float[A,C] y)", "Gemm(W, x)", "its weights are the left operand"),
        ("g (float[5,6] x) => (float[A,C] y)", "Gemm <transA = 1> (x, V)", "its input is transposed"),
        (DENSE, "Gemm <beta = 0.5> (x, V, x)", "its bias is not constant"),
        ("g (float[4,5] x) => (float[A] y)", "MatMul(L, x)", "its weights are the left operand"),
        ("g (float[5] x) => (float y)", "MatMul(x, K)", "its weights are a vector"),
    ],
)
def test_a_layer_that_stays_float_says_which_operand_keeps_it_there(bench, head, product, reason):
    weights = {"T": (4, 3, 2, 2), "W": (7, 5), "V": (5, 5), "L": (4,), "K": (5,)}
    plan = bench.plan(bench.text(f"{head} {{ c = {product} y = Tanh(c) }}", **weights))
    assert plan.layers == ()
    (left,) = plan.unquantized
    assert reason in left.reason


def test_openvino_leaves_a_transposed_convolution_with_groups_in_float(bench):
    def layers(group):
        model = bench.text(f"{IMAGE} {{ y = ConvTranspose <group = {group}> (x, T) }}", T=(4, 3, 2, 2))
        return {target: len(bench.plan(model, target=target).layers) for target in ("portable", "openvino", "tensorrt")}

    assert layers(1) == {"portable": 0, "openvino": 1, "tensorrt": 1}
    assert layers(2) == {"portable": 0, "openvino": 0, "tensorrt": 1}


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


def groups_of(bench, body, **weights):
    """What shares a scale, for each tensor that is quantized in a graph on an image."""
    model = bench.text(f"g (float[N,4,8,8] x) => (float[A,C,D,E] y) {{ {body} }}", **weights)
    return {each.tensor: each.group for each in bench.plan(model).tensors}


PARTS = {"W": (8, 4, 1, 1), "V": (8, 4, 1, 1), "P": (4, 4, 1, 1), "R": (4, 12, 1, 1), "F": (4, 16, 1, 1)}
TWICE = {"by": np.array([1, 1, 2, 2], np.float32)}


def test_parts_of_a_split_stay_integer_and_share_its_scale(bench):
    shared = groups_of(
        bench, "c = Conv(x, W) a, b = Split <axis = 1> (c) d = Conv(a, P) e = Conv(b, P) y = Add(d, e)", **PARTS
    )
    assert shared["a"] == shared["b"] == shared["c"]


def test_a_split_of_which_one_part_is_read_in_float_stays_float(bench):
    shared = groups_of(
        bench,
        "c = Conv(x, W) a, b = Split <axis = 1> (c) t = Tanh(b) d = Conv <pads = [1, 1, 2, 2]> (a, Z) y = Add(d, t)",
        **PARTS,
        Z=(4, 4, 4, 4),
    )
    assert shared["a"] != shared["c"]
    assert "b" not in shared


def test_a_part_that_a_layer_reads_too_takes_no_scale_of_a_concat(bench):
    """The layer would read the part in codes as coarse as the widest branch of the Concat asks for."""
    shared = groups_of(
        bench,
        "c = Conv(x, W) a, b = Split <axis = 1> (c) d = Conv(b, P) j = Concat <axis = 1> (a, b, d) y = Conv(j, R)",
        **PARTS,
    )
    assert shared["a"] == shared["b"] == shared["c"] != shared["j"]
    assert shared["d"] == shared["j"]


def test_a_map_that_is_enlarged_for_a_concat_alone_takes_its_scale(bench):
    enlarged = 'c = Conv(x, W) u = Resize <mode = "nearest"> (c, , by) e = Resize <mode = "nearest"> (x, , by) '
    joined = "s = Conv(e, V) j = Concat <axis = 1> (u, s) y = Conv(j, F)"
    shared = groups_of(bench, enlarged + joined, **PARTS, **TWICE)
    assert shared["c"] == shared["u"] == shared["s"] == shared["j"]


def test_a_map_that_a_head_reads_too_keeps_its_scale_beside_the_concat(bench):
    text = 'c = Conv(x, W) u = Resize <mode = "nearest"> (c, , by) v = Resize <mode = "nearest"> (x, , by) '
    text += "s = Conv(v, V) j = Concat <axis = 1> (u, s) k = Conv(j, F) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (k) "
    text += "h = Conv(c, H) y = Add(p, h)"
    shared = groups_of(bench, text, **PARTS, **TWICE, H=(4, 8, 1, 1))
    assert shared["c"] == shared["u"] != shared["j"]


def test_a_smooth_resize_stays_float(bench):
    """The runtime's kernel for codes is that of nearest neighbours alone."""
    shared = groups_of(
        bench, 'c = Conv(x, W) u = Resize <mode = "linear"> (c, , by) y = Conv(u, K)', **PARTS, **TWICE, K=(4, 8, 1, 1)
    )
    assert shared["c"] != shared["u"]


SMOOTH = 'c = Conv(x, W) u = Resize <mode = "linear"> (c, , by) v = Resize <mode = "nearest"> (x, , by) s = Conv(v, V) '


def test_a_float_input_of_a_concat_beside_codes_takes_its_scale(bench):
    """The decoder of a U-Net: in float, the Concat would take the map beside it out of its codes and back."""
    shared = groups_of(bench, SMOOTH + "j = Concat <axis = 1> (u, s) y = Conv(j, F)", **PARTS, **TWICE)
    assert shared["u"] == shared["s"] == shared["j"] != shared["c"]


@pytest.mark.parametrize(
    "text",
    [
        "t = Tanh(s) j = Concat <axis = 1> (u, t) y = Conv(j, F)",
        "j = Concat <axis = 1> (u, s) t = Tanh(j) k = Conv(j, F) p = Conv(t, F) y = Add(k, p)",
        "t = Tanh(u) j = Concat <axis = 1> (u, s) k = Conv(j, F) p = Conv(t, H) y = Add(k, p)",
    ],
    ids=["no codes beside it", "a float op reads the Concat", "a float op reads the input"],
)
def test_a_float_input_of_a_concat_stays_float(bench, text):
    assert "u" not in groups_of(bench, SMOOTH + text, **PARTS, **TWICE, H=(4, 8, 1, 1))


DEEP = {"W": (8, 4, 1, 1), "D": (8, 1, 3, 3), "N": (8, 4, 3, 3), "Q": (8, 2, 3, 3), "Y": (4, 8, 1, 1)}
DEEP |= {"M": (4, 8, 3, 3), "L": (8, 4, 4, 4), "I": (8, 3, 3, 3), "O": (8, 3, 9, 9)}
DEEP |= {"U": (32, 4, 1, 1), "G": (32, 16, 3, 3), "V": (4, 32, 1, 1)}


def left_in_float(bench, body, *, channels=4, weights=DEEP, **settings):
    """Why layers of a graph on an image stay float, by node."""
    model = bench.text(f"g (float[N,{channels},16,16] x) => (float[A,C,D,E] y) {{ {body} }}", **weights)
    return {each.node: each.reason for each in bench.plan(model, **settings).unquantized if each.op_type == "Conv"}


def test_a_convolution_with_groups_stays_float_between_float_ops(bench):
    """With an activation on both sides that has no integer kernel, its Q, DQ and integer kernel take longer than it does."""
    text = "c = Conv(x, L) h = Elu(c) d = Conv <group = 8> (h, D) s = Elu(d) y = Conv(s, Y)"
    assert left_in_float(bench, text) == {"Conv_d": FASTER}
    assert left_in_float(bench, text, target="openvino") == {}


@pytest.mark.parametrize(
    ("conv", "reasons"),
    [
        ("c = Conv(t, W)", {"Conv_c": FASTER}),
        ("c = Conv(t, L)", {}),
        ("r = Relu(t) e = Conv(r, L) c = Conv(e, Y)", {}),
        ("c = Conv(x, W)", {}),
        ("s = Conv(t, E) u = Tanh(s) c = Conv(u, S)", {"Conv_c": FASTER}),
        ("s = Conv(t, E) u = Tanh(s) c = Conv(u, F)", {"Conv_c": FASTER}),
        ("s = Conv(t, E) u = Tanh(s) c = Conv(u, A)", {}),
        ("s = Conv(t, E) u = Tanh(s) c = Conv <pads = [10, 11, 10, 11]> (u, K)", {}),
    ],
    ids=[
        "few products",
        "more",
        "behind a layer",
        "of an input",
        "of one channel to one, whatever its taps",
        "of one channel to few",
        "of one channel to many",
        "of one channel with a kernel of many taps",
    ],
)
def test_a_small_convolution_stays_float_between_float_ops(bench, conv, reasons):
    """As in the filter banks of sound models: what it gains is less than Q and DQ take."""
    one = {"S": (1, 1, 9, 9), "F": (64, 1, 9, 9), "A": (200, 1, 9, 9), "K": (64, 1, 28, 19)}
    weights = DEEP | {"E": (1, 4, 9, 9)} | one
    assert left_in_float(bench, f"t = Tanh(x) {conv} y = Tanh(c)", weights=weights) == reasons
    assert left_in_float(bench, f"t = Tanh(x) {conv} y = Tanh(c)", weights=weights, target="openvino") == {}


SWISH = "{0}g = Sigmoid({0}) {0}s = Mul({0}, {0}g) "


def test_a_row_of_a_small_and_a_depthwise_convolution_behind_swishes_stays_float(bench):
    """Swishes take longer on codes than such convolutions gain, as in the first blocks of EfficientNet."""
    row = "c = Conv({}) {}d = Conv <group = 8> (cs, D) {}y = Conv(ds, Y)"
    swishes = SWISH.format("c"), SWISH.format("d")
    assert left_in_float(bench, row.format("x, W", *swishes)) == {"Conv_c": FASTER, "Conv_d": FASTER}
    assert left_in_float(bench, row.format("x, L", *swishes)) == {}
    assert left_in_float(bench, row.format("x, W", *swishes), target="tensorrt") == {}


@pytest.mark.parametrize(
    "text",
    [
        "cg = Sigmoid(c) cs = Mul(c, cg) d = Conv <group = 8> (cs, D) y = Relu(d)",
        "cg = Sigmoid(c) cs = Mul(c, cg) d = Conv <group = 8> (cs, D) dg = Sigmoid(d) ds = Mul(d, dg) k = Conv(cs, Y) m = Conv(ds, Y) r = GlobalAveragePool(k) y = Add(r, m)",
        "r = Relu(c) cg = Sigmoid(c) cs = Mul(c, cg) d = Conv <group = 8> (cs, D) dg = Sigmoid(d) ds = Mul(d, dg) k = Conv(ds, M) m = Conv(r, M) t = GlobalAveragePool(m) y = Add(t, k)",
    ],
    ids=["no swish behind it", "something else reads the swish", "something else reads what the swish is made of"],
)
def test_a_small_convolution_in_front_of_anything_but_a_row_is_int8(bench, text):
    assert left_in_float(bench, f"c = Conv(x, W) {text}") == {}


def test_a_convolution_of_an_image_stays_float_in_front_of_a_swish(bench):
    text = "c = Conv(x, I) " + SWISH.format("c") + "y = Conv(cs, Y)"
    assert left_in_float(bench, text, channels=3) == {"Conv_c": FASTER}
    assert left_in_float(bench, "c = Conv(x, I) r = Relu(c) y = Conv(r, Y)", channels=3) == {}
    assert left_in_float(bench, text, channels=3, target="openvino") == {}
    assert left_in_float(bench, text.replace("I)", "O)"), channels=3) == {}


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("c = Conv <group = 8> (t, D) d = Conv(c, S)", {"Conv_c", "Conv_d"}),
        ("c = Conv <group = 8> (t, D) r = Relu(c) d = Conv(r, S)", {"Conv_c", "Conv_d"}),
        ("c = Conv(t, S) r = Relu(c) d = Conv <group = 8> (r, D)", {"Conv_c", "Conv_d"}),
        ("c = Conv <group = 8> (t, D) d = Conv(c, N)", set()),
        ("c = Conv <group = 8> (t, D) d = Conv <group = 8> (c, D)", set()),
        ("c = Conv <group = 8> (t, D) e = Conv(c, S) f = Conv(c, S) d = Mul(e, f)", set()),
        ("a = Conv(t, N) r = Relu(a) c = Conv <group = 8> (r, D) d = Conv(c, S)", set()),
        ("c = Conv <group = 8> (t, D) a = Conv(c, S) r = Relu(a) d = Conv(r, N)", set()),
    ],
    ids=[
        "narrow groups first",
        "with an activation between them",
        "few products first",
        "more products",
        "two with narrow groups",
        "two behind one",
        "behind a layer",
        "in front of a layer",
    ],
)
def test_a_pair_of_convolutions_between_float_ops_stays_float(bench, pair, expected):
    """As in the blocks of BlazeFace: between them nothing is quantized, but around them everything."""
    weights = {"D": (8, 1, 3, 3), "S": (8, 8, 1, 1), "N": (8, 8, 3, 3), "Y": (4, 8, 3, 3)}
    text = f"h = Conv(x, N) t = Elu(h) {pair} s = Elu(d) y = Conv(s, N)"
    assert set(left_in_float(bench, text, channels=8, weights=weights)) == expected
    assert left_in_float(bench, text, channels=8, weights=weights, target="tensorrt") == {}


@pytest.mark.parametrize(
    ("behind", "reasons"),
    [
        ("s = Elu(c) y = Conv(s, Y)", {"Conv_c": FASTER}),
        ("p = MaxPool <kernel_shape = [2, 2]> (c) s = Elu(p) y = Conv(s, Y)", {"Conv_c": FASTER}),
        ("s = Elu(c) k = Conv(s, M) m = Conv(c, M) y = Add(k, m)", {}),
        ("s = LeakyRelu(c) y = Conv(s, Y)", {}),
    ],
    ids=["an activation in float", "a pool in front of it", "a layer too", "an activation on integers"],
)
def test_a_convolution_of_an_image_stays_float_in_front_of_float_ops_alone(bench, behind, reasons):
    """As those in front of a PRelu: without it there is neither a Q in front nor a DQ behind."""
    assert left_in_float(bench, f"c = Conv(x, I) {behind}", channels=3) == reasons
    assert left_in_float(bench, f"c = Conv(x, I) {behind}", channels=3, pixels=True) == {}
    assert left_in_float(bench, f"c = Conv(x, I) {behind}", channels=3, target="openvino") == {}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ((16, 3, 3, 3, 3), True),
        ((16, 8, 2, 2, 2), True),
        ((48, 8, 2, 2, 2), False),
        ((16, 16, 3, 3, 3), False),
        ((16, 8, 1, 1, 1), False),
    ],
    ids=["of an image", "of few channels", "to many channels", "of more channels", "of one tap"],
)
def test_a_convolution_in_three_dimensions_of_few_channels_stays_float_whatever_is_around_it(bench, kernel, expected):
    """Its integer kernel copies patches tap by tap, which takes longer than its float kernel takes to multiply."""
    weights = {"F": (kernel[1], 16, 1, 1, 1), "K": kernel, "L": (4, kernel[0], 1, 1, 1)}
    text = "g (float[N,16,6,6,6] x) => (float[A,C,D,E,F] y) { b = Conv(x, F) r = Relu(b) c = Conv(r, K) s = Relu(c) y = Conv(s, L) }"

    def reasons(**how):
        return {each.node: each.reason for each in bench.plan(bench.text(text, **weights), **how).unquantized}

    assert reasons() == (
        {"Conv_c": "in three dimensions, where its float kernel is faster for so few channels"} if expected else {}
    )
    assert reasons(target="openvino") == {}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [((8, 1, 3, 3), True), ((64, 1, 3, 3), False), ((64, 1, 5, 5), True), ((72, 1, 9, 9), False)],
)
def test_a_convolution_of_one_channel_of_the_input_to_few_stays_float_in_front_of_layers(bench, kernel, expected):
    """As the first one of networks for sound and for digits: its patches are copied byte by byte."""
    weights = {"K": kernel, "V": (4, kernel[0], 1, 1), "E": (1, 1, 3, 3)}
    text = "c = Conv(x, K) r = Relu(c) y = Conv(r, V)"
    assert left_in_float(bench, text, channels=1, weights=weights) == ({"Conv_c": FASTER} if expected else {})
    assert left_in_float(bench, text, channels=1, weights=weights, pixels=True) == {}
    assert left_in_float(bench, text, channels=1, weights=weights, target="tensorrt") == {}
    behind = "e = Conv(x, E) c = Conv(e, K) r = Relu(c) y = Conv(r, V)"
    assert "Conv_c" not in left_in_float(bench, behind, channels=1, weights=weights)


def test_a_convolution_that_takes_raw_pixels_is_int8_in_front_of_a_swish(bench):
    text = "c = Conv(x, I) " + SWISH.format("c") + "y = Conv(cs, Y)"
    assert left_in_float(bench, text, channels=3, pixels=True) == {}


@pytest.mark.parametrize(
    "text",
    [
        "c = Conv(x, W) h = Relu(c) d = Conv <group = 8> (h, D) s = Elu(d) y = Conv(s, Y)",
        "c = Conv(x, W) h = Elu(c) d = Conv <group = 8> (h, D) s = Relu(d) y = Conv(s, Y)",
        "c = Conv(x, W) h = Elu(c) d = Conv(h, M) s = Elu(d) y = Conv(s, W)",
        "c = Conv(x, U) h = Elu(c) d = Conv <group = 2> (h, G) s = Elu(d) y = Conv(s, V)",
    ],
    ids=["its input is codes", "its output is read as codes", "without groups", "with wide groups"],
)
def test_a_convolution_with_groups_next_to_integers_is_int8(bench, text):
    assert left_in_float(bench, text) == {}
