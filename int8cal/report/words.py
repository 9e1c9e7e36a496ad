"""What the words of a report mean, for readers who know ONNX and not int8cal; the glossary of the docs has more."""

from __future__ import annotations

import re

WORDS = {
    "SQNR": (
        "signal power over the power of the difference between FP32 and int8, in dB: 20 dB are an error of a "
        "tenth of the signal, and every 6 dB halve it; of several outputs the worst one's"
    ),
    "Cosine similarity": (
        "cosine of the angle between the FP32 and the int8 outputs: 1 where they differ by a factor alone"
    ),
    "Agreement": ("share of samples for which both models have the same largest class score; no labels are needed"),
    "Top-1 drop": "percentage points of top-1 accuracy that int8 loses against the labels",
    "Largest error": "largest absolute difference of one output value, in the output's own unit",
    "Speedup": ("time of the FP32 model over that of the int8 model, both measured here, exclusive and interleaved"),
    "Size": "of the files: the float model's, as it was given, over the int8 model's",
    "Worst layer": ("the tensor inside the network with the lowest SQNR; errors of the layers before it are in it"),
    "On integers": (
        "nodes that the runtime computes with an integer kernel, of all that compute once it has merged some and added "
        "others"
    ),
    "Can saturate": (
        "output channels whose sums of products may overflow 16 bits on x86 CPUs without VNNI, an instruction for "
        "int8 products, so that results are wrong there"
    ),
    "95 % interval": "where the figure would lie for other samples of the same kind, 19 times of 20",
    "portable": "the default target: weights that are safe on every CPU, old and new x86 and ARM",
    "paired": (
        "weight codes whose products, two added at a time, never overflow on older x86 CPUs (without VNNI); most "
        "weights keep 8 bits"
    ),
    "s8": "weight codes of 8 bits, from -127 to 127",
    "s7": "weight codes of 7 bits, from -64 to 63, whose products never overflow on older x86 CPUs",
    "clipped": "share of a tensor's values that lay outside the range that its codes cover, and become its ends",
    "scale": (
        "step between two neighbouring int8 codes, in the tensor's own unit: real = scale × (code - zero point)"  # noqa: RUF001 (a product)
    ),
    "gate": "condition on a figure of the report; one that does not hold ends the job with exit code 7",
    "recipe": "list of steps that are tried to make the int8 model more accurate: fast, balanced or accurate",
    "validation samples": (
        "calibration samples that were set aside and that nothing is fitted on: a step is kept where it is surely "
        "better on them"
    ),
    "noise": "power of the errors that int8 adds, as seen at the outputs",
    "residual codes": ("second 8-bit codes for what the first ones leave of an input for which eight bits are too few"),
    "channels rescaled": (
        "channels of very different size are brought to one size, and the next layer takes the factors back: "
        "equalization"
    ),
    "ranges by": (
        "a range is what a tensor's codes reach from and to: by max all values that were seen; by auto what leaves the "
        "tensor the least error; by output error what leaves the model's outputs the least; with room as much more as "
        "few samples leave uncertain"
    ),
    "ranges at run time": "a layer's input gets its range while the model runs, from the values at hand",
    "second-order rounding": (
        "weights are rounded up or down so that a layer's output changes least on samples, in place of each to "
        "the nearest code"
    ),
    "copies of channels": (
        "a channel of large values is divided, and the layer reads it as often as it was divided: its range no longer "
        "sets the scale of all channels"
    ),
    "bias correction": "biases are changed by the mean error that rounded weights make",
    "float between layers": "nodes without weights compute in float, so that their results are not rounded to codes",
    "between float nodes": "of layers with float nodes on both sides, so that in float they need no conversions",
}


def words_explained(*texts: str) -> list[tuple[str, str]]:
    """Return the words of some texts that need one, each with what it means."""
    return [(word, means) for word, means in WORDS.items() if re.search(rf"\b{word}\b", " ".join(texts))]
