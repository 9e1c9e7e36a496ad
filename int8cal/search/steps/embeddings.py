"""Step: which embeddings become int8, with a scale per row or per column: those that cost next to nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.metrics import sqnr_db
from int8cal.quantization.build import build_model
from int8cal.quantization.embeddings import coding_error
from int8cal.search.islands import MORE_BYTES, bytes_worth_db
from int8cal.search.search import Settled, scorer_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.graph.embeddings import Embedding, EmbeddingForm
    from int8cal.graph.index import Index
    from int8cal.search.candidate import Inputs
    from int8cal.search.search import Proposals, State

# What all of them together may cost against the same int8 model with float tables, whatever they save.
LOSS_DB = 0.3
# They may cost what their bytes are worth, but no more than the first where that leaves less than the second.
MOST_LOSS_DB, GOOD_DB = 3.0, 30.0
# Outputs this close to FP32 (an error of 1 % of the signal) may lose more: often the tables are nearly the whole file.
ENOUGH_DB = 40.0
# Where nothing can be scored: how close the values themselves have to be.
VALUES_DB = 35.0


@dataclass(frozen=True)
class _Offer:
    """An embedding in the form that is closest to its values."""

    embedding: Embedding
    form: EmbeddingForm
    values_db: float


def propose(state: State, inputs: Inputs) -> Proposals:
    """Settle the form of every embedding: all are tried at once, and if that costs too much, the largest first."""
    index = inputs.index
    offers = {each.node: _offer(index, each) for each in state.plan.embeddings}
    able = [offer for offer in offers.values() if offer.values_db > 0]
    chosen: list[_Offer] = []
    reasons = {node: "its values cannot be told in codes" for node, offer in offers.items() if offer.values_db <= 0}
    figures = ""
    if inputs.holdout.scorer is None:
        chosen = [offer for offer in able if offer.values_db >= VALUES_DB]
        reasons |= {
            offer.embedding.node: f"nothing can be scored, and {offer.values_db:.1f} dB of its values are few"
            for offer in able
            if offer.values_db < VALUES_DB
        }
        state = _with(state, inputs, chosen)
    elif able:
        scorer, score, plain = scorer_of(inputs), state.score, state
        largest = sorted(able, key=lambda offer: -math.prod(offer.embedding.dims))
        single = [[offer] for offer in largest] if len(able) > 1 else []
        for trial in (able, *single):
            offered = _with(plain, inputs, [*chosen, *trial])
            worth = bytes_worth_db(_saved([*chosen, *trial]), index, state.plan)
            may_lose_db = max(min(worth, MOST_LOSS_DB), LOSS_DB)
            score, found = scorer.compare(plain.built.model, score, offered.built.model, -may_lose_db)
            before, after = score.first(len(found.noise)).db, found.db
            if after >= GOOD_DB:
                may_lose_db = max(worth, LOSS_DB)
            if before - after <= may_lose_db or after >= ENOUGH_DB:
                chosen, state = [*chosen, *trial], replace(offered, score=found)
                told = f"{after:.2f} dB at the outputs, {before:.2f} dB with float tables"
                figures = f"; {told}, on {scorer.told(found)}"
            else:
                why = f"its codes cost too much, {after:.2f} dB at the outputs instead of {before:.2f}"
                reasons |= {offer.embedding.node: why for offer in trial}
            if len(chosen) == len(able):
                break
        if not chosen:
            state = replace(plain, score=score)
    taken = {offer.embedding.node for offer in chosen}
    notes = []
    for node, offer in offers.items():
        name = f"{offer.embedding.op_type} {node}"
        if node in taken:
            how = f"a scale for each of its {offer.form}, {offer.values_db:.1f} dB of its values"
            notes.append(f"the table of {name} is int8: {how}{figures}")
        else:
            notes.append(f"the table of {name} stays float: {reasons[node]}")
    if notes:
        yield Settled(replace(state, notes=(*state.notes, *notes)))


def _saved(offers: Iterable[_Offer]) -> int:
    """Return the bytes by which tables are smaller in int8."""
    sizes = {each.embedding.weight: math.prod(each.embedding.dims) for each in offers}
    return MORE_BYTES * sum(sizes.values())


def _offer(index: Index, embedding: Embedding) -> _Offer:
    """Choose the form whose codes are closest to the values; of two alike the rows."""
    values = index.constant(embedding.weight).astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        return _Offer(embedding, "rows", 0.0)
    forms: tuple[EmbeddingForm, ...] = ("rows", "columns")
    errors = {form: coding_error(values, embedding.axis(form)) for form in forms}
    form = min(forms, key=lambda each: errors[each][0])
    error, signal = errors[form]
    return _Offer(embedding, form, sqnr_db(signal, error) or 0.0)


def _with(state: State, inputs: Inputs, offers: Iterable[_Offer]) -> State:
    forms = {offer.embedding.node: offer.form for offer in offers}
    table = replace(state.table, settings=state.table.settings.with_embeddings(forms))
    built = build_model(inputs.index, state.plan, table, state.built)
    return replace(state, table=table, built=built, score=None)
