"""What single roundings do to the outputs, against the same measured by hand."""

import warnings

import numpy as np
import pytest
from onnx import numpy_helper

from int8cal.data.sample import Sample
from int8cal.numerics.affine import U8, Affine, fake_quantized
from int8cal.probe.injection import ErrorSite, sites_among
from int8cal.probe.probe import LayerProducts, Probe

WEIGHTS = {"W": (4, 4, 1, 1), "G": (6, 3), "H": (4, 6), "B": (6,), "K": (3, 2)}
TWO = "g (float[N,4,8,8] x) => (float[A,C,D,E] y, float[F,H,I,J] z) { c = Conv(x, W) y = Tanh(c) z = Conv(c, W) }"
MLP = "g (float[{}] x) => ({}[A,C] y) {{ h = Gemm(x, H, B) r = Relu(h) z = Gemm(r, G) y = {} }}"


def setup(bench, text, samples=None, **weights):
    model = bench.text(text, **{**WEIGHTS, **weights})
    prepared, plan, table, _ = bench.quantized(model, samples=samples)
    affines = {name: entry.affine for name, entry in table.tensors.items()}
    return prepared, plan, affines, Probe(prepared.model, plan, prepared.signature, threads=1)


def rounding(probe, tensor, affine):
    return dict.fromkeys(sites_among(probe.sites, tensor), affine)


def test_powers_are_those_of_outputs_computed_by_hand(bench):
    prepared, _, affines, probe = setup(bench, TWO)
    samples = bench.samples(prepared.model, 3)
    errors, signal = probe.rounding_noise(
        samples, [rounding(probe, "x", affines["x"]), {}, rounding(probe, "c", affines["c"])]
    )
    assert (errors.shape, signal.shape) == ((3, 3, 2), (3, 2))
    for row, sample in enumerate(samples):
        exact = bench.run(prepared.model, sample.feed)
        rounded = fake_quantized(sample.feed["x"], affines["x"])
        noisy = bench.run(prepared.model, {"x": rounded})
        for column, name in enumerate(("y", "z")):
            np.testing.assert_allclose(signal[row, column], np.square(exact[name]).sum(), rtol=1e-5)
            power = np.square(noisy[name] - exact[name]).sum()
            np.testing.assert_allclose(errors[0, row, column], power, rtol=1e-3)
    assert (errors[1] < 1e-9 * signal).all()
    assert (errors[2] > 0).all()


def test_one_sample_has_the_same_figures_alone_and_among_others(bench):
    prepared, _, affines, probe = setup(bench, TWO)
    samples = bench.samples(prepared.model, 3)
    each = [rounding(probe, name, affines[name]) for name in ("x", "c")]
    together, _ = probe.rounding_noise(samples, each)
    alone, _ = probe.rounding_noise(samples[1:2], each[1:])
    np.testing.assert_array_equal(together[1:, 1:2], alone)


def test_a_fixed_batch_is_filled(bench):
    rng = np.random.default_rng(2)
    samples = [Sample({"x": rng.normal(size=(1, 4)).astype(np.float32)}, str(index)) for index in range(8)]
    _, _, affines, probe = setup(bench, MLP.format("4,4", "float", "Identity(z)"), samples)
    errors, signal = probe.rounding_noise(samples[:1], [rounding(probe, "x", affines["x"])])
    assert 0 < errors.item() < signal.item()


@pytest.mark.parametrize(("kind", "cast"), [("float16", 10), ("double", 11)])
def test_outputs_of_other_real_types_count(bench, kind, cast):
    prepared, _, affines, probe = setup(bench, MLP.format("N,4", kind, f"Cast <to = {cast}> (z)"))
    errors, signal = probe.rounding_noise(bench.samples(prepared.model, 2), [rounding(probe, "x", affines["x"])])
    assert (errors > 0).all()
    assert (errors < signal).all()


def test_a_model_whose_outputs_hold_no_values_has_no_errors(bench):
    prepared, _, affines, probe = setup(bench, MLP.format("N,4", "int64", "Shape(z)").replace("[A,C]", "[2]"))
    errors, signal = probe.rounding_noise(bench.samples(prepared.model, 2), [rounding(probe, "x", affines["x"])])
    assert (errors.shape, signal.shape) == ((1, 2, 0), (2, 0))


def test_infinities_in_the_outputs_do_not_count_and_do_not_spread(bench):
    prepared, _, affines, probe = setup(bench, MLP.format("N,4", "float", "Log(p)").replace("y =", "p = Relu(z) y ="))
    samples = bench.samples(prepared.model, 4)
    exact = np.concatenate([bench.run(prepared.model, sample.feed)["y"] for sample in samples])
    assert np.isinf(exact).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        errors, signal = probe.rounding_noise(samples, [rounding(probe, "x", affines["x"])])
    assert np.isfinite(errors).all()
    np.testing.assert_allclose(signal.sum(), np.square(exact[np.isfinite(exact)]).sum(), rtol=1e-5)


def test_an_error_that_changes_an_output_s_shape_counts_as_much_as_the_output(bench):
    text = "g (float[N,4] x) => (float[A] y) { h = Gemm(x, H, B) r = Relu(h) z = Gemm(r, G) n = NonZero(r) "
    text += "f = Cast <to = 1> (n) y = ReduceSum <keepdims = 0> (f, axis) }"
    prepared, _, _, probe = setup(bench, text, axis=np.array([0]))
    everything = rounding(probe, "x", Affine(1e-6, 0, U8))  # clips all that is there
    errors, signal = probe.rounding_noise(bench.samples(prepared.model, 4), [everything])
    assert np.isfinite(errors).all()
    assert (errors[0] <= signal * 4 + 100).all()


SPEECH = (
    "g (float[1,6] x) => (float[A,C] y) { h = Gemm(x, H) a = Abs(h) s = ReduceSum <keepdims = 1> (a, axes) k = Cast <to = 7> (s)"
    " n = Reshape(k, one) shape = Concat <axis = 0> (n, one) e = Expand(h, shape) y = Gemm(e, G) }"
)


def test_an_error_that_changes_the_shape_of_a_tensor_with_an_error_counts_as_much_as_the_output(bench):
    """As in text to speech, whose lengths are what a layer predicts."""
    constants = {"H": 5.0 * np.eye(6, dtype=np.float32), "axes": np.array([1]), "one": np.array([1])}
    prepared, plan, _, probe = setup(bench, SPEECH, **constants)
    assert plan.tensor("e") is not None
    (run,) = probe.runs(bench.samples(prepared.model, 1))
    small, large = (
        {
            site: factor * np.ones_like(run.values[site.tensor])
            for name in ("x", "e")
            for site in sites_among(probe.sites, name)
        }
        for factor in (1e-6, 3.0)
    )
    assert 0.0 < probe.noise(run, small)[0] < 1e-6 * run.reference.power[0]
    assert probe.noise(run, large)[0] == run.reference.power[0]


def test_inputs_of_other_types_and_inputs_that_are_constants_are_fed_as_ever(bench):
    text = "g (float[N,4] x, int64[N] k, float[K] B) => (float[A,C] y) "
    text += "{ e = Gather(E, k) h = Gemm(x, H, B) s = Add(h, e) r = Relu(s) y = Gemm(r, G) }"
    text = text.replace("float[K] B", "float[6] B")
    prepared, _, affines, probe = setup(bench, text, E=(10, 6))
    samples = [Sample({**each.feed, "k": np.zeros(1, np.int64)}, each.origin) for each in bench.samples(prepared.model)]
    errors, _ = probe.rounding_noise(samples, [rounding(probe, "x", affines["x"])])
    assert (errors > 0).all()


def test_an_error_behind_a_layer_is_what_comes_out(bench):
    text = "g (float[N,8,4] x) => (float[N,8,4] y) { a = MatMul(x, A) b = Relu(a) y = MatMul(b, A) }"
    prepared, plan, _, _ = bench.quantized(bench.text(text, A=(4, 4)))
    samples = bench.samples(prepared.model, 3)
    inputs = [layer.input for layer in plan.layers]
    probe = Probe(prepared.model, plan, prepared.signature, threads=1, behind_layers=True, shown=inputs)
    runs = probe.runs(samples)
    (last,) = (layer for layer in plan.layers if layer.output == "y")
    assert len(runs) == 3
    assert probe.relative_noise(runs, [{}] * 3) == 0.0
    expected = [bench.run(prepared.model, sample.feed)["y"] for sample in samples]
    errors = [{ErrorSite(last.node, "output"): np.full((1, 8, 4), 0.5, np.float32)}] * 3
    power = sum(float(np.square(value).sum()) for value in expected)
    assert probe.relative_noise(runs, errors) == pytest.approx(3 * 32 * 0.25 / power, rel=1e-4)
    weight = next(numpy_helper.to_array(each) for each in prepared.model.graph.initializer if each.name == last.weight)
    product = LayerProducts(prepared.model, threads=1).product(last, runs[0].values[last.input], weight)
    np.testing.assert_allclose(product, expected[0], rtol=1e-4, atol=1e-4)
