"""Whether a model keeps the rows of its first axis apart, which are taken for samples: they may be steps or points.

Arrays of more rows than the model's batch are cut, and rows of several arrays may come into one batch. Of a model that
goes along this axis, what is counted then is of nothing that it will ever see. A few rows are run beside each other,
and by themselves: alone, or among copies of themselves where the batch is fixed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.checks import Finding
from int8cal.errors import DataError, ModelError
from int8cal.graph.signature import signature_of
from int8cal.numerics.metrics import error_sums
from int8cal.runtime.batching import batch_size, make_feed, run_group
from int8cal.runtime.sessions import QUIET, Session

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Sample

_ROWS, _GROUPS = 4, 4
# Kernels add in another order for other numbers of rows: 100 dB and more. Where all rows have a part in each: 4 dB with
# CumSum, 0 dB with attention over steps, less than 0 with a convolution along them.
_APART_DB = 40.0
_FIXED = "give the model's first axis a fixed size and every file as many rows; then a file is one sample"


def mixed_rows(model: onnx.ModelProto, feeds: Feeds, *, threads: int = 0) -> tuple[Finding, ...]:
    """Say that rows are taken for samples which the model does not keep apart.

    Args:
        model: The FP32 model, prepared or not, weights loaded.
        feeds: Its samples; the first ones are read, unless none can share an array.
        threads: Of the runtime; 0 for all CPUs.

    Raises:
        DataError: The model does not run on a row of an array that was cut.
    """
    signature = signature_of(model)
    size = batch_size(signature)
    if signature.batch is None or feeds.prepared or not (feeds.made or feeds.files is None or size > 1):
        return ()
    rows = list(itertools.islice(feeds, _ROWS)) if size == 1 else _strangers(feeds, size)
    shapes = {tuple((name, values.shape) for name, values in row.feed.items()) for row in rows}
    if len(shapes) != 1 or len(rows) < 2:
        return ()
    try:
        session = Session(model, threads=threads, entries=QUIET)
    except ModelError:  # told by its file's name where it is calibrated
        return ()
    places = sorted({0, len(rows) // 2, len(rows) - 1})
    try:
        alone = {at: run_group(session, signature, [rows[at]]) for at in places}
    except DataError as error:
        if not feeds.made:
            return ()  # what it makes of samples is told where they are run
        what = f'{error.what} (on a single row: arrays are cut along the first axis of "{signature.inputs[0].name}")'
        do = f"{error.do}; or, if rows are no samples, {_FIXED}"
        raise DataError(what, where=error.where, do=do, **error.fields) from error
    together = {name: np.concatenate([row.feed[name] for row in rows]) for name in make_feed(signature, rows)}
    try:
        beside = session.run(together)
    except DataError:  # it takes one row at a time
        return ()
    for name, values in beside.items():
        ratios = [_decibels(values, alone[at][name], at, len(rows), size) for at in places]
        known = [ratio for ratio in ratios if ratio is not None]
        if known and min(known) < _APART_DB:
            if not np.array_equal(session.run(together)[name], values):
                return ()  # it draws random numbers
            return (_finding(signature.inputs[0].name, name, min(known), size),)
    return ()


def _strangers(feeds: Feeds, size: int) -> list[Sample]:
    """Return the first batch with rows of several arrays; nothing where each holds those of one."""
    samples = itertools.islice(feeds, size * _GROUPS)
    for _ in range(_GROUPS):
        group = list(itertools.islice(samples, size))
        arrays = {sample.origin.rpartition("[")[0] or sample.origin for sample in group}
        if len(group) == size and len(arrays) > 1:
            return group
    return []


def _decibels(beside: npt.NDArray[Any], alone: npt.NDArray[Any], at: int, rows: int, size: int) -> float | None:
    """Return the SQNR of a row beside others against the row by itself; None where an output has no such rows."""
    fits = beside.ndim == alone.ndim > 0 and len(beside) == rows and len(alone) == size
    if not fits or beside.dtype.kind != "f" or beside.shape[1:] != alone.shape[1:]:
        return None
    expected, actual = alone[min(at, size - 1)], beside[at]
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return None
    sums = error_sums(expected, actual)
    if sums.sqnr_db is not None:
        return float(sums.sqnr_db)
    return None if np.array_equal(expected, actual) else -np.inf


def _finding(first: str, output: str, ratio: float, size: int) -> Finding:
    told = "" if np.isinf(ratio) else f" ({ratio:.2f} dB)"
    return Finding(
        "mixed-rows",
        f'rows of input "{first}" along its first axis are taken for samples, but the model mixes them: a row of '
        f'output "{output}" beside other rows is not what it is without them{told}',
        _FIXED
        if size == 1
        else "leave out what takes some samples (--samples, --shard), and give files of a whole batch",
    )
