"""Boxes: mean average precision as COCO defines it, by pycocotools.

Truth: a .json file for each image, [[left, top, right, bottom, class], ...] in the unit of the model's boxes; [] for
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import DataError, ModelError
from int8cal.metrics.outputs import Outputs, needs, output_named
from int8cal.metrics.truth import truth_of
from int8cal.numerics.boxes import overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.numerics import Array, Float64


_LEAST_SCORE, _OVERLAP, _MOST = 0.05, 0.5, 100  # of detections: score, IoU beyond which one is dropped, per image


@needs("pycocotools")
def mean_ap(outputs: Outputs, labels: object, origins: list[str]) -> float:  # noqa: ARG001 - every metric gets labels
    """Mean average precision over IoU 0.50 to 0.95 and the classes in the truth.

    Args:
        outputs: One with rows (left, top, right, bottom, score, class), or one whose name holds "box", (K, 4), and one
            whose name holds "score" or "conf", (K, classes), or (K,): then classes are those of an output whose name
            holds "label" or "class", (K,), or 0 where there is none. Of these the detections are chosen here: score
            0.05 or more, no overlap of IoU above 0.5 with a better one of the class.
        labels: Not used.
        origins: The images; their truth lies beside them.
    """
    truths = [np.asarray(truth_of(origin, ".json"), np.float64).reshape(-1, 5) for origin in origins]
    return average_precision(detections(outputs, len(origins)), truths)


def detections(outputs: Outputs, samples: int) -> list[Float64]:
    """Read the detections of each image, (K, 6): left, top, right, bottom, score, class.

    A class that int8 codes have moved is the nearest one.

    Raises:
        ModelError: The outputs are not of the form that `mean_ap` expects.
    """
    boxes, scores = output_named(outputs, "box"), output_named(outputs, "score", "conf")
    if boxes is not None and scores is not None:
        others = {name: each for name, each in outputs.items() if each is not boxes and each is not scores}
        labels = output_named(others, "label", "class")
        return [
            _chosen(*_candidates(box, score, None if labels is None else labels[index]))
            for index, (box, score) in enumerate(zip(boxes, scores, strict=True))
        ]
    rows = next(iter(outputs.values()))
    found = [np.asarray(rows[index], np.float64) for index in range(samples)]
    if any(each.shape[-1:] != (6,) for each in found):
        raise _unknown_form(f"has outputs {', '.join(outputs)}")
    classes = np.concatenate([each[..., 5].reshape(-1) for each in found])
    if ((classes >= 0) & (classes <= 1)).all() and (classes != np.rint(classes)).any():
        raise _unknown_form("has rows whose sixth value is a share, as in YOLO's raw rows of one class")
    return [np.concatenate((each[..., :5], np.rint(each[..., 5:])), axis=-1).reshape(-1, 6) for each in found]


def _unknown_form(what: str) -> ModelError:
    return ModelError(
        f"{what}, expected boxes and scores, or rows of four corners, score and class",
        do="write a metric that decodes them and calls int8cal.metrics.boxes.average_precision",
    )


def _candidates(box: Array, score: Array, label: Array | None) -> tuple[Float64, Float64, Float64]:
    """Bring an image's boxes and scores into the shapes (K, 4) and (K, classes), with the number of each class.

    Raises:
        ModelError: They have others, such as (4, K) and (classes, K), or labels are no classes.
    """
    boxes, scores = np.asarray(box, np.float64), np.asarray(score, np.float64)
    count = boxes.size // 4
    lengths = tuple(length for length in scores.shape if length != 1)
    if boxes.shape[-1:] != (4,) or (count > 1 and lengths[:1] != (count,)):
        raise _unknown_form(f"has boxes {boxes.shape} and scores {scores.shape}, not (K, 4) and (K, classes) or (K,)")
    boxes = boxes.reshape(count, 4)
    if label is None or scores.size != count or not count:
        by_class = scores.reshape(count, -1) if count else np.empty((0, 1))
        return boxes, by_class, np.arange(by_class.shape[1], dtype=np.float64)
    labels = np.asarray(label, np.float64).reshape(-1)
    if len(labels) != count or not (labels == np.rint(labels)).all():
        raise _unknown_form(f"has {count} boxes with labels {np.shape(label)} that are no class of each")
    kinds = np.unique(labels)
    return boxes, np.where(labels[:, None] == kinds, scores.reshape(count, 1), 0.0), kinds


def average_precision(detected: Sequence[Float64], truths: Sequence[Float64]) -> float:
    """Compute COCO's mean average precision.

    Args:
        detected: For each image (K, 6): left, top, right, bottom, score, class; at most 100 count.
        truths: For each image (M, 5): left, top, right, bottom, class.

    Raises:
        DataError: There is no box in the truth.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    classes = sorted({int(row[4]) for truth in truths for row in truth})
    if not classes:
        raise DataError("no image has a box in its truth", do="average precision needs one")
    truth, found = COCO(), COCO()
    for coco, images in ((truth, truths), (found, detected)):
        coco.dataset = {
            "images": [{"id": image} for image in range(len(truths))],
            "categories": [{"id": each} for each in classes],
            "annotations": _annotations(images, set(classes)),
        }
        coco.createIndex()
    judge = COCOeval(truth, found, "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    return float(judge.stats[0])


def _annotations(images: Sequence[Float64], classes: set[int]) -> list[dict[str, Any]]:
    annotations: list[dict[str, Any]] = []
    for image, rows in enumerate(images):
        for left, top, right, bottom, *score, kind in rows.tolist():
            if int(kind) not in classes:
                continue
            width, height = right - left, bottom - top
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(kind),
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    **({"score": score[0]} if score else {}),
                }
            )
    return annotations


def _chosen(boxes: Float64, scores: Float64, kinds: Float64) -> Float64:
    """Choose detections from all candidates, class by class: greedy non-maximum suppression."""
    rows = []
    for kind, column in zip(kinds.tolist(), scores.T, strict=True):
        order = np.argsort(-column, kind="stable")
        order = order[column[order] >= _LEAST_SCORE]
        kept: list[int] = []
        while len(order) and len(kept) < _MOST:
            best, order = int(order[0]), order[1:]
            kept.append(best)
            order = order[overlaps(boxes[best : best + 1], boxes[order])[0] <= _OVERLAP]
        rows += [[*boxes[index], column[index], kind] for index in kept]
    return np.array(rows, np.float64).reshape(-1, 6)
