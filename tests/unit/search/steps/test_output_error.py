from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import int8cal
from int8cal.graph.chains import find_chains
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections import FineChannels, ResidualCodes, Rounding
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.residual_codes import FACTOR
from int8cal.quantization.derived_tables import without_noise_of
from int8cal.quantization.table import StepResult
from int8cal.search.candidate import Inputs, plain_candidate, rescaled_candidate
from int8cal.search.islands import Chosen
from int8cal.search.recipes import RECIPES
from int8cal.search.residual import Upgrade
from int8cal.search.scorer import Gain
from int8cal.search.search import Proposal, Remark, Settled, first_state, search
from int8cal.search.steps import output_error
from int8cal.search.steps.equalization import RescaledChain
from int8cal.search.steps.output_error import (
    ENOUGH_DB,
    HALF_DB,
    _factors_left,
    _floats,
    _left,
    _residual_codes,
    _Spent,
)

TEXT = """g (float[N,128] x) => (float[N,24] y) {
    n = LayerNormalization <axis = -1> (x, S, T) m = MatMul (n, W) y = Add (m, B)
}"""


@pytest.mark.usefixtures("bytes_are_free")
def test_what_gets_residual_codes_is_rounded_anew_by_what_it_reads(bench):
    rng = np.random.default_rng(5)
    weights = {"S": np.ones(128), "T": np.zeros(128), "W": rng.normal(size=(128, 24)), "B": rng.normal(size=24)}
    mix = rng.normal(size=(128, 128))
    data = [{"x": (rng.normal(size=(16, 128)) @ mix).astype(np.float32)} for _ in range(48)]
    table = int8cal.calibrate(bench.text(TEXT, **weights), data, latency_allowance=1000)
    doubled = {*ResidualCodes.of(table).values, *FineChannels.of(table).values}
    assert doubled
    assert doubled <= Rounding.of(table).values.keys()


CHAINS = """g (float[N,8] x) => (float[N,4] y) {
    n = LayerNormalization <axis = -1> (x, S, T) f = MatMul (n, A) e = Erf (f) h = Gemm (e, B) r = Relu (h) y = Gemm (r, C)
}"""


@pytest.mark.parametrize(
    ("left", "tensors", "kept"),
    [
        ("MatMul_f", ("n", "r"), ("r",)),  # nobody reads the rescaled values as codes any more
        ("MatMul_f", ("r",), ("r",)),
        ("Gemm_y", ("n", "r"), None),  # the codes of Gemm_h were calibrated with factors that are gone
        ("Gemm_y", ("n",), ("n",)),
        ("Gemm_y", (), ()),
    ],
)
def test_factors_go_with_the_layers_that_read_them_and_a_layer_that_stays_keeps_its_own(
    search_inputs, left, tensors, kept
):
    weights = {"S": np.ones(8), "T": np.zeros(8), "A": (8, 8), "B": (8, 8), "C": (8, 4)}
    inputs = search_inputs(CHAINS, **weights)
    state = first_state(inputs, plain_candidate(inputs))
    chains = {chain.tensor: chain for chain in find_chains(inputs.prepared, state.plan)}
    assert set(chains) >= set(tensors)
    record = Equalization({name: (1.0,) * chains[name].channels for name in tensors})
    state = replace(state, table=state.table.corrected(record))
    smaller = inputs.plan_for(state.table.settings.with_left("left_for_accuracy", {left: "why"}))
    table = without_noise_of(state.table, (state.plan, smaller), {left: "why"}, "left_for_accuracy")
    found = _factors_left(state, inputs, table, smaller)
    assert (None if found is None else tuple(found.values)) == kept


@pytest.mark.parametrize("any_time", [True, False])
def test_channels_are_as_they_were_where_a_model_of_no_use_leaves_a_layer_in_float_that_scales_them(
    search_inputs, any_time
):
    """Of x, whose columns are of very different size, eight bits leave nothing, whatever is done to `r` behind it."""
    inputs = search_inputs(
        "g (float[N,8] x) => (float[N,4] y) { h = Gemm (x, A) r = Relu (h) g = Gemm (r, B) y = Exp (g) }",
        A=(8, 8),
        B=(8, 4),
    )
    plain = first_state(inputs, plain_candidate(inputs))
    (chain,) = find_chains(inputs.prepared, plain.plan)
    factors = RescaledChain(chain, np.arange(chain.channels) / 4 - 1, 1.0)
    state = first_state(inputs, rescaled_candidate(inputs, [factors]))
    assert state.table.tensors != plain.table.tensors
    proposal = _left(state, inputs, Chosen({"Gemm_h": "why"}, ()), any_time=any_time)
    if not any_time:
        assert proposal is None
        return
    expected = _left(plain, inputs, Chosen({"Gemm_h": "why"}, ()), any_time=True)
    assert not Equalization.of(proposal.table)
    assert proposal.candidate.model is inputs.prepared
    models = [
        build_model(inputs.index, each.plan, replace(each.table, weights={})).model for each in (proposal, expected)
    ]
    assert models[0].SerializeToString(deterministic=True) == models[1].SerializeToString(deterministic=True)


BETWEEN = """g (float[N,32,8,8] x) => (float[N,32,6,6] y) {
    f = Conv <pads = [1, 1, 1, 1]> (x, A) e = Exp (f) d = Conv (e, B) s = Add (f, d) y = Conv (s, C)
}"""
BETWEEN_WEIGHTS = {"A": (32, 32, 3, 3), "B": (32, 32, 1, 1), "C": (32, 32, 3, 3)}


def test_a_layer_that_leaves_int8_with_its_neighbours_takes_its_corrections_along(search_inputs):
    inputs = search_inputs(BETWEEN, **BETWEEN_WEIGHTS)
    state = first_state(inputs, plain_candidate(inputs))
    state = replace(state, table=state.table.corrected(ResidualCodes({"Conv_d": FACTOR})))
    proposal = _floats(state, inputs, {"Add_s": "why"})
    assert "Conv_d" not in {layer.node for layer in proposal.plan.layers}
    assert not ResidualCodes.of(proposal.table)
    assert set(proposal.table.tensors) == {each.tensor for each in proposal.plan.tensors}


def test_what_was_left_in_float_before_stays_there(search_inputs):
    inputs = search_inputs(BETWEEN, **BETWEEN_WEIGHTS)
    state = first_state(inputs, plain_candidate(inputs))
    settings = state.table.settings.with_left("left_for_accuracy", {"Conv_y": "first"})
    state = replace(state, table=replace(state.table, settings=settings))
    assert _floats(state, inputs, {"Add_s": "then"}).table.settings.left("left_for_accuracy") == {
        "Conv_y": "first",
        "Add_s": "then",
    }


@pytest.mark.parametrize(
    ("gain", "then"),
    [
        (Gain(0.5, 0.2, 0.5, 0.2), "all gain no more than 0.90 dB, half of them have to gain 1 dB"),
        (Gain(0.5, 0.3, 0.5, 0.3), "residual codes of some inputs"),
        (Gain(1.5, 0.1, 1.5, 0.1), "residual codes of some inputs"),
        (Gain(-0.5, 0.1, -0.5, 0.1), "residual codes of some inputs"),  # half of them may do no harm
    ],
)
def test_half_of_the_residual_codes_are_not_tried_where_all_gain_less_than_half_have_to(
    search_inputs, monkeypatch, gain, then
):
    monkeypatch.setattr(Inputs, "worth_db", lambda self, us: us)
    inputs = search_inputs(CHAINS, S=np.ones(8), T=np.zeros(8), A=(8, 8), B=(8, 8), C=(8, 4))
    state = first_state(inputs, plain_candidate(inputs))
    wanted = [Upgrade(node, (node,), (), 0.1, 1.0, tensor) for node, tensor in (("Gemm_h", "e"), ("Gemm_y", "r"))]
    offers = _residual_codes(state, inputs, wanted, _Spent())
    first = next(offers)
    assert (first.name, first.least_db) == ("residual codes of inputs", 2.0)
    dropped = StepResult(first.name, 30.0, 30.0 + gain.db, kept=False)
    second = offers.send(replace(state, results=(dropped,), last=gain))
    told = second.lines[0].partition(": ")[2] if isinstance(second, Remark) else second.name
    assert told == then
    if isinstance(second, Proposal):
        assert second.least_db == 1.0
        assert ResidualCodes.of(second.table).values.keys() == {"Gemm_h"}


@pytest.mark.parametrize(
    ("gain_db", "db", "rounds"),
    [
        (10.0, 30.0, 2),
        (HALF_DB - 0.1, 30.0, 1),  # more than half of the noise is what it was
        (10.0, ENOUGH_DB + 1.0, 1),  # what is left is next to nothing
    ],
)
def test_what_is_left_is_measured_again_where_that_is_much_and_half_of_it_was_drowned(
    search_inputs, monkeypatch, gain_db, db, rounds
):
    measured = []

    def measure(state, inputs, precision, spent):
        measured.append(precision)
        gain = gain_db if len(measured) == 1 else 0.0
        result = StepResult("residual codes of inputs", db - gain, db, kept=True)
        state = yield Settled(replace(state, results=(*state.results, result), score=SimpleNamespace(db=db)))
        return state, spent

    monkeypatch.setattr(output_error, "_round", measure)
    inputs = search_inputs(CHAINS, S=np.ones(8), T=np.zeros(8), A=(8, 8), B=(8, 8), C=(8, 4))
    inputs = replace(inputs, recipe=RECIPES["fast"])
    search(first_state(inputs, plain_candidate(inputs)), [output_error.propose], inputs)
    assert len(measured) == rounds
