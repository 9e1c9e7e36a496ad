import pytest

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
        (DENSE, "Gemm(x, V, B)", "its bias is not one value per output channel"),
        ("g (float[4,5] x) => (float[A] y)", "MatMul(x, K)", "its weights are a vector"),
    ],
)
def test_a_layer_that_stays_float_says_which_operand_keeps_it_there(bench, head, product, reason):
    weights = {"T": (4, 3, 2, 2), "W": (7, 5), "V": (5, 5), "B": (4, 1), "K": (5,)}
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
