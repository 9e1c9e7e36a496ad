"""The engine that spreads parts of the data over a Ray cluster: the only file that imports ray.

A worker is a Ray actor with a session of its own. It takes a part of the data when it is free, small ones towards the
end, and reads their samples itself. What it finds stays in the cluster, where other calls of workers add it up as a
tree. A part whose worker is lost is run again, and so are the parts behind a result that was lost with its node. As
results add exactly, none of this can be seen in them. Sweeps, which read no data, are cut into parts by number.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import operator
import os
import socket
import time
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from int8cal.calibration.engines.schedule import Call, ClusterRun, ClusterWarning, adding, between
from int8cal.data.hub import is_dataset
from int8cal.data.remote import path_of
from int8cal.errors import UsageError
from int8cal.extras import extra_hint
from int8cal.progress import tell_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from int8cal.calibration.engines.parts import DataPart, Numbered, Work
    from int8cal.calibration.engines.schedule import SampleRanges
    from int8cal.data.feeds import Feeds
    from int8cal.job import Job

T = TypeVar("T")

THREADS = 1  # of a worker: runs side by side share nothing, so they take less time than threads that share one run
FAN_IN = 8  # results that one call adds
MOST_FAILED = 3  # workers that do not start, one after the other
_ANSWER_S = 10.0
_LOOK_S = 5.0  # between looks at which nodes there are
_SAME = ("int8cal", "onnxruntime", "numpy")  # packages that must have one version everywhere


def require_ray() -> Any:
    """Import ray.

    Raises:
        UsageError: It is not installed.
    """
    # no report of its use to anybody, no remark about GPUs that nobody asked for
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError("engine ray needs ray, which is not installed", do=extra_hint("ray")) from error
    return ray


def same_versions() -> dict[str, str]:
    """Return the versions on which results depend."""
    return {name: importlib.metadata.version(name) for name in _SAME}


def _require_answer(address: str | None) -> None:
    """Look whether anybody answers at HOST:PORT; Ray itself tries for more than a minute.

    Raises:
        OSError: Nobody does.
    """
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


@contextmanager
def cluster_connection(address: str | None) -> Iterator[str]:
    """Be connected to a Ray cluster, by the connection that there is, or by one of its own; gives its address.

    Args:
        address: As for `Cluster`.

    Raises:
        UsageError: Ray is not installed, or no cluster answers.
    """
    ray, own = require_ray(), False
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            _require_answer(address)
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise UsageError(
                f"no Ray cluster answers at {address or 'this machine'}",
                do='start one with "ray start --head", or leave --address out',
            ) from error
        own = True
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        if own:
            ray.shutdown()


@dataclass(frozen=True)
class CallOutcome:
    """What became of a call; its result, if any, stays in the cluster.

    Attributes:
        samples: How many were run, or numbered things done.
        seconds: That it took.
        error: What was raised.
        warnings: What libraries said, a line each.
    """

    samples: int = 0
    seconds: float = 0.0
    error: Exception | None = None
    warnings: tuple[str, ...] = ()


class _Worker:
    """A process in the cluster; Ray makes an actor of it.

    Args:
        threads: Of the runtime.
        folder: What paths of the data start from.
    """

    def __init__(self, threads: int, folder: str) -> None:
        self._threads = threads
        self._opened: tuple[Any, Callable[[Any], Any]] | None = None
        self._told: list[str] = []
        tell_warnings(self._told.append)
        if Path(folder).is_dir():
            os.chdir(folder)

    def ready(self, file: str) -> tuple[str, int, dict[str, str], bool]:
        """Return the address of the node, the process, versions, and whether a file is there."""
        ray = require_ray()
        return ray.util.get_node_ip_address(), os.getpid(), same_versions(), not file or path_of(file).exists()

    def run(self, part: DataPart | range, work: Sequence[Any]) -> tuple[CallOutcome, Any]:
        """Do work with a part; where the work is stands in a list: Ray would read it anew for every call."""
        try:
            if self._opened is None or self._opened[0] != work[0]:
                self._opened = None  # its memory goes before the next one's is taken
                self._opened = work[0], require_ray().get(work[0]).open(self._threads)
            began = time.monotonic()
            result = self._opened[1](part)
        except Exception as error:  # noqa: BLE001 - raised where the run was asked for
            return self._outcome(error=error), None
        return self._outcome(samples=len(part), seconds=time.monotonic() - began), result

    def add(self, *results: Any) -> tuple[CallOutcome, Any]:
        """Add results."""
        try:
            return CallOutcome(), functools.reduce(operator.add, results)
        except Exception as error:  # noqa: BLE001 - likewise
            return CallOutcome(error=error), None

    def _outcome(self, **found: Any) -> CallOutcome:
        lines, self._told[:] = tuple(self._told), []
        return CallOutcome(**found, warnings=lines)


@dataclass
class Sums(Generic[T]):
    """What the driver has of a pass: the sum of some results, which it asks for on the way.

    Attributes:
        due: Asked with a number of samples whose results it does not have: whether it wants them now.
        keep: Gets this, and the places of samples that padding was decided on, when it has them.
        total: The sum; None of none.
        ranges: Samples that it is of.
    """

    due: Callable[[int], bool]
    keep: Callable[[Sums[T], list[int]], object]
    total: T | None = None
    ranges: SampleRanges = ()

    def add(self, found: T, ranges: SampleRanges) -> T:
        """Add a result; returns the sum."""
        self.total = found if self.total is None else operator.add(self.total, found)
        self.ranges = (*self.ranges, *ranges)
        return self.total


@dataclass(eq=False)
class Hired:
    """A worker as the driver sees it; `rate` is in samples a second, None before its first part."""

    actor: Any
    node: str = ""
    process: int = 0
    rate: float | None = None


class Cluster:
    """A Ray cluster, whose workers are there as long as a pass over data, or several; open it with `with`.

    Args:
        address: Of the cluster; None for RAY_ADDRESS, or the one that runs on this machine, or a new one of its CPUs.
        threads: Of a worker's session, and CPUs that it takes; 0 for THREADS.
    """

    def __init__(self, address: str | None = None, threads: int = 0) -> None:
        self._address, self.threads = address, threads or THREADS
        self.ray = require_ray()
        self.idle: list[Hired] = []
        self.busy: set[Hired] = set()
        self.coming: dict[Any, Hired] = {}  # by what says that they are there
        self._looked, self._wanted, self._never = -math.inf, 0, 0
        self.work: list[Any] = []
        self._probe, self._held = "", False

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._open.enter_context(cluster_connection(self._address))
        self._actor = self.ray.remote(_Worker)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def workers(self) -> int:
        """How many there are, busy or not."""
        return len(self.idle) + len(self.busy)

    def added(self, work: Work[DataPart, T], feeds: Feeds, name: str, ranges: SampleRanges | None = None) -> T:
        """Do work with samples, and add up what it gives.

        Args:
            work: What is done with each part; its results add.
            feeds: The samples, of files; there are some.
            name: Of the stage, for whoever follows the run.
            ranges: Which samples; None for all.

        Raises:
            Int8calError: Of the first sample that failed, or of a cluster that does not work.
        """
        return self.added_to(Sums(lambda _: False, lambda *_: None), work, feeds, name, ranges)

    def added_to(
        self, sums: Sums[T], work: Work[DataPart, T], feeds: Feeds, name: str, ranges: SampleRanges | None = None
    ) -> T:
        """Do as `added`, with all samples but those of `sums`, and add what it gives to these.

        Raises:
            Int8calError: As `added`.
        """
        if ranges is None and feeds.files is not None:
            ranges = between(sums.ranges, feeds.files.count)
        with ClusterRun(self, work, feeds, name, ranges) as run:
            done, wanted = list[Call](), None
            while True:
                for call in run.ended():
                    if call is wanted:
                        for found in run.fetch(call):
                            sums.add(found, call.ranges)
                            sums.keep(sums, run.decided)
                        continue
                    done.append(call)
                    same = [each for each in done if each.level == call.level]
                    if len(same) == FAN_IN:
                        done = [each for each in done if each.level != call.level]
                        run.submit(adding(same))
                    elif sums.due(sum(each.samples for each in done)) and not run.holds(wanted):
                        wanted, done = adding(done), []
                        run.submit(wanted)
                if not done and sums.total is not None:
                    return sums.total
                if len(done) == 1:
                    own = done.pop()
                    for found in run.fetch(own):
                        return sums.add(found, own.ranges)
                for start in range(0, len(done), FAN_IN):
                    run.submit(adding(done[start : start + FAN_IN]))
                done = []

    def in_order(self, work: Work[DataPart, T], feeds: Feeds, name: str) -> Iterator[T]:
        """Do work with all samples, and give what each part gives, in the order of the parts.

        Args:
            work, feeds, name: As for `added`; results need not add.

        Raises:
            Int8calError: As `added`.
        """
        return self._in_order(work, feeds, name)

    def each(self, work: Work[range, Iterable[T]], things: Numbered) -> Iterator[T]:
        """Do numbered things, and give what each gives, in their order.

        Args:
            work: Gives what a range of numbers gives, one after the other.
            things: What is done; their name is that of the stage.

        Raises:
            Int8calError: Of the first one that failed, or of a cluster that does not work.
        """
        for part in self._in_order(work, things, things.name):
            yield from part

    def _in_order(self, work: Work[Any, T], source: Feeds | Numbered, name: str) -> Iterator[T]:
        with ClusterRun(self, work, source, name, ahead=True) as run:
            waiting: dict[int, Call] = {}
            while run.given < run.total:
                for call in run.ended():
                    waiting[call.first] = call
                    while run.given in waiting:
                        own = waiting.pop(run.given)
                        for found in run.fetch(own):
                            run.given = own.ranges[-1][1]
                            yield found

    def begin(self, work: object, first: str) -> None:
        """Put work where every node finds it, and note a file of the data, which every worker must see; "" for none."""
        self.work = [self.ray.put(work)]
        self._probe = "" if is_dataset(first) else first  # which the library finds
        for worker in self.idle:
            worker.rate = None  # of other work
        self._looked = -math.inf

    def release(self) -> None:
        """End the workers, for whoever else uses the cluster; those that are held only where nobody waits for them."""
        idle = [] if self._held else [*self.idle, *self.coming.values()]
        for each in (*idle, *self.busy):
            self.ray.kill(each.actor)
        if not self._held:
            self.idle, self.coming = [], {}
        self.busy, self.work = set(), []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the workers of a pass stay for the next one, until the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.release()

    def hire(self) -> None:
        """Ask for as many workers as the cluster has room for."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            cpus = [int(each["Resources"].get("CPU", 0)) for each in self.ray.nodes() if each["Alive"]]
            self._looked, self._wanted = now, sum(each // self.threads for each in cpus)
            if not self._wanted and not self.workers:
                raise UsageError(
                    f"no node of the Ray cluster has {self.threads} CPUs, which a worker takes",
                    do="give fewer --threads, or add nodes",
                )
        while self.workers + len(self.coming) < self._wanted:
            options = {"num_cpus": self.threads, "scheduling_strategy": "SPREAD"}
            actor = self._actor.options(**options).remote(self.threads, str(Path.cwd()))
            self.coming[actor.ready.remote(self._probe)] = Hired(actor)

    def arrived(self, ref: Any) -> None:
        """Take a worker that has come, or a sign that it will not.

        Raises:
            UsageError: It has other versions, does not see the data, or no worker can be started.
        """
        worker = self.coming.pop(ref)
        try:
            worker.node, worker.process, found, sees = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self._never += 1
            if self._never > MOST_FAILED and not self.workers:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                why = next((line for line in reversed(lines) if "Error" in line), lines[0])
                raise UsageError(
                    f"no worker can be started in the Ray cluster: {why}",
                    do="install int8cal with its extra ray on every node",
                ) from error
            return
        self._never = 0
        for name, own in same_versions().items():
            if found[name] != own:
                raise UsageError(
                    f"node {worker.node} of the Ray cluster has {name} {found[name]}, this machine has {own}",
                    do="install the same version on every node: results would depend on which of them a sample meets",
                )
        if not sees:
            raise UsageError(
                f"node {worker.node} of the Ray cluster has no {self._probe}",
                do="put the data where every node has it under the same path, or give a URL",
            )
        self.idle.append(worker)

    def lost(self, worker: Hired, what: str) -> None:
        """Note that a worker is gone; another one is asked for."""
        self.busy.discard(worker)
        self._looked = -math.inf
        text = f"ray: a worker on node {worker.node} is lost (process {worker.process}); {what}"
        warnings.warn(text, ClusterWarning, stacklevel=2)


@contextmanager
def cluster_of(job: Job) -> Iterator[Cluster | None]:
    """Open the Ray cluster that a job asks for; None where it runs in this process.

    Raises:
        UsageError: Ray is not installed, or the cluster does not answer.
    """
    if job.calibration.engine == "local":
        yield None
        return
    with Cluster(job.calibration.address, job.calibration.threads) as cluster:
        yield cluster
