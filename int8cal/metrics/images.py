"""Images that a model makes: PSNR and SSIM against the right ones, by scikit-image; one figure a sample.

Truth: a .npy file for each sample, of the shape and in the unit of the model's output; or a .png file, whose pixels
0..255 stand for 0..1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import DataError
from int8cal.metrics.outputs import Outputs, first_float, needs
from int8cal.metrics.truth import truth_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from int8cal.numerics import Array, Float64

    Image = npt.NDArray[np.float64]


@needs("skimage")
def psnr(outputs: Outputs, labels: object, origins: list[str]) -> Float64:  # noqa: ARG001 - every metric gets labels
    """Peak signal to noise ratio in dB; outputs and origins as for `ssim`."""
    from skimage.metrics import peak_signal_noise_ratio

    return np.array(
        [peak_signal_noise_ratio(truth, image, data_range=peak) for truth, image, peak in _pairs(outputs, origins)]
    )


@needs("skimage")
def ssim(outputs: Outputs, labels: object, origins: list[str]) -> Float64:  # noqa: ARG001 - every metric gets labels
    """Structural similarity, at most 1.

    Args:
        outputs: The first of floats is the image, (C, H, W), (H, W, C) or (H, W).
        labels: Not used.
        origins: The samples; their truth lies beside them.
    """
    from skimage.metrics import structural_similarity

    return np.array(
        [
            structural_similarity(truth, image, data_range=peak, channel_axis=2 if truth.ndim == 3 else None)
            for truth, image, peak in _pairs(outputs, origins)
        ]
    )


def _pairs(outputs: Outputs, origins: list[str]) -> Iterator[tuple[Image, Image, float]]:
    """Give truth and image of each sample, (H, W, C) or (H, W), and how far apart values of the truth can be."""
    images = first_float(outputs)
    truths = [np.asarray(truth_of(origin, ".npy", ".png")) for origin in origins]
    pixels = truths[0].dtype == np.uint8
    peak = 1.0 if pixels else float(max(each.max() for each in truths) - min(each.min() for each in truths))
    for image, truth, origin in zip(images, truths, origins, strict=True):
        shown = _channels_last(np.asarray(image, np.float64))
        right = _channels_last(truth / 255.0 if pixels else truth.astype(np.float64))
        if shown.shape != right.shape:
            raise DataError(
                f"its truth has shape {truth.shape}, and the model's output {np.shape(image)}",
                where=origin,
                do="store the truth in the shape of the output",
            )
        yield right, shown, peak


def _channels_last(image: Array) -> Image:
    """Bring (C, H, W) to (H, W, C), and one channel alone to (H, W): channels are fewer than rows."""
    if image.ndim == 3 and image.shape[0] <= 4 < image.shape[2]:
        image = image.transpose(1, 2, 0)
    return image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
