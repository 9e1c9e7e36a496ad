"""Kernel times from onnxruntime's own profiler, under the names of the graph that it optimized for itself."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

from int8cal.runtime.scratch import scratch_folder
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from int8cal.protos import ModelView
    from int8cal.runtime.batching import Arrays


_KERNEL = "_kernel_time"
_TURNS = 4
_MAX_RUNS = 400


@dataclass(frozen=True)
class Profile:
    """What one model does.

    Attributes:
        optimized: The graph that the runtime really runs, without weights' values.
        kernels: Node name in that graph -> microseconds per inference: the mean of the middle half of its runs, times
            how often an inference runs it. One in a body that was not run has none.
    """

    optimized: onnx.ModelProto
    kernels: dict[str, float]


def profile_kernels(
    models: Sequence[onnx.ModelProto | ModelView], feeds: Sequence[Arrays], *, threads: int = 0, budget_s: float = 2.0
) -> tuple[Profile, ...]:
    """Profile models in turns, so that a machine's drift hits all alike.

    Args:
        models: The models; no two nodes are called alike, in bodies of If, Loop and Scan neither.
        feeds: The feed of each.
        threads: Intra-op threads; 0 for one per available CPU.
        budget_s: Seconds to spend on each model, warm-up left out; five runs are always made.

    Returns:
        One profile per model. The profiler itself costs a few microseconds per kernel, which the figures include.

    Raises:
        ModelError: onnxruntime cannot load a model.
    """
    with scratch_folder() as folder:
        paths = [folder / f"{number}.onnx" for number in range(len(models))]
        sessions = [
            Session(model, threads=threads, optimized_path=path, profile_prefix=path.with_suffix(""))
            for model, path in zip(models, paths, strict=True)
        ]
        for session, feed in zip(sessions, feeds, strict=True):
            for _ in range(3):
                session.run(feed)
        for _ in range(_TURNS):
            for session, feed in zip(sessions, feeds, strict=True):
                _turn(session, feed, budget_s / _TURNS)
        traces = [session.end_profiling() for session in sessions]
        graphs = [onnx.load(str(path), load_external_data=False) for path in paths]
        return tuple(
            Profile(graph, kernel_times(json.loads(trace.read_text(encoding="utf-8"))))
            for graph, trace in zip(graphs, traces, strict=True)
        )


def kernel_times(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Reduce a profiler's trace to one figure per node.

    Args:
        events: The trace as onnxruntime writes it: whole microseconds per event.

    Returns:
        Node name -> microseconds per inference; the mean of the middle half, which is finer than the median of whole
        numbers. A node in a loop's body runs several times per inference.
    """
    times: dict[str, list[int]] = {}
    inferences = 0
    for event in events:
        inferences += event.get("cat") == "Session" and event.get("name") == "model_run"
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            times.setdefault(event["name"].removesuffix(_KERNEL), []).append(int(event["dur"]))
    return {name: middle_mean(values) * (len(values) / inferences) for name, values in times.items()}


def middle_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of some values."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _turn(session: Session, feed: Arrays, seconds: float) -> None:
    stop = time.perf_counter() + seconds
    for run in range(_MAX_RUNS // _TURNS):
        session.run(feed)
        if run and time.perf_counter() > stop:
            break
