"""graph/ops.py against the installed onnxruntime: where the table promises an integer kernel, the audit finds one."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from int8cal.evaluation.fusion import audit_fusion
from int8cal.graph.ops import ONNXRUNTIME_CPU
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model

CONV = {"W": (8, 4, 3, 3), "B": (8,)}
BEHIND_CONV = {  # op -> text between two convolutions, its constants, channels it leaves
    "Add": ("d = Conv <dilations = [2, 2], pads = [1, 1, 1, 1]> (x, U) m = Add(c, d)", {"U": (8, 4, 3, 3)}, 8),
    "Mul": ("d = Conv(x, U) m = Mul(c, d)", {"U": (8, 4, 3, 3)}, 8),
    "Concat": ("d = Conv(x, U) m = Concat <axis = 1> (c, d)", {"U": (8, 4, 3, 3)}, 16),
    "Sigmoid": ("m = Sigmoid(c)", {}, 8),
    "HardSigmoid": ("m = HardSigmoid <alpha = 0.3> (c)", {}, 8),
    "LeakyRelu": ("m = LeakyRelu <alpha = 0.1> (c)", {}, 8),
    "Softmax": ("m = Softmax <axis = 1> (c)", {}, 8),
    "AveragePool": ("m = AveragePool <kernel_shape = [2, 2]> (c)", {}, 8),
    "GlobalAveragePool": ("m = GlobalAveragePool(c)", {}, 8),
    # its factors below 0 do not pass the Relu
    "BatchNormalization": (
        "r = Relu(c) m = BatchNormalization(r, g, b, n, v)",
        {**dict.fromkeys("gbn", np.linspace(-1, 1, 8)), "v": np.ones(8)},
        8,
    ),
    "MaxPool": ("m = MaxPool <kernel_shape = [2, 2]> (c)", {}, 8),
    "Reshape": ("m = Reshape(c, s)", {"s": np.array([0, 4, 12, 6])}, 4),
    "Transpose": ("m = Transpose <perm = [0, 2, 3, 1]> (c)", {}, 6),
    "Slice": ("m = Slice(c, s, e, a)", {"s": np.array([0]), "e": np.array([4]), "a": np.array([1])}, 4),
    "DepthToSpace": ("m = DepthToSpace <blocksize = 2> (c)", {}, 2),
    "Pad": ("m = Pad(c, p)", {"p": np.array([0, 0, 1, 0, 0, 2, 1, 3])}, 10),
    "Resize": ('m = Resize <mode = "nearest"> (c, , by)', {"by": np.array([1, 1, 2, 2], np.float32)}, 8),
}
# op -> type of the output, what is behind the first convolution, its constants
JOINED = {
    **{
        op: ("float[A,C,D,E]", f"{body} y = Conv(m, V)", {**weights, "V": (3, channels, 1, 1)})
        for op, (body, weights, channels) in BEHIND_CONV.items()
    },
    "Flatten": ("float[A,C]", "m = Flatten(c) y = Gemm(m, V)", {"V": (288, 3)}),
    "Squeeze": (
        "float[A,C]",
        "p = GlobalAveragePool(c) m = Squeeze(p, a) y = Gemm(m, V)",
        {"a": np.array([2, 3]), "V": (8, 3)},
    ),
    "Unsqueeze": ("float[A,C,D,E,F]", "m = Unsqueeze(c, a) y = Conv(m, V)", {"a": np.array([2]), "V": (3, 8, 1, 1, 1)}),
    "Split": (
        "float[A,C,D,E]",
        "m, n = Split <axis = 1> (c) d = Conv(n, U) j = Concat <axis = 1> (d, m) y = Conv(j, V)",
        {"U": (4, 4, 1, 1), "V": (3, 8, 1, 1)},
    ),
}
LINEAR = {
    "Conv": ("g (float[N,4,8,8] x) => (float[A,C,D,E] y)", "y = Conv(x, W, B)", CONV),
    "Gemm": ("g (float[N,4] x) => (float[A,C] y)", "y = Gemm(x, W, B)", {"W": (4, 6), "B": (6,)}),
    "MatMul": ("g (float[N,4] x) => (float[A,C] y)", "y = MatMul(x, W)", {"W": (4, 6)}),
}


def audit(bench, head, body, weights, **settings):
    _, plan, _, built = bench.quantized(bench.text(f"{head} {{ {body} }}", **weights), **settings)
    return plan, audit_fusion(built.model)


@pytest.mark.parametrize("op", JOINED)
def test_an_op_behind_a_convolution_runs_on_integers(bench, op):
    output, body, weights = JOINED[op]
    plan, found = audit(
        bench, f"g (float[N,4,8,8] x) => ({output} y)", f"c = Conv(x, W, B) {body}", {**CONV, **weights}
    )
    assert f"{op}_m" in plan.integer_nodes
    assert found.nodes == ()


@pytest.mark.parametrize("op", LINEAR)
def test_a_layer_alone_runs_on_integers(bench, op):
    plan, found = audit(bench, *LINEAR[op])
    assert plan.integer_nodes == {f"{op}_y"}
    assert found.nodes == ()


def test_a_transposed_convolution_has_no_kernel_as_the_table_says(bench):
    _, found = audit(
        bench,
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "y = ConvTranspose(x, W)",
        {"W": (4, 3, 2, 2)},
        target="openvino",  # whose model has Q and DQ around it
    )
    assert ONNXRUNTIME_CPU["ConvTranspose"].no_kernel
    assert found.integer == 0


def test_every_op_of_the_table_is_tried_here():
    tried = {*JOINED, *LINEAR, "ConvTranspose"}
    assert tried == set(ONNXRUNTIME_CPU)


@pytest.mark.parametrize("high", [0.3, 0.7, 1.0, 1.1, 2.3, 6.0])
@pytest.mark.parametrize("method", ["max", "mse"])
def test_the_range_absorbs_a_clip_that_starts_at_zero(bench, high, method):
    _, found = audit(
        bench,
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        "c = Conv(x, W, B) r = Clip(c, lo, hi) y = Conv(r, V)",
        {**CONV, "lo": np.float32(0), "hi": np.float32(high), "V": (3, 8, 1, 1)},
        method=method,
    )
    assert found.nodes == ()


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (1.0, 2.0), (-2.0, -1.0), (None, 1.0)])
def test_behind_any_other_clip_the_convolution_still_runs_on_integers(bench, low, high):
    weights = {**CONV, "hi": np.float32(high)} | ({} if low is None else {"lo": np.float32(low)})
    _, found = audit(
        bench,
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        f"c = Conv(x, W, B) y = Clip(c, {'' if low is None else 'lo'}, hi)",
        weights,
    )
    assert [node.op_type for node in found.nodes] == ["Clip"]


def test_a_layer_that_a_branch_reads_still_runs_on_integers(bench):
    _, found = audit(
        bench,
        "g (float[N,4,8,8] x, bool k) => (float[A,C,D,E] y)",
        """c = Conv(x, W, B)
        y = If (k) <
            then_branch = t () => (float[N,8,6,6] p) { p = Abs(c) },
            else_branch = e () => (float[N,8,6,6] q) { q = Neg(c) }>""",
        CONV,
    )
    assert "Conv" not in [node.op_type for node in found.nodes]
    assert found.integer > 0


@pytest.mark.parametrize("second", ["", "e = Relu(d)"])
@pytest.mark.parametrize("first", ["", "m = MaxPool <kernel_shape = [1, 1]> (r)"])
def test_a_concat_does_not_take_the_relu_from_a_convolution(bench, first, second):
    inputs = f"{'m' if first else 'r'}, {'e' if second else 'd'}"
    _, found = audit(
        bench,
        "g (float[N,4,8,8] x) => (float[A,C,D,E] y)",
        f"""c = Conv(x, W, B) r = Relu(c) {first}
        d = Conv(x, U) {second} a = Concat <axis = 1> ({inputs}) y = Conv(a, V)""",
        {**CONV, "U": (8, 4, 3, 3), "V": (3, 16, 1, 1)},
    )
    assert found.nodes == ()


ADDED = {  # what an Add behind a product adds: text, constants
    "a graph input": ("b", {}),
    "the product's own input": ("x", {}),
    "a matrix": ("B", {"B": np.ones((3, 6))}),
    "a column": ("B", {"B": np.ones((3, 1))}),
    "a number": ("B", {"B": np.float32(1)}),
    "a row": ("B", {"B": np.ones(6)}),
    "a row that is not finite": ("B", {"B": np.array([0, 0, -np.inf, 0, 0, 0])}),
}


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize("exclude", [(), ("op:Add",)])
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("dims", ["6", "N,6", "3,6", "2,3,6", "N,2,3,6"])
def test_a_product_runs_on_integers_whatever_is_added_to_it(bench, dims, added, exclude, activations):
    operand, weights = ADDED[added]
    rank = max(dims.count(",") + 1, np.ndim(weights.get("B", 0)) if operand == "B" else 0)
    model = bench.text(
        f"g (float[{dims}] x, float[{dims}] b) => (float[{','.join('PQRS'[:rank])}] y)"
        f" {{ m = MatMul(x, W) a = Add(m, {operand}) y = Tanh(a) }}",
        **{"W": (6, 6)} | weights,
    )
    prepared = bench.prepared(model)
    found = {node.op_type for node in prepared.model.graph.node}
    if "Gemm" in found and not np.isfinite(weights.get("B", 0)).all():
        return  # there is no s32 for it
    plan = make_plan(prepared.model, Selection((), exclude if "Add" in found else ()))
    group = prepared.signature.batch if isinstance(prepared.signature.batch, int) else 0
    samples = bench.samples(model, 2 * max(group, 1))
    if group:
        samples = [replace(each, feed={name: value[:1] for name, value in each.feed.items()}) for each in samples]
    built = build_model(prepared.model, plan, bench.table(prepared, plan, samples=samples, activations=activations))
    onnx.checker.check_model(built.model, full_check=True)
    assert {node.op_type for node in audit_fusion(built.model).nodes} <= {"Add", "Tanh"}


def test_a_dense_layer_written_as_product_and_sum_runs_on_integers(bench):
    plan, found = audit(
        bench,
        "g (float[N,4] x) => (float[A,C] y)",
        "m = MatMul(x, W) y = Add(m, B)",
        {"W": (4, 6), "B": (6,)},
    )
    assert plan.integer_nodes == {"MatMul_m"}
    assert found.nodes == ()
