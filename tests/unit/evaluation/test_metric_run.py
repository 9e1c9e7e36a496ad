"""What a metric is given, and what becomes of what it returns."""

import re
import sys

import numpy as np
import pytest

from int8cal.data.sample import Sample
from int8cal.errors import MetricError
from int8cal.evaluation.metric_run import MetricRun
from int8cal.evaluation.user_metric import open_metric
from int8cal.graph.signature import Signature, TensorSpec
from int8cal.numerics.bootstrap import paired_mean_interval

F32 = np.dtype(np.float32)


def signature(*outputs, batch="N"):
    """Outputs are (name, shape)."""
    return Signature(
        inputs=(TensorSpec("x", F32, (batch, 3)),),
        outputs=tuple(TensorSpec(name, F32, shape) for name, shape in outputs),
    )


def run(function, fp32, int8, *, labels=None, spec=None, most_bytes=10**9, origins=None):
    """Call a metric with lists of one output's arrays."""
    spec = spec or signature(("y", ("N", 4)))
    name = spec.outputs[0].name
    metric = MetricRun(open_metric(function), [(name, "other")], spec, most_bytes=most_bytes)
    for index, (x, y) in enumerate(zip(fp32, int8, strict=True)):
        origin = origins[index] if origins else f"{index}.jpg"
        sample = Sample({}, origin, None if labels is None else labels[index])
        metric.add(sample, {name: x}, {"other": y})
    return metric.result()


def rows(*values):
    return [np.full((1, 4), value, np.float32) for value in values]


def test_one_figure_of_each_model_has_a_drop_and_no_interval():
    found, reasons = run(lambda outputs, labels: float(outputs["y"].sum()), rows(1, 2), rows(1, 1))
    assert (found.fp32, found.int8, found.drop, found.drop_ci95, found.samples) == (12.0, 8.0, 4.0, None, 2)
    assert reasons == {"metric.drop_ci95": "the metric gives one figure, not one per sample"}


def test_a_figure_of_each_sample_has_an_interval():
    first, second = rows(1, 2, 3, 4), rows(1, 1.5, 3, 2)
    found, reasons = run(lambda outputs, labels: outputs["y"].mean(axis=1), first, second)
    assert (found.fp32, found.int8, found.drop) == (2.5, 1.875, 0.625)
    assert found.drop_ci95 == paired_mean_interval(np.array([1, 2, 3, 4.0]), np.array([1, 1.5, 3, 2]))
    assert reasons == {}


@pytest.mark.parametrize("mask", [[False, True, False], True])
def test_a_masked_figure_is_none(mask):
    def metric(outputs, labels):
        return np.ma.masked_array(outputs["y"][:, 0], mask)

    with pytest.raises(MetricError, match=r"sample [01]\.jpg: returns NaN"):
        run(metric, rows(1, 2, 3), rows(1, 2, 3))


def test_masks_of_a_metric_that_hide_nothing_do_no_harm():
    found, _ = run(lambda outputs, labels: np.ma.masked_array(outputs["y"][:, 0]), rows(1, 2), rows(1, 1))
    assert (found.fp32, found.int8) == (1.5, 1.0)


def test_where_lower_is_better_a_drop_is_still_what_got_worse():
    def error(outputs, labels):
        return outputs["y"].mean(axis=1)

    error.higher_is_better = False
    found, _ = run(error, rows(1, 2, 3, 4), rows(1, 2, 4, 4.5))
    assert (found.drop, found.higher_is_better) == (0.375, False)
    assert found.drop_ci95 == paired_mean_interval(np.array([1, 2, 4, 4.5]), np.array([1, 2, 3, 4.0]))


def test_outputs_of_one_shape_are_stacked_and_others_are_an_array_of_arrays():
    seen = []
    free = signature(("y", ("N", "K", 2)))
    run(
        lambda outputs, labels: seen.append(outputs["y"]) or 0.0,
        [np.zeros((1, 3, 2))] * 2,
        [np.zeros((1, 3, 2))] * 2,
        spec=free,
    )
    several = [np.zeros((1, 3, 2)), np.zeros((1, 5, 2))]
    run(lambda outputs, labels: seen.append(outputs["y"]) or 0.0, several, several, spec=free)
    assert seen[0].shape == (2, 3, 2)
    assert (seen[2].dtype, [each.shape for each in seen[2]]) == (np.dtype(object), [(3, 2), (5, 2)])


@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        (signature(("y", ("N", 4))), (1, 4), (3, 4)),
        (signature(("y", (1, 4)), batch=1), (1, 4), (3, 4)),
        (signature(("y", (2, 1, 5)), batch=1), (2, 1, 5), (3, 2, 1, 5)),
        (signature(("y", ("K", 4))), (1, 4), (3, 4)),
        (signature(("y", (1, 4))), (1, 4), (3, 1, 4)),  # the model says that its first axis is no batch
        (signature(("y", None)), (1, 4), (3, 4)),
        (signature(("y", ())), (), (3,)),
    ],
)
def test_the_batch_axis_becomes_that_of_the_samples(spec, shape, expected):
    seen = []
    values = [np.zeros(shape, np.float32)] * 3
    run(lambda outputs, labels: seen.append(outputs["y"].shape) or 0.0, values, values, spec=spec)
    assert seen == [expected, expected]


def test_labels_origins_and_the_fp32_outputs_are_there_for_who_asks():
    seen = []

    def metric(outputs, labels, origins, reference):
        seen.append((labels.tolist(), origins, float(reference["y"][0, 0])))
        return 0.0

    run(metric, rows(1, 2), rows(3, 4), labels=[5, 6])
    assert seen == [([5, 6], ["0.jpg", "1.jpg"], 1.0)] * 2
    run(lambda outputs, labels: seen.append(labels) or 0.0, rows(1), rows(1))
    assert seen[-1] is None


def test_what_a_metric_does_to_its_arguments_stays_in_that_call():
    def metric(outputs, labels, reference):
        found = float(reference["y"].sum() + labels.sum())
        outputs["y"] *= 0
        reference["y"] *= 0
        labels *= 0
        return found

    assert run(metric, rows(1, 2), rows(3, 4), labels=[5, 6])[0].int8 == 12 + 11


def test_what_a_metric_prints_goes_to_stderr(capsys):
    run(lambda outputs, labels: 0.0 * sys.stdout.write("progress\n"), rows(1), rows(1))
    assert capsys.readouterr() == ("", "progress\nprogress\n")


def failing(outputs, labels, origins):
    if any(origin == "2.jpg" for origin in origins):
        raise ValueError("no face in the image")
    return np.zeros(len(origins))


def test_an_exception_is_told_with_function_model_and_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(MetricError) as caught:
        run(failing, rows(1, 2, 3, 4), rows(1, 2, 3, 4))
    told = str(caught.value)
    assert told.startswith(
        "metric: failing on the FP32 model, sample 2.jpg: raises ValueError: no face in the image; fix the function; its "
        "traceback is in "
    )
    (log,) = tmp_path.iterdir()
    assert "in failing" in log.read_text(encoding="utf-8")
    assert caught.value.exit_code == 2


def test_no_sample_is_blamed_for_what_fails_on_every_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for metric in (lambda outputs, labels: outputs["z"], lambda outputs, labels: 1 / (len(outputs["y"]) == 1)):
        with pytest.raises(MetricError, match="on the FP32 model: raises"):
            run(metric, rows(1, 2), rows(1, 2))


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (
            lambda outputs, labels: np.where(outputs["y"][:, 0] > 2, np.nan, 1),
            "on the int8 model, sample 1.jpg: returns NaN",
        ),
        (lambda outputs, labels: np.log(outputs["y"].min() - 0.0), "on the int8 model, sample 0.jpg: returns infinity"),
        (
            lambda outputs, labels: outputs["y"][:, 0].astype(np.float64) * 1e300,
            "on the FP32 model, sample 1.jpg: returns 2e+300, too large for means and intervals",
        ),
        (
            lambda outputs, labels: np.zeros(3),
            "returns an array of float64 with shape (3,), expected one figure or 2, one",
        ),
        (lambda outputs, labels: outputs["y"], "returns an array of float32 with shape (2, 4), expected"),
        (lambda outputs, labels: [1.0], "returns 1 values, expected"),
        (lambda outputs, labels: None, "returns NoneType, expected"),
        (lambda outputs, labels: "0.9", "returns str, expected"),
        (
            lambda outputs, labels: 1.0 if outputs["y"][0, 0] else outputs["y"][:, 0],
            "returns one figure for the FP32 model and one per sample for the int8 model",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_no_figure_is_refused(metric, told):
    with pytest.raises(MetricError, match=re.escape(told)):
        run(metric, rows(1, 2), rows(0, 3))


def test_more_output_than_is_kept_is_refused_with_what_to_do():
    with pytest.raises(
        MetricError, match=r"both models' outputs on all 3 samples, and no more than 5e-08 GB .*--samples"
    ):
        run(lambda outputs, labels: 0.0, rows(1, 2, 3), rows(1, 2, 3), most_bytes=50)
