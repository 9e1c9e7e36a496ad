"""What a model's outputs are: groups of channels of one meaning, found from the graph and the FP32 model's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What the values of a group are, by which it is known what a decision on them is.
Kind = Literal[
    "class scores",  # one row a sample, or one row a position: the largest decides
    "probabilities",  # each on its own between 0 and 1: a threshold decides
    "boxes",  # four coordinates an object
    "embedding",  # a row that is compared with other samples' rows by its direction
    "token logits",  # a row of a vocabulary a position
    "waveform",  # one long row of samples
    "image",  # planes of pixels
    "values",  # anything else
]


@dataclass(frozen=True)
class OutputGroup:
    """Channels of one output that mean the same kind of thing.

    Attributes:
        output: Name of the graph output in the FP32 model.
        kind: What its values are.
        axis: The channel axis in one sample's array, the batch axis included; None where it has none.
        first, end: Its channels along `axis`; 0 and 0 where `axis` is None.
        source: Tensor that the channels come from (an operand of a Concat), for people; "" for all of the output.
    """

    output: str
    kind: Kind
    axis: int | None = None
    first: int = 0
    end: int = 0
    source: str = ""
