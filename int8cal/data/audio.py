"""Sound files: headers first, then frames, at the rate and with the channels that are declared; cut into samples."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.data.fit import shape_text, take_row
from int8cal.data.sample import Fitted, row_name, unreadable
from int8cal.errors import ConfigError, DataError
from int8cal.extras import extra_hint
from int8cal.phrases import counted
from int8cal.preprocess import AudioPreprocess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Signature, TensorSpec
    from int8cal.numerics import Array

_WHERE = "data.preprocess.audio"
_SIZES = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)  # of the chunk in a WAV: said, there
_UNKNOWN_SIZE = 0x7FFF_0000  # from here on said by writers that cannot go back to the header
_MOST_CHANNELS = 8  # of a sound; an input of more takes features
_FRAMES_PER_BYTE = 8192  # silence in FLAC takes a byte for fewer


@dataclass(frozen=True)
class AudioPlan:
    """How every sound of a source becomes a feed.

    Attributes:
        signature: Its one input takes the frames.
        audio: As declared, with the length of samples and the hop between them; length None for whole files.
        channels: How many the input takes.
    """

    signature: Signature
    audio: AudioPreprocess
    channels: int

    @property
    def spec(self) -> TensorSpec:
        """The model's input."""
        return self.signature.inputs[0]

    def rows(self, sound: Sound) -> int:
        """Say how many samples a sound gives.

        Raises:
            DataError: Another rate or number of channels than the model takes, or too short for one sample.
        """
        chosen = self.audio
        if chosen.rate is None:
            raise DataError(
                f"has {sound.rate} frames per second, and the model's rate is not declared",
                where=sound.name,
                do=f"give --sample-rate {sound.rate}, if that is what the model was trained with",
            )
        if sound.rate != chosen.rate and not chosen.resample:
            raise DataError(
                f"has {sound.rate} frames per second, the model takes {chosen.rate}",
                where=sound.name,
                do=f"convert it, or give --resample (resample: true under {_WHERE})",
            )
        if sound.channels != self.channels and (chosen.channels is None or self.channels != 1):
            has = counted(sound.channels, "channel")
            if self.channels > _MOST_CHANNELS:
                raise DataError(
                    f'has {has} of sound, and input "{self.spec.name}" takes {self.channels} in each frame: features '
                    "such as a spectrogram, it seems, which int8cal does not compute",
                    where=sound.name,
                    do="give a function that makes them as in training, or .npy or .npz files of them",
                )
            option = f"give --audio-channels mean or first (channels under {_WHERE})"
            do = option if self.channels == 1 else "convert it"
            raise DataError(f"has {has}, the model takes {self.channels}", where=sound.name, do=do)
        frames = self.frames(sound)
        if chosen.length is None or chosen.hop is None:
            if frames == 0:
                raise DataError("holds no frame", where=sound.name, do="remove it")
            return 1
        beyond = max(frames - chosen.length, 0)
        if frames < chosen.length and not (chosen.pad and frames):
            raise DataError(
                f"has {frames} frames, a sample has {chosen.length}",
                where=sound.name,
                do=f"remove it, or give --audio-pad (pad: true under {_WHERE})",
            )
        return 1 + (-(-beyond // chosen.hop) if chosen.pad else beyond // chosen.hop)

    def frames(self, sound: Sound) -> int:
        """Say how many frames a sound has at the model's rate."""
        return sound.frames if self.audio.rate is None else sound.frames * self.audio.rate // sound.rate

    def feeds(self, sound: Sound, rows: Sequence[int], names: Iterable[str]) -> Iterator[Fitted]:
        """Decode what is needed of a sound, and give the feeds of these samples.

        Args:
            sound: Its `rows` have been counted.
            rows: Samples of it.
            names: Of the samples, for messages.
        """
        length, hop, last = self.audio.length, self.audio.hop, self.rows(sound) - 1
        whole = None if length is not None and sound.rate == self.audio.rate else self._whole(sound)
        for row, name in zip(rows, names, strict=True):
            start, count = (0, self.frames(sound)) if length is None or hop is None else (row * hop, length)
            frames = sound.read(start, count) if whole is None else whole[start : start + count]
            values = np.zeros((count, frames.shape[1]), np.float32)
            values[: len(frames)] = frames
            beyond = row == last and start + count < self.frames(sound)
            yield Fitted(self._feed(values, name), "padded" if len(frames) < count else "end" if beyond else None)

    def _whole(self, sound: Sound) -> Array:
        frames = sound.read(0, sound.frames)
        if self.audio.rate is None or sound.rate == self.audio.rate:
            return frames
        try:
            import soxr
        except ImportError as error:
            raise _lacking("soxr", sound.name) from error
        resampled: Array = soxr.resample(frames, sound.rate, self.audio.rate)
        return resampled[: self.frames(sound)]

    def _feed(self, frames: Array, name: str) -> Feed:
        """Turn frames (frames, channels) into the feed."""
        if frames.shape[1] != self.channels:
            mixed = frames.mean(axis=1, dtype=np.float64) if self.audio.channels == "mean" else frames[:, 0]
            frames = mixed.astype(np.float32)[:, np.newaxis]
        if self.audio.scale != 1.0:
            frames = frames * np.float32(self.audio.scale)
        rank = 2 if self.spec.shape is None else len(self.spec.shape)
        values = frames.T[np.newaxis] if rank == 3 else frames[:, 0].reshape((1,) * (rank - 1) + (-1,))
        return take_row({self.spec.name: values}, 0, self.signature, name)


def plan_audio(signature: Signature, audio: AudioPreprocess | None, where: str) -> AudioPlan:
    """Settle which shape sounds get, and check what can be checked without one.

    Args:
        signature: Its one input takes the sound: float (N, frames), (N, channels, frames) or (frames,).
        audio: As declared; None for nothing.
        where: The source, for messages.

    Raises:
        DataError: The input takes no sound.
        ConfigError: Lengths that contradict each other or the model's input.
    """
    chosen = audio if audio is not None else AudioPreprocess()
    spec = signature.inputs[0]
    if spec.dtype.kind != "f" or (spec.shape is not None and not 1 <= len(spec.shape) <= 3):
        raise DataError(
            f'input "{spec.name}" is {spec.dtype.name} {shape_text(spec)}, no sound: float (N, frames) or (N, '
            "channels, frames)",
            where=where,
            do="make the feeds, spectrograms for example, by a function (package.module:function)",
        )
    shape = spec.shape or (None,)
    channels = shape[1] if len(shape) == 3 else 1
    fixed, length = shape[-1], chosen.length
    if isinstance(fixed, int):
        if length not in (None, fixed):
            raise ConfigError(
                f'is {length}, input "{spec.name}" takes {fixed} frames',
                where=f"{_WHERE}.length",
                do="leave it out",
            )
        length = fixed
    if length is None and (chosen.hop is not None or chosen.pad):
        raise ConfigError(
            f"{'hop' if chosen.hop is not None else 'pad'} is about samples of one length, and none is declared",
            where=_WHERE,
            do="add length beside it (--audio-length)",
        )
    hop = chosen.hop if chosen.hop is not None else length
    return AudioPlan(signature, replace(chosen, length=length, hop=hop), channels if isinstance(channels, int) else 1)


@dataclass(frozen=True, eq=False)
class Sound:
    """A sound whose header has been read.

    Attributes:
        name: For messages.
        source: Its file, or its bytes.
        rate: Frames per second.
        frames, channels: How many it has.
    """

    name: str
    source: Path | bytes
    rate: int
    frames: int
    channels: int

    def read(self, start: int, count: int) -> Array:
        """Decode at most so many frames: float32 (frames, channels) in -1..1.

        Raises:
            DataError: It is damaged, or ends before its header says.
        """
        import soundfile

        expected = min(count, self.frames - start)
        try:
            with soundfile.SoundFile(_opened(self.source)) as stream:
                stream.seek(start)
                values: Array = stream.read(expected, dtype="float32", always_2d=True)
        except (RuntimeError, OSError) as error:
            raise unreadable(self.name, str(error)) from error
        if len(values) < expected:
            raise unreadable(self.name, f"{expected - len(values)} frames are missing at its end")
        return values


def open_sound(source: Path | bytes, name: str) -> Sound:
    """Read the header of a WAV, FLAC or Ogg file.

    Raises:
        DataError: The library soundfile is not installed, or it is no such file.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: without its C library
        raise _lacking("soundfile", name) from error
    try:
        info: Any = soundfile.info(_opened(source))
    except (RuntimeError, OSError) as error:
        raise unreadable(name, str(error)) from error
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if info.frames > _FRAMES_PER_BYTE * size:
        raise unreadable(name, f"its header claims {info.frames} frames, more than {size} bytes hold")
    cut = _SIZES.search(info.extra_info)
    missing = int(cut[1]) - int(cut[2]) if cut and int(cut[1]) < _UNKNOWN_SIZE else 0
    if missing > 1:  # one may be the byte that makes the size even
        raise unreadable(name, f"{missing} bytes are missing at its end")
    return Sound(name, source, int(info.samplerate), int(info.frames), int(info.channels))


def _opened(source: Path | bytes) -> str | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else str(source)


def _lacking(library: str, name: str) -> DataError:
    return DataError(f"needs the library {library}, which is not installed", where=name, do=extra_hint("audio"))


@dataclass(frozen=True)
class AudioPart:
    """One sound file.

    Attributes:
        sound: Its header.
        plan: What to do with its frames.
        rows: How many samples it gives.
        labels: Sound files carry none themselves.
    """

    sound: Sound
    plan: AudioPlan
    rows: int
    labels: None = None

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.sound.name

    def where(self, row: int) -> str:
        """Name a sample: the file, with the sample's number where it gives several."""
        return row_name(self.name, row, self.rows)

    def read(self, rows: Sequence[int]) -> Iterator[Fitted]:
        """Decode what these samples need, and give their feeds."""
        return self.plan.feeds(self.sound, rows, map(self.where, rows))


def open_audio(path: Path, plan: AudioPlan) -> AudioPart:
    """Read the header of a sound file, and check that it fits.

    Raises:
        DataError: It cannot be read, or has another rate, other channels or too few frames.
    """
    sound = open_sound(path, path.as_posix())
    return AudioPart(sound, plan, plan.rows(sound))
