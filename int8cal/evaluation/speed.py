"""The speed of both models in onnxruntime and in the other runtimes that are installed, all in the same turns.

A runtime that was not asked for is measured where that is cheap. What goes wrong there is a reason, not an error.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import Int8calError, ModelError
from int8cal.evaluation.latency import measure_latencies
from int8cal.evaluation.result_parts import FIRST, TITLES
from int8cal.evaluation.runtimes import OTHERS
from int8cal.numerics.fills import unmasked
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.runtime.scratch import as_file
from int8cal.runtime.sessions import Session, cpu_count, first_line
from int8cal.runtime.trial import find_crash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from int8cal.evaluation.result import Latency
    from int8cal.evaluation.result_parts import Fastest
    from int8cal.evaluation.runtimes import SecondRuntime
    from int8cal.numerics import Array
    from int8cal.runtime.batching import Arrays, Runs

    GivenModel = Path | onnx.ModelProto

_LARGEST = 400_000_000  # bytes of the FP32 model: it is held a second time, and compiled
# nodes of the int8 model: OpenVINO takes 1.2 s to compile 1,000, 37 s for 15,000, and minutes for 60,000
_MOST_NODES = 4000
# inputs of one of them: it takes 3 s to compile a Concat of 1,000, 12 s of 2,000, and minutes of 10,000
_MOST_INPUTS = 1000
_BUSY = "a guess, since other processes had the cores: measure again when they are idle, or with --threads 1"
_LEAST_DB = 6.0  # between two runtimes on one sample: with less, one of them computes something else


@dataclass
class Speed:
    """What was measured.

    Attributes:
        latencies: By runtime, onnxruntime first; None where a runtime could not be measured.
        fastest: Where the int8 model is fastest; None where only one runtime was measured.
        reasons: For each None, and for an interval that is None, by dotted path of report.json.
    """

    latencies: dict[str, Latency | None] = field(default_factory=dict)
    fastest: Fastest | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def measure_speed(
    models: tuple[GivenModel, GivenModel],
    feeds: tuple[Arrays, Arrays],
    *,
    asked: Sequence[SecondRuntime],
    unasked: Sequence[str],
    too_large: str,
    rows: tuple[int, int],
    providers: Sequence[str],
    threads: int,
) -> Speed:
    """Time the FP32 and the int8 model.

    Args:
        models: Both.
        feeds: One for each, of the same sample.
        asked: Further runtimes, each with its session of the int8 model.
        unasked: Names of further runtimes, see `runtimes.unasked`.
        too_large: Why the models are too large for a runtime that was not asked for, see `what_is_too_large`.
        rows: Samples in each feed.
        providers: Execution providers of onnxruntime.
        threads: Of each runtime; 0 for all CPUs.

    Raises:
        ModelError: onnxruntime cannot open a model.
        DataError: A kernel of onnxruntime, or of a runtime that was asked for, failed.
    """
    fp32, int8 = models
    found = Speed()
    here = partial(Session, threads=threads, providers=providers, timed=True)
    sessions: dict[str, tuple[Runs, Runs]] = {FIRST: (here(fp32), here(int8))}
    for each in asked:
        try:
            sessions[each.name] = (OTHERS[each.name](fp32, threads=threads), each.timed(threads))
        except ModelError as error:
            found.reasons[f"runtimes.{each.name}.latency_ms"] = f"the FP32 model: {error.what}"
    for name in unasked:
        try:
            if too_large:
                what = f"{TITLES[name]} is not timed unasked, since {too_large}"
                raise ModelError(what, do=f"--runtime {name} measures it")
            sessions[name] = _open_unasked(name, models, feeds, sessions[FIRST][1], threads=threads)
        except Exception as error:  # noqa: BLE001 - nobody asked for it, so it ends nothing
            found.latencies[name] = None
            found.reasons[f"latencies_ms.{name}"] = _why(name, error)
    latencies, found.fastest = measure_latencies(sessions, feeds, rows=rows, threads=threads or cpu_count())
    found.latencies = {**latencies, **found.latencies}
    if latencies[FIRST].speedup_ci95 is None:
        why = "a single round of turns gives no interval" if latencies[FIRST].rounds == 1 else _BUSY
        parts = ("latencies_ms", "fastest") if len(found.latencies) > 1 else ()
        found.reasons |= dict.fromkeys(("latency.speedup_ci95", *parts), why)
    return found


def what_is_too_large(size: int, int8: onnx.ModelProto) -> str:
    """Say what keeps models from being opened again unasked, "" where nothing does; the FP32 one has `size` bytes."""
    nodes = int8.graph.node
    inputs = max((len(node.input) for node in nodes), default=0)
    limits = (
        (size > _LARGEST, f"the model has {size / 1e6:.0f} MB"),
        (len(nodes) > _MOST_NODES, f"the int8 model has {len(nodes):,} nodes"),
        (inputs > _MOST_INPUTS, f"a node of the int8 model has {inputs:,} inputs"),
    )
    return next((text for over, text in limits if over), "")


def _open_unasked(
    name: str,
    models: tuple[GivenModel, GivenModel],
    feeds: tuple[Arrays, Arrays],
    here: Runs,
    *,
    threads: int,
) -> tuple[Runs, Runs]:
    """Open both models in a runtime and run each once.

    Args:
        name: Of the runtime.
        models, feeds, threads: As for `measure_speed`.
        here: The int8 model in onnxruntime.

    Raises:
        ModelError: A model crashes the runtime, or gives other outputs than in onnxruntime.
        Exception: Of the runtime: of its import, of a model that it cannot load, of a kernel that failed.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(as_file(model)) for model in models]
        crash = find_crash(OTHERS[name], files, feeds, threads=threads)
        if crash is not None:
            at, how = crash
            raise ModelError(f"{TITLES[name]} crashes on the {('FP32', 'int8')[at]} model ({how})")
        first, second = (OTHERS[name](file, threads=threads) for file in files)
    first.run(feeds[0])
    between = _between(here.run(feeds[1]), second.run(feeds[1]))
    if between is not None and not between >= _LEAST_DB:  # NaN is none of these either
        what = f"the int8 model's outputs in {TITLES[name]} are others, {between:.1f} dB from onnxruntime's"
        raise ModelError(f"{what} on the first sample", do=f"--runtime {name} compares them")
    return first, second


def _between(here: Mapping[str, Array], there: Mapping[str, Array]) -> float | None:
    """SQNR of one runtime's float outputs against the other's, over those that both give, in dB."""
    sums = ErrorSums()
    for name, expected in here.items():
        if expected.dtype.kind == "f" and name in there:
            if there[name].shape != expected.shape:
                return -np.inf
            sums += error_sums(*unmasked(expected, there[name]))
    return sums.sqnr_db


def _why(name: str, error: Exception) -> str:
    if isinstance(error, Int8calError):
        return error.what + (f"; {error.do}" if error.do.startswith("--") else "")
    return f"{TITLES[name]} failed: {type(error).__name__}: {first_line(error)}"
