"""Statistics on disk: one .npz, the same bytes for the same statistics."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.atomic import atomic_write
from int8cal.calibration.statistics import Statistics
from int8cal.calibration.stored_tensor import ARRAYS, CHANNEL_ARRAYS, tensor_from
from int8cal.data.padding import record, recorded
from int8cal.errors import StatisticsError
from int8cal.input_paths import require_readable

if TYPE_CHECKING:
    from pathlib import Path

FORMAT, VERSION = "int8cal/statistics", 2


def save_statistics(statistics: Statistics, path: Path) -> None:
    """Write statistics atomically.

    Keys: "header" (JSON as uint8), and per tensor "NAME:bins", "NAME:counts" and, with channels, "NAME:channel_*".
    """
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model_sha256": statistics.model_sha256,
        "fingerprint": f"{statistics.fingerprint:032x}",
        "samples": statistics.samples,
        "tensors": {
            name: {
                "zeros": tensor.zeros,
                "minimum": tensor.minimum if tensor.count else None,
                "maximum": tensor.maximum if tensor.count else None,
                "channel_count": tensor.channels.count if tensor.channels is not None else None,
            }
            for name, tensor in statistics.tensors.items()
        },
        **({"padding": record(statistics.padding)} if statistics.padding else {}),
    }
    arrays: dict[str, npt.NDArray[Any]] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for name, tensor in statistics.tensors.items():
        for key in ARRAYS:
            arrays[f"{name}:{key}"] = getattr(tensor, key)
        if tensor.channels is not None:
            for key in CHANNEL_ARRAYS:
                arrays[f"{name}:channel_{key}"] = getattr(tensor.channels, key)
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for key, array in arrays.items():
            member = BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0))
            # a fixed date: the same statistics are the same bytes
            entry = zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # likewise on every system
            archive.writestr(entry, member.getvalue())
    atomic_write(path, buffer.getvalue())


def load_statistics(path: Path) -> Statistics:
    """Read statistics.

    Raises:
        StatisticsError: The file is missing, damaged, not statistics, or of a newer version.
    """
    require_readable(path, StatisticsError, "give a .stats.npz that `int8cal calibrate` wrote")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
        header = json.loads(arrays.pop("header").tobytes())
        if header["format"] != FORMAT or not isinstance(header["version"], int):
            raise ValueError(header["format"])
    except Exception as error:  # zipfile, numpy, json and KeyError all mean the same to the user
        raise StatisticsError(
            "is not a readable statistics file", where=str(path), do="give a .stats.npz that `int8cal calibrate` wrote"
        ) from error
    if header["version"] > VERSION:
        raise StatisticsError(
            f"has format version {header['version']}, this int8cal reads up to {VERSION}",
            where=str(path),
            do="update int8cal",
        )
    try:
        tensors = {name: tensor_from(name, entry, arrays) for name, entry in header["tensors"].items()}
        samples = header["samples"]
        if type(samples) is not int or samples < 0 or type(header["model_sha256"]) is not str:
            raise ValueError("samples or model_sha256")
        padding = recorded(header.get("padding", {}))
        return Statistics(header["model_sha256"], int(header["fingerprint"], 16), samples, tensors, padding)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise StatisticsError(f"is damaged ({error})", where=str(path), do="calibrate again") from error
