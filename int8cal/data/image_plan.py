"""What the model's input and the declared preprocessing say about an image, settled before any file is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from int8cal.data.fit import only_input, shape_text
from int8cal.errors import ConfigError, DataError
from int8cal.job import Preprocess

if TYPE_CHECKING:
    from int8cal.graph.signature import Dim, Signature, TensorSpec

_WHERE = "data.preprocess"


@dataclass(frozen=True)
class ImagePlan:
    """How every image of a source becomes a feed.

    Attributes:
        signature: Its one input takes the pixels.
        preprocess: As declared, or its defaults (pixel values 0..255 as they are).
        color: Order of the channels.
        layout: Where the channels are; None for an input without a channel axis (GRAY).
    """

    signature: Signature
    preprocess: Preprocess
    color: Literal["RGB", "BGR", "GRAY"]
    layout: Literal["NCHW", "NHWC"] | None

    @property
    def spec(self) -> TensorSpec:
        """The model's input."""
        return self.signature.inputs[0]

    @property
    def size(self) -> tuple[Dim, Dim]:
        """Height and width the model expects; None or a name where any will do."""
        shape = self.spec.shape
        if shape is None:
            return (None, None)
        return (shape[2], shape[3]) if self.layout == "NCHW" else (shape[1], shape[2])

    def size_advice(self) -> str:
        """Tell what to add to the preprocessing so that images get the model's size."""
        height, width = self.size
        if isinstance(height, int) and height == width:
            return f"add resize: {height} and crop: {height} under data.preprocess"
        if isinstance(height, int) and isinstance(width, int):
            return f"add resize: [{height}, {width}] under data.preprocess"
        return "add resize or crop under data.preprocess"


def plan_images(signature: Signature, preprocess: Preprocess | None, where: str) -> ImagePlan:
    """Settle colour and layout, and check what can be checked without an image.

    Args:
        signature: The model's inputs.
        preprocess: As declared; None for pixel values as they are.
        where: The source, for messages.

    Raises:
        DataError: The model does not take one image, or colour or layout cannot be told from its input shape.
        ConfigError: Preprocessing that contradicts itself or the model's input.
    """
    only_input(signature, where, "an image")
    spec = signature.inputs[0]
    chosen = preprocess if preprocess is not None else Preprocess()
    layout = _layout(spec, chosen, where)
    channels = None
    if spec.shape is not None and layout is not None:
        channels = spec.shape[1 if layout == "NCHW" else 3]
    color = _color(channels, layout, spec, chosen, where)
    _check_values(chosen, 1 if color == "GRAY" else 3, spec)
    plan = ImagePlan(signature, chosen, color, layout)
    final = chosen.crop if chosen.crop is not None else chosen.resize
    if final is not None and not (isinstance(final, int) and chosen.crop is None):
        pair = (final, final) if isinstance(final, int) else tuple(final)
        if any(isinstance(dim, int) and dim != side for dim, side in zip(plan.size, pair, strict=True)):
            raise ConfigError(
                f'gives images of {pair[0]} x {pair[1]}, input "{spec.name}" expects {shape_text(spec)}',
                where=_WHERE,
                do=plan.size_advice().replace("add", "set", 1),
            )
    return plan


def _layout(spec: TensorSpec, chosen: Preprocess, where: str) -> Literal["NCHW", "NHWC"] | None:
    if spec.shape is None:
        if chosen.layout is None or chosen.color is None:
            raise DataError(
                f'input "{spec.name}" states no shape', where=where, do="set layout and color under data.preprocess"
            )
        return chosen.layout
    if len(spec.shape) == 3:
        # (3, H, W) would read as three grey images, which nobody with colour images means
        if spec.shape[0] in (None, 1) or isinstance(spec.shape[0], str) or chosen.color == "GRAY":
            return None
        raise DataError(
            f'input "{spec.name}" expects {shape_text(spec)}, which leaves open what is a channel',
            where=where,
            do="use .npy files, or set color: GRAY under data.preprocess if axis 0 counts grey images",
        )
    if len(spec.shape) != 4:
        raise DataError(f'input "{spec.name}" expects {shape_text(spec)}, no image', where=where, do="use .npy files")
    if chosen.layout is not None:
        return chosen.layout
    first, last = spec.shape[1] in (1, 3), spec.shape[3] in (1, 3)
    if first == last:
        raise DataError(
            f'input "{spec.name}" expects {shape_text(spec)}, which leaves open where the channels are',
            where=where,
            do="set layout: NCHW or NHWC under data.preprocess",
        )
    return "NCHW" if first else "NHWC"


def _color(
    channels: Dim, layout: str | None, spec: TensorSpec, chosen: Preprocess, where: str
) -> Literal["RGB", "BGR", "GRAY"]:
    wanted: Dim = 1 if layout is None else channels
    if isinstance(wanted, int) and wanted not in (1, 3):
        raise DataError(
            f'input "{spec.name}" expects {shape_text(spec)}, {wanted} channels in {layout}; images give 1 or 3',
            where=where,
            do="correct layout under data.preprocess, or use .npy files",
        )
    if chosen.color is None:
        if not isinstance(wanted, int):
            raise DataError(
                f'input "{spec.name}" expects {shape_text(spec)}, which leaves the number of channels open',
                where=where,
                do="set color: RGB, BGR or GRAY under data.preprocess",
            )
        return "GRAY" if wanted == 1 else "RGB"
    if isinstance(wanted, int) and (chosen.color == "GRAY") != (wanted == 1):
        raise ConfigError(
            f'color {chosen.color} does not give the {wanted} channel(s) of input "{spec.name}" {shape_text(spec)}',
            where=_WHERE,
            do=f"set color: {'GRAY' if wanted == 1 else 'RGB or BGR'}",
        )
    return chosen.color


def _check_values(chosen: Preprocess, channels: int, spec: TensorSpec) -> None:
    for key, size in (("resize", chosen.resize), ("crop", chosen.crop)):
        sides = (size,) if isinstance(size, int) else (size or ())
        if size is not None and (len(sides) > 2 or not sides or min(sides) < 1):
            raise ConfigError(f"{key} is {size}", where=_WHERE, do="give one size or [height, width], in pixels")
    for key, values in (("mean", chosen.mean), ("std", chosen.std), ("scale", (chosen.scale,))):
        if key != "scale" and len(values) not in (0, 1, channels):
            raise ConfigError(
                f"{key} has {len(values)} values, images have {channels} channel(s)", where=_WHERE, do="give one each"
            )
        if not all(math.isfinite(value) for value in values) or (key != "mean" and 0.0 in values):
            raise ConfigError(f"{key} is {values}", where=_WHERE, do="give finite numbers, and no 0 for std or scale")
    changed = chosen.scale != 1.0 or chosen.mean or chosen.std
    if spec.dtype.kind in "iu" and spec.dtype != np.int8:
        if changed:
            raise ConfigError(
                f'input "{spec.name}" takes {spec.dtype.name} pixels', where=_WHERE, do="remove scale, mean and std"
            )
    elif spec.dtype.kind != "f":
        raise DataError(
            f'input "{spec.name}" takes {spec.dtype.name}, no pixels', where="images", do="use .npy or .npz files"
        )
