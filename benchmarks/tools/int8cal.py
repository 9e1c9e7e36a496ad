"""int8cal as a contestant. Only this file and its neighbours int8cal_*.py know int8cal's insides."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.models import workload
from benchmarks.request import Measured, Request
from benchmarks.samples import endless, stored_samples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.models import Feed, Workload
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.graph.taps import Tap
    from int8cal.runtime.sessions import Session


@dataclass(frozen=True)
class _Ready:
    """A model after the stations that come before any data."""

    prepared: Prepared
    plan: Plan
    taps: tuple[Tap, ...]
    seconds: float


def collect_and_choose(request: Request) -> Measured:
    """Go from the prepared model to the range of every tensor.

    The span is session creation, the pass over the data, and all thresholds with the default settings; "prepare"
    (reading and folding the model, the plan) is a station outside it.
    """
    from int8cal.calibration.engines.local import collect
    from int8cal.calibration.ranges import choose_ranges
    from int8cal.data.callables import CallStream
    from int8cal.data.opening import feeds_of
    from int8cal.job import CalibrationSettings, QuantizationSettings
    from int8cal.search.recipes import RECIPES
    from int8cal.threads import read_ahead

    found, samples = _data(request)
    ready = _prepare(found.path)
    settings, quantization = CalibrationSettings(), QuantizationSettings()
    started = time.perf_counter()
    feeds = feeds_of(CallStream("data", lambda: samples, ready.prepared.signature, None), ready.prepared.signature)
    statistics = collect(
        ready.prepared.model,
        ready.prepared.signature,
        ready.taps,
        read_ahead(feeds, settings.batch_size),
        model_sha256=ready.prepared.sha256,
        threads=request.threads,
        keep=RECIPES[quantization.recipe].validation_samples,
    ).statistics
    collected = time.perf_counter()
    choose_ranges(ready.plan, statistics.tensors, settings, quantization)
    ended = time.perf_counter()
    stations = {"prepare": ready.seconds, "collect": collected - started, "thresholds": ended - collected}
    return Measured(ended - started, stations, {"tensors": float(len(ready.taps))})


def whole_job(request: Request) -> Measured:
    """Call `int8cal.calibrate`: prepare, collect, thresholds, integer weights, corrections and their judging."""
    from int8cal import calibrate

    found, samples = _data(request)
    started = time.perf_counter()
    calibrate(found.path, lambda: samples, threads=request.threads)
    return Measured(time.perf_counter() - started)


def ordinary_taps(request: Request) -> Measured:
    """Run the model with the planned tensors as ordinary outputs, and look at none of them."""
    from int8cal.graph.taps import tapped_model
    from int8cal.runtime.sessions import Session

    found, samples = _data(request)
    ready = _prepare(found.path)
    started = time.perf_counter()
    session = Session(tapped_model(ready.prepared.model, [tap.tensor for tap in ready.taps]), threads=request.threads)
    tapped_bytes = _pass(session, samples, [tap.tensor for tap in ready.taps if tap.tensor in session.outputs])
    return Measured(time.perf_counter() - started, facts={"tapped_bytes": tapped_bytes})


def own_taps(request: Request) -> Measured:
    """Run the model with its tensors tapped as int8cal's calibration does, and look at none of them."""
    from int8cal.runtime.blocked import open_taps

    found, samples = _data(request)
    ready = _prepare(found.path)
    started = time.perf_counter()
    opened = open_taps(ready.prepared.model, ready.taps, threads=request.threads)
    wanted = [opened.outputs[tap.tensor] for tap in ready.taps if tap.tensor in opened.outputs]
    tapped_bytes = _pass(opened.session, samples, wanted)
    seconds = time.perf_counter() - started
    # inputs are counted as well, though nothing has to be tapped for it
    read = [array.nbytes for name, array in found.sample(0).items() if any(tap.tensor == name for tap in ready.taps)]
    return Measured(seconds, facts={"tapped_bytes": tapped_bytes + sum(read), "tensors": float(len(ready.taps))})


def _pass(session: Session, samples: Iterable[Feed], wanted: list[str]) -> float:
    """Run all samples; returns the bytes that came out, per sample."""
    total = count = 0
    for feed in samples:
        total += sum(array.nbytes for array in session.run(feed, wanted or None).values())
        count += 1
    return total / count


def quantize(request: Request) -> Measured:
    """Write int8cal's model, made with its default settings."""
    from int8cal import calibrate
    from int8cal import quantize as int8_model
    from int8cal.graph.load import save_model

    found, samples = _data(request)
    started = time.perf_counter()
    table = calibrate(found.path, lambda: samples, threads=request.threads)
    save_model(int8_model(found.path, table), Path(request.output))
    return Measured(time.perf_counter() - started)


def _data(request: Request) -> tuple[Workload, Iterable[Feed]]:
    folder = Path(request.folder)
    found = workload(request.model, folder, Path(request.zoo))
    if not request.streamed:
        return found, stored_samples(found, request.samples, folder)
    return found, endless(found, request.samples, folder)


def _prepare(path: Path) -> _Ready:
    from int8cal.calibration.engines.local import warm_up
    from int8cal.graph.chains import find_chains
    from int8cal.graph.prepare import prepare, require_layers
    from int8cal.graph.select import Selection
    from int8cal.graph.taps import make_taps
    from int8cal.runtime.sessions import simplify

    started = time.perf_counter()
    loading = threading.Thread(target=warm_up)  # int8cal's pipeline does the same
    loading.start()
    prepared = prepare(path, simplify)
    plan = require_layers(prepared, Selection((), ()))
    taps = make_taps(plan, find_chains(prepared.model, plan))
    loading.join()
    return _Ready(prepared, plan, taps, time.perf_counter() - started)


TASKS = {
    "taps-ordinary": {"calibrate": ordinary_taps},
    "taps": {"calibrate": own_taps},
    "int8cal": {"calibrate": collect_and_choose, "quantize": quantize},
    "int8cal-job": {"calibrate": whole_job},
}
