from __future__ import annotations

import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from int8cal.data.images import decode as decode_named
from int8cal.errors import ConfigError, DataError
from int8cal.preprocess import Preprocess
from int8cal.progress import tell_warnings


def decode(path):
    return decode_named(path, path.as_posix())


def _one(opened):
    (sample,) = opened
    return sample.feed["x"]


@pytest.fixture
def png(tmp_path, paint):
    return paint(tmp_path / "a.png")


def test_without_preprocessing_pixel_values_stay_as_they_are(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png")
    values = _one(feeds(path, rgb))
    assert values.shape == (1, 3, 8, 8)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values[0].transpose(1, 2, 0), np.asarray(Image.open(path)))


def test_uint8_input_gets_uint8_pixels(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png")
    values = _one(feeds(path, signature(x=(("N", 8, 8, 3), np.uint8))))
    assert values.dtype == np.uint8
    np.testing.assert_array_equal(values[0], np.asarray(Image.open(path)))


def test_scale_mean_and_std_are_applied_in_this_order_per_channel(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", pixels=np.full((8, 8, 3), (0, 51, 255)))
    declared = Preprocess(scale=1 / 255, mean=(0.5, 0.1, 0.0), std=(0.5, 0.2, 0.25))
    values = _one(feeds(path, rgb, preprocess=declared))
    np.testing.assert_allclose(values[0, :, 0, 0], [-1.0, 0.5, 4.0], rtol=1e-6)
    assert np.ptp(values, axis=(2, 3)).max() == 0


def test_bgr_turns_the_channels_before_mean_is_subtracted(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", pixels=np.full((8, 8, 3), (10, 20, 30)))
    values = _one(feeds(path, rgb, preprocess=Preprocess(color="BGR", mean=(1.0, 2.0, 3.0))))
    np.testing.assert_array_equal(values[0, :, 0, 0], [29, 18, 7])


def test_color_image_becomes_grey_for_one_channel(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png")
    values = _one(feeds(path, signature(x=("N", 1, 8, 8))))
    np.testing.assert_array_equal(values[0, 0], np.asarray(Image.open(path).convert("L")))


def test_grey_image_becomes_three_equal_channels(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", mode="L")
    values = _one(feeds(path, rgb))
    np.testing.assert_array_equal(values[0, 0], values[0, 2])


def test_input_without_channel_axis_takes_grey_images(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png", mode="L")
    values = _one(feeds(path, signature(x=("N", 8, 8))))
    np.testing.assert_array_equal(values[0], np.asarray(Image.open(path)))


def test_resize_sets_the_shorter_side_and_crop_takes_the_centre(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", size=(40, 20))
    values = _one(feeds(path, rgb, preprocess=Preprocess(resize=10, crop=8)))
    expected = Image.open(path).resize((20, 10), Image.Resampling.BILINEAR).crop((6, 1, 14, 9))
    np.testing.assert_array_equal(values[0].transpose(1, 2, 0), np.asarray(expected))


def test_resize_of_an_upright_image_sets_its_width(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png", size=(20, 41))
    values = _one(feeds(path, signature(x=("N", 3, "H", "W")), preprocess=Preprocess(resize=10)))
    assert values.shape == (1, 3, 20, 10)


@pytest.mark.parametrize(
    ("size", "inner", "at"), [((20, 10), (8, 4), (0, 2)), ((10, 40), (2, 8), (3, 0)), ((16, 14), (8, 7), (0, 0))]
)
def test_a_letterbox_keeps_the_aspect_and_fills_both_sides_with_grey(tmp_path, rgb, feeds, paint, size, inner, at):
    path = paint(tmp_path / "a.png", size=size)
    values = _one(feeds(path, rgb, preprocess=Preprocess(resize=8, letterbox=114)))
    expected = Image.new("RGB", (8, 8), (114, 114, 114))
    expected.paste(Image.open(path).convert("RGB").resize(inner, Image.Resampling.BILINEAR), at)
    np.testing.assert_array_equal(values[0].transpose(1, 2, 0), np.asarray(expected, np.float32))


@pytest.mark.parametrize("declared", [{"letterbox": 0}, {"letterbox": 114, "resize": 8, "crop": 8}])
def test_a_letterbox_needs_a_size_and_leaves_nothing_to_crop(tmp_path, rgb, feeds, paint, declared):
    paint(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="letterbox fits images into the size of resize"):
        feeds(tmp_path, rgb, preprocess=Preprocess(**declared))
    with pytest.raises(ConfigError, match=r"gives images of 7 x 7.*; give --resize 8 \("):
        feeds(tmp_path, rgb, preprocess=Preprocess(resize=7, letterbox=114))


def test_pair_resizes_exactly_as_height_and_width(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png", size=(40, 20))
    values = _one(feeds(path, signature(x=("N", 3, 6, 12)), preprocess=Preprocess(resize=(6, 12))))
    assert values.shape == (1, 3, 6, 12)


def test_wrong_size_says_what_to_add(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", size=(9, 8))
    with pytest.raises(DataError) as caught:
        list(feeds(path, rgb))
    text = str(caught.value)
    assert 'a.png: input "x" has shape (1, 3, 8, 9), the model expects (N, 3, 8, 8)' in text
    assert text.endswith(
        "give --resize 8 --crop 8, for most detectors --resize 8 --letterbox 114 (data.preprocess in a YAML)"
    )


def test_wrong_size_of_an_oblong_input_asks_for_a_pair(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"give --resize 6x12 "):
        list(feeds(path, signature(x=("N", 3, 6, 12))))


def test_declared_size_that_misses_the_model_is_found_before_any_image_is_read(tmp_path, rgb, feeds):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"gives images of 7 x 7.*give --resize 8 --crop 8"):
        feeds(tmp_path, rgb, preprocess=Preprocess(resize=16, crop=7))


def test_an_image_that_resizing_makes_too_large_is_refused(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", size=(1, 1000))
    with pytest.raises(DataError, match=r"and resized (1200 x 1200000|1200000 x 1200), more than 179 million pixels"):
        list(feeds(path, rgb, preprocess=Preprocess(resize=1200, crop=8)))


def test_crop_larger_than_the_image_is_refused(tmp_path, rgb, feeds, paint):
    path = paint(tmp_path / "a.png", size=(6, 6))
    with pytest.raises(DataError, match=r"image is 6 x 6 .*smaller than crop 8 x 8; give --resize"):
        list(feeds(path, rgb, preprocess=Preprocess(crop=8)))


@pytest.mark.parametrize("shape", [("N", 3, 8, 3), ("N", "C", "H", "W"), ("N", 3, 3, 3)])
def test_ambiguous_layout_is_asked_for(tmp_path, signature, feeds, paint, shape):
    with pytest.raises(DataError, match="give --layout NCHW or NHWC"):
        feeds(paint(tmp_path / "a.png"), signature(x=shape))


def test_declared_layout_and_color_settle_an_open_shape(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png")
    declared = Preprocess(layout="NHWC", color="GRAY")
    assert _one(feeds(path, signature(x=("N", "a", "b", "c")), preprocess=declared)).shape == (1, 8, 8, 1)
    with pytest.raises(DataError, match="give --color"):
        feeds(path, signature(x=("N", "a", "b", "c")), preprocess=Preprocess(layout="NHWC"))


@pytest.mark.parametrize("shape", [("N", 64), (3, 8, 8), ("N", 8, 8, 3, 1), None])
def test_input_that_is_no_image_is_refused(tmp_path, signature, feeds, paint, shape):
    with pytest.raises(DataError):
        feeds(paint(tmp_path / "a.png"), signature(x=shape))


def test_four_channels_are_refused(tmp_path, signature, feeds, paint):
    with pytest.raises(DataError, match="4 channels in NCHW"):
        feeds(paint(tmp_path / "a.png"), signature(x=("N", 4, 8, 8)), preprocess=Preprocess(layout="NCHW"))


def test_model_with_two_inputs_takes_no_images(tmp_path, pair, feeds, paint):
    with pytest.raises(DataError, match=r"use \.npz"):
        feeds(paint(tmp_path / "a.png"), pair)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Preprocess(mean=(0.1, 0.2)), "mean has 2 values, images have 3"),
        (Preprocess(std=(1.0, 2.0)), "std has 2 values, images have 3"),
        (Preprocess(color="GRAY"), "color GRAY does not give the 3"),
    ],
)
def test_preprocessing_that_cannot_be_is_a_config_error(rgb, feeds, png, declared, message):
    with pytest.raises(ConfigError, match=message) as caught:
        feeds(png, rgb, preprocess=declared)
    assert caught.value.exit_code == 2


def test_uint8_input_with_scale_is_a_config_error(tmp_path, signature, feeds, paint):
    model = signature(x=(("N", 3, 8, 8), np.uint8))
    with pytest.raises(ConfigError, match="remove scale, mean and std"):
        feeds(paint(tmp_path / "a.png"), model, preprocess=Preprocess(scale=0.5))


def test_int8_and_bool_inputs_take_no_pixels(tmp_path, signature, feeds, paint):
    path = paint(tmp_path / "a.png")
    for dtype in (np.int8, np.bool_):
        with pytest.raises(DataError, match="no pixels"):
            feeds(path, signature(x=(("N", 3, 8, 8), dtype)))


@pytest.mark.parametrize("extension", ["jpg", "jpeg", "png", "bmp", "webp", "PNG"])
def test_every_listed_format_is_read(tmp_path, rgb, feeds, paint, extension):
    assert _one(feeds(paint(tmp_path / f"a.{extension}"), rgb)).shape == (1, 3, 8, 8)


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (20, 10))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg").size == (10, 20)


def test_16_bit_greyscale_is_scaled_and_not_clipped(tmp_path):
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.asarray(decode(tmp_path / "a.png")).tolist() == [[0, 1, 128, 255]]


def test_palette_cmyk_bilevel_and_alpha_become_plain_channels(tmp_path):
    color = Image.new("RGB", (8, 8), (255, 0, 0))
    color.quantize(4).save(tmp_path / "palette.png")
    color.quantize(4).save(tmp_path / "transparent.png", transparency=bytes([0, 128, 255]))
    color.convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "alpha.png")
    for name in ("palette.png", "transparent.png", "cmyk.jpg", "alpha.png"):
        pixel = decode(tmp_path / name).getpixel((3, 3))
        assert np.abs(np.subtract(pixel, (255, 0, 0))).max() <= 2, name
    Image.new("1", (8, 8), 1).save(tmp_path / "bilevel.png")
    Image.new("LA", (8, 8), (200, 0)).save(tmp_path / "grey-alpha.png")
    assert decode(tmp_path / "bilevel.png").getpixel((0, 0)) == 255
    assert decode(tmp_path / "grey-alpha.png").getpixel((0, 0)) == 200


@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_broken_image_is_named_or_skipped_and_counted(tmp_path, rgb, feeds, paint, damage):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        paint(tmp_path / "cat" / name)
        paint(tmp_path / "dog" / name)
    broken = tmp_path / "cat/b.jpg"
    broken.write_bytes({"empty": b"", "text": b"hello", "cut": broken.read_bytes()[:-60]}[damage])
    with pytest.raises(DataError, match=r"cat/b\.jpg: cannot be read: .*--skip-bad"):
        list(feeds(tmp_path, rgb))
    opened = feeds("*/*.jpg", rgb, base=tmp_path, skip_bad=True)
    samples = list(opened)
    assert opened.skipped == ["cat/b.jpg"]
    # the labels of the others stay with their images
    assert [sample.label for sample in samples] == [0, 0, 1, 1, 1]
    assert [sample.origin for sample in samples][2] == "dog/a.jpg"


def test_all_images_skipped_is_an_error(tmp_path, rgb, feeds):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of 1 files can be read"):
        list(feeds(tmp_path, rgb, skip_bad=True))


def test_content_counts_and_not_the_extension(tmp_path, paint):
    paint(tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert decode(tmp_path / "a.jpg").size == (8, 8)
    Image.new("RGB", (8, 8)).save(tmp_path / "b.gif")
    (tmp_path / "b.gif").rename(tmp_path / "b.png")
    with pytest.raises(DataError, match="not a JPEG, PNG, BMP or WebP"):
        decode(tmp_path / "b.png")


@pytest.fixture
def told():
    """What the command line tells of warnings."""
    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        tell_warnings(lines.append)
        yield lines


def test_what_pillow_warns_of_is_told_in_our_words_and_with_its_file(tmp_path, told, monkeypatch):
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (8, 4)).save(tmp_path / "damaged.jpg", exif=exif.tobytes())
    content = bytearray((tmp_path / "damaged.jpg").read_bytes())
    entries = content.find(b"Exif\0\0") + 6 + 8
    content[entries : entries + 2] = b"\x00\x09"  # of one
    (tmp_path / "damaged.jpg").write_bytes(content)
    Image.new("RGB", (8, 4)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    assert decode(tmp_path / "large.png").size == (8, 4)
    decode(tmp_path / "damaged.jpg")
    (line,) = told
    assert line == (
        f"warning: {tmp_path.as_posix()}/damaged.jpg: its EXIF data is damaged: its pixels are read as they are stored, "
        "upright or not"
    )
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match=r"large\.png: cannot be read: it has more than 0 million pixels, the most"):
        decode(tmp_path / "large.png")


def test_an_image_that_claims_more_pixels_than_its_file_can_hold_is_refused(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[16:24] = (12).to_bytes(4, "big") + (5_000_000).to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=rf"it claims 12 x 5000000 pixels, and has {len(content)} bytes"):
        decode(tmp_path / "a.png")
    Image.new("1", (6000, 6000)).save(tmp_path / "blank.png", optimize=True)  # a scanned page without a word
    assert decode(tmp_path / "blank.png").size == (6000, 6000)
