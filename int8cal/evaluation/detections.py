"""Detections of both models side by side: boxes with scores, after the suppression that a detector's user does.

Whether four channels are boxes, and how they give them, is told by the FP32 model's values; where these are neither
corners nor centres and sizes on every sample, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.sample_figures import SampleFigure, Shares
from int8cal.numerics.boxes import corners, match, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from int8cal.numerics import Array, Float64, Indices


# Of detectors' demonstrations: YOLO's default score, and the overlap that torchvision and most others suppress at.
LEAST_SCORE = 0.25
SUPPRESSED = 0.5
SAME_BOX = 0.5
CANDIDATES, DETECTIONS = 1000, 100
# Of the boxes of a sample; corners may meet and far anchors' boxes may leave the picture a little.
_ORDERED, _INSIDE, _SLACK = 0.99, 0.95, 0.1
_LEAST_BOXES = 20  # fewer, over all samples, tell nothing
_LOGIT = float(np.log(LEAST_SCORE / (1.0 - LEAST_SCORE)))

BOX_FIGURES = ("box_recall", "box_precision", "box_iou")


def _ordered(boxes: Float64) -> bool:
    """Whether these are corners: left of right and above below."""
    return bool((boxes[:, :2] <= boxes[:, 2:]).all(axis=1).mean() >= _ORDERED)


def _sized(boxes: Float64) -> bool:
    """Whether these are centres and sizes of boxes that lie in a picture which begins at 0."""
    positive = (boxes[:, 2:] >= 0.0).all(axis=1).mean()
    found = corners(boxes)
    slack = _SLACK * found.max(axis=0)[2:]
    return bool(positive >= _ORDERED and (found[:, :2] >= -slack).all(axis=1).mean() >= _INSIDE)


@dataclass
class _Layout:
    """What four channels may mean, and the detections if they do; `fits` while no sample speaks against it."""

    name: str
    is_so: Callable[[Float64], bool]
    to_corners: Callable[[Float64], Float64]
    fits: bool = True
    found: Shares = field(default_factory=Shares)
    right: Shares = field(default_factory=Shares)
    overlap: Shares = field(default_factory=Shares)


class Detections:
    """Counts detections that both models have; `add` samples, then read `figures`."""

    def __init__(self) -> None:
        # corners are centres and sizes as well as far as signs tell, so they come first
        self._layouts = [_Layout("x1 y1 x2 y2", _ordered, lambda boxes: boxes), _Layout("cx cy w h", _sized, corners)]
        self._boxes = 0
        self._without: set[int] = set()

    def add(self, boxes: tuple[Array, Array], scores: tuple[Array, Array]) -> None:
        """Count one sample.

        Args:
            boxes: Of the FP32 and the int8 model, shape (objects, 4).
            scores: Likewise, shape (objects, classes): probabilities, or logits.
        """
        fp32 = boxes[0].astype(np.float64)
        self._boxes += len(fp32)
        for layout in self._layouts:
            layout.fits = layout.fits and layout.is_so(fp32)
        if not any(layout.fits for layout in self._layouts):
            return
        reading = _Reading(scores[0])
        if reading.background is not None:
            self._without.add(reading.background)
        picked = [reading.candidates(each) for each in scores]
        for layout in self._layouts:
            if not layout.fits:
                continue
            first, second = (
                _kept(layout.to_corners(each[objects].astype(np.float64)), classes)
                for each, (objects, classes) in zip(boxes, picked, strict=True)
            )
            shared = match(*first, *second, SAME_BOX)
            layout.found.add(len(shared), len(first[0]))
            layout.right.add(len(shared), len(second[0]))
            layout.overlap.add(sum(shared), len(shared))

    @property
    def silent(self) -> str:
        """Why nothing is said; empty where these are boxes."""
        if not any(layout.fits for layout in self._layouts):
            return "its channels are not the corners, nor the centre and size, of boxes on every sample"
        if len(self._without) > 1:
            classes = " and ".join(map(str, sorted(self._without)))
            return f"classes {classes} seem to be the background on different samples, as of no detector"
        return "" if self._boxes >= _LEAST_BOXES else f"{self._boxes} boxes are too few to tell that they are boxes"

    def figures(self) -> Iterator[SampleFigure]:
        """Sum up what there is where `silent` is empty."""
        layout = next(each for each in self._layouts if each.fits)
        background = "".join(f" (class {each} is the background)" for each in self._without)
        kept = (
            f"boxes {layout.name} with a score of {LEAST_SCORE} or more{background}, at most {CANDIDATES} a sample, "
            f"after NMS at IoU {SUPPRESSED} within each class the {DETECTIONS} best; "
            f"the same where they overlap by an IoU of {SAME_BOX} or more within a class"
        )
        none = "the {} model detects nothing with a score of " + str(LEAST_SCORE)
        fp32, int8 = none.format("FP32"), none.format("int8")
        again = "no FP32 detection is found again"
        recall, precision, iou = BOX_FIGURES
        yield layout.found.figure(recall, f"share of FP32 detections found again: {kept}", fp32)
        yield layout.right.figure(precision, f"share of int8 detections that FP32 has too: {kept}", int8)
        yield layout.overlap.figure(iou, f"mean IoU of FP32 detections found again: {kept}", again)


class _Reading:
    """How scores are read, as the FP32 model's tell: whether they are logits, and which class is the background.

    A class that more than half of all objects have at more than one half is the background of a Softmax: no picture
    shows objects of one class at most places.
    """

    def __init__(self, scores: Array) -> None:
        self.logits = bool(scores.min() < -1e-6 or scores.max() > 1.0 + 1e-6)
        often = (scores > (0.0 if self.logits else 0.5)).mean(axis=0)
        background = int(often.argmax())
        self.background = background if len(often) > 1 and often[background] > 0.5 else None

    def candidates(self, scores: Array) -> tuple[Indices, Indices]:
        """Return objects and classes of the best scores, the best first."""
        least = _LOGIT if self.logits else LEAST_SCORE
        if self.background is not None:
            if self.logits:
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                scores /= scores.sum(axis=1, keepdims=True)
                least = LEAST_SCORE
            scores = scores.copy()
            scores[:, self.background] = -np.inf
        objects, classes = np.nonzero(scores >= least)
        order = np.argsort(-scores[objects, classes], kind="stable")[:CANDIDATES]
        return objects[order], classes[order]


def _kept(boxes: Float64, classes: Indices) -> tuple[Float64, Indices]:
    stay = suppress(boxes, classes, SUPPRESSED, DETECTIONS)
    return boxes[stay], classes[stay]


def joined_scores(parts: Sequence[Array]) -> Array:
    """Put the scores of objects together: classes beside each other; a single column before several is objectness.

    Args:
        parts: Scores of the same objects, each (objects, columns), in the order of their channels.

    Returns:
        Shape (objects, classes). With objectness and class scores a detection's score is their product (YOLOv5, YOLOX).
    """
    if len(parts) == 2 and parts[0].shape[1] == 1 and parts[1].shape[1] > 1:
        product: Array = parts[0] * parts[1]
        return product
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
