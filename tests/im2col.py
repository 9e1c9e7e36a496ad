"""Convolutions by their definition: patches of an image, and where a transposed convolution's products land."""

from __future__ import annotations

import numpy as np


def patches(x, window, fill=0, group=1):
    """What each output reads: (group, images * positions, taps * channels of a group), the channel fastest."""
    rank = len(window.kernel)
    axes = tuple(range(2, 2 + rank))
    widths = [(0, 0), (0, 0), *zip(window.pads[:rank], window.pads[rank:], strict=True)]
    padded = np.pad(x, widths, constant_values=x.dtype.type(fill))
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilations, window.kernel, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
    steps = [slice(None, None, step) for step in (*window.strides, *window.dilations)]
    cut = views[(slice(None), slice(None), *steps)]
    split = cut.reshape(len(x), group, x.shape[1] // group, -1, int(np.prod(window.kernel)))
    return split.transpose(1, 0, 3, 4, 2).reshape(group, -1, split.shape[2] * split.shape[4])


def transposed_sizes(sizes, window, added):
    """Spatial sizes of a transposed convolution's output."""
    rank = len(sizes)
    return tuple(
        window.strides[i] * (sizes[i] - 1) + window.dilations[i] * (window.kernel[i] - 1) + 1
        - window.pads[i] - window.pads[i + rank] + added[i]
        for i in range(rank)
    )  # fmt: skip


def landings(sizes, window, outputs):
    """Yield each input position, the number of a tap, and the output on which their product lands."""
    for at in np.ndindex(*sizes):
        for number, tap in enumerate(np.ndindex(*window.kernel)):
            place = tuple(
                i * s + t * d - p
                for i, s, t, d, p in zip(at, window.strides, tap, window.dilations, window.pads, strict=False)
            )
            if all(0 <= i < size for i, size in zip(place, outputs, strict=True)):
                yield at, number, place
