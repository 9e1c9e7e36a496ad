"""Statistics on disk: one .npz, the same bytes for the same statistics; files of shards added to one of all."""

from __future__ import annotations

import functools
import json
import math
import zipfile
from dataclasses import astuple, dataclass, replace
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from int8cal.calibration.statistics import ChannelStatistics, Statistics, TensorStatistics, Widths
from int8cal.data.padding import paddings_from, record
from int8cal.data.shards import Shard, told_missing
from int8cal.errors import StatisticsError
from int8cal.io.atomic import atomic_write
from int8cal.io.paths import require_apart, require_free, require_readable
from int8cal.numerics.exactsum import LIMBS
from int8cal.numerics.loglinear import BINS, COARSE_BINS, COARSE_SHIFT, HALF, INFINITY_BIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from int8cal.numerics import Array

FORMAT, VERSION = "int8cal/statistics", 3
_NARROW = 3  # histograms are packed from this version on
ARRAYS = ("bins", "counts")
CHANNEL_ARRAYS = ("low", "high", "total", "square", "bins", "counts")
_COARSE_INFINITY = 0x7F800000 >> COARSE_SHIFT
_LARGEST = 2.0**128  # float32 ends below
_HARMLESS, _GROWTH = 1 << 26, 300  # bytes that any archive may become, and how many times its own beyond
_PACKED = tuple(f"{prefix}{key}" for prefix in ("", "channel_") for key in ARRAYS)
_MOST = 2.0**62  # values; beyond, int64 sums would wrap


def save_statistics(statistics: Statistics, path: Path) -> None:
    """Write statistics atomically."""
    atomic_write(path, statistics_to_bytes(statistics))


def statistics_to_bytes(statistics: Statistics) -> bytes:
    """Make the content of a file; see `save_statistics`.

    Keys: "header" (JSON as uint8), and per tensor "NAME:bins", "NAME:counts" and, with channels, "NAME:channel_*".
    Histograms are packed: of bins how far each lies behind the one before, in the narrowest unsigned type, and counts
    in theirs. That takes a third of the time of int64, and not half of its bytes.
    """
    # paths of bodies in the order of their names: the same bytes whichever was run first
    bodies = [(path, statistics.bodies[path]) for path in sorted(statistics.bodies)]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model_sha256": statistics.model_sha256,
        **_figures(statistics),
        **({"bodies": [{"path": path, **_figures(each)} for path, each in bodies]} if bodies else {}),
        **({"shards": [str(each) for each in sorted(statistics.shards)]} if statistics.shards else {}),
        **({"divided": statistics.divided} if statistics.divided else {}),
        **({} if statistics.preprocess is None else {"preprocess": dict(statistics.preprocess)}),
    }
    arrays: dict[str, Array] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for prefix, each in (("", statistics), *((f"{path}:", each) for path, each in bodies)):
        for name, tensor in each.tensors.items():
            for key in ARRAYS:
                arrays[f"{prefix}{name}:{key}"] = getattr(tensor, key)
            if tensor.channels is not None:
                for key in CHANNEL_ARRAYS:
                    arrays[f"{prefix}{name}:channel_{key}"] = getattr(tensor.channels, key)
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            values = _packed(key, np.ascontiguousarray(array))
            # a fixed date: the same statistics are the same bytes
            entry = zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # likewise on every system
            # level 6 takes nine times as long and saves a twelfth of the bytes
            archive.writestr(entry, _npy_header(values.dtype.str, values.shape) + values.tobytes(), compresslevel=1)
    return buffer.getvalue()


def _packed(key: str, values: Array) -> Array:
    """Pack an array of a histogram; others stay as they are."""
    kind = key.rpartition(":")[2]
    if kind not in _PACKED:
        return values
    if kind.endswith("bins"):
        values = np.diff(values, prepend=0)
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _unpacked(key: str, values: Array) -> Array:
    """Undo `_packed`: int64, where it was packed.

    Raises:
        ValueError: It is of another type or shape.
    """
    name, _, kind = key.rpartition(":")
    if kind not in _PACKED:
        return values
    of = "the channels of " if kind.startswith("channel") else ""
    _require(values.dtype.kind == "u" and values.ndim == 1, f"histogram of {of}{name!r}")
    return values.cumsum(dtype=np.int64) if kind.endswith("bins") else values.astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what stands in front of the values of an array in C order; tensors of one shape have the same."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _figures(statistics: Statistics) -> dict[str, Any]:
    """Write what is known of one graph besides arrays."""
    return {
        "fingerprint": f"{statistics.fingerprint:032x}",
        "samples": statistics.samples,
        "tensors": {
            name: {
                "zeros": tensor.zeros,
                "minimum": tensor.minimum if tensor.count else None,
                "maximum": tensor.maximum if tensor.count else None,
                "channel_count": tensor.channels.count if tensor.channels is not None else None,
                **({"widths": [f"{each:x}" for each in astuple(tensor.widths)]} if tensor.widths.samples else {}),
            }
            for name, tensor in statistics.tensors.items()
        },
        **({"padding": record(statistics.padding)} if statistics.padding else {}),
    }


def load_statistics(path: Path) -> Statistics:
    """Read statistics.

    Raises:
        StatisticsError: The file is missing, damaged, not statistics, or of a newer version.
    """
    require_statistics(path)
    with path.open("rb") as file:
        return read_statistics(file, str(path))


def require_statistics(path: Path) -> None:
    """Refuse a path that is no file that can be read.

    Raises:
        StatisticsError: Says why.
    """
    require_readable(path, StatisticsError, "give a .stats.npz that `int8cal calibrate` wrote")


def read_statistics(file: IO[bytes], where: str) -> Statistics:
    """Read statistics from an open file; `where` is what messages call it. See `load_statistics`."""
    try:
        with np.load(file, allow_pickle=False) as data:
            members = data.zip.infolist()
            stored = sum(each.compress_size for each in members)
            _require_plain(sum(each.file_size for each in members), stored)
            arrays = {key: data[key] for key in data.files}
        header = json.loads(arrays.pop("header").tobytes())
        if header["format"] != FORMAT or not isinstance(header["version"], int):
            raise ValueError(header["format"])
    except Exception as error:  # zipfile, numpy, json and KeyError all mean the same to the user
        raise StatisticsError(
            "is not a readable statistics file", where=where, do="give a .stats.npz that `int8cal calibrate` wrote"
        ) from error
    if header["version"] > VERSION:
        raise StatisticsError(
            f"has format version {header['version']}, this int8cal reads up to {VERSION}",
            where=where,
            do="update int8cal",
        )
    try:
        if header["version"] >= _NARROW:
            _require_plain(sum(each.size * np.dtype(np.int64).itemsize for each in arrays.values()), stored)
            arrays = {key: _unpacked(key, each) for key, each in arrays.items()}
        sha256 = header["model_sha256"]
        if type(sha256) is not str:
            raise ValueError("model_sha256")
        bodies = {each["path"]: _read(each, sha256, arrays, f"{each['path']}:") for each in header.get("bodies", [])}
        shards = frozenset(Shard.parse(each) for each in header.get("shards", []))
        preprocess = header.get("preprocess")
        _require(preprocess is None or type(preprocess) is dict, "preprocess")
        divided = header.get("divided", "")
        _require(type(divided) is str, "divided")
        whole = _read(header, sha256, arrays)
        return replace(whole, bodies=bodies, shards=shards, preprocess=preprocess, divided=divided)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise StatisticsError(f"is damaged ({error})", where=where, do="calibrate again") from error


def _require_plain(whole: int, stored: int) -> None:
    """Refuse an archive that grows beyond all counts when it is read: histograms shrink to a tenth, no further.

    Args:
        whole: Bytes that it becomes.
        stored: Bytes that it has.

    Raises:
        ValueError: It does.
    """
    if whole > _HARMLESS and whole > _GROWTH * stored:
        raise ValueError(f"{stored} bytes become {whole}")


def _read(header: Mapping[str, Any], sha256: str, arrays: Mapping[str, Array], prefix: str = "") -> Statistics:
    """Read the statistics of one graph, whose arrays' names begin with a prefix; raises what `_tensor` raises."""
    entries = header["tensors"].items()
    tensors = {name: _tensor(f"{prefix}{name}", entry, arrays) for name, entry in entries}
    samples = header["samples"]
    if type(samples) is not int or samples < 0:
        raise ValueError("samples")
    return Statistics(
        sha256, int(header["fingerprint"], 16), samples, tensors, paddings_from(header.get("padding", {}))
    )


def _tensor(name: str, entry: Mapping[str, Any], arrays: Mapping[str, Array]) -> TensorStatistics:
    """Read a tensor's statistics; nothing is believed that a pass over data cannot have counted.

    Raises:
        KeyError: A part is missing.
        TypeError, ValueError: A part has another type, shape or value than a pass over data leaves.
    """
    low, high, zeros = entry["minimum"], entry["maximum"], entry["zeros"]
    bins, counts = (arrays[f"{name}:{key}"] for key in ARRAYS)
    _require(_is_histogram(bins, counts, BINS, HALF, INFINITY_BIN), f"histogram of {name!r}")
    empty = low is None
    _require(_is_count(zeros) and empty == (high is None) == (not zeros and not counts.size), f"figures of {name!r}")
    if not empty:
        _require(
            all(type(each) in {int, float} and abs(each) <= _LARGEST for each in (low, high)), f"range of {name!r}"
        )
        _require(low <= 0.0 <= high if zeros else low <= high, f"range of {name!r}")
    widths = Widths(*(int(each, 16) for each in entry.get("widths", ())))
    _require(_are_widths(widths), f"widths of {name!r}")
    ends = (math.inf, -math.inf) if empty else (float(low), float(high))
    tensor = TensorStatistics(bins, counts, zeros, *ends, widths=widths)
    if entry["channel_count"] is None:
        return tensor
    _require(_is_count(entry["channel_count"]), f"figures of {name!r}")
    parts = {key: arrays[f"{name}:channel_{key}"] for key in CHANNEL_ARRAYS}
    channels = ChannelStatistics(count=entry["channel_count"], **parts)
    for what, sound in (("range", _ranges), ("sums", _sums), ("histogram", _histogram)):
        _require(sound(channels, tensor), f"{what} of the channels of {name!r}")
    return replace(tensor, channels=channels)


def _require(sound: object, what: str) -> None:
    if not sound:
        raise ValueError(what)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _are_widths(widths: Widths) -> bool:
    """Tell whether they can be sums of as many numbers, none below 0."""
    samples, total, squares = astuple(widths)
    most = samples << 278  # as if each were as wide as all that float32 has
    return _is_count(samples) and 0 <= total <= most and squares <= total * total <= samples * squares


def _is_histogram(bins: Array, counts: Array, size: int, half: int, infinity: int) -> bool:
    """Tell whether two arrays are a sparse histogram: int64 (N,), bins ascending and finite, counts above 0."""
    return (
        bins.ndim == 1
        and bins.shape == counts.shape
        and {bins.dtype, counts.dtype} == {np.dtype(np.int64)}
        and bool((counts > 0).all() and (np.diff(bins) > 0).all())
        and bool((bins >= 0).all() and (bins < size).all() and (bins % half < infinity).all())
        and float(counts.sum(dtype=np.float64)) < _MOST
    )


def _ranges(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    low, high = channels.low, channels.high
    if low.ndim != 1 or low.shape != high.shape or not low.size or {low.dtype, high.dtype} != {np.dtype(np.float32)}:
        return False
    if not tensor.count:
        return bool((low == np.inf).all() and (high == -np.inf).all())
    sound = np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
    return bool(sound) and (float(low.min()), float(high.max())) == (tensor.minimum, tensor.maximum)


def _sums(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    """Tell whether sums are canonical limbs, squares not negative, and made of as many values as the tensor has."""
    shape = (len(channels.low), LIMBS)
    return (
        channels.total.shape == shape
        and channels.square.shape in {shape, (0, LIMBS)}
        and all(
            limbs.dtype == np.int64 and bool((limbs[:, :-1] >= 0).all() and (limbs[:, :-1] < 1 << 32).all())
            for limbs in (channels.total, channels.square)
        )
        and bool((channels.square[:, -1] >= 0).all())
        and channels.count * len(channels.low) == tensor.count
    )


def _histogram(channels: ChannelStatistics, tensor: TensorStatistics) -> bool:
    """Tell whether the coarse histogram holds every value that is not zero, or none."""
    size = len(channels.low) * COARSE_BINS
    return _is_histogram(channels.bins, channels.counts, size, COARSE_BINS // 2, _COARSE_INFINITY) and int(
        channels.counts.sum()
    ) in {0, int(tensor.counts.sum())}


@dataclass(frozen=True)
class MergeOutcome:
    """How many samples the sum holds, which parts of the data it is of where it is not of all, and warnings."""

    samples: int
    warnings: tuple[str, ...]
    shards: frozenset[Shard] = frozenset()


def merge_files(inputs: Sequence[Path], output: Path, *, overwrite: bool = False) -> MergeOutcome:
    """Add the statistics of shards, one file at a time, and write the sum.

    Args:
        inputs: One file at least.
        output: The file to write.
        overwrite: Replace it if it exists.

    Raises:
        StatisticsError: A file is unreadable, or the shards do not belong together.
    """
    require_free(output, overwrite=overwrite)
    require_apart((output,), inputs)
    total = load_statistics(inputs[0])
    seen, several = {total.fingerprint: 0}, [total.shards]
    warnings = []
    for index, path in enumerate(inputs[1:], 1):
        more = load_statistics(path)
        same = seen.setdefault(more.fingerprint, index)
        if same < index and not _are_apart(more.shards, several[same]):
            warnings.append(f"{path} holds the same samples as {inputs[same]}; they count twice")
        several.append(more.shards)
        try:
            total += more
        except StatisticsError as error:
            error.where = error.where or _pair(inputs[:index], path)
            raise
    warnings += _counted_within(inputs, several)
    save_statistics(total, output)
    return MergeOutcome(total.samples, (*warnings, *_odd_shards(several, total.shards)), total.shards)


def _are_apart(first: frozenset[Shard], second: frozenset[Shard]) -> bool:
    """Tell whether two files are of different shards, which may well hold copies of one sample."""
    return bool(first and second) and first.isdisjoint(second)


def _counted_within(inputs: Sequence[Path], several: Sequence[frozenset[Shard]]) -> list[str]:
    """Say which shards' samples are counted in a file of no shard, such as the sum of all of them."""
    if not any(several):
        return []
    found = []
    for whole in (path for path, shards in zip(inputs, several, strict=True) if not shards):
        held = load_statistics(whole)
        found += [
            f"all that was counted in {path}, shard {', '.join(map(str, sorted(shards)))}, is in {whole} too; "
            "its samples count twice"
            for path, shards in zip(inputs, several, strict=True)
            if shards and held.holds(load_statistics(path))
        ]
    return found


def _odd_shards(several: Sequence[frozenset[Shard]], there: frozenset[Shard]) -> list[str]:
    """Say what is not as it should be of the parts that were added: different, twice there, or missing."""
    parts = [shard for shards in several for shard in shards]
    numbers = {shard.of for shard in parts}
    if len(numbers) > 1:
        # each its own way: what they have in common cannot be told
        return [f"these are shards of {' and '.join(map(str, sorted(numbers)))}; samples may count twice"]
    if not all(several):
        return []
    twice = sorted(shard for shard in set(parts) if parts.count(shard) > 1)
    warnings = [f"shard {', '.join(map(str, twice))} is there more than once; its samples count twice"] if twice else []
    return [
        *warnings,
        *([f"{told_missing(there)}; merge them too, or ranges follow the others alone"] if there else []),
    ]


def _pair(before: Sequence[Path], path: Path) -> str:
    """Name a file whose statistics do not add to those of the files before, with the first of these that is why."""
    last = load_statistics(path)
    for each in before:
        try:
            load_statistics(each) + last
        except StatisticsError:
            return f"{each} and {path}"
    return str(path)
