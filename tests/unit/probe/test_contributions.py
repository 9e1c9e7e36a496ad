"""The noise of single roundings, against int8 models in which nothing else is quantized."""

from dataclasses import replace

import numpy as np
import pytest

from int8cal.graph.planner import make_plan
from int8cal.graph.select import Selection
from int8cal.probe import contributions
from int8cal.probe.contributions import Contributions, measure_contributions
from int8cal.probe.rounded import NoiseSource, RoundedLayer
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.runtime.sessions import Session

NET = "g (float[N,6,16] x) => (float[N,6,8] y)"
BODY = "a = MatMul(x, A) b = Add(a, B) c = Tanh(b) d = MatMul(c, D) e = Sigmoid(d) y = MatMul(e, E)"
WEIGHTS = {"A": (16, 12), "B": (12,), "D": (12, 12), "E": (12, 8)}
LAYERS = ("MatMul_a", "MatMul_d", "MatMul_y")


@pytest.fixture(scope="module")
def case(bench):
    prepared = bench.prepared(bench.text(f"{NET} {{ {BODY} }}", **WEIGHTS))
    plan = make_plan(prepared.model, Selection())
    samples = bench.samples(prepared.model, 8)
    table = bench.table(prepared, plan, samples=samples)
    elements = {each.tensor: 100.0 for each in plan.tensors}
    return prepared, plan, table, samples, elements


def sources_of(plan, table, built, nodes=()):
    affines = {name: entry.affine for name, entry in table.tensors.items()}
    return {
        NoiseSource(what, layer.node): RoundedLayer(
            layer, built.layers[layer.node], affines[layer.input], layer.node in nodes
        )
        for layer in plan.layers
        for what in ("input", "weights")
    }


def brute(prepared, table, samples, node):
    """Quantize one layer alone and measure what that does."""
    plan = make_plan(prepared.model, Selection(include=(node, node.replace("MatMul_a", "Add_b"))))
    only = replace(table, tensors={each.tensor: table.tensors[each.tensor] for each in plan.tensors})
    exact = Session(prepared.model, threads=1)
    int8 = Session(build_model(prepared.model, plan, only).model, threads=1)
    return sum(
        float(np.square(int8.run(each.feed)["y"].astype(np.float64) - exact.run(each.feed)["y"]).sum())
        for each in samples
    )


def test_input_and_weights_add_up_to_what_quantizing_the_layer_alone_does(case):
    prepared, plan, table, samples, elements = case
    assert tuple(layer.node for layer in plan.layers) == LAYERS
    layers = sources_of(plan, table, build_model(prepared.model, plan, table))
    measured = measure_contributions(prepared.model, plan, prepared.signature, layers, samples, elements, threads=1)
    powers = measured.noise
    for node in LAYERS:
        both = float((powers[NoiseSource("input", node)] + powers[NoiseSource("weights", node)]).sum())
        assert both == pytest.approx(brute(prepared, table, samples, node), rel=0.3)


def test_chunks_do_not_change_what_is_measured(case, monkeypatch):
    prepared, plan, table, samples, elements = case
    layers = sources_of(plan, table, build_model(prepared.model, plan, table))

    def measured():
        causes = layers
        return measure_contributions(
            prepared.model, plan, prepared.signature, causes, samples[:2], elements, threads=1
        ).noise

    whole = measured()
    monkeypatch.setattr(contributions, "CHUNK_BYTES", 1)
    for cause, power in measured().items():
        assert power == pytest.approx(whole[cause], rel=1e-3)


def test_a_second_plane_takes_nearly_all_noise_of_an_input_away(case):
    prepared, plan, table, samples, elements = case
    layers = sources_of(plan, table, build_model(prepared.model, plan, table))
    wide = with_residual_codes(table, plan, LAYERS)
    both = {
        NoiseSource("input", node, residual=True): replace(
            layer, affine=wide.tensors[layer.layer.input].affine, residual=True
        )
        for node in LAYERS
        for layer in (layers[NoiseSource("input", node)],)
    }
    causes = {**layers, **both}
    powers = measure_contributions(prepared.model, plan, prepared.signature, causes, samples, elements, threads=1).noise
    for node in LAYERS:
        assert powers[NoiseSource("input", node, residual=True)].sum() < powers[NoiseSource("input", node)].sum() / 20


@pytest.mark.parametrize(("kind", "cast"), [("float16", 10), ("double", 11), ("int64", 7)])
def test_outputs_of_other_real_types_count_and_whole_numbers_do_not(bench, kind, cast):
    text = f"g (float[N,6] x) => ({kind}[N,8] y) {{ h = Gemm(x, H) z = Cast <to = {cast}> (h) y = Identity(z) }}"
    prepared = bench.prepared(bench.text(text, H=(6, 8)))
    plan = make_plan(prepared.model, Selection())
    samples = bench.samples(prepared.model, 2)
    table = bench.table(prepared, plan, samples=samples)
    layers = sources_of(plan, table, build_model(prepared.model, plan, table))
    elements = {each.tensor: 6.0 for each in plan.tensors}
    measured = measure_contributions(prepared.model, plan, prepared.signature, layers, samples, elements, threads=1)
    powers = measured.noise
    assert {len(power) for power in powers.values()} == {0 if kind == "int64" else 1}
    assert all((power > 0).all() for power in powers.values())


QUIET, LOUD, PLANES = (
    NoiseSource("weights", "quiet"),
    NoiseSource("weights", "loud"),
    NoiseSource("input", "loud", residual=True),
)


def test_the_output_with_the_worst_sqnr_decides_what_a_layer_is_worth():
    noise = {QUIET: np.array([1.0, 0.0, 0.0]), LOUD: np.array([0.0, 1.0, 7.0]), PLANES: np.array([0.0, 0.5, 0.0])}
    measured = Contributions(("fine", "poor", "silent"), np.array([1e6, 10.0, 0.0]), noise)
    shares = measured.shares()
    assert shares[QUIET] == pytest.approx(1e-5, rel=1e-3)
    assert shares[LOUD] == pytest.approx(1.0, rel=1e-3)
    assert shares[PLANES] == pytest.approx(shares[LOUD] / 2)


def test_a_gate_about_one_output_makes_that_output_decide():
    noise = {QUIET: np.array([1.0, 0.0]), LOUD: np.array([1.0, 1.0])}
    measured = Contributions(("fine", "poor"), np.array([1e6, 10.0]), noise)
    assert measured.shares({"fine"}) == {QUIET: 0.5, LOUD: 0.5}
    assert measured.shares({"elsewhere"}) == {QUIET: 0.0, LOUD: 0.0}
