"""Where the truth of a sample lies: in a folder beside the data's, with .truth behind its name.

photos/val/street/1.jpg has its truth in photos/val.truth/street/1.json (or .txt, .npy, .png). A file of several
samples, such as val/frames.npz, has one array or list in val.truth/frames.npy or .json, with a row for each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

_ROW = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)
END = ".truth"


def truth_of(origin: str, *suffixes: str) -> Any:
    """Load the truth of a sample.

    Args:
        origin: Of the sample: its file, and "[row]" behind it where that holds several.
        suffixes: Of the files that the metric can read, such as ".json".

    Returns:
        What the file holds, or its row: text of .txt, what .json holds, an array of .npy, pixels of .png.

    Raises:
        DataError: There is no such file, it cannot be read, or it has no such row.
    """
    match = _ROW.fullmatch(origin)
    name, row = (match[1], int(match[2])) if match else (origin, None)
    file = _file(name, origin, suffixes)
    try:
        whole = _READERS[file.suffix](file)
        return whole if row is None else whole[row]
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot be read: {type(error).__name__}: {error}",
            where=str(file),
            do=f"it should hold the truth of {origin}",
        ) from error


def folder_of(origin: str) -> Path:
    """Find the folder with the truth of a sample's data.

    Raises:
        DataError: There is none.
    """
    return _folder(Path(_bare(origin)), origin)[0]


def _bare(origin: str) -> str:
    match = _ROW.fullmatch(origin)
    return match[1] if match else origin


def _folder(path: Path, origin: str) -> tuple[Path, Path]:
    """Find the folder, and the sample's file under the folder that it stands beside."""
    for above in path.parents:
        beside = above.with_name(above.name + END) if above.name else None
        if beside is not None and beside.is_dir():
            return beside, path.relative_to(above)
    if nearest := path.parent.name:
        what, do = f'has no truth: there is no folder "{nearest}{END}" beside "{nearest}"', "put the truth there"
    else:
        what = "has no truth: it lies in no folder that one with truth could stand beside"
        do = f'move it into one, such as "val", and its truth into "val{END}"'
    raise DataError(what, where=origin, do=f"{do}, or write a metric of your own")


def _file(name: str, origin: str, suffixes: tuple[str, ...]) -> Path:
    folder, below = _folder(Path(name), origin)
    candidates = [folder / below.with_suffix(suffix) for suffix in suffixes]
    found = next((each for each in candidates if each.is_file()), None)
    if found is None:
        listed = " or ".join(str(each) for each in candidates)
        raise DataError(f"has no truth: expected {listed}", where=origin, do="write it, or take the sample out")
    return found


def _pixels(file: Path) -> npt.NDArray[np.uint8]:
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image)


_READERS: dict[str, Any] = {
    ".json": lambda file: json.loads(file.read_text(encoding="utf-8")),
    ".txt": lambda file: file.read_text(encoding="utf-8"),
    ".npy": lambda file: np.load(file, allow_pickle=False),
    ".png": _pixels,
}
