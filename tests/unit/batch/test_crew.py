"""Processes of a batch: one measures while the others stand still, and all end with the caller."""

import contextlib
from pathlib import Path

import pytest

from int8cal.batch import crew
from int8cal.batch.crew import Crew
from int8cal.batch.decide import Decision
from int8cal.batch.task import Endings, JobResult, Task
from int8cal.batch.worker import Order
from int8cal.job import DataSettings, Job

# Speaks a worker's language: measures three times, and counts as fast as it can in between.
WORKER = """
import os, pickle, sys, time
give, take = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb", buffering=0)
order = pickle.load(take)
log = open(order.task.job.name, "a", buffering=1)
def send(message):
    pickle.dump(message, give)
    give.flush()
for turn in range(3):
    for _ in range(20):
        log.write(f"work {time.monotonic()}\\n")
        time.sleep(0.005)
    send("measure")
    take.read(1)
    log.write(f"begin {time.monotonic()}\\n")
    time.sleep(0.1)
    log.write(f"end {time.monotonic()}\\n")
    send("measured")
from int8cal.batch.task import JobResult
job = order.task.job
send(JobResult(job.name, "done", job.model, job.model.name))
"""


def order(name):
    task = Task(Job(Path("m.onnx"), DataSettings("d"), name=name), Path("b.yaml"))
    return Order(task, Decision("run", "", Path("out")), Endings(print, repr), 1)


@pytest.fixture
def workers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(crew, "_START", WORKER)
    return tmp_path


def test_nothing_else_runs_while_one_measures(workers):
    names = ("a", "b", "c")
    ends = list(Crew(3).run([(index, order(name)) for index, name in enumerate(names)]))
    assert sorted(end.index for end in ends) == [0, 1, 2]
    lines = {name: [line.split() for line in (workers / name).read_text().splitlines()] for name in names}
    for name in names:
        marks = [(kind, float(when)) for kind, when in lines[name] if kind != "work"]
        assert len(marks) == 6
        for (_, begin), (_, end) in zip(marks[::2], marks[1::2], strict=True):
            others = [float(when) for other in names if other != name for _, when in lines[other]]
            # a stop takes a moment to arrive
            assert [when for when in others if begin + 0.03 < when < end - 0.03] == []


def test_all_processes_end_when_the_caller_stops_early(workers):
    team = Crew(2)
    with contextlib.closing(team.run([(0, order("a")), (1, order("b")), (2, order("c"))])) as ends:
        next(ends)
        processes = [worker.process for worker in team._running]
    assert processes
    assert all(process.poll() is not None for process in processes)
    assert not team._running


def test_a_worker_without_a_result_has_failed(workers, monkeypatch):
    monkeypatch.setattr(crew, "_START", "import sys; sys.exit(3)")
    (end,) = Crew(1).run([(0, order("a"))])
    assert isinstance(end.result, JobResult)
    assert (end.result.status, end.result.exit_code) == ("failed", 1)
    assert "exit code 3" in end.result.error


def test_no_job_starts_once_it_is_stopping(workers):
    team = Crew(1)
    ends = []
    for end in team.run([(0, order("a")), (1, order("b"))]):
        ends.append(end.index)
        team.stopping = True
    assert ends == [0]
