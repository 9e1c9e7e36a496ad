"""What the bodies of If, Loop and Scan are fed, run by run: their model shows what they read, nodes go step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.sample import Sample
from int8cal.graph.index import Index, attribute
from int8cal.graph.taps import tapped_model
from int8cal.runtime.batching import make_feed
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    import onnx

    from int8cal.graph.bodies import Body
    from int8cal.graph.signature import Signature

    Array = npt.NDArray[Any]
    Arrays = dict[str, Array]


@dataclass(frozen=True, eq=False)
class BodySamples:
    """The runs of one body, streamed: a sample for every time that it is run, in the order of the samples.

    Attributes:
        model: The prepared model that its node is in, the main graph or another body.
        signature: Of that model.
        body: The body.
        samples: Of that model; of another body these are its own runs.
        threads: Of the runtime; 0 for all CPUs.
    """

    model: onnx.ModelProto
    signature: Signature
    body: Body
    samples: Iterable[Sample]
    threads: int = 0

    def __iter__(self) -> Iterator[Sample]:
        node, body = self._node, self.body
        rounds = {"If": self._branch, "Loop": self._loop, "Scan": self._scan}[node.op_type]
        fed = {spec.name for spec in self.signature.inputs}
        constants = {name: self._index.constant(name) for name in node.input if name and self._index.is_constant(name)}
        wanted = dict.fromkeys(name for name in (*node.input, *body.outer) if name and name not in constants)
        shown = [name for name in wanted if name not in fed]
        session = Session(tapped_model(self.model, shown), threads=self.threads) if shown else None
        for sample in self.samples:
            # alone, copies of it where the batch is fixed: which samples meet in a batch must not matter
            feed = make_feed(self.signature, [sample])
            values = constants | {name: feed[name] for name in wanted if name in feed}
            values |= {} if session is None else session.run(feed, shown)
            outer = {name: values[name] for name in body.outer}
            given = [values[name] if name else None for name in node.input]
            for number, own in enumerate(rounds(given, outer)):
                place = sample.origin if node.op_type == "If" else f"{sample.origin}, round {number + 1} of {node.name}"
                yield Sample(own | outer, place)

    @cached_property
    def _index(self) -> Index:
        return Index(self.model)

    @cached_property
    def _node(self) -> onnx.NodeProto:
        return self._index.nodes[self.body.node]

    def _branch(self, given: list[Array | None], outer: Arrays) -> Iterator[Arrays]:
        """Run the branch where the condition is its own."""
        del outer
        if _truth(given[0]) == (self.body.slot == "then_branch"):
            yield {}

    def _loop(self, given: list[Array | None], outer: Arrays) -> Iterator[Arrays]:
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

    def _scan(self, given: list[Array | None], outer: Arrays) -> Iterator[Arrays]:
        """Go through the slices: (state..., slice...) gives (state..., collected...)."""
        count = attribute(self._node, "num_scan_inputs", 1)
        state, sequences = given[: len(given) - count], given[len(given) - count :]
        axes = attribute(self._node, "scan_input_axes", [0] * count)
        backwards = attribute(self._node, "scan_input_directions", [0] * count)
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
