"""Whether a model keeps the rows of its first axis apart, which are taken for samples: they may be steps or points.

Arrays of more rows than the model's batch are cut, and rows of several arrays may come into one batch. Of a model that
goes along this axis, what is counted then is of nothing that it will ever see. A few rows are run beside each other,
and by themselves: alone, or among copies of themselves where the batch is fixed. Where the axis is free, each file is
one sample of such a model.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.checks import Finding
from int8cal.errors import DataError, ModelError
from int8cal.graph.signature import signature_of
from int8cal.numerics.metrics import error_sums
from int8cal.runtime.batching import batch_size, make_feed, run_group
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature
    from int8cal.numerics import Array

    _Outputs = Mapping[str, Array]

_ROWS, _MORE_ROWS, _SMALL, _GROUPS = 4, 16, 4096, 4  # rows; of samples of so few values; and batches of strangers
# Kernels add in another order for other numbers of rows: 100 dB and more. Where all rows have a part in each: 4 dB with
# CumSum, 0 dB with attention over steps, less than 0 with a convolution along them.
_APART_DB = 40.0
# Their scale is that of everything they are fed at once, which mixes rows by less than a step.
_DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulInteger"})


def of_whole_rows(
    model: onnx.ModelProto, feeds: Feeds, reopen: Callable[[Signature], Feeds], *, threads: int = 0
) -> Feeds:
    """Give samples whose rows the model keeps apart, or whole files where it does not; say it where neither can be.

    Args:
        model: The model, prepared or not, weights loaded.
        feeds: Its samples; the first rows are read, unless none can share an array.
        reopen: Opens the same samples for another signature.
        threads: Of the runtime; 0 for all CPUs.

    Returns:
        The feeds; or those that `reopen` gives for a signature without a batch axis, whose `made` says why: for each
        part of the samples, if for one.

    Raises:
        DataError: The model runs neither on a row of an array that was cut nor on the whole; or of a shard there are
            rows, but no file.
    """
    signature = feeds.signature
    size = batch_size(signature)
    if signature.batch in (None, 1) or feeds.prepared or _DYNAMIC & {node.op_type for node in model.graph.node}:
        return feeds
    tried = _neighbours(feeds) if size == 1 else [_strangers(feeds, size)]
    tried = [rows for rows in tried if len(rows) > 1 and _alike(rows)]
    if not tried:
        return feeds
    first = signature.inputs[0].name
    try:
        session = Session(model, threads=threads, entries=QUIET)
    except ModelError:  # told by its file's name where it is calibrated
        return feeds
    own = signature_of(model)
    try:
        mixed = next((found for rows in tried if (found := _mixed(session, own, rows)) is not None), None)
    except DataError as error:
        if size > 1:
            return feeds  # what it makes of samples is told where they are run
        whole = _whole(reopen, signature)
        if isinstance(whole, DataError):
            do = f"{error.do}; or, if rows are no samples: {whole}"
        elif _runs(session, own, whole):
            return _told(whole, f'the model does not run on a single row of input "{first}"')
        else:
            do = error.do
        what = f'{error.what} (on a single row: arrays are cut along the first axis of "{first}")'
        raise DataError(what, where=error.where, do=do, **error.fields) from error
    if mixed is None:
        return feeds
    do = "leave out what takes some samples (--samples, --shard), and give files of a whole batch"
    if size == 1:
        whole = _whole(reopen, signature)
        if not isinstance(whole, DataError):
            return _told(whole, f'the model mixes rows along the first axis of input "{first}": {mixed}')
        do = f"a file would be one sample, but: {whole}"
    feeds.mixed = (
        Finding(
            "mixed-rows",
            f'rows of input "{first}" along its first axis are taken for samples, but the model mixes them: {mixed}',
            do,
        ),
    )
    return feeds


def _neighbours(feeds: Feeds) -> list[list[Sample]]:
    """Read rows of one array; where samples are small, more of them, and of three arrays: some may be all alike."""
    rows = feeds.neighbours(_ROWS)
    if not rows or sum(values.size for values in rows[0].feed.values()) > _SMALL:
        return [rows]
    places = (0.0,) if feeds.files is None else (0.0, 0.5, 1.0)  # a function is called anew for each
    return [feeds.neighbours(_MORE_ROWS, place) for place in places]


def _alike(rows: Sequence[Sample]) -> bool:
    return len({tuple((name, values.shape) for name, values in row.feed.items()) for row in rows}) == 1


def _whole(reopen: Callable[[Signature], Feeds], signature: Signature) -> Feeds | DataError:
    """Open each file as one sample; the error where files do not fit, such as those with a label for each row."""
    try:
        return reopen(replace(signature, whole=True))
    except DataError as error:
        if error.fields.get("empty_shard"):  # rows would be counted here, and whole files in the other shards
            raise
        return error


def _runs(session: Session, signature: Signature, whole: Feeds) -> bool:
    try:
        run_group(session, signature, [*itertools.islice(whole, 1)])
    except DataError:
        return False
    return True


def _told(whole: Feeds, why: str) -> Feeds:
    each = "file" if whole.files is not None else "feed"
    whole.made = (f"each {each} of {whole.name} is one sample: {why}",)
    return whole


def _mixed(session: Session, signature: Signature, rows: Sequence[Sample]) -> str | None:
    """Run rows by themselves and beside each other, and say in which output they mix; None where they do not.

    Raises:
        DataError: The model does not run on a row by itself.
    """
    size, places = batch_size(signature), sorted({0, len(rows) // 2, len(rows) - 1})
    alone = {at: run_group(session, signature, [rows[at]]) for at in places}
    together = {name: np.concatenate([row.feed[name] for row in rows]) for name in make_feed(signature, rows)}
    try:
        beside = session.run(together)
    except DataError:  # it takes one row at a time
        return None
    for name, values in beside.items():
        ratios = [_decibels(values, alone[at][name], at, len(rows), size) for at in places]
        known = [ratio for ratio in ratios if ratio is not None]
        if known and min(known) < _APART_DB:
            if session.repeats or not np.array_equal(session.run(together)[name], values, equal_nan=True):
                return None  # it draws random numbers
            told = "" if np.isinf(min(known)) else f" ({min(known):.2f} dB)"
            return f'a row of output "{name}" beside other rows is not what it is without them{told}'
    # an output of one size, whatever the number of rows, is of all of them
    shapes = [(values.shape, alone[0][name].shape) for name, values in beside.items()]
    if size == 1 and all(first == second and 0 not in first for first, second in shapes):
        return f'output "{next(iter(beside))}" is one for all rows'
    return _overlap(session, together, beside, alone[len(rows) - 1]) if size == 1 else None


def _overlap(session: Session, together: dict[str, Array], beside: _Outputs, last: _Outputs) -> str | None:
    """Say which output gets another number of rows by the last row than this one gives alone; None where none does.

    What is found in each row, as boxes, adds up to what is found in all; what a transposed convolution makes of steps
    overlaps.
    """
    rows = len(next(iter(together.values())))
    sizes = {name: (len(each), len(last[name])) for name, each in beside.items() if each.ndim and last[name].ndim}
    open_to = {name: each for name, each in sizes.items() if each[1] and each[0] != rows * each[1]}
    if not open_to:
        return None
    try:
        fewer = session.run({name: values[:-1] for name, values in together.items()})
    except DataError:  # it takes certain numbers of rows
        return None
    for name, (whole, one) in open_to.items():
        without = len(fewer[name])
        # unless it draws random numbers
        if session.repeats or without in (whole, whole - one):
            continue
        if len(session.run(together)[name]) == whole:
            return f'output "{name}" has {whole} rows for {rows} of them, {without} for {rows - 1}, and {one} for one'
    return None


def _strangers(feeds: Feeds, size: int) -> list[Sample]:
    """Return the first batch with rows of several arrays; nothing where each holds those of one."""
    samples = itertools.islice(feeds, size * _GROUPS)
    for _ in range(_GROUPS):
        group = list(itertools.islice(samples, size))
        arrays = {sample.origin.rpartition("[")[0] or sample.origin for sample in group}
        if len(group) == size and len(arrays) > 1:
            return group
    return []


def _decibels(beside: Array, alone: Array, at: int, rows: int, size: int) -> float | None:
    """Return the SQNR of a row beside others against the row by itself; None where an output has no such rows."""
    if beside.dtype.kind != "f" or beside.ndim != alone.ndim or not alone.ndim:
        return None
    if size == 1 and len(alone) > 1:
        return _decibels_of_several(beside, alone, at, rows)
    if (len(beside), len(alone)) != (rows, size):
        return None
    if beside.shape[1:] != alone.shape[1:]:  # as many columns as rows: each row is held against all
        sizes = set(zip(beside.shape[1:], alone.shape[1:], strict=True))
        return -np.inf if size == 1 and sizes <= {(rows, 1), *((each, each) for each in beside.shape)} else None
    return _sqnr(alone[min(at, size - 1)], beside[at])


def _decibels_of_several(beside: Array, alone: Array, at: int, rows: int) -> float | None:
    """Return what `_decibels` does of several values for each row: rows one after the other, or in turn."""
    size = len(alone)
    if len(beside) != rows * size or beside.shape[1:] != alone.shape[1:] or not alone.size:
        return None
    after_another, in_turn = beside[at * size : (at + 1) * size], beside[at::rows]
    if alone.ndim > 1 and (after_another[:, 0] - alone[:, 0] == at).all():  # found boxes, and the image they are in
        alone, after_another, in_turn = (each[:, 1:] for each in (alone, after_another, in_turn))
    ratios = [_sqnr(alone, each) for each in (after_another, in_turn)]
    return None if None in ratios else max(each for each in ratios if each is not None)


def _sqnr(expected: Array, actual: Array) -> float | None:
    """Return the SQNR of values in dB; None where they are the same zeros, or not finite."""
    if not np.isfinite(actual).all():
        return None
    if not np.isfinite(expected).all():
        return -np.inf
    sums = error_sums(expected, actual)
    if sums.sqnr_db is not None:
        return float(sums.sqnr_db)
    return None if np.array_equal(expected, actual) else -np.inf
