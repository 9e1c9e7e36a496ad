"""Image files: decoding with Pillow, then the declared preprocessing in its documented order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from int8cal.data.fit import Header, count_rows
from int8cal.data.sample import unreadable
from int8cal.errors import DataError
from int8cal.progress import READING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image

    from int8cal.data.image_plan import ImagePlan
    from int8cal.data.sample import Array, Feed

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")


@dataclass(frozen=True)
class ImagePart:
    """One image file.

    Attributes:
        path: The file.
        name: The file as the user would write it.
        plan: What to do with its pixels.
        rows: An image is one sample.
        labels: Images carry none themselves.
    """

    path: Path
    name: str
    plan: ImagePlan
    rows: int = 1
    labels: None = None

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Decode the image and give its feed, once per entry of `rows`."""
        pixels = _pixels(_sized(decode(self.path, self.name), self.plan, self.name), self.plan)
        feed = {self.plan.spec.name: pixels}
        try:
            count_rows({self.plan.spec.name: Header(pixels.dtype, pixels.shape)}, self.plan.signature, self.name)
        except DataError as error:
            raise DataError(error.what, where=self.name, do=self.plan.size_advice(), **error.fields) from error
        for _ in rows:
            yield feed


def decode(path: Path, name: str) -> Image:
    """Decode a file to 8-bit RGB or greyscale pixels, upright.

    Args:
        path: JPEG, PNG, BMP or WebP; the first frame of an animation. The content counts, not the extension.
        name: The file as the user would write it.

    Returns:
        Image of mode "RGB" or "L": the EXIF orientation is applied, palettes and CMYK become RGB, alpha is dropped,
        16-bit greyscale is divided by 257.

    Raises:
        DataError: Not an image, or a damaged one.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    reading = READING.set(name)
    try:
        with Image.open(path, formats=_FORMATS) as file:
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
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, Image.DecompressionBombError) as error:
        raise unreadable(name, str(error)) from error
    finally:
        READING.reset(reading)


def _sized(image: Image, plan: ImagePlan, name: str) -> Image:
    from PIL.Image import Resampling

    resize, crop = plan.preprocess.resize, plan.preprocess.crop
    if resize is not None:
        if isinstance(resize, int):
            width, height = image.size
            # the longer side is cut to whole pixels, as torchvision does
            size = (resize, resize * height // width) if width <= height else (resize * width // height, resize)
        else:
            size = (resize[1], resize[0])
        if size != image.size:
            image = image.resize(size, Resampling.BILINEAR)
    if crop is not None:
        width, height = image.size
        crop_height, crop_width = (crop, crop) if isinstance(crop, int) else crop
        if crop_width > width or crop_height > height:
            raise DataError(
                f"image is {height} x {width} (height x width), smaller than crop {crop_height} x {crop_width}",
                where=name,
                do="set resize under data.preprocess to the crop's size or more",
            )
        left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
        image = image.crop((left, top, left + crop_width, top + crop_height))
    return image


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
