"""What a calibration over a large Ray cluster costs: measured on this machine, then played with the real schedule.

    python -m benchmarks.scale --model sample_data/model.onnx --data sample_data/calib --samples 1000000 --nodes 100

First one worker's part is run here: seconds and bytes of its result, and what it takes to add two results. Then the
schedule of engine ray runs against a cluster that is not there: calls take the measured time in a clock of its own, and
nodes are lost. How busy the driver is, is measured, and not played.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import pickle
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import int8cal.calibration.engines.ray as engine
from int8cal.calibration.engines import schedule
from int8cal.calibration.engines.parts import DataPart
from int8cal.config.load import job_from_options
from int8cal.pipeline import _count_work, plan_job
from int8cal.progress import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Costs:
    """What was measured on one thread of this machine, in seconds of its CPU: whatever else runs there takes no part.

    Attributes:
        model_bytes: That are sent to every node.
        open_s: To open the session and run the first samples.
        sample_s: Of one sample, its reading included.
        sample_bytes: Of one sample's file.
        part_s: Of a part, beside its samples.
        result_bytes: Of what a part leaves behind.
        add_s: To add two of them.
    """

    model_bytes: int
    open_s: float
    sample_s: float
    sample_bytes: int
    part_s: float
    result_bytes: int
    add_s: float


def measured(model: Path, data: Path, rounds: int) -> Costs:
    """Run parts as a worker does.

    Args:
        model, data: As for `int8cal calibrate`.
        rounds: How often; the least time counts.
    """
    job = job_from_options({"model": str(model), "data.path": str(data), "calibration.threads": 1})
    planned = plan_job(job, model, Clock())
    work = _count_work(job, planned, 32)
    sent = pickle.dumps(work)
    files = planned.feeds.files
    if files is None:
        raise SystemExit("benchmarks.scale needs files")
    whole = DataPart(0, files, planned.feeds.sent_trim())
    one = DataPart(0, files.only([0]), whole.trim)
    began = time.process_time()
    run = work.open(1)
    run(one)
    open_s = time.process_time() - began
    times: dict[str, list[float]] = {"whole": [], "one": [], "add": []}
    for _ in range(rounds):
        began = time.process_time()
        result = run(whole)
        times["whole"].append(time.process_time() - began)
        began = time.process_time()
        run(one)
        times["one"].append(time.process_time() - began)
        stored = pickle.dumps(result, protocol=5)
        began = time.process_time()
        pickle.loads(stored) + pickle.loads(stored)  # noqa: S301 - made two lines above
        times["add"].append(time.process_time() - began)
    sample_s = (min(times["whole"]) - min(times["one"])) / (files.count - 1)
    names = {Path(part.name) for part in files.parts}
    return Costs(
        model_bytes=len(sent),
        open_s=open_s,
        sample_s=sample_s,
        sample_bytes=sum(name.stat().st_size for name in names) // files.count,
        part_s=max(min(times["one"]) - sample_s, 0.0),
        result_bytes=len(stored),
        add_s=min(times["add"]),
    )


class RayError(Exception):
    """As ray.exceptions has it."""


class RayActorError(RayError):
    """Likewise."""


@dataclass(eq=False)
class _Ref:
    value: Any = None
    ready: float = float("inf")


@dataclass(eq=False)
class _Actor:
    cluster: Pretended
    node: int
    opened: bool = False
    gone: bool = False

    def __getattr__(self, name: str) -> Any:
        if name not in ("run", "add", "ready"):
            raise AttributeError(name)

        def remote(*given: Any) -> Any:
            return self.cluster.called(self, name, given)

        return SimpleNamespace(remote=remote, options=lambda **_: SimpleNamespace(remote=remote))


@dataclass(eq=False)
class Pretended:
    """Looks like the module ray to the schedule: calls take measured time, in a clock of its own.

    Args:
        costs: What calls take.
        nodes, cores: Of the cluster.
        network: Bytes a second of a node's network.
        losses: Nodes that are lost, at even times of the first `hours`.
        slow: Share of nodes that take three times as long.
    """

    costs: Costs
    nodes_: int
    cores: int
    network: float
    losses: int
    until: float
    slow: float
    now: float = 0.0
    events: list[tuple[float, int, _Ref]] = field(default_factory=list)
    sent: int = 0
    calls: int = 0
    lost_calls: int = 0

    def __post_init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)
        self._count = itertools.count()
        self._random = random.Random(0)  # noqa: S311 - a simulation
        self._dead = {
            node: self.until * (number + 1) / (self.losses + 1)
            for number, node in enumerate(self._random.sample(range(self.nodes_), self.losses))
        }
        self._late = {*self._random.sample(range(self.nodes_), int(self.slow * self.nodes_))}
        self._free = [(0, node) for node in range(self.nodes_)]

    def put(self, value: object) -> _Ref:
        """Keep a value."""
        return _Ref(value, 0.0)

    def kill(self, actor: _Actor) -> None:
        """End a worker."""
        actor.gone = True

    def nodes(self) -> list[dict[str, Any]]:
        """List the nodes that are left."""
        return [
            {"Alive": self._dead.get(node, float("inf")) > self.now, "Resources": {"CPU": self.cores}}
            for node in range(self.nodes_)
        ]

    def remote(self, _: type) -> Any:
        """Make workers of a class."""
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._hired))

    def _hired(self, *_: Any) -> _Actor:
        while True:
            taken, node = heapq.heappop(self._free)
            if self._dead.get(node, float("inf")) > self.now:
                heapq.heappush(self._free, (taken + 1, node))
                return _Actor(self, node)

    def called(self, actor: _Actor, name: str, given: Sequence[Any]) -> Any:
        """Begin a call; its references are ready when it would end."""
        costs, outcome = self.costs, engine.CallOutcome()
        if name == "ready":
            seconds = 3.0 + costs.model_bytes * self.cores / self.network  # a process, and the model once per node
            value: Any = (f"node {actor.node}", 1, engine.same_versions(), True)
            return self._ref(seconds, value, actor)
        self.calls += 1
        if name == "run":
            samples = len(given[0])
            seconds = costs.part_s + samples * (costs.sample_s + costs.sample_bytes * self.cores / self.network)
            seconds *= 3.0 if actor.node in self._late else self._random.uniform(0.9, 1.3)
            outcome = engine.CallOutcome(samples=samples, seconds=seconds)
            seconds += 0.0 if actor.opened else costs.open_s
            actor.opened = True
        else:
            self.sent += len(given) * costs.result_bytes
            seconds = len(given) * (costs.add_s + costs.result_bytes / self.network)
        status = self._ref(seconds, outcome, actor)
        return status, _Ref(actor.node, status.ready)

    def _ref(self, seconds: float, value: object, actor: _Actor) -> _Ref:
        end, dead = self.now + seconds, self._dead.get(actor.node, float("inf"))
        if dead < end:
            value, end = RayActorError(), max(dead, self.now) + 5.0  # until the cluster notices
            self.lost_calls += 1
        ref = _Ref(value, end)
        heapq.heappush(self.events, (end, next(self._count), ref))
        return ref

    def wait(self, refs: Sequence[_Ref], *, num_returns: int, timeout: float) -> tuple[list[_Ref], list[_Ref]]:  # noqa: ARG002 - as ray.wait
        """Go on in time until a reference is ready."""
        if timeout:
            self.now = max(self.now, min(self.now + timeout, *(ref.ready for ref in refs)))
        return [ref for ref in refs if ref.ready <= self.now], []

    def get(self, ref: _Ref) -> Any:
        """Return what a reference stands for."""
        if isinstance(ref.value, RayError):
            raise ref.value
        return ref.value


@dataclass(frozen=True)
class _Files:
    """As many samples as are asked for, of which none is there."""

    count: int
    parts: Sequence[Any] = (SimpleNamespace(name=""),)

    def only(self, places: range) -> _Files:
        """Return some of them."""
        return _Files(len(places))

    def sample_name(self, place: int) -> str:
        """Name a sample."""
        return str(place)


def played(costs: Costs, samples: int, ray: Pretended) -> dict[str, float]:
    """Run the schedule of engine ray against a cluster that is not there."""
    clock = SimpleNamespace(monotonic=lambda: ray.now, sleep=lambda seconds: setattr(ray, "now", ray.now + seconds))
    cluster = engine.Cluster.__new__(engine.Cluster)
    cluster.__dict__ |= {
        "ray": ray,
        "threads": 1,
        "idle": [],
        "busy": set(),
        "coming": {},
        "_looked": -1e9,
        "_wanted": 0,
        "_never": 0,
        "work": [],
        "_held": False,
        "_probe": "",
        "_actor": ray.remote(object),
        "_address": None,
    }
    feeds: Any = SimpleNamespace(files=_Files(samples), name="", sent_trim=lambda: None)
    began = time.process_time()
    work: Any = None
    with patch.object(schedule, "time", clock), patch.object(engine, "time", clock):
        cluster.added(work, feeds, "samples")
    busy = time.process_time() - began
    ideal = samples * costs.sample_s / (ray.nodes_ * ray.cores)
    return {
        "seconds": round(ray.now, 1),
        "seconds of inference alone": round(ideal, 1),
        "calls": ray.calls,
        "calls lost": ray.lost_calls,
        "GB of results sent": round(ray.sent / 1e9, 2),
        "GB of samples read": round(samples * costs.sample_bytes / 1e9, 1),
        "seconds of the driver": round(busy, 1),
        "share of the driver's time": round(busy / max(ray.now, 1e-9), 3),
    }


def main() -> None:
    """Print what was measured, and what it means for a cluster, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--network", type=float, default=1.25e9, help="bytes a second of a node (default 10 Gbit/s)")
    parser.add_argument("--lost", type=int, default=3, help="nodes that are lost")
    parser.add_argument("--slow", type=float, default=0.05, help="share of nodes that take three times as long")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--costs", type=Path, help="figures measured before, in place of --model and --data")
    given = parser.parse_args()
    costs = (
        Costs(**json.loads(given.costs.read_text())) if given.costs else measured(given.model, given.data, given.rounds)
    )
    until = given.samples * costs.sample_s / (given.nodes * given.cores)
    ray = Pretended(costs, given.nodes, given.cores, given.network, given.lost, until, given.slow)
    print(json.dumps({"measured": costs.__dict__, "played": played(costs, given.samples, ray)}, indent=2))


if __name__ == "__main__":
    main()
