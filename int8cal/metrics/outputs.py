"""Which output of a model a metric is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from int8cal.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from int8cal.numerics import Array, Float64

Outputs = dict[str, "Array"]
F = TypeVar("F", bound="Callable[..., object]")


def needs(*modules: str, higher_is_better: bool = True) -> Callable[[F], F]:
    """Say which libraries a metric imports, so that a missing one is told before any work; and which way is better."""

    def mark(function: F) -> F:
        vars(function).update(needs=modules, higher_is_better=higher_is_better)
        return function

    return mark


def first_float(outputs: Mapping[str, Array]) -> Array:
    """Return the first output that holds real numbers, samples along axis 0.

    Raises:
        ModelError: There is none.
    """
    for output in outputs.values():
        kind = output[0].dtype.kind if output.dtype == object else output.dtype.kind
        if kind == "f":
            return output
    raise ModelError("has no float output for the metric", do="write a metric of your own")


def output_named(outputs: Mapping[str, Array], *words: str) -> Array | None:
    """Return the first output whose name holds one of these words; None where none does."""
    return next((output for name, output in outputs.items() if any(word in name.lower() for word in words)), None)


def vectors(output: Array) -> Float64:
    """Return one vector for each sample, (N, D); a sequence of vectors by their mean."""
    rows = [np.asarray(each, np.float64) for each in output]
    return np.stack([row.reshape(-1, row.shape[-1]).mean(axis=0) if row.ndim > 1 else row for row in rows])
