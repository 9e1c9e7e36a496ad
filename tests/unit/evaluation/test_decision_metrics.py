import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from int8cal.evaluation.decision_metrics import Decisions
from int8cal.evaluation.output_groups import OutputGroup
from int8cal.evaluation.sample_figures import EXACT, STUDENT
from int8cal.numerics.intervals import proportion_interval
from int8cal.numerics.metrics import EXACT_DB

# Per kind the shape of a sample's output.
SHAPES = {
    "class scores": (1, 8),
    "token logits": (1, 3, 12),
    "probabilities": (1, 9),
    "embedding": (1, 6),
    "waveform": (1, 40),
    "signal": (1, 24),
    "image": (1, 3, 4, 4),
    "values": (1, 2, 5),
}


def group(kind, output="out", axis=None, first=0, end=0):
    return OutputGroup(output, kind, axis, first, end)


def measured(groups, samples):
    """Figures by output and name, and reasons; of (fp32, int8) pairs of arrays, or of outputs by name."""
    decisions = Decisions(groups)
    for pair in samples:
        decisions.add(*(each if isinstance(each, dict) else {"out": each} for each in pair))
    figures, reasons = decisions.results()
    return {name: {each.figure: each for each in found} for name, found in figures.items()}, reasons


def of_kind(kind, samples, **channels):
    figures, reasons = measured([group(kind, **channels)], samples)
    return figures["out"], reasons


def pairs(kind, seed, count=25, noise=0.5):
    rng = np.random.default_rng(seed)
    low = 0.0 if kind == "probabilities" else -1.0
    reference = [rng.uniform(low, 1.0, SHAPES[kind]).astype(np.float32) for _ in range(count)]
    return [(x, (x + noise * rng.standard_normal(x.shape)).astype(np.float32)) for x in reference]


@pytest.mark.parametrize("kind", SHAPES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_equal_outputs_decide_alike(kind, seed):
    figures, reasons = of_kind(kind, pairs(kind, seed, noise=0.0))
    perfect = {"threshold_crossings": 0.0, "psnr_db": EXACT_DB, "p5_sqnr_db": EXACT_DB}
    assert figures
    for name, found in figures.items():
        assert found.value == perfect.get(name, pytest.approx(1.0)), name
        assert found.samples == 25 or name == "decision_f1"  # of samples with something above one half
    assert {name.rpartition(".")[2] for name in reasons} <= {"ci95", "p5_sqnr_db_ci95"}


@pytest.mark.parametrize("kind", SHAPES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_the_order_of_samples_changes_nothing(kind, seed):
    samples = pairs(kind, seed)
    figures, _ = of_kind(kind, samples)
    again, _ = of_kind(kind, [samples[at] for at in np.random.default_rng(seed).permutation(len(samples))])
    for name, found in figures.items():
        assert again[name].value == pytest.approx(found.value, rel=1e-12), name
        assert again[name].ci95 == (found.ci95 and pytest.approx(found.ci95, rel=1e-9)), name
        assert found.ci95 is None or found.ci95[0] <= found.value <= found.ci95[1]


def test_scores_decide_by_the_largest_and_by_their_order():
    x = np.array([[5, 4, 3, 2, 1, 0, -1]], np.float32)
    swapped = x[:, [1, 0, 2, 3, 4, 5, 6]]
    figures, _ = of_kind("class scores", [(x, x)] * 3 + [(x, swapped)])
    agreement = figures["argmax_agreement"]
    assert (agreement.value, agreement.ci95) == (0.75, pytest.approx(proportion_interval(3, 4)))
    assert agreement.how == f"share of samples whose largest of 7 scores is the same one; {EXACT}"
    assert figures["rank_correlation"].value == pytest.approx(1 - 6 * 2 / (7 * 48) / 4)
    assert figures["rank_correlation"].how.endswith(STUDENT)
    assert figures["top5_recall"].value == 1.0


def test_positions_of_a_sample_are_no_samples():
    x = np.zeros((1, 4, 10), np.float32)  # four classes at ten positions
    x[:, 0] = 1.0
    y = x.copy()
    y[0, 1, :5] = 2.0
    figures, _ = of_kind("class scores", [(x, x), (x, y)], axis=1, end=4)
    found = figures["argmax_agreement"]
    assert (found.value, found.samples) == (0.75, 2)
    assert found.how.endswith(STUDENT)
    assert "top5_recall" not in figures


def test_scores_that_all_tie_have_no_order_left():
    rng = np.random.default_rng(0)
    samples = [(rng.standard_normal((1, 9)), np.zeros((1, 9))) for _ in range(3)]
    figures, _ = of_kind("class scores", samples)
    assert figures["rank_correlation"].value == 0.0
    figures, reasons = of_kind("class scores", [(np.zeros((1, 9)), np.ones((1, 9)))])
    assert figures["rank_correlation"].value is None
    assert reasons["outputs.out.rank_correlation"] == "every row of the FP32 model holds one value"


def test_many_positions_are_looked_at_in_part_and_it_is_said():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 9, 20_000)).astype(np.float32)
    figures, _ = of_kind("token logits", [(x, x), (x, x)], axis=2, end=20_000)
    assert "of 3 evenly spaced positions a sample" in figures["rank_correlation"].how
    assert "evenly spaced" not in figures["argmax_agreement"].how


def test_probabilities_decide_by_one_half():
    x = np.array([[0.9, 0.8, 0.1, 0.2]], np.float32)
    y = np.array([[0.9, 0.4, 0.6, 0.2]], np.float32)
    figures, _ = of_kind("probabilities", [(x, y), (x[:, ::-1], x[:, ::-1])])
    assert figures["threshold_crossings"].value == 0.25
    assert figures["decision_f1"].value == pytest.approx(6 / 8)  # 3 right of 4 found and 4 there
    _, reasons = of_kind("probabilities", [(x / 4, x / 4)])
    assert reasons["outputs.out.decision_f1"] == "no value of either model is above 0.5"


def test_a_constant_between_zero_and_one_is_no_probability():
    # the standard deviation of a policy, given for every sample
    constant = np.array([[0.2, 0.37, 0.6]], np.float32)
    figures, reasons = of_kind("probabilities", [(constant, constant)] * 3)
    why = "the FP32 model gives the same values for every sample: they decide nothing"
    for name in ("decision_f1", "threshold_crossings"):
        assert figures[name].value is None
        assert reasons[f"outputs.out.{name}"] == why
    once, _ = of_kind("probabilities", [(constant, constant)])  # of one sample nobody knows
    other, _ = of_kind("probabilities", [(constant, constant), (constant + 0.1, constant)])
    assert once["threshold_crossings"].value == 0.0
    assert other["threshold_crossings"].value == 0.0


def test_embeddings_keep_their_neighbours():
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((40, 16)).astype(np.float32)
    figures, _ = of_kind("embedding", [(x[None], 2 * x[None]) for x in vectors])
    assert [figures[name].value for name in figures] == pytest.approx([1.0, 1.0, 1.0])
    assert figures["neighbour_recall1"].ci95 == pytest.approx(proportion_interval(40, 40))
    figures, _ = of_kind("embedding", [(x[None], x[None] * 0 + 1) for x in vectors])
    assert figures["neighbour_recall1"].value == pytest.approx(1 / 39)
    figures, _ = of_kind("embedding", [(x[None], x[None]) for x in vectors[:2]])
    assert list(figures) == ["embedding_cosine"]


def test_the_first_thousand_embeddings_are_compared_and_it_is_said():
    rng = np.random.default_rng(2)
    figures, _ = of_kind("embedding", [(x[None], x[None]) for x in rng.standard_normal((1002, 3))])
    assert figures["neighbour_recall1"].samples == 1000
    assert "among the first 1000 samples" in figures["neighbour_recall1"].how
    assert figures["embedding_cosine"].samples == 1002


def test_signals_have_a_peak_ratio_and_a_worst_percentile():
    x = np.array([[0.0, 1.0, 2.0, 4.0]], np.float32)
    figures, reasons = of_kind("image", [(x, x + 1), (x, x - 0.5)])
    error = (1 + 0.25) / 2
    assert figures["psnr_db"].value == pytest.approx(10 * math.log10(16 / error))
    assert figures["p5_sqnr_db"].value == pytest.approx(10 * math.log10(21 / 4))
    assert "too few" in reasons["outputs.out.p5_sqnr_db_ci95"]
    constant = np.ones((1, 3), np.float32)
    _, reasons = of_kind("values", [(constant, constant)])
    assert reasons["outputs.out.psnr_db"] == "the FP32 model gives one value only"


def test_one_sample_gives_no_interval_but_that_of_a_proportion():
    for kind in SHAPES:
        figures, reasons = of_kind(kind, pairs(kind, 3, count=1))
        for at, (name, found) in enumerate(figures.items()):
            assert found.ci95 is not None or reasons[f"outputs.out.decisions.{at}.ci95"], name


# Detections: three objects well apart, of classes 1, 0 and 1, and others that score nothing.
CORNERS = np.array([[10, 10, 30, 30], [50, 50, 90, 90], [5, 60, 20, 80]], np.float32)
FAR = np.array([[at, 200, at + 9, 220] for at in range(0, 200, 10)], np.float32)
CLASSES = [1, 0, 1]


def scene(boxes=CORNERS, scores=0.9, classes=2):
    found = np.zeros((len(boxes) + len(FAR), classes), np.float32)
    found[range(len(boxes)), CLASSES[: len(boxes)]] = scores
    return np.concatenate((boxes, FAR)), found


def sized(boxes):
    return np.concatenate(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), axis=1)


def as_yolo(boxes, scores):
    """One output (1, 4 + classes, objects) with centres and sizes."""
    return np.concatenate((sized(boxes), scores), axis=1).T[None]


YOLO = [group("boxes", axis=1, end=4), group("probabilities", axis=1, first=4, end=6)]


def test_detections_are_matched_by_class_and_place():
    reference = as_yolo(*scene())
    figures, _ = measured(
        YOLO, [(reference, reference), (reference, as_yolo(*scene(CORNERS + np.array([0, 0, 0, 10]))))]
    )
    found = figures["out"]
    assert found["box_recall"].value == 1.0
    ious = [20 / 30, 40 / 50, 20 / 30]
    assert found["box_iou"].value == pytest.approx((3 + sum(ious)) / 6)
    assert "boxes cx cy w h" in found["box_recall"].how
    lost = as_yolo(*scene(CORNERS + np.array([0, 0, 0, 60])))  # overlaps of 20 in 80, 40 in 100, 20 in 80
    other_class = as_yolo(scene()[0], scene()[1][:, ::-1])
    nothing = as_yolo(*scene(scores=0.2))
    for int8, precision in ((lost, 0.5), (other_class, 0.5), (nothing, 1.0)):
        figures, _ = measured(YOLO, [(reference, reference), (reference, int8)])
        assert figures["out"]["box_recall"].value == 0.5
        assert figures["out"]["box_precision"].value == precision


def test_overlapping_boxes_of_a_class_count_once():
    boxes, scores = scene()
    again, twice = boxes.copy(), scores.copy()
    again[3], twice[3] = boxes[0] + 1, scores[0] * 0.9
    figures, _ = measured(YOLO, [(as_yolo(boxes, scores), as_yolo(again, twice))])
    assert figures["out"]["box_precision"].value == 1.0


@pytest.mark.parametrize("logits", [False, True])
def test_the_background_of_a_softmax_is_no_detection(logits):
    boxes, scores = scene(classes=3)
    scores[:, 2] = 1.0 - scores.sum(axis=1)
    read = np.log(scores + 1e-6) + 1.0 if logits else scores
    pair = {"boxes": boxes[None], "scores": read[None]}
    groups = [group("boxes", "boxes", 2, 0, 4), group("class scores", "scores", 2, 0, 3)]
    figures, _ = measured(groups, [(pair, pair)] * 3)
    assert figures["boxes"]["box_precision"].value == 1.0
    assert "boxes x1 y1 x2 y2" in figures["boxes"]["box_recall"].how
    assert "class 2 is the background" in figures["boxes"]["box_recall"].how
    assert figures["boxes"]["box_recall"].samples == 3


def test_scores_with_another_background_on_another_sample_are_no_detectors():
    # classes of the steps of a series, of which each lasts for most of a sample
    boxes, scores = scene(classes=3)
    scores[:, 2] = 1.0 - scores.sum(axis=1)
    pairs = [{"boxes": boxes[None], "scores": each[None]} for each in (scores, scores[:, ::-1])]
    groups = [group("boxes", "boxes", 2, 0, 4), group("class scores", "scores", 2, 0, 3)]
    figures, reasons = measured(groups, [(pair, pair) for pair in pairs])
    assert not figures["boxes"]
    why = "classes 0 and 2 seem to be the background on different samples, as of no detector"
    assert reasons["outputs.boxes.box_recall"] == why


def test_objectness_multiplies_the_scores_of_classes():
    boxes, scores = scene()
    objectness = np.full((len(boxes), 1), 0.9, np.float32)
    objectness[3:] = 0.0
    scores[3:] = 0.99
    joined = np.concatenate((sized(boxes), objectness, scores), axis=1)[None]
    groups = [
        group("boxes", axis=2, end=4),
        group("probabilities", axis=2, first=4, end=5),
        group("probabilities", axis=2, first=5, end=7),
    ]
    other = joined.copy()
    other[0, 3:, 5:] = 0.1  # nobody's, whatever the classes say
    figures, _ = measured(groups, [(joined, other)] * 2)
    assert figures["out"]["box_precision"].value == 1.0


@pytest.mark.parametrize(
    "boxes",
    [
        pytest.param(np.random.default_rng(0).standard_normal((30, 4)), id="offsets to anchors"),
        pytest.param(np.random.default_rng(0).uniform(0, 50, (30, 4)), id="distances to the sides"),
    ],
)
def test_nothing_is_said_of_what_may_be_no_boxes(boxes):
    scores = np.linspace(0, 1, 60).reshape(30, 2)
    pair = {"boxes": boxes[None], "scores": scores[None]}
    groups = [group("boxes", "boxes", 2, 0, 4), group("probabilities", "scores", 2, 0, 2)]
    figures, reasons = measured(groups, [(pair, pair)] * 3)
    assert not figures["boxes"]
    assert reasons["outputs.boxes.box_recall"].startswith("its channels are not the corners")


def test_boxes_need_scores_of_their_own():
    boxes, scores = scene()
    pair = {"boxes": boxes[None], "a": scores[None], "b": scores[None]}
    groups = [group("boxes", "boxes", 2, 0, 4), *(group("probabilities", name, 2, 0, 2) for name in "ab")]
    for some in (groups, groups[:1]):
        figures, reasons = measured(some, [(pair, pair)])
        assert not figures["boxes"]
        assert reasons["outputs.boxes.box_iou"] == "no scores, or those of several outputs, belong to its boxes"


def test_a_detector_that_finds_nothing_in_int8_has_no_precision():
    reference = as_yolo(*scene())
    figures, reasons = measured(YOLO, [(reference, as_yolo(*scene(scores=0.1)))] * 2)
    assert figures["out"]["box_recall"].value == 0.0
    assert figures["out"]["box_precision"].value is None
    assert reasons["outputs.out.box_precision"] == "the int8 model detects nothing with a score of 0.25"
    assert reasons["outputs.out.box_iou"] == "no FP32 detection is found again"
