"""The corrections that a table may hold, one file each; a new one is added to this list, in the order of building."""

from int8cal.quantization.corrections.channel_copies import ChannelCopies
from int8cal.quantization.corrections.correction import Correction
from int8cal.quantization.corrections.equalization import Equalization
from int8cal.quantization.corrections.integers import Bias, Rounding
from int8cal.quantization.corrections.residual_codes import FineChannels, ResidualCodes
from int8cal.quantization.corrections.uint8_input import Uint8Input

__all__ = [
    "CORRECTIONS",
    "Bias",
    "ChannelCopies",
    "Correction",
    "Equalization",
    "FineChannels",
    "ResidualCodes",
    "Rounding",
    "Uint8Input",
]

# Raw pixels first: the rest is applied to the model that they are folded into.
CORRECTIONS: tuple[type[Correction], ...] = (
    Uint8Input,
    Equalization,
    Bias,
    Rounding,
    ResidualCodes,
    ChannelCopies,
    FineChannels,
)
