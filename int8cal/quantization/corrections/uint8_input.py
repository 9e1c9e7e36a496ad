"""Raw pixels as the model's input: the int8 model takes uint8, what a pixel stands for is in its first layers.

The int8 model's input holds codes p, and x' = (p - zero_point) * scale stands for them; x = gain * p + offset per
channel is what the FP32 model gets. gain goes into the weights, offset into the biases (`corrections.uint8_fold`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from int8cal.calibration.ranges import TensorEntry
from int8cal.data.pixels import UINT8_INPUT_KEY, Pixels, pixels_of
from int8cal.errors import ConfigError, DataError, ModelError, TableError, UsageError
from int8cal.graph.index import Index
from int8cal.quantization.corrections.correction import Correction, ReadChannels
from int8cal.quantization.corrections.integers import Rounding
from int8cal.quantization.corrections.pixel_layers import constant_channel, find_pixel_layers, refused
from int8cal.quantization.corrections.uint8_fold import fold_pixels, with_pixel_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.job import QuantizationSettings
    from int8cal.numerics.affine import Affine
    from int8cal.preprocess import Preprocess
    from int8cal.quantization.corrections.correction import Draft
    from int8cal.quantization.corrections.pixel_layers import PixelReaders
    from int8cal.quantization.corrections.uint8_fold import Folded
    from int8cal.quantization.table import CalibrationTable

_PLACE = "corrections.uint8_input"


@dataclass(frozen=True)
class Uint8Input(Correction):
    """How an int8 model takes raw pixels.

    Attributes:
        pixels: What the FP32 model's input is in pixels.
        ones: Code of a channel of constant value that is put behind the image's, so that zero padding keeps its meaning
            where the mean pixel is not the zero point; None for no such channel.
        folded: The nodes of a normalization inside the graph, which disappear.
    """

    key = "uint8_input"

    pixels: Pixels
    ones: int | None
    folded: tuple[str, ...] = ()

    @classmethod
    def read(cls, content: Any, where: str) -> Self:
        """Read an object, see `Correction.read`."""
        del where  # the record is the same in every table: its place says enough
        try:
            pixels = Pixels.from_dict(content)
        except ValueError as error:
            raise TableError(str(error), where=_PLACE, do="calibrate again") from error
        ones = content.get("ones")
        if ones is not None and (not isinstance(ones, int) or isinstance(ones, bool) or not 0 <= ones <= 255):
            raise TableError(f'has "ones" {ones!r}, expected null or a code 0..255', where=_PLACE, do="calibrate again")
        return cls(pixels, ones, tuple(content.get("folded", ())))

    def to_json(self) -> dict[str, Any]:
        """Return an object, see `Correction.to_json`."""
        return {**self.pixels.to_dict(), "ones": self.ones, "folded": list(self.folded)}

    @property
    def summary(self) -> str:
        """Where pixels go in."""
        return f"raw pixels at {self.pixels.input}"

    def readers(self, model: onnx.ModelProto, plan: Plan) -> PixelReaders:
        """Find what reads the pixels.

        Args:
            model: The prepared FP32 model.
            plan: Its plan.

        Raises:
            TableError: The record does not fit the model.
        """
        if self.pixels.input not in Index(model).inputs:
            what = f"names {self.pixels.input!r}, which is not an input"
            raise TableError(what, where=_PLACE, do="calibrate again")
        try:
            return find_pixel_layers(model, plan, self.pixels, "")
        except ModelError as error:
            raise TableError(error.what, where=_PLACE, do="calibrate again") from error

    def apply(self, draft: Draft) -> Draft:
        """Fold what a pixel stands for into the float model, see `Correction.apply`."""
        table = draft.table
        readers = self.readers(draft.model, draft.plan)
        folded, affine = self._folded(draft, readers)
        rescaling_plan = folded.plan
        if draft.rescaling_plan is not draft.plan:
            # the table has no entries for tensors of layers that were left in float since
            rescaling_plan = fold_pixels(draft.model, draft.rescaling_plan, readers, affine, self.ones).plan
        entries = draft.entries
        if any(table.tensors[name].source == "user" for name in (*readers.tensors, *folded.wide)):
            # these weights follow an edited scale of the pixels, so the table's scales and codes for them no longer fit
            nodes = {item.layer.node for item in readers.layers}
            entries = {node: entry for node, entry in entries.items() if node not in nodes}
            table = table.corrected(Rounding.of(table).without(nodes))
        inputs = {layer.node: layer.input for layer in folded.plan.layers}
        read = {}
        for item in readers.layers:
            tensor, rest = inputs[item.layer.node], item.residual(affine.zero_point)
            value = None
            if tensor in folded.wide and self.ones is not None:
                value = affine.scale * (self.ones - affine.zero_point)
            read[tensor] = ReadChannels(item.layer.input, affine.scale / item.gain, rest, value)
        return replace(
            draft,
            index=Index(folded.model),
            plan=folded.plan,
            rescaling_plan=rescaling_plan,
            table=table,
            entries=entries,
            pixels=dict.fromkeys(readers.tensors) | dict.fromkeys(folded.wide, self.ones),
            read=read,
            metadata={**draft.metadata, UINT8_INPUT_KEY: json.dumps(self.pixels.to_dict())},
        )

    def _folded(self, draft: Draft, readers: PixelReaders) -> tuple[Folded, Affine]:
        """Fold with the input's entry, or with one that was edited of a tensor that only the folded model has."""
        affine = draft.table.affines(with_pixel_tensors(draft.plan, readers))[self.pixels.input]
        folded = fold_pixels(draft.model, draft.plan, readers, affine, self.ones)
        edited = draft.table.affines(folded.plan)[self.pixels.input]
        if edited != affine:
            folded = fold_pixels(draft.model, draft.plan, readers, edited, self.ones)
        return folded, edited


def plan_uint8_input(
    prepared: Prepared, plan: Plan, preprocess: Preprocess | None, settings: QuantizationSettings
) -> Uint8Input | None:
    """Settle how the model will take raw pixels, before any data is read; None where it will take floats.

    Args:
        prepared: The FP32 model.
        plan: Its plan.
        preprocess: How images become its input; None for pixel values as they are.
        settings: Whether raw pixels are wanted; the activation type and the user's ranges, which may contradict.

    Raises:
        UsageError, ConfigError: Settings that contradict.
        ModelError: The model has no image input, or something but a layer with constant weights reads it; names the
            node.
    """
    if not settings.uint8_input:
        return None
    if settings.activations not in ("u8", "auto"):
        raise UsageError(
            f"uint8_input needs activations u8, not {settings.activations}: onnxruntime has no convolution that mixes "
            "both",
            do="give one of them up",
        )
    pixels = pixels_of(prepared.signature, preprocess, prepared.where)
    readers = find_pixel_layers(prepared.model, plan, pixels, prepared.where)
    fixed = next((name for name in readers.tensors if name in settings.ranges), None)
    if fixed is not None:
        raise ConfigError(
            f"quantization.ranges gives a range for {fixed!r}, but uint8_input fixes it: the codes are the pixels",
            do="remove one of them",
        )
    affine = readers.affine
    for item in readers.layers:
        if item.layer.bias is None and item.layer.op_type == "MatMul" and item.residual(affine.zero_point).any():
            raise refused(f"MatMul {item.layer.node!r} has no bias that could take the mean", prepared.where)
    return Uint8Input(pixels, constant_channel(prepared.model, readers), readers.folded)


def with_raw_pixels(
    table: CalibrationTable,
    uint8: Uint8Input | None,
    model: onnx.ModelProto,
    plan: Plan,
    tensors: Mapping[str, TensorStatistics],
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Enter raw pixels into a table: the tensors that hold them have one right range, and no search changes it.

    Args:
        table: Without entries.
        uint8: How the model takes pixels; None where it takes floats, then the table stays as it is.
        model: The prepared FP32 model.
        plan: Its plan.
        tensors: Its statistics.

    Returns:
        The table, and how pixels are taken, in lines.

    Raises:
        DataError: Values were observed that no pixel stands for.
    """
    if uint8 is None:
        return table, ()
    readers = uint8.readers(model, plan)
    affine, name = readers.affine, uint8.pixels.input
    low, high = _observed(readers, tensors)
    if low < -0.5 or high > 255.5:
        raise DataError(
            f"input {name!r} held values that stand for pixels {low:.4g} to {high:.4g}, not 0 to 255",
            do="declare how pixels became these values (--scale, --mean, --std; data.preprocess in a YAML), or leave "
            "--uint8-input out",
        )
    low, high = (affine.scale * (float(np.rint(end)) - affine.zero_point) for end in (low, high))
    amax = max(abs(low), abs(high))
    entry = TensorEntry.of(affine, "pixels", amax=amax, observed=(low, high), clipped=0.0, source="calibrated")
    folded = fold_pixels(model, plan, readers, affine, uint8.ones)
    held = {*readers.tensors, *folded.wide}
    names = [each.tensor for each in folded.plan.tensors if each.tensor in held]
    entries = {each: entry if each == name else replace(entry, source="shared") for each in names}
    return replace(table.corrected(uint8), tensors=entries), (describe(uint8, readers),)


def describe(uint8: Uint8Input, readers: PixelReaders) -> str:
    """Tell in one line what was decided, with what padding stands for."""
    names = ", ".join(item.layer.node for item in readers.layers)
    what = ", ".join(("scale, mean and std", *uint8.folded))
    line = f"raw pixels at {uint8.pixels.input}: {what} folded into {names}"
    convolutions = [item for item in readers.layers if item.layer.op_type == "Conv"]
    if not convolutions:
        return line
    line += "; "
    rest = max(float(np.abs(item.residual(readers.affine.zero_point)).max()) for item in convolutions)
    if uint8.ones is not None and all(item.can_be_widened for item in convolutions):
        return line + f"padding stays 0 through a channel of constant value (without it, up to {rest:.3g})"
    if rest == 0:
        return line + "padding stays 0"
    return line + f"zero padding now stands for values of up to {rest:.3g} in place of 0"


def _observed(readers: PixelReaders, tensors: Mapping[str, TensorStatistics]) -> tuple[float, float]:
    """Return the smallest and the largest pixel."""
    for item in readers.layers:
        seen = tensors[item.layer.input].channels
        if seen is not None and seen.count:
            ends = (np.stack([seen.low, seen.high]) - item.offset) / item.gain
            return float(ends.min()), float(ends.max())
    return 0.0, 255.0  # nothing was counted by channel; every sample was checked when it was read
