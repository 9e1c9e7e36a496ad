from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from int8cal.search.candidate import plain_candidate
from int8cal.search.scorer import Scorer
from int8cal.search.search import first_state, search
from int8cal.search.steps import embeddings

TEXT = """g (float[N,4] x) => (float[N,16] y) {
    r = Relu (x) i = ArgMax <axis = 1, keepdims = 0> (x) e = Gather (W, i) h = MatMul (x, V) y = Add (e, h)
}"""
WORDS = np.random.default_rng(3).normal(size=(200, 16)).astype(np.float32)


def searched(inputs):
    return search(first_state(inputs, plain_candidate(inputs)), (embeddings.propose,), inputs)


@pytest.fixture
def weights():
    return {"W": WORDS, "V": 20 * np.random.default_rng(4).normal(size=(4, 16)).astype(np.float32)}


def test_the_form_that_is_closer_to_the_values_is_taken(search_inputs, weights):
    outlier = np.where(np.arange(16) == 5, 100, WORDS).astype(np.float32)
    for table, form in ((WORDS * np.linspace(1, 40, 200, dtype=np.float32)[:, None], "rows"), (outlier, "columns")):
        inputs = search_inputs(TEXT, **{**weights, "W": table})
        state = searched(inputs)
        assert list(state.table.settings.embeddings.values()) == [form]
        assert f"is int8: a scale for each of its {form}" in state.notes[-1]
        assert state.notes[-1].endswith("dB with float tables, on the first 8 validation samples")


def test_a_table_that_costs_too_much_stays_float(search_inputs, weights, monkeypatch):
    monkeypatch.setattr(embeddings, "LOSS_DB", -100.0)
    monkeypatch.setattr(embeddings, "bytes_worth_db", lambda saved, index, plan: -100.0)
    monkeypatch.setattr(embeddings, "ENOUGH_DB", np.inf)
    inputs = search_inputs(TEXT, **weights)
    state = searched(inputs)
    assert state.table.settings.embeddings == {}
    assert "stays float: its codes cost too much" in state.notes[-1]
    first = first_state(inputs, plain_candidate(inputs))
    assert state.built.model.SerializeToString() == first.built.model.SerializeToString()


@pytest.mark.parametrize(
    ("worth", "before", "after", "kept"),
    [
        (9.0, 28.0, 25.1, True),
        (9.0, 28.0, 24.9, False),
        (9.0, 38.0, 30.1, True),
        (9.0, 38.0, 29.9, False),
        (9.0, 39.5, 30.4, False),
        (9.0, 99.0, 40.1, True),
        (1.0, 28.0, 27.1, True),
        (0.1, 28.0, 27.8, True),
        (0.1, 28.0, 27.1, False),
    ],
)
def test_a_table_may_cost_what_its_bytes_are_worth(search_inputs, weights, monkeypatch, worth, before, after, kept):
    monkeypatch.setattr(embeddings, "bytes_worth_db", lambda saved, index, plan: worth * saved / (3 * WORDS.size))

    def compare(self, plain, known, offered, least_db):
        assert any(each.name == "W" for each in plain.graph.initializer)
        assert not any(each.name == "W" for each in offered.graph.initializer)
        assert least_db <= -0.3
        return tuple(
            SimpleNamespace(db=db, noise=[0], first=lambda _, db=db: SimpleNamespace(db=db)) for db in (before, after)
        )

    monkeypatch.setattr(Scorer, "compare", compare)
    assert bool(searched(search_inputs(TEXT, **weights)).table.settings.embeddings) == kept


def test_without_a_scorer_the_values_decide(search_inputs, weights):
    inputs = search_inputs(TEXT, **weights)
    blind = replace(inputs, holdout=replace(inputs.holdout, scorer=None))
    assert list(searched(blind).table.settings.embeddings.values()) == ["rows"]
    spiky = np.where(np.eye(128), 50, np.random.default_rng(5).normal(scale=0.1, size=(128, 128))).astype(np.float32)
    wide = {"W": spiky, "V": np.ones((4, 128), np.float32)}
    inputs = search_inputs(TEXT.replace("16", "128"), **wide)
    state = searched(replace(inputs, holdout=replace(inputs.holdout, scorer=None)))
    assert list(state.table.settings.embeddings.values()) == []
    assert "nothing can be scored, and" in state.notes[-1]


def test_values_that_are_not_finite_keep_the_table_in_float(search_inputs, weights):
    odd = WORDS.copy()
    odd[150, 3] = -np.inf
    state = searched(search_inputs(TEXT, **{**weights, "W": odd}))
    assert state.table.settings.embeddings == {}
    assert "stays float: its values cannot be told in codes" in state.notes[-1]
