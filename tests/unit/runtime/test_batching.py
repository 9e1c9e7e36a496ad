from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from int8cal.errors import DataError
from int8cal.graph.signature import signature_of
from int8cal.runtime.batching import batch_size, grouped_feed, make_feed, run_each, run_samples
from int8cal.runtime.sessions import Session


@dataclass(frozen=True, eq=False)
class FakeSample:
    feed: dict
    origin: str


def model(batch):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{batch},2] x) => (float[{batch},2] y, float[2] total) <int64[1] axes = {{0}}> {{
            y = Neg(x)
            total = ReduceSum <keepdims = 0> (x, axes)
        }}"""
    )


def samples(count):
    return [FakeSample({"x": np.full((1, 2), index, np.float32)}, str(index)) for index in range(count)]


def opened(batch):
    proto = model(batch)
    return Session(proto), signature_of(proto)


@pytest.mark.parametrize(("batch", "size"), [("N", 1), ("1", 1), ("3", 3)])
def test_the_group_size_is_the_models_own(batch, size):
    assert batch_size(signature_of(model(batch))) == size


def test_a_free_batch_axis_runs_each_sample_alone():
    groups = list(run_samples(*opened("N"), samples(3)))
    assert [[sample.origin for sample in group] for group, _ in groups] == [["0"], ["1"], ["2"]]
    assert [values["y"].tolist() for _, values in groups] == [[[0, 0]], [[-1, -1]], [[-2, -2]]]


def test_a_fixed_batch_is_filled_and_the_last_group_cut_to_its_real_rows():
    groups = list(run_samples(*opened("3"), samples(5)))
    assert [[sample.origin for sample in group] for group, _ in groups] == [["0", "1", "2"], ["3", "4"]]
    assert groups[1][1]["y"].tolist() == [[-3, -3], [-4, -4]]


@pytest.mark.parametrize(("batch", "origins"), [("N", "bad.npz[3]"), ("2", "good.npz, bad.npz[3]")])
def test_a_failed_inference_names_its_samples_and_is_an_error_of_the_data(batch, origins):
    good, bad = (
        FakeSample({"x": np.zeros((1, 2), np.float32)}, "good.npz"),
        FakeSample({"x": np.zeros((1, 2), np.float64)}, "bad.npz[3]"),
    )
    with pytest.raises(DataError) as caught:
        list(run_samples(*opened(batch), [good, bad]))
    assert str(caught.value).startswith(f"data: {origins}: inference failed: ")
    assert "leave the sample out" in str(caught.value)


@pytest.mark.parametrize(("dims", "shape"), [("batch, tokens", (1,)), ("tokens", ())])
def test_a_failed_inference_on_text_says_how_to_cut_it(dims, shape):
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[{dims}] input_ids) => (float[{dims}] y) <float[4] positions = {{0, 1, 2, 3}}> {{
            x = Cast <to = 1> (input_ids)
            y = Add (x, positions)
        }}"""
    )
    texts = [FakeSample({"input_ids": np.zeros((*shape, size), np.int64)}, f"a.txt, line {size}") for size in (4, 6)]
    with pytest.raises(DataError, match="line 6: inference failed") as caught:
        list(run_samples(Session(proto), signature_of(proto), texts))
    assert caught.value.do == "it has 6 tokens: if the model takes fewer, give --max-length (text.max_length)"


def test_a_token_that_the_model_has_not_is_told_as_that():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[batch, tokens] input_ids) => (float[batch, tokens] y) <float[20] words> { y = Gather (words, input_ids) }"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(20, np.float32), "words"))
    texts = [FakeSample({"input_ids": np.array([[1, 82, 3]])}, "a.txt, line 1")]
    with pytest.raises(DataError, match="line 1: inference failed") as caught:
        list(run_samples(Session(proto), signature_of(proto), texts))
    assert caught.value.do == "the model has no token 82: give --tokenizer its own (text.tokenizer)"


def test_padding_repeats_the_last_sample():
    feed = make_feed(signature_of(model("4")), samples(2))
    assert feed["x"][:, 0].tolist() == [0, 1, 1, 1]


def test_an_output_without_the_batch_axis_is_passed_on_whole():
    ((_, values),) = run_samples(*opened("3"), samples(2))
    assert values["total"].tolist() == [2, 2]  # 0 + 1 + 1, the padded row included


@pytest.mark.parametrize("batch", ["N", "1", "2", "3", "8"])
def test_each_sample_gets_its_own_row(batch):
    rows = list(run_each(*opened(batch), samples(5), ["y"]))
    assert [(sample.origin, values["y"].tolist()) for sample, values in rows] == [
        (str(index), [[-index, -index]]) for index in range(5)
    ]


def test_only_the_outputs_asked_for_are_computed():
    ((_, values),) = run_samples(*opened("N"), samples(1), ["total"])
    assert list(values) == ["total"]


def test_feeds_the_model_has_no_input_for_are_left_out():
    sample = FakeSample({"x": np.ones((1, 2), np.float32), "mask": np.ones((1, 2), np.float32)}, "a")
    assert list(make_feed(signature_of(model("N")), [sample])) == ["x"]


def test_no_samples_run_nothing():
    assert list(run_samples(*opened("3"), [])) == []


def test_samples_are_read_one_group_ahead_at_most():
    read = []

    def stream():
        for sample in samples(9):
            read.append(sample.origin)
            yield sample

    runs = run_samples(*opened("3"), stream())
    next(runs)
    assert read == ["0", "1", "2"]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_runs_at_once_give_what_runs_one_by_one_give_in_the_same_order(at_once):
    proto = model("3")
    session = Session(proto, threads=3, at_once=at_once)
    found = list(run_each(session, signature_of(proto), samples(8)))
    assert [sample.origin for sample, _ in found] == [str(number) for number in range(8)]
    assert [outputs["y"].tolist() for _, outputs in found] == [[[-number, -number]] for number in range(8)]


def test_no_more_runs_go_on_at_once_than_there_are_threads():
    assert Session(model("3"), threads=1, at_once=2).at_once == 1


def test_what_a_group_was_fed_has_no_rows_that_fill_up_its_batch():
    np.testing.assert_array_equal(grouped_feed(samples(2))["x"], [[0, 0], [1, 1]])
    scalar = FakeSample({"x": np.float32(3)}, "one")
    assert grouped_feed([scalar]) == {"x": 3}
