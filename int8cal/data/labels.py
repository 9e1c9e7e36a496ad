"""Labels: a CSV file, class folders, a list in the order of the samples, or those that .npz files carry themselves."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.arrays import ArrayPart, read_npy
from int8cal.data.find import LABELS, holds, visible_files
from int8cal.data.fit import LABEL_KEYS, label_values
from int8cal.data.remote import is_url
from int8cal.data.sample import row_name
from int8cal.errors import DataError
from int8cal.io.paths import from_home, require_no_device
from int8cal.phrases import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.data.find import Found
    from int8cal.data.sample import Part

_FILE_HEADINGS = ("file", "filename", "file_name", "path", "image", "name")
_LABEL_HEADINGS = ("label", "labels", "class", "class_id", "class_name", "target")
COLUMN = "column:"  # of labels that are a column's
NONE = "none"  # no labels, whatever lies there
# Folders of these names alone are parts of a set, whose classes lie below them.
_SPLITS = {"calib", "calibration", "dev", "eval", "holdout", "test", "testing", "train", "training", "val"}
_SPLITS |= {"valid", "validation"}
_FRACTION = re.compile(r"([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)?")  # or nothing: both are no class's name
_ROW = re.compile(r"\[\d+\]$")
_SHOWN = 3  # folders in a message
_DIGITS = 18  # of a class index, its sign included
_FORM = "write one line file,label per sample"
_NO_CLASSES = (
    "correct it, or leave --labels out; of a target that is no class, leave it out and name the columns that the input "
    "takes: --column NAME for each (data.columns in a YAML)"
)
_LIST = 'give one integer per sample: --labels with a text of one per line or an .npy, or the key "labels" of an .npz'


@dataclass(frozen=True)
class Labels:
    """Labels of samples.

    Attributes:
        values: One class index >= 0 per sample.
        names: Class names that were numbered by their sorted order, in that order; none where labels are numbers.
    """

    values: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoClasses:
    """Folders that nobody called classes, and that cannot be the model's; `why` is a clause that names them."""

    why: str


def labels_file(setting: str | None) -> Path | None:
    """Return the file that a setting names; None for "folders", "none", a column, or nothing."""
    named = setting is None or setting in ("folders", NONE) or setting.startswith(COLUMN)
    return None if named else from_home(str(setting))


@dataclass(frozen=True)
class _Row:
    line: int
    file: str
    label: str


def find_labels(
    found: Found, parts: Sequence[tuple[str, Part]], setting: str | None, classes: int | None
) -> Labels | NoClasses | None:
    """Give every sample its label.

    Args:
        found: Where the files lie.
        parts: (place under the root, file), in order.
        setting: "folders", a CSV path (for one file of several samples also a text of one integer per line, or an
            .npy), "column:NAME", "none", or None. None takes what is there: labels in the files, else labels.csv beside
            the data, else class folders for images and sounds (a lone folder that is not a number is no class, nor are
            folders that cannot be the model's classes).
        classes: How many the model has; None where it does not say.

    Returns:
        One class index >= 0 per sample; None when there are no labels, and why folders were not taken for them.

    Raises:
        DataError: Labels that were asked for and are not there, or that do not match the samples.
    """
    if setting == NONE:
        return None
    if setting == "folders":
        return _from_folders(found, parts)
    if setting is not None and setting.startswith(COLUMN):
        own = [part for _, part in parts if part.labels is not None]
        other_key = setting.removeprefix(COLUMN) not in LABEL_KEYS  # than that which holds the labels of an .npz
        if len(own) < len(parts) or (other_key and any(isinstance(part, ArrayPart) for part in own)):
            raise DataError(
                f'labels "{setting}": only .csv, .tsv, .jsonl and datasets have columns',
                where=found.root.as_posix(),
                do='use a CSV of file,label, class folders, or the key "labels" of .npz files without --labels',
            )
        return own_labels(own, declared=True)
    if setting is not None:
        path = from_home(setting)
        require_no_device(path, DataError, 'give a CSV file, "folders" or "none"')
        listed = _list_in(path, parts)
        return _from_csv(path, found, parts) if listed is None else listed
    own = [part for _, part in parts if part.labels is not None]
    if own:
        bare = next((part for _, part in parts if part.labels is None), None)
        if bare is not None:
            raise DataError(
                f'has no key "labels", {own[0].name} has', where=bare.name, do="store labels in every file or in none"
            )
        return own_labels(own, declared=False)
    beside = found.root / LABELS
    if beside.is_file():
        return _from_csv(beside, found, parts)
    if found.kind not in ("image", "audio") or not all("/" in relative for relative, _ in parts):
        return None
    folders = _class_folders(found)
    if len(folders) == 1 and not _is_number(folders[0]):
        return None
    why = _why_no_classes(folders, classes)
    if not why:
        return _from_folders(found, parts)
    return NoClasses(f"folders are not taken for classes ({_listed(folders)}): {why}")


def _listed(folders: Sequence[str]) -> str:
    more = f", ... ({len(folders)} in all)" if len(folders) > _SHOWN else ""
    return quoted(folders[:_SHOWN]) + more


def _why_no_classes(folders: Sequence[str], classes: int | None) -> str:
    """Say why folders cannot be the classes of a model; empty where they can."""
    if _SPLITS.issuperset(map(str.lower, folders)):
        return "such names are those of parts of a set"
    if all(map(_is_number, folders)):
        numbers = [int(folder) for folder in folders]
        if len(set(numbers)) < len(numbers):
            return "two of them are the same number"
        return "" if classes is None or max(numbers) < classes else f"the model's are 0 to {classes - 1}"
    return "" if classes in (None, len(folders)) else f"the model has {classes}"


def own_labels(parts: Sequence[Part], *, declared: bool) -> Labels | None:
    """Make labels of those that files carry: numbers as they are, names by their sorted order.

    Args:
        parts: All of them carry labels.
        declared: Whether labels were asked for; else a column that holds no classes is none of labels.

    Returns:
        One class index per sample; None where the column holds no classes.

    Raises:
        DataError: A declared column holds something else; names the sample.
    """
    values = [value for part in parts for value in part.labels or ()]
    numbers = [_number(value) for value in values]
    names = [value for value in values if isinstance(value, str) and _FRACTION.fullmatch(value.strip()) is None]
    if None not in numbers:
        return Labels(tuple(number for number in numbers if number is not None))
    if len(names) == len(values) and not any(number is not None for number in numbers):
        order = sorted(set(names))
        indices = {name: index for index, name in enumerate(order)}
        return Labels(tuple(indices[name] for name in names), tuple(order))
    if not declared:
        return None
    place = numbers.index(None)
    where = [part.where(row) for part in parts for row in range(part.rows)][place]
    what = f"label {values[place]!r:.60} is no class: neither an integer of at least 0, nor a name among names"
    raise DataError(what, where=where, do=_NO_CLASSES)


def _number(value: object) -> int | None:
    """Read a class index; None for what is none."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d+\s*", value):
        # stripped: int takes fewer characters for white space than regular expressions do
        return int(value.strip()) if len(value.strip()) <= _DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def class_indices(folders: Sequence[str]) -> dict[str, int]:
    """Give each class folder its index: its own number when all names are integers, else its place in sorted order.

    Raises:
        DataError: Two names are the same number ("1" and "01").
    """
    if not all(map(_is_number, folders)):
        return {folder: index for index, folder in enumerate(sorted(folders))}
    indices = {folder: int(folder) for folder in sorted(folders, key=int)}
    if len(set(indices.values())) != len(indices):
        twice = next(f for f in indices if list(indices.values()).count(indices[f]) > 1)
        raise DataError(f"two class folders are class {int(twice)}", where=twice, do="merge them")
    return indices


def _is_number(name: str) -> bool:
    return re.fullmatch(r"[0-9]+", name) is not None


def _class_folders(found: Found) -> list[str]:
    """List the classes: folders that hold samples, chosen by the glob or not, and empty ones (they keep an index)."""
    holding = {place.split("/")[0] for place in map(found.place, found.files) if "/" in place}
    # file systems elsewhere have no empty folders
    for entry in () if is_url(found.root.as_posix()) else found.root.iterdir():
        if entry.name in holding or entry.name.startswith(".") or not entry.is_dir():
            continue
        if holds(entry, found.kind) or next(visible_files(entry), None) is None:
            holding.add(entry.name)
    return sorted(holding)


def _from_folders(found: Found, parts: Sequence[tuple[str, Part]]) -> Labels:
    flat = next((part for relative, part in parts if "/" not in relative), None)
    if flat is not None:
        raise DataError(
            "lies in no class folder",
            where=flat.name,
            do="move it into a folder named after its class, or use labels.csv" if flat.rows == 1 else _LIST,
        )
    indices = class_indices(_class_folders(found))
    values = tuple(indices[relative.split("/")[0]] for relative, part in parts for _ in range(part.rows))
    return Labels(values, _numbered(indices))


def _numbered(indices: dict[str, int]) -> tuple[str, ...]:
    """Return the classes' names in their order, where that is what numbered them."""
    return () if all(map(_is_number, indices)) else tuple(indices)


def _list_in(path: Path, parts: Sequence[tuple[str, Part]]) -> Labels | None:
    """Read labels that stand in the order of the samples of one file; None where the file is no such list.

    Raises:
        DataError: Not one label >= 0 per sample, or an .npy beside several files.
    """
    where, stack = path.as_posix(), parts[0][1]
    if path.suffix.lower() == ".npy":
        if len(parts) > 1:
            raise DataError(f"labels of {len(parts)} files need their names", where=where, do=_FORM)
        return Labels(label_values(read_npy(path), stack.rows, where))
    if len(parts) > 1 or stack.rows == 1:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").split()
    except (OSError, UnicodeDecodeError):
        return None  # told by whoever reads it as a CSV
    if not lines or any(_number(line) is None for line in lines):
        return None
    return Labels(label_values(np.array(lines, np.int64), stack.rows, where))


def _from_csv(path: Path, found: Found, parts: Sequence[tuple[str, Part]]) -> Labels:
    where = path.as_posix()
    held = {relative: part.rows for relative, part in parts}
    rows = _read_csv(path, where, _LIST if len(parts) == 1 and parts[0][1].rows > 1 else _FORM)
    by_sample: dict[str, tuple[int, _Row]] = {}
    numbers, names = _numbers(rows, found, where)
    for row, number in zip(rows, numbers, strict=True):
        key = _place(row.file, found.root, path.parent)
        if key is None:
            raise _row_error(row, f'"{row.file}" does not exist', where, "fix or remove the line")
        if key in by_sample:
            raise _row_error(
                row, f'"{row.file}" is listed twice', where, "keep one" if held.get(key, 1) == 1 else _LIST
            )
        by_sample[key] = (number, row)
    labels: list[int] = []
    for relative, part in parts:
        for index in range(part.rows):
            wanted = row_name(relative, index, part.rows)
            if wanted not in by_sample:
                raise DataError(f'has no row for "{wanted}"', where=where, do=f"add a line {wanted},<label>")
            labels.append(by_sample.pop(wanted)[0])
    # what is left may name files that a glob did not choose, but no rows of files that it did
    for key, (_, row) in by_sample.items():
        bare = _ROW.sub("", key)
        if bare in held:
            raise _row_error(row, f'"{row.file}" is no sample, {bare} holds {held[bare]}', where, "remove the line")
    return Labels(tuple(labels), names)


def _place(file: str, root: Path, csv_folder: Path) -> str | None:
    """Turn a CSV's file (from the data's folder, from the CSV's, or in full) into a place under the root."""
    if is_url(root.as_posix()):  # what is not there is told as a sample that has no row
        return PurePosixPath(file).as_posix()
    for start in (root, csv_folder):
        whole = os.path.abspath(start / file)  # noqa: PTH100 - resolve() would follow the links that name the samples
        if os.path.lexists(whole) or os.path.lexists(_ROW.sub("", whole)):
            return os.path.relpath(whole, root).replace(os.sep, "/")
    return None


def _row_error(row: _Row, what: str, where: str, do: str) -> DataError:
    return DataError(f"line {row.line}: {what}", where=where, do=do, line=row.line)


def _read_csv(path: Path, where: str, form: str) -> list[_Row]:
    rows: list[_Row] = []
    file_column = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                line = reader.line_num
                if any("\0" in cell for cell in cells):
                    raise _row_error(
                        _Row(line, "", ""), "holds zero bytes, as UTF-16 does", where, f"save it as UTF-8: {form}"
                    )
                if len(cells) != 2 or not all(cell.strip() for cell in cells):
                    found = ",".join(cells)
                    raise _row_error(_Row(line, "", ""), f'"{found}" is not file,label', where, form)
                first, second = (cell.strip() for cell in cells)
                if not rows and first.lower() in _FILE_HEADINGS and second.lower() in _LABEL_HEADINGS:
                    continue
                if not rows and second.lower() in _FILE_HEADINGS and first.lower() in _LABEL_HEADINGS:
                    file_column = 1
                    continue
                if file_column:
                    first, second = second, first
                rows.append(_Row(line, first, second))
    except FileNotFoundError as error:
        raise DataError(
            "the label file does not exist", where=where, do='give a CSV file, "folders" or "none"'
        ) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the label file cannot be read: {error}", where=where, do=f"{form}, in UTF-8") from error
    if not rows:
        raise DataError("the label file is empty", where=where, do=form)
    return rows


def _numbers(rows: Sequence[_Row], found: Found, where: str) -> tuple[list[int], tuple[str, ...]]:
    """Turn label texts into class indices: integers as they are, names by the sorted order of folders or names.

    Returns:
        The indices, and the names in the order that numbered them.
    """
    numeric = [re.fullmatch(r"[+-]?\d+", row.label) is not None for row in rows]
    if not any(numeric):
        names = {row.label for row in rows}
        folders = set(_class_folders(found))
        fraction = None if names <= folders else next((row for row in rows if _FRACTION.fullmatch(row.label)), None)
        if fraction is not None:  # sorted as a name, "10.0" comes before "2.0"
            what = f'label "{fraction.label[:40]}" is no class: neither an integer of at least 0, nor a name'
            do = "write classes as integers, 2 and not 2.0; of a target that is no class, leave --labels out"
            raise _row_error(fraction, what, where, do)
        indices = class_indices(sorted(folders) if names <= folders else sorted(names))
        return [indices[row.label] for row in rows], _numbered(indices)
    for row, is_number in zip(rows, numeric, strict=True):
        if not is_number or len(row.label) > _DIGITS or int(row.label) < 0:
            what = "outside >= 0" if is_number else "not an integer like the others"
            do = "number the classes from 0, or give every label as a class name"
            raise _row_error(row, f'label "{row.label[:40]}" is {what}', where, do)
    return [int(row.label) for row in rows], ()
