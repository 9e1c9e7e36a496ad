"""Whole networks and odd data: what `calibrate` makes of them runs, errs no more than its scales allow, and is told truly."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fuzz import seeds
from fuzz.bounds import UnboundedError, bounded
from fuzz.graphs import networks, samples
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from int8cal import calibrate, evaluate, quantize
from int8cal.errors import DataError, Int8calError, ModelError, StatisticsError
from int8cal.graph.prepare import prepare
from int8cal.numerics.fills import ENDS
from int8cal.quantization.table_file import table_to_json
from int8cal.runtime.sessions import simplify

# a network is told by its seed: what the explain phase varies says nothing
LOOSE = settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=list(HealthCheck),
    phases=[each for each in Phase if each is not Phase.explain],
)
pytestmark = pytest.mark.slow
CALM = {"threads": 1, "batch_size": 1}
# float32 on both ways: terms in another order, float16 where the model has it
ROUNDING = {np.float32: 2e-5, np.float16: 5e-3}


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def outputs_of(model, feeds):
    """Outputs of each sample, by name, float64."""
    running = session(model)
    names = [each.name for each in running.get_outputs()]
    return [
        {n: np.asarray(v, np.float64) for n, v in zip(names, running.run(None, feed), strict=True)} for feed in feeds
    ]


def dtype_of(model):
    return helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)


def quantized(model, feeds):
    """The table and the int8 model; None for a refusal, which has to be one of the model or of its values."""
    try:
        table = calibrate(model, feeds, **CALM)
        return table, quantize(model, table)
    except (ModelError, StatisticsError) as error:
        refusal = error
    assert refusal.do
    event(f"refused: {type(refusal).__name__}")
    if isinstance(refusal, StatisticsError):  # the float model itself leaves what can be counted
        assert not all_finite(model, feeds), str(refusal)
    else:
        assert "that can be quantized" in str(refusal)
    return None


@st.composite
def calibrated(draw):
    """A network, its samples, and the table and the int8 model that come of them."""
    model, inputs = draw(networks())
    feeds = draw(samples(inputs, dtype_of(model)))
    made = quantized(model, feeds)
    assume(made is not None)
    return model, feeds, *made


def shown(model):
    """The model with every tensor among its outputs."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    known = {value.name for value in result.graph.output}
    for node in result.graph.node:
        result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name and name not in known)
    return result


def all_finite(model, feeds):
    """Whether every value of the float model is far from what float32 can hold."""
    arrays = [value for each in outputs_of(shown(model), feeds) for value in each.values()]
    return all(np.isfinite(array).all() and np.abs(array).max(initial=0) < 1e37 for array in arrays)


def require_scales_of_the_table(table, int8):
    """Each Q of an activation has the scale and the zero point that the table says of its tensor."""
    constants = {each.name: numpy_helper.to_array(each) for each in int8.graph.initializer}
    entries = {(np.float32(each.scale), each.zero_point) for each in table.tensors.values()}
    for node in int8.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero = (constants[name] for name in node.input[1:3])
            entry = table.tensors.get(node.input[0].removesuffix("_float"))
            if entry is not None:
                assert (np.float32(scale), int(zero)) == (np.float32(entry.scale), entry.zero_point), node.name
            assert (np.float32(scale), int(zero)) in entries, node.name


@LOOSE
@given(calibrated())
def test_the_error_of_an_int8_model_is_what_its_scales_allow(drawn):
    model, feeds, table, int8 = drawn
    require_scales_of_the_table(table, int8)
    found = outputs_of(int8, feeds)
    assert [{n: v.tobytes() for n, v in each.items()} for each in outputs_of(int8, feeds)] == [
        {n: v.tobytes() for n, v in each.items()} for each in found
    ]
    floats = outputs_of(model, feeds)
    dtypes = {each.name: helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type) for each in int8.graph.output}
    for exact, got in zip(floats, found, strict=True):
        for name, value in got.items():
            assert value.shape == exact[name].shape
    try:
        allowed = outputs_of(bounded(int8), feeds)
    except UnboundedError as unknown:
        event(f"no bound for {unknown}")
        require_finite(floats, found, dtypes)
        return
    event("bounded")
    slack = ROUNDING[dtype_of(model).type]
    require_within(allowed, found, slack)
    require_finite(
        [
            {name: np.abs(each[name]) + each[f"{name}!"] * (1 + slack) for name in got}
            for each, got in zip(allowed, found, strict=True)
        ],
        found,
        dtypes,
    )
    if not table.corrections:  # which move weights and biases by more than their rounding
        event("weights bounded")
        require_within(outputs_of(bounded(int8, "weights"), feeds), floats, slack)


def require_finite(largest, found, dtypes):
    """What cannot be near the end of the output's type is finite: its values are float64 here, whatever their type was."""
    for most, got in zip(largest, found, strict=True):
        for name, value in got.items():
            assert np.isfinite(value[np.abs(most[name]) < 0.5 * np.finfo(dtypes[name]).max]).all(), name


def require_within(allowed, found, slack):
    for bound, got in zip(allowed, found, strict=True):
        for name, value in got.items():
            largest = np.abs(bound[name]).max(initial=0)
            room = bound[f"{name}!"] * (1 + slack) + slack * largest + 1e-37
            known = np.isfinite(room) & np.isfinite(value)  # beyond what the type holds there is no bound
            assert (np.abs(value[known] - bound[name][known]) <= room[known]).all(), name


@pytest.mark.parametrize("name", ["image", "b", "features"])
def test_a_wrong_scale_breaks_the_bound(name):
    model, feeds = seeds.network(), [{"image": each[None]} for each in seeds.images()]
    int8 = quantize(model, calibrate(model, feeds, **CALM))
    allowed = outputs_of(bounded(int8), feeds)
    require_within(allowed, outputs_of(int8, feeds), 2e-5)
    # what reads the codes takes them for three times as large as they are
    scales = {each.name: each for each in int8.graph.initializer}
    wrong = numpy_helper.from_array(numpy_helper.to_array(scales[f"{name}_scale"]) * np.float32(3), "wrong")
    int8.graph.initializer.append(wrong)
    for node in int8.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[1] == f"{name}_scale":
            node.input[1] = "wrong"
    with pytest.raises(AssertionError):
        require_within(allowed, outputs_of(int8, feeds), 2e-5)


@LOOSE
@given(calibrated())
def test_what_a_table_and_a_report_say_is_so(drawn):
    model, feeds, table, int8 = drawn
    again = calibrate(model, feeds, **CALM)
    assert table_to_json(again) == table_to_json(table)
    assert quantize(model, again).SerializeToString(deterministic=True) == int8.SerializeToString(deterministic=True)
    slack = ROUNDING[dtype_of(model).type]
    if not {"equalization", "channel_copies"} & {each.key for each in table.corrections}:
        seen = outputs_of(shown(prepare(model, simplify).model), feeds)
        for name, entry in table.tensors.items():
            values = [
                each[name] if name in each else np.float64(feed[name]) for each, feed in zip(seen, feeds, strict=True)
            ]
            require_true(name, entry, np.concatenate([each.reshape(-1) for each in values]), slack)
    require_true_report(model, int8, feeds, slack)


def require_true(name, entry, x, slack):
    """The observed range and the clipped fraction of a tensor."""
    near = slack * np.abs(x).max() + 1e-37
    assert abs(entry.observed[0] - x.min()) <= near, name
    assert abs(entry.observed[1] - x.max()) <= near, name
    assert abs(entry.amax - np.abs(x).max()) <= near, name
    outside = [
        np.mean((x < entry.low - room) | (x > entry.high + room))
        for room in (0.02 * max(abs(entry.low), abs(entry.high)) + near, 0)
    ]
    within = [
        np.mean((x < entry.low + room) | (x > entry.high - room))
        for room in (0.02 * max(abs(entry.low), abs(entry.high)) + near,)
    ]
    assert outside[0] - 1e-9 <= entry.clipped <= within[0] + 1e-9, name


def may_be_masked(x):
    """Whether the largest value is a hundred times all others, and stands there twice or is what masks are filled with."""
    sizes = np.unique(np.abs(x)).astype(np.float32)
    if sizes.size < 2 or sizes[-1] < max(1e3, 99 * sizes[-2]):
        return False
    has_one_digit = "." not in np.format_float_scientific(sizes[-1], trim="-")
    return np.count_nonzero(np.abs(x) == sizes[-1]) > 1 or has_one_digit or sizes[-1] in ENDS


def require_true_report(model, int8, feeds, slack):
    """SQNR, cosine and the largest error of each output, computed from what both models give."""
    try:
        report = evaluate(model, int8, feeds, latency=False, threads=1)
    except Int8calError as error:
        event(f"no report: {error.what[:60]}")
        return
    event("report")
    floats, ints = outputs_of(model, feeds), outputs_of(int8, feeds)
    if not all(np.isfinite(value).all() for each in floats for value in each.values()):
        event("beyond float16, which a report compares in float32")
        return
    worst = 0.0
    for name, figures in report.evaluation.outputs.items():
        x = np.concatenate([each[name].reshape(-1) for each in floats])
        y = np.concatenate([each[name].reshape(-1) for each in ints])
        noise, signal = np.sum((x - y) ** 2), np.sum(x**2)
        worst = max(worst, np.abs(x - y).max(initial=0))
        if any(may_be_masked(each[name]) for each in floats):
            event("an output that may be masked")
            continue
        if figures.sqnr_db is None:
            assert not signal or not np.isfinite(signal), name
        elif figures.sqnr_db < (60 if slack < 1e-3 else 40):  # above, the float model's own rounding is part of it
            assert figures.sqnr_db == pytest.approx(10 * np.log10(signal / noise), abs=0.1), name
            assert figures.cosine is None or figures.cosine == pytest.approx(
                x @ y / np.sqrt(signal * np.sum(y**2)), abs=1e-4
            )
    largest = max((np.abs(each[name]).max(initial=0) for each in floats for name in each), default=0)
    assert report.evaluation.metrics.max_abs_error == pytest.approx(worst, rel=1e-3, abs=5 * slack * largest + 1e-37)


@LOOSE
@given(st.data(), networks(most=3), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_a_sample_that_makes_a_tensor_infinite_is_named(data, drawn, value):
    model, inputs = drawn
    feeds = data.draw(samples(inputs, dtype_of(model)))
    assume(all_finite(model, feeds))
    made = quantized(model, feeds)
    assume(made is not None)
    bad = data.draw(st.integers(0, len(feeds) - 1))
    name = data.draw(st.sampled_from(list(inputs)))
    feeds[bad][name].reshape(-1)[data.draw(st.integers(0, feeds[bad][name].size - 1))] = value
    seen = outputs_of(shown(prepare(model, simplify).model), feeds[bad : bad + 1])[0] | feeds[bad]
    assume(not all(np.isfinite(seen[each]).all() for each in made[0].tensors))
    with pytest.raises((StatisticsError, DataError)) as caught:
        calibrate(model, feeds, **CALM)
    assert f"data[{bad}]" in str(caught.value)
    assert caught.value.do
