"""Runs that begin with the first stage an error enters give what runs of the whole model give."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from int8cal.numerics.affine import affine_of_values
from int8cal.probe import stages
from int8cal.probe.injection import ErrorSite
from int8cal.probe.probe import Probe
from int8cal.runtime import segments

IMAGE = "g (float[N,4,8,8] x)"
WEIGHTS = {"W": (4, 4, 3, 3), "V": (4, 4, 1, 1), "G": (4, 3), "K": (4, 4), "Q": (8, 8)}
MODELS = {
    "chain": f"{IMAGE} => (float[A,C,D,E] y) {{ a = Conv(x, V) b = Relu(a) c = Conv(b, V) d = Relu(c) e = Conv(d, V) "
    "f = Tanh(e) y = Conv(f, W) }",
    # a sum that is read twice, skipped stages, and an inner output that is written by a kernel and read on
    "residual": f"{IMAGE} => (float[A,C,D,E] c, float[F,H,I,J] y) "
    "{ a = Conv(x, V) b = Conv(a, V) s = Add(a, b) c = Conv(s, V) u = Add(s, c) d = Conv(u, V) t = Add(d, a) "
    "e = Conv(t, V) y = Add(e, x) }",
    # a branch in a body, a shape that passes as integers, and an input that is read at the very end
    "bodies": f"{IMAGE} => (float[A,C,D,E] y) "
    "{ a = Conv(x, V) b = Relu(a) n = Shape(a) m = ReduceMean <keepdims = 0> (b) z = Greater(m, zero) "
    "i = If (z) <then_branch = g1 () => (float[P,Q,R,T] o) { o = Conv(b, V) }, "
    "else_branch = g2 () => (float[P,Q,R,T] o) { o = Neg(b) }> c = Conv(i, V) r = Reshape(c, n) d = Conv(r, V) "
    "e = Tanh(d) f = Conv(e, V) y = Add(f, x) }",
    "tokens": "g (float[N,8,4] x) => (float[A,C,D] y) { a = MatMul(x, K) b = Transpose <perm = [0, 2, 1]> (x) "
    "s = MatMul(a, b) p = Softmax(s) o = MatMul(p, a) h = Add(o, x) i = MatMul(h, K) r = Relu(i) j = MatMul(r, K) "
    "y = Add(j, h) }",
}


@pytest.fixture
def probes(bench, monkeypatch):
    def make(name, **settings):
        model = bench.text(MODELS[name], **WEIGHTS, zero=np.float32(0))
        prepared, plan, table, _ = bench.quantized(model)
        monkeypatch.setattr(segments, "STAGE_PRODUCTS", 1)
        cut = Probe(prepared.model, plan, prepared.signature, threads=2, **settings)
        assert len(cut._stages.stages) > 2
        monkeypatch.setattr(segments, "STAGE_PRODUCTS", 10**6)
        whole = Probe(prepared.model, plan, prepared.signature, threads=2, **settings)
        assert len(whole._stages.stages) == 1
        return cut, whole, bench.samples(prepared.model, 3), {n: each.affine for n, each in table.tensors.items()}

    return make


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("behind_layers", [False, True])
def test_single_errors_and_all_of_them_have_the_noise_of_the_whole_model(probes, name, behind_layers):
    cut, whole, samples, _ = probes(name, behind_layers=behind_layers)
    assert cut.sites == whole.sites
    rng = np.random.default_rng(4)
    for run, other in zip(cut.runs(samples), whole.runs(samples), strict=True):
        outputs = {layer.node: layer.output for layer in cut.plan.layers}
        shapes = {name: value.shape for name, value in _values(cut.model, run.feed).items()}
        errors = {
            site: 0.1 * rng.normal(size=shapes[outputs.get(site.tensor, site.tensor)]).astype(np.float32)
            for site in sorted(cut.sites, key=str)
        }
        for some in (*({site: error} for site, error in errors.items()), errors):
            found, expected = cut.noise(run, some), whole.noise(other, some)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-9)
        assert cut.noise(run, errors).min() > 0
        assert (cut.noise(run, {}) == 0).all()


def _values(model, feed):
    """Every tensor of a model, by another implementation."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return {**feed, **dict(zip(names, ReferenceEvaluator(shown).run(names, feed), strict=True))}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_depends_on_what_is_held(probes, monkeypatch, name):
    cut, _, samples, affines = probes(name)
    monkeypatch.setattr(segments, "STAGE_PRODUCTS", 1)
    roundings = [{site: affines.get(site.tensor)} for site in sorted(cut.sites, key=str)]
    roundings.append({site: affines.get(site.tensor) for site in cut.sites})
    expected = cut.rounding_noise(samples, roundings)
    cut.close()
    for passing, held in ((0, 0), (0, 10**9), (4096, 4096)):
        monkeypatch.setattr(stages, "_PASSING_BYTES", passing)
        monkeypatch.setattr(stages, "_HELD_BYTES", held)
        again = Probe(cut.model, cut.plan, cut.signature, threads=2)
        for found, known in zip(again.rounding_noise(samples, roundings), expected, strict=True):
            np.testing.assert_array_equal(found, known)
        again.close()


def test_what_stands_in_front_of_an_error_is_not_run(probes, monkeypatch):
    cut, _, samples, _ = probes("chain")
    (run,) = cut.runs(samples[:1])
    ran = []
    for number, stage in enumerate(cut._stages.stages):
        session = stage.opened.session
        monkeypatch.setattr(
            session, "run", lambda *args, number=number, run=session.run: ran.append(number) or run(*args)
        )
    last = max(number for number, stage in enumerate(cut._stages.stages) if stage.sites)
    (site, *_) = cut._stages.stages[last].sites
    assert last > 1
    cut.noise(run, {site: np.zeros((), np.float32)})
    assert ran == [last]
    cut.noise(run, {ErrorSite("x", "layers"): np.zeros((), np.float32)})
    assert ran[1:] == list(range(last + 1))


def test_values_of_a_run_are_those_of_the_model(probes):
    cut, _, samples, _ = probes("residual")
    (run,) = cut.runs(samples[:1])
    expected = _values(cut.model, run.feed)
    for point in cut.plan.tensors:
        np.testing.assert_allclose(run.values[point.tensor], expected[point.tensor], rtol=1e-4, atol=1e-5)
        assert affine_of_values(run.values[point.tensor]).scale > 0
