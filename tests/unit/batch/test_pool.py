"""Worker processes: one measures while the others stand still, and all end with the caller."""

import contextlib
import functools
import importlib
import io
import signal
import sys
import threading
import time

import pytest

from int8cal.batch import pool as pool_module
from int8cal.batch.pool import WorkerPool

CALLS = """
import contextlib, os, time

def measure(name, exclusive):
    '''Measures three times, and counts as fast as it can in between.'''
    log = open(name, "a", buffering=1)
    for turn in range(3):
        for _ in range(20):
            log.write(f"work {time.monotonic()}\\n")
            time.sleep(0.005)
        with exclusive(1):
            log.write(f"begin {time.monotonic()}\\n")
            time.sleep(0.1)
            log.write(f"end {time.monotonic()}\\n")
    return name

class Answer:
    pass

def answer(name, exclusive):
    Answer.__qualname__ = "Unknown"  # a name that is not there where the message is read
    globals()["Unknown"] = Answer
    return Answer()

def leave(name, exclusive):
    print("so long", flush=True)
    os._exit(3)

@contextlib.contextmanager
def staged(name):
    open(name, "w").close()
    try:
        yield
    finally:
        os.remove(name)

def interrupted_as_it_enters(name, exclusive):
    manager = staged(name)
    next(manager.gen)  # what `with` has called when an interrupt lands behind the generator and before the block
    raise KeyboardInterrupt

def deaf(name, exclusive):
    '''Loses the first interrupt, as one is lost that lands in a callback of the garbage collector.'''
    open(name, "w").close()
    try:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(60)
    finally:
        os.remove(name)
"""


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Functions of a module that workers can import too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "calls_of_a_test.py").write_text(CALLS)
    yield importlib.import_module("calls_of_a_test")
    del sys.modules["calls_of_a_test"]


def keyed(function, *names):
    return [(index, functools.partial(function, name)) for index, name in enumerate(names)]


def test_nothing_else_runs_while_one_measures(calls, tmp_path):
    names = ("a", "b", "c")
    ends = list(WorkerPool(3).run(keyed(calls.measure, *names)))
    assert sorted((end.key, end.result) for end in ends) == [(0, "a"), (1, "b"), (2, "c")]
    lines = {name: [line.split() for line in (tmp_path / name).read_text().splitlines()] for name in names}
    for name in names:
        marks = [(kind, float(when)) for kind, when in lines[name] if kind != "work"]
        assert len(marks) == 6
        for (_, begin), (_, end) in zip(marks[::2], marks[1::2], strict=True):
            others = [float(when) for other in names if other != name for _, when in lines[other]]
            # a stop takes a moment to arrive
            assert [when for when in others if begin + 0.03 < when < end - 0.03] == []


def test_all_processes_end_when_the_caller_stops_early(calls, tmp_path):
    pool = WorkerPool(2)
    with contextlib.closing(pool.run(keyed(calls.measure, "a", "b", "c"))) as ends:
        next(ends)
        processes = [worker.process for worker in pool._running]
    assert processes
    assert all(process.poll() is not None for process in processes)
    assert not pool._running
    # none may still read a pipe that has been closed
    assert "int8cal-listen" not in {thread.name for thread in threading.enumerate()}


def test_a_message_that_cannot_be_read_is_the_end_of_its_process(calls, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda error: reported.append(error.exc_type))
    (end,) = WorkerPool(1).run(keyed(calls.answer, "a"))
    assert end.result is None
    assert reported == [AttributeError]


def test_a_process_that_ends_without_a_result_has_none(calls):
    (end,) = WorkerPool(1).run(keyed(calls.leave, "a"))
    assert (end.key, end.result, end.exit_code, end.printed) == (0, None, 3, "so long\n")


def test_no_call_starts_once_it_is_stopping(calls, tmp_path):
    pool = WorkerPool(1)
    ends = []
    for end in pool.run(keyed(calls.measure, "a", "b")):
        ends.append(end.key)
        pool.stopping = True
    assert ends == [0]


def test_an_interrupt_that_is_lost_is_sent_again(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(pool_module, "_AGAIN_S", 0.5)
    several = [(0, functools.partial(calls.measure, "a")), (1, functools.partial(calls.deaf, "begun"))]
    with contextlib.closing(WorkerPool(2).run(several)) as ends:
        next(ends)
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
    assert not (tmp_path / "begun").exists()  # its own doing: a killed process removes nothing


def test_what_is_staged_is_removed_where_an_interrupt_lands_before_the_block(calls, tmp_path):
    (end,) = WorkerPool(1).run(keyed(calls.interrupted_as_it_enters, "staged"))
    assert end.exit_code == 130
    assert not (tmp_path / "staged").exists()


def test_a_worker_whose_parent_is_gone_interrupts_itself_until_it_ends(monkeypatch):
    sent = []

    def interrupt(number):
        sent.append(number)
        if len(sent) == 3:
            raise SystemExit

    monkeypatch.setattr(pool_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(pool_module, "signal_main", interrupt)
    with pytest.raises(SystemExit):
        pool_module._Connection(io.BytesIO(), io.BytesIO())._listen()
    assert sent == [signal.SIGTERM] * 3
