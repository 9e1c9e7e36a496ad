"""datasets:NAME as a source: a dataset of the Hugging Face Hub or on this disk, read by the library `datasets`.

The library keeps datasets as Arrow files on disk and maps them into memory, so that one row at a time is really there.
Its cache and its environment variables (HF_HUB_OFFLINE, HF_HOME, HF_DATASETS_CACHE, …) hold here as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from int8cal.errors import DataError
from int8cal.extras import extra_hint
from int8cal.io.paths import from_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from int8cal.data.columns import ColumnKind, RowPlan
    from int8cal.data.sample import Fitted

PREFIX = "datasets:"
# a split may be a slice or a sum of them: "train[:10%]+validation"
_SPELLING = re.compile(r"(?P<name>.+?)(:(?P<split>[^\W\d][\w.]*(\[[^\]]*\])?(\+[\w.]+(\[[^\]]*\])?)*))?", re.DOTALL)


def is_dataset(text: str) -> bool:
    """Tell "datasets:NAME[/config][:split]" from a path or a function."""
    return text.startswith(PREFIX)


def dataset_below(text: str, base: Path) -> str:
    """Return the name of a dataset, one that is a path told from `base`."""
    found = _SPELLING.fullmatch(text.removeprefix(PREFIX))
    path = base / from_home(found["name"]) if found is not None else base
    if found is None or not path.exists():
        return text
    return f"{PREFIX}{path}" + (f":{found['split']}" if found["split"] else "")


def dataset_path(text: str) -> Path | None:
    """Return where a dataset of this disk is; None for one of the Hub."""
    found = _SPELLING.fullmatch(text.removeprefix(PREFIX))
    path = None if found is None else from_home(found["name"])
    return path if path is not None and path.exists() else None


@dataclass(frozen=True, eq=False)
class Dataset:
    """An opened dataset, whose images and sounds are left encoded.

    Attributes:
        name: As the user wrote it.
        table: A `datasets.Dataset`.
        kinds: Column -> what it holds.
        classes: Names of classes by column, in the order of their numbers.
    """

    name: str
    table: Any
    kinds: Mapping[str, ColumnKind]
    classes: Mapping[str, tuple[str, ...]]

    @property
    def fingerprint(self) -> str:
        """Hash of its state, which the library keeps."""
        return str(self.table._fingerprint)  # noqa: SLF001 - the library documents it, and has no other name for it


@dataclass(frozen=True, eq=False)
class DatasetPart:
    """The rows of a dataset.

    Attributes:
        dataset: Where they are.
        plan: What becomes of them.
        labels: One per row, of the column that holds them; None without.
    """

    dataset: Dataset
    plan: RowPlan
    labels: tuple[object, ...] | None

    @property
    def name(self) -> str:
        """The dataset, for messages."""
        return self.dataset.name

    @property
    def rows(self) -> int:
        """How many samples it holds."""
        return len(self.dataset.table)

    def where(self, row: int) -> str:
        """Name a sample by its row."""
        return f"{self.name}[{row}]"

    def read(self, rows: Sequence[int]) -> Iterator[Fitted]:
        """Take row by row, and give their feeds."""
        table = self.dataset.table.select_columns([name for name in self.plan.read if name != self.plan.label])
        for row in rows:
            where = self.where(row)
            values = {name: self._bytes(name, value) for name, value in table[row].items()}
            yield self.plan.fitted(values, where)

    def _bytes(self, column: str, value: Any) -> Any:
        """Take the encoded file out of what the library gives for an image or sound."""
        if self.dataset.kinds[column] not in ("image", "audio") or not isinstance(value, dict):
            return value
        if value.get("bytes") is None and value.get("path") and Path(value["path"]).is_file():
            return Path(value["path"]).read_bytes()
        return value.get("bytes")


def part_of(dataset: Dataset, plan: RowPlan) -> DatasetPart:
    """Take the rows of a dataset as samples, and read the column of their labels.

    Raises:
        DataError: It holds no row.
    """
    if not len(dataset.table):
        raise DataError("holds no row", where=dataset.name, do="name another split")
    labels = None if plan.label is None else tuple(dataset.table[plan.label])
    return DatasetPart(dataset, plan, labels)


def open_dataset(text: str) -> Dataset:
    """Load a dataset: a folder or file of this disk, one that `save_to_disk` wrote, or one of the Hub.

    Args:
        text: "datasets:NAME[/config][:split]".

    Raises:
        DataError: The library is not installed, or finds no such dataset, or the split is not told.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "needs the library datasets, which is not installed", where=text, do=extra_hint("datasets")
        ) from error
    found = _SPELLING.fullmatch(text.removeprefix(PREFIX))
    if found is None:
        raise DataError("names no dataset", where=text, do="write datasets:NAME[/config][:split]")
    name, split = str(found["name"]), found["split"]
    spoken = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()  # it tells of its cache, once for every name that is tried
    try:
        loaded = _load(datasets, name, split)
    except Exception as error:  # the library raises what its many loaders raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot be loaded: {first}", where=text, do="check name, config and split, and the cache where offline"
        ) from error
    finally:
        datasets.logging.set_verbosity(spoken)
    if isinstance(loaded, dict):
        if len(loaded) > 1:
            raise DataError(
                f"has the splits {', '.join(map(str, loaded))}",
                where=text,
                do=f"say which: {text}:{next(iter(loaded))}",
            )
        loaded = next(iter(loaded.values()))
    kinds = {name: _kind(datasets, feature) for name, feature in loaded.features.items()}
    for column, kind in kinds.items():
        if kind in ("image", "audio"):  # decoded here, as files are
            loaded = loaded.cast_column(column, type(loaded.features[column])(decode=False))
    classes = {name: tuple(loaded.features[name].names) for name, kind in kinds.items() if kind == "class"}
    return Dataset(text, loaded, kinds, classes)


def _load(datasets: Any, name: str, split: str | None) -> Any:
    """Load what a name stands for: a path if there is one, else NAME or OWNER/NAME, with a config behind it."""
    path = from_home(name)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        saved = datasets.load_from_disk(str(path))
        return saved if split is None else saved[split]
    if path.is_dir():
        return datasets.load_dataset(str(path), split=split)
    if path.is_file():
        builder = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
        kind = builder.get(path.suffix.lower(), "text")
        return datasets.load_dataset(kind, data_files=str(path), split=split)
    parts = name.split("/")
    if len(parts) > 2:
        return datasets.load_dataset("/".join(parts[:2]), "/".join(parts[2:]), split=split)
    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:
        if len(parts) == 1:
            raise
        # NAME/config of a dataset without an owner looks the same
        try:
            return datasets.load_dataset(parts[0], parts[1], split=split)
        except Exception:  # noqa: BLE001 - the first answer is about the name as it stands
            raise error from None


def _kind(datasets: Any, feature: Any) -> ColumnKind:
    if isinstance(feature, datasets.ClassLabel):
        return "class"
    if isinstance(feature, datasets.Image):
        return "image"
    if isinstance(feature, datasets.Audio):
        return "audio"
    if isinstance(feature, datasets.Value):
        kind = str(feature.dtype)
        return "text" if "string" in kind else "numbers" if kind.startswith(("int", "uint", "float")) else "other"
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return _kind(datasets, inner)
    if isinstance(feature, list) and len(feature) == 1:
        return _kind(datasets, feature[0])
    return "numbers" if type(feature).__name__.startswith("Array") else "other"
