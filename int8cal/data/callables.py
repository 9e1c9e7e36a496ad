"""package.module:function as a source: a function that yields feed dicts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from int8cal.data.fit import Header, count_rows, label_values, match_inputs, take_row
from int8cal.data.functions import SPELLING, users_code
from int8cal.data.sample import Sample, row_name
from int8cal.errors import DataError
from int8cal.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from int8cal.data.shards import Shard
    from int8cal.graph.signature import Signature

_LOOKED_AT = 8  # feeds, for one that holds several samples


@dataclass(frozen=True)
class CallStream:
    """The samples of a function, called anew for every pass.

    Attributes:
        name: "package.module:function".
        function: Returns an iterable of feed dicts: input name -> array, and perhaps "labels".
        signature: The model's inputs.
        samples: Stop after this many; None for all.
        shard: The part of them that is given; None for all.
        labelled: Whether labels that it yields are taken.
    """

    name: str
    function: Callable[[], object]
    signature: Signature
    samples: int | None
    shard: Shard | None = None
    labelled: bool = True

    count: ClassVar[None] = None  # only a pass can tell

    def first_rows(self, count: int, place: float) -> list[Sample]:
        """Return the first rows of one of the first feeds that hold several; nothing where none does.

        Args:
            count: How many at most.
            place: Of which feed, from 0 for the first of them to 1 for the last.
        """
        feeds = (
            list(itertools.islice(self._split(item, f"{self.name}[{index}]"), count))
            for index, item in enumerate(itertools.islice(self._items(), _LOOKED_AT))
        )
        several = [rows for rows in feeds if len(rows) > 1]
        return several[round(place * (len(several) - 1))] if several else []

    def begun(self) -> tuple[CallStream, CallStream]:
        """Read the first feeds, for a look at them before the pass; the function may be one that can be called once.

        Returns:
            A stream of these feeds alone, and one of all, the first pass of which goes on behind them.

        Raises:
            DataError: The function fails, or returns what is no iterable.
        """
        items = self._items()
        # copies: a function may fill one array again and again
        first = [_copied(item) for item in itertools.islice(items, min(_LOOKED_AT, self.samples or _LOOKED_AT))]
        rest: list[Iterator[object]] = [itertools.chain(first, items)]
        return replace(self, function=lambda: first), replace(
            self, function=lambda: rest.pop() if rest else self.function()
        )

    def read(self, skipped: list[str]) -> Iterator[Sample]:  # noqa: ARG002 - a function has no files to skip
        """Call the function and give its samples, or those of the shard, one at a time."""
        return self._all() if self.shard is None else self.shard.part(self._all())

    def _all(self) -> Iterator[Sample]:
        """Split batches into their rows."""
        given = 0
        for index, item in enumerate(self._items()):
            for sample in self._split(item, f"{self.name}[{index}]"):
                if self.samples is not None and given == self.samples:
                    return
                given += 1
                yield sample
            if given == self.samples:
                return
        if given == 0:
            raise DataError(
                "yields no sample",
                where=self.name,
                do="yield at least one feed dict, and start anew at every call: int8cal reads the data more than once",
            )

    def _items(self) -> Iterator[object]:
        """Iterate what the function returns; an error inside it is the user's, and told as such."""
        try:
            with users_code():
                returned = self.function()
        except Exception as error:
            raise self._failed(error) from error
        if isinstance(returned, Mapping) or not gives_items(returned):
            raise DataError(
                f"returns {type(returned).__name__}, expected an iterable of feed dicts",
                where=self.name,
                do=self._expected(),
            )
        iterator = _items_of(returned)
        while True:
            try:
                with users_code():
                    item = next(iterator)
            except StopIteration:
                return
            except DataError:  # told by the stream that this one goes on with
                raise
            except Exception as error:
                raise self._failed(error) from error
            yield item

    def _expected(self) -> str:
        """Say what a feed of this model looks like."""
        feed = ", ".join(f'"{spec.name}": array' for spec in self.signature.inputs)
        return f'yield one dict per sample or batch: {{{feed}}}, and "labels": class numbers where there are any'

    def _failed(self, error: Exception) -> DataError:
        return DataError(f"raises {type(error).__name__}: {error}", where=self.name, do="fix the function")

    def _split(self, item: object, where: str) -> Iterator[Sample]:
        if not isinstance(item, Mapping):
            raise DataError(f"yields {type(item).__name__}, expected a dict", where=where, do=self._expected())
        arrays = {}
        for key, value in item.items():
            try:
                arrays[str(key)] = np.asarray(value)
            except (ValueError, TypeError, RuntimeError) as error:
                raise DataError(f'"{key}" is no array: {error}', where=where, do="yield numpy arrays") from error
            masked = int(np.count_nonzero(value.mask)) if isinstance(value, np.ma.MaskedArray) else 0
            if masked:
                what = f'"{key}" has {counted(masked, "masked value")}, which a model cannot leave out'
                raise DataError(what, where=where, do="fill them as for the model, by its method filled(value)")
        label_key = match_inputs(arrays, self.signature, where)
        headers = {name: Header(array.dtype, array.shape) for name, array in arrays.items()}
        try:
            signature, rows = self.signature, count_rows(headers, self.signature, where)
        except DataError as error:
            if not error.fields.get("apart"):
                raise
            signature = replace(self.signature, whole=True)
            rows = count_rows(headers, signature, where)
        labels = None if label_key is None or not self.labelled else label_values(arrays[label_key], rows, where)
        for row in range(rows):
            origin = row_name(where, row, rows)
            yield Sample(take_row(arrays, row, signature, origin), origin, None if labels is None else labels[row])


def gives_items(value: object) -> bool:
    """Tell what can be iterated, or has a length and gives items by their number as map-style datasets do."""
    return isinstance(value, Iterable) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))


def _items_of(value: Any) -> Iterator[object]:
    # not iter(): such a dataset need not raise IndexError behind its end
    return iter(value) if isinstance(value, Iterable) else (value[index] for index in range(len(value)))


def _copied(item: object) -> object:
    try:
        return deepcopy(item)
    except Exception:  # noqa: BLE001 - of any library; what it is will be told when it is read
        return item


def is_callable_path(text: str, base: Path | None = None) -> bool:
    """Tell "package.module:function" from a path; a file under `base` that really has such a name is a file."""
    return SPELLING.fullmatch(text) is not None and not (base or Path()).joinpath(text).exists()
