from dataclasses import dataclass
from threading import Barrier, Event, current_thread
from time import thread_time

import numpy as np
import onnx
import pytest

from int8cal.errors import DataError
from int8cal.graph.signature import signature_of
from int8cal.runtime.batching import batch_size, fed, in_order, in_parts, make_feed, run_each, run_samples
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


def test_calls_overlap_and_results_keep_their_order():
    both = Barrier(2)

    def wait_for_another(item):
        both.wait(timeout=60)  # a single call never gets past it
        return item

    assert list(in_order(wait_for_another, range(6), 2)) == list(range(6))


def test_items_are_read_as_far_ahead_as_calls_go_on():
    read = []

    def items():
        for item in range(9):
            read.append(item)
            yield item

    results = in_order(str, items(), 2)
    next(results)
    assert read == [0, 1, 2]


def test_the_first_failure_in_order_is_the_one_that_is_raised():
    def fail(item):
        if item >= 2:
            raise ValueError(item)
        return item

    results = in_order(fail, range(6), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(results)


def test_who_gives_results_up_does_not_wait_for_calls_under_way():
    # the garbage collector closes generators at any point, where waiting for a thread may never end
    go, ended = Event(), []

    def wait(item):
        if item:
            go.wait(timeout=60)
            ended.append(item)
        return item

    results = in_order(wait, range(6), 2)
    next(results)
    results.close()
    assert not ended
    go.set()


def test_what_a_group_was_fed_has_no_rows_that_fill_up_its_batch():
    np.testing.assert_array_equal(fed(samples(2))["x"], [[0, 0], [1, 1]])
    scalar = FakeSample({"x": np.float32(3)}, "one")
    assert fed([scalar]) == {"x": 3}


@pytest.mark.parametrize("count", [0, 1, 5, 10_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_items_in_parts_keep_their_order(count, threads):
    assert [*in_parts(lambda item: 2 * item, range(count), threads)] == [*range(0, 2 * count, 2)]


def test_few_items_run_side_by_side():
    both = Barrier(2, timeout=20)
    assert sorted(in_parts(lambda _: both.wait(), range(2), 2)) == [0, 1]


def test_short_calls_stay_in_the_callers_thread_and_keep_their_order():
    calls = list(in_order(lambda item: (item, current_thread().name), range(200), 2, short_alone=True))
    assert [item for item, _ in calls] == [*range(200)]
    assert {name for _, name in calls[-100:]} == {current_thread().name}


def test_calls_that_become_long_go_to_threads_again():
    def call(item):
        end = thread_time() + (0.002 if item >= 50 else 0.0)
        while thread_time() < end:
            pass
        return current_thread().name

    names = [*in_order(call, range(100), 2, short_alone=True)]
    assert names[40] == current_thread().name
    assert names[-1] != current_thread().name
