"""Makes models in which some layers stay float and the inputs of others come in two planes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.graph.prepared import require_layers
from int8cal.quantization.build import build_model, with_weights
from int8cal.quantization.corrections.residual_codes import with_residual_codes
from int8cal.quantization.left_out import left_of, without_noise_of

if TYPE_CHECKING:
    from int8cal.graph.prepared import Prepared
    from int8cal.graph.select import Selection
    from int8cal.search.goals.mixed import PrecisionMix
    from int8cal.search.search import Result

REASON = "in float so that the gates hold"


@dataclass(frozen=True)
class MixBuilder:
    """Builds models from one calibrated table.

    Args:
        prepared: The prepared model.
        allowed: What the user allows.
        whole: The table with every layer in int8.
    """

    prepared: Prepared
    allowed: Selection
    whole: Result

    @property
    def selection(self) -> Selection:
        """What the whole table's plan was made with."""
        return replace(self.allowed, left=left_of(self.whole.table))

    def mixed(self, mix: PrecisionMix) -> Result:
        """Build the model of a mix.

        Raises:
            TableError: The mix leaves no layer in int8.
        """
        plan, table, tensors = self.whole.plan, self.whole.table, self.whole.tensors
        if mix.planes:
            table = with_residual_codes(table, plan, mix.planes)
        smaller = plan
        if mix.floats:
            left = dict.fromkeys(mix.floats, REASON)
            selection = replace(self.selection, left=(*self.selection.left, *left.items()))
            smaller = require_layers(self.prepared, selection)
            table = without_noise_of(table, (plan, smaller), left)
            tensors = {name: each for name, each in tensors.items() if name in table.tensors}
        built = build_model(self.prepared.model, smaller, table)
        table = with_weights(table, smaller, built)
        return replace(self.whole, table=table, tensors=tensors, plan=smaller, model=built.model)
