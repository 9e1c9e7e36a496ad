"""Text becomes tokens: by a tokenizer.json of Hugging Face, cut and padded as declared, for the inputs they go into."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.fit import shape_text
from int8cal.data.sample import Fitted
from int8cal.errors import ConfigError, DataError
from int8cal.extras import extra_hint
from int8cal.io.paths import from_home
from int8cal.phrases import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from int8cal.data.sample import Sample
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.numerics import Array
    from int8cal.preprocess import TextPreprocess

ROLES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_WHERE = "data.preprocess.text"
_PADS = ("[PAD]", "<pad>", "<|padding|>", "<PAD>")
_FILE = "tokenizer.json"
_GIVE = f"give the model's own {_FILE}; in Python, AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
_UNKNOWN = "\U00013000"  # a hieroglyph: a tokenizer for text of today has no token for it


@dataclass(frozen=True, eq=False)
class TextPlan:
    """How every text of a source becomes the feeds of some inputs.

    Attributes:
        tokenizer: A `tokenizers.Tokenizer` that cuts as declared, and does not pad.
        inputs: What the tokenizer gives (one of `ROLES`) -> the model's input.
        length: Tokens of every sample; None for its own length.
        pad: Token that pads, and on which side; None where nothing is padded.
    """

    tokenizer: Any
    inputs: Mapping[str, TensorSpec]
    length: int | None
    pad: tuple[int, str] | None

    def tokens(self, texts: Sequence[str], where: str) -> Fitted:
        """Make the feed of one text or a pair: input name -> array (1, tokens), or (tokens,), in the input's dtype.

        Raises:
            DataError: The tokenizer fails, or gives a token that the input's dtype does not hold; names the sample.
        """
        with _told(where, "the tokenizer fails on it"):
            found = self.tokenizer.encode(*texts)
            ids, mask, kinds = list(found.ids), list(found.attention_mask), list(found.type_ids)
            missing = 0 if self.length is None else self.length - len(ids)
            if missing > 0 and self.pad is not None:
                token, side = self.pad
                ids, mask, kinds = (
                    [filler] * missing + values if side == "left" else values + [filler] * missing
                    for filler, values in ((token, ids), (0, mask), (0, kinds))
                )
            positions = np.maximum(np.cumsum(mask) - 1, 0).tolist()
            made = dict(zip(ROLES, (ids, mask, kinds, positions), strict=True))
            feed = {spec.name: _shaped(made[role], spec) for role, spec in self.inputs.items()}
            return Fitted(feed, "cut" if found.overflowing else None)


def unknown_tokens(plan: TextPlan, samples: Sequence[Sample]) -> tuple[int, ...]:
    """Return the tokens that stand for unknown text, where samples hold no others; none where one holds others.

    Args:
        plan: How the samples were made.
        samples: At least one; the tokens that every text gets, and padding, are not counted.
    """
    name = plan.inputs["input_ids"].name
    common, strange = (set(plan.tokens([text], "").feed[name].ravel().tolist()) for text in ("", _UNKNOWN))
    found = [set(sample.feed[name].ravel().tolist()) - common for sample in samples]
    unknown = strange - common
    return tuple(sorted(unknown)) if all(each and each <= unknown for each in found) else ()


@contextmanager
def _told(where: str, what: str) -> Iterator[None]:
    """Make an error of the library one of this: it raises bare exceptions, and panics, which are none of them."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {error}", where=where, do=_GIVE) from error


def _shaped(values: list[int], spec: TensorSpec) -> Array:
    rank = 2 if spec.shape is None else len(spec.shape)
    return np.array(values, spec.dtype).reshape((1,) * (rank - 1) + (len(values),))


def inputs_of_text(signature: Signature, text: TextPreprocess | None) -> dict[str, TensorSpec]:
    """Find the inputs that tokens go into, by their names or as declared: one of `ROLES` -> input.

    Raises:
        ConfigError: A declared name is no role, or no input.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    declared = {} if text is None else text.inputs
    for role, name in declared.items():
        if role not in ROLES:
            raise ConfigError(f'"{role}" is none of {", ".join(ROLES)}', where=f"{_WHERE}.inputs", do="correct it")
        if name not in specs:
            do = f"the inputs are {quoted(specs)}"
            raise ConfigError(f'the model has no input "{name}"', where=f"{_WHERE}.inputs.{role}", do=do)
    names = {role: declared.get(role, role) for role in ROLES}
    return {role: specs[name] for role, name in names.items() if name in specs}


def plan_text(inputs: Mapping[str, TensorSpec], text: TextPreprocess | None, where: str) -> TextPlan:
    """Load the tokenizer, and settle how samples are cut and padded.

    Args:
        inputs: As `inputs_of_text` finds them.
        text: As declared.
        where: The source, for messages.

    Raises:
        DataError: No tokenizer is declared or installed, its file cannot be read or is another, or no input takes
            tokens.
        ConfigError: Lengths that contradict each other or the model, or padding without a token for it.
    """
    if text is None or not text.tokenizer:
        raise DataError(
            "holds text, and no tokenizer is declared", where=where, do=f"give --tokenizer {_FILE}, the model's own"
        )
    if "input_ids" not in inputs:
        raise DataError(
            "holds text, and the model has no input that is called input_ids",
            where=where,
            do=f"name the inputs that take tokens, such as --text-input input_ids=tokens ({_WHERE}.inputs)",
        )
    for spec in inputs.values():
        if spec.dtype.kind not in "biuf" or (spec.shape is not None and len(spec.shape) not in (1, 2)):
            raise DataError(
                f'input "{spec.name}" is {spec.dtype.name} {shape_text(spec)}, expected numbers (N, tokens)',
                where=where,
                do=f"correct {_WHERE}.inputs, or make the feeds by a function",
            )
    tokenizer = _tokenizer(text)
    fixed = {spec.shape[-1] for spec in inputs.values() if spec.shape and isinstance(spec.shape[-1], int)}
    if len(fixed) > 1:
        raise DataError("the inputs of tokens have different lengths", where=where, do="make the feeds by a function")
    length, most = _lengths(text, tokenizer, next(iter(fixed), None))
    cut = tokenizer.truncation or {}
    if most is None:
        tokenizer.no_truncation()
    else:
        with _told(text.tokenizer, f"cannot cut at {most} tokens"):
            tokenizer.enable_truncation(most, direction=cut.get("direction", "right"))
    pad = None if length is None else _pad(text, tokenizer)
    tokenizer.no_padding()
    return TextPlan(tokenizer, inputs, length, pad)


def _lengths(text: TextPreprocess, tokenizer: Any, fixed: int | None) -> tuple[int | None, int | None]:
    """Settle how many tokens every sample has, None for its own number, and how many at most."""
    most = text.max_length if text.max_length is not None else (tokenizer.truncation or {}).get("max_length")
    if fixed is not None:
        if text.max_length is not None and text.max_length > fixed:
            raise ConfigError(
                f"is {text.max_length}, the model takes {fixed} tokens",
                where=f"{_WHERE}.max_length",
                do=f"set {fixed} or less, or leave it out",
            )
        if text.padding == "longest":
            raise ConfigError(
                f'is "longest", the model takes samples of {fixed} tokens only',
                where=f"{_WHERE}.padding",
                do="leave it out",
            )
        return fixed, min(fixed, most or fixed)
    if text.padding != "max_length":
        return None, most
    if text.max_length is None:
        raise ConfigError(
            'is "max_length", which is not declared',
            where=f"{_WHERE}.padding",
            do="add max_length beside it (--max-length)",
        )
    return text.max_length, text.max_length


def _pad(text: TextPreprocess, tokenizer: Any) -> tuple[int, str]:
    own = tokenizer.padding or {}
    side = own.get("direction", "right")
    if text.pad_token is None and own:
        return int(own["pad_id"]), side
    names = _PADS if text.pad_token is None else (text.pad_token,)
    token = next((found for found in map(tokenizer.token_to_id, names) if found is not None), None)
    if token is None:
        what = "the tokenizer has no token that pads" if text.pad_token is None else f'no token "{text.pad_token}"'
        raise ConfigError(what, where=f"{_WHERE}.pad_token", do="name one of the tokenizer's tokens (--pad-token)")
    return token, side


def tokenizer_file(tokenizer: str) -> Path:
    """Find the tokenizer's file: itself, or the one in its directory.

    Raises:
        DataError: It is not there.
    """
    path = from_home(tokenizer)
    file = path / _FILE if path.is_dir() else path
    if file.is_file():
        return file
    what = f"the directory holds no {_FILE}" if path.is_dir() else "the tokenizer does not exist"
    raise DataError(what, where=tokenizer, do=_GIVE, path=tokenizer)


def _tokenizer(text: TextPreprocess) -> Any:
    file = tokenizer_file(text.tokenizer)
    if text.tokenizer_sha256 is not None and _digest(file) != text.tokenizer_sha256:
        raise DataError(
            "is another tokenizer than the one that tokenizer_sha256 names",
            where=file.as_posix(),
            do="give that one with --tokenizer, or calibrate again with this one",
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(
            "needs the library tokenizers, which is not installed", where=file.as_posix(), do=extra_hint("text")
        ) from error
    with _told(file.as_posix(), f"is no {_FILE}"):
        return Tokenizer.from_file(str(file))


@lru_cache(maxsize=4)
def _digest_of(file: Path, _changed: tuple[int, int]) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(file: Path) -> str:
    stat = file.stat()
    return _digest_of(file, (stat.st_size, stat.st_mtime_ns))


def with_tokenizer_hash(text: TextPreprocess) -> TextPreprocess:
    """Return the settings with the hash of the tokenizer's file.

    Raises:
        DataError: The file is not there.
    """
    return replace(text, tokenizer_sha256=_digest(tokenizer_file(text.tokenizer))) if text.tokenizer else text


def meaning(text: TextPreprocess) -> dict[str, object]:
    """Return what tokens follow from: the settings, and the tokenizer's bytes in place of where it is."""
    settings = asdict(text)
    digest = settings.pop("tokenizer_sha256")
    path = settings.pop("tokenizer")
    return {"tokenizer": digest or (_digest(tokenizer_file(path)) if path else ""), **settings}
