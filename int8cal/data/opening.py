"""The way in: a path and the model's inputs become feeds, checked before any inference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.arrays import open_npy, open_npz, open_test_data
from int8cal.data.audio import open_audio, plan_audio
from int8cal.data.callables import CallStream, is_callable_path
from int8cal.data.checks import classes_of
from int8cal.data.columns import one_of, plan_rows, require_fed
from int8cal.data.feeds import Feeds, all_skipped
from int8cal.data.file_stream import FileStream
from int8cal.data.find import TEXTS, find
from int8cal.data.functions import import_function
from int8cal.data.hub import is_dataset, open_dataset, part_of
from int8cal.data.images import ImagePart, plan_images
from int8cal.data.labels import COLUMN, NONE, NoClasses, find_labels, own_labels
from int8cal.data.lines import LinesPart, columns_of, open_lines
from int8cal.data.preprocessing import filled, of_images
from int8cal.data.shards import divided_of
from int8cal.errors import DataError, ModelError
from int8cal.phrases import counted
from int8cal.preprocess import Preprocess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from int8cal.data.find import Found
    from int8cal.data.labels import Labels
    from int8cal.data.sample import Feed, Part, Sample
    from int8cal.data.shards import Shard
    from int8cal.graph.signature import Signature
    from int8cal.job import DataSettings


def open_feeds(
    settings: DataSettings,
    signature: Signature,
    *,
    require_labels: bool = False,
    trim: Callable[[Sample], Sample] | None = None,
    stored: Preprocess | None = None,
    shard: Shard | None = None,
) -> Feeds:
    """Open a source and check all that can be checked without loading values.

    Args:
        settings: Path, number of samples (a seeded choice, in order; the first ones of a function), preprocessing,
            labels.
        signature: The model's inputs. An array of the model's rank is a batch, one of a rank less is one sample; where
            the inputs have free first axes of their own, and differ in their sizes, each file is one sample.
        require_labels: Whether missing labels are an error.
        trim: Takes the padding off a sample, see data.trimming; None to leave samples as they are stored.
        stored: Preprocessing where the settings declare none.
        shard: The part of the chosen samples that is given, by their positions; None for all.

    Returns:
        Feeds. The headers of all .npy and .npz files have been read and fit the model, and the first feed of a
        function does.

    Raises:
        DataError: Nothing usable there, or files or labels that do not fit.
        ConfigError: Preprocessing that contradicts itself or the model's input.
        ModelError: The model has no inputs, or takes batches of 0 rows.
    """
    if not signature.inputs:
        raise ModelError("has no inputs, so no data can be fed", do="give a model with inputs", graph="")
    if signature.batch == 0:
        none = next(spec for spec in signature.inputs if spec.shape and spec.shape[0] == 0)
        what = f"input {none.name!r} has shape {none.shape}: no sample has 0 rows"
        raise ModelError(what, do="export it with a batch axis of any size, or of 1", tensor=none.name, graph="")

    def opened_for(signature: Signature) -> Feeds:
        if is_dataset(settings.path):
            return _open_dataset(settings, signature, trim, stored, shard)
        if is_callable_path(settings.path):
            return _open_callable(settings, signature, trim, shard)
        return _open_files(settings, signature, trim, stored, shard)

    try:
        feeds = opened_for(signature)
    except DataError as error:
        if not error.fields.get("apart") or signature.batch != "dynamic":
            raise
        try:
            feeds = opened_for(replace(signature, whole=True))
        except DataError as other:
            raise (other if other.fields.get("labels") else error) from None
        feeds.made = (f"each file of {settings.path} is one sample: the inputs have rows of their own",)
    if require_labels and not feeds.labelled:
        why = "" if feeds.no_classes is None else f": {feeds.no_classes.why}"
        raise DataError(
            f"has no labels, without which there is no top-1 and no top-5{why}",
            where=settings.path,
            do="use one folder per class, add a labels.csv (file,label), or give --labels FILE or column:NAME",
        )
    return feeds


def feeds_of(
    stream: CallStream,
    signature: Signature,
    trim: Callable[[Sample], Sample] | None = None,
    *,
    labelled: bool = False,
) -> Feeds:
    """Make feeds of what a function yields, for a signature; see `open_feeds`."""
    stream = replace(stream, signature=signature)
    divided = divided_of(stream.shard, str(stream.samples))
    return Feeds(stream, signature, labelled=labelled, divided=divided, trim=trim)


def _open_callable(
    settings: DataSettings, signature: Signature, trim: Callable[[Sample], Sample] | None, shard: Shard | None
) -> Feeds:
    if settings.preprocess is not None:
        why = "preprocessing applies to images, text and sound; a function yields finished feeds"
        raise _no_preprocess(settings, _declared(settings.preprocess), why)
    if settings.columns:
        raise _no_columns(settings)
    if settings.labels not in (None, NONE):
        raise DataError(
            f'labels "{settings.labels}" cannot be matched with a function',
            where=settings.path,
            do='yield them under the key "labels", or give --labels none',
        )
    function = import_function(settings.path, DataError)
    stream = CallStream(settings.path, function, signature, settings.samples, shard, settings.labels is None)
    # the first feed shows a wrong shape before any inference, and whether there are labels
    first = next(stream.read([]), None)
    if first is None:
        raise _nothing_in(shard, settings.path)
    return feeds_of(stream, signature, trim, labelled=first.label is not None)


def _open_files(
    settings: DataSettings,
    signature: Signature,
    trim: Callable[[Sample], Sample] | None,
    stored: Preprocess | None,
    shard: Shard | None,
) -> Feeds:
    found = find(settings.path)
    prepared = found.kind in TEXTS or found.kind in ("image", "audio")
    settings = _with_stored(settings, stored, prepared=prepared)
    rest, constant = filled(signature, settings.preprocess)
    skipped: list[str] = []
    parts: list[tuple[str, Part]] = []
    for name, place, opener in _openers(found, settings, rest):
        try:
            part = opener()
        except DataError as error:
            if not (settings.skip_bad and error.fields.get("unreadable")):
                raise
            skipped.append(name)
            continue
        parts.append((place, part))
        if isinstance(part, LinesPart):
            skipped += part.left_out
    if not parts:
        raise all_skipped(settings.path, skipped)
    _require_rows([part for _, part in parts], settings, skipped)
    labels = find_labels(found, parts, settings.labels, classes_of(signature))
    rows = sum(part.rows for _, part in parts)
    made: tuple[str, ...] = ()
    if not prepared and rows > len(parts):
        made = (f"arrays of {settings.path} are cut into {rows} samples along their first axis",)
    # rows of numbers are what arrays hold
    prepared = prepared and not all(isinstance(part, LinesPart) and part.plan.plain for _, part in parts)
    images, left_out = found.kind == "image", tuple(skipped)
    opened = partial(Feeds, images=images, prepared=prepared, skipped=left_out, made=made, trim=trim)
    return _chosen(opened, settings, signature, parts, labels, constant, shard)


def _open_dataset(
    settings: DataSettings,
    signature: Signature,
    trim: Callable[[Sample], Sample] | None,
    stored: Preprocess | None,
    shard: Shard | None,
) -> Feeds:
    column = settings.labels is not None and settings.labels.startswith(COLUMN)
    if settings.labels not in (None, NONE) and not column:
        raise DataError(
            f'labels "{settings.labels}" cannot be matched with a dataset',
            where=settings.path,
            do="name the column that holds them: --labels column:NAME, or give --labels none",
        )
    settings = _with_stored(settings, stored, prepared=True)
    rest, constant = filled(signature, settings.preprocess)
    dataset = open_dataset(settings.path)
    plan = plan_rows(dataset.kinds, rest, settings, settings.preprocess)
    part = part_of(dataset, plan)
    labels = None if part.labels is None else own_labels([part], declared=column)
    opened = partial(Feeds, images=plan.image is not None, prepared=True, trim=trim)
    return _chosen(opened, settings, signature, [("", part)], labels, constant, shard)


def _with_stored(settings: DataSettings, stored: Preprocess | None, *, prepared: bool) -> DataSettings:
    """Let stored preprocessing stand where none is declared; of arrays only inputs that hold one number."""
    if settings.preprocess is not None or stored is None or not (prepared or stored.fill):
        return settings
    return replace(settings, preprocess=stored if prepared else Preprocess(fill=stored.fill))


def _require_rows(parts: Sequence[Part], settings: DataSettings, skipped: list[str]) -> None:
    if any(part.rows for part in parts):
        return
    if skipped:
        raise all_skipped(settings.path, skipped)
    raise DataError(
        f"holds no sample: {counted(len(parts), 'file')} with 0 rows", where=settings.path, do="add samples"
    )


def _chosen(
    opened: Callable[..., Feeds],
    settings: DataSettings,
    signature: Signature,
    parts: Sequence[tuple[str, Part]],
    labels: Labels | NoClasses | None,
    constant: Feed,
    shard: Shard | None,
) -> Feeds:
    """Make feeds of as many samples as are asked for, or all, and of these the shard's.

    Args:
        opened: `Feeds` with what is known of its kind of source.
        settings: Number of samples and seed.
        signature: The model's inputs.
        parts: Each file's place under the root, and the file.
        labels: Of all samples.
        constant: Feeds alike in every sample.
        shard: The part of the chosen samples that is given; None for all.
    """
    no_classes, labels = (labels, None) if isinstance(labels, NoClasses) else (None, labels)
    rows = np.array([part.rows for _, part in parts])
    places = np.stack([np.repeat(np.arange(len(parts)), rows), np.arange(rows.sum())], axis=1)
    places[:, 1] -= np.repeat(np.cumsum(rows) - rows, rows)  # a file's rows count from 0
    kept = np.arange(len(places))
    if settings.samples is not None and settings.samples < len(places):
        # RandomState's stream is frozen for good, so the choice outlives numpy versions
        order = np.random.RandomState(settings.seed % 2**32).permutation(len(places))
        kept = np.sort(order[: settings.samples])
    divided = divided_of(shard, *(place for place, _ in parts), rows=places[kept])
    if shard is not None:
        kept = kept[shard.slice]
        if not len(kept):
            raise _nothing_in(shard, settings.path)
    if len(kept) < len(places):
        places = places[kept]
        labels = None if labels is None else replace(labels, values=tuple(labels.values[index] for index in kept))
    values, files = None if labels is None else labels.values, tuple(part for _, part in parts)
    stream = FileStream(settings.path, files, places, values, settings.skip_bad, constant)
    return opened(
        stream,
        signature,
        labelled=labels is not None,
        labels=labels,
        no_classes=no_classes,
        preprocess=settings.preprocess,
        divided=divided,
    )


def _openers(
    found: Found, settings: DataSettings, signature: Signature
) -> Iterator[tuple[str, str, Callable[[], Part]]]:
    """For each file (or test data set): its name, its place under the root, and how to open it."""
    _require_preprocess_of(found, settings)
    if found.kind == "input_*.pb":
        for folder, group in groupby(found.files, key=lambda file: found.place(file.parent)):
            files = tuple(group)
            yield files[0].as_posix(), folder, partial(open_test_data, files, signature)
        return
    open_one: Callable[[Path], Part]
    if found.kind in TEXTS:
        text = None if settings.preprocess is None else settings.preprocess.text
        bare = text is None or not text.tokenizer  # where text is read, a first line of numbers names columns
        kinds = columns_of(found.files, skip_bad=settings.skip_bad, bare=bare)
        rows = plan_rows(kinds, signature, settings, settings.preprocess)
        open_one = partial(open_lines, plan=rows, skip_bad=settings.skip_bad, bare=bare)
    elif found.kind == "audio":
        audio = settings.preprocess.audio if settings.preprocess is not None else None
        one, rest = one_of(signature, audio.input if audio is not None else None, settings.path)
        require_fed(rest, "sounds", settings.path)
        open_one = partial(open_audio, plan=plan_audio(one, audio, settings.path))
    elif found.kind == "image":
        open_one = partial(ImagePart, plan=plan_images(signature, settings.preprocess, settings.path))
    else:
        open_one = (
            partial(open_npy, signature=signature)
            if found.kind == ".npy"
            else partial(open_npz, signature=signature, labelled=settings.labels != NONE)
        )
    for file in found.files:
        yield file.as_posix(), found.place(file), partial(open_one, file)


def _require_preprocess_of(found: Found, settings: DataSettings) -> None:
    """Refuse what is declared of another kind of samples."""
    if settings.columns and found.kind not in TEXTS:
        raise _no_columns(settings)
    chosen = settings.preprocess
    if chosen is None:
        return
    declared = _declared(chosen)
    if found.kind not in TEXTS and found.kind not in ("image", "audio"):
        if declared or not chosen.fill:
            why = f"preprocessing applies to images, text and sound; {found.kind} files are fed as they are"
            raise _no_preprocess(settings, declared, why, ", and preprocess where the arrays are made")
        return
    kind = "text" if found.kind in TEXTS else found.kind
    others = [each for each in declared if each != kind]
    if others:
        why = f"preprocessing of {' and '.join(others)} is declared; {found.kind} files are none"
        raise _no_preprocess(settings, others, why)


def _declared(chosen: Preprocess) -> list[str]:
    """Name the kinds of samples of which preprocessing is declared."""
    given = {"image": of_images(chosen), "text": chosen.text is not None, "audio": chosen.audio is not None}
    return [kind for kind, is_given in given.items() if is_given]


_DECLARED_BY = {  # the options that declare the preprocessing of a kind, and the key
    "image": ("--preprocess, --resize and the like", "data.preprocess"),
    "text": ("--tokenizer and the like", "data.preprocess.text"),
    "audio": ("--sample-rate and the like", "data.preprocess.audio"),
}


def _no_preprocess(settings: DataSettings, kinds: list[str], why: str, more: str = "") -> DataError:
    options = [f"{flags} ({key} in a YAML)" for flags, key in map(_DECLARED_BY.__getitem__, kinds)]
    return DataError(why, where=settings.path, do=f"leave out {' and '.join(options) or 'data.preprocess'}{more}")


def _no_columns(settings: DataSettings) -> DataError:
    return DataError(
        f'column "{settings.columns[0]}": only .csv, .tsv, .jsonl and datasets have columns',
        where=settings.path,
        do="remove columns",
    )


def _nothing_in(shard: Shard | None, name: str) -> DataError:
    do = "make no more shards than there are samples"
    return DataError(f"shard {shard} holds no sample", where=name, do=do, empty_shard=True)
