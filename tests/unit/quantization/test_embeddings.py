"""Embeddings in int8: which tables there are, what is written for them, and what the runtime makes of it."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from int8cal.errors import NonFiniteError, TableError
from int8cal.evaluation.fusion import audit_fusion
from int8cal.graph.embeddings import LEAST_VALUES
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.embeddings import coding_error
from int8cal.quantization.table import CalibrationTable, TableSettings

WORDS = np.random.default_rng(3).normal(size=(200, 16)).astype(np.float32)
LOOKUP = "g (int64[N,S] ids) => (float[N,S,16] y) { y = Gather (W, ids) }"


def built(bench, model, forms=None, selection=None, weights=None):
    prepared = bench.prepared(model)
    plan = make_plan(prepared.model, selection or Selection())
    forms = {each.node: "rows" for each in plan.embeddings} if forms is None else forms
    settings = TableSettings({"weights": "paired", "embeddings": forms})
    table = CalibrationTable({}, {}, settings, {}, weights or {})
    return plan, table, build_model(prepared.model, plan, table)


def run(model, **feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def arrays(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def rounded(values, axis):
    scales = (np.abs(values).max(axis=axis, keepdims=True) / 127).astype(np.float32)
    return np.rint(values / scales) * scales


@pytest.mark.parametrize(("form", "axis"), [("rows", 1), ("columns", 0)])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 4)])
def test_looked_up_rows_are_those_of_the_rounded_table(bench, form, axis, shape):
    free = ",".join("NS"[: len(shape)])
    text = (
        f"g (int64[{free}] ids) => (float[{','.join([*free.split(','), '16']).strip(',')}] y) {{ y = Gather (W, ids) }}"
    )
    plan, _, result = built(bench, bench.text(text, W=WORDS), {"Gather_y": form})
    ids = np.random.default_rng(1).integers(-200, 200, shape)
    (found,) = run(result.model, ids=ids)
    np.testing.assert_allclose(found, rounded(WORDS, axis)[ids], rtol=1e-6, atol=1e-7)
    assert found.shape == (*shape, 16)
    assert [each.dims for each in plan.embeddings] == [(200, 16)]
    if shape:  # the checker takes no output without dimensions
        onnx.checker.check_model(result.model, full_check=True)
    assert not any(value.dtype == np.float32 and value.size > 200 for value in arrays(result.model).values())


def test_a_table_that_several_gathers_read_is_stored_once(bench):
    text = "g (int64[N] a, int64[N] b) => (float[N,16] y) { p = Gather (W, a) q = Gather (W, b) y = Sub (p, q) }"
    plan, _, result = built(bench, bench.text(text, W=WORDS))
    assert len(plan.embeddings) == 1
    assert sorted(value.dtype.name for value in arrays(result.model).values()) == ["float32", "int8"]
    a, b = np.arange(4), np.arange(4) + 100
    table = rounded(WORDS, 1)
    np.testing.assert_allclose(run(result.model, a=a, b=b)[0], table[a] - table[b], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_positions_that_are_added_are_int8_in_the_file_and_float_when_loaded(bench, op):
    positions = np.random.default_rng(2).normal(size=(1, 80, 16)).astype(np.float32)
    text = f"g (float[N,80,16] x) => (float[N,80,16] y) {{ y = {op} (x, W) }}"
    plan, _, result = built(bench, bench.text(text, W=positions))
    assert [each.gathers for each in plan.embeddings] == [()]
    x = np.zeros((2, 80, 16), np.float32)
    sign = 1 if op == "Add" else -1
    expected = np.broadcast_to(sign * rounded(positions, 2), x.shape)
    np.testing.assert_allclose(run(result.model, x=x)[0], expected, rtol=1e-6)
    (only,) = audit_fusion(result.model).nodes
    assert (only.op_type, only.reason) == (op, "only its weights are quantized")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (int64[N] i) => (float[A,B] y) { y = Gather <axis = 1> (W, i) }", "does not look up rows"),
        (
            "g (int64[N] i, float[200,16] x) => (float[N,16] y, float[200,16] z) { y = Gather (W, i) z = Mul (W, x) }",
            "reads its table in float",
        ),
    ],
)
def test_what_keeps_a_table_in_float_is_told(bench, text, reason):
    plan, _, _ = built(bench, bench.text(text, W=WORDS))
    assert plan.embeddings == ()
    assert [reason in each.reason for each in plan.unquantized] == [True]


def test_small_tables_and_those_of_little_weight_stay_float(bench):
    small = np.ones((LEAST_VALUES // 16 - 1, 16), np.float32)
    assert built(bench, bench.text(LOOKUP, W=small))[0].embeddings == ()
    heavy = np.ones((16, 101 * 200), np.float32)
    text = "g (int64[N,S] ids) => (float[N,S,20200] y) { e = Gather (W, ids) y = MatMul (e, V) }"
    plan = bench.plan(bench.text(text, W=WORDS, V=heavy))
    assert plan.embeddings == ()
    assert plan.unquantized == ()


def test_matrices_of_few_experts_stay_float_and_that_is_told(bench):
    text = "g (int64[N] ids, float[N,1,24] x) => (float[N,1,24] y) { w = Gather (W, ids) y = MatMul (x, w) }"
    experts = np.random.default_rng(4).normal(size=(8, 24, 24)).astype(np.float32)
    plan = make_plan(bench.prepared(bench.text(text, W=experts)).model, Selection())
    assert plan.embeddings == ()
    (told,) = [each for each in plan.unquantized if each.op_type == "Gather"]
    assert told.reason.startswith("it holds 8 matrices")


@pytest.mark.parametrize("shape", [(1, 3000, 4), (1, 2, 8400), (8400, 1), (1, 1, 9000)])
def test_anchors_of_a_detector_and_vectors_stay_float(bench, shape):
    dims = ",".join(map(str, shape))
    plan = bench.plan(bench.text(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Add (x, W) }}", W=shape))
    assert (plan.embeddings, plan.unquantized) == ((), ())


def test_a_target_without_int8_tables_and_an_excluded_gather_are_told(bench):
    model = bench.text(LOOKUP, W=WORDS)
    plan, _, _ = built(bench, model, selection=Selection(target="tensorrt"))
    assert [each.reason for each in plan.unquantized] == ["tensorrt takes no int8 table"]
    plan, _, _ = built(bench, model, selection=Selection(exclude=("op:Gather",)))
    assert [each.reason for each in plan.unquantized] == ["excluded by the user"]


def test_the_table_holds_the_scales_and_an_edit_changes_the_model(bench):
    plan, table, result = built(bench, bench.text(LOOKUP, W=WORDS))
    table = with_weights(table, plan, result)
    (entry,) = table.weights.values()
    assert (entry.axis, entry.range, len(entry.scales)) == (0, "s8", 200)
    again = build_model(result.draft.model, plan, table)
    assert again.model.SerializeToString() == result.model.SerializeToString()
    coarse = replace(entry, scales=tuple(2 * scale for scale in entry.scales))
    edited = build_model(result.draft.model, plan, replace(table, weights={"W": coarse})).model
    assert np.abs(arrays(edited)["W_quantized"]).max() == 64
    columns = table.settings.with_embeddings(dict.fromkeys(table.settings.embeddings, "columns"))
    with pytest.raises(TableError, match="200 scales on axis 0, the model expects 16 on axis 1"):
        build_model(result.draft.model, plan, replace(table, settings=columns))


def test_a_table_of_before_leaves_them_in_float_and_one_of_another_model_is_refused(bench):
    model = bench.text(LOOKUP, W=WORDS)
    _, _, result = built(bench, model, {})
    np.testing.assert_array_equal(run(result.model, ids=np.arange(4).reshape(1, 4))[0][0], WORDS[:4])
    with pytest.raises(TableError, match="'other', which the model does not have"):
        built(bench, model, {"other": "rows"})


def test_values_that_are_not_finite_are_refused_by_name(bench):
    odd = WORDS.copy()
    odd[3, 4] = np.nan
    with pytest.raises(NonFiniteError, match="weight 'W' of node"):
        built(bench, bench.text(LOOKUP, W=odd))


def test_the_error_of_a_form_is_that_of_its_codes():
    outlier = WORDS * np.where(np.arange(16) == 5, 30, 1).astype(np.float32)
    for axis in (0, 1):
        error, signal = coding_error(outlier, axis)
        real = outlier.astype(np.float64)
        assert signal == pytest.approx(np.square(real).sum())
        assert error == pytest.approx(np.square(real - rounded(outlier, 1 - axis)).sum(), rel=1e-5)
    assert coding_error(outlier, 1)[0] < coding_error(outlier, 0)[0]


def test_a_table_tied_to_a_product_is_int8_for_both(bench):
    text = "g (int64[N] ids) => (float[N,200] y) { e = Gather (W, ids) h = Relu (e) y = Gemm <transB = 1> (h, W) }"
    prepared = bench.prepared(bench.text(text, W=WORDS))
    plan = make_plan(prepared.model, Selection())
    assert (len(plan.layers), len(plan.embeddings)) == (1, 1)
    keys = {plan.weight_key(each.node, "W") for each in (*plan.layers, *plan.embeddings)}
    assert len(keys) == 2
