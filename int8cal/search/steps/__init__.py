"""The steps by the names that recipes call them; one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.search.steps import (
    bias,
    equalization,
    measured_equalization,
    output_error,
    recurrent,
    second_order,
    widest_ranges,
)

if TYPE_CHECKING:
    from int8cal.search.search import Step

STEPS: dict[str, Step] = {
    "widest ranges": widest_ranges.propose,
    "equalization": equalization.propose,
    "measured equalization": measured_equalization.propose,
    "recurrent": recurrent.propose,
    "output error": output_error.propose,
    "second-order rounding": second_order.propose,
    "bias": bias.propose,
}
