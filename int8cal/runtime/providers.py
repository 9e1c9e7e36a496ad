"""onnxruntime's execution providers: from the names that users give to those that a session asks for."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import onnxruntime as ort

from int8cal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"


def providers() -> tuple[str, ...]:
    """Return the execution providers of the installed runtime."""
    return tuple(ort.get_available_providers())


def short_name(provider: str) -> str:
    """Return what users may write for a provider: "cuda" for "CUDAExecutionProvider"."""
    return provider.removesuffix(_SUFFIX).lower()


def resolve(names: Iterable[str]) -> tuple[str, ...]:
    """Turn names into those of providers.

    Args:
        names: Full or short names, upper or lower case, in the order of preference.

    Returns:
        Full names in the same order, each once; CPU alone where none is given.

    Raises:
        UsageError: The installed runtime does not have one of them; lists those that it has.
    """
    offered = {short_name(each): each for each in providers()}
    known = {short_name(each) for each in ort.get_all_providers()}
    found: dict[str, None] = {}
    for name in names:
        short = name.strip().lower().removesuffix(_SUFFIX.lower())
        if short not in offered:
            near = difflib.get_close_matches(short, offered, 1)
            unknown = f", did you mean {near[0]!r}?" if near else ""
            what = (
                "is not in the installed onnxruntime" if short in known else f"is no provider of onnxruntime{unknown}"
            )
            listed = ", ".join(f"{key} ({full})" for key, full in offered.items())
            raise UsageError(what, where=f"provider {name!r}", do=f"the installed onnxruntime offers {listed}")
        found[offered[short]] = None
    return tuple(found) or (CPU,)
