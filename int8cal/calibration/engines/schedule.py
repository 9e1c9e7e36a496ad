"""Which part of the data a free worker of a cluster runs next: parts are cut when needed, what is lost is run again."""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from int8cal.calibration.engines.parts import DataPart, Numbered
from int8cal.data.trimming import UndecidedError
from int8cal.errors import DataError, UsageError
from int8cal.progress import track

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from int8cal.calibration.engines.ray import CallOutcome, Cluster, Hired
    from int8cal.data.feeds import Feeds
    from int8cal.data.file_stream import FileStream

FIRST_SAMPLES, MOST_SAMPLES = 8, 4096  # of a part
PART_S, LEAST_PART_S = 10.0, 2.0  # what a part is to take, and below which sharing out costs more than it gains
MOST_LOSSES = 3  # workers that one sample may cost
SLOW = 3.0  # times as long as expected, and a part is run by a second worker that has nothing else to do
LEAST_SLOW_S = 10.0


SampleRanges = tuple[tuple[int, int], ...]  # (first, last) of samples, last not included


class ClusterWarning(UserWarning):
    """Something happened to a worker or node; results do not depend on it."""


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> SampleRanges:
    """Return ranges in order, those that touch as one."""
    found = list[tuple[int, int]]()
    for first, last in sorted(ranges):
        if found and found[-1][1] == first:
            first, _ = found.pop()  # noqa: PLW2901 - one that ends here begins where the one before does
        found.append((first, last))
    return tuple(found)


def between(ranges: SampleRanges, count: int) -> SampleRanges:
    """Return what of `count` samples is in none of these ranges."""
    ends = ((0, 0), *joined_ranges(ranges), (count, count))
    return tuple((last, first) for (_, last), (first, _) in itertools.pairwise(ends) if last < first)


@dataclass(eq=False)
class Call:
    """One call of a worker: samples are run, or results are added.

    Attributes:
        ranges: Samples that its result is of.
        inputs: Results that are added; none where samples are run.
        level: How often results were added to make this one.
        losses: Workers that were lost over it.
        running: Workers that it runs on.
        began: When it was given to the last of them.
        result: Where its result is, when it has ended.
    """

    ranges: SampleRanges
    inputs: tuple[Call, ...] = ()
    level: int = 0
    losses: int = 0
    running: int = 0
    began: float = 0.0
    result: Any = None

    @property
    def first(self) -> int:
        """Place of its first sample."""
        return self.ranges[0][0]

    @property
    def samples(self) -> int:
        """How many it is about."""
        return sum(last - first for first, last in self.ranges)


def adding(calls: Sequence[Call]) -> Call:
    """Make the call that adds the results of calls that have ended."""
    ranges = tuple(sorted(each for call in calls for each in call.ranges))
    return Call(ranges, tuple(calls), max(call.level for call in calls) + 1)


def _files_of(feeds: Feeds) -> FileStream:
    """Return the files that samples are read from.

    Raises:
        UsageError: A function gives them.
    """
    if feeds.files is None:
        raise UsageError(
            "a function gives its samples in one process, and engine ray reads them in many",
            where=feeds.name,
            do="give files or a URL, or use engine local",
        )
    return feeds.files


@dataclass(eq=False)
class ClusterRun:
    """One pass over the samples: which calls wait, run and have ended.

    Attributes:
        source: The samples, or numbered things, which are given out as samples are.
        ranges: Samples that are run; None for all.
        given: With `ahead`, place of the first sample whose result the caller does not have yet.
        total: Number of samples that are run.
        decided: Places of the samples on which it was decided what becomes of padding, in the order of the decisions.
    """

    cluster: Cluster
    work: object
    source: Feeds | Numbered
    name: str
    ranges: SampleRanges | None = None
    ahead: bool = False  # results wait for their turn, so no more than some parts are run before it
    given: int = 0
    decided: list[int] = field(default_factory=list)
    _uncut: deque[tuple[int, int]] = field(default_factory=deque)  # what was not cut into parts yet
    _cut: int = 0  # place behind the last part
    _waiting: deque[Call] = field(default_factory=deque)
    _held: list[Call] = field(default_factory=list)  # met padding of which nothing is decided
    _running: dict[Any, tuple[Hired, Call, Any]] = field(default_factory=dict)
    _failed: tuple[int, Exception] | None = None
    _undecided: int | None = None  # place of the first sample with such padding
    _ended: Call = field(init=False)

    def __enter__(self) -> Self:
        if isinstance(self.source, Numbered):
            self._count, first = self.source.count, ""
        else:
            self._files = _files_of(self.source)
            self._count, first = self._files.count, self._files.parts[0].name
            self._trim = self.source.sent_trim()
        self._uncut.extend(((0, self._count),) if self.ranges is None else self.ranges)
        self.total = self._left
        self.cluster.begin(self.work, first)
        self._bar = cast("Generator[None]", track(itertools.repeat(None), self.total, self.name))
        next(self._bar)  # each further one is a sample that is done
        self._told = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self.cluster.release()

    def _tell(self, samples: int) -> None:
        """Move the bar on; samples that are run again do not count twice."""
        for _ in range(min(samples, self.total - self._told)):
            next(self._bar)
            self._told += 1

    def submit(self, call: Call) -> None:
        """Let a call wait for a worker, before all that run samples."""
        self._waiting.appendleft(call)

    def holds(self, call: Call | None) -> bool:
        """Tell whether a call waits or runs."""
        return call in self._waiting or any(each is call for _, each, _ in self._running.values())

    def again(self, call: Call) -> None:
        """Run the samples of a result again, which is lost."""
        self._waiting.extend(Call((each,)) for each in call.ranges)

    def fetch(self, call: Call) -> tuple[Any, ...]:
        """Return the result of a call; nothing where it is lost, and its samples are run again."""
        try:
            # its arrays lie in memory of the cluster, which goes with it
            return (copy.deepcopy(self.cluster.ray.get(call.result)),)
        except self.cluster.ray.exceptions.RayError:
            self.again(call)
            return ()

    def ended(self) -> Iterator[Call]:
        """Give calls as they end, until none is left that waits or runs.

        Raises:
            Int8calError: Of the first sample that failed.
        """
        while True:
            self.cluster.hire()
            self._assign()
            if not self._waiting and not self._awaits:
                if self._undecided is not None:
                    self._decide()
                    continue
                if not self._more:
                    break
            waited = [*self._running, *self.cluster.coming]
            if not waited:  # the last node is gone, and others may come
                time.sleep(1.0)
                continue
            done, _ = self.cluster.ray.wait(waited, num_returns=len(waited), timeout=0)
            if not done:
                done, _ = self.cluster.ray.wait(waited, num_returns=1, timeout=1.0)
            for ref in done:
                if ref in self.cluster.coming:
                    self.cluster.arrived(ref)
                elif self._end(ref):
                    yield self._ended
        if self._failed is not None:
            raise self._failed[1]

    @property
    def _end_of_data(self) -> int:
        """Place behind the last sample that is run: nobody needs what is behind one that failed."""
        return self._count if self._failed is None else self._failed[0]

    @property
    def _awaits(self) -> bool:
        """Whether a call runs whose result is needed: not one that another worker was faster with."""
        running = (call for _, call, _ in self._running.values() if call.result is None and call not in self._held)
        return any(call.first < self._end_of_data for call in running)

    @property
    def _more(self) -> bool:
        """Whether there is more to cut into parts."""
        return bool(self._uncut) and self._uncut[0][0] < self._end_of_data

    @property
    def _left(self) -> int:
        """How many samples were not cut into parts yet."""
        return sum(last - first for first, last in self._uncut)

    def _assign(self) -> None:
        """Give calls to the workers that are free."""
        while self.cluster.idle:
            worker = self.cluster.idle[-1]
            call = self._next(worker)
            if call is None:
                return
            self.cluster.idle.pop()
            self.cluster.busy.add(worker)
            call.began = time.monotonic()
            call.running += 1
            if call.inputs:
                refs = worker.actor.add.options(num_returns=2).remote(*(each.result for each in call.inputs))
            else:
                refs = worker.actor.run.options(num_returns=2).remote(self._part(*call.ranges[0]), self.cluster.work)
            self._running[refs[0]] = worker, call, refs[1]

    def _part(self, first: int, last: int) -> DataPart | range:
        """Return what a worker is sent of these samples, or things."""
        if isinstance(self.source, Numbered):
            return range(first, last)
        return DataPart(first, self._files.only(range(first, last)), self._trim)

    def _next(self, worker: Hired) -> Call | None:
        """Choose what a worker does: what waits, or the next part, or one that takes another worker long."""
        end = self._end_of_data
        while self._waiting:
            call = self._waiting.popleft()
            if call.result is None and call.first < end:
                return call
        if self._undecided is None and self._more and not self._far_ahead():
            share = math.ceil(self._left / (2 * max(self.cluster.workers, 1)))
            first, last = self._uncut.popleft()
            wanted, least = FIRST_SAMPLES, 1
            if worker.rate is not None:
                wanted, least = (max(int(worker.rate * seconds), 1) for seconds in (PART_S, LEAST_PART_S))
            self._cut = min(first + max(min(wanted, share, MOST_SAMPLES), least), last)
            if self._cut < last:
                self._uncut.appendleft((self._cut, last))
            return Call(((first, self._cut),))
        return self._slow()

    def _far_ahead(self) -> bool:
        if not self.ahead:
            return False
        rates = sum(each.rate or 0.0 for each in (*self.cluster.idle, *self.cluster.busy))
        return self._cut - self.given > max(int(rates * PART_S), 4 * FIRST_SAMPLES * max(self.cluster.workers, 1))

    def _slow(self) -> Call | None:
        """Find a call that takes its worker far longer than others need for as much."""
        rates = sorted(each.rate for each in (*self.cluster.idle, *self.cluster.busy) if each.rate)
        if not rates:
            return None
        rate, now = rates[len(rates) // 2], time.monotonic()
        for _, call, _ in self._running.values():
            expected = LEAST_SLOW_S if call.inputs else call.samples / rate  # adding takes a second or two
            if now - call.began > max(LEAST_SLOW_S, SLOW * expected) and call.running == 1 and call.result is None:
                return call
        return None

    def _end(self, ref: Any) -> bool:
        """Take what a call left; returns whether `_ended` is one with a result."""
        worker, call, result = self._running.pop(ref)
        call.running -= 1
        try:
            outcome: CallOutcome = self.cluster.ray.get(ref)
        except self.cluster.ray.exceptions.RayError as error:
            self._lost(worker, call, error)
            return False
        self.cluster.busy.discard(worker)
        self.cluster.idle.append(worker)
        for line in outcome.warnings:
            warnings.warn(line.removeprefix("warning: "), ClusterWarning, stacklevel=2)
        if call.result is not None:  # another worker was faster
            return False
        if isinstance(outcome.error, UndecidedError):
            self._held.append(call)
            place = outcome.error.place
            self._undecided = place if self._undecided is None else min(self._undecided, place)
            return False
        if outcome.error is not None:
            self._fail(call.first, outcome.error)
            return False
        if outcome.samples:
            worker.rate = outcome.samples / max(outcome.seconds, 1e-3)
            self._tell(outcome.samples)
        call.result, call.inputs, self._ended = result, (), call
        return True

    def _fail(self, first: int, error: Exception) -> None:
        """Note an error; parts before it are run to their end, as one of them may have an earlier one."""
        if self._failed is None or first < self._failed[0]:
            self._failed = first, error

    def _lost(self, worker: Hired, call: Call, error: Exception) -> None:
        """Run again what a lost worker, or lost results, leave undone."""
        gone = isinstance(error, self.cluster.ray.exceptions.RayActorError)
        first, last = call.first, call.ranges[-1][1]
        if gone:
            what = f"inferences for {self.name}" if isinstance(self.source, Numbered) else "samples"
            self.cluster.lost(worker, f"{what} {first + 1} to {last} are run again")
        else:
            self.cluster.busy.discard(worker)
            self.cluster.idle.append(worker)
        if call.result is not None or call.running:
            return
        call.losses += 1
        if call.inputs:
            if gone and call.losses < MOST_LOSSES:
                self.submit(call)
            else:
                self.again(call)
        elif call.losses >= MOST_LOSSES and call.samples == 1:
            self._fail(first, self._ended_processes(first, call.losses))
        elif call.losses < MOST_LOSSES:
            self.submit(call)
        else:  # smaller parts, to find the sample that does it
            middle = (first + last) // 2
            self._waiting.extendleft(
                Call((each,), losses=MOST_LOSSES - 1) for each in ((middle, last), (first, middle))
            )

    def _ended_processes(self, place: int, losses: int) -> DataError:
        what, do = f"ends the process that runs it, {losses} times", "look for memory that runs out, or "
        if isinstance(self.source, Numbered):
            name = self.source.names[place]
            return DataError(what, where=name, do=f"{do}give more --threads, for fewer workers on a node")
        name = self._files.sample_name(place)
        return DataError(what, where=name, do=f"{do}leave the sample out", sample=name)

    def _decide(self) -> None:
        """Decide what becomes of padding that was met for the first time, on the sample on which it would be here."""
        place, source = self._undecided, self.source
        if place is not None and place < self._end_of_data and not isinstance(source, Numbered):
            source.at([place])
            self.decided.append(place)
            self._trim = source.sent_trim()
        self._undecided = None
        self._waiting.extend(self._held)
        self._held = []
