"""Rows of columns become feeds: which columns are read, and what each is for the model's inputs.

A row is a line of a text file, or an example of a dataset; a column holds text, an image, a sound, numbers or classes.
Cells of a table that spell numbers are text or numbers, as they are needed.
"""

from __future__ import annotations

import io
import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from int8cal.data.audio import AudioPlan, open_sound, plan_audio
from int8cal.data.cells import number
from int8cal.data.fit import Header, count_rows, has_batch_axis, shape_text, take_row
from int8cal.data.images import ImagePlan, feed_of, plan_images
from int8cal.data.labels import COLUMN
from int8cal.data.sample import Fitted, unreadable
from int8cal.data.text import TextPlan, inputs_of_text, plan_text
from int8cal.errors import DataError
from int8cal.phrases import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.data.sample import Feed, Fit
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.job import DataSettings
    from int8cal.preprocess import Preprocess

T = TypeVar("T")
ColumnKind = Literal["text", "numeral", "image", "audio", "numbers", "class", "other"]

# Names that are taken where no column is declared, and several would do
_TEXTS = (
    ("text",),
    ("sentence",),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
    ("query", "passage"),
    ("content",),
)
_USUAL: dict[ColumnKind, tuple[tuple[str, ...], ...]] = {
    "text": _TEXTS,
    "image": (("image",), ("img",), ("pixel_values",)),
    "audio": (("audio",), ("speech",), ("sound",)),
}
_LABELS = ("label", "labels")
_AS: dict[ColumnKind, tuple[ColumnKind, ...]] = {
    "text": ("text", "numeral"),
    "numbers": ("numbers", "numeral"),
}  # what will do


@dataclass(frozen=True)
class RowPlan:
    """What becomes of the rows of a source.

    Attributes:
        signature: The model's inputs, all of which are fed.
        read: Columns that are read, the labels' among them.
        texts: Columns of a text or a pair, and how they become tokens.
        image, audio: A column, and how it becomes a feed.
        arrays: Input -> the column that holds its values or its text, or the columns that hold a number each.
        label: Column with labels; None without.
    """

    signature: Signature
    read: tuple[str, ...]
    texts: tuple[tuple[str, ...], TextPlan] | None
    image: tuple[str, ImagePlan] | None
    audio: tuple[str, AudioPlan] | None
    arrays: Mapping[str, tuple[str, ...]]
    label: str | None

    @property
    def plain(self) -> bool:
        """Whether rows are numbers, and nothing is made of text, images or sounds."""
        made = self.texts, self.image, self.audio
        return made == (None, None, None) and not any(spec.dtype.hasobject for spec in self.signature.inputs)

    def fitted(self, row: Mapping[str, Any], where: str) -> Fitted:
        """Make the feed of one row.

        Args:
            row: Column -> str; bytes of an image or sound; a number, as text will do, or lists of numbers.
            where: The sample, for messages.

        Raises:
            DataError: A value is missing, broken, or does not fit the model.
        """
        feed: Feed = {}
        fit: Fit | None = None
        if self.texts is not None:
            columns, plan = self.texts
            tokens = plan.tokens([_text(row, column, where) for column in columns], where)
            feed, fit = self._cut(tokens.feed, where), tokens.fit
        if self.image is not None:
            column, image = self.image
            feed |= feed_of(io.BytesIO(_bytes(row, column, where)), image, where)
        if self.audio is not None:
            column, audio = self.audio
            sound = open_sound(_bytes(row, column, where), where)
            several = audio.rows(sound) > 1
            heard = next(audio.feeds(sound, [0], [where]))
            feed |= heard.feed
            fit = "cut" if several or heard.fit == "end" else heard.fit
        if self.arrays:
            feed |= self._cut({spec.name: self._array(row, spec, where) for spec in self._specs()}, where)
        return Fitted(feed, fit)

    def require(self, row: Mapping[str, Any], where: str) -> None:
        """Check, without decoding anything, that a row has what its sample needs.

        Raises:
            DataError: A value is missing, or is no text, or no number.
        """
        for column in () if self.texts is None else self.texts[0]:
            _text(row, column, where)
        for opened in (self.image, self.audio):
            if opened is not None:
                _given(row, opened[0], where)
        for spec in self._specs():
            for column in self.arrays[spec.name]:
                _value(row, column, spec, where)

    def _specs(self) -> list[TensorSpec]:
        return [spec for spec in self.signature.inputs if spec.name in self.arrays]

    def _cut(self, arrays: Mapping[str, Any], where: str) -> Feed:
        """Check arrays against their inputs, and take the one sample that they are."""
        specs = tuple(spec for spec in self.signature.inputs if spec.name in arrays)
        part = replace(self.signature, inputs=specs)
        rows = count_rows({name: Header(each.dtype, each.shape) for name, each in arrays.items()}, part, where)
        if rows != 1:
            raise DataError(f"holds {rows} samples in one row", where=where, do="write one row for each")
        return take_row(arrays, 0, part, where)

    def _array(self, row: Mapping[str, Any], spec: TensorSpec, where: str) -> Any:
        columns = self.arrays[spec.name]
        values = [_value(row, column, spec, where) for column in columns]
        try:
            array = np.asarray(values if len(columns) > 1 else values[0], object if spec.dtype.hasobject else None)
        except ValueError as error:  # lists of different lengths
            raise unreadable(where, f'column "{columns[0]}" holds no array: {error}') from error
        if array.ndim == 0 and spec.shape and _takes(spec, self.signature) == 1:
            array = array.reshape((1,) * len(spec.shape))
        # JSON has one kind of numbers: 1 may stand for 1.0
        return array.astype(spec.dtype) if array.dtype.kind in "iu" and spec.dtype.kind == "f" else array


def _given(row: Mapping[str, Any], column: str, where: str) -> Any:
    value = row.get(column)
    if value is None or value == "":
        raise unreadable(where, f'column "{column}" is empty')
    return value


def _value(row: Mapping[str, Any], column: str, spec: TensorSpec, where: str) -> Any:
    """Take the value that a column has for an input: text for one of text, else a number or a list of such."""
    value = _given(row, column, where)
    if spec.dtype.hasobject:
        return value if isinstance(value, list) else _text(row, column, where)
    if isinstance(value, str):
        return number(value, spec, column, where)
    if isinstance(value, float) and math.isnan(value):
        raise unreadable(where, f'column "{column}" holds NaN, expected a number')
    return value


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _given_as(str, "text", row, column, where)
    if not value.strip():
        raise unreadable(where, f'column "{column}" is empty')
    return value


def _bytes(row: Mapping[str, Any], column: str, where: str) -> bytes:
    return _given_as(bytes, "a file's bytes", row, column, where)


def _given_as(kind: type[T], text: str, row: Mapping[str, Any], column: str, where: str) -> T:
    value = _given(row, column, where)
    if not isinstance(value, kind):
        raise unreadable(where, f'column "{column}" holds {type(value).__name__}, expected {text}')
    return value


def plan_rows(
    kinds: Mapping[str, ColumnKind], signature: Signature, settings: DataSettings, preprocess: Preprocess | None
) -> RowPlan:
    """Settle which columns feed which inputs.

    Args:
        kinds: Column -> what it holds.
        signature: Inputs that the source must feed.
        settings: Path, columns and labels.
        preprocess: What is done to texts, images and sounds.

    Raises:
        DataError: A declared column is not there, several fit, or an input is left that none feeds.
        ConfigError: Preprocessing that contradicts itself or the model.
    """
    where = settings.path
    missing = next((name for name in settings.columns if name not in kinds), None)
    if missing is not None:
        raise _no_column(missing, kinds, where)
    label = _label(kinds, signature, settings)
    free = {name: kind for name, kind in kinds.items() if name != label}
    own = [spec.name for spec in signature.inputs if free.get(spec.name) == "numbers"]
    arrays: dict[str, tuple[str, ...]] = {name: (name,) for name in own}
    rest = _without(signature, arrays)
    text = None if preprocess is None else preprocess.text
    tokens = inputs_of_text(rest, text)
    for spec in rest.inputs:
        single = free.get(spec.name) in ("text", "numeral", "other")  # JSON's null and truths are others
        if single and spec not in tokens.values() and _takes(spec, signature) == 1:
            arrays[spec.name] = (spec.name,)
    free = {name: kind for name, kind in free.items() if name not in arrays}
    rest = _without(signature, arrays)
    if rest.inputs and (text is None or not text.tokenizer):
        arrays |= _unnamed(rest, free, settings, tokens=bool(tokens), named=bool(arrays))
        rest = _without(signature, arrays)
    chosen = {each: _chosen(each, free, settings) if rest.inputs else () for each in ("text", "image", "audio")}
    texts = None
    if tokens or (chosen["text"] and rest.inputs and not chosen["image"] and not chosen["audio"]):
        columns = chosen["text"] or _none("text", free, where)
        texts = (columns, plan_text(tokens, text, where))
        rest = replace(rest, inputs=tuple(spec for spec in rest.inputs if spec not in tokens.values()))
    audio = image = None
    if chosen["audio"] and rest.inputs:
        declared = None if preprocess is None else preprocess.audio
        one, rest = one_of(rest, declared.input if declared else None, where)
        audio = (chosen["audio"][0], plan_audio(one, declared, where))
    if chosen["image"] and rest.inputs:
        one, rest = one_of(rest, None, where)
        image = (chosen["image"][0], plan_images(one, preprocess, where))
    require_fed(rest, f"the columns ({_listed(kinds)})", where)
    read = [*(texts[0] if texts else ()), *([image[0]] if image else ()), *([audio[0]] if audio else ())]
    read += [column for columns in arrays.values() for column in columns]
    return RowPlan(signature, (*read, *([label] if label else ())), texts, image, audio, arrays, label)


def _without(signature: Signature, fed: Mapping[str, object]) -> Signature:
    return replace(signature, inputs=tuple(spec for spec in signature.inputs if spec.name not in fed))


def _takes(spec: TensorSpec, signature: Signature) -> int | None:
    """Say how many values an input takes of each sample, in a row; None for any number, and for several axes."""
    if spec.shape is None:
        return None
    shape = spec.shape
    batch = has_batch_axis(spec, signature) or (shape and not signature.whole and not isinstance(shape[0], int))
    dims = shape[1:] if batch else shape
    if all(dim == 1 for dim in dims):
        return 1
    return dims[0] if len(dims) == 1 and isinstance(dims[0], int) else None


def _unnamed(
    rest: Signature, kinds: Mapping[str, ColumnKind], settings: DataSettings, *, tokens: bool, named: bool
) -> dict[str, tuple[str, ...]]:
    """Find the columns that feed the only input that is left: its numbers in their order, or its text.

    Args:
        rest: Inputs that no column is called like.
        kinds: Columns that feed no other input, nor are labels.
        settings: Path and columns.
        tokens: Whether some of them take tokens.
        named: Whether columns feed other inputs by their names: what is left over may be anything then.

    Returns:
        Input -> columns; empty where text, images or sounds are to feed it.

    Raises:
        DataError: The columns of numbers are not those that it takes, or there are several such inputs.
    """
    if not {"numbers", "numeral", "text"}.issuperset(kinds.values()):
        return {}  # images and sounds have columns of other kinds beside them
    spec = rest.inputs[0]
    if len(rest.inputs) == 1 and spec.dtype.hasobject and not (tokens or named):
        columns = _chosen("text", kinds, settings)
        return {spec.name: columns} if len(columns) == 1 else {}
    size = _takes(spec, rest)
    read = [name for name in settings.columns or kinds if name in kinds]
    if len(read) != size and not settings.columns:
        read = [name for name in read if name not in _LABELS]  # labels that are not asked for are no values either
    texts = [name for name in read if kinds[name] == "text"]
    row = spec.shape is not None and len(spec.shape) <= 2 and spec.dtype.kind in "fiub"
    if row and not texts and not named and len(rest.inputs) == 1 and len(read) == (size or len(settings.columns)):
        return {spec.name: tuple(read)}
    of_tokens = tokens or (texts and spec.dtype.kind in "iu")
    if of_tokens or len(texts) == len(read):
        return {}
    raise _unfed(rest, {name: kinds[name] for name in read}, settings.path, named=named)


def _unfed(rest: Signature, kinds: Mapping[str, ColumnKind], where: str, *, named: bool) -> DataError:
    """Say which columns a table has, what the model takes, and how the one may become the other."""
    spec, size = rest.inputs[0], _takes(rest.inputs[0], rest)
    read, texts = list(kinds), [name for name, kind in kinds.items() if kind == "text"]
    found = f"{len(read) - len(texts)} hold numbers" + (f", {len(texts)} text ({_listed(texts, 3)})" if texts else "")
    shape = shape_text(spec) if spec.shape is None else f"shape {shape_text(spec)}"
    what = f'nothing of the columns ({_listed(read, 5)}) feeds input "{spec.name}" of {shape}: '
    # columns of JSON and datasets may hold lists
    arrays = f'call the one with its values "{spec.name}", or ' if "numbers" in kinds.values() else ""
    arrays += "give .npy files"
    columns = _option("--column", read[0])
    if rest.whole and size is None:
        what, do = f"{what}each row is a sample by itself", "give .npz files, each of them a sample"
    elif named or len(rest.inputs) > 1:
        what += "inputs of a row are fed by columns of their names"
        names = quoted(each.name for each in rest.inputs)
        do = f"name columns like the inputs ({names}), or give .npz files with such keys"
    elif size is not None:
        what, do = f"{what}it takes {size} numbers of a row, and {found}", arrays
        if len(read) > size:
            do = f"say which are read, in their order, by {columns} and so on, or {do}"
        if len(read) == size + 1:
            label = _option("--labels", COLUMN + (texts or read)[-1])
            do = f"if one holds labels, {label} (data.labels in a YAML), or {do}"
    elif spec.shape is not None and len(spec.shape) == 2:
        what += f"it does not say how many numbers of a row it takes, and {found}"
        do = f"say which are read, in their order, by {columns} and so on, or {arrays}"
    else:
        what, do = f"{what}it is no row of numbers, and {found}", arrays
    return DataError(what, where=where, do=do, input=spec.name, spare=len(read) > (size or len(read)))


def _option(flag: str, value: str) -> str:
    return f"{flag} {shlex.quote(value)}"


def one_of(signature: Signature, name: str | None, where: str) -> tuple[Signature, Signature]:
    """Split off the one input that a kind of data feeds: the named one, or the only one.

    Raises:
        DataError: There is no such input, or there are several.
    """
    names = [spec.name for spec in signature.inputs]
    if name is not None and name not in names:
        raise DataError(
            f'the model has no input "{name}" to feed', where=where, do=f"the inputs are {', '.join(names)}"
        )
    if name is None and len(names) != 1:
        raise DataError(
            f"feeds one input, the model has {len(names)}: {', '.join(names)}",
            where=where,
            do=f"let others hold one number, as in {_option('--fill', f'{names[-1]}=0')}, or use .npz files",
        )
    own = tuple(spec for spec in signature.inputs if spec.name == (name or names[0]))
    others = tuple(spec for spec in signature.inputs if spec not in own)
    return replace(signature, inputs=own), replace(signature, inputs=others)


def require_fed(rest: Signature, source: str, where: str) -> None:
    """Refuse a source that leaves an input without a feed.

    Args:
        rest: Inputs that nothing feeds.
        source: What the source has, for the message.
        where: The source.

    Raises:
        DataError: There is one.
    """
    if rest.inputs:
        name = rest.inputs[0].name
        raise DataError(
            f'nothing of {source} feeds input "{name}"',
            where=where,
            do=f"let it hold one number, as in {_option('--fill', f'{name}=0')}, or give .npz files",
            input=name,
        )


def _label(kinds: Mapping[str, ColumnKind], signature: Signature, settings: DataSettings) -> str | None:
    """Name the column of labels: the declared one, or one called so, unless labels come from elsewhere."""
    if settings.labels is not None:
        if not settings.labels.startswith(COLUMN):
            return None
        name = settings.labels.removeprefix(COLUMN)
        if name not in kinds:
            raise _no_column(name, kinds, settings.path)
        return name
    taken = {*settings.columns, *(spec.name for spec in signature.inputs)}
    return next((name for name in _LABELS if name in kinds and name not in taken), None)


def _chosen(kind: ColumnKind, kinds: Mapping[str, ColumnKind], settings: DataSettings) -> tuple[str, ...]:
    """Choose the columns of a kind: declared, the only one, or those of usual names; empty where there are none."""
    if settings.columns:
        columns = tuple(name for name in settings.columns if kinds.get(name) in _AS.get(kind, (kind,)))
        most = 2 if kind == "text" else 1
        if len(columns) > most:
            raise DataError(
                f"{len(columns)} columns of {kind} are declared, expected at most {most}",
                where=settings.path,
                do="declare fewer",
            )
        return columns
    held = _held(kind, kinds)
    if len(held) <= 1:
        return tuple(held)
    usual = (names for names in _USUAL[kind] if all(name in held for name in names))
    found = next(usual, None)
    return found if found is not None else _none(kind, kinds, settings.path)


def _held(kind: ColumnKind, kinds: Mapping[str, ColumnKind]) -> list[str]:
    return [name for name, each in kinds.items() if each in _AS.get(kind, (kind,))]


def _none(kind: ColumnKind, kinds: Mapping[str, ColumnKind], where: str) -> tuple[str, ...]:
    held = _held(kind, kinds)
    if not held:
        raise DataError(f"no column holds {kind}; the columns are {_listed(kinds)}", where=where, do="add one")
    do = f"say which: {_option('--column', held[0])}"
    raise DataError(f"several columns hold {kind}: {_listed(held)}", where=where, do=do)


def _no_column(name: str, kinds: Mapping[str, ColumnKind], where: str) -> DataError:
    return DataError(f'has no column "{name}"; the columns are {_listed(kinds)}', where=where, do="correct the name")


def _listed(kinds: Sequence[str] | Mapping[str, ColumnKind], most: int = 12) -> str:
    return quoted(list(kinds)[:most]) + (f", … {len(kinds)} in all" if len(kinds) > most else "")
