from concurrent.futures import CancelledError
from threading import Barrier, Event, current_thread
from time import sleep, thread_time

import numpy as np  # noqa: F401 - which brings the library
import pytest
from threadpoolctl import threadpool_info

from int8cal.threads import in_order, in_parts, one_thread_each, require_wanted


def blas_threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_products_have_one_thread_within_and_their_own_again_behind():
    before = blas_threads()
    if not before:
        pytest.skip("threadpoolctl does not know the library of numpy's products here")
    with one_thread_each():
        assert blas_threads() == [1] * len(before)
    assert blas_threads() == before


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


@pytest.mark.parametrize("count", [0, 1, 5, 10_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_items_in_parts_keep_their_order(count, threads):
    assert [*in_parts(lambda item: 2 * item, range(count), threads)] == [*range(0, 2 * count, 2)]


def test_few_items_run_side_by_side():
    both = Barrier(2, timeout=20)
    assert sorted(in_parts(lambda _: both.wait(), range(2), 2)) == [0, 1]


def test_calls_under_way_end_early_where_one_fails():
    both, ended = Barrier(2), []

    def call(item):
        both.wait(timeout=30)
        if item == 0:
            raise ValueError("no")
        for _ in range(1000):
            try:
                require_wanted()
            except CancelledError:
                ended.append("early")
                raise
            sleep(0.01)
        return item

    with pytest.raises(ValueError, match="no"):
        list(in_parts(call, (0, 1), 2))
    assert ended == ["early"]
    require_wanted()  # in no call


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
