"""What data alone tell of being wrong, each check with a case that is right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from int8cal.data.checks import (
    FEWEST_ALIKE,
    MOST_REPEATED,
    Finding,
    SampleWatch,
    classes_of,
    label_findings,
    strict_error,
)
from int8cal.data.sample import Sample
from int8cal.errors import DataError
from int8cal.graph.signature import Signature, TensorSpec

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
IMAGE = Signature((TensorSpec("x", FLOAT, ("N", 3, 8, 8)),), (TensorSpec("y", FLOAT, ("N", 10)),))
TOKENS = Signature(
    (TensorSpec("ids", INT, ("N", "L")), TensorSpec("attention_mask", INT, ("N", "L"))),
    (TensorSpec("y", FLOAT, ("N", "L", 16)),),
)


def watched(arrays, signature=IMAGE, role="calibration"):
    watch = SampleWatch(role, signature)
    for index, feed in enumerate(arrays):
        watch.add(Sample(feed if isinstance(feed, dict) else {"x": feed}, f"{index}.npy"))
    return watch


def colours(count, seed=0):
    return list(np.random.default_rng(seed).normal(size=(count, 1, 3, 8, 8)).astype(np.float32))


def checks(watch):
    return [finding.check for finding in watch.findings()]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.01, 100), st.floats(-100, 100))
def test_random_samples_are_never_told(seed, count, scale, mean):
    samples = [sample * np.float32(scale) + np.float32(mean) for sample in colours(count, seed)]
    assert checks(watched(samples)) == []


@pytest.mark.parametrize(("constant", "told"), [(1, False), (2, True)])
def test_constant_samples_are_told_above_their_share(constant, told):
    blank = [np.full((1, 3, 8, 8), value, np.float32) for value in range(constant)]
    found = watched([*colours(25 - constant), *blank]).findings()
    assert [finding.check for finding in found] == (["constant"] if told else [])
    assert not told or "23.npy" in found[0].text


def test_constant_tokens_are_told_without_a_word_of_images():
    (found,) = watched(
        [{"ids": np.full((1, n), 7), "attention_mask": np.ones((1, n), int)} for n in (3, 4)], TOKENS
    ).findings()
    assert "2 of 2 calibration samples hold one single token, the first is 0.npy" in found.text
    assert found.do == "check how samples are made (another tokenizer), or leave them out"


def test_repeated_samples_are_told_above_their_share():
    different = colours(20)
    assert checks(watched([*different, *different[: int(20 * MOST_REPEATED)]])) == []
    assert checks(watched([*different, *different[:5]])) == ["duplicates"]


@pytest.mark.parametrize(("cut", "told"), [(2, False), (3, True)])
def test_samples_that_are_cut_are_counted_and_told_above_their_share(cut, told):
    both = [SampleWatch("calibration", IMAGE, first) for first in (0, 10)]
    for number, sample in enumerate(colours(20)):
        fit = "cut" if number < cut else "padded" if number == 19 else None
        both[number // 10].add(Sample({"x": sample}, f"t.txt, line {number}", fit=fit))
    watch = both[0] + both[1]
    assert [finding.check for finding in watch.findings()] == (["cut"] if told else [])
    assert watch.lines() == (
        f"{cut} of 20 calibration samples are longer than a sample may be, and cut",
        "1 of 20 calibration samples are filled up with zeros",
    )


def test_evaluation_samples_that_were_calibrated_on_are_told():
    calibration, fresh = colours(20), colours(20, seed=1)
    assert watched(fresh, role="evaluation").overlap(watched(calibration)) == ()
    (found,) = watched([*fresh, *calibration[:3]], role="evaluation").overlap(watched(calibration))
    assert found.check == "overlap"
    assert found.text.startswith("3 of 23")


def test_data_that_give_other_samples_each_time_are_told():
    first, other = colours(20), colours(20, seed=1)
    assert watched(first, role="evaluation").against(watched(first), same=True) == ()
    assert watched(first, role="evaluation").against(watched([]), same=True) == ()
    (found,) = watched([*first[:15], *other[:5]], role="evaluation").against(watched(first), same=True)
    assert found.check == "redrawn"
    assert found.text.startswith("5 of 20 evaluation samples are none of those")


@pytest.mark.parametrize("std", [(1, 1, 1), (0.229, 0.224, 0.225)])
def test_grey_images_are_told_whatever_their_normalization(std):
    scale = np.array(std, np.float32).reshape(1, 3, 1, 1)
    grey = [(np.repeat(image[:, :1], 3, axis=1) - 0.4) / scale for image in colours(FEWEST_ALIKE)]
    assert checks(watched(grey)) == ["grey"]
    assert checks(watched([*grey, colours(1)[0]])) == []
    assert checks(watched(grey[:-1])) == []  # so few may be chance


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_that_is_no_number_is_not_looked_at_for_grey(value):
    odd = colours(1)[0]
    odd[0, 1, 2, 3] = value
    assert checks(watched([odd])) == []


def test_a_sample_of_padding_only_is_told_and_a_mask_of_scores_is_not():
    ids = np.arange(1, 7, dtype=np.int64).reshape(1, 6)
    right = [{"ids": ids + index, "attention_mask": np.ones_like(ids)} for index in range(5)]
    assert checks(watched(right, TOKENS)) == []
    padded = [*right, {"ids": ids, "attention_mask": np.zeros_like(ids)}]
    assert checks(watched(padded, TOKENS)) == ["all-padding"]
    scores = Signature((TensorSpec("attn_mask", FLOAT, ("L", "L")),), ())
    zero_and_more = {"attn_mask": np.zeros((4, 4), np.float32), "x": np.arange(4.0)}
    assert checks(watched([zero_and_more], scores)) == []


@pytest.mark.parametrize(
    ("shape", "classes"),
    [(("N", 10), 10), ((1, 10, 1, 1), 10), (("N", "C"), None), (("N", 4, 10), None), (None, None)],
)
def test_classes_are_read_off_the_output(shape, classes):
    assert classes_of(Signature(IMAGE.inputs, (TensorSpec("y", FLOAT, shape),))) == classes


def test_labels_that_fit_are_not_told():
    assert label_findings([0, 9, 3], (), 10, "d") == ()
    assert label_findings([0, 1, 2], ("a", "b", "c"), 3, "d") == ()
    assert label_findings([12], (), None, "d") == ()
    assert label_findings([3] * (FEWEST_ALIKE - 1), (), 10, "d") == ()


def test_a_subset_of_class_folders_is_told():
    (found,) = label_findings([0, 1, 2], ("cat", "dog", "eel"), 10, "d")
    assert found.check == "class-count"
    assert found.text.startswith('3 classes by name ("cat" is 0, "eel" is 2), the model has 10: a subset')


def test_samples_of_one_class_are_told():
    assert [each.check for each in label_findings([3] * FEWEST_ALIKE, (), 10, "d")] == ["one-label"]


def test_a_label_beyond_the_classes_is_an_error():
    with pytest.raises(DataError, match="label 10 is not a class: the model's output has 10") as error:
        label_findings([0, 10], (), 10, "photos")
    assert str(error.value).startswith("data: photos: ")


def test_the_error_of_strict_names_the_first_and_the_checks_of_all():
    findings = [Finding("grey", "all are grey", "give colour"), Finding("chance", "near chance", "check labels")]
    error = strict_error(findings, written=True)
    assert error.exit_code == 4
    assert str(error) == (
        "data: grey: all are grey (and 1 more: chance); the results are kept; give colour, or leave --strict out"
    )
