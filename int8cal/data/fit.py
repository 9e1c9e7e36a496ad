"""Do arrays fit the model's inputs: names, ranks, shapes and dtypes from headers alone; values when a row is taken."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import DataError, StatisticsError
from int8cal.phrases import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Dim, Signature, TensorSpec
    from int8cal.numerics import Array

_MOST_EMPTY = 1_000_000  # samples
LABEL_KEYS = ("labels", "label")
_TEXT_KINDS = "UT"  # numpy's two kinds of arrays of text
# Why data may not feed an input, and what to do
_FILLED = (
    "is an input that data.preprocess.fill gives one number (--fill {key}=NUMBER)",
    "leave out the one or the other",
)
_DEFAULT = (
    "is an input whose value the model holds itself, as an initializer, which is a constant here",
    "leave it out; where it changes from call to call, remove its initializer from the model",
)


@dataclass(frozen=True)
class Header:
    """What an array is without its values; `by_columns`: its first axis runs fastest, as in Fortran."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool = False


def shape_text(spec: TensorSpec) -> str:
    """Write the shape a model expects as "(N, 3, 224, 224)", with "?" for an unknown dimension."""
    if spec.shape is None:
        return "any shape"
    dims = ["?" if dim is None else str(dim) for dim in spec.shape]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def match_inputs(keys: Iterable[str], signature: Signature, where: str) -> str | None:
    """Check that the keys of a file or feed are the model's inputs, all of them, and perhaps labels.

    Returns:
        The key that holds labels, or None. An input called "labels" is an input.

    Raises:
        DataError: An unknown key (names the nearest input) or a missing input.
    """
    found = list(keys)
    names = [spec.name for spec in signature.inputs]
    unknown = [key for key in found if key not in names and key not in LABEL_KEYS]
    missing = [name for name in names if name not in found]
    for key in unknown:
        if key in signature.filled or key in signature.defaults:
            what, do = _FILLED if key in signature.filled else _DEFAULT
            raise DataError(f'key "{key}" {what.format(key=key)}', where=where, do=do, key=key)
    if unknown:
        # an input that is still missing is what the key was probably meant to be
        nearest = "".join(difflib.get_close_matches(unknown[0], missing, 1, 0.0))
        told, do = (f'; the nearest input is "{nearest}"', "rename it") if nearest else ("", "leave it out")
        raise DataError(
            f'key "{unknown[0]}" is not an input of the model{told}',
            where=where,
            do=f'{do}; the inputs are {quoted(names)}, and "labels" may hold labels',
            key=unknown[0],
        )
    if missing:
        raise DataError(
            f'input "{missing[0]}" is missing; found {quoted(found) or "no key"}',
            where=where,
            do=f"store one array per input: {quoted(names)}",
            input=missing[0],
        )
    labels = [key for key in found if key not in names]
    if len(labels) > 1:
        raise DataError('has both "label" and "labels"', where=where, do="keep one of them")
    return labels[0] if labels else None


def only_input(signature: Signature, where: str, what: str) -> str:
    """Name the model's one input.

    Raises:
        DataError: The model has several, so that `what` (no names in it) cannot say which one it feeds.
    """
    names = [spec.name for spec in signature.inputs]
    if len(names) != 1:
        raise DataError(
            f"{what} feeds one input, the model has {len(names)}: {', '.join(names)}",
            where=where,
            do="use .npz files whose keys are the input names",
        )
    return names[0]


def label_values(array: Array, rows: int, where: str) -> tuple[int, ...]:
    """Read labels stored beside the inputs.

    Args:
        array: Integers >= 0, one per sample: shape (rows,), or () for one sample.
        rows: How many samples the inputs hold.
        where: File or feed for the message.

    Raises:
        DataError: Another shape, not integers, or a negative label.
    """
    if array.dtype.kind not in "iu":
        raise DataError(
            f"labels have dtype {array.dtype.name}, expected integers", where=where, do="store class indices"
        )
    if array.shape != (rows,) and not (rows == 1 and array.shape == ()):
        do = "store one class index per sample, or give --labels none"
        what = f"labels have shape {array.shape}, expected ({rows},)"
        raise DataError(what, where=where, do=do, labels=True, one_label=array.size == 1)
    labels = tuple(int(label) for label in array.reshape(-1))
    if labels and min(labels) < 0:
        raise DataError(f"label {min(labels)} is negative", where=where, do="store class indices counted from 0")
    return labels


def count_rows(headers: Mapping[str, Header], signature: Signature, where: str) -> int:
    """Check ranks, shapes and dtypes of one file's inputs and tell how many samples it holds.

    Args:
        headers: Input name -> header, one for each input of the model.
        signature: The model's inputs. Along a batch axis, one that the model has or a first axis of size 1, an array of
            the input's rank has a sample in each row, one rank less is one sample. An array of one rank more is a stack
            of samples along a new first axis.
        where: File or feed for the message.

    Returns:
        Number of samples; 1 for arrays of the input's own shape without a batch axis.

    Raises:
        DataError: A shape or dtype the model does not take, or inputs with different numbers of rows.
    """
    rows: dict[str, int] = {}
    symbols: dict[str, tuple[int, str]] = {}
    batch_symbols = {spec.shape[0] for spec in signature.inputs if spec.shape} if signature.batch is not None else set()
    for spec in signature.inputs:
        header = headers[spec.name]
        if spec.shape is None:
            check_dtype(header.dtype, spec, where)
            rows[spec.name] = 1
            continue
        shape, dims = header.shape, spec.shape
        rows[spec.name] = 1
        if len(shape) == len(dims) + 1:
            rows[spec.name], shape = shape[0], shape[1:]
            if signature.batch is not None:
                dims = (1, *dims[1:])
        elif has_batch_axis(spec, signature):
            dims = dims[1:]
            if len(shape) == len(dims) + 1:
                rows[spec.name], shape = shape[0], shape[1:]
        if not _sizes_fit(shape, dims):
            raise _shape_error(header, spec, signature, where)
        check_dtype(header.dtype, spec, where)
        for dim, size in zip(dims, shape, strict=True):
            if not isinstance(dim, str) or dim in batch_symbols:
                continue
            first, owner = symbols.setdefault(dim, (size, spec.name))
            if first != size:
                do = "the model expects the same size in both; fix the file"
                both = [each for each in signature.inputs if each.name in (owner, spec.name)]
                stacked = [each.name for each in both if len(headers[each.name].shape) > len(each.shape or ())]
                if len(both) == 2 and len(stacked) == 1:  # samples of one input beside a batch of the other
                    do = f'only "{stacked[0]}" stacks samples along a new first axis; give both one, or neither'
                raise DataError(
                    f'dimension "{dim}" is {first} in input "{owner}" and {size} in input "{spec.name}"',
                    where=where,
                    do=do,
                    input=spec.name,
                )
    counts = set(rows.values())
    if len(counts) > 1:
        text = ", ".join(f'"{name}" {count}' for name, count in rows.items())
        what, apart = f"the inputs have different numbers of samples: {text}", are_apart(signature)
        raise DataError(what, where=where, do="give all the same", apart=apart)
    count = counts.pop()
    free = [
        headers[spec.name].shape[:1] for spec in signature.inputs if spec.shape and not isinstance(spec.shape[0], int)
    ]
    if signature.whole and free and set(free) == {(0,)}:
        return 0
    empty = next((name for name in rows if math.prod(headers[name].shape) == 0), None)
    if count > _MOST_EMPTY and empty is not None:  # a header can claim any number of samples that take no bytes
        what = f'input "{empty}" has shape {headers[empty].shape}: {count} samples without a value'
        raise DataError(what, where=where, do="give samples that hold values", input=empty)
    return count


def are_apart(signature: Signature) -> bool:
    """Whether the first axes of the inputs may be of different sizes: all are free, and no one name stands for all."""
    first = [spec.shape[0] for spec in signature.inputs if spec.shape]
    return signature.batch == "dynamic" and (None in first or len(set(first)) > 1)


def has_batch_axis(spec: TensorSpec, signature: Signature) -> bool:
    """Whether the first axis of an input counts samples: that of the model's batch, or one of size 1."""
    return bool(spec.shape) and (signature.batch is not None or (spec.shape or (0,))[0] == 1)


def counts_rows(header: Header, spec: TensorSpec, signature: Signature) -> bool:
    """Whether the first axis of an array that fits counts samples, so that they can be read one by one."""
    more = len(header.shape) - len(spec.shape or header.shape)
    return more == 1 or (more == 0 and has_batch_axis(spec, signature))


def check_dtype(dtype: np.dtype[Any], spec: TensorSpec, where: str) -> None:
    """Refuse a dtype that could only reach the model's by changing what the values mean.

    Raises:
        DataError: Anything but the same dtype, float to float, or integer to integer (values are checked at the cast).
    """
    do = _conversion(dtype, spec)
    if do:
        expected = "text" if spec.dtype.hasobject else spec.dtype.name
        raise DataError(
            f'input "{spec.name}" has dtype {dtype.name}, the model expects {expected}',
            where=where,
            do=do,
            input=spec.name,
        )


def _conversion(dtype: np.dtype[Any], spec: TensorSpec) -> str:
    """Say what to do about a dtype; empty where the input takes it."""
    if dtype == spec.dtype or {dtype.kind, spec.dtype.kind} in ({"f"}, {"i"}, {"u"}, {"i", "u"}):
        return ""
    if spec.dtype.hasobject and dtype.kind in _TEXT_KINDS:
        return ""
    if dtype.hasobject:
        return "store plain numbers: pickled Python objects are not read"
    if spec.dtype.hasobject:
        return "store text, as numpy.array([...], dtype=str) holds it"
    if spec.dtype.kind == "f" and dtype.kind in "iu":
        return f"convert it as in training, e.g. (x / 255).astype({spec.dtype.name}), and normalise"
    return f"store it as {spec.dtype.name}"


def take_row(arrays: Mapping[str, Array], row: int, signature: Signature, where: str, *, first: int = 0) -> Feed:
    """Cut one sample out of a file's arrays, which `count_rows` has accepted.

    Args:
        arrays: Input name -> array: a batch, a stack, or one sample.
        row: Sample inside the file.
        signature: The model's inputs.
        where: The sample, "file[row]", for messages.
        first: Sample of the file that batched arrays begin with.

    Returns:
        Input name -> contiguous copy in the model's dtype, leading dimension 1 where the model has a batch axis.

    Raises:
        DataError: A value that the model's dtype cannot hold.
        StatisticsError: NaN or +infinity in a float input.
    """
    feed: Feed = {}
    for spec in signature.inputs:
        array = np.asarray(arrays[spec.name])
        if spec.shape is not None and array.ndim == len(spec.shape) + 1:
            array = array[row - first]
        elif spec.shape is not None and has_batch_axis(spec, signature):
            array = array[row - first : row - first + 1] if array.ndim == len(spec.shape) else array[np.newaxis]
        feed[spec.name] = _cast(array, spec, row, where)
    return feed


def first_unsound(array: Array) -> tuple[int, ...] | None:
    """Find the first value that no input may hold, NaN or +infinity; None where there is none."""
    # -inf is what attention masks are made of; where it does harm, calibration and evaluation stop on what it does
    sound = np.isfinite(array) | (array == -np.inf) if array.dtype.kind == "f" else np.ones((), np.bool_)
    return None if sound.all() else tuple(int(axis[0]) for axis in np.nonzero(~sound))


def _cast(array: Array, spec: TensorSpec, row: int, where: str) -> Array:
    position = first_unsound(array)
    if position is not None:
        raise StatisticsError(
            f'input "{spec.name}" of sample {row} holds {array[position]} at {list(position)}',
            where=where,
            do="remove the sample or repair its values",
            input=spec.name,
            sample=row,
        )
    with np.errstate(over="ignore"):
        # order "C" and copy: the sample must not keep a whole batch alive
        cast = array.astype(spec.dtype, order="C", copy=True)
    if array.dtype == spec.dtype or spec.dtype.hasobject:
        return cast
    fits = (np.isfinite(cast) == np.isfinite(array)).all() if cast.dtype.kind == "f" else np.array_equal(cast, array)
    if not fits:
        raise DataError(
            f'input "{spec.name}" of sample {row} holds values that {spec.dtype.name} cannot hold '
            f"({array.min()} to {array.max()}, {array.dtype.name})",
            where=where,
            do=f"store it as {spec.dtype.name}",
            input=spec.name,
            sample=row,
        )
    return cast


def _sizes_fit(shape: tuple[int, ...], dims: tuple[Dim, ...]) -> bool:
    fits = (not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=False))
    return len(shape) == len(dims) and all(fits)


def _shape_error(header: Header, spec: TensorSpec, signature: Signature, where: str) -> DataError:
    free = ", with or without the batch axis" if has_batch_axis(spec, signature) and len(spec.shape or ()) > 1 else ""
    what = f'input "{spec.name}" has shape {header.shape}, the model expects {shape_text(spec)}{free}'
    do = _transposition(header.shape, spec)
    conversion = _conversion(header.dtype, spec)
    if conversion:
        what += f"; it has dtype {header.dtype.name}, the model expects {spec.dtype.name}"
        do = f"{do or 'give data made for this model'}, and {conversion}"
    advice = "fix the file, or give data made for this model"
    if len(header.shape) > len(spec.shape or ()):
        advice += "; several samples are stacked along a new first axis"
    elif spec.shape and signature.batch is None and _sizes_fit(header.shape, spec.shape[1:]):
        advice = f"store it as {(1, *header.shape)}: the inputs have no batch axis in common, so a sample has all axes"
    return DataError(what, where=where, do=do or advice, input=spec.name)


def _transposition(shape: tuple[int, ...], spec: TensorSpec) -> str:
    """Say how an image's channels go where the model takes them; empty where that is not what is wrong."""
    batch = len(shape) - 3
    if spec.shape is None or len(spec.shape) != 4 or batch not in (0, 1):
        return ""
    for layout, order, channel in (("NCHW", (2, 0, 1), 1), ("NHWC", (1, 2, 0), 3)):
        axes = (*range(batch), *(batch + axis for axis in order))
        sizes = tuple(shape[axis] for axis in axes[batch:])
        if spec.shape[channel] in (1, 3) and _sizes_fit(sizes, spec.shape[1:]):
            return f"transpose to {layout}, as x.transpose{axes} does"
    return ""
