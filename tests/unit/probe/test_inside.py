"""The noise of single roundings in bodies, against int8 models in which nothing else is quantized."""

import numpy as np
import onnx
import pytest
from control_flow import feeds, loop, nested, scan, sharp

import int8cal
from int8cal.data.sample import Sample
from int8cal.graph.chains import find_chains
from int8cal.graph.prepare import prepare, require_layers
from int8cal.graph.select import Selection
from int8cal.probe import contributions
from int8cal.probe.contributions import measure_contributions
from int8cal.probe.inside import NOTHING, InnerGraph, switched_model
from int8cal.probe.rounded import NoiseSource, RoundedLayer
from int8cal.quantization.build import build_model
from int8cal.quantization.corrections.equalization import Equalization, apply_factors
from int8cal.runtime.sessions import Session, simplify
from int8cal.search.goals.mixed import PrecisionMix, build_mix
from int8cal.search.search import Result

pytestmark = pytest.mark.newest  # older versions of onnx do not parse the names of nodes

PLAIN = {"latency_allowance": 0.0, "threads": 1, "method": "max"}


def steps(count):
    rng = np.random.default_rng(5)
    return [
        {"start": np.zeros(16, np.float32), "steps": rng.normal(size=(4, 16)).astype(np.float32)} for _ in range(count)
    ]


# networks are made in the tests: where these are not run, nothing may parse them
CASES = {
    "if": (sharp, feeds(6, flag=True) + feeds(2, seed=1, flag=False), ("choice/then_branch/four", "choice/else_branch/other")),
    "loop": (loop, feeds(6, rounds=np.int64(3)), ("walk/body/layer",)),
    "nested": (nested, feeds(6, flag=True, deep=True), ("outer/then_branch/inner/then_branch/deepest",)),
    "scan": (scan, steps(6), ("walk/body/read",)),
}  # fmt: skip


def measured(net, items):
    """Contributions of every layer of a body, input and weights together, by full name."""
    table = int8cal.calibrate(net, items, **PLAIN)
    prepared = prepare(net, simplify)
    plan = require_layers(prepared, Selection())
    inside = []
    for path, each in plan.bodies.items():
        own, built = table.bodies[path], build_model(each.body.model, each.plan, table.bodies[path])
        sources = {
            NoiseSource(what, layer.node): RoundedLayer(
                layer, built.layers[layer.node], own.tensors[layer.input].affine, layer.node in built.draft.residual
            )
            for layer in each.plan.layers
            for what in ("input", "weights")
        }
        elements = {tensor.tensor: 16.0 for tensor in each.plan.tensors}
        rescaled = apply_factors(
            each.body.model, find_chains(each.body.model, each.plan), Equalization.of(own).exponents
        )
        inside.append(InnerGraph(each.body, rescaled, each.plan, sources, elements, 1.0))
    samples = [Sample(feed, "") for feed in items]
    found = measure_contributions(
        prepared.model, plan, prepared.signature, {}, samples, {each.tensor: 16.0 for each in plan.tensors}, inside=inside, threads=1
    )  # fmt: skip
    powers = {}
    for source, power in found.noise.items():
        powers[source.name] = powers.get(source.name, 0.0) + power
    return prepared, table, inside, powers


def brute(prepared, table, items, layer):
    """Leave all layers but one in float and measure what that does."""
    plan = require_layers(prepared, Selection())
    others = tuple(name for name in plan.ranged_layers if name != layer)
    scored = Result(table, {}, (), plan, onnx.ModelProto(), outputs={7: {}})
    mix = build_mix(prepared, scored, PrecisionMix(floats=others))
    assert mix.outputs == {}  # they were the other model's
    int8 = mix.model
    pair = [Session(model, threads=1) for model in (prepared.model, int8)]
    names = [value.name for value in prepared.model.graph.output]
    found = np.zeros(len(names))
    for feed in items:
        exact, noisy = (each.run(feed) for each in pair)
        found += [float(np.square(exact[name].astype(np.float64) - noisy[name]).sum()) for name in names]
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::int8cal.data.checks.DataWarning")
def test_input_and_weights_add_up_to_what_quantizing_the_layer_alone_does(case):
    make, items, layers = CASES[case]
    net = make()
    prepared, table, _, powers = measured(net, items)
    for layer in layers:
        # what two errors do together depends on their signs too, in as few values as these
        assert (np.abs(10 * np.log10(powers[layer] / brute(prepared, table, items, layer))) < 3).all()


@pytest.mark.filterwarnings("ignore::int8cal.data.checks.DataWarning")
def test_chunks_do_not_change_what_is_measured(monkeypatch):
    make, items, _ = CASES["nested"]
    net = make()
    *_, whole = measured(net, items)
    monkeypatch.setattr(contributions, "CHUNK_BYTES", 1)
    *_, parts = measured(net, items)
    assert parts.keys() == whole.keys()
    for name, power in parts.items():
        assert power == pytest.approx(whole[name], rel=1e-3)


@pytest.mark.filterwarnings("ignore::int8cal.data.checks.DataWarning")
def test_without_a_number_the_model_is_the_float_model():
    make, items, _ = CASES["loop"]
    net = make()
    prepared, _, inside, _ = measured(net, items)
    numbers = {each.full(source): at for each in inside for at, source in enumerate(each.sources)}
    switched, switch = switched_model(prepared.model, inside, numbers)
    onnx.checker.check_model(switched)
    sessions = [Session(model, threads=1) for model in (net, switched)]
    for feed in items[:2]:
        expected, silent, told = (
            sessions[0].run(feed), sessions[1].run(feed), sessions[1].run({**feed, switch: np.array(NOTHING)})
        )  # fmt: skip
        np.testing.assert_allclose(silent["y"], expected["y"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(silent["y"], told["y"])
