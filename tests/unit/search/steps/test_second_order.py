import itertools
from dataclasses import replace

import numpy as np
import pytest

from int8cal.errors import TableError
from int8cal.numerics.affine import S7, S8
from int8cal.numerics.pairs import link, unsafe_pairs
from int8cal.probe import layer_inputs as probe_inputs
from int8cal.probe.layer_inputs import layer_inputs, take_moments
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.integers import Rounding, codes_from_text, codes_to_text
from int8cal.quantization.layers import scales_per_output
from int8cal.quantization.table_file import parse_table, table_to_json
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import Session
from int8cal.search.candidate import plain_candidate
from int8cal.search.recipes import RECIPES
from int8cal.search.search import first_state, search
from int8cal.search.steps import second_order
from int8cal.search.steps.second_order import mean_output, propose_where_weights_matter, refine_layers

CONVS = (
    "g (float[N,4,8,8] x) => (float[A,C,D,E] y) "
    "{ c = Conv <pads = [1, 1, 1, 1]> (x, W, B) r = Relu(c) d = Conv <group = 8> (r, V, G) y = Conv(d, U, H) }"
)
SHAPES = {"W": (8, 4, 3, 3), "B": (8,), "V": (8, 1, 3, 3), "G": (8,), "U": (5, 8, 1, 1), "H": (5,)}


@pytest.fixture
def refined(bench):
    model = bench.text(CONVS, **SHAPES)
    prepared, plan, table, _ = bench.quantized(model)
    built = build_model(prepared.model, plan, table)
    samples = bench.samples(model, count=12)
    table = with_weights(table, plan, built)
    return prepared, plan, table, built, samples, refine_layers(built, table, samples[:8], samples[8:])


def test_moments_are_the_same_whatever_the_order_of_samples(refined):
    _, plan, _, built, samples, _ = refined
    inputs, without = layer_inputs(built.model, plan.layers)
    assert not without
    first, second = (
        {
            entry.node: found
            for entries, moments in take_moments(built.model, list(inputs.values()), [order])
            for found in moments()
            for entry in entries
        }
        for order in (samples, samples[::-1])
    )
    for node, found in first.items():
        np.testing.assert_array_equal(found.gram, second[node].gram)
        np.testing.assert_array_equal(found.total, second[node].total)


@pytest.mark.parametrize("pass_bytes", [1, 10**9])
def test_moments_are_the_same_from_codes_and_from_sums_and_whatever_the_passes(bench, monkeypatch, pass_bytes):
    model = bench.text(
        "g (float[N,6,80] x) => (float[N,6,9] y) { a = MatMul(x, W) r = Relu(a) y = MatMul(r, V) }",
        W=(80, 70),
        V=(70, 9),
    )
    samples = [replace(each, feed={"x": each.feed["x"][:1]}) for each in bench.samples(model, count=5)]
    prepared, plan, table, _ = bench.quantized(model, samples=samples)
    built = build_model(prepared.model, plan, table)
    inputs, _ = layer_inputs(built.model, plan.layers)
    splits = [samples[:3], samples[3:]]
    found = []
    for size in (1, 10**9):
        monkeypatch.setattr(probe_inputs, "_bytes_of_codes", lambda *_, size=size: size)
        monkeypatch.setattr(probe_inputs, "PASS_BYTES", pass_bytes)
        found.append([moments() for _, moments in take_moments(built.model, list(inputs.values()), splits)])
    from_codes, from_sums = found
    assert len(from_codes) == 2
    for one, other in zip(itertools.chain(*from_codes), itertools.chain(*from_sums), strict=True):
        assert one.count == other.count > 0
        np.testing.assert_array_equal(one.gram, other.gram)
        np.testing.assert_array_equal(one.total, other.total)


@pytest.mark.parametrize(
    ("text", "weights", "samples_run"),
    [
        # of 6 tokens each, 20 and 10 samples have the rows that are asked for
        ("a = MatMul(x, W) r = Relu(a) y = MatMul(r, V)", {"W": (80, 70), "V": (70, 9)}, (20, 10)),
        # a layer that reads one row of each sample needs all of them
        ("a = MatMul(x, W) p = ReduceMean<axes=[1]>(a) y = MatMul(p, V)", {"W": (80, 70), "V": (70, 9)}, (30, 15)),
        # and so do convolutions
        ("c = Conv(x, W) y = MatMul(c, V)", {"W": (6, 6, 1), "V": (80, 9)}, (30, 15)),
    ],
)
def test_no_more_samples_run_than_give_every_product_its_rows(bench, monkeypatch, text, weights, samples_run):
    monkeypatch.setattr(probe_inputs, "ROWS", 120)
    monkeypatch.setattr(probe_inputs, "UNSEEN_ROWS", 60)
    monkeypatch.setattr(probe_inputs, "LEAST_SAMPLES", 2)
    runs = []
    run = probe_inputs._runs
    monkeypatch.setattr(probe_inputs, "_runs", lambda *each: runs.append(len(each[2])) or run(*each))
    model = bench.text(f"g (float[N,6,80] x) => (float[N,A,B] y) {{ {text} }}", **weights)
    samples = [replace(each, feed={"x": each.feed["x"][:1]}) for each in bench.samples(model, count=45)]
    prepared, plan, table, _ = bench.quantized(model, samples=samples)
    built = build_model(prepared.model, plan, table)
    inputs, _ = layer_inputs(built.model, plan.layers)
    splits = [samples[:30], samples[30:]]
    assert all(found()[0].count for _, found in take_moments(built.model, list(inputs.values()), splits))
    assert runs == [1, *samples_run]


def test_a_table_rebuilds_the_refined_model_to_the_byte(refined):
    prepared, _, _, built, _, (new, lines) = refined
    assert Rounding.of(new).values
    assert lines[0].startswith("second-order rounding fitted to")
    first = build_model(prepared.model, refined[1], new)
    again = build_model(prepared.model, refined[1], parse_table(table_to_json(new), "t"))
    assert first.model.SerializeToString(deterministic=True) == again.model.SerializeToString(deterministic=True)
    changed = [
        node for node in Rounding.of(new).values if (first.layers[node].weight != built.layers[node].weight).any()
    ]
    assert changed == list(Rounding.of(new).values)
    for node, layer in first.layers.items():
        np.testing.assert_array_equal(layer.scales, built.layers[node].scales)


def test_without_samples_to_judge_nothing_changes(refined):
    _, _, table, built, samples, _ = refined
    new, lines = refine_layers(built, table, samples, [])
    assert not Rounding.of(new)
    assert lines[0] == "second-order rounding fitted to 0 of 3 layers"


def test_what_was_fitted_is_not_called_kept_before_the_model_was_judged(refined):
    *_, (_, lines) = refined
    assert not [line for line in lines if " kept" in line]
    assert lines[1] == "bias correction fitted to 2 layers along with it"


def test_an_edited_scale_of_a_weight_is_refused_where_codes_are_stored(refined):
    prepared, plan, _, _, _, (new, _) = refined
    node = next(iter(Rounding.of(new).values))
    key = next(plan.weight_key(layer.node, layer.weight) for layer in plan.layers if layer.node == node)
    entry = new.weights[key]
    edited = replace(entry, scales=tuple(scale * 1.25 for scale in entry.scales))
    with pytest.raises(TableError, match="other weights or scales") as caught:
        build_model(prepared.model, plan, replace(new, weights={**new.weights, key: edited}))
    assert node in str(caught.value)
    assert "corrections.rounding" in str(caught.value)


def test_codes_for_a_node_that_is_no_layer_are_refused(refined):
    prepared, plan, table, _, _, _ = refined
    with pytest.raises(TableError, match="'nobody'"):
        build_model(prepared.model, plan, replace(table, corrections=(Rounding({"nobody": ""}),)))


def test_a_text_that_is_no_text_is_refused_on_load(refined):
    table = refined[2]
    text = table_to_json(replace(table, corrections=(Rounding({"n": [1]}),)))
    with pytest.raises(TableError, match=r"corrections\.rounding of 'n'"):
        parse_table(text, "t")


START = np.array([[[100, 20, -3, 0]]], np.int8)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("%%%", "cannot be decoded"),
        ("é", "cannot be decoded"),
        ("AAAA", "cannot be decoded"),
        (codes_to_text(START[..., :3], START[..., :3]), "is not for a weight of 4 values"),
        (codes_to_text(np.tile(START, 99), np.tile(START, 99)), "is not for a weight of 4 values"),
        (codes_to_text(START + np.int8(1), START), "is for other weights or scales"),
        (codes_to_text(START, START - np.array([0, 0, 126, 0], np.int8)), r"outside -127\.\.127"),
        (codes_to_text(START, START + np.array([0, 20, 0, 0], np.int8)), "can saturate"),
    ],
)
def test_a_damaged_or_foreign_text_is_refused(text, what):
    links = link(("flat",), 1, 4)
    with pytest.raises(TableError, match=what):
        codes_from_text(text, START, links, S8, "n")


def test_codes_beyond_seven_bits_are_refused_for_s7():
    with pytest.raises(TableError, match=r"outside -64\.\.63"):
        codes_from_text(codes_to_text(START, START), START, link((), 1, 4), S7, "n")


def test_codes_come_back_from_their_text():
    codes = np.array([[[127, 1, -3, 0]]], np.int8)
    links = link(("flat",), 1, 4)
    np.testing.assert_array_equal(codes_from_text(codes_to_text(START, codes), START, links, S8, "n"), codes)
    assert not unsafe_pairs(codes, links).any()


OTHERS = {
    "products": (
        "g (float[N,6,8] x) => (float[A,C,D] y) { p = MatMul(x, W) a = Add(p, B) r = Relu(a) y = MatMul(r, V) }",
        {"W": (8, 16), "B": (16,), "V": (16, 5)},
    ),
    "transposed": (
        """g (float[N,4,5,5] x) => (float[A,C,D,E] y) {
        y = ConvTranspose <strides = [2, 2], pads = [1, 1, 0, 0], output_padding = [1, 0], group = 2> (x, W, B) }""",
        {"W": (4, 3, 3, 3), "B": (6,)},
    ),
    "auto_pad": (
        'g (float[N,4,7,7] x) => (float[A,C,D,E] y) { y = Conv <auto_pad = "SAME_LOWER", strides = [2, 2]> (x, W, B) }',
        {"W": (6, 4, 3, 3), "B": (6,)},
    ),
    "batch": ("g (float[3,10] x) => (float[3,C] y) { y = Gemm <transB = 1> (x, W, B) }", {"W": (6, 10), "B": (6,)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_moments_of_any_layer_predict_its_mean_output(bench, name):
    text, shapes = OTHERS[name]
    model = bench.text(text, **shapes)
    samples = [replace(each, feed={"x": each.feed["x"][:1]}) for each in bench.samples(model, count=5)]
    target = "tensorrt" if name == "transposed" else "portable"
    activations = "s8" if target == "tensorrt" else "u8"
    prepared, plan, table, _ = bench.quantized(model, samples=samples, target=target, activations=activations)
    built = build_model(prepared.model, plan, table)
    inputs, without = layer_inputs(built.model, plan.layers)
    assert not without
    last = plan.layers[-1]
    _, moments = list(take_moments(built.model, list(inputs.values()), [samples]))[-1]
    (found,) = moments()
    integers = built.layers[last.node]
    reduction = last.reduction
    scaled = reduction.rows(integers.weight).values * integers.scales[:, None, None]
    input_scale = table.tensors[last.input].scale
    mean = mean_output(scaled, found) * input_scale
    if integers.bias is not None:
        mean += integers.bias * scales_per_output(integers.scales, last) * input_scale
    session = Session(built.model)
    runs = [outputs["y"] for _, outputs in run_each(session, prepared.signature, samples)]
    outputs = np.concatenate(runs)
    axis = 1 if last.op_type.startswith("Conv") else outputs.ndim - 1
    expected = np.moveaxis(outputs, axis, -1).reshape(-1, outputs.shape[axis]).mean(axis=0)
    np.testing.assert_allclose(mean, expected, atol=0.02 * np.abs(expected).max())


def test_a_stack_of_matrices_is_left_out_and_named(bench):
    model = bench.text("g (float[N,2,3,8] x) => (float[A,B,C,D] y) { y = MatMul(x, W) }", W=(2, 8, 5))
    prepared, plan, table, _ = bench.quantized(model)
    built = build_model(prepared.model, plan, table)
    samples = bench.samples(model, count=2)
    new, lines = refine_layers(built, table, samples, samples)
    assert not Rounding.of(new)
    assert lines[-1].endswith("left out: its weights are a stack of matrices")


NORMALIZED = """g (float[N,64] x) => (float[N,24] y) {
    n = LayerNormalization <axis = -1> (x, S, T) m = MatMul (n, W) r = Relu (m) y = MatMul (r, U)
}"""
PLAIN = "g (float[N,64] x) => (float[N,24] y) { m = MatMul (x, W) r = Relu (m) y = MatMul (r, U) }"


def products_searched(search_inputs, bench, text):
    random = np.random.default_rng(4)
    weights = {"W": random.normal(size=(64, 48)), "U": random.normal(size=(48, 24))}
    if "S" in text:
        weights |= {"S": random.lognormal(sigma=1.0, size=64), "T": np.zeros(64)}
    inputs = search_inputs(text, **{name: each.astype(np.float32) for name, each in weights.items()})
    fit = list(bench.samples(inputs.prepared, 24, seed=1))
    unseen = list(bench.samples(inputs.prepared, 16, seed=2))
    inputs = replace(inputs, holdout=replace(inputs.holdout, fit=fit, validation=unseen))
    return search(first_state(inputs, plain_candidate(inputs)), (propose_where_weights_matter,), inputs)


def test_products_behind_a_norm_are_rounded_in_every_recipe(search_inputs, bench):
    state = products_searched(search_inputs, bench, NORMALIZED)
    assert "second-order rounding" in [each.name for each in state.results if each.kept]
    assert all(propose_where_weights_matter in RECIPES[each].steps for each in ("fast", "balanced"))


def test_products_without_a_norm_are_left_to_the_recipe_that_rounds_all(search_inputs, bench):
    state = products_searched(search_inputs, bench, PLAIN)
    assert "second-order rounding" not in [each.name for each in state.results]


def convolutions_searched(search_inputs, bench, beside):
    """Search on two convolutions of which each has one weight per output channel that is so much larger."""
    random = np.random.default_rng(7)
    weights = {name: random.normal(size=(16, 16, 3, 3)).astype(np.float32) for name in ("W", "V")}
    for weight in weights.values():
        weight[range(16), range(16), 1, 1] += np.float32(beside)
    inputs = search_inputs(
        """g (float[N,16,8,8] x) => (float[N,16,8,8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W) r = Relu (a) y = Conv <pads = [1, 1, 1, 1]> (r, V)
        }""",
        **weights,
    )
    fit = list(bench.samples(inputs.prepared, 24, seed=1))
    unseen = list(bench.samples(inputs.prepared, 16, seed=2))
    inputs = replace(inputs, holdout=replace(inputs.holdout, fit=fit, validation=unseen))
    return search(first_state(inputs, plain_candidate(inputs)), (propose_where_weights_matter,), inputs)


def test_convolutions_with_a_norm_folded_beside_them_are_rounded_in_every_recipe(search_inputs, bench):
    (found,) = convolutions_searched(search_inputs, bench, 100.0).results
    assert (found.name, found.kept) == ("second-order rounding", True)


def test_convolutions_with_weights_of_like_size_are_left_to_the_recipe_that_rounds_all(search_inputs, bench):
    assert not convolutions_searched(search_inputs, bench, 0.0).results


def test_products_of_a_large_model_are_left_to_the_recipe_that_rounds_all(search_inputs, bench, monkeypatch):
    monkeypatch.setattr(second_order, "MOST_WEIGHTS", 64 * 48 + 48 * 24 - 1)
    state = products_searched(search_inputs, bench, NORMALIZED)
    assert "second-order rounding" not in [each.name for each in state.results]
