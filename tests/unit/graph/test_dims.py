"""Dimensions of one name have one size, whatever is fed; what a model declares is not what is fed."""

import onnx.parser

from int8cal.graph.dims import named_dims

HEAD = '<ir_version: 8, opset_import: ["" : 17]> net '


def dims_of(text):
    return named_dims(onnx.parser.parse_model(HEAD + text))


def test_every_free_dimension_of_an_input_has_a_name_of_its_own():
    dims = dims_of("(float[N,N,4] x, float[N,4] y) => (float[N,N,4] z) { z = Add(x, y) }")
    assert dims["x"][2] == dims["y"][1] == 4
    assert len({*dims["x"][:2], dims["y"][0]}) == 3


def test_names_pass_through_what_keeps_dimensions():
    dims = dims_of(
        "(float[N,S,4] x, float[4,6] w, float[4] g) => (float[N,S,6] y) "
        "{ n = LayerNormalization(x, g) e = Erf(n) a = Add(e, x) y = MatMul(a, w) }"
    )
    assert dims["n"] == dims["e"] == dims["a"] == dims["x"]
    assert dims["y"] == (*dims["x"][:2], 6)


def test_names_pass_through_shapes_that_are_computed():
    dims = dims_of(
        """(float[N,S,8] x) => (float[N,S,8] y) <int64 zero = {0}, int64 one = {1}, int64[1] first = {0},
        int64[1] heads = {2}, int64[1] wide = {4}, int64[1] rest = {-1}> {
        shape = Shape(x)
        n = Gather(shape, zero) s = Gather(shape, one) n1 = Unsqueeze(n, first) s1 = Unsqueeze(s, first)
        split = Concat <axis = 0> (n1, s1, heads, wide) joined = Concat <axis = 0> (n1, s1, rest)
        h = Reshape(x, split) t = Transpose <perm = [0, 2, 1, 3]> (h) b = Transpose <perm = [0, 2, 1, 3]> (t)
        y = Reshape(b, joined) }"""
    )
    n, s, _ = dims["x"]
    assert (dims["h"], dims["t"], dims["y"][:2]) == ((n, s, 2, 4), (n, 2, s, 4), (n, s))


def test_a_sum_that_may_repeat_either_side_has_names_of_its_own():
    dims = dims_of("(float[N,S,4] x, float[N,S,4] y) => (float[N,S,4] z) { z = Add(x, y) w = Neg(z) }")
    assert not {*dims["z"][:2]} & {*dims["x"], *dims["y"]}
    assert dims["w"] == dims["z"]


def test_what_a_model_declares_of_inner_tensors_and_outputs_counts_for_nothing():
    model = onnx.parser.parse_model(
        HEAD + "(float[N,4] x, float[M,4] y) => (float[N,4] z) <float[N,4] a, float[N,4] b> "
        "{ a = Neg(x) b = Neg(y) z = NonZeroOf(b) }"
    )
    dims = named_dims(model)
    assert dims["a"] == dims["x"]
    assert dims["b"] == dims["y"]
    assert dims["a"][0] != dims["b"][0]
    assert "z" not in dims
    assert [value.name for value in model.graph.value_info] == ["a", "b"], "the model is not changed"


def test_what_branches_and_bodies_declare_counts_for_nothing():
    dims = dims_of(
        """(bool c, float[N,4] x, float[M,4] y) => (float[N,4] p, float[N,4] q) {
        p, q = If (c) <
            then_branch = one () => (float[K,4] a, float[K,4] b) { a = Neg(x) b = Neg(y) },
            else_branch = two () => (float[K,4] d, float[K,4] e) { d = Abs(x) e = Abs(y) }> }"""
    )
    assert dims["p"][0] != dims["q"][0]


def test_what_is_no_tensor_is_left_out():
    dims = dims_of(
        "(float[N,4] x, seq(float[K,4]) s) => (seq(float[N,4]) t, float[N,4] z) { t = SequenceConstruct(x) z = Neg(x) }"
    )
    assert dims.keys() == {"x", "z"}


def test_with_the_shapes_that_are_fed_sizes_are_numbers_as_far_as_the_data_do_not_decide_them():
    text = "(float[N,4] x) => (float[M] z) { a = Neg(x) i = NonZero(a) z = Gather(i, i) }"
    dims = named_dims(onnx.parser.parse_model(HEAD + text), {"x": (3, 4)})
    assert dims["a"] == (3, 4)
    assert dims["i"][0] == 2
    assert isinstance(dims["i"][1], str)
