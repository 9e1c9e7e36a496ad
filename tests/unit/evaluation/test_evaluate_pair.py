from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from int8cal.audit.worst_case import audit_saturation
from int8cal.errors import DataError, ModelError, NonFiniteError, StatisticsError
from int8cal.evaluation import evaluate, runtimes
from int8cal.evaluation.evaluate import model_bytes
from int8cal.evaluation.result import Size
from int8cal.runtime.sessions import Session

evaluate_pair = partial(evaluate.evaluate_pair, audit=audit_saturation)


def outputs_of(model, samples):
    session = Session(model)
    return np.concatenate([session.run(dict(sample.feed))["y"] for sample in samples]).astype(np.float64)


def test_metrics_are_those_of_all_outputs_together(fp32, int8, make_samples):
    samples = list(make_samples(20))
    result = evaluate_pair(fp32, int8, iter(samples), latency=False)
    x, y = outputs_of(fp32, samples), outputs_of(int8, samples)
    metrics = result.metrics
    assert result.samples == 20
    assert metrics.sqnr_db == pytest.approx(10 * np.log10(np.square(x).sum() / np.square(x - y).sum()))
    assert metrics.cosine == pytest.approx((x * y).sum() / np.sqrt(np.square(x).sum() * np.square(y).sum()))
    assert metrics.max_abs_error == pytest.approx(np.abs(x - y).max())
    assert metrics.agreement == (x.argmax(1) == y.argmax(1)).mean()
    labels = np.array([sample.label for sample in samples])
    assert metrics.top1.fp32 == (x.argmax(1) == labels).mean()
    assert metrics.top1.int8 == (y.argmax(1) == labels).mean()
    assert metrics.top1.drop == pytest.approx(100 * (metrics.top1.fp32 - metrics.top1.int8))
    low, high = metrics.top1.drop_ci95
    assert low < metrics.top1.drop < high
    best = np.argsort(-x, axis=1, kind="stable")[:, :5]
    assert metrics.top5.fp32 == (best == labels[:, None]).any(1).mean()
    assert result.outputs["y"].sqnr_db == metrics.sqnr_db


def test_every_figure_that_is_none_has_a_reason(fp32, int8, make_samples):
    result = evaluate_pair(fp32, int8, make_samples(3, labels=False), latency=False)
    assert result.metrics.top1 is None
    assert result.latency is None
    assert set(result.reasons) == {"metrics.top1", "metrics.top5", "latency", "layers"}


def test_saturation_is_audited_for_the_target(fp32, int8, make_samples):
    found = {
        target: evaluate_pair(fp32, int8, make_samples(1), target=target, latency=False).saturation
        for target in ("portable", "x86-vnni")
    }
    assert found["portable"].unsafe_channels > 0
    assert found["x86-vnni"].unsafe_channels == 0
    assert found["portable"].channels == found["x86-vnni"].channels > 0
    assert all(layer.verdict != "float" for each in found.values() for layer in each.layers)


@pytest.mark.parametrize(
    ("target", "exact", "told"),
    [("arm64", False, True), ("x86-vnni", False, True), ("arm64", True, False), ("portable", False, False)],
)
def test_figures_of_saturated_sums_are_told_where_the_target_has_none(
    fp32, int8, make_samples, monkeypatch, target, exact, told
):
    monkeypatch.setattr(runtimes, "exact_products", lambda: exact)
    found = evaluate_pair(fp32, int8, make_samples(2), target=target, latency=False)
    warnings = [line for line in found.warnings if f"saturate on this CPU, and not on target {target}" in line]
    assert len(warnings) == told
    unsafe = evaluate_pair(fp32, int8, make_samples(2), target="x86-avx2", latency=False).saturation
    assert all(f"in {unsafe.unsafe_channels} of {unsafe.channels} channels" in line for line in warnings)


def test_weights_that_cannot_saturate_are_not_told_of(fp32, make_samples, monkeypatch):
    monkeypatch.setattr(runtimes, "exact_products", lambda: False)
    assert evaluate_pair(fp32, fp32, make_samples(2), target="arm64", latency=False).warnings == ()


def test_the_callers_reasons_win(fp32, int8, make_samples):
    result = evaluate_pair(fp32, int8, make_samples(2), latency=False, reasons={"latency": "asked for", "extra": "e"})
    assert result.reasons["latency"] == "asked for"
    assert result.reasons["extra"] == "e"


def test_a_model_against_itself_is_perfect(fp32, make_samples):
    result = evaluate_pair(fp32, fp32, make_samples(4), latency=False)
    assert result.metrics.sqnr_db > 300
    assert result.metrics.max_abs_error == 0
    assert result.metrics.agreement == 1
    assert result.metrics.top1.drop == 0
    assert (result.fusion.integer, result.fusion.float_) == (0, 3)


def test_latency_and_fusion_are_measured(fp32, int8, make_samples):
    result = evaluate_pair(fp32, int8, make_samples(2))
    assert result.latency.fp32 > 0
    assert result.latency.int8 > 0
    assert result.latency.speedup > 0
    assert result.fusion.integer > 0
    assert len(result.fusion.nodes) == result.fusion.float_


def test_the_samples_are_streamed_once(fp32, int8, make_samples, monkeypatch):
    monkeypatch.setattr("int8cal.evaluation.evaluate.LAYERWISE_SAMPLES", 2)
    seen = []

    def read():
        for sample in make_samples(5):
            seen.append(sample.origin)
            yield sample

    evaluate_pair(fp32, int8, read(), latency=False)
    assert seen == [f"calib/{index:04d}.npz" for index in range(5)]


@pytest.mark.parametrize(("first", "second"), [("3", "3"), ("3", "N"), ("N", "2"), ("4", "3")])
def test_fixed_batches_give_the_figures_of_single_samples(tools, make_samples, first, second):
    fp32, int8 = tools.classifier(first), tools.classifier(second)
    int8 = tools.quantize(int8, tools.ranges, drop=("Relu_1",), weights=("W", "G"))
    single = tools.classifier("N")
    expected = evaluate_pair(
        single,
        tools.quantize(single, tools.ranges, drop=("Relu_1",), weights=("W", "G")),
        make_samples(7),
        latency=False,
    )
    result = evaluate_pair(fp32, int8, make_samples(7), latency=False)
    assert result.samples == 7
    assert result.metrics.sqnr_db == pytest.approx(expected.metrics.sqnr_db, abs=0.05)
    assert result.metrics.top1.samples == 7


def test_outputs_with_other_names_are_matched_by_position(fp32, int8, make_samples):
    for node in int8.graph.node:
        node.output[:] = ["scores" if name == "y" else name for name in node.output]
    int8.graph.output[0].name = "scores"
    result = evaluate_pair(fp32, int8, make_samples(2), latency=False)
    assert list(result.outputs) == ["y"]
    assert result.metrics.sqnr_db > 15


def test_outputs_that_do_not_correspond_are_a_model_error(fp32, int8, make_samples):
    int8.graph.output[0].name = "f.dq"
    int8.graph.output.append(helper.make_tensor_value_info("c.dq", onnx.TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match=r'the int8 model has outputs "f\.dq", "c\.dq", the FP32 model "y"'):
        evaluate_pair(fp32, int8, make_samples(2))


def test_an_output_of_another_shape_is_a_model_error(tools, make_samples):
    with pytest.raises(ModelError, match=r'output "y" has shape \(1, 8\) in the FP32 model and \(1, 6\)'):
        evaluate_pair(tools.classifier(), tools.classifier(classes=6), make_samples(2))


def test_an_input_the_fp32_model_lacks_is_a_model_error(fp32, tools, make_samples):
    other = tools.model("g (float[N,3,8,8] pixels) => (float[N,3,8,8] y) { y = Relu(pixels) }")
    with pytest.raises(ModelError, match='the int8 model has inputs "pixels"'):
        evaluate_pair(fp32, other, make_samples(1))


def test_no_samples_are_a_data_error(fp32, int8):
    with pytest.raises(DataError, match="no samples"):
        evaluate_pair(fp32, int8, [])


def test_a_label_beyond_the_classes_is_a_data_error(fp32, int8, tools):
    sample = tools.sample({"x": np.ones((1, 3, 8, 8), np.float32)}, "photos/dog/1.png", 8)
    with pytest.raises(DataError, match='label 8 is not a class of output "y", which has 8') as caught:
        evaluate_pair(fp32, int8, [sample])
    assert caught.value.where == "photos/dog/1.png"


def test_nan_in_the_fp32_output_names_output_and_sample(fp32, int8, make_samples):
    samples = list(make_samples(3))
    samples[1].feed["x"][0, 0, 0, 0] = np.nan
    with pytest.raises(NonFiniteError, match='output "y" of the FP32 model holds NaN') as caught:
        evaluate_pair(fp32, int8, samples)
    assert caught.value.where == "calib/0001.npz"
    assert isinstance(caught.value, StatisticsError)


def test_infinity_in_the_int8_output_names_output_and_sample(tools):
    fp32 = tools.model("g (float[N,4] x) => (float[N,4] y) { y = Mul(x, x) }")
    int8 = tools.model("g (float[N,4] x) => (float[N,4] y) { y = Reciprocal(x) }")
    sample = tools.sample({"x": np.zeros((1, 4), np.float32)}, "zero.npz")
    with pytest.raises(NonFiniteError, match=r'output "y" of the int8 model holds infinity') as caught:
        evaluate_pair(fp32, int8, [sample])
    assert caught.value.where == "zero.npz"


def test_an_output_that_is_no_list_of_scores_has_no_agreement(tools, make_samples):
    model = tools.model("g (float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Relu(x) }")
    result = evaluate_pair(model, model, make_samples(2), latency=False)
    assert result.metrics.agreement is result.metrics.top1 is result.metrics.top5 is None
    assert "shape (1, 3, 8, 8)" in result.reasons["metrics.agreement"]
    assert result.metrics.sqnr_db > 300


def test_few_classes_have_no_top5(tools, make_samples):
    model = tools.classifier(classes=5)
    samples = (tools.sample(sample.feed, sample.origin, 1) for sample in make_samples(2))
    result = evaluate_pair(model, model, samples, latency=False)
    assert result.metrics.top1.samples == 2
    assert result.metrics.top5 is None
    assert result.reasons["metrics.top5"] == "the model has only 5 classes"


def test_integer_outputs_are_left_out_of_the_mean(tools, make_samples):
    model = tools.model(
        """g (float[N,3,8,8] x) => (int64[N,1,8,8] index, float[N,3,8,8] y) {
            index = ArgMax <axis = 1> (x)
            y = Relu(x)
        }"""
    )
    result = evaluate_pair(model, model, make_samples(2), latency=False)
    assert result.outputs["index"].sqnr_db is None
    assert result.reasons["outputs.index"] == "output index is int64, not float"
    assert result.metrics.sqnr_db == result.outputs["y"].sqnr_db


def test_a_model_without_float_output_has_no_metrics(tools, make_samples):
    model = tools.model("g (float[N,3,8,8] x) => (int64[N,1,8,8] index) { index = ArgMax <axis = 1> (x) }")
    result = evaluate_pair(model, model, make_samples(2), latency=False)
    assert result.metrics.sqnr_db is result.metrics.agreement is None
    assert result.reasons["metrics.sqnr_db"] == "the model has no float output"


INDICES = """g (float[N,3,8,8] x) => (int64[N,1,8,8] index) {{ h = {op} (x) index = ArgMax <axis = 1> (h) }}"""


def test_whole_values_are_compared_value_by_value(tools, make_samples):
    models = [tools.model(INDICES.format(op=op)) for op in ("Relu", "Abs")]
    samples = list(make_samples(9))
    index = [np.concatenate([Session(model).run(dict(each.feed))["index"] for each in samples]) for model in models]
    shares = (index[0] == index[1]).reshape(9, -1).mean(axis=1)
    assert 0 < shares.min() < shares.max() < 1
    result = evaluate_pair(*models, iter(samples), latency=False)
    (figure,) = result.outputs["index"].decisions
    assert (figure.figure, figure.kind, figure.samples) == ("equal_values", "whole values", 9)
    assert figure.value == pytest.approx(shares.mean())
    low, high = figure.ci95
    assert low < figure.value < high
    (alone,) = evaluate_pair(*models, samples[:1], latency=False).outputs["index"].decisions
    assert alone.value == pytest.approx(shares[0])
    assert alone.ci95 is None


def test_an_interval_of_whole_values_that_is_none_has_its_reason(tools, make_samples):
    models = [tools.model(INDICES.format(op=op)) for op in ("Relu", "Abs")]
    reasons = evaluate_pair(*models, make_samples(1), latency=False).reasons
    assert reasons["outputs.index.decisions.0.ci95"] == reasons["outputs.index.equal_values_ci95"]


def test_whole_values_of_other_shapes_have_no_share(tools, make_samples):
    kept = "g (float[N,3,8,8] x) => (int64[4,M] index) {{ h = {op} (x) index = NonZero (h) }}"
    models = [tools.model(kept.format(op=op)) for op in ("Relu", "Abs")]
    result = evaluate_pair(*models, make_samples(3), latency=False)
    assert result.outputs["index"].decisions == ()
    assert result.reasons["outputs.index"] == "output index is int64, and has another shape in the int8 model"


def test_partial_labels_count_the_labelled_samples(fp32, int8, tools, make_samples):
    samples = [tools.sample(s.feed, s.origin, s.label if i else None) for i, s in enumerate(make_samples(4))]
    assert evaluate_pair(fp32, int8, samples, latency=False).metrics.top1.samples == 3


def test_files_are_measured_with_their_external_data(tmp_path, fp32, int8, make_samples):
    onnx.save(int8, tmp_path / "b.onnx")
    inside = model_bytes(fp32)
    padding = numpy_helper.from_array(np.zeros(5000, np.float32), "unused")
    fp32.graph.initializer.append(padding)
    onnx.save(fp32, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=1000)
    result = evaluate_pair(tmp_path / "a.onnx", tmp_path / "b.onnx", make_samples(2), latency=False)
    files = [(tmp_path / name).stat().st_size for name in ("a.onnx", "a.data", "b.onnx")]
    assert result.size == Size(files[0] + files[1], files[2])
    assert result.size.fp32_bytes > inside + 20_000


def test_a_missing_file_is_a_model_error(tmp_path, int8, make_samples):
    with pytest.raises(ModelError, match="does not exist"):
        evaluate_pair(tmp_path / "none.onnx", int8, make_samples(1))


@pytest.mark.parametrize(("bound_db", "count"), [(0.1, 12), (1.5, 10), (10.0, 2)])
def test_layers_are_compared_on_as_many_samples_as_their_interval_needs(
    fp32, int8, make_samples, monkeypatch, bound_db, count
):
    monkeypatch.setattr(evaluate, "LAYER_DB", bound_db)
    assert evaluate_pair(fp32, int8, make_samples(12), latency=False).layer_samples == count
