"""Whoever watches gets an event for every change of where a run is; who works need not know."""

import contextvars
import threading

import pytest

from int8cal.progress import Clock, Event, own_job, stage, track, watching


@pytest.fixture
def events():
    """The events so far without their seconds, after a run inside."""
    return []


@pytest.fixture
def watcher(events):
    def take(event):
        assert event.seconds >= 0.0
        events.append((event.job, event.stage, event.detail, event.done, event.total))

    return take


def test_without_a_watcher_items_pass_and_blocks_run():
    with stage("calibrate"), watching(None):
        assert list(track([1, 2], 2, "samples")) == [1, 2]


def test_every_item_and_every_end_of_a_stage_is_told(watcher, events):
    with watching(watcher), Clock().station("calibrate"):
        assert list(track("ab", 2, "samples")) == ["a", "b"]
    assert events == [
        ("", "calibrate", "", 0, None),
        ("", "calibrate", "samples", 0, 2),
        ("", "calibrate", "samples", 1, 2),
        ("", "calibrate", "samples", 2, 2),
        ("", "calibrate", "", 0, None),
        ("", "", "", 0, None),
    ]


def test_a_stage_inside_one_that_counts_is_its_detail(watcher, events):
    with watching(watcher, "job"), stage("quantize"):
        for name in track(("ranges", "bias"), 2, "steps"):
            with stage(name):
                pass
    assert ("job", "quantize", "bias", 1, 2) in events
    assert events[-1] == ("job", "", "", 0, None)


def test_the_innermost_count_is_told(watcher, events):
    with watching(watcher), stage("quantize"):
        for _ in track("a", 1, "steps"):
            list(track("xyz", 3, "rounding"))
    assert ("", "quantize", "rounding", 2, 3) in events


def test_a_pass_that_is_left_early_is_no_stage_any_more(watcher, events):
    with watching(watcher), stage("evaluate"):
        items = track(range(9), 9, "outputs")
        next(items)
        items.close()
    assert events[-2:] == [("", "evaluate", "", 0, None), ("", "", "", 0, None)]


def test_a_pass_that_outlives_its_stage_ends_with_it(watcher, events):
    with watching(watcher):
        with stage("calibrate"):
            items = track(range(9), 9, "samples")
            next(items)
        assert events[-1] == ("", "", "", 0, None)
        with stage("evaluate"):
            items.close()
            assert events[-1] == ("", "evaluate", "", 0, None)
    assert events[-1] == ("", "", "", 0, None)


def test_an_error_ends_its_stages(watcher, events):
    with watching(watcher), pytest.raises(KeyError), stage("prepare"), stage("inside"):
        raise KeyError
    assert events[-1] == ("", "", "", 0, None)


def test_jobs_are_named_and_quiet_ones_are_not_watched(watcher, events):
    with watching(watcher):
        with own_job("first"), stage("prepare"):
            pass
        with own_job("second", quiet=True), stage("prepare"):
            pass
    assert {job for job, *_ in events} == {"first"}


def test_a_run_in_another_thread_has_a_watcher_of_its_own(watcher, events):
    def run():
        with stage("other"):
            pass

    with watching(watcher):
        thread = threading.Thread(target=contextvars.Context().run, args=(run,))
        thread.start()
        thread.join()
    assert events == []


def test_seconds_are_those_of_the_stage_that_counts():
    found = []
    with watching(found.append), stage("quantize"):
        list(track("ab", 2, "steps"))
    assert all(isinstance(event, Event) for event in found)
    counted = [event.seconds for event in found if event.total == 2]
    assert counted == sorted(counted)
