"""Image files: what the model's input and the preprocessing say of an image, before any file is read; then its pixels.

Decoding is Pillow's; the preprocessing follows in its documented order.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

import numpy as np

from int8cal.data.fit import Header, count_rows, only_input, shape_text
from int8cal.data.remote import content
from int8cal.data.sample import unreadable
from int8cal.errors import ConfigError, DataError
from int8cal.preprocess import Preprocess
from int8cal.progress import READING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Dim, Signature, TensorSpec
    from int8cal.numerics import Array

_WHERE = "data.preprocess"
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
# More pixels, with more for each byte of the file, are a claim that takes memory and shows nothing: PNG packs at most
# 8256 into a byte.
_MANY_PIXELS, _PIXELS_PER_BYTE = 1 << 24, 10_000


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
            if self.preprocess.letterbox is not None:
                return f"give --resize {height} (data.preprocess.resize in a YAML)"
            detectors = f"for most detectors --resize {height} --letterbox 114"
            return f"give --resize {height} --crop {height}, {detectors} (data.preprocess in a YAML)"
        if isinstance(height, int) and isinstance(width, int):
            return f"give --resize {height}x{width} (data.preprocess in a YAML)"
        return "give --resize or --crop (data.preprocess in a YAML)"


def plan_images(signature: Signature, preprocess: Preprocess | None, where: str) -> ImagePlan:
    """Settle colour and layout, and check what can be checked without an image.

    Args:
        preprocess: As declared; None for pixel values as they are.

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
    if chosen.letterbox is not None and (chosen.resize is None or chosen.crop is not None):
        raise ConfigError(
            "letterbox fits images into the size of resize, and leaves nothing to crop",
            where=_WHERE,
            do="give resize (--resize) with it, and no crop (--crop)",
        )
    final = chosen.crop if chosen.crop is not None else chosen.resize
    if final is not None and not (isinstance(final, int) and chosen.crop is None and chosen.letterbox is None):
        pair = (final, final) if isinstance(final, int) else tuple(final)
        if any(isinstance(dim, int) and dim != side for dim, side in zip(plan.size, pair, strict=True)):
            raise ConfigError(
                f'gives images of {pair[0]} x {pair[1]}, input "{spec.name}" expects {shape_text(spec)}',
                where=_WHERE,
                do=plan.size_advice(),
            )
    return plan


def _layout(spec: TensorSpec, chosen: Preprocess, where: str) -> Literal["NCHW", "NHWC"] | None:
    if spec.shape is None:
        if chosen.layout is None or chosen.color is None:
            raise DataError(
                f'input "{spec.name}" states no shape',
                where=where,
                do="give --layout and --color (data.preprocess in a YAML)",
            )
        return chosen.layout
    if len(spec.shape) == 3:
        # (3, H, W) would read as three grey images, which nobody with colour images means
        if spec.shape[0] in (None, 1) or isinstance(spec.shape[0], str) or chosen.color == "GRAY":
            return None
        raise DataError(
            f'input "{spec.name}" expects {shape_text(spec)}, which leaves open what is a channel',
            where=where,
            do="use .npy files, or give --color GRAY (data.preprocess in a YAML) if axis 0 counts grey images",
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
            do="give --layout NCHW or NHWC (data.preprocess in a YAML)",
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
            do="correct --layout (data.preprocess in a YAML), or use .npy files",
        )
    if chosen.color is None:
        if not isinstance(wanted, int):
            raise DataError(
                f'input "{spec.name}" expects {shape_text(spec)}, which leaves the number of channels open',
                where=where,
                do="give --color RGB, BGR or GRAY (data.preprocess in a YAML)",
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
    for key, values in (("mean", chosen.mean), ("std", chosen.std)):
        if len(values) not in (0, 1, channels):
            raise ConfigError(
                f"{key} has {len(values)} values, images have {channels} channel(s)", where=_WHERE, do="give one each"
            )
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


@dataclass(frozen=True)
class ImagePart:
    """One image file.

    Attributes:
        path: The file, as the user would write it.
        plan: What to do with its pixels.
        rows: An image is one sample.
        labels: Images carry none themselves.
    """

    path: Path
    plan: ImagePlan
    rows: int = 1
    labels: None = None

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path.as_posix()

    def where(self, _row: int) -> str:
        """Name its one sample."""
        return self.name

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Decode the image and give its feed, once per entry of `rows`."""
        feed = feed_of(self.path, self.plan, self.name)
        for _ in rows:
            yield feed


def feed_of(source: Path | IO[bytes], plan: ImagePlan, name: str) -> Feed:
    """Decode an image, and make the feed of it.

    Args:
        source: See `decode`.
        plan: What to do with its pixels.
        name: For messages.

    Raises:
        DataError: It is no image, or does not get the model's shape.
    """
    pixels = _pixels(_sized(decode(source, name), plan, name), plan)
    try:
        count_rows({plan.spec.name: Header(pixels.dtype, pixels.shape)}, plan.signature, name)
    except DataError as error:
        raise DataError(error.what, where=name, do=plan.size_advice(), **error.fields) from error
    return {plan.spec.name: pixels}


def decode(source: Path | IO[bytes], name: str) -> Image:
    """Decode an image to 8-bit RGB or greyscale pixels, upright.

    Args:
        source: JPEG, PNG, BMP or WebP; the first frame of an animation. The content counts, not the extension.
        name: For messages.

    Returns:
        Image of mode "RGB" or "L": the EXIF orientation is applied, palettes and CMYK become RGB, alpha is dropped,
        16-bit greyscale is divided by 257.

    Raises:
        DataError: Not an image, or a damaged one.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    reading = READING.set(name)
    try:
        with Image.open(content(source), formats=_FORMATS) as file:
            _require_content(file, name)
            file.load()
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I"):
                # PNG is the only format here with such pixels, and stores 16 bits; convert("L") would clip them at 255
                deep = np.asarray(image).astype(np.float64)
                return Image.fromarray(np.rint(deep / 257.0).astype(np.uint8))
            if image.mode in ("1", "L", "LA", "La"):
                return image.convert("L")
            if image.mode == "P" and "transparency" in image.info:
                image = image.convert("RGBA")
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise unreadable(name, "it is not a JPEG, PNG, BMP or WebP image") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        raise unreadable(name, f"it has more than {most:.0f} million pixels, the most that Pillow decodes") from error
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, struct.error) as error:
        raise unreadable(name, str(error)) from error
    finally:
        READING.reset(reading)


def _require_content(file: ImageFile, name: str) -> None:
    """Refuse an image that claims pixels which its file cannot hold."""
    width, height = file.size
    if width * height <= _MANY_PIXELS or file.fp is None:
        return
    at = file.fp.tell()
    size = file.fp.seek(0, io.SEEK_END)
    file.fp.seek(at)
    if width * height > size * _PIXELS_PER_BYTE:
        raise unreadable(name, f"it claims {width} x {height} pixels, and has {size} bytes")


def _sized(image: Image, plan: ImagePlan, name: str) -> Image:
    from PIL.Image import MAX_IMAGE_PIXELS, Resampling

    resize, crop, grey = plan.preprocess.resize, plan.preprocess.crop, plan.preprocess.letterbox
    if resize is not None:
        if grey is not None:
            size = _fitted(image.size, resize)
        elif isinstance(resize, int):
            width, height = image.size
            # the longer side is cut to whole pixels, as torchvision does
            size = (resize, resize * height // width) if width <= height else (resize * width // height, resize)
        else:
            size = (resize[1], resize[0])
        most = 2 * (MAX_IMAGE_PIXELS or 0)  # that Pillow decodes
        if most and size[0] * size[1] > most:
            raise DataError(
                f"image is {image.height} x {image.width} (height x width), and resized {size[1]} x {size[0]}, "
                f"more than {most / 1e6:.0f} million pixels",
                where=name,
                do="give a smaller --resize (data.preprocess in a YAML), or leave such images out",
            )
        if size != image.size:
            image = image.resize(size, Resampling.BILINEAR)
        if grey is not None:
            image = _letterboxed(image, resize, grey)
    if crop is not None:
        width, height = image.size
        crop_height, crop_width = (crop, crop) if isinstance(crop, int) else crop
        if crop_width > width or crop_height > height:
            raise DataError(
                f"image is {height} x {width} (height x width), smaller than crop {crop_height} x {crop_width}",
                where=name,
                do="give --resize with the crop's size or more (data.preprocess in a YAML)",
            )
        left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
        image = image.crop((left, top, left + crop_width, top + crop_height))
    return image


def _fitted(size: tuple[int, int], box: int | tuple[int, int]) -> tuple[int, int]:
    """Return width and height of the largest image of this aspect inside a box, as Ultralytics rounds them.

    Args:
        size: (width, height) of the image.
        box: Side of a square, or (height, width).
    """
    height, width = (box, box) if isinstance(box, int) else box
    ratio = min(height / size[1], width / size[0])
    return max(round(size[0] * ratio), 1), max(round(size[1] * ratio), 1)


def _letterboxed(image: Image, box: int | tuple[int, int], grey: int) -> Image:
    """Put an image into the middle of a grey box; an odd pixel that is left over goes to the right and the bottom."""
    from PIL import Image as Images

    height, width = (box, box) if isinstance(box, int) else box
    whole = Images.new(image.mode, (width, height), grey if image.mode == "L" else (grey,) * 3)
    whole.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return whole


def _pixels(image: Image, plan: ImagePlan) -> Array:
    """Colour, layout, scale, mean and std; the batch axis comes last."""
    mode: Literal["L", "RGB"] = "L" if plan.color == "GRAY" else "RGB"
    values: Array = np.asarray(image if image.mode == mode else image.convert(mode))
    if plan.color == "BGR":
        values = values[..., ::-1]
    if plan.color == "GRAY" and plan.layout is not None:
        values = values[..., np.newaxis]
    if plan.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    if plan.spec.dtype.kind == "f":
        values = values.astype(np.float32)
        shape = (-1, 1, 1) if plan.layout == "NCHW" else (-1,)
        if plan.preprocess.scale != 1.0:
            values *= np.float32(plan.preprocess.scale)
        if plan.preprocess.mean:
            values -= np.asarray(plan.preprocess.mean, dtype=np.float32).reshape(shape)
        if plan.preprocess.std:
            values /= np.asarray(plan.preprocess.std, dtype=np.float32).reshape(shape)
    return np.ascontiguousarray(values.astype(plan.spec.dtype)[np.newaxis])
