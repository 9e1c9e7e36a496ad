"""Samples with their truth on disk."""

import json

import numpy as np
import pytest


@pytest.fixture
def truth(tmp_path):
    """Write the truth of samples val/0.jpg, val/1.jpg, ... and return their origins."""

    def write(suffix, values):
        origins = []
        for index, value in enumerate(values):
            file = tmp_path / "val.truth" / "town" / f"{index}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".npy":
                np.save(file, value)
            elif suffix == ".png":
                image = pytest.importorskip("PIL.Image")
                image.fromarray(np.asarray(value, np.uint8)).save(file)
            else:
                file.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
            origins.append(str(tmp_path / "val" / "town" / f"{index}.jpg"))
        return origins

    return write
