"""Sounds as feeds: rates, channels, samples of a file, inputs that hold one number."""

import numpy as np
import pytest

from int8cal.errors import ConfigError, DataError
from int8cal.preprocess import AudioPreprocess, Preprocess

soundfile = pytest.importorskip("soundfile")

RATE = 8000


@pytest.fixture
def sound(tmp_path):
    """Write a sound of 16 bits; gives the values that it holds, (frames, channels)."""

    def write(name, frames=1000, channels=1, rate=RATE):
        values = np.random.default_rng(len(name)).integers(-(2**15), 2**15, (frames, channels)).astype(np.int16)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / name, values, rate)
        return values.astype(np.float32) / 2**15

    return write


def audio(**settings):
    fill = settings.pop("fill", {})
    return Preprocess(audio=AudioPreprocess(**{"rate": RATE, **settings}), fill=fill)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_a_file_is_a_sample_where_the_model_takes_any_length(tmp_path, signature, feeds, sound, name):
    values = sound(name)
    (sample,) = feeds(tmp_path / name, signature(x=("N", "T")), preprocess=audio())
    assert sample.origin == (tmp_path / name).as_posix()
    np.testing.assert_array_equal(sample.feed["x"], values.T)


def test_an_ogg_file_is_read(tmp_path, signature, feeds):
    wave = np.sin(np.arange(RATE) / 20)
    soundfile.write(tmp_path / "a.ogg", wave, RATE)
    (sample,) = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio())
    np.testing.assert_allclose(sample.feed["x"][0], wave, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "starts", "last"),
    [
        ({}, [0, 300, 600], "end"),
        ({"pad": True}, [0, 300, 600, 900], "padded"),
        ({"hop": 250}, [0, 250, 500], "end"),
        ({"hop": 350}, [0, 350, 700], None),
    ],
)
def test_files_are_cut_into_samples_of_the_models_length(tmp_path, signature, feeds, sound, settings, starts, last):
    values = np.append(sound("a.wav")[:, 0], np.zeros(300, np.float32))
    samples = list(feeds(tmp_path, signature(x=(1, 1, 300)), preprocess=audio(**settings)))
    assert [sample.origin for sample in samples] == [f"{tmp_path.as_posix()}/a.wav[{n}]" for n in range(len(starts))]
    assert [sample.fit for sample in samples] == [*[None] * (len(starts) - 1), last]
    for sample, start in zip(samples, starts, strict=True):
        np.testing.assert_array_equal(sample.feed["x"], values[np.newaxis, np.newaxis, start : start + 300])


def test_chosen_samples_are_those_of_all(tmp_path, signature, feeds, sound):
    sound("a.wav")
    sound("long.wav", 5000)
    everything = {each.origin: each.feed["x"] for each in feeds(tmp_path, signature(x=("N", 100)), preprocess=audio())}
    few = list(feeds(tmp_path, signature(x=("N", 100)), preprocess=audio(), samples=7))
    assert len(everything) == 60
    assert len(few) == 7
    for sample in few:
        np.testing.assert_array_equal(sample.feed["x"], everything[sample.origin])


def test_channels_are_mixed_only_as_declared(tmp_path, signature, feeds, sound):
    values = sound("a.wav", channels=2)
    with pytest.raises(DataError, match=r"has 2 channels, the model takes 1; give --audio-channels mean or first"):
        feeds(tmp_path, signature(x=("N", "T")), preprocess=audio())
    (mixed,) = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio(channels="mean"))
    np.testing.assert_allclose(mixed.feed["x"][0], values.mean(axis=1), atol=1e-7)
    (first,) = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio(channels="first"))
    np.testing.assert_array_equal(first.feed["x"][0], values[:, 0])
    (both,) = feeds(tmp_path, signature(x=("N", 2, "T")), preprocess=audio())
    np.testing.assert_array_equal(both.feed["x"][0], values.T)


def test_rates_are_declared_and_checked(tmp_path, signature, feeds, sound):
    sound("a.wav")
    model = signature(x=("N", "T"))
    with pytest.raises(DataError, match=r"the model's rate is not declared; give --sample-rate 8000"):
        feeds(tmp_path, model)
    with pytest.raises(
        DataError, match=r"has 8000 frames per second, the model takes 16000; convert it, or give --resample"
    ):
        feeds(tmp_path, model, preprocess=audio(rate=16000))


def test_a_model_of_features_is_not_asked_for_other_sounds(tmp_path, signature, feeds, sound):
    sound("a.wav")
    takes = r'has 1 channel of sound, and input "x" takes 40 in each frame: features such as a spectrogram.*function'
    with pytest.raises(DataError, match=takes):
        list(feeds(tmp_path, signature(x=("N", 40, 98)), preprocess=audio()))
    with pytest.raises(DataError, match=r"has 1 channel, the model takes 2; convert it"):
        list(feeds(tmp_path, signature(x=("N", 2, 500)), preprocess=audio()))


def test_resampling_where_it_is_declared(tmp_path, signature, feeds):
    pytest.importorskip("soxr")
    times = np.arange(RATE) / RATE
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 440 * times), RATE)
    (sample,) = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio(rate=2 * RATE, resample=True))
    assert sample.feed["x"].shape == (1, 2 * RATE)
    exact = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / (2 * RATE))
    np.testing.assert_allclose(sample.feed["x"][0, 500:-500], exact[500:-500], atol=1e-3)
    cut = list(feeds(tmp_path, signature(x=("N", 1000)), preprocess=audio(rate=2 * RATE, resample=True)))
    assert len(cut) == 16
    np.testing.assert_array_equal(cut[3].feed["x"], sample.feed["x"][:, 3000:4000])


def test_other_inputs_hold_one_number_only_where_that_is_declared(tmp_path, signature, feeds, sound):
    sound("a.wav")
    model = signature(x=(1, 500), state=(2, "batch", 4), sr=((), np.int64))
    with pytest.raises(DataError, match=r"feeds one input, the model has 3: x, state, sr"):
        feeds(tmp_path, model, preprocess=audio())
    samples = list(feeds(tmp_path, model, preprocess=audio(fill={"state": 0, "sr": RATE})))
    assert len(samples) == 2
    for sample in samples:
        assert sample.feed["state"].tolist() == np.zeros((2, 1, 4)).tolist()
        assert (sample.feed["sr"].dtype, sample.feed["sr"].shape, int(sample.feed["sr"])) == (np.int64, (), RATE)


@pytest.mark.parametrize(
    ("fill", "what"),
    [
        ({"stat": 0}, 'data.preprocess.fill.stat: the model has no input "stat"; the inputs are "x", "n"'),
        ({"n": 0.5}, "data.preprocess.fill.n: 0.5 is no int64"),
        ({"x": 0, "n": 0}, "holds all inputs of the model"),
    ],
)
def test_mistakes_of_fill(tmp_path, signature, feeds, sound, fill, what):
    sound("a.wav")
    with pytest.raises(ConfigError) as caught:
        feeds(tmp_path, signature(x=("N", "T"), n=((1,), np.int64)), preprocess=audio(fill=fill))
    assert what in str(caught.value)


def test_fill_stands_beside_arrays_too(tmp_path, signature, feeds):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4), np.float32))
    samples = list(feeds(tmp_path, signature(x=("N", 4), state=(2, 1, 4)), preprocess=Preprocess(fill={"state": 1})))
    assert [sample.feed["state"].shape for sample in samples] == [(2, 1, 4)] * 3


def test_an_input_that_is_filled_and_in_the_data_is_told_as_such(tmp_path, signature, feeds):
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4), np.float32), state=np.ones((3, 2), np.float32))
    with pytest.raises(DataError, match=r'key "state" is an input that data.preprocess.fill gives one number'):
        list(feeds(tmp_path, signature(x=("N", 4), state=("N", 2)), preprocess=Preprocess(fill={"state": 1})))


def test_folders_of_sounds_are_classes(tmp_path, signature, feeds, sound):
    sound("no/a.wav")
    sound("yes/b.wav")
    opened = feeds(tmp_path, signature(x=("N", 500)), preprocess=audio(), require_labels=True)
    assert [sample.label for sample in opened] == [0, 0, 1, 1]


def test_transcripts_beside_sounds_are_left_alone(tmp_path, signature, feeds, sound):
    sound("a.wav")
    (tmp_path / "a.txt").write_text("said\n")
    (tmp_path / "metadata.csv").write_text("file,said\n")
    assert len(list(feeds(tmp_path, signature(x=("N", "T")), preprocess=audio()))) == 1


def test_a_wav_that_is_cut_off_is_no_shorter_sound(tmp_path, signature, feeds, sound):
    sound("a.wav")
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[:-500])
    with pytest.raises(DataError, match=r"a\.wav: cannot be read: 500 bytes are missing at its end"):
        feeds(tmp_path, signature(x=("N", "T")), preprocess=audio())
    # who writes to a pipe cannot know the size
    (tmp_path / "a.wav").write_bytes(whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:])
    (sample,) = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio())
    assert sample.feed["x"].shape == (1, 1000)


def test_damaged_files_are_named_or_skipped(tmp_path, signature, feeds, sound):
    sound("good.wav")
    sound("short.wav", 50)
    (tmp_path / "bad.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(DataError, match=r"bad.wav: cannot be read: "):
        feeds(tmp_path, signature(x=("N", "T")), preprocess=audio())
    opened = feeds(tmp_path, signature(x=("N", "T")), preprocess=audio(), skip_bad=True)
    assert (opened.count, [name.rpartition("/")[2] for name in opened.skipped]) == (2, ["bad.wav"])
    with pytest.raises(DataError, match=r"short.wav: has 50 frames, a sample has 100; remove it, or give --audio-pad"):
        feeds(tmp_path, signature(x=("N", 100)), preprocess=audio(), skip_bad=True)


@pytest.mark.parametrize(
    ("shape", "settings", "what"),
    [
        ((("N", 300), np.float32), {"length": 400}, 'length: is 400, input "x" takes 300 frames'),
        ((("N", "T"), np.float32), {"hop": 400}, "hop is about samples of one length, and none is declared"),
    ],
)
def test_lengths_that_contradict_each_other(tmp_path, signature, feeds, sound, shape, settings, what):
    sound("a.wav")
    with pytest.raises(ConfigError) as caught:
        feeds(tmp_path, signature(x=shape), preprocess=audio(**settings))
    assert what in str(caught.value)


def test_a_model_that_takes_no_sound(tmp_path, signature, feeds, sound):
    sound("a.wav")
    with pytest.raises(DataError, match=r'input "x" is int64 \(N, T\), no sound'):
        feeds(tmp_path, signature(x=(("N", "T"), np.int64)), preprocess=audio())
