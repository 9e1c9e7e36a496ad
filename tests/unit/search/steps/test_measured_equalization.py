"""Equalization of transformer blocks: outlier channels of a LayerNorm, the recipe's promise and measured strengths."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from int8cal.calibration.ranges import choose
from int8cal.errors import TableError
from int8cal.evaluation.layerwise import measure_layers
from int8cal.graph.chains import find_chains
from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.job import CalibrationSettings, QuantizationSettings
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.equalization import Equalization, apply_factors, as_numbers, scaled_tensors
from int8cal.quantization.derived_tables import without_layers
from int8cal.quantization.table_file import load_table, save_table
from int8cal.search.candidate import plain_candidate
from int8cal.search.scorer import Scorer
from int8cal.search.search import first_state
from int8cal.search.steps import measured_equalization
from int8cal.search.steps.equalization import choose_factors
from int8cal.search.steps.measured_equalization import measure_factors

WIDTH, INNER = 32, 64
OUTLIERS = {3: 100.0, 17: 60.0, 24: 30.0}
ATTENTION = (
    "q{b} = MatMul({n}, Q{b}) k{b} = MatMul({n}, K{b}) v{b} = MatMul({n}, V{b}) t{b} = Transpose <perm = [0, 2, 1]> (k{b}) "
    "s{b} = MatMul(q{b}, t{b}) d{b} = Mul(s{b}, small) p{b} = Softmax(d{b}) c{b} = MatMul(p{b}, v{b}) o{b} = MatMul(c{b}, O{b}) "
)
FORWARD = "f{b} = MatMul({n}, F{b}) h{b} = Tanh(f{b}) z{b} = MatMul(h{b}, Z{b}) "
BEFORE = (  # the residual stream goes past the normalizations
    "n{b} = LayerNormalization(r{b}, G{b}, H{b}) "
    + ATTENTION.replace("{n}", "n{b}")
    + "a{b} = Add(r{b}, o{b}) m{b} = LayerNormalization(a{b}, I{b}, J{b}) "
    + FORWARD.replace("{n}", "m{b}")
    + "r{c} = Add(a{b}, z{b}) "
)
BEHIND = (  # and through them, as in BERT
    "n{b} = LayerNormalization(r{b}, G{b}, H{b}) "
    + ATTENTION.replace("{n}", "n{b}")
    + "a{b} = Add(n{b}, o{b}) m{b} = LayerNormalization(a{b}, I{b}, J{b}) "
    + FORWARD.replace("{n}", "m{b}")
    + "r{c} = Add(m{b}, z{b}) "
)


def transformer(bench, block, *, written_out=False):
    rng = np.random.default_rng(11)
    body, weights = "r0 = Identity(x) ", {"small": 0.05, "tiny": 1e-5, "U": rng.normal(size=(WIDTH, 4))}
    for b in range(2):
        body += block.replace("{b}", str(b)).replace("{c}", str(b + 1))
        for gamma, beta in (("G", "H"), ("I", "J")):
            scale = np.abs(rng.normal(size=WIDTH)) + 0.2
            for channel, factor in OUTLIERS.items():
                scale[channel] = factor
            weights |= {f"{gamma}{b}": scale, f"{beta}{b}": rng.normal(scale=0.3, size=WIDTH) * scale}
        for name, shape in (("Q", (WIDTH, WIDTH)), ("K", (WIDTH, WIDTH)), ("V", (WIDTH, WIDTH)), ("F", (WIDTH, INNER))):
            matrix = rng.normal(scale=0.3, size=shape)
            matrix[list(OUTLIERS)] /= np.array(list(OUTLIERS.values()))[:, None]  # what is loud is weighed lightly
            weights[f"{name}{b}"] = matrix
        weights |= {f"O{b}": rng.normal(size=(WIDTH, WIDTH)), f"Z{b}": rng.normal(size=(INNER, WIDTH))}
    if written_out:
        for b in range(2):
            for out, into, gamma, beta in (("n", "r", "G", "H"), ("m", "a", "I", "J")):
                norm = (
                    "{o}m = ReduceMean <axes = [-1]> ({i}) {o}d = Sub({i}, {o}m) {o}p = Mul({o}d, {o}d) "
                    "{o}w = ReduceMean <axes = [-1]> ({o}p) {o}e = Add({o}w, tiny) {o}s = Sqrt({o}e) {o}u = Div({o}d, {o}s) "
                    "{o}g = Mul({o}u, {g}) {o} = Add({o}g, {h})"
                )
                body = body.replace(
                    f"{out}{b} = LayerNormalization({into}{b}, {gamma}{b}, {beta}{b})",
                    norm.format(o=f"{out}{b}", i=f"{into}{b}", g=f"{gamma}{b}", h=f"{beta}{b}"),
                )
    else:
        del weights["tiny"]
    text = f"g (float[1,8,{WIDTH}] x) => (float[1,8,4] y) {{ {body} y = MatMul(r2, U) }}"
    prepared = bench.prepared(bench.text(text, **weights))
    return prepared, make_plan(prepared.model, Selection())


def judged(bench, prepared, plan, samples, chosen, statistics):
    """SQNR in dB with these factors, and the table."""
    factors = {item.chain.tensor: item.exponents for item in chosen}
    table = bench.table(prepared, plan, samples=samples)
    tensors = dict(table.tensors)
    for name, exponents in scaled_tensors(find_chains(prepared.model, plan), factors).items():
        if name in tensors:
            histogram = statistics.tensors[name].equalized(exponents).histogram
            affine = choose(histogram, "max", "u8", 99.99).affine
            tensors[name] = replace(
                tensors[name], scale=affine.scale, zero_point=affine.zero_point, low=affine.low, high=affine.high
            )
    table = replace(table, tensors=tensors, corrections=(Equalization.chosen(factors),))
    # samples that the ranges have seen: with so few, what others clip would decide
    scorer = Scorer(prepared.model, prepared.signature, samples)
    return scorer(build_model(prepared.model, plan, table).model).db, table


@pytest.mark.parametrize(
    ("block", "written_out", "inserted"),
    [(BEFORE, False, False), (BEFORE, True, False), (BEHIND, False, True), (BEHIND, True, True)],
    ids=["before", "before, written out", "behind", "behind, written out"],
)
def test_outlier_channels_of_a_normalization_are_rescued(bench, block, written_out, inserted):
    prepared, plan = transformer(bench, block, written_out=written_out)
    samples = bench.samples(prepared.model, 16)
    statistics = bench.statistics(prepared, plan, samples)
    plain, _ = judged(bench, prepared, plan, samples, (), statistics)
    fast = choose_factors(prepared.model, plan, statistics)
    assert {len(item.chain.readers) for item in fast} >= {1, 3}
    assert {item.chain.inserted for item in fast if item.gain_db > 10} == {inserted}
    assert all((item.exponents == np.rint(item.exponents)).all() for item in fast)
    rescued, _ = judged(bench, prepared, plan, samples, fast, statistics)
    assert rescued > plain + 10
    settings = (CalibrationSettings(method="max"), QuantizationSettings())
    measured = measure_factors(prepared.model, plan, statistics, prepared.signature, samples, *settings)
    better, _ = judged(bench, prepared, plan, samples, measured, statistics)
    assert better > rescued - 0.5
    assert any((item.exponents != np.rint(item.exponents)).any() for item in measured)
    assert all("measured gain" in item.decision for item in measured)


def test_measuring_twice_chooses_the_same(bench):
    prepared, plan = transformer(bench, BEHIND)
    samples = bench.samples(prepared.model, 8)
    statistics = bench.statistics(prepared, plan, samples)
    settings = (CalibrationSettings(), QuantizationSettings())
    one, other = (
        measure_factors(prepared.model, plan, statistics, prepared.signature, samples, *settings) for _ in range(2)
    )
    assert [item.chain.tensor for item in one] == [item.chain.tensor for item in other]
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left.exponents, right.exponents)


@pytest.mark.parametrize(("seconds", "runs"), [(8.0, 8), (0.0, 2)], ids=["short ones", "long ones"])
def test_candidates_are_followed_with_as_many_inferences_as_time_allows(bench, monkeypatch, seconds, runs):
    prepared, plan = transformer(bench, BEHIND)
    samples = bench.samples(prepared.model, 12)
    statistics = bench.statistics(prepared, plan, samples)
    monkeypatch.setattr(measured_equalization, "SECONDS", seconds)
    taken = []
    real = measured_equalization.Probe.runs
    monkeypatch.setattr(
        measured_equalization.Probe, "runs", lambda probe, given: taken.append(len(given)) or real(probe, given)
    )
    settings = (CalibrationSettings(), QuantizationSettings())
    assert measure_factors(prepared.model, plan, statistics, prepared.signature, samples, *settings)
    assert taken == [runs]


def test_a_range_of_the_users_is_for_the_tensor_as_it_is(bench):
    prepared, plan = transformer(bench, BEFORE)
    samples = bench.samples(prepared.model, 8)
    statistics = bench.statistics(prepared, plan, samples)
    quantization = QuantizationSettings(ranges={"n0": (-5.0, 5.0)})
    found = measure_factors(
        prepared.model, plan, statistics, prepared.signature, samples, CalibrationSettings(), quantization
    )
    assert found
    assert "n0" not in {item.chain.tensor for item in found}
    fast = choose_factors(prepared.model, plan, statistics, fixed=quantization.ranges)
    assert {item.chain.tensor for item in fast} == {"m0", "n1", "m1"}


@pytest.mark.parametrize("block", [BEFORE, BEHIND])
def test_the_table_alone_gives_the_same_bytes(bench, block, tmp_path):
    prepared, plan = transformer(bench, block)
    rng = np.random.default_rng(2)
    exponents = {
        chain.tensor: as_numbers(rng.integers(-32, 33, chain.channels) / 16)
        for chain in find_chains(prepared.model, plan)
    }
    table = replace(bench.table(prepared, plan), corrections=(Equalization(exponents),))
    built = build_model(prepared.model, plan, table)
    onnx.checker.check_model(built.model)
    path = tmp_path / "t.table.json"
    save_table(with_weights(table, plan, built), path)
    again = build_model(prepared.model, plan, load_table(path))
    assert again.model.SerializeToString() == built.model.SerializeToString()
    document = json.loads(path.read_text())
    document["corrections"]["equalization"][next(iter(exponents))][0] = 1 / 3
    path.write_text(json.dumps(document))
    with pytest.raises(TableError, match="out of range"):
        load_table(path)


def test_a_reader_that_stays_float_sees_what_it_saw(bench):
    prepared, plan = transformer(bench, BEFORE)
    samples = bench.samples(prepared.model, 16)
    statistics = bench.statistics(prepared, plan, samples)
    fast = choose_factors(prepared.model, plan, statistics)
    before, table = judged(bench, prepared, plan, samples, fast, statistics)
    left = {"MatMul_v0": "slow"}
    smaller = make_plan(prepared.model, Selection(left=tuple(left.items())))
    cut = without_layers(prepared.model, table, bench.table(prepared, plan, samples=samples), (plan, smaller), left)
    assert Equalization.of(cut) == Equalization.of(table)
    (chain,) = (chain for chain in find_chains(prepared.model, smaller) if chain.tensor == "n0")
    assert (chain.inserted, len(chain.readers)) == (True, 2)
    scorer = Scorer(prepared.model, prepared.signature, samples)
    assert scorer(build_model(prepared.model, smaller, cut).model).db > before - 1


def test_layers_are_compared_in_the_units_of_the_float_model(bench):
    prepared, plan = transformer(bench, BEHIND)
    samples = bench.samples(prepared.model, 8)
    statistics = bench.statistics(prepared, plan, samples)
    fast = choose_factors(prepared.model, plan, statistics)
    _, table = judged(bench, prepared, plan, samples, fast, statistics)
    built = build_model(prepared.model, plan, table)
    layers, reasons, _ = measure_layers(prepared.model, built.model, samples)
    assert "layers.missing" not in reasons
    of_tensor = {layer.tensor: layer.sqnr_db for layer in layers}
    assert all(of_tensor[item.chain.tensor] > 15 for item in fast)


def test_factors_leave_the_float_function(bench):
    prepared, plan = transformer(bench, BEHIND)
    rng = np.random.default_rng(4)
    factors = {chain.tensor: rng.normal(size=chain.channels) for chain in find_chains(prepared.model, plan)}
    scaled = apply_factors(prepared.model, find_chains(prepared.model, plan), factors)
    for sample in bench.samples(prepared.model, 2):
        expected, actual = (bench.run(model, sample.feed)["y"] for model in (prepared.model, scaled))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("fit", "shown"), [(24, 8), (6, 3), (1, None)])
def test_factors_are_measured_and_judged_with_ranges_of_other_samples(search_inputs, bench, monkeypatch, fit, shown):
    rng = np.random.default_rng(4)
    text = "g (float[N,4,6,6] x) => (float[N,3,6,6] y) { c = Conv(x, w) r = Relu(c) y = Conv(r, v) }"
    inputs = search_inputs(
        text,
        w=(rng.normal(size=(4, 4, 1, 1)) * np.array([1, 4, 16, 64])[:, None, None, None]).astype(np.float32),
        v=rng.normal(size=(3, 4, 1, 1)).astype(np.float32),
    )
    samples = bench.samples(inputs.prepared, fit, seed=6)
    inputs = replace(inputs, holdout=replace(inputs.holdout, fit=tuple(samples)))
    asked = []

    def factors(model, plan, statistics, signature, some, *settings):
        asked.append((statistics, tuple(some)))
        return measure_factors(model, plan, statistics, signature, some, *settings)

    monkeypatch.setattr(measured_equalization, "measure_factors", factors)
    state = first_state(inputs, plain_candidate(inputs))
    proposals = measured_equalization.propose(state, inputs)
    if shown is None:
        assert next(proposals, None) is None
        assert not asked
        return
    proposal = next(proposals)
    ((statistics, some),) = asked
    prepared = SimpleNamespace(
        model=inputs.prepared, signature=inputs.holdout.signature, sha256=statistics.model_sha256
    )
    counted = bench.statistics(prepared, inputs.plan, samples[shown:])
    assert some == tuple(samples[:shown])
    assert (statistics.samples, statistics.fingerprint) == (counted.samples, counted.fingerprint)
    scored_with = proposal.unseen.statistics
    assert (scored_with.samples, scored_with.fingerprint) == (
        fit,
        bench.statistics(prepared, inputs.plan, samples).fingerprint,
    )
    assert proposal.candidate.tensors.keys() == inputs.statistics.tensors.keys()
    assert proposal.candidate.tensors["x"] is inputs.statistics.tensors["x"]
