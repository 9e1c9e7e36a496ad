"""Samples through a session in groups whose size is the model's own, never the data's.

A matrix product with one row takes another kernel than one with more, and its bits differ. So a model with a free batch
axis runs every sample alone, and a model with a fixed batch B always runs B rows: the last group is padded with copies
of its last sample, and the padded rows are dropped from the outputs. Order, files and shards then cannot matter.

Where every layer's output is wanted, a run writes tens of megabytes per sample. Fresh arrays for them are fresh pages,
which the operating system clears first; arrays that stay cost nothing and are still warm in the cache.

A run whose threads share the work of every node waits for the slowest of them at every node, in a busy loop. Runs side
by side, each with fewer threads, wait for nothing: on two cores a sample takes 0.5 to 0.9 times as long, and 0.6 to 0.9
times the CPU's time. The runtime gives the same bits.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from int8cal.errors import DataError, ModelError
from int8cal.threads import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array
    from int8cal.runtime.sessions import Session

# What a kernel of onnxruntime says where it cannot do what a node asks for, whatever values it gets.
_BEYOND = re.compile(r"indices element out of data bounds, idx=(\d+)")  # what Gather says
_UNSUPPORTED = re.compile(r"inference failed: .*\bnot[ _](?:yet )?(?:supported|implemented)\b", re.IGNORECASE)


class Runs(Protocol):
    """A Session, or what runs like one.

    Attributes:
        at_once: How many runs may go on at the same time.
    """

    at_once: int

    def run(self, feed: dict[str, Array], outputs: Sequence[str] | None = None) -> Mapping[str, Array]:
        """Run one feed: input name -> array gives output name -> array."""


class SampleLike(Protocol):
    """One sample: `feed` has leading dimension 1 where the model has a batch axis; `origin` names it in messages."""

    @property
    def feed(self) -> Mapping[str, Array]:
        """Input name -> array."""

    @property
    def origin(self) -> str:
        """File, and position in it."""


S = TypeVar("S", bound=SampleLike)
Arrays = dict[str, "Array"]


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

    Raises:
        DataError: Samples of one batch differ in their shapes.
    """
    size = batch_size(signature)
    first = samples[0].feed
    names = [spec.name for spec in signature.inputs if spec.name in first]
    if size == 1:
        return {name: first[name] for name in names}
    for sample in samples[1:]:
        unlike = next((name for name in names if sample.feed[name].shape != first[name].shape), None)
        if unlike is not None:
            raise DataError(
                f'input "{unlike}" has shape {sample.feed[unlike].shape}, and {first[unlike].shape} in '
                f"{samples[0].origin}: the model takes {size} samples at once",
                where=sample.origin,
                do="give all samples one size, or the model's first axis a free size",
            )
    padded = [*samples, *[samples[-1]] * (size - len(samples))]
    return {name: np.concatenate([sample.feed[name] for sample in padded]) for name in names}


def grouped_feed(group: Sequence[SampleLike]) -> Arrays:
    """Return the inputs of a group, without what fills up a batch: one array each, samples along axis 0."""
    if len(group) == 1:
        return dict(group[0].feed)
    return {name: np.concatenate([sample.feed[name] for sample in group]) for name in group[0].feed}


def run_group(
    session: Runs, signature: Signature, group: Sequence[SampleLike], outputs: Sequence[str] | None = None
) -> Mapping[str, Array]:
    """Run one group of samples, whole.

    Args:
        session: The open model.
        signature: Its signature.
        group: Between one and `batch_size(signature)` samples.
        outputs: Names to compute; None for all.

    Raises:
        DataError: A kernel failed; names the samples.
    """
    with naming_samples(group):
        return session.run(make_feed(signature, group), outputs)


@contextmanager
def naming_samples(group: Sequence[SampleLike]) -> Iterator[None]:
    """Name the samples of a group where a kernel fails on them.

    Raises:
        DataError: That one, with their origins.
        ModelError: The kernel does not do what the model asks for, whatever the sample.
    """
    try:
        yield
    except DataError as error:
        if error.where:
            raise
        origins = ", ".join(dict.fromkeys(sample.origin for sample in group))
        if _UNSUPPORTED.match(error.what):
            do = "export the model with another form of that node"
            raise ModelError(f"{error.what} (on {origins})", do=do) from error
        do = _unknown(group, error.what) or _cut(group) or error.do
        raise DataError(error.what, where=origins, do=do, **error.fields) from error


def _unknown(group: Sequence[SampleLike], what: str) -> str:
    """Say that a lookup failed on a token that the model does not have; "" where it may be a position as well."""
    index = _BEYOND.search(what)
    if index is None:
        return ""
    token = int(index[1])
    known = any(token in np.atleast_1d(sample.feed.get("input_ids", ())) for sample in group)
    told = f"the model has no token {token}: give --tokenizer its own (text.tokenizer)"
    return told if known and token > _tokens(group) + 1 else ""  # positions may begin with 2


def _tokens(group: Sequence[SampleLike]) -> int:
    return max((np.atleast_1d(sample.feed.get("input_ids", ())).shape[-1] for sample in group), default=0)


def _cut(group: Sequence[SampleLike]) -> str:
    """Say how to cut text, of which a model takes as many tokens as it has positions; "" for samples of other kinds."""
    tokens = _tokens(group)
    return (
        f"it has {tokens} tokens: if the model takes fewer, give --max-length (text.max_length)" if tokens > 1 else ""
    )


def run_samples(
    session: Runs, signature: Signature, samples: Iterable[S], outputs: Sequence[str] | None = None
) -> Iterator[tuple[list[S], Arrays]]:
    """Run samples in groups of the model's own batch size, streaming.

    Args:
        session: The open model.
        signature: Its signature, which decides the group size.
        samples: Any iterable; at most one group is held, and as many more as runs go on at once.
        outputs: Names to compute; None for all.

    Yields:
        In the order of the samples: those of a group, and its outputs, name -> array. With a fixed batch B > 1, an
        output whose axis 0 is B is cut to the rows of real samples; other outputs are passed on whole.

    Raises:
        DataError: A kernel failed; names the samples.
    """
    size = batch_size(signature)
    for group, values in _run_groups(session, signature, samples, size, outputs):
        yield group, {name: _rows(value, size, slice(0, len(group))) for name, value in values.items()}


def run_each(
    session: Runs, signature: Signature, samples: Iterable[S], outputs: Sequence[str] | None = None
) -> Iterator[tuple[S, Arrays]]:
    """Run samples as `run_samples` does, and hand out each sample with its own row of the outputs.

    Axis 0 is kept, with length 1. An output without the batch axis is handed out whole with every sample of its group.
    """
    size = batch_size(signature)
    for group, values in _run_groups(session, signature, samples, size, outputs):
        for row, sample in enumerate(group):
            yield sample, {name: _rows(value, size, slice(row, row + 1)) for name, value in values.items()}


def _run_groups(
    session: Runs, signature: Signature, samples: Iterable[S], size: int, outputs: Sequence[str] | None
) -> Iterator[tuple[list[S], Mapping[str, Array]]]:
    def outputs_of(group: list[S]) -> tuple[list[S], Mapping[str, Array]]:
        return group, run_group(session, signature, group, outputs)

    return in_order(outputs_of, _groups(samples, size), session.at_once, short_alone=True)


def _groups(samples: Iterable[S], size: int) -> Iterator[list[S]]:
    group: list[S] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _rows(value: Array, size: int, rows: slice) -> Array:
    return value[rows] if size > 1 and value.ndim and value.shape[0] == size else value


class ReusedOutputs:
    """Runs like a Session, but what it returns is overwritten by the next run, or by one some runs later.

    Attributes:
        at_once: Of the session. Runs that go on at the same time need a depth of as many at least, see `keep`.
    """

    def __init__(self, session: Session) -> None:
        self.at_once = session.at_once
        self._session = session
        self._kept: list[_Buffers] = []
        self._runs = 0
        self._depth = 1
        self._taking = Lock()

    def keep(self, depth: int) -> None:
        """Let outputs last until `depth` runs later from now on; those of earlier runs are given up."""
        if depth != self._depth:
            del self._kept[depth:]
            self._depth, self._runs = depth, 0

    def run(self, feed: Arrays, outputs: Sequence[str] | None = None) -> Arrays:
        """Run one feed.

        Args:
            feed: Input name -> array.
            outputs: Names to compute; None for all.

        Returns:
            Output name -> array, valid until the next run, or as `keep` says.

        Raises:
            DataError: A kernel failed on these values.
        """
        with self._taking:
            index = self._runs % self._depth
            self._runs += 1
            if index == len(self._kept):
                self._kept.append(_Buffers(self._session))
            taken = self._kept[index]
        return taken.run(feed, outputs)


class _Buffers:
    """Memory for the outputs of one run, C-contiguous, which the runtime is told to write into."""

    def __init__(self, session: Session) -> None:
        self._session, self._whole = session, session.whole()  # segments give fresh memory every time
        self._fed: object = None  # names, types and shapes of the inputs that the buffers were made for
        self._held: Arrays = {}
        self._binding = None if self._whole is None else self._whole.io_binding()
        self._settled = True  # shapes of outputs follow from shapes of inputs, as far as was seen

    def run(self, feed: Arrays, outputs: Sequence[str] | None) -> Arrays:
        if self._whole is None or self._binding is None:
            return self._session.run(feed, outputs)
        shapes = (outputs, tuple((name, value.dtype, value.shape) for name, value in feed.items()))
        if shapes == self._fed:
            try:
                for name, array in feed.items():
                    self._binding.bind_cpu_input(name, array)
                self._whole.run_with_iobinding(self._binding)
            except Exception:  # noqa: BLE001 - onnxruntime raises a family of pybind exceptions without a public base
                self._settled = False  # the data decide a shape; a kernel that really fails does so again below
            else:
                return self._held
        self._fed = None
        values = self._session.run(feed, outputs)
        if self._settled and all(value.size and value.dtype.kind == "f" for value in values.values()):
            self._held = {name: np.asarray(value, order="C") for name, value in values.items()}
            self._binding = self._whole.io_binding()
            for name, array in self._held.items():
                self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self._fed = shapes
        return values
