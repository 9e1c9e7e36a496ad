"""Which positions are padding, and what is left of a sample without them; the model is a function here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from int8cal.data.padding import (
    FIXED,
    Padding,
    axes_of_positions,
    kept,
    paddings_from,
    record,
    tally,
    with_other_padding,
)
from int8cal.data.sample import Sample
from int8cal.data.trimming import Opened, Trimmer
from int8cal.errors import ModelError, StatisticsError

FREE = ("N", "L")


def trimmer(signature, run, *others):
    calls = []

    def opened():
        calls.append(1)
        return [Opened(signature, run), *others]

    return Trimmer(signature, opened), calls


def sentence(kept=3, length=6, *, start=0, mask="attention_mask", dtype=np.int64):
    ones = np.zeros((1, length), dtype)
    ones[0, start : start + kept] = 1
    return Sample({"ids": np.arange(1, length + 1)[None], mask: ones}, "s")


def attends(mask="attention_mask"):
    """Mixes every kept position into every position; a second output is pooled."""

    def run(feed):
        weights = feed[mask] / feed[mask].sum()
        mean = (feed["ids"] * weights).sum(1)
        return {"tokens": (feed["ids"] + mean[:, None]).astype(np.float32), "pooled": mean.astype(np.float32)}

    return run


def alone(feed):
    """Looks at every position by itself, whatever the mask."""
    return {"tokens": feed["ids"].astype(np.float32)}


def counts_positions(feed):
    outputs = attends()(feed)
    return {**outputs, "tokens": outputs["tokens"] + np.arange(feed["ids"].shape[1], dtype=np.float32)}


def counts_and_reads(feed):
    return {"tokens": counts_positions(feed)["tokens"] + feed["ids"].sum()}


@pytest.fixture
def text(signature):
    return signature(ids=(FREE, np.int64), attention_mask=(FREE, np.int64))


@pytest.mark.parametrize(("start", "side"), [(0, "end"), (3, "start"), (1, "both ends")])
def test_a_sample_keeps_what_its_mask_keeps(text, start, side):
    trim, _ = trimmer(text, attends())
    trimmed = trim(sentence(start=start))
    assert trimmed.feed["ids"].tolist() == [[start + 1, start + 2, start + 3]]
    assert trimmed.feed["attention_mask"].tolist() == [[1, 1, 1]]
    (padding,) = trimmed.padding
    assert padding == Padding("attention_mask", side, "trimmed", "", 1, 6, 3)


def test_a_sample_without_padding_passes_untouched_and_opens_no_model(text):
    trim, calls = trimmer(text, attends())
    sample = sentence(6, 6)
    assert trim(sample) is sample
    assert calls == []


def test_the_model_is_asked_once(text):
    trim, calls = trimmer(text, attends())
    for count in (3, 4, 5):
        assert trim(sentence(count)).feed["ids"].shape == (1, count)
    assert len(calls) == 1


def test_a_trimmed_sample_keeps_the_fingerprint_of_the_stored_one(text):
    trim, _ = trimmer(text, attends())
    sample = sentence()
    trimmed = trim(sample)
    assert trimmed.mark == sample.fingerprint
    assert trimmed.fingerprint == Sample({name: each[:, :3] for name, each in sample.feed.items()}, "").fingerprint


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (counts_and_reads, "the outputs are not the same without it"),
        (lambda feed: {"sum": feed["ids"].sum(1).astype(np.float32)}, "the outputs are not the same without it"),
        (lambda feed: {"sum": feed["ids"].sum(1)}, "the outputs are not the same without it"),
        (lambda feed: {"x": np.full(2, np.nan, np.float32)}, "the outputs are not the same without it"),
        (lambda feed: {"x": np.zeros(feed["ids"].shape[1] + 1, np.float32)}, "the outputs are not the same without it"),
    ],
)
def test_padding_that_outputs_follow_stays_and_says_so(text, run, why):
    trim, _ = trimmer(text, run)
    sample = sentence(start=3)
    same = trim(sample)
    assert same.feed is sample.feed
    assert same.mark is None
    assert same.positions is None
    assert same.padding == (Padding("attention_mask", "start", "kept", why, 1, 6, 3),)


def test_a_model_that_cannot_take_shorter_samples_masks_padding(text):
    def fixed_inside(feed):
        if feed["ids"].shape[1] != 6:
            raise ModelError("no")
        return attends()(feed)

    trim, _ = trimmer(text, fixed_inside)
    assert trim(sentence()).padding[0].how == "masked"
    # another model of the pair that only claims to take them
    trim, _ = trimmer(text, attends(), Opened(text, fixed_inside))
    assert trim(sentence()).padding[0].how == "masked"


def test_a_fixed_length_is_masked(signature):
    fixed = signature(ids=(("N", 6), np.int64), attention_mask=(("N", 6), np.int64))
    free = signature(ids=(FREE, np.int64), attention_mask=(FREE, np.int64))
    trims = trimmer(fixed, attends())[0], trimmer(free, attends(), Opened(fixed, attends()))[0]
    for trim in trims:
        sample = sentence()
        masked = trim(sample)
        assert masked.feed is sample.feed
        assert (masked.padding[0].how, masked.padding[0].why) == ("masked", "the length is fixed")
        assert kept("tokens", np.arange(6)[None], masked).tolist() == [[0, 1, 2]]
        assert kept("pooled", np.arange(6)[None], masked).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_mask_beside_inputs_of_other_lengths_stays(signature):
    cached = signature(ids=(("N", "M"), np.int64), attention_mask=(FREE, np.int64))
    trim, calls = trimmer(cached, attends())
    sample = Sample({"ids": np.ones((1, 1), np.int64), "attention_mask": np.array([[0, 1, 1]])}, "s")
    assert trim(sample).padding[0].why == "no other input has its length"
    assert calls == []


def test_samples_of_a_fixed_batch_are_masked(signature):
    four = signature(ids=((4, "L"), np.int64), attention_mask=((4, "L"), np.int64))
    trim, _ = trimmer(four, attends())
    assert trim(sentence()).padding[0].why == "the model takes 4 samples at once"
    assert trim(sentence()).padding[0].how == "masked"


def test_zeros_between_ones_and_padding_that_shifts_positions_are_masked(text):
    trim, _ = trimmer(text, attends())
    sample = sentence(6, 6)
    sample.feed["attention_mask"][0, 2] = 0
    masked = trim(sample)
    assert (masked.padding[0].side, masked.padding[0].how) == ("inside", "masked")
    assert kept("tokens", np.arange(6)[None], masked).tolist() == [[0, 1, 3, 4, 5]]
    trim, _ = trimmer(text, counts_positions)
    masked = trim(sentence(start=3))
    assert kept("tokens", np.arange(6)[None], masked).tolist() == [[3, 4, 5]]


def test_the_axes_of_positions_are_the_fewest_that_explain_what_changed():
    is_kept = np.array([True, True, False])
    zeros = {"rows": (3, 3), "scores": (2, 3, 3), "pooled": (1, 3), "mixed": (2, 2), "flat": (6,)}
    values = {name: np.zeros(shape) for name, shape in zeros.items()}
    others = {name: value.copy() for name, value in values.items()}
    others["rows"][2] = 1
    others["scores"][:, 2] = others["scores"][:, :, 2] = 1
    others["mixed"][0] = others["flat"][4:] = 1
    axes = {name: axes_of_positions(value, others[name], is_kept) for name, value in values.items()}
    assert axes == {"rows": (0,), "scores": (1, 2), "pooled": (), "mixed": None, "flat": None}


def test_other_padding_is_other_at_every_padded_position():
    feed = {
        "ids": np.array([[5, 6, 1, 0]]),
        "x": np.array([[[1, 2, 0, 4]]], np.float32),
        "mask": np.array([[1, 1, 0, 0]]),
    }
    other = with_other_padding(feed, [("ids", 1), ("x", 2)], np.array([True, True, False, False]))
    assert other["ids"].tolist() == [[5, 6, 0, 1]]
    assert other["x"].tolist() == [[[1, 2, 1, 0]]]
    assert other["mask"] is feed["mask"]
    assert feed["ids"].tolist() == [[5, 6, 1, 0]]


@pytest.mark.parametrize("dims", [("ids_1", "mask_1"), (None, None)])
def test_inputs_of_one_length_need_not_name_it_alike(signature, dims):
    free = signature(ids=(("N", dims[0]), np.int64), attention_mask=(("N", dims[1]), np.int64))
    trim, _ = trimmer(free, attends())
    assert trim(sentence()).feed["ids"].shape == (1, 3)


def test_every_axis_of_the_masks_dimension_is_trimmed(signature):
    free = signature(ids=(FREE, np.int64), attention_mask=(FREE, np.int64), bias=("N", 2, "L", "L"), other=("N", 6))
    trim, _ = trimmer(free, attends())
    sample = sentence()
    feed = {**sample.feed, "bias": np.zeros((1, 2, 6, 6), np.float32), "other": np.zeros((1, 6), np.float32)}
    shapes = {name: each.shape for name, each in trim(replace(sample, feed=feed)).feed.items()}
    assert shapes == {"ids": (1, 3), "attention_mask": (1, 3), "bias": (1, 2, 3, 3), "other": (1, 6)}


def test_a_mask_under_another_name_shows_by_what_it_does(signature):
    free = signature(ids=(FREE, np.int64), valid=(FREE, np.float32))
    trim, _ = trimmer(free, attends("valid"))
    assert trim(sentence(mask="valid", dtype=np.float32)).feed["ids"].shape == (1, 3)


def test_an_input_of_zeros_and_ones_that_masks_nothing_is_data(signature):
    """Without it the other positions' outputs are the same, and so they are with ones in its place."""
    free = signature(ids=(FREE, np.int64), kind=(FREE, np.int64))
    trim, _ = trimmer(free, alone)
    sample = sentence(mask="kind")
    assert trim(sample) is sample


def test_samples_that_are_all_padding_or_no_mask_pass(text):
    trim, _ = trimmer(text, attends())
    for mask in (np.zeros((1, 6), np.int64), np.array([[2, 1, 1, 0, 0, 0]])):
        sample = Sample({"ids": np.ones((1, 6), np.int64), "attention_mask": mask}, "s")
        assert trim(sample) is sample


def test_paddings_add_in_any_order():
    end = Padding("m", "end", "trimmed", "", 1, 6, 3)
    start = Padding("m", "start", "kept", "so", 1, 6, 2)
    both = tally((end, start, end))
    assert both == tally((start, end, end)) == (replace(end, samples=2, positions=12, padding=6), start)
    assert paddings_from(record(both)) == both


def test_padding_that_was_kept_does_not_add_to_padding_that_was_trimmed():
    end = Padding("m", "end", "trimmed", "", 1, 6, 3)
    with pytest.raises(StatisticsError, match="m 0 at the end was trimmed in one, kept in the other"):
        tally((end, replace(end, how="kept", why="so")))


def test_a_line_says_how_much_padding_there_was_and_what_became_of_it():
    end = Padding("attention_mask", "end", "trimmed", "", 40, 200, 50)
    assert str(end) == (
        "padding: attention_mask is 0 at 25.0 % of the positions of 40 samples (end): trimmed, the outputs are the same "
        "without it"
    )
    kept = replace(end, how="kept", why="some lies between what is kept")
    assert str(kept).endswith("figures: some lies between what is kept; give samples of their own length")
    assert str(replace(kept, why=FIXED)).endswith("figures: the length is fixed; export the model with a free one")
