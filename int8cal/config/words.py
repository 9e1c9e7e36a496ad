"""Which setting or value a user means who writes what onnxruntime, NNCF or TensorRT call it, or mistypes it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Keys are in lower case, without "-" and "_".
_VALUES = {
    "entropy": "kl",
    "kld": "kl",
    "minmax": "max",
    "quint8": "u8",
    "uint8": "u8",
    "qint8": "s8",
    "int8": "s8",
    "quint16": "u16",
    "uint16": "u16",
}
_SETTINGS = {
    "activationtype": "activations",
    "calibratemethod": "method",
    "calibrationdata": "data",
    "calibrationdataset": "data",
    "calibrationmethod": "method",
    "ignoredscope": "exclude",
    "nodestoexclude": "exclude",
    "nodestoquantize": "include",
    "optypestoexclude": "exclude",
    "optypestoquantize": "include",
    "subsetsize": "samples",
    "targetdevice": "target",
    "weighttype": "weights",
}


def meant_value(value: str, known: Sequence[str]) -> str | None:
    """Return the one of the known values that is probably meant; None where none is like it."""
    return _meant(value, known, _VALUES)


def meant_setting(name: str, known: Sequence[str]) -> str | None:
    """Return the one of the known keys or options that is probably meant; None where none is like it."""
    return _meant(name, known, _SETTINGS)


def _meant(word: str, known: Sequence[str], elsewhere: dict[str, str]) -> str | None:
    plain = _plain(word)
    same = [each for each in known if _plain(each) in (plain, elsewhere.get(plain))]
    return next(iter(same or difflib.get_close_matches(word, known, n=1)), None)


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
