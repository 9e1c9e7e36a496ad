"""Samples through a session in groups whose size is the model's own, never the data's.

A matrix product with one row takes another kernel than one with more, and its bits differ. So a model with a free batch
axis runs every sample alone, and a model with a fixed batch B always runs B rows: the last group is padded with copies
of its last sample, and the padded rows are dropped from the outputs. Order, files and shards then cannot matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from int8cal.graph.signature import Signature


class Runs(Protocol):
    """A Session, or what runs like one."""

    def run(
        self, feed: dict[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Run one feed: input name -> array gives output name -> array."""


class SampleLike(Protocol):
    """One sample: `feed` has leading dimension 1 where the model has a batch axis; `origin` names it in messages."""

    @property
    def feed(self) -> Mapping[str, npt.NDArray[Any]]:
        """Input name -> array."""

    @property
    def origin(self) -> str:
        """File, and position in it."""


S = TypeVar("S", bound=SampleLike)
Arrays = dict[str, "npt.NDArray[Any]"]


def batch_size(signature: Signature) -> int:
    """Rows of one inference: the model's fixed batch, or 1 when its batch axis is free or it has none."""
    return signature.batch if isinstance(signature.batch, int) else 1


def make_feed(signature: Signature, samples: Sequence[SampleLike]) -> Arrays:
    """Stack samples into one feed of the model.

    Args:
        signature: The model's; feeds that it has no input for are left out.
        samples: Between one and `batch_size(signature)` samples.

    Returns:
        Input name -> array. With a fixed batch B > 1 axis 0 has B rows, short groups padded with their last sample.
    """
    size = batch_size(signature)
    first = samples[0].feed
    names = [spec.name for spec in signature.inputs if spec.name in first]
    if size == 1:
        return {name: first[name] for name in names}
    padded = [*samples, *[samples[-1]] * (size - len(samples))]
    return {name: np.concatenate([sample.feed[name] for sample in padded]) for name in names}


def run_samples(
    session: Runs, signature: Signature, samples: Iterable[S], outputs: Sequence[str] | None = None
) -> Iterator[tuple[list[S], Arrays]]:
    """Run samples in groups of the model's own batch size, streaming.

    Args:
        session: The open model.
        signature: Its signature, which decides the group size.
        samples: Any iterable; at most one group is held.
        outputs: Names to compute; None for all.

    Yields:
        The samples of a group and its outputs, name -> array. With a fixed batch B > 1, an output whose axis 0 is B is
        cut to the rows of real samples; other outputs are passed on whole.

    Raises:
        StatisticsError: A kernel failed.
    """
    size = batch_size(signature)
    for group in _groups(samples, size):
        values = session.run(make_feed(signature, group), outputs)
        yield group, {name: _rows(value, size, slice(0, len(group))) for name, value in values.items()}


def run_each(
    session: Runs, signature: Signature, samples: Iterable[S], outputs: Sequence[str] | None = None
) -> Iterator[tuple[S, Arrays]]:
    """Run samples as `run_samples` does, and hand out each sample with its own row of the outputs.

    Axis 0 is kept, with length 1. An output without the batch axis is handed out whole with every sample of its group.
    """
    size = batch_size(signature)
    for group in _groups(samples, size):
        values = session.run(make_feed(signature, group), outputs)
        for row, sample in enumerate(group):
            yield sample, {name: _rows(value, size, slice(row, row + 1)) for name, value in values.items()}


def _groups(samples: Iterable[S], size: int) -> Iterator[list[S]]:
    group: list[S] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _rows(value: npt.NDArray[Any], size: int, rows: slice) -> npt.NDArray[Any]:
    return value[rows] if size > 1 and value.ndim and value.shape[0] == size else value
