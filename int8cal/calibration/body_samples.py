"""What the bodies of If, Loop and Scan are fed, run by run: their model shows what they read, nodes go step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.sample import Sample
from int8cal.graph.index import Index, attribute
from int8cal.graph.taps import tapped_model
from int8cal.runtime.batching import make_feed, run_group
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import onnx

    from int8cal.graph.bodies import Body
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array
    from int8cal.runtime.batching import Arrays


HELD_BYTES = 64_000_000  # of what bodies are given, until they are run on it


def feed_bodies(
    model: onnx.ModelProto,
    signature: Signature,
    samples: Iterable[Sample],
    bodies: Sequence[Body],
    take: Callable[[BodyRuns], object],
    *,
    threads: int = 0,
) -> None:
    """Run a model once per sample, and hand its bodies what it gives them, in parts, those inside bodies too.

    Args:
        model: The prepared main graph.
        signature: Of that model.
        samples: Read once, streaming; what bodies are given of some samples is held.
        bodies: At any depth; one whose parent is none of them is handed nothing.
        take: Gets the next part of the runs of a body, in the order of the samples.
        threads: Of the runtime; 0 for all CPUs.
    """
    inside: dict[str, list[Body]] = {}
    for body in bodies:
        inside.setdefault(body.parent, []).append(body)
    _feed(model, signature, samples, ("", inside), take, threads)


def _feed(
    model: onnx.ModelProto,
    signature: Signature,
    samples: Iterable[Sample],
    place: tuple[str, Mapping[str, Sequence[Body]]],
    take: Callable[[BodyRuns], object],
    threads: int,
) -> None:
    """Go through the bodies of one graph; `place` is its path, and the bodies by the path of their parent."""
    path, inside = place
    if path not in inside:
        return
    index = Index(model)
    found = [(body, index.nodes[body.node]) for body in inside[path]]
    read = dict.fromkeys(name for body, node in found for name in (*node.input, *body.outer) if name)
    constants = {name: index.constant(name) for name in read if index.is_constant(name)}
    fed = {spec.name for spec in signature.inputs}
    shown = [name for name in read if name not in constants and name not in fed]
    session = Session(tapped_model(model, shown), threads=threads) if shown else None
    waiting: dict[str, BodyRuns] = {}

    def hand_out() -> None:
        for runs in waiting.values():
            take(runs)
            _feed(runs.body.model, runs.body.signature, runs, (runs.body.path, inside), take, threads)
        waiting.clear()

    size = 0
    for sample in samples:
        # alone, copies of it where the batch is fixed: which samples meet in a batch must not matter
        feed = make_feed(signature, [sample])
        values = {name: feed[name] for name in read if name in feed}
        values |= {} if session is None else run_group(session, signature, [sample], shown)
        size += sum(value.nbytes for value in values.values())
        values |= constants
        for body, node in found:
            if node.op_type == "If" and _truth(values[node.input[0]]) != (body.slot == "then_branch"):
                continue
            outer = {name: values[name] for name in body.outer}
            given = tuple(values[name] if name else None for name in node.input)
            runs = waiting.setdefault(body.path, BodyRuns(body, node, threads))
            runs.calls.append((given, outer, sample.origin))
        if size >= HELD_BYTES:
            hand_out()
            size = 0
    hand_out()


@dataclass(frozen=True, eq=False)
class BodyRuns:
    """Runs of one body: a sample for every time that it is run, in the order of the samples.

    Attributes:
        body: The body.
        node: Its If, Loop or Scan.
        threads: Of the runtime; 0 for all CPUs.
        calls: What the node is given, what the body reads of the graphs around it, and the sample's origin.
    """

    body: Body
    node: onnx.NodeProto
    threads: int = 0
    calls: list[tuple[tuple[Array | None, ...], Arrays, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Sample]:
        rounds = {"If": self._branch, "Loop": self._loop, "Scan": self._scan}[self.node.op_type]
        for given, outer, origin in self.calls:
            for number, own in enumerate(rounds(given, outer)):
                place = origin if self.node.op_type == "If" else f"{origin}, round {number + 1} of {self.node.name}"
                yield Sample(own | outer, place)

    def _branch(self, given: Sequence[Array | None], outer: Arrays) -> Iterator[Arrays]:
        """Run the branch once: the condition is its own."""
        del given, outer
        yield {}

    def _loop(self, given: Sequence[Array | None], outer: Arrays) -> Iterator[Arrays]:
        """Go through the rounds: (number, condition, carried...) gives (condition, carried..., collected...)."""
        most = None if given[0] is None else int(given[0].reshape(-1)[0])
        goes_on = given[1] is None or _truth(given[1])
        carried = given[2:]
        number = 0
        while goes_on and (most is None or number < most):
            values: list[Array | None] = [np.array(number, np.int64), np.array(goes_on), *carried]
            own = self._named(values)
            yield own
            results = self._run(own | outer)
            goes_on, carried = _truth(results[0]), results[1 : 1 + len(carried)]
            number += 1

    def _scan(self, given: Sequence[Array | None], outer: Arrays) -> Iterator[Arrays]:
        """Go through the slices: (state..., slice...) gives (state..., collected...)."""
        count = attribute(self.node, "num_scan_inputs", 1)
        state, sequences = given[: len(given) - count], given[len(given) - count :]
        axes = attribute(self.node, "scan_input_axes", [0] * count)
        backwards = attribute(self.node, "scan_input_directions", [0] * count)
        cut = [
            np.moveaxis(values, axis, 0)[:: -1 if back else 1]
            for values, axis, back in zip(sequences, axes, backwards, strict=True)
            if values is not None
        ]
        for number in range(len(cut[0])):
            slices = [np.ascontiguousarray(values[number]) for values in cut]
            own = self._named([*state, *slices])
            yield own
            state = self._run(own | outer)[: len(state)]

    def _named(self, values: Iterable[Array | None]) -> Arrays:
        """Give values to the body's own inputs, by position."""
        return {name: value for name, value in zip(self.body.formals, values, strict=True) if value is not None}

    def _run(self, feed: Arrays) -> list[Array | None]:
        """Run the body once; its outputs by position."""
        names = [value.name for value in self.body.model.graph.output]
        values = feed | self._session.run(feed, [name for name in dict.fromkeys(names) if name not in feed])
        return [values[name] for name in names]

    @cached_property
    def _session(self) -> Session:
        return Session(self.body.model, threads=self.threads)


def _truth(value: Array | None) -> bool:
    return value is not None and bool(value.reshape(-1)[0])
