"""Corrections of single layers, offered all together and then in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from int8cal.quantization.build import build_model
from int8cal.search.search import Proposal, Remark, scored

if TYPE_CHECKING:
    from collections.abc import Collection

    from int8cal.calibration.table import CalibrationTable
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

# Parts that are scored by themselves; fewer in a deep model, whose every score takes long.
MOST_PARTS, LEAST_PARTS, PARTS_OF = 16, 4, 8000  # layers divided by parts


def propose_layers(
    state: State, inputs: Inputs, name: str, table: CalibrationTable, records: tuple[str, ...]
) -> Proposals:
    """Offer corrections of layers: all together, and if that does not help, those that do no harm by themselves.

    What lowers the error of a layer's output may still raise that of the model's: errors of Q and K meet in one
    product, and some errors cancel others.

    Args:
        state: Without the corrections.
        inputs: What stays the same.
        name: The step.
        table: With the corrections.
        records: Their names in the table's corrections; each is keyed by node.
    """
    layers = state.plan.layers
    without = {record: state.table.corrections.get(record, {}) for record in records}
    whole = {record: table.corrections.get(record, {}) for record in records}
    changed = [
        layer.node
        for layer in layers
        if any(without[record].get(layer.node) != whole[record].get(layer.node) for record in records)
    ]

    def with_only(nodes: Collection[str]) -> CalibrationTable:
        chosen = frozenset(nodes)
        mixed = {}
        for record in records:
            values = {node: value for node, value in without[record].items() if node not in chosen}
            values |= {node: value for node, value in whole[record].items() if node in chosen}
            mixed[record] = {layer.node: values[layer.node] for layer in layers if layer.node in values}
        rest = {record: value for record, value in state.table.corrections.items() if record not in records}
        return replace(state.table, corrections=rest | {record: value for record, value in mixed.items() if value})

    if not changed:
        return
    state = yield Proposal(name, with_only(changed))
    if state.results[-1].kept or len(changed) == 1:
        return
    size = -(-len(changed) // min(MOST_PARTS, max(LEAST_PARTS, PARTS_OF // len(changed))))
    harmless: list[str] = []
    for first in range(0, len(changed), size):
        part = changed[first : first + size]
        built = build_model(inputs.prepared, state.plan, with_only(part))
        if scored(replace(state, built=built, score=None), inputs).db >= scored(state, inputs).db:
            harmless += part
    if not harmless:
        return
    state = yield Proposal(f"{name} of {len(harmless)} of {len(changed)} layers", with_only(harmless))
    if state.results[-1].kept:
        kept = frozenset(harmless)
        dropped = [node for node in changed if node not in kept]
        yield Remark((f"{name} does not help by itself, and was dropped, at {', '.join(dropped)}",))
