"""A repaired model cannot saturate, means the same, and is otherwise the same."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import numpy_helper
from quantized_models import SAFE, UNSAFE, Graph, conv_codes, feed_of, qdq, quantized_input

from int8cal.audit.repair import repair
from int8cal.audit.worst_case import audit_saturation
from int8cal.evaluation.fusion import audit_fusion, with_names
from int8cal.runtime.sessions import Session

# What a model that can saturate means shows a CPU without VNNI only with the runtime's slower, exact products.
EXACT = {"session.x64quantprecision": "1"}
CODES_ONLY = {"conv, old opset", "conv, weight zero point", "matmul of a stack", "MatMulInteger, scale elsewhere"}


def fusion_of(model):
    return audit_fusion(model, with_names(model))


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def sqnr(x, y):
    return 10 * np.log10(np.square(x).sum() / max(np.square(x - y).sum(), 1e-12))


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("target", ["portable", "x86-avx2"])
def test_a_repaired_model_audits_clean_and_means_the_same(name, target):
    model = UNSAFE[name]()
    before = model.SerializeToString()
    fusion = fusion_of(model)
    fixed, repairs = repair(model, target, fusion)
    assert model.SerializeToString() == before
    onnx.checker.check_model(fixed, full_check=name not in {"QGemm", "QGemm, transposed"})
    after = fusion_of(fixed)
    assert audit_saturation(fixed, target, after).unsafe_channels == 0
    assert after.integer >= fusion.integer
    changed = [each for each in repairs if each.how is not None]
    assert bool(changed) == (audit_saturation(model, target, fusion).unsafe_channels > 0)
    assert all((each.how == "codes") == (name in CODES_ONLY) for each in changed)
    assert all(each.sqnr_db > (10 if each.how == "codes" else 35) for each in changed)
    feed = feed_of(model)
    x, y = Session(model, entries=EXACT).run(feed)["y"], Session(fixed).run(feed)["y"]
    assert sqnr(x, y) > (10 if name in CODES_ONLY else 28)


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_model_is_left_alone(name):
    model = SAFE[name]()
    fixed, repairs = repair(model, "portable", fusion_of(model))
    assert fixed.SerializeToString() == model.SerializeToString()
    assert repairs == ()


@pytest.mark.parametrize("axis", [0, None])
def test_only_unsafe_channels_change_and_everything_else_keeps_its_bytes(axis):
    codes = conv_codes((4, 6, 3, 3), low=-60, high=60)
    codes[2, :2, 1, 1] = 127
    model = qdq("Conv", codes, [1, 6, 8, 8], axis=axis)
    fixed, (done,) = repair(model, "portable", fusion_of(model))
    old, new = constants(model), constants(fixed)
    assert done.channels == 1
    assert set(old) == set(new)
    kept = [0, 1, 3]
    assert np.array_equal(new["w_q"][kept], codes[kept])
    assert not np.array_equal(new["w_q"][2], codes[2])
    assert np.array_equal(new["w_s"][kept], np.broadcast_to(old["w_s"], 4)[kept])
    assert np.array_equal(new["b_q"][kept], old["b_q"][kept])
    same = set(old) - {"w_q", "w_s", "w_z", "b_q", "b_s", "b_z"}
    assert all(np.array_equal(old[name], new[name]) for name in same)
    assert len(fixed.graph.node) == len(model.graph.node)


def test_the_bias_keeps_its_value():
    model = UNSAFE["conv per channel"]()
    fixed, _ = repair(model, "portable", fusion_of(model))
    old, new = constants(model), constants(fixed)
    assert not np.array_equal(old["b_q"], new["b_q"])
    assert np.allclose(old["b_q"] * old["b_s"], new["b_q"] * new["b_s"], rtol=0, atol=new["b_s"].max() / 2)
    assert np.array_equal(new["b_s"], np.float32(1 / 64) * new["w_s"])


def test_weights_that_two_layers_share_are_repaired_in_each():
    graph = Graph()
    q, s, z = quantized_input(graph)
    w = [graph.constant("w", conv_codes((8, 8))), graph.constant("w_s", np.float32(0.01)), graph.constant("w_z", np.int8(0))]  # fmt: skip
    shared = graph.node("DequantizeLinear", w, ["w_d"])
    last = graph.node("DequantizeLinear", [q, s, z], ["d"])
    for index in range(2):
        product = graph.node("MatMul", [last, shared], [f"p{index}"])
        codes = graph.node("QuantizeLinear", [product, s, z], [f"c{index}"])
        last = graph.node("DequantizeLinear", [codes, s, z], [f"y{index}" if index == 0 else "y"])
    model = graph.model([3, 8])
    fixed, repairs = repair(model, "portable", fusion_of(model))
    assert [each.how for each in repairs] == ["scales", "scales"]
    onnx.checker.check_model(fixed, full_check=True)
    assert audit_saturation(fixed, "portable", fusion_of(fixed)).unsafe_channels == 0
    # the runtime's exact products cannot be had for weights that are shared
    x, y = Session(model, optimization="none").run(feed_of(model))["y"], Session(fixed).run(feed_of(model))["y"]
    assert sqnr(x, y) > 25


def test_one_of_two_readers_may_be_exact_and_keeps_the_old_weights():
    graph = Graph()
    codes = conv_codes((4, 4, 1, 1))
    q, s, z = quantized_input(graph)
    w = [graph.constant("w", codes), graph.constant("w_s", np.float32(0.01)), graph.constant("w_z", np.int8(0))]
    shared = graph.node("DequantizeLinear", w, ["w_d"])
    data = graph.node("DequantizeLinear", [q, s, z], ["d"])
    graph.node("Conv", [data, shared], ["p"])
    graph.node("QuantizeLinear", ["p", s, z], ["c"])
    graph.node("DequantizeLinear", ["c", s, z], ["e"])
    graph.node("Mul", ["e", shared], ["y"])  # the weights as they are, in float
    model = graph.model([4, 4, 1, 1])
    fixed, _ = repair(model, "portable", fusion_of(model))
    assert np.array_equal(constants(fixed)["w"], codes)
    assert audit_saturation(fixed, "portable", fusion_of(fixed)).unsafe_channels == 0


def test_the_same_model_gives_the_same_bytes():
    model = UNSAFE["conv per channel"]()
    first, second = (repair(model, "portable", fusion_of(model))[0].SerializeToString(deterministic=True) for _ in "12")
    assert first == second


def test_floats_behind_q_and_dq_become_codes():
    model = UNSAFE["conv, floats behind Q and DQ"]()
    fixed, _ = repair(model, "portable", fusion_of(model))
    assert "w" not in constants(fixed)
    assert [node.op_type for node in fixed.graph.node].count("QuantizeLinear") == 2


@settings(max_examples=30)
@given(
    codes=hnp.arrays(np.int8, st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))),
    axis=st.sampled_from([0, None]),
    op=st.sampled_from(["Conv", "ConvTranspose"]),
    target=st.sampled_from(["portable", "x86-avx2"]),
)
def test_any_fixed_model_audits_clean(codes, axis, op, target):
    weights = codes if op == "Conv" else np.ascontiguousarray(codes.swapaxes(0, 1))
    model = qdq(op, weights, [1, codes.shape[1], 5, 5], axis=axis if op == "Conv" or axis is None else 1)
    fixed, repairs = repair(model, target, None)
    assert audit_saturation(fixed, target, None).unsafe_channels == 0
    assert bool(repairs) == (audit_saturation(model, target, None).unsafe_channels > 0)
    onnx.checker.check_model(fixed, full_check=True)
