"""Each shipped metric against a case that can be worked out by hand, or an independent computation."""

import math
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import int8cal
from int8cal.errors import DataError, ModelError
from int8cal.evaluation.user_metric import open_metric
from int8cal.metrics.boxes import average_precision, detections, mean_ap
from int8cal.metrics.embeddings import ndcg, spearman
from int8cal.metrics.events import auc, f1
from int8cal.metrics.images import psnr, ssim
from int8cal.metrics.segmentation import mean_iou
from int8cal.metrics.speech import read_ctc, word_error_rate

ROOT = Path(int8cal.__file__).parents[1]


def test_every_registered_name_is_that_of_a_function_that_can_be_called():
    project = ROOT / "pyproject.toml"
    if not project.exists():
        pytest.skip("the wheel has no pyproject.toml")
    points = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"]["int8cal.metrics"]
    for name, target in points.items():
        module, _, function = target.partition(":")
        assert function == name
        found = getattr(import_module(module), function)
        if all(_installed(each) for each in getattr(found, "needs", ())):
            assert open_metric(target).name == name


def _installed(module):
    try:
        import_module(module)
    except ModuleNotFoundError:
        return False
    return True


# boxes

BOXES = [[0, 0, 10, 10, 1], [20, 20, 40, 40, 2]]


def found(*rows):
    return np.array([[*box[:4], score, box[4]] for box, score in rows], float)


def test_boxes_that_are_right_have_an_average_precision_of_one():
    pytest.importorskip("pycocotools")
    truth = [np.array(BOXES, float), np.zeros((0, 5))]
    right = found((BOXES[0], 0.9), (BOXES[1], 0.8))
    assert average_precision([right, np.zeros((0, 6))], truth) == pytest.approx(1.0)
    assert average_precision([right[:1], np.zeros((0, 6))], truth) == pytest.approx(0.5)  # one class of two


def test_average_precision_counts_every_overlap_from_half_to_95_percent():
    pytest.importorskip("pycocotools")
    truth = [np.array([[0, 0, 10, 10, 0]], float)]
    shifted = found(([0, 0, 10, 7.7, 0], 0.9))  # IoU 0.77: right at 0.50, 0.55, ... 0.75, which are 6 of 10
    assert average_precision([shifted], truth) == pytest.approx(0.6)


def test_a_false_detection_before_the_right_one_halves_the_precision():
    pytest.importorskip("pycocotools")
    truth = [np.array([[0, 0, 10, 10, 0]], float)]
    both = found(([50, 50, 60, 60, 0], 0.95), ([0, 0, 10, 10, 0], 0.9))
    assert average_precision([both], truth) == pytest.approx(0.5)


def test_candidates_are_chosen_by_score_and_overlap():
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [30, 30, 40, 40], [50, 50, 60, 60]]], float)
    scores = np.array([[[0, 0.9], [0, 0.8], [0, 0.7], [0, 0.01]]], float)
    (rows,) = detections({"boxes": boxes, "scores": scores}, 1)
    assert rows.tolist() == [[0, 0, 10, 10, 0.9, 1], [30, 30, 40, 40, 0.7, 1]]


def test_classes_of_boxes_with_one_score_are_those_of_the_labels():
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 9]]], float)
    outputs = {"bboxes": boxes, "labels": np.array([[3, 3, 1]]), "scores": np.array([[0.9, 0.8, 0.7]])}
    (rows,) = detections(outputs, 1)
    assert rows[:, 4:].tolist() == [[0.7, 1], [0.9, 3]]
    (rows,) = detections({name: outputs[name] for name in ("bboxes", "scores")}, 1)
    assert rows[:, 4:].tolist() == [[0.9, 0]]
    (rows,) = detections({name: each[:, :0] for name, each in outputs.items()}, 1)
    assert rows.shape == (0, 6)


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        ({"boxes": np.zeros((1, 4, 9)), "scores": np.zeros((1, 9, 2))}, r"boxes \(4, 9\)"),
        ({"boxes": np.zeros((1, 9, 4)), "scores": np.zeros((1, 2, 9))}, r"scores \(2, 9\)"),
        ({"boxes": np.zeros((1, 9, 4)), "scores": np.zeros((1, 9)), "labels": np.zeros((1, 5))}, r"labels \(5,\)"),
        ({"boxes": np.zeros((1, 9, 4)), "scores": np.zeros((1, 9)), "labels": np.full((1, 9), 0.5)}, r"labels \(9,\)"),
        ({"raw": np.full((1, 9, 6), 0.5)}, "is a share"),  # as YOLOv5 has it: centre, size, objectness, one class
    ],
)
def test_outputs_of_another_form_are_not_taken_for_boxes(outputs, what):
    with pytest.raises(ModelError, match=what):
        detections(outputs, 1)


def test_a_class_that_codes_have_moved_is_the_nearest():
    (rows,) = detections({"rows": np.array([[[0, 0, 10, 10, 0.9, 16.98], [0, 0, 10, 10, 0.5, 0.01]]])}, 1)
    assert rows[:, 5].tolist() == [17, 0]


def test_mean_ap_reads_rows_of_an_image_each(truth):
    pytest.importorskip("pycocotools")
    origins = truth(".json", [BOXES, []])
    rows = np.empty(2, object)
    rows[0], rows[1] = found((BOXES[0], 0.9), (BOXES[1], 0.8)), np.zeros((0, 6))
    assert mean_ap({"detections": rows}, None, origins) == pytest.approx(1.0)
    with pytest.raises(ModelError, match="expected boxes and scores"):
        mean_ap({"raw": np.zeros((2, 84, 100))}, None, origins)
    with pytest.raises(DataError, match="no image has a box"):
        mean_ap({"detections": rows}, None, truth(".json", [[], []]))


# segmentation


def test_mean_iou_is_the_mean_over_classes_in_the_truth(truth):
    origins = truth(".png", [[[0, 0], [1, 255]], [[1, 1], [0, 0]]])
    found_ = np.array([[[0, 1], [1, 0]], [[1, 1], [0, 2]]])
    expected = (2 / 4 + 3 / 4) / 2  # of class 0: 2 shared, 4 together; of class 1: 3 of 4; class 2 is in no truth
    planes = np.eye(3)[found_]
    for scores in (found_, planes, planes.transpose(0, 3, 1, 2)):
        assert mean_iou({"y": scores}, None, origins) == pytest.approx(expected)
    with pytest.raises(DataError, match=r"its truth has shape \(2, 2\), and the model's output \(3, 4, 4\)"):
        mean_iou({"y": np.zeros((2, 3, 4, 4))}, None, origins)


def test_mean_iou_is_scikit_learns_jaccard_score(truth):
    score = pytest.importorskip("sklearn.metrics").jaccard_score
    rng = np.random.default_rng(1)
    truths, scores = rng.integers(4, size=(3, 8, 9)), rng.normal(size=(3, 4, 8, 9))
    expected = score(truths.ravel(), scores.argmax(axis=1).ravel(), average="macro")
    assert mean_iou({"y": scores}, None, truth(".npy", truths)) == pytest.approx(expected)


# speech


def test_ctc_reads_repetitions_once_and_blanks_not_at_all():
    assert read_ctc(np.eye(5)[[0, 2, 2, 0, 2, 1, 1, 4, 3]], ["", "|", "a", "b", "c"]) == "aa cb"


def test_word_error_rate_counts_words_of_all_samples(truth, tmp_path):
    pytest.importorskip("jiwer")
    origins = truth(".txt", ["a b\n", "b"])
    (tmp_path / "val.truth" / "vocabulary.txt").write_text("\n|\na\nb\n", encoding="utf-8")
    logits = np.empty(2, object)
    logits[0], logits[1] = np.eye(4)[[2, 1, 2]], np.eye(4)[[3]]  # "a a" for "a b", and "b"
    assert word_error_rate({"logits": logits}, None, origins) == pytest.approx(1 / 3)
    assert not open_metric(word_error_rate).higher_is_better


# events


def test_f1_and_auc_of_frames(truth):
    pytest.importorskip("sklearn")
    origins = truth(".json", [[1, 1, 0], [0, 1]])
    scores = np.empty(2, object)
    scores[0], scores[1] = np.array([0.9, 0.4, 0.6]), np.array([0.1, 0.8])
    assert f1({"p": scores}, None, origins) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    pairs = [(p, n) for p in (0.9, 0.4, 0.8) for n in (0.6, 0.1)]
    assert auc({"p": scores}, None, origins) == pytest.approx(np.mean([p > n for p, n in pairs]))
    with pytest.raises(DataError, match=r"has 3 frames, and the model's output 2; .* class scores a metric"):
        f1({"p": scores[[1, 0]]}, None, origins)


def test_f1_of_samples_takes_labels_and_the_second_of_two_columns():
    pytest.importorskip("sklearn")
    labels = np.array([0, 1, 1])
    one = np.array([[0.2], [0.7], [0.4]], np.float32)
    assert f1({"ids": np.zeros((3, 1), int), "p": one}, labels, ["a"] * 3) == pytest.approx(2 / 3)
    assert f1({"p": np.concatenate((1 - one, one), axis=1)}, labels, ["a"] * 3) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="its truth holds 7, expected 0 or 1"):
        f1({"p": one}, np.array([0, 1, 7]), ["a", "b", "c"])


# embeddings


def test_ndcg_is_one_where_a_labels_samples_are_nearest():
    pytest.importorskip("sklearn")
    rows = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    labels = np.array([0, 0, 1, 1])
    assert ndcg({"y": rows}, labels).tolist() == [1, 1, 1, 1]
    # of three others the right one is the last: 1 / log2(4)
    assert ndcg({"y": rows}, np.array([0, 1, 0, 1]))[1] == pytest.approx(1 / math.log2(3))
    with pytest.raises(DataError, match="label 3 has one sample"):
        ndcg({"y": rows}, np.array([0, 0, 0, 3]))
    with pytest.raises(DataError, match="no labels"):
        ndcg({"y": rows}, None)


def test_spearman_compares_the_order_of_pairs(truth):
    pytest.importorskip("scipy")
    origins = truth(".json", [5, 0, 3, 0, 1, 0])
    rows = np.array([[1, 0], [1, 0.1], [1, 0], [1, 1], [1, 0], [-1, 1]])
    assert spearman({"y": rows}, None, origins) == pytest.approx(1.0)
    assert spearman({"y": rows[[4, 5, 2, 3, 0, 1]]}, None, origins) == pytest.approx(-1.0)
    with pytest.raises(DataError, match="5 samples, expected pairs"):
        spearman({"y": rows[:5]}, None, origins[:5])


# images


def test_psnr_is_that_of_the_mean_square_error(truth):
    pytest.importorskip("skimage")
    rng = np.random.default_rng(2)
    right = rng.integers(256, size=(2, 16, 16, 3))
    made = (right / 255 + rng.normal(scale=0.05, size=right.shape)).transpose(0, 3, 1, 2)
    origins = truth(".png", right)
    expected = [-10 * math.log10(np.mean((made[i].transpose(1, 2, 0) - right[i] / 255) ** 2)) for i in range(2)]
    assert psnr({"y": made}, None, origins) == pytest.approx(expected)
    same = ssim({"y": right.transpose(0, 3, 1, 2) / 255}, None, origins)
    assert same == pytest.approx([1.0, 1.0])
    assert (ssim({"y": made}, None, origins) < 0.999).all()
    with pytest.raises(DataError, match="store the truth in the shape"):
        psnr({"y": made[:, :, :8]}, None, origins)
