from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from int8cal.data.opening import open_feeds
from int8cal.graph.signature import Signature, TensorSpec
from int8cal.job import DataSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from int8cal.data.feeds import Feeds


def _signature(**inputs: Any) -> Signature:
    """x=("N", 3) is a float32 input; x=(("N", 3), np.int64) names the dtype."""
    specs = []
    for name, value in inputs.items():
        shape, dtype = value if value is not None and value and isinstance(value[0], tuple) else (value, np.float32)
        specs.append(TensorSpec(name, np.dtype(dtype), shape))
    return Signature(tuple(specs), ())


@pytest.fixture
def signature() -> Callable[..., Signature]:
    return _signature


@pytest.fixture
def vector() -> Signature:
    """One float32 input x of shape (N, 3)."""
    return _signature(x=("N", 3))


@pytest.fixture
def pair() -> Signature:
    """Two inputs that share the batch and the length: ids int64 (N, L), weight float32 (N, L)."""
    return _signature(ids=(("N", "L"), np.int64), weight=("N", "L"))


@pytest.fixture
def rgb() -> Signature:
    """One float32 input x of shape (N, 3, 8, 8)."""
    return _signature(x=("N", 3, 8, 8))


@pytest.fixture
def feeds(monkeypatch) -> Callable[..., Feeds]:
    """open_feeds with the settings as keywords, and with the working directory as `base`."""

    def open_(
        path: object, signature: Signature, *, base: Path | None = None, require_labels: bool = False, **settings: Any
    ) -> Feeds:
        if base is not None:
            monkeypatch.chdir(base)
        return open_feeds(DataSettings(str(path), **settings), signature, require_labels=require_labels)

    return open_


@pytest.fixture
def paint() -> Callable[..., Path]:
    """Write an image of random pixels, or of the given ones; the parent folders are made."""

    def write(path: Path, size: tuple[int, int] = (8, 8), mode: str = "RGB", pixels: object = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
        seed = sum(path.name.encode())
        values = np.random.default_rng(seed).integers(0, 256, shape) if pixels is None else np.asarray(pixels)
        Image.fromarray(values.astype(np.uint8)).save(path)
        return path

    return write
