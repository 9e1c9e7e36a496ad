"""The calibration table: every scale and zero point of a quantized model, readable, editable, enough to rebuild it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import TableError
from int8cal.numerics.affine import S8, U8, Affine, QType

if TYPE_CHECKING:
    import numpy.typing as npt

LEFT_WITHOUT_RANGE = "left_without_range"  # settings of a converted table: node -> why it stays float
TYPES: dict[str, QType] = {"uint8": U8, "int8": S8}


@dataclass(frozen=True)
class TensorEntry:
    """One activation tensor.

    Attributes:
        scale, zero_point, dtype: The affine; low, high: the real values of its outermost codes.
        method: What chose the range ("kl", "mse", "user", ...).
        amax: Largest observed magnitude; observed: exact (min, max).
        clipped: Fraction of the observed values outside [low, high].
        source: "calibrated", "user", or "shared" (the range of its group's first tensor).
    """

    dtype: str
    scale: float
    zero_point: int
    low: float
    high: float
    method: str
    amax: float
    observed: tuple[float, float]
    clipped: float
    source: str

    @property
    def affine(self) -> Affine:
        """The entry's quantization."""
        return Affine(self.scale, self.zero_point, TYPES[self.dtype])

    def with_affine(self, affine: Affine) -> TensorEntry:
        """Return the entry with another scale and zero point, of the same type."""
        return replace(self, scale=affine.scale, zero_point=affine.zero_point, low=affine.low, high=affine.high)


@dataclass(frozen=True)
class WeightEntry:
    """One weight tensor.

    Attributes:
        axis: Output channels; None for one scale.
        range: "s8", "s7" or "paired".
        scales: Exact float32 values.
        node, input: The layer that reads the weight, and its data input; "" where a table does not say.
    """

    dtype: str
    axis: int | None
    range: str
    scales: tuple[float, ...]
    node: str = ""
    input: str = ""

    def require_shape(self, key: str, axis: int | None, count: int) -> None:
        """Refuse an entry that is for another weight.

        Args:
            key: The entry's key.
            axis, count: What the model expects.

        Raises:
            TableError: Its axis or its number of scales is another.
        """
        if self.axis != axis or len(self.scales) != count:
            raise TableError(
                f"weight {key!r} has {len(self.scales)} scales on axis {self.axis}, the model expects {count} on axis "
                f"{axis}",
                do="remove the entry to have it computed, or calibrate again",
                tensor=key,
            )

    def scales_for(self, codes: str) -> npt.NDArray[np.float64] | None:
        """Return the scales for a range of codes, (channels,).

        None where they are for another: the table's settings were edited, and scales of s8 would clip half of s7.
        """
        return np.array(self.scales, np.float32).astype(np.float64) if self.range == codes else None


@dataclass(frozen=True)
class StepResult:
    """What one step of a recipe gave.

    Attributes:
        name: The step.
        before_db, after_db: score on the holdout without and with it, in dB; before is None at the start, and
            both are where outputs have none (they are zero, or of another shape): infinities become None.
        kept: Whether it was kept; a step that does not help is taken back.
    """

    name: str
    before_db: float | None
    after_db: float | None
    kept: bool

    def __post_init__(self) -> None:
        for name in ("before_db", "after_db"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True, repr=False)
class CalibrationTable:
    """Everything that `quantize` needs besides the FP32 model.

    Attributes:
        model: {"sha256", "name"} of the FP32 file.
        data: {"fingerprint", "samples"}.
        settings: What the plan and the weights were made with, and the preprocessing.
        tensors, weights: Entries by tensor name; a weight read by two layers has one entry per layer, "weight@node".
        corrections: What a recipe changed: "equalization" {tensor: exponents}, "bias" {node: deltas},
            "rounding" {node: codes as text, see quantization.corrections.codes_text}.
        warnings: What the user should know, by tensor.
        run: Identity of the run that made it, see `int8cal.identity`; "" for tables of other tools and of before.
    """

    model: dict[str, str]
    data: dict[str, Any]
    settings: dict[str, Any]
    tensors: dict[str, TensorEntry]
    weights: dict[str, WeightEntry]
    corrections: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    run: str = ""

    def __repr__(self) -> str:
        name, samples = self.model.get("name"), self.data.get("samples")
        return f"CalibrationTable(model={name!r}, samples={samples}, tensors={len(self.tensors)})"

    def save(self, path: str | Path) -> None:
        """Write a .table.json, atomically; see calibration.table_file."""
        from int8cal.calibration.table_file import save_table

        save_table(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> CalibrationTable:
        """Read a .table.json, edits included.

        Raises:
            TableError: The file is missing or malformed.
        """
        from int8cal.calibration.table_file import load_table

        return load_table(Path(path))
