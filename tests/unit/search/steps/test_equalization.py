from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from int8cal.graph.chains import find_chains
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.graph.taps import tapped_model
from int8cal.job import CalibrationSettings
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.equalization import Equalization, apply_factors, scaled_tensors
from int8cal.quantization.table import StepResult
from int8cal.search.candidate import plain_candidate
from int8cal.search.scorer import Gain
from int8cal.search.search import PARTED_BY, first_state, scored, search
from int8cal.search.steps.equalization import WeightSizes, choose_factors, predicted_noise, propose

IMAGE = "g (float[N,4,8,8] x) => (float[A,C,D,E] y)"
ROWS = "g (float[N,4] x) => (float[N,3] y)"
PAIRS = {
    "conv conv": (
        IMAGE,
        "c = Conv(x, W, B) r = Relu(c) y = Conv(r, V)",
        {"W": (8, 4, 3, 3), "B": (8,), "V": (3, 8, 3, 3)},
    ),
    "conv depthwise conv": (
        IMAGE,
        "c = Conv(x, W, B) r = LeakyRelu(c) d = Conv <group = 8> (r, D, K) s = Relu(d) y = Conv(s, V)",
        {"W": (8, 4, 1, 1), "B": (8,), "D": (8, 1, 3, 3), "K": (8,), "V": (3, 8, 1, 1)},
    ),
    "grouped": (
        IMAGE,
        "c = Conv <group = 2> (x, W) m = MaxPool <kernel_shape = [2, 2]> (c) y = Conv <group = 4> (m, V)",
        {"W": (8, 2, 3, 3), "V": (12, 2, 3, 3)},
    ),
    "depthwise with a multiplier": (
        IMAGE,
        "c = Conv(x, W) d = Conv <group = 4> (c, D) y = Conv(d, V)",
        {"W": (4, 4, 1, 1), "D": (8, 1, 3, 3), "V": (3, 8, 1, 1)},
    ),
    "average pools": (
        IMAGE,
        "c = Conv(x, W) a = AveragePool <kernel_shape = [2, 2]> (c) g = GlobalAveragePool(a) y = Conv(g, V)",
        {"W": (8, 4, 3, 3), "V": (3, 8, 1, 1)},
    ),
    "gemm gemm": (ROWS, "c = Gemm(x, W, B) r = Relu(c) y = Gemm(r, V)", {"W": (4, 8), "B": (8,), "V": (8, 3)}),
    "gemm gemm transposed": (
        ROWS,
        "c = Gemm <transB = 1> (x, W, B) r = Relu(c) y = Gemm <transB = 1> (r, V)",
        {"W": (8, 4), "B": (8,), "V": (3, 8)},
    ),
    "gemm with one bias for all": (
        ROWS,
        "c = Gemm(x, W, B) y = Gemm(c, V)",
        {"W": (4, 8), "B": (1,), "V": (8, 3)},
    ),
    "matmul matmul": (ROWS, "c = MatMul(x, W) r = Relu(c) y = MatMul(r, V)", {"W": (4, 8), "V": (8, 3)}),
}


def ready(bench, name, **changed):
    head, body, weights = PAIRS[name]
    prepared = bench.prepared(bench.text(f"{head} {{ {body} }}", **{**weights, **changed}))
    return prepared, make_plan(prepared.model, Selection())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 1])
def test_powers_of_two_leave_every_bit_of_the_output(bench, name, seed):
    prepared, plan = ready(bench, name)
    rng = np.random.default_rng(seed)
    factors = {chain.tensor: rng.integers(-6, 7, chain.channels) for chain in find_chains(prepared.model, plan)}
    assert len(factors) == (2 if "depthwise" in name else 1)
    before = prepared.model.SerializeToString(deterministic=True)
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), factors)
    assert prepared.model.SerializeToString(deterministic=True) == before
    for sample in bench.samples(prepared.model, 2):
        expected, actual = (bench.run(model, sample.feed)["y"] for model in (prepared.model, scaled))
        np.testing.assert_array_equal(actual, expected)


def test_the_tensors_between_are_the_ones_that_scale(bench):
    prepared, plan = ready(bench, "conv conv")
    exponents = np.arange(8) - 4
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), {"r": exponents})
    assert {
        name: list(value) for name, value in scaled_tensors(find_chains(prepared.model, plan), {"r": exponents}).items()
    } == {
        "c": list(exponents),
        "r": list(exponents),
    }
    feed = bench.samples(prepared.model, 1)[0].feed
    tensors = ("c", "r")
    before, after = (bench.run(tapped_model(model, tensors), feed) for model in (prepared.model, scaled))
    for name in ("c", "r"):
        np.testing.assert_array_equal(after[name], before[name] * np.exp2(exponents).reshape(1, -1, 1, 1))


def imbalanced(name, seed=3):
    """A pair whose channels differ by octaves, undone in the second layer."""
    rng = np.random.default_rng(seed)
    exponents = np.array([0, -6, -3, -7, 0, -5, -1, -4])
    factor = np.exp2(exponents)
    weights = {key: rng.normal(scale=0.5, size=shape) for key, shape in PAIRS[name][2].items()}
    if name == "conv conv":
        weights["W"] *= factor.reshape(-1, 1, 1, 1)
        weights["V"] /= factor.reshape(1, -1, 1, 1)
    elif name == "gemm gemm transposed":
        weights["W"] *= factor.reshape(-1, 1)
        weights["V"] /= factor.reshape(1, -1)
    else:
        weights["W"] *= factor
        weights["V"] /= factor.reshape(-1, 1)
    if "B" in weights:
        weights["B"] *= factor
    return exponents, weights


@pytest.mark.parametrize("name", ["conv conv", "gemm gemm", "gemm gemm transposed", "matmul matmul"])
def test_an_imbalanced_pair_is_restored_and_a_balanced_one_left_alone(bench, name):
    exponents, weights = imbalanced(name)
    prepared, plan = ready(bench, name, **weights)
    samples = bench.samples(prepared.model, 2048)
    (found,) = choose_factors(prepared.model, plan, bench.statistics(prepared, plan, samples))
    restored = exponents + found.exponents
    # what random weights and data differ by is left
    assert np.std(restored) < np.std(exponents) * 0.75
    assert found.gain_db > 10
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), {found.chain.tensor: found.exponents})
    balanced = type(prepared)(scaled, prepared.signature, prepared.sha256, prepared.name, prepared.where)
    statistics = bench.statistics(balanced, plan, bench.samples(scaled, 2048))
    assert choose_factors(scaled, plan, statistics) == ()


@pytest.mark.parametrize("count", [64, 1024, 65536])
@pytest.mark.parametrize("exponent", [0, 1])
def test_values_that_were_not_seen_are_predicted_to_be_clipped(count, exponent):
    rng = np.random.default_rng(count)
    scales = np.exp2(-rng.integers(0, 4, 64))
    seen = rng.laplace(size=(count, 64)) * scales
    amax = np.abs(seen).max(axis=0)
    factor = (amax.max() / amax) ** exponent  # 1: all channels reach the end of the range
    reader = WeightSizes(np.ones(64), np.full((1, 64, 1), 1e-9), np.ones((1, 1, 1), np.int64))
    predicted = predicted_noise(amax, np.square(seen).mean(axis=0), count, reader, np.log2(factor), signed=True)
    new = rng.laplace(size=(200_000, 64)) * scales
    top = (amax * factor).max()
    step = 2 * top / 255
    rounded = np.rint(np.clip(new * factor, -top, top) / step) * step / factor
    measured = np.square(rounded - new).mean(axis=0).sum()
    assert 1 / 3 < predicted / measured < 3


def test_channels_seen_with_few_values_are_not_made_equal_by_chance(bench):
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(size=(4, 64)) * np.exp2(-rng.integers(0, 4, 64)), "V": np.ones((64, 3))}
    prepared, plan = ready(bench, "matmul matmul", **weights)
    few, many = (bench.statistics(prepared, plan, bench.samples(prepared.model, count)) for count in (8, 2048))
    assert choose_factors(prepared.model, plan, few) == ()
    assert len(choose_factors(prepared.model, plan, many)) == 1


def test_a_model_that_is_rescaled_alike_is_held_once(bench):
    prepared, plan = ready(bench, "conv conv")
    table = bench.table(prepared, plan)

    def built(exponents, known=None):
        return build_model(prepared.model, plan, table.corrected(Equalization({"r": exponents})), known)

    first = built((1, 0, -2, 0, 3, 0, 0, 0))
    again = built((1, 0, -2, 0, 3, 0, 0, 0), first)
    other = built((1, 0, -2, 0, 3, 0, 0, -1), first)
    assert again.draft.model is first.draft.model is not prepared.model
    assert again.model == built((1, 0, -2, 0, 3, 0, 0, 0)).model
    assert other.draft.model is not first.draft.model
    assert other.model == built((1, 0, -2, 0, 3, 0, 0, -1)).model


def test_rescaled_weights_are_written_once(bench):
    prepared, plan = ready(bench, "conv depthwise conv")
    factors = {chain.tensor: np.ones(chain.channels) for chain in find_chains(prepared.model, plan)}
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), factors)
    names = [tensor.name for tensor in prepared.model.graph.initializer]
    assert [tensor.name for tensor in scaled.graph.initializer] == names
    # the depthwise layer's weights are behind one chain and in front of the next
    before, after = (
        {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        for model in (prepared.model, scaled)
    )
    np.testing.assert_array_equal(after["W"], 2 * before["W"])
    np.testing.assert_array_equal(after["D"], before["D"])
    np.testing.assert_array_equal(after["V"], before["V"] / 2)


def test_equalization_helps_where_it_predicts_to(bench):
    name = "conv conv"
    _, weights = imbalanced(name)
    prepared, plan = ready(bench, name, **weights)
    samples = bench.samples(prepared.model, 16)
    (found,) = choose_factors(prepared.model, plan, bench.statistics(prepared, plan, samples))
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), {found.chain.tensor: found.exponents})
    noise = []
    for model in (prepared.model, scaled):
        built = bench.quantized(model)[3].model
        noise.append(
            sum(
                np.square(bench.run(built, s.feed)["y"] - bench.run(prepared.model, s.feed)["y"]).sum() for s in samples
            )
        )
    assert noise[1] < noise[0] / 2


def test_dead_channels_stay_where_they_are(bench):
    exponents, weights = imbalanced("gemm gemm")
    weights["W"][:, 2] = 0
    weights["B"][2] = 0
    weights["V"][5] = 0
    prepared, plan = ready(bench, "gemm gemm", **weights)
    (found,) = choose_factors(prepared.model, plan, bench.statistics(prepared, plan, bench.samples(prepared.model, 64)))
    assert found.exponents[[2, 5]].tolist() == [0, 0]
    assert len(exponents) == len(found.exponents)
    for tensor in apply_factors(
        prepared.model, find_chains(prepared.model, plan), {found.chain.tensor: found.exponents}
    ).graph.initializer:
        assert np.isfinite(numpy_helper.to_array(tensor)).all()


@pytest.fixture
def two_chains(search_inputs):
    """Two chains behind one another; what is behind the second is given."""

    def two_chains(last):
        _, first = imbalanced("matmul matmul", seed=3)
        _, second = imbalanced("matmul matmul", seed=4)
        weights = {"A": first["W"], "B": first["V"], "C": second["W"][:3], "D": second["V"], "K": last, "L": np.ones(3)}
        return search_inputs(
            """g (float[N,4] x) => (float[N,3] y) {
                a = MatMul(x, A) r = Relu(a) b = MatMul(r, B) s = Relu(b)
                c = MatMul(s, C) t = Relu(c) d = MatMul(t, D) y = Gemm(d, K, L)}""",
            counted=2048,  # no channel is predicted to be clipped by much
            **{name: value.astype(np.float32) for name, value in weights.items()},
        )

    return two_chains


@pytest.mark.parametrize(
    ("db", "parts"), [(-1.0, ["channels rescaled in 1 of 2 places"] * 2), (-0.1, []), (0.0, []), (0.1, [])]
)
def test_what_does_no_sure_harm_together_is_not_tried_in_parts(two_chains, db, parts):
    inputs = two_chains(np.eye(3))
    begun = first_state(inputs, plain_candidate(inputs))
    scores = scored(begun.built, inputs)
    assert len(scores.noise) >= PARTED_BY
    steps = propose(begun, inputs)
    names = [next(steps).name]
    dropped = StepResult(names[0], 30.0, 30.0 + db, kept=False)
    told = replace(begun, score=scores, results=(dropped,), last=Gain(db, 0.2, db, 0.2))
    with suppress(StopIteration):
        while True:
            names.append(steps.send(told).name)
    assert names == ["channels rescaled where much is promised", *parts]


@pytest.mark.parametrize("forgotten", [True, False])
def test_chains_whose_rescaling_changes_no_output_are_not_tried_with_other_ranges(two_chains, forgotten):
    inputs = two_chains(np.zeros((3, 3)) if forgotten else np.eye(3))
    inputs = replace(inputs, job=replace(inputs.job, calibration=CalibrationSettings(method="auto")))
    begun = first_state(inputs, plain_candidate(inputs))
    steps = propose(begun, inputs)
    proposal, names = next(steps), []

    def alone(*_):
        yield proposal

    while proposal is not None:
        names.append(proposal.name)
        state = search(begun, [alone], inputs)
        results = tuple(replace(each, kept=False) for each in state.results)
        try:
            proposal = steps.send(replace(state, results=results))
        except StopIteration:
            proposal = None
    assert names[0] == "channels rescaled where much is promised"
    assert (len(names) == 1) == forgotten
