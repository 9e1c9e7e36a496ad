"""The simulation on data against onnxruntime's own exact sums, and against the instruction written out."""

from types import SimpleNamespace

import numpy as np
import pytest
from quantized_models import INPUT_SCALE, SAFE, UNSAFE, conv_codes, dynamic, feed_of, products, qdq

from int8cal.audit.on_data import INSIDE, RECURRENT, measure_on_data
from int8cal.audit.worst_case import worst_cases
from int8cal.evaluation.fusion import audit_fusion, with_names
from int8cal.graph.signature import signature_of


def samples_of(model, count=3):
    """As many full batches as asked, row by row; sequences as they are."""
    feeds = [feed_of(model, seed)["x"] for seed in range(count)]
    rows = feeds if signature_of(model).batch is None else [row[None] for feed in feeds for row in feed]
    return [SimpleNamespace(feed={"x": row}, origin="") for row in rows]


def measured(model, target="portable", count=3):
    cases = worst_cases(model, target, audit_fusion(model, with_names(model)))
    return measure_on_data(model, cases, target, samples_of(model, count), threads=1)


def codes_of(feed):
    return np.clip(np.rint(feed["x"] / INPUT_SCALE) + 128, 0, 255).astype(np.int64)


def saturating(left, right, starts):
    """s32 sums of left (M, K) by right (K, N) with saturated pairs, how many saturated by column, and exact sums."""
    exact, total = left @ right, np.zeros((len(left), right.shape[1]), np.int64)
    hits = np.zeros(right.shape[1], np.int64)
    paired = {k for start in starts for k in (start, start + 1)}
    for k in starts:
        sums = left[:, k : k + 1] * right[k] + left[:, k + 1 : k + 2] * right[k + 1]
        held = np.clip(sums, -32768, 32767)
        hits += (held != sums).sum(axis=0)
        total += held
    for k in set(range(left.shape[1])) - paired:
        total += left[:, k : k + 1] * right[k]
    return total, hits, exact


def test_a_product_is_that_of_the_instruction_written_out():
    weights = conv_codes((9, 5))
    model = qdq("MatMul", weights, [4, 9], axis=1)
    found = measured(model)
    model = qdq("MatMul", weights, [4, 9], axis=1)
    left = np.concatenate([codes_of(sample.feed) for sample in samples_of(model)])
    total, hits, exact = saturating(left, weights.astype(np.int64), range(0, 8, 2))
    (layer,) = found.layers
    (figures,) = layer.runtimes
    assert figures.saturated == hits.sum() > 0
    assert figures.channels == tuple(np.flatnonzero(hits))
    assert figures.max_error == np.abs(total - exact).max()
    assert figures.pair_sums == 12 * 4 * 5
    assert (found.samples, found.saturated, found.channels) == (12, hits.sum(), np.count_nonzero(hits))


def test_a_convolution_is_that_of_the_instruction_written_out_for_both_runtimes():
    weights = conv_codes((5, 3, 3, 3))
    model = qdq("Conv", weights, [1, 3, 6, 6], axis=0)
    found = measured(model)
    patches = np.concatenate([
        np.stack([codes_of(sample.feed)[0, :, i : i + 3, j : j + 3].transpose(1, 2, 0).ravel() for i in range(4) for j in range(4)])
        for sample in samples_of(model)
    ])  # fmt: skip
    rows = weights.transpose(2, 3, 1, 0).reshape(27, 5).astype(np.int64)
    by_runtime = {each.runtime: each for each in found.layers[0].runtimes}
    for runtime, starts in (("onnxruntime", range(0, 26, 2)), ("onednn", range(0, 27, 3))):
        total, hits, exact = saturating(patches, rows, starts)
        assert by_runtime[runtime].saturated == hits.sum() > 0
        assert by_runtime[runtime].max_error == np.abs(total - exact).max()
    assert [each.runtime for each in measured(model, "x86-avx2").layers[0].runtimes] == ["onnxruntime"]


@pytest.mark.parametrize("name", sorted(set(UNSAFE) - {"DynamicQuantizeLSTM"}))
def test_every_form_is_simulated(name):
    found = measured(UNSAFE[name]())
    (layer,) = found.layers
    assert not layer.why
    assert all(each.pair_sums > 0 for each in layer.runtimes)
    steps = [each.max_error_steps for each in layer.runtimes]
    assert all(
        (step is None)
        == (name in {"gemm, float output", "MatMulInteger", "MatMulInteger, scale elsewhere", "DynamicQuantizeMatMul"})
        for step in steps
    )


def test_a_product_of_two_activations_is_simulated():
    found = measured(products())
    (layer,) = found.layers
    assert layer.runtimes[0].pair_sums == 3 * 4 * 4 * 4


@pytest.mark.parametrize("name", ["small codes", "depthwise", "unsigned"])
def test_what_is_safe_is_not_computed(name):
    found = measured(SAFE[name]())
    assert (found.layers, found.saturated, found.samples) == ((), 0, 3)


def test_what_stays_inside_a_kernel_is_said():
    found = measured(UNSAFE["DynamicQuantizeLSTM"]())
    assert {layer.why for layer in found.layers} == {RECURRENT}
    assert INSIDE != RECURRENT


def test_dynamic_quantization_takes_the_codes_of_the_op_itself():
    weights = conv_codes((9, 5))
    one = measured(dynamic("MatMulInteger", weights, [4, 9]))
    other = measured(dynamic("DynamicQuantizeMatMul", weights, [4, 9]))
    assert one.layers[0].runtimes[0].saturated == other.layers[0].runtimes[0].saturated > 0
