"""Times: of whole models, measured in turns so that a machine's drift hits all alike, and of layers.

A layer's time is that of a profile's kernels, summed up by the layers of the Plan.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx

from int8cal.evaluation.optimized_graph import OriginalNames, optimized_bodies, trait
from int8cal.evaluation.other_load import TimedRun, at_work, cpu_s, thread_times, waited_s, without_load
from int8cal.evaluation.result import Latency
from int8cal.evaluation.result_parts import Fastest
from int8cal.graph.bodies import full_name
from int8cal.graph.index import Index
from int8cal.numerics.intervals import ratio_interval
from int8cal.runtime.sessions import cpu_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array
    from int8cal.runtime.batching import Runs
    from int8cal.runtime.profile import Profile

# After a run, a session's threads wait for work in a busy loop and would take a core from the next session's. They give
# up after some milliseconds on AMD's CPUs and after fifty on Intel's, where the loop's pause instruction takes longer.
_QUIET_S, _LOOK_S = 0.2, 0.002  # the longest wait for that, and between looks
_BUSY = 0.2  # of one CPU
# Then its own threads have to wake up, and to find a core each, which takes up to fifty milliseconds where several
# runtimes' threads share two. What is measured in that time is not the model.
_SETTLE_S, _MOST_SETTLE_S = 0.015, 0.05
_SETTLED = 1.1  # times the fastest run so far
_ROUNDS = 6
# Rounds end where the ends of every interval differ by no more than this factor: nobody decides by less.
_LEAST_ROUNDS, _PRECISE = 4, 1.1
_LEAST_TOLD = 3  # rounds in which other processes left runs of every session alone; with fewer, all rounds are guessed
# Of a turn, warm-up included. Of four models, turns of twice the length gave medians no nearer to each other when they
# were measured again, and intervals that held the median of all measurements less often.
_TURN_S = 0.05
# Of a model of 0.1 ms, more runs in a turn do not change its median by more than turns differ.
_ENOUGH_RUNS = 300
_BORDER = frozenset({"boundary", "layout"})
# They serve the layer that reads what they give; other borders serve the one that wrote it.
_INWARD = frozenset({"QuantizeLinear", "ReorderInput"})


class Rounds(tuple[tuple[float, ...], ...]):  # noqa: SLOT001 - a tuple cannot have slots with content
    """Per round the microseconds of each session; `guessed` where other processes let nothing better be told."""

    guessed = False


def measure_interleaved(
    sessions: Sequence[Runs],
    feeds: Sequence[dict[str, Array]],
    *,
    rounds: int = _ROUNDS,
    budget_s: float = 3.0,
    turn_s: float | None = None,
    runs: int | None = None,
    enough: Callable[[Rounds], bool] | None = None,
    threads: int = 0,
) -> Rounds:
    """Time sessions in turns of many runs each: single runs in turn would measure how their threads disturb each other.

    Every second round goes backwards, so that a machine that grows slower does so for all alike. The session between
    two rounds has two turns on end, and the second one begins at once.

    Where other processes take cores from a turn, see `other_load`, only its undisturbed runs count, and it goes on for
    its share of the budget until it has enough of them. Rounds in which a session's turn has too few do not count, and
    as long as there is time others take their place. With one thread, CPU time tells it without undisturbed runs.

    Args:
        sessions: Open sessions.
        feeds: The feed of each.
        rounds: How often each session has its turn.
        budget_s: Seconds after which no further round starts; one round is always measured.
        turn_s: Seconds of a turn, warm-up included; None for an equal share of the budget.
        runs: Timed runs after which a turn ends before its time; None for as many as there is time for.
        enough: Asked after each round, with all so far: whether no further one is needed.
        threads: Of each session; 0 for one per CPU.

    Returns:
        Per round the median microseconds of each session.
    """
    threads = threads or cpu_count()
    longest = budget_s / (rounds * len(sessions))
    share = turn_s or longest
    settle = min(_SETTLE_S, share / 2)
    stop = time.perf_counter() + budget_s
    fastest = [0.0] * len(sessions)
    told: list[tuple[float, ...]] = []
    guesses: list[tuple[float, ...]] = []  # of every round
    result = Rounds()
    last: int | None = None  # whose turn it was
    clocks: tuple[int, ...] = ()  # of the threads that work in it
    while not guesses or (len(told) < rounds and time.perf_counter() < stop):
        found: list[tuple[float | None, float]] = [(None, 0.0)] * len(sessions)
        for number in range(len(sessions))[:: -1 if len(guesses) % 2 else 1]:
            session, feed = sessions[number], feeds[number]
            if number != last:
                wait_until_quiet()
                before = thread_times()
                _settle(session, feed, settle, fastest[number])
                clocks = at_work(before)
            last = number
            waited, start = waited_s(), time.perf_counter()
            turn: list[TimedRun] = []
            while found[number][0] is None:
                turn.append(_timed(session, feed, clocks))
                now = time.perf_counter()
                if now - start < share - settle and len(turn) < (runs or math.inf):
                    continue
                found[number] = without_load(turn, waited_s() - waited, threads)
                if now - start >= longest - settle or now > stop:
                    break
            fastest[number] = min(fastest[number] or math.inf, *(1e6 * run.wall for run in turn))
        guesses.append(tuple(1e6 * guess for _, guess in found))
        alone = tuple(1e6 * each for each, _ in found if each is not None)
        told += [alone] if len(alone) == len(sessions) else []
        is_told = len(told) >= min(_LEAST_TOLD, len(guesses))
        result = Rounds(told if is_told else guesses)
        result.guessed = not is_told
        if enough is not None and enough(result):
            break
    return result


def _timed(session: Runs, feed: dict[str, Array], clocks: Sequence[int]) -> TimedRun:
    """Run a session once; clocks are read outside of the time that counts."""
    start, cpu = time.perf_counter(), cpu_s(clocks)
    begin = time.perf_counter()
    session.run(feed)
    end = time.perf_counter()
    cpu = cpu_s(clocks) - cpu
    return TimedRun(end - begin, cpu, time.perf_counter() - start)


def _settle(session: Runs, feed: dict[str, Array], least_s: float, fastest_us: float) -> None:
    """Run a session until it is about as fast as it has been, but not for long; in its first turn for all that time."""
    start = time.perf_counter()
    while True:
        begin = time.perf_counter()
        session.run(feed)
        now = time.perf_counter()
        settled = 1e6 * (now - begin) <= _SETTLED * fastest_us
        if now - start >= (least_s if settled else _MOST_SETTLE_S):
            return


def wait_until_quiet() -> None:
    """Wait until no thread of this process is busy any more, but not for long."""
    end = time.perf_counter() + _QUIET_S
    while True:
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(_LOOK_S)
        now = time.perf_counter()
        if time.process_time() - cpu < _BUSY * (now - began) or now > end:
            return


def measure_latencies(
    pairs: Mapping[str, tuple[Runs, Runs]],
    feeds: tuple[dict[str, Array], dict[str, Array]],
    *,
    rows: tuple[int, int] = (1, 1),
    budget_s: float = 3.0,
    threads: int | None = None,
) -> tuple[dict[str, Latency], Fastest | None]:
    """Time both models in several runtimes, all in the same turns.

    Args:
        pairs: Name of a runtime -> open sessions of the FP32 and the int8 model there; what gains are held against
            comes first.
        feeds: The feed of each model, both of the same sample.
        rows: Samples in each feed (the model's fixed batch); times are divided by it.
        budget_s: Seconds per pair after which no further round starts, warm-up included; one is always measured.
        threads: Of each session, for the record.

    Returns:
        By runtime the medians in milliseconds per sample, and their ratio fp32 / int8, with its interval over the
        rounds, None after a single one and where times are guessed; and in which runtime the int8 model is fastest,
        where there are several.
    """
    sessions = [session for pair in pairs.values() for session in pair]
    rounds = measure_interleaved(
        sessions,
        feeds * len(pairs),
        rounds=_ROUNDS,
        budget_s=budget_s * len(pairs),
        turn_s=min(budget_s / (2 * _ROUNDS), _TURN_S),
        runs=_ENOUGH_RUNS,
        enough=_is_precise,
        threads=threads or 0,
    )
    found, taken = {}, {}
    for number, name in enumerate(pairs):
        # a clock too coarse for a tiny model must not divide by zero
        times = [[max(1e-3 * each[2 * number + side] / rows[side], 1e-9) for each in rounds] for side in (0, 1)]
        first, second = (statistics.median(each) for each in times)
        speedup = first / second
        interval = None if rounds.guessed else ratio_interval(times[0], times[1], speedup)
        found[name] = Latency(first, second, speedup, interval, rounds=len(rounds), threads=threads)
        taken[name] = times[1]
    fastest = _fastest(taken)
    return found, replace(fastest, gain_ci95=None) if fastest and rounds.guessed else fastest


def _is_precise(rounds: Rounds) -> bool:
    """Say whether the intervals of the ratios of all pairs of neighbouring times are narrow."""
    if rounds.guessed or len(rounds) < _LEAST_ROUNDS:
        return False
    times = list(zip(*rounds, strict=True))
    pairs = zip(times[::2], times[1::2], strict=True)
    intervals = (ratio_interval(first, second, first[0] / second[0]) for first, second in pairs)
    return all(each is not None and each[1] <= _PRECISE * each[0] for each in intervals)


def _fastest(taken: Mapping[str, Sequence[float]]) -> Fastest | None:
    """Find the runtime of the lowest median; `taken` has the int8 model's times of each, round by round."""
    if len(taken) < 2:
        return None
    middle = {name: statistics.median(times) for name, times in taken.items()}
    first, second, *_ = sorted(middle, key=lambda name: middle[name])
    base = next(iter(middle))
    against = second if first == base else base
    gain = middle[against] / middle[first]
    return Fastest(first, against, gain, ratio_interval(taken[against], taken[first], gain))


@dataclass(frozen=True)
class LayerCost:
    """A layer's time per inference, with the Q, DQ and changes of layout at its borders.

    Attributes:
        fp32_us, int8_us: Microseconds in the FP32 model, and in the int8 model with every layer in int8.
    """

    node: str
    op_type: str
    fp32_us: float
    int8_us: float

    @property
    def loss(self) -> float:
        """Microseconds that int8 takes longer."""
        return self.int8_us - self.fp32_us


def layer_costs(
    plan: Plan, fp32: tuple[Profile, onnx.ModelProto], int8: tuple[Profile, onnx.ModelProto]
) -> tuple[LayerCost, ...]:
    """Return each layer's cost in both models.

    Args:
        plan: Whose layers are meant, those of bodies too.
        fp32, int8: The profile of each model, and the model as it was opened: with full names in bodies.

    Returns:
        In graph order, bodies behind the main graph. A layer that the runtime fused into something unknown is left out,
        and so is one in a body that the profile did not run: nothing is known of it.
    """
    layers = {name: layer for name, (_, layer) in plan.ranged_layers.items()}
    before, after = (_per_layer(profile, model, layers.keys()) for profile, model in (fp32, int8))
    return tuple(
        LayerCost(name, layer.op_type, before[name], after[name])
        for name, layer in layers.items()
        if name in before and name in after
    )


def layer_links(graphs: Mapping[str, onnx.ModelProto], plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return pairs of layers of which the second reads the first's result, as it is or as other nodes changed it.

    Args:
        graphs: The prepared model under "", and its bodies by path.
        plan: Its plan.

    Returns:
        Full names, of layers of one graph each.
    """
    found: list[tuple[str, str]] = []
    for path, each in plan.graphs.items():
        index, layers = Index(graphs[path]), frozenset(layer.node for layer in each.layers)
        for layer in each.layers:
            writers = dict.fromkeys(_writers(index, layer.input, layers))
            found += ((full_name(path, writer), full_name(path, layer.node)) for writer in writers)
    return tuple(found)


def _writers(index: Index, tensor: str, layers: frozenset[str]) -> Iterator[str]:
    pending, seen = [tensor], {tensor}
    while pending:
        producer = index.producer.get(pending.pop())
        if producer is None:
            continue
        if producer.name in layers:
            yield str(producer.name)
            continue
        pending += [name for name in producer.input if name and name not in seen]
        seen.update(producer.input)


def _per_layer(profile: Profile, original: onnx.ModelProto, layers: AbstractSet[str]) -> dict[str, float]:
    result: dict[str, float] = {}
    graphs: list[tuple[onnx.ModelProto, onnx.ModelProto | None]] = [(profile.optimized, original)]
    for optimized, before in graphs:  # which grows
        graphs += ((after, same) for _, after, same in optimized_bodies(optimized, before))
    # of what the runtime adds, two graphs may have one of the same name: whose time that is, the profile does not say
    counts = Counter(node.name for optimized, _ in graphs for node in optimized.graph.node)
    kernels = {name: us for name, us in profile.kernels.items() if counts[name] == 1}
    for optimized, before in graphs:
        for name, us in _in_graph(kernels, optimized, before or onnx.ModelProto(), layers):
            result[name] = result.get(name, 0.0) + us
    return result


def _in_graph(
    kernels: Mapping[str, float], optimized: onnx.ModelProto, original: onnx.ModelProto, layers: AbstractSet[str]
) -> Iterator[tuple[str, float]]:
    """Iterate over the kernels of one graph that serve layers: the layer, and microseconds."""
    index = Index(optimized)
    names = OriginalNames(index, original)
    known = {node.name for node in original.graph.node}
    owner = {node.name: names.node(node) for node in optimized.graph.node if trait(node.op_type).role not in _BORDER}
    for node in optimized.graph.node:
        name = owner.get(node.name, "")
        if name not in layers and (name == "" or (node.op_type == "Transpose" and node.name not in known)):
            name = _neighbour(index, node, owner, layers)
        if name in layers and node.name in kernels:
            yield name, kernels[node.name]


def _neighbour(index: Index, node: onnx.NodeProto, owner: dict[str, str], layers: AbstractSet[str]) -> str:
    """Return the layer that a border belongs to, looking through other borders; "" where there is none."""
    inward = node.op_type in _INWARD or (
        node.op_type == "Transpose"
        and any(use.node.op_type.startswith("QLinear") for use in index.uses.get(node.output[0], []))
    )
    for down in (inward, not inward):
        at: onnx.NodeProto | None = node
        while at is not None:
            uses = index.uses.get(at.output[0], [])
            at = (uses[0].node if uses else None) if down else index.producer.get(at.input[0])
            if at is None or owner.get(at.name, "") in layers:
                break
            if trait(at.op_type).role not in _BORDER and at.op_type != "Transpose":
                at = None
        if at is not None:
            return owner[at.name]
    return ""
