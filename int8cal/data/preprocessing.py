"""What is declared of preprocessing as a whole: as tables hold it, what of it differs; inputs that hold one number."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.text import meaning, with_tokenizer_hash
from int8cal.errors import ConfigError
from int8cal.io.paths import from_home
from int8cal.phrases import quoted
from int8cal.preprocess import AudioPreprocess, Preprocess, TextPreprocess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.data.feeds import Feeds
    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Signature

_LEFT_OUT = ("letterbox", "text", "audio", "fill")  # keys that tables lack where nothing is declared


def of_images(preprocess: Preprocess) -> bool:
    """Tell whether something is declared of images."""
    return replace(preprocess, text=None, audio=None, fill={}) != Preprocess()


def recorded(preprocess: Preprocess, model: Path) -> dict[str, Any]:
    """Return what tables hold, as JSON has it.

    Args:
        preprocess: As declared.
        model: The FP32 model; the tokenizer's place is told from its directory, and what it is by its hash.

    Raises:
        DataError: The tokenizer is not there.
    """
    known = preprocess
    if preprocess.text is not None and preprocess.text.tokenizer:
        text = with_tokenizer_hash(preprocess.text)
        known = replace(preprocess, text=replace(text, tokenizer=_beside(text.tokenizer, model)))
    return {key: value for key, value in asdict(known).items() if key not in _LEFT_OUT or value not in (None, {})}


def _beside(tokenizer: str, model: Path) -> str:
    try:
        return Path(os.path.relpath(from_home(tokenizer), model.parent)).as_posix()
    except ValueError:  # another drive
        return Path(tokenizer).absolute().as_posix()


def located(preprocess: Preprocess, directory: Path) -> Preprocess:
    """Return recorded preprocessing with the tokenizer's place told from the working directory.

    Args:
        preprocess: As a table has it.
        directory: The FP32 model's.
    """
    text = preprocess.text
    if text is None:
        return preprocess
    return replace(preprocess, text=replace(text, tokenizer=(directory / text.tokenizer).as_posix()))


def flat(preprocess: Preprocess | None) -> dict[str, object]:
    """Return what feeds follow from: key path -> value, a tokenizer by its bytes; of what is not declared the defaults.

    Raises:
        DataError: The tokenizer is not there.
    """
    known = preprocess if preprocess is not None else Preprocess()
    values = asdict(known)
    sections: dict[str, Mapping[str, object]] = {
        "text": meaning(known.text or TextPreprocess()),
        "audio": values["audio"] or asdict(AudioPreprocess()),
        "fill": values["fill"],
    }
    plain = {key: value for key, value in values.items() if key not in sections}
    return plain | {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def noted(feeds: Feeds) -> dict[str, object] | None:
    """Return what `flat` says of samples, as JSON has it; None where they are arrays, which nothing is made of."""
    if not feeds.prepared:
        return None
    values: dict[str, object] = json.loads(json.dumps(flat(feeds.preprocess)))
    return values


def differing(given: Mapping[str, object], known: Mapping[str, object]) -> str:
    """Say what differs between two declarations, as `flat` has them; "" where samples come out alike."""
    keys = [key for key in {**known, **given} if shown(given.get(key)) != shown(known.get(key))]
    # a color or layout that one of them leaves to the model's input is none that differs
    keys = [key for key in keys if key not in {"color", "layout"} or None not in (given.get(key), known.get(key))]
    return ", ".join(
        "another tokenizer"
        if key == "text.tokenizer"
        else f"{key} {shown(given.get(key))} and not {shown(known.get(key))}"
        for key in keys
    )


def shown(value: object) -> object:
    """Return a setting as messages have it."""
    return list(value) if isinstance(value, tuple) else value


def filled(signature: Signature, preprocess: Preprocess | None) -> tuple[Signature, Feed]:
    """Split off the inputs that hold one number in every sample.

    Returns:
        The signature without them, and their feeds; sizes that the model leaves open are 1.

    Raises:
        ConfigError: There is no such input, none is left for the data, or its type cannot hold the number.
    """
    fill = {} if preprocess is None else preprocess.fill
    specs = {spec.name: spec for spec in signature.inputs}
    feed: Feed = {}
    for name, number in fill.items():
        where = f"data.preprocess.fill.{name}"
        if name not in specs:
            raise ConfigError(f'the model has no input "{name}"', where=where, do=f"the inputs are {quoted(specs)}")
        spec = specs[name]
        if spec.shape is None or spec.dtype.kind not in "biuf":
            raise ConfigError("the input has no shape, or holds no numbers", where=where, do="use .npz files")
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        with np.errstate(all="ignore"):
            feed[name] = np.full(shape, number).astype(spec.dtype)
        if spec.dtype.kind != "f" and feed[name].size and feed[name].flat[0] != number:
            raise ConfigError(f"{number:g} is no {spec.dtype.name}", where=where, do="give a whole number it holds")
    rest = tuple(spec for spec in signature.inputs if spec.name not in feed)
    if not rest:
        raise ConfigError("holds all inputs of the model", where="data.preprocess.fill", do="leave one for the data")
    return (replace(signature, inputs=rest, filled=tuple(feed)), feed) if feed else (signature, feed)
