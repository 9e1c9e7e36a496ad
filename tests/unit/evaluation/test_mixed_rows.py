"""Whether rows are samples, or whole files: models that go along their first axis, and models that do not."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import int8cal
from int8cal.data.opening import open_feeds
from int8cal.errors import DataError
from int8cal.evaluation.mixed_rows import of_whole_rows
from int8cal.graph.signature import signature_of
from int8cal.job import DataSettings

MIXING = {
    "CumSum": "h = CumSum (a, zero)",
    "Softmax": "h = Softmax <axis: int = 0> (a)",
    "mean": "m = ReduceMean <axes: ints = [0], keepdims: int = 1> (a) h = Sub (a, m)",
    "attention": "t = Transpose <perm: ints = [1, 0]> (a) s = MatMul (a, t) p = Softmax (s) h = MatMul (p, a)",
}


def network(body, first="N"):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[{first}, 8] x) => (float[{first}, 4] y) '
        f"<int64 zero = {{0}}> {{ a = MatMul (x, w) {body} y = MatMul (h, v) }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 16)), ("v", (16, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name))
    return model


def opened(folder, model, rows, samples=None, files=6, **more):
    rng = np.random.default_rng(1)
    for number in range(files):
        np.savez(folder / f"{number}.npz", x=rng.normal(0, 1, (rows, 8)).astype(np.float32), **more)

    def opened_for(signature):
        return open_feeds(DataSettings(str(folder), samples=samples), signature)

    return of_whole_rows(model, opened_for(signature_of(model)), opened_for, threads=1)


@pytest.mark.parametrize("body", MIXING.values(), ids=MIXING)
@pytest.mark.parametrize("samples", [None, 1, 3])
def test_rows_that_are_no_samples_stay_together(tmp_path, body, samples):
    feeds = opened(tmp_path, network(body), 5, samples)
    assert feeds.signature.whole
    assert feeds.count == (samples or 6)
    assert [sample.feed["x"].shape for sample in feeds] == [(5, 8)] * feeds.count
    (line,) = feeds.made
    assert "is one sample" in line
    assert '"x"' in line
    assert '"y"' in line


def refilled(feeds):
    """Yield feeds in one array, which is filled again and again."""
    array = np.empty((9, 8), np.float32)
    for feed in feeds:
        array[...] = feed["x"]
        yield {"x": array}


@pytest.mark.parametrize("body", MIXING.values(), ids=MIXING)
@pytest.mark.parametrize(
    "given", [list, lambda feeds: lambda: refilled(feeds), refilled], ids=["list", "calls", "once"]
)
def test_rows_of_feeds_in_memory_stay_together(body, given):
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(9, 8)).astype(np.float32)} for _ in range(20)]
    model = network(body)
    table = int8cal.calibrate(model, given(feeds))
    assert table.data["samples"] == 20
    low, high = table.tensors["x"].observed
    assert (low, high) == (min(each["x"].min() for each in feeds), max(each["x"].max() for each in feeds))
    report = int8cal.evaluate(model, int8cal.quantize(model, table), given(feeds), latency=False)
    assert report.decisions[0].startswith("each feed of data is one sample: the model mixes rows")


@pytest.mark.parametrize("body", MIXING.values(), ids=MIXING)
def test_rows_of_several_arrays_in_one_batch_are_told(tmp_path, body):
    feeds = opened(tmp_path, network(body, 5), 5, 12)
    (finding,) = feeds.mixed
    assert finding.check == "mixed-rows"
    assert '"x"' in finding.text
    assert '"y"' in finding.text
    assert "--samples" in finding.do


def test_rows_with_labels_of_their_own_are_told(tmp_path):
    feeds = opened(tmp_path, network(MIXING["mean"]), 5, labels=np.arange(5))
    assert feeds.count == 30
    (finding,) = feeds.mixed
    assert finding.check == "mixed-rows"
    assert "labels have shape (5,)" in finding.do
    assert "--labels none" in finding.do


def test_rows_that_are_alike_in_one_file_are_tried_in_others(tmp_path):
    for number, values in enumerate((np.zeros((5, 8)), np.ones((5, 8)), np.random.default_rng(0).normal(size=(5, 8)))):
        np.savez(tmp_path / f"{number}.npz", x=values.astype(np.float32))
    assert opened(tmp_path, network(MIXING["CumSum"]), 5, files=0).signature.whole


def test_a_file_without_rows_is_no_sample(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((0, 8), np.float32))
    assert opened(tmp_path, network(MIXING["CumSum"]), 5).count == 6


def test_a_row_that_has_no_deviation_by_itself_is_of_a_whole_file(tmp_path):
    spread = (
        "m = ReduceMean <axes: ints = [0]> (a) d = Sub (a, m) q = Mul (d, d) e = ReduceMean <axes: ints = [0]> (q) "
    )
    assert opened(tmp_path, network(f"{spread} s = Sqrt (e) h = Div (d, s)"), 5).signature.whole


def test_as_many_columns_as_rows_are_of_a_whole_file(tmp_path):
    model = network("h = Relu (a)")
    model.graph.node.append(onnx.helper.make_node("Transpose", ["y"], ["t"], perm=[1, 0]))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["y", "t"], ["z"]))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", "M"]))
    assert opened(tmp_path, model, 5).signature.whole


@pytest.mark.parametrize("body", MIXING.values(), ids=MIXING)
def test_whole_arrays_of_a_fixed_size_are_samples(tmp_path, body):
    feeds = opened(tmp_path, network(body, 5), 5)
    assert (feeds.mixed, feeds.signature.whole) == ((), False)


@pytest.mark.parametrize(("first", "samples"), [("N", None), (5, 12)], ids=["cut", "of several arrays"])
@pytest.mark.parametrize("body", ["h = Relu (a)", "h = Softmax (a)"])
def test_rows_that_are_samples_are_cut(tmp_path, body, first, samples):
    feeds = opened(tmp_path, network(body, first), 5, samples)
    assert (feeds.mixed, feeds.signature.whole, feeds.count) == ((), False, samples or 30)


def test_a_row_of_zeros_beside_others_is_not_what_it_is_alone(tmp_path):
    (line,) = opened(tmp_path, network(MIXING["mean"]), 5).made
    assert "dB" not in line  # alone it is zero, which has no ratio


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomNormalLike (a) h = Add (a, r)",
        "q, s, z = DynamicQuantizeLinear (a) h = DequantizeLinear (q, s, z)",  # rows share a scale
    ],
    ids=["random", "dynamic"],
)
def test_rows_that_differ_for_another_reason_are_cut(tmp_path, body):
    feeds = opened(tmp_path, network(body), 5)
    assert (feeds.mixed, feeds.signature.whole) == ((), False)


def test_an_output_of_all_rows_is_of_a_whole_file(tmp_path):
    model = network("h = Relu (a)")
    pooled = onnx.helper.make_node("ReduceMean", ["y"], ["z"], axes=[0], keepdims=0)
    model.graph.node.append(pooled)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [4]))
    feeds = opened(tmp_path, model, 5)
    assert feeds.signature.whole
    assert '"z" is one for all rows' in feeds.made[0]


def ended(model, body, output, shape=("M",)):
    """A model whose output is made of what was its output."""
    model.graph.node.extend(onnx.parser.parse_graph(f"g (float[N, 4] y) => (float[M] {output}) {{ {body} }}").node)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
    for name, value in (("all", [-1]), ("axis", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    model.graph.initializer.append(numpy_helper.from_array(np.full((4, 1, 4), 0.25, np.float32), "kernel"))
    return model


BLOCKS = {
    "row after row": "z = Reshape (y, all)",
    "column after column": "b = Transpose <perm: ints = [1, 0]> (y) z = Reshape (b, all)",
}
# two samples for a row, as a vocoder's last layer makes them, and two more at the end
UPSAMPLED = """t = Transpose <perm: ints = [1, 0]> (y) u = Unsqueeze (t, zeroth)
    c = ConvTranspose <strides: ints = [2]> (u, kernel) z = Reshape (c, all)"""


@pytest.mark.parametrize("end", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("body", MIXING.values(), ids=MIXING)
def test_rows_of_which_an_output_has_several_values_each_stay_together(tmp_path, body, end):
    feeds = opened(tmp_path, ended(network(body), end, "z"), 5)
    assert feeds.signature.whole
    assert '"z"' in feeds.made[0]


@pytest.mark.parametrize("end", BLOCKS.values(), ids=BLOCKS)
def test_rows_of_which_an_output_has_values_of_their_own_are_cut(tmp_path, end):
    feeds = opened(tmp_path, ended(network("h = Relu (a)"), end, "z"), 5)
    assert (feeds.signature.whole, feeds.count) == (False, 30)


def test_rows_whose_values_overlap_in_the_output_stay_together(tmp_path):
    model = ended(network("h = Relu (a)"), UPSAMPLED, "z")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "zeroth"))
    feeds = opened(tmp_path, model, 5)
    assert feeds.signature.whole
    assert '"z" has 12 rows for 5 of them, 10 for 4, and 4 for one' in feeds.made[0]


def test_rows_without_values_in_an_output_are_cut(tmp_path):
    model = ended(
        network("h = Relu (a)"), "b = Concat <axis: int = 0> (y, y) z = Slice (b, nil, nil, axis)", "z", ("M", 0)
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "nil"))
    assert opened(tmp_path, model, 5).count == 30


def test_found_boxes_that_begin_with_the_number_of_their_image_are_of_single_rows(tmp_path):
    model = network("h = Relu (a)")
    # two boxes for each row: its number, and three values of its own
    boxes = """t = Shape (y) n = Slice (t, begin, end) r = Squeeze (n) i = Range (nil, r, one)
        f = Cast <to: int = 1> (i) k = Reshape (f, column) b = Concat <axis: int = 1> (k, y) d = Concat <axis: int = 1> (b, b)
        z = Reshape (d, five)"""
    model = ended(model, boxes, "z", ("M", 5))
    extra = {"begin": [0], "end": [1], "nil": 0, "one": 1, "column": [-1, 1], "five": [-1, 5]}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name) for name, value in extra.items()
    )
    assert opened(tmp_path, model, 5).count == 30


def test_what_is_found_in_rows_is_as_much_as_in_each_of_them(tmp_path):
    model = network("h = Relu (a)")
    found = "p = Greater (y, least) i = NonZero (p) t = Transpose <perm: ints = [1, 0]> (i) z = Cast <to: int = 1> (t)"
    model = ended(model, found, "z", ("M", 2))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.05, np.float32), "least"))
    assert opened(tmp_path, model, 5).count == 30


def test_a_model_that_takes_no_more_rows_at_once_is_left_to_its_run(tmp_path):
    model = network("h = Reshape (a, one)")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 16], np.int64), "one"))
    assert opened(tmp_path, model, 5).count == 30


def test_a_model_that_cannot_run_on_a_row_takes_whole_files(tmp_path):
    model = network("h = Reshape (a, five)")
    model.graph.initializer.append(numpy_helper.from_array(np.array([5, 16], np.int64), "five"))
    feeds = opened(tmp_path, model, 5)
    assert feeds.count == 6
    assert "single row" in feeds.made[0]


def test_a_model_that_runs_neither_on_a_row_nor_on_the_file_is_told_with_what_was_cut(tmp_path):
    model = network("h = Reshape (a, five)")
    model.graph.initializer.append(numpy_helper.from_array(np.array([5, 16], np.int64), "five"))
    with pytest.raises(DataError, match=r'single row.*"x"') as error:
        opened(tmp_path, model, 4)
    assert error.value.where == f"{tmp_path / '0.npz'}[0]"
    assert "leave the sample out" in error.value.do


def test_single_samples_are_not_run_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("int8cal.evaluation.mixed_rows.Session", None)
    model = network(MIXING["CumSum"])
    np.savez(tmp_path / "a.npz", x=np.ones((1, 8), np.float32))
    feeds = open_feeds(DataSettings(str(tmp_path)), signature_of(model))
    assert of_whole_rows(model, feeds, lambda _: None) is feeds
