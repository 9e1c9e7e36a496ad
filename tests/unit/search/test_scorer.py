"""A score, what is a sure gain, and that recipes score where something can be seen."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import int8cal
from int8cal.data.sample import Sample, fingerprint_of
from int8cal.graph.signature import signature_of
from int8cal.job import CalibrationSettings, DataSettings, Job
from int8cal.pipeline import calibrate_model
from int8cal.runtime.sessions import Session
from int8cal.search import scorer
from int8cal.search.recipes import PLAIN, RECIPES, Recipe
from int8cal.search.scorer import Gain, Score, Scorer, gain_of, split_samples


def score(noise, signal=None):
    noise = np.asarray(noise, np.float64)
    return Score(noise, np.ones_like(noise) if signal is None else np.asarray(signal, np.float64))


def test_the_worst_point_decides():
    assert score([[1e-2, 0.0]]).db == pytest.approx(20 + 10 * math.log10(2))
    assert score([[1e-2, 1e-9]]).db == pytest.approx(score([[1e-2, 0.0]]).db, abs=1e-5)


@pytest.mark.parametrize(
    ("gain", "told"),
    [
        (Gain(-0.55, 0.27, -0.55, 0.27), "a loss of 0.55 ± 0.27 dB, more than chance"),
        (Gain(1.52, 0.27, 1.52, 0.27), "a gain of 1.52 ± 0.27 dB, more than chance"),
        (Gain(-0.1, 0.27, -0.1, 0.27), "a loss of 0.10 ± 0.27 dB, no more than chance"),
        (Gain(0.0, 0.0, 0.0, 0.0), "no difference"),
        (Gain(1e-4, 1e-5, 1e-4, 1e-5), "a gain below 0.01 dB, more than chance"),
        (Gain(0.1, math.inf, 0.1, math.inf), "one validation sample cannot tell a gain from noise"),
        (
            Gain(0.14, 0.25, -3.14, 1.72),
            (
                "at the worst output a gain of 0.14 ± 0.25 dB, no more than chance; "
                "in the mean of all a loss of 3.14 ± 1.72 dB, more than chance"
            ),
        ),
    ],
)
def test_a_gain_is_told_by_its_interval_and_each_figure_once(gain, told):
    assert gain.told == told


def test_points_without_a_signal_do_not_count():
    assert score([[1e-3, 5.0]], [[1.0, 0.0]]).db == pytest.approx(30)


def test_an_exact_model_has_a_finite_score():
    assert score([[0.0]]).db == pytest.approx(320)


def test_only_the_same_noise_in_every_sample_is_no_gain_at_all():
    assert gain_of(score([[1.0], [2.0]]), score([[1.0], [2.0]])).none
    assert gain_of(score([[1.0]]), score([[1.0]])).none
    swapped = gain_of(score([[1.0], [2.0]]), score([[2.0], [1.0]]))
    assert swapped.db == 0
    assert not swapped.none


def test_one_sample_cannot_tell_a_gain_from_noise():
    gain = gain_of(score([[1.0]]), score([[0.1]]))
    assert gain.db == pytest.approx(10)
    assert not gain.sure


def test_a_gain_in_every_sample_is_sure_and_one_by_a_single_sample_is_not():
    rng = np.random.default_rng(1)
    before = rng.uniform(0.5, 2.0, size=(32, 1))
    everywhere = gain_of(score(before), score(0.9 * before))
    assert everywhere.db == pytest.approx(-10 * math.log10(0.9))
    assert everywhere.sure
    loud = before.copy()
    loud[0] = 20.0
    once = gain_of(score(loud), score(before))
    assert once.db > everywhere.db
    assert not once.sure


def test_a_point_that_shows_next_to_no_noise_decides_nothing():
    rng = np.random.default_rng(3)
    noise = np.stack([rng.uniform(0.5, 2.0, size=32), 1e-9 * rng.uniform(0.5, 2.0, size=32)], axis=1)
    gain = gain_of(score(noise), score(noise * [0.9, 8.0]))
    assert gain.mean_db == pytest.approx(-10 * math.log10(0.9))
    assert gain.sure


@pytest.mark.parametrize(
    ("gain", "least_db", "decided"),
    [
        (Gain(1.0, 0.4, 1.0, 0.4, weakest_db=0.2), 0.0, True),
        (Gain(1.0, 0.6, 1.0, 0.6, weakest_db=-0.2), 0.0, False),
        (Gain(1.0, 0.4, 1.0, 0.4, weakest_db=-0.1), 0.0, False),  # one point may lose
        (Gain(1.0, 0.2, 1.0, 0.2, weakest_db=0.6), 0.7, False),
        (Gain(1.0, 0.2, 1.0, 0.2, weakest_db=0.6), 1.5, True),  # too little
        (Gain(-1.0, 0.4, 0.5, 0.1, weakest_db=-1.8), 0.0, True),
        (Gain(0.5, 0.1, -1.0, 0.4, weakest_db=-1.8), 0.0, True),
        (Gain(-1.0, 0.6, -0.1, 0.4, weakest_db=-2.2), 0.0, False),
        (Gain(0.01, 0.01, 0.01, 0.01, weakest_db=-0.01), 0.0, True),  # next to nothing, either way
        (Gain(0.01, 0.01, 0.2, 0.01, weakest_db=-0.01), 0.0, False),
        (Gain(0.0, 0.0, 0.0, 0.0, none=True, weakest_db=0.0), 0.0, True),
        (Gain(9.0, math.inf, 9.0, math.inf), 0.0, False),
        # what may cost a little
        (Gain(-0.1, 0.05, -0.1, 0.05, weakest_db=-0.2), -0.3, True),
        (Gain(-0.1, 0.15, -0.1, 0.15, weakest_db=-0.4), -0.3, False),
        (Gain(-0.1, 0.05, -0.1, 0.05, weakest_db=-0.4), -0.3, False),
        (Gain(-0.6, 0.1, -0.6, 0.1, weakest_db=-0.8), -0.3, True),
    ],
)
def test_a_verdict_that_more_samples_would_hardly_change_needs_no_more(gain, least_db, decided):
    assert gain.decided(least_db) == decided


def test_the_point_that_gains_least_is_told_with_its_margin():
    rng = np.random.default_rng(4)
    noise = rng.uniform(0.5, 2.0, size=(16, 2))
    shares = rng.uniform(0.45, 0.55, size=(16, 1)) * [1.0, 1.5]
    gain = gain_of(score(noise), score(noise * shares))
    own = [gain_of(score(noise[:, [k]]), score(noise[:, [k]] * shares[:, [k]])) for k in range(2)]
    least = min(own, key=lambda each: each.db)
    assert gain.weakest_db == pytest.approx(least.db - 2 * least.margin_db)
    assert gain.weakest_db < gain.mean_db


@pytest.mark.parametrize(
    ("samples", "looks", "long"),
    [(1, (1,), (1,)), (2, (2,), (2,)), (4, (2, 4), (2, 4)), (29, (15, 29), (8, 15, 29)), (32, (16, 32), (8, 16, 32))],
)
def test_models_are_compared_on_a_part_of_the_samples_first(samples, looks, long):
    assert scorer._looks(samples, long=False) == looks
    assert scorer._looks(samples, long=True) == long


@pytest.mark.parametrize(("batch", "looks"), [(2, (8, 16, 32)), (10, (10, 20, 32)), (16, (16, 32)), (32, (32,))])
def test_a_part_is_made_of_whole_batches(batch, looks):
    assert scorer._looks(32, long=True, batch=batch) == looks


def test_of_models_that_differ_by_nothing_few_are_called_better():
    rng = np.random.default_rng(2)
    better = total = 0
    for _ in range(2000):
        common = rng.gamma(4.0, size=(16, 1))
        first, second = (common * rng.gamma(20.0, size=(16, 1)) for _ in range(2))
        gain = gain_of(score(first), score(second))
        better += gain.sure
        total += gain.db > gain.margin_db
    assert 0.07 < total / 2000 < 0.13
    assert better / 2000 < 0.13


# A word spotter as they are trained: nearly every sample has one class at probability 1.


@dataclass(frozen=True)
class Spotter:
    model: onnx.ModelProto
    calibration: list
    test: dict


def sounds(rng, count, centres, spread):
    classes = rng.integers(len(centres), size=count)
    return centres[classes] + spread * rng.normal(size=(count, centres.shape[1])), classes


def trained(rng, x, classes, widths):
    """Weights and biases of a ReLU network after plain gradient descent on cross entropy."""
    sizes = [x.shape[1], *widths, classes.max() + 1]
    weights = [rng.normal(size=pair) * math.sqrt(2 / pair[0]) for pair in itertools.pairwise(sizes)]
    biases = [np.zeros(size) for size in sizes[1:]]
    target = np.eye(sizes[-1])[classes]
    for _ in range(400):
        values = [x]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            values.append(np.maximum(values[-1] @ weight + bias, 0))
        logits = values[-1] @ weights[-1] + biases[-1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        slope = (odds / odds.sum(axis=1, keepdims=True) - target) / len(x)
        for layer in reversed(range(len(weights))):
            step = values[layer].T @ slope, slope.sum(axis=0)
            slope = (slope @ weights[layer].T) * (values[layer] > 0)
            weights[layer] -= 0.5 * step[0]
            biases[layer] -= 0.5 * step[1]
    return weights, biases


def make_spotter(bench, seed):
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(4, 24))
    weights, biases = trained(rng, *sounds(rng, 600, centres, 0.9), (32, 32))
    weights[-1], biases[-1] = 6 * weights[-1], 6 * biases[-1]  # a long training
    text = """g (float[N,24] x) => (float[N,4] y) {
        a = Gemm(x, W0, B0) b = Relu(a) c = Gemm(b, W1, B1) d = Relu(c) z = Gemm(d, W2, B2) y = Softmax <axis = 1> (z) }"""
    named = {f"W{i}": w for i, w in enumerate(weights)} | {f"B{i}": b for i, b in enumerate(biases)}
    # the world is noisier than the studio
    studio, world = (sounds(rng, *each)[0].astype(np.float32) for each in ((300, centres, 0.9), (8000, centres, 1.1)))
    return Spotter(bench.text(text, **named), [{"x": row[None]} for row in studio], {"x": world})


@pytest.fixture(scope="module")
def spotter(bench):
    return make_spotter(bench, 11)


def unseen(bench, spotter, recipe):
    """SQNR in dB of probabilities and of logits on data from another world, and how often the model is certain."""
    table = int8cal.calibrate(spotter.model, spotter.calibration, recipe=recipe)
    models = [onnx.ModelProto(), int8cal.quantize(spotter.model, table)]
    models[0].CopyFrom(spotter.model)
    for model in models:
        model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["N", 4]))
    exact, rounded = (bench.run(model, spotter.test) for model in models)
    figures = [
        10 * math.log10(np.square(exact[name], dtype=np.float64).sum() / np.square(exact[name] - rounded[name]).sum())
        for name in ("y", "z")
    ]
    return figures, (exact["y"].max(axis=1) > 0.999).mean()


def test_accurate_is_not_decided_by_chance_where_probabilities_are_saturated(bench):
    # of the probabilities themselves a few samples near a border decide the SQNR; in front of them all count
    gains = []
    for seed in (11, 12, 13, 14):
        spotter = make_spotter(bench, seed)
        fast, certain = unseen(bench, spotter, "fast")
        accurate, _ = unseen(bench, spotter, "accurate")
        assert certain > 0.99
        gains.append(accurate[1] - fast[1])
    assert np.mean(gains) > -0.3
    assert min(gains) > -1.0


def test_in_front_of_saturated_probabilities_noise_is_seen(bench, spotter):
    samples = [Sample(feed, "") for feed in spotter.calibration[:64]]
    prepared, _, _, built = bench.quantized(spotter.model, method="max", samples=samples)
    scorer = Scorer(prepared.model, prepared.signature, samples, threads=1)
    found = scorer(built.model)
    assert [point.name for point in scorer.points] == ["y", "z"]
    outputs, logits = found.noise.sum(axis=0) / found.signal.sum(axis=0)
    assert logits > 10 * outputs
    assert found.db == pytest.approx(-10 * math.log10((outputs + logits) / 2))


@pytest.mark.parametrize(
    ("count", "validation", "fit"),
    [(0, 0, 0), (1, 1, 0), (3, 3, 0), (15, 15, 0), (16, 8, 8), (17, 9, 8), (64, 32, 32), (80, 32, 48), (400, 32, 256)],
)
def test_kept_samples_are_split_and_none_is_used_twice(count, validation, fit):
    recipe = Recipe((), validation_samples=32, fit_samples=32)
    scored, fitted = split_samples(range(count), recipe)
    assert (len(scored), len(fitted)) == (validation, fit)
    assert [*scored, *fitted] == list(range(validation + fit))


@pytest.mark.parametrize(("run_s", "validation"), [(1e-5, 128), (0.25 / 50, 50), (0.1, 32)])
def test_where_inference_takes_long_fewer_are_scored_on(run_s, validation):
    recipe = Recipe((), validation_samples=128, fit_samples=32)
    scored, fitted = split_samples(range(200), recipe, run_s)
    assert (len(scored), len(fitted)) == (validation, 200 - validation)
    assert not {*scored} & {*fitted}


def test_without_samples_to_fit_on_all_are_scored_on():
    recipe = Recipe((), validation_samples=32)
    assert split_samples(range(10), recipe) == (tuple(range(10)), ())
    assert split_samples((), PLAIN) == ((), ())


@pytest.mark.parametrize(("count", "fit"), [(100, 50), (200, 80), (337, 80), (640, 128), (2000, 256)])
def test_a_recipe_that_fits_more_leaves_about_as_many_to_score_on(count, fit):
    """Else what the one recipe is sure of is lost in the noise of the other's smaller holdout."""
    scored, fitted = split_samples(range(count), RECIPES["accurate"])
    assert len(fitted) == fit
    assert len(scored) >= 0.85 * len(split_samples(range(count), RECIPES["fast"])[0])


def test_a_score_keeps_what_the_model_gave_as_far_as_it_is_what_the_model_gives(bench, monkeypatch):
    rng = np.random.default_rng(4)
    weights = {"W": rng.normal(size=(6, 9)).astype(np.float32)}

    def recorded(text, batch="N", holdout=4):
        model = bench.text(f"net (float[{batch},6] x) => ({text}", **weights)
        samples = [Sample({"x": rng.normal(size=(1, 6)).astype(np.float32)}, str(at)) for at in range(holdout)]
        kept = Scorer(model, signature_of(model), samples, threads=1)(model).outputs
        for sample in samples[: len(kept)]:
            given = Session(model, threads=1).run(sample.feed)
            for name, value in kept[fingerprint_of(sample.feed)].items():
                np.testing.assert_array_equal(value, given[name])
        return len(kept)

    product = "float[A,B] y) { y = MatMul(x, W) }"
    assert recorded(product) == 4
    assert recorded(product, batch="2") == 0
    # in front of probabilities noise is seen, and the outputs are others
    assert recorded("float[A,B] y) { m = MatMul(x, W) y = Softmax(m) }") == 0
    assert recorded("float[A,B] y, int64[A] k) { y = MatMul(x, W) k = ArgMax <axis = 1, keepdims = 0> (y) }") == 0
    monkeypatch.setattr("int8cal.search.scorer.RECORDED_BYTES", 3 * 9 * 4)
    assert recorded(product) == 3


def test_what_the_report_need_not_run_again_is_of_the_final_model(bench):
    rng = np.random.default_rng(4)
    model = bench.text("net (float[N,6] x) => (float[A,B] y) { y = MatMul(x, W) }", W=rng.normal(size=(6, 9)))
    feeds = [{"x": rng.normal(size=(1, 6)).astype(np.float32)} for _ in range(40)]
    job = Job(Path("net.onnx"), DataSettings("data"), CalibrationSettings(threads=1))
    found = calibrate_model(job, model, stream=lambda: feeds)
    assert found.outputs.int8
    known = {fingerprint_of(feed): feed for feed in feeds}
    final = Session(found.result.model, threads=1)
    for mark, outputs in found.outputs.int8.items():
        np.testing.assert_array_equal(outputs["y"], final.run(known[mark])["y"])


def test_boxes_do_not_hide_the_scores_that_one_node_computes_with_them(bench):
    rng = np.random.default_rng(4)
    weights = rng.uniform(0.1, 0.2, size=(6, 9)).astype(np.float32)
    weights[:, :4] *= 600

    def model(share):
        noisy = weights.copy()
        noisy[:, 4:] *= 1 + share * np.float32([1, -1, 1, -1, 1])
        return bench.text("net (float[1,32,6] x) => (float[1,32,9] y) { y = MatMul(x, W) }", W=noisy)

    samples = [Sample({"x": rng.uniform(0, 0.8, size=(1, 32, 6)).astype(np.float32)}, str(at)) for at in range(3)]
    fp32 = model(0)
    scorer = Scorer(fp32, signature_of(fp32), samples, threads=1)
    # the mean of noise over signal of boxes, which have none, and of scores
    assert scorer(model(np.float32(0.1))).db == pytest.approx(20 + 10 * math.log10(2), abs=0.1)
    assert [point.part for point in scorer.points] == [(2, 0, 4), (2, 4, 9)]
