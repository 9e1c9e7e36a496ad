"""Islands of layers between floats: which are offered to stay float, and what becomes of a front end in front of a Log."""

from dataclasses import replace

import mel_networks
import numpy as np
import pytest
from onnx import numpy_helper

import int8cal
from int8cal.graph.costs import inference_us
from int8cal.graph.index import Index
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.residual_codes import ResidualCodes
from int8cal.search.islands import (
    LEAST_DB,
    MORE_BYTES,
    MOST_BYTES,
    USELESS_DB,
    WORTH_BYTES,
    bytes_worth_db,
    choose_islands,
    groups_of_islands,
    whole_bytes,
)
from int8cal.search.steps import output_error

QUIET, LOUD = 1e-6, 100.0  # in front of the logarithm: with the first it tells quiet sounds apart
FRONT_END = {"MatMul_f", "MatMul_m"}
ELEMENTS = {"x": 1024.0, "p": 1056.0, "l": 320.0, "ar": 3072.0, "br": 3072.0, "cr": 3072.0}
NOISE = {"x": 0.1, "p": 0.8, "l": 0.04, "ar": 0.02, "br": 0.02, "cr": 0.02}


@pytest.fixture(scope="module")
def planned(bench):
    model = bench.text(mel_networks.TEXT, **mel_networks.weights(QUIET))
    return bench.prepared(model).model, bench.plan(model)


def chosen(planned, noise=NOISE, allowance=0.1, most_bytes=0.1, **settings):
    found = choose_islands(*planned, ELEMENTS, noise, allowance, most_bytes, **settings)
    return set(found.left), found.lines


def test_those_that_hold_most_of_the_noise_are_taken_and_no_further_one(planned):
    left, lines = chosen(planned)
    assert left == FRONT_END
    assert [line.partition(" between float nodes would take away ")[0] for line in lines] == [
        "float for MatMul_m",
        "float for MatMul_f",
    ]
    assert all(line.endswith(" more bytes: tried") for line in lines)


def test_one_behind_another_is_taken_where_it_holds_half_of_what_is_left(planned):
    noise = {"x": 0.02, "p": 0.97, "l": 0.004, "ar": 0.002, "br": 0.002, "cr": 0.002}
    assert chosen(planned, noise)[0] == FRONT_END
    assert chosen(planned, {**noise, "x": 0.01, "l": 0.014})[0] == {"MatMul_m"}


def test_groups_of_islands_are_those_that_noise_is_asked_of(planned):
    groups = groups_of_islands(*planned, ELEMENTS)
    assert {"x", "p"} <= groups < set(planned[1].groups)
    only = {name: noise if name in groups else 0.0 for name, noise in NOISE.items()}
    assert chosen(planned, only) == chosen(planned)
    assert "p" not in groups_of_islands(*planned, ELEMENTS, fixed={"p"})


def test_what_holds_less_than_half_of_the_noise_is_not_offered(planned):
    assert chosen(planned, {"x": 0.1, "p": 0.3, "l": 0.05, "ar": 0.2, "br": 0.35}) == (set(), ())


def test_the_allowance_of_time_is_not_exceeded(planned):
    whole = inference_us(*planned, ELEMENTS)
    left, lines = chosen(planned, spent_us=0.1 * whole)
    assert left == set()
    assert all(line.endswith("more than --latency-allowance leaves") for line in lines)
    assert len(lines) == 2
    assert chosen(planned, allowance=0.0)[0] == set()


def test_bytes_are_bounded_too_and_more_of_them_have_to_gain_more(planned):
    model, plan = planned
    noise = {"x": 0.1, "br": 0.9}
    # of all layers' weights this one has two fifths
    assert chosen(planned, noise, 10.0, MOST_BYTES) == (set(), ())
    weights = {each.weight: int(np.prod(each.dims)) for each in plan.layers}
    whole = 4 * sum(weights.values()) + sum(node.ByteSize() for node in model.graph.node)
    share = MORE_BYTES * (weights["D"] + weights["M"]) / whole
    assert 0.01 < share < WORTH_BYTES < MOST_BYTES
    assert chosen(planned, most_bytes=1.01 * share)[0] == FRONT_END
    left, lines = chosen(planned, most_bytes=0.99 * share)
    assert left != FRONT_END
    assert lines[-1].endswith(" more bytes: too many bytes")
    found = choose_islands(*planned, ELEMENTS, NOISE, 0.1, MOST_BYTES)
    assert found.bytes == pytest.approx(share)
    assert found.least_db == LEAST_DB
    assert replace(found, bytes=2.5 * WORTH_BYTES).least_db == pytest.approx(2.5 * LEAST_DB)


def test_shares_that_add_up_to_more_than_all_leave_nothing_for_the_next(planned):
    noise = {"x": 0.5, "p": 2.0, "l": 0.049, "ar": 0.0, "br": 0.0, "cr": 0.0}
    assert chosen(planned, noise)[0] == FRONT_END


def test_layers_of_one_weight_are_one_island_whose_bytes_count_once(bench):
    text = """g (float[N,8] x, float[N,8] z) => (float[N,M] y) {
        a = MatMul (x, W) b = MatMul (z, W) c = Elu (a) d = Elu (b) e = Sub (c, d) y = MatMul (e, V) }"""
    model = bench.text(text, W=(8, 300), V=(300, 32))
    prepared, plan = bench.prepared(model).model, bench.plan(model)
    noise, elements = {"x": 0.5, "z": 0.5}, {"x": 8.0, "z": 8.0, "e": 300.0}
    found = choose_islands(prepared, plan, elements, noise, 10.0, MOST_BYTES)
    assert set(found.left) == {"MatMul_a", "MatMul_b"}
    assert found.bytes == pytest.approx(3 * 8 / (4 * (8 + 32)), rel=0.05)


def computed(bench):
    """A mostly empty matrix, written as its few values and where they go: the int8 model would hold all of it."""
    rng = np.random.default_rng(5)
    text = """g (float[N,64] x) => (float[N,M] y) {
        nil = ConstantOfShape (shape) F = ScatterND (nil, where, few) f = MatMul (x, F) s = Abs (f) l = Log (s) y = MatMul (l, W) }"""
    where = np.stack([np.arange(64), np.arange(64)], axis=1)
    model = bench.text(text, shape=np.array([64, 256]), where=where, few=rng.random(64, np.float32), W=(256, 64))
    return model, {"x": 64.0, "l": 256.0}


def test_a_weight_that_the_graph_computes_is_smaller_in_float(bench):
    model, elements = computed(bench)
    noise = {"x": 0.9, "l": 0.1}
    found = choose_islands(bench.prepared(model).model, bench.plan(model), elements, noise, 10.0, 0.0)
    assert set(found.left) == {"MatMul_f"}
    assert found.bytes < 0


@pytest.mark.parametrize(
    ("coded", "left"),
    [
        ({"MatMul_m"}, FRONT_END),
        # it holds less noise, and is taken first: the other needs the time
        ({"MatMul_f"}, FRONT_END),
        # all that read them have to stay float
        ({"MatMul_m", "MatMul_y"}, set()),
    ],
)
def test_residual_codes_of_what_stays_float_hand_back_their_time(planned, coded, left):
    us = choose_islands(*planned, ELEMENTS, NOISE, 10.0, 0.1).us
    assert chosen(planned, allowance=0.0, codes=((frozenset(coded), us),))[0] == left
    assert chosen(planned, allowance=0.0, codes=((frozenset(coded), 0.0),))[0] == set()


@pytest.mark.parametrize("fixed", ["MatMul_m", "p"])
def test_what_the_user_fixed_stays_int8(planned, fixed):
    assert chosen(planned, fixed={fixed})[0] == set()


# The whole flow


def flow(bench, least, *, convolved=False, **settings):
    """Calibrate on 64 sounds and score on 32 others; the table, and SQNR in dB."""
    sounds = mel_networks.sounds(96)
    if convolved:
        model = bench.text(mel_networks.CONVOLVED, **mel_networks.convolved(least))
        sounds = [{"x": each["x"].reshape(1, 1, -1)} for each in sounds]
    else:
        model = bench.text(mel_networks.TEXT, **mel_networks.weights(least))
    table = int8cal.calibrate(model, sounds[:64], threads=1, **settings)
    int8 = int8cal.quantize(model, table)
    evaluation = int8cal.evaluate(model, int8, sounds[64:], threads=1, latency=False).evaluation
    return table, int8, evaluation.metrics.sqnr_db


def left(table):
    return set(table.settings.left("left_for_accuracy"))


@pytest.fixture(scope="module")
def drowned(bench):
    return flow(bench, QUIET)


def test_a_front_end_whose_codes_drown_all_that_follows_stays_float(bench, drowned):
    table, int8, db = drowned
    without, _, before = flow(bench, QUIET, latency_allowance=0)
    assert (left(table), left(without)) == (FRONT_END, set())
    assert db > before + 10
    assert db > 30
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in int8.graph.initializer}
    assert {weights[name].dtype.name for name in ("D", "M")} == {"float32"}
    assert {each.node for each in table.weights.values()} == {"MatMul_a", "MatMul_b", "MatMul_c", "MatMul_y"}
    assert table.tensors.keys() == {"l", "ar", "br", "cr"}
    assert all(" of the noise" in why for why in table.settings.left("left_for_accuracy").values())


def test_a_front_end_without_which_nothing_is_left_of_the_signal_may_take_any_time(bench):
    """Its kernel holds most weights: they stay int8 in the file, and what computes with them is float."""
    table, int8, db = flow(bench, QUIET, convolved=True, latency_allowance=1)
    without, _, before = flow(bench, QUIET, convolved=True, latency_allowance=0)
    assert (left(table), table.settings.forms) == ({"MatMul_m"}, {"Conv_w": "weights"})
    assert (left(without), without.settings.forms) == (set(), {})
    assert before < USELESS_DB < 30 < db
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in int8.graph.initializer}
    assert [each.dtype.name for each in weights.values() if each.size == 66 * 64] == ["int8"]


@pytest.mark.usefixtures("bytes_are_free")
def test_what_was_drowned_is_measured_again(bench, monkeypatch):
    table, _, db = flow(bench, QUIET, recipe="balanced", latency_allowance=70)
    assert left(table) == FRONT_END
    # residual codes of the front end's inputs, kept before it was left in float, take none of the allowance any more
    assert ResidualCodes.of(table).values.keys() == {"MatMul_b", "MatMul_c", "MatMul_y"}
    monkeypatch.setattr(output_error, "HALF_DB", np.inf)
    once, _, before = flow(bench, QUIET, recipe="balanced", latency_allowance=70)
    assert left(once) == FRONT_END
    assert not ResidualCodes.of(once)
    assert db > before + 0.5


def test_what_is_smaller_in_float_need_not_hold_most_of_the_noise(bench):
    """Its bytes are worth nothing: only its time is."""
    model, elements = computed(bench)
    prepared, plan = bench.prepared(model).model, bench.plan(model)
    found = choose_islands(prepared, plan, elements, {"x": 0.1, "l": 0.2}, 10.0, 0.0)
    assert set(found.left) == {"MatMul_f"}
    assert found.least_db == 0.0
    assert found.us > 0.0
    assert not choose_islands(prepared, plan, elements, {"x": 0.04, "l": 0.2}, 10.0, 0.0).left


def test_where_int8_does_no_harm_the_front_end_stays_int8(bench):
    table, _, db = flow(bench, LOUD)
    assert left(table) == set()
    assert len(table.weights) == 6
    assert db > 35


@pytest.mark.parametrize(
    "settings",
    [{"target": "openvino"}, {"include": ["op:MatMul"]}, {"ranges": {"p": (0.0, 300.0)}}],
    ids=["another runtime", "asked for", "a range given"],
)
def test_what_was_asked_for_is_int8(bench, settings):
    table, _, _ = flow(bench, QUIET, **settings)
    assert "MatMul_m" not in left(table)
    assert "p" in table.tensors


@pytest.mark.parametrize("recipe", ["balanced", "accurate"])
def test_channels_that_are_rescaled_for_a_layer_in_float_alone_are_so_no_more(bench, drowned, recipe):
    table, int8, db = flow(bench, QUIET, recipe=recipe)
    assert left(table) == FRONT_END
    assert db > drowned[2] - 1
    assert not {"x", "p"} & Equalization.of(table).values.keys()
    bench.run(int8, mel_networks.sounds(1)[0])


def test_bytes_are_worth_what_layers_have_to_gain_for_them(bench):
    text = """g (float[1,64] x, int64[1] i) => (float[1,32] y, float[A,B,C,D] z) {
        e = Gather (T, i) h = MatMul (e, M) y = Relu (h) s = Reshape (x, shape) z = LSTM <hidden_size = 16> (s, W, R)
    }"""
    shapes = {"T": (500, 32), "M": (32, 32), "W": (1, 64, 64), "R": (1, 64, 16)}
    model = bench.text(text, shape=np.array([1, 1, 64]), **shapes)
    index, plan = Index(bench.prepared(model).model), bench.plan(model)
    values = sum(int(np.prod(shape)) for shape in shapes.values())
    whole = whole_bytes(index, plan)
    assert 4 * values < whole < 4 * values + 1000
    assert bytes_worth_db(round(0.2 * whole), index, plan) == pytest.approx(2 * LEAST_DB, rel=1e-3)
