"""Rows of columns become feeds: which columns are read, and what each is for the model's inputs.

A row is a line of a text file, or an example of a dataset; a column holds text, an image, a sound, numbers or classes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from int8cal.data.audio import AudioPlan, open_sound, plan_audio
from int8cal.data.fit import Header, count_rows, take_row
from int8cal.data.images import ImagePlan, feed_of, plan_images
from int8cal.data.labels import COLUMN
from int8cal.data.sample import Fitted, unreadable
from int8cal.data.text import TextPlan, inputs_of_text, plan_text
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from int8cal.data.sample import Feed, Fit
    from int8cal.graph.signature import Signature
    from int8cal.job import DataSettings
    from int8cal.preprocess import Preprocess

T = TypeVar("T")
Kind = Literal["text", "image", "audio", "numbers", "class", "other"]

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
_USUAL: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "text": _TEXTS,
    "image": (("image",), ("img",), ("pixel_values",)),
    "audio": (("audio",), ("speech",), ("sound",)),
}
_LABELS = ("label", "labels")


@dataclass(frozen=True)
class RowPlan:
    """What becomes of the rows of a source.

    Attributes:
        signature: The model's inputs, all of which are fed.
        read: Columns that are read, the labels' among them.
        texts: Columns of a text or a pair, and how they become tokens.
        image, audio: A column, and how it becomes a feed.
        numbers: Inputs that a column of their name feeds.
        label: Column with labels; None without.
    """

    signature: Signature
    read: tuple[str, ...]
    texts: tuple[tuple[str, ...], TextPlan] | None
    image: tuple[str, ImagePlan] | None
    audio: tuple[str, AudioPlan] | None
    numbers: tuple[str, ...]
    label: str | None

    def fitted(self, row: Mapping[str, Any], where: str) -> Fitted:
        """Make the feed of one row.

        Args:
            row: Column -> str; bytes of an image or sound; numbers in lists.
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
        if self.numbers:
            feed |= self._cut({name: self._array(row, name, where) for name in self.numbers}, where)
        return Fitted(feed, fit)

    def require(self, row: Mapping[str, Any], where: str) -> None:
        """Check, without decoding anything, that a row has what its sample needs.

        Raises:
            DataError: A value is missing, or is no text.
        """
        texts = () if self.texts is None else self.texts[0]
        for column in self.read:
            if column in texts:
                _text(row, column, where)
            elif column != self.label:
                _given(row, column, where)

    def _cut(self, arrays: Mapping[str, Any], where: str) -> Feed:
        """Check arrays against their inputs, and take the one sample that they are."""
        specs = tuple(spec for spec in self.signature.inputs if spec.name in arrays)
        part = replace(self.signature, inputs=specs)
        rows = count_rows({name: Header(each.dtype, each.shape) for name, each in arrays.items()}, part, where)
        if rows != 1:
            raise DataError(f"holds {rows} samples in one row", where=where, do="write one row for each")
        return take_row(arrays, 0, part, where)

    def _array(self, row: Mapping[str, Any], name: str, where: str) -> Any:
        spec = next(spec for spec in self.signature.inputs if spec.name == name)
        try:
            array = np.asarray(_given(row, name, where))
        except ValueError as error:  # lists of different lengths
            raise unreadable(where, f'column "{name}" holds no array: {error}') from error
        # JSON has one kind of numbers: 1 may stand for 1.0
        return array.astype(spec.dtype) if array.dtype.kind in "iu" and spec.dtype.kind == "f" else array


def _given(row: Mapping[str, Any], column: str, where: str) -> Any:
    value = row.get(column)
    if value is None or value == "":
        raise unreadable(where, f'column "{column}" is empty')
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
    kinds: Mapping[str, Kind], signature: Signature, settings: DataSettings, preprocess: Preprocess | None
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
    numbers = tuple(spec.name for spec in signature.inputs if free.get(spec.name) == "numbers")
    rest = replace(signature, inputs=tuple(spec for spec in signature.inputs if spec.name not in numbers))
    text = None if preprocess is None else preprocess.text
    tokens = inputs_of_text(rest, text)
    chosen = {each: _chosen(each, free, settings) for each in ("text", "image", "audio")}
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
    read = [*(texts[0] if texts else ()), *([image[0]] if image else ()), *([audio[0]] if audio else ()), *numbers]
    return RowPlan(signature, (*read, *([label] if label else ())), texts, image, audio, numbers, label)


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
            do=f"let others hold one number, as in --fill {names[-1]}=0, or use .npz files",
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
            do=f"let it hold one number, as in --fill {name}=0, or give .npz files",
            input=name,
        )


def _label(kinds: Mapping[str, Kind], signature: Signature, settings: DataSettings) -> str | None:
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


def _chosen(kind: Kind, kinds: Mapping[str, Kind], settings: DataSettings) -> tuple[str, ...]:
    """Choose the columns of a kind: declared, the only one, or those of usual names; empty where there are none."""
    if settings.columns:
        columns = tuple(name for name in settings.columns if kinds.get(name) == kind)
        most = 2 if kind == "text" else 1
        if len(columns) > most:
            raise DataError(
                f"{len(columns)} columns of {kind} are declared, expected at most {most}",
                where=settings.path,
                do="declare fewer",
            )
        return columns
    held = [name for name, each in kinds.items() if each == kind]
    if len(held) <= 1:
        return tuple(held)
    usual = (names for names in _USUAL[kind] if all(name in held for name in names))
    found = next(usual, None)
    return found if found is not None else _none(kind, kinds, settings.path)


def _none(kind: Kind, kinds: Mapping[str, Kind], where: str) -> tuple[str, ...]:
    held = [name for name, each in kinds.items() if each == kind]
    if not held:
        raise DataError(f"no column holds {kind}; the columns are {_listed(kinds)}", where=where, do="add one")
    raise DataError(f"several columns hold {kind}: {', '.join(held)}", where=where, do=f"say which: --column {held[0]}")


def _no_column(name: str, kinds: Mapping[str, Kind], where: str) -> DataError:
    return DataError(f'has no column "{name}"; the columns are {_listed(kinds)}', where=where, do="correct the name")


def _listed(kinds: Sequence[str] | Mapping[str, Kind]) -> str:
    shown = [f'"{name}"' for name in list(kinds)[:12]]
    return ", ".join(shown) + (", …" if len(kinds) > len(shown) else "")
