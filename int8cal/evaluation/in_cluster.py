"""Both models' outputs from workers of a cluster, in the order of the samples: what is made of them is done here."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.data.checks import SampleWatch
from int8cal.data.padding import tally
from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.graph.signature import signature_of
from int8cal.protos import PackedModel, without_weights, write_split
from int8cal.runtime.batching import run_each
from int8cal.runtime.segments import is_long
from int8cal.runtime.sessions import QUIET, Session, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx

    from int8cal.calibration.engines.parts import DataPart
    from int8cal.calibration.engines.ray import Cluster
    from int8cal.data.feeds import Feeds
    from int8cal.data.padding import Padding
    from int8cal.data.sample import Sample
    from int8cal.runtime.batching import Arrays

    Outputs = tuple[Sample, Arrays, Arrays]

_NO_PADDING: tuple[Padding, ...] = ()


@dataclass(frozen=True)
class PartOutputs:
    """What both models give for a part of the data.

    Attributes:
        rows: Each sample, without its feed but for the first ones of all, and the outputs of both models.
        watch: Has looked at the samples.
        skipped: Files that could not be read.
        padding: What padding there was.
    """

    rows: tuple[Outputs, ...]
    watch: SampleWatch
    skipped: tuple[str, ...]
    padding: tuple[Padding, ...]


@dataclass(frozen=True)
class OutputsWork:
    """Runs both models on parts of the data; see `calibration.engines.parts.Work`.

    Attributes:
        fp32, int8: The models; the first is in float32.
        fed: So many samples, the first ones of all, keep their feeds.
    """

    fp32: PackedModel
    int8: PackedModel
    fed: int

    def open(self, threads: int) -> Callable[[DataPart], PartOutputs]:
        """Open both models."""
        models = self.fp32.model(), self.int8.model()
        headers = tuple(without_weights(each) for each in models)
        signatures = tuple(signature_of(each) for each in models)
        # as files, which the same graph is made of as where they are evaluated on one machine
        sessions = [_opened(models[0], threads, whole=True), _opened(models[1], threads, whole=not is_long(models[1]))]
        del models

        def run(part: DataPart) -> PartOutputs:
            watch, skipped = SampleWatch("evaluation", signatures[0], part.first), list[str]()

            def samples() -> Iterator[Sample]:
                for _, sample in part.read(skipped):
                    watch.add(sample)
                    yield sample

            first, second = itertools.tee(samples())
            pairs = zip(
                run_each(sessions[0], signatures[0], first),
                run_each(sessions[1], signatures[1], feeds_for(headers[1], second)),
                strict=True,
            )
            rows: list[Outputs] = []
            padding = _NO_PADDING
            for number, ((sample, expected), (_, actual)) in enumerate(pairs):
                padding = tally((*padding, *sample.padding))
                kept = sample if part.first + number < self.fed else replace(sample, feed={})
                rows.append((kept, expected, actual))
            return PartOutputs(tuple(rows), watch, tuple(skipped), padding)

        return run


def _opened(model: onnx.ModelProto, threads: int, *, whole: bool) -> Session:
    if not whole:
        return Session(model, threads=threads, entries=QUIET)
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        write_split(model, path, folder / "model.data", "model.data")
        return Session(path, threads=threads, entries=QUIET)


class ClusterOutputs:
    """Runs both models in workers of a cluster, and gives their outputs in the order of the samples.

    Args:
        cluster: Runs the models.
        feeds: The samples, of files.
        watch: Has looked at none of them yet.

    Attributes:
        watch: Has looked at the samples whose outputs were given.
    """

    def __init__(self, cluster: Cluster, feeds: Feeds, watch: SampleWatch) -> None:
        self._cluster, self._feeds, self.watch = cluster, feeds, watch

    def __call__(self, fp32: onnx.ModelProto, int8: onnx.ModelProto, fed: int) -> Iterator[Outputs]:
        """Give every sample with the outputs of both models.

        Args:
            fp32, int8: The models, the first in float32.
            fed: So many samples, the first ones, come with their feeds.

        Raises:
            Int8calError: Of the first sample that fails.
        """
        work = OutputsWork(PackedModel.of(fp32), PackedModel.of(int8), fed)
        skipped, padding = list[str](), _NO_PADDING
        for part in self._cluster.in_order(work, self._feeds, "outputs"):
            self.watch += part.watch
            skipped += part.skipped
            padding = tally((*padding, *part.padding))
            yield from part.rows
        self._feeds.passed(skipped, padding, self.watch.samples)
