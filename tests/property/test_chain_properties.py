"""Rescaled chains compute the same function, and their statistics are those of the rescaled tensors."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from int8cal.calibration.engines.local import collect
from int8cal.data.sample import Sample
from int8cal.graph.chains import find_chains
from int8cal.graph.planner import make_plan
from int8cal.graph.prepare import prepare
from int8cal.graph.select import Selection
from int8cal.graph.taps import make_taps, tapped_model
from int8cal.quantization.corrections.equalization import apply_factors, scaled_tensors
from int8cal.runtime.sessions import Session, simplify

WEIGHTS = {"W": (6, 4, 3, 3), "B": (6,), "T": (4, 6, 2, 2), "P": (3, 6, 1, 1), "Q": (2, 6, 3, 3), "D": (6, 1, 3, 3)}
MATRICES = {"M": (4, 6), "E": (6,), "G": (6,), "S": (6,), "X": (6, 3), "Y": (6, 5), "Z": (6, 2), "F": (2,)}
WRITERS = {
    "conv": "c = Conv(x, W, B)",
    "transposed": "c = ConvTranspose(x, T, B)",
    "instance": "b = Conv(x, W) c = InstanceNormalization(b, G, S)",
}
STEPS = {
    "relu": "Relu({})",
    "leaky": "LeakyRelu({})",
    "pool": "MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({})",
    "mean": "AveragePool <kernel_shape = [2, 2]> ({})",
    "same": "Identity({})",
}
READERS = ("Conv({}, P)", "Conv({}, Q, F)", "Conv <group = 6> ({}, D)")
ROWS = {
    "product": "c = MatMul(x, M)",
    "biased": "d = MatMul(x, M) c = Add(d, E)",
    "norm": "d = MatMul(x, M) t = Tanh(d) c = LayerNormalization(t, G, S)",
    "affine": "d = MatMul(x, M) t = Tanh(d) u = Mul(t, G) c = Add(u, S)",
    "float": "d = MatMul(x, M) c = Tanh(d)",
}
ROW_READERS = ("MatMul({}, X)", "MatMul({}, Y)", "MatMul({}, Z)")


@st.composite
def images(draw):
    body = [WRITERS[draw(st.sampled_from(sorted(WRITERS)))]]
    ends = []
    for number, reader in enumerate(draw(st.lists(st.sampled_from(READERS), min_size=1, max_size=3, unique=True))):
        tensor = "c"
        for step in draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=2)):
            body.append(f"{tensor}{number}{step} = {STEPS[step].format(tensor)}")
            tensor = f"{tensor}{number}{step}"
        body.append(f"e{number} = {reader.format(tensor)} f{number} = Sigmoid(e{number})")
        ends.append(f"f{number}")
    head = f"g (float[1,4,8,8] x) => ({', '.join(f'float[A,C{end},D{end},E{end}] {end}' for end in ends)})"
    return f"{head} {{ {' '.join(body)} }}"


@st.composite
def rows(draw):
    body = [ROWS[draw(st.sampled_from(sorted(ROWS)))]]
    ends = []
    for number, reader in enumerate(draw(st.lists(st.sampled_from(ROW_READERS), min_size=1, max_size=3, unique=True))):
        body.append(f"e{number} = {reader.format('c')} f{number} = Sigmoid(e{number})")
        ends.append(f"f{number}")
    if draw(st.booleans()):  # somebody reads it in float too
        body.append("f9 = Abs(c)")
        ends.append("f9")
    head = f"g (float[1,5,4] x) => ({', '.join(f'float[A,B,C{end}] {end}' for end in ends)})"
    return f"{head} {{ {' '.join(body)} }}"


def ready(text, seed):
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, shape in {**WEIGHTS, **MATRICES}.items():
        if any(name in node.input for node in model.graph.node):
            array = rng.normal(scale=0.5, size=shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    prepared = prepare(model, simplify)
    plan = make_plan(prepared.model, Selection())
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return prepared, plan, Sample({"x": rng.normal(size=shape).astype(np.float32)}, "sample"), rng


def run(model, feed):
    return Session(model, threads=1, optimization="none").run(feed)


@given(st.one_of(images(), rows()), st.integers(0, 99))
@settings(deadline=None)
def test_rescaling_keeps_the_function(text, seed):
    prepared, plan, sample, rng = ready(text, seed)
    before = prepared.model.SerializeToString(deterministic=True)
    expected = run(prepared.model, sample.feed)
    chains = find_chains(prepared.model, plan)
    tensors = [name for chain in chains for name in chain.tensors]
    assert len(tensors) == len(set(tensors))
    for step in (1.0, 1 / 16):
        factors = {each.tensor: rng.integers(-6 / step, 6 / step, each.channels) * step for each in chains}
        scaled = apply_factors(prepared.model, chains, factors)
        onnx.checker.check_model(scaled)
        for name, value in run(scaled, sample.feed).items():
            if step == 1:
                np.testing.assert_array_equal(value, expected[name])
            else:
                np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-6)
    assert prepared.model.SerializeToString(deterministic=True) == before


@given(st.one_of(images(), rows()), st.integers(0, 99), st.sampled_from([1.0, 1 / 16]))
@settings(deadline=None)
def test_equalized_statistics_are_those_of_the_rescaled_model(text, seed, step):
    prepared, plan, sample, rng = ready(text, seed)
    chains = find_chains(prepared.model, plan)
    factors = {each.tensor: rng.integers(-4 / step, 4 / step, each.channels) * step for each in chains}
    scaled = apply_factors(prepared.model, chains, factors)
    axes = {name: axis for chain in chains for name, axis in zip(chain.tensors, chain.axes, strict=True)}
    for name, exponents in scaled_tensors(chains, factors).items():
        values = [run(tapped_model(model, [name]), sample.feed)[name] for model in (prepared.model, scaled)]
        shape = [1] * values[0].ndim
        shape[axes[name]] = -1
        np.testing.assert_allclose(values[1], values[0] * np.exp2(exponents).reshape(shape), rtol=1e-4, atol=1e-5)
    taps = make_taps(plan, chains)
    counted = [
        collect(model, prepared.signature, taps, [sample], model_sha256="a") for model in (prepared.model, scaled)
    ]
    for name, exponents in scaled_tensors(chains, factors).items():
        if name not in counted[0].statistics.tensors:
            continue
        made, seen = counted[0].statistics.tensors[name].equalized(exponents), counted[1].statistics.tensors[name]
        assert (made.count, made.by_channel) == (seen.count, True)
        assert (made.minimum, made.maximum) == pytest.approx((seen.minimum, seen.maximum), rel=1e-4, abs=1e-5)
        for field in ("low", "high", "mean", "mean_square"):
            left, right = (getattr(each.channels, field) for each in (made, seen))
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        if made.count > 40:  # values of a coarse bin are taken as spread evenly: its width is 6 %
            quantiles = np.array([0.1, 0.5, 0.9]) * made.count
            left, right = (
                each.histogram.centers[np.searchsorted(each.histogram.cumulative, quantiles)] for each in (made, seen)
            )
            np.testing.assert_allclose(left, right, rtol=0.13, atol=1e-3 + 0.02 * abs(seen.maximum - seen.minimum))
