"""Outputs of models from workers of a cluster, in the order of the samples: what is made of them is done here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING

from int8cal.data.checks import SampleWatch
from int8cal.data.padding import tally
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.graph.random_numbers import random_ops
from int8cal.graph.signature import signature_of
from int8cal.protos import PackedModel, without_weights, write_split
from int8cal.runtime.batching import run_each
from int8cal.runtime.scratch import scratch_folder
from int8cal.runtime.segments import is_long
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from int8cal.calibration.engines.parts import DataPart
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.data.feeds import Feeds
    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.runtime.batching import Arrays

    SampleOutputs = tuple[Sample, tuple[Arrays, ...]]

_NO_PADDING: tuple[Padding, ...] = ()


@dataclass(frozen=True)
class PartOutputs:
    """What models give for a part of the data.

    Attributes:
        rows: Each sample, without its feed but for the first ones of all, and the outputs of each model.
        watch: Has looked at the samples.
        skipped: Files that could not be read.
        padding: What padding there was.
    """

    rows: tuple[SampleOutputs, ...]
    watch: SampleWatch
    skipped: tuple[str, ...]
    padding: tuple[Padding, ...]


@dataclass(frozen=True)
class OutputsWork:
    """Runs models on parts of the data; see `calibration.engines.parts.Work`.

    Attributes:
        models: Of the same inputs, but that an int8 model may take raw pixels.
        fed: So many samples, the first ones of all, keep their feeds.
    """

    models: tuple[PackedModel, ...]
    fed: int

    def open(self, threads: int) -> Callable[[DataPart], PartOutputs]:
        """Open the models."""
        models = [each.model() for each in self.models]
        headers = [without_weights(each) for each in models]
        signatures = [signature_of(each) for each in models]
        sessions = [_opened(each, threads) for each in models]
        del models

        def run(part: DataPart) -> PartOutputs:
            watch, skipped = SampleWatch("evaluation", signatures[0], part.first), list[str]()

            def samples() -> Iterator[Sample]:
                for _, sample in part.read(skipped):
                    watch.add(sample)
                    yield sample

            first, *others = tee(samples(), len(sessions) + 1)
            runs = [
                run_each(session, signature, feeds_for(header, given))
                for session, signature, header, given in zip(sessions, signatures, headers, others, strict=True)
            ]
            rows: list[SampleOutputs] = []
            padding = _NO_PADDING
            for number, (sample, *found) in enumerate(zip(first, *runs, strict=True)):
                padding = tally((*padding, *sample.padding))
                kept = sample if part.first + number < self.fed else sample.without_feed()
                rows.append((kept, tuple(outputs for _, outputs in found)))
            return PartOutputs(tuple(rows), watch, tuple(skipped), padding)

        return run


def _opened(model: onnx.ModelProto, threads: int) -> Session:
    """Open a model as it is opened where it is evaluated on one machine: as a file, which the same graph is made of."""
    if is_long(model) or random_ops(model):
        return Session(model, threads=threads, entries=QUIET)
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        write_split(model, path, folder / "model.data", "model.data")
        return Session(path, threads=threads, entries=QUIET)


class ClusterOutputs:
    """Runs models in workers of a cluster, and gives their outputs in the order of the samples.

    Args:
        cluster: Runs the models.
        feeds: The samples, of files.

    Attributes:
        watch: Has looked at the samples of the last pass whose outputs were given.
    """

    def __init__(self, cluster: Cluster, feeds: Feeds, watch: SampleWatch) -> None:
        self._cluster, self._feeds, self._unused, self.watch = cluster, feeds, watch, watch

    def __call__(self, models: Sequence[onnx.ModelProto], fed: int = 0) -> Iterator[SampleOutputs]:
        """Give every sample with the outputs of each model.

        Args:
            models: Each in float32 or int8.
            fed: So many samples, the first ones, come with their feeds.

        Raises:
            Int8calError: Of the first sample that fails.
        """
        work = OutputsWork(tuple(PackedModel.of(each) for each in models), fed)
        skipped, padding, self.watch = list[str](), _NO_PADDING, self._unused
        for part in self._cluster.in_order(work, self._feeds, "outputs"):
            self.watch += part.watch
            skipped += part.skipped
            padding = tally((*padding, *part.padding))
            yield from part.rows
        self._feeds.passed(skipped, padding, self.watch.samples)
