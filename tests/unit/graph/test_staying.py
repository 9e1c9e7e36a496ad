from int8cal.graph.staying import float_nodes


def kinds(bench, text, **weights):
    prepared = bench.prepared(bench.text(text, **weights))
    return [node.op_type for node in float_nodes(prepared.model, bench.plan(prepared.model))]


def test_layers_and_the_activation_that_a_q_takes_in_are_not_float_and_everything_else_is(bench):
    found = kinds(
        bench,
        """net (float[N,8,6,6] x) => (float[N,8,6,6] y) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            r = Relu(c)
            d = Conv<pads = [1, 1, 1, 1]>(r, w)
            e = Erf(d)
            y = Softmax(e)
        }""",
        w=(8, 8, 3, 3),
    )
    assert found == ["Erf", "Softmax"]


def test_arithmetic_on_shapes_is_none_of_them(bench):
    found = kinds(
        bench,
        """net (float[N,M] x) => (float[N,8] y) {
            s = Shape(x)
            k = Cast<to = 7>(s)
            t = Erf(x)
            f = Reshape(t, k)
            y = MatMul(f, w)
        }""",
        w=(8, 8),
    )
    assert set(found) <= {"Erf", "Reshape"}
    assert "Erf" in found


def test_a_relu_behind_an_add_and_what_only_moves_values_are_none_of_them(bench):
    found = kinds(
        bench,
        """net (float[N,8,6,6] x) => (float[N,8,6,6] y) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            d = Conv<pads = [1, 1, 1, 1]>(c, w)
            a = Add(c, d)
            r = Relu(a)
            e = Conv<pads = [1, 1, 1, 1]>(r, w)
            s = Softmax(e)
            y = Transpose<perm = [0, 1, 3, 2]>(s)
        }""",
        w=(8, 8, 3, 3),
    )
    assert found == ["Softmax"]
