"""Data for the models of verdict_models: small scenes, features, sentences and waves, from a seed."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = 8
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_HUES = ("red", "orange", "green", "mint", "cyan", "blue", "violet", "pink")
# Class k is the k-th hue; folders are in the order of the classes.
NAMES = tuple(f"{k}_{name}" for k, name in enumerate(_HUES))
# The same classes under names whose order is another one.
OTHER_ORDER = ("tomato", "orange", "lime", "mint", "cyan", "blue", "violet", "rose")


def scenes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw pictures (n, 16, 16, 3) uint8 with a disc in the hue of the class before an unsteady background."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(0, 34, (len(labels), 4, 4, 3)) + rng.normal(0, 14, (len(labels), 1, 1, 1))
    pictures = 255 * MEAN + np.kron(coarse, np.ones((1, 4, 4, 1))) + rng.normal(0, 8, (len(labels), 16, 16, 3))
    rows, columns = np.mgrid[:16, :16]
    for picture, label in zip(pictures, labels, strict=True):
        row, column = rng.uniform(5, 11, 2)
        colour = 255 * np.array(colorsys.hsv_to_rgb((label + rng.uniform(-0.2, 0.2)) / CLASSES, 0.85, 0.9))
        inside = (rows - row) ** 2 + (columns - column) ** 2 < rng.uniform(16, 25)
        picture[inside] = 0.2 * picture[inside] + 0.8 * colour
    return np.clip(np.rint(pictures), 0, 255).astype(np.uint8)


def normalized(pictures: np.ndarray) -> np.ndarray:
    """What the RGB models were trained on: (n, 3, 16, 16) float32."""
    values = (pictures / 255 - MEAN) / STD
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)


def balanced(count: int) -> np.ndarray:
    return np.arange(count) % CLASSES


def save(folder: Path, pictures: np.ndarray, labels: np.ndarray, names: tuple[str, ...] = NAMES) -> None:
    """Write PNG files in one folder per class."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        Image.fromarray(picture).save(folder / names[label] / f"{number:03}.png")


def flat(folder: Path, pictures: np.ndarray) -> None:
    """Write PNG files side by side."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number:03}.png")


def features(count: int, seed: int) -> np.ndarray:
    """Rows (n, 32) of features that hang together, as those of real things do."""
    mixing = np.random.default_rng(11).normal(0, 0.4, (8, 32))
    rng = np.random.default_rng(seed)
    return (rng.normal(0, 1, (count, 8)) @ mixing + rng.normal(0, 0.15, (count, 32))).astype(np.float32)


def sentences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input_ids and attention_mask (n, 12), and the topic of each: from which third of the words most come."""
    rng = np.random.default_rng(seed)
    topics = np.arange(count) % 3
    words = np.where(rng.random((count, 12)) < 0.7, 1 + 13 * topics[:, None] + rng.integers(0, 13, (count, 12)), 0)
    words = np.where(words == 0, rng.integers(1, 40, (count, 12)), words)
    mask = (np.arange(12) < rng.integers(5, 13, (count, 1))).astype(np.int64)
    return (words * mask).astype(np.int64), mask, topics


def waves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return waves (n, 1, 256), and whether each has a voice: a low tone with overtones above the noise."""
    rng = np.random.default_rng(seed)
    heard = np.arange(count) % 2
    time = np.arange(256)
    pitch = rng.uniform(0.03, 0.06, (count, 1))
    voice = sum(np.sin(2 * np.pi * k * pitch * time + rng.uniform(0, 6, (count, 1))) / k for k in (1, 2, 3))
    sound = 0.3 * heard[:, None] * voice + rng.normal(0, 0.06, (count, 256))
    return sound[:, None].astype(np.float32), heard
