from __future__ import annotations

import numpy as np
import pytest

from int8cal.data.fit import Header, check_dtype, count_rows, match_inputs, take_row
from int8cal.errors import DataError, StatisticsError
from int8cal.graph.signature import Signature, TensorSpec, signature_of

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)


def test_array_of_the_models_rank_is_a_batch(vector):
    assert count_rows({"x": Header(F32, (5, 3))}, vector, "f") == 5


def test_array_of_one_rank_less_is_one_sample_and_gets_the_batch_axis(vector):
    assert count_rows({"x": Header(F32, (3,))}, vector, "f") == 1
    assert take_row({"x": np.ones(3, np.float32)}, 0, vector, "f")["x"].shape == (1, 3)


def test_fixed_batch_is_split_into_single_rows(signature):
    model = signature(x=(4, 3))
    assert count_rows({"x": Header(F32, (10, 3))}, model, "f") == 10
    row = take_row({"x": np.arange(30, dtype=np.float32).reshape(10, 3)}, 7, model, "f")
    np.testing.assert_array_equal(row["x"], [[21, 22, 23]])


def test_feed_of_a_model_without_common_batch_is_indivisible(signature):
    model = signature(x=(4, 3), y=("M", 2))
    assert model.batch is None
    headers = {"x": Header(F32, (4, 3)), "y": Header(F32, (9, 2))}
    assert count_rows(headers, model, "f") == 1
    feed = take_row({"x": np.ones((4, 3), np.float32), "y": np.ones((9, 2), np.float32)}, 0, model, "f")
    assert {name: array.shape for name, array in feed.items()} == {"x": (4, 3), "y": (9, 2)}


def test_indivisible_feed_must_match_exactly(signature):
    model = signature(x=(4, 3), y=(2,))
    with pytest.raises(DataError, match=r'input "x" has shape \(8, 3\), the model expects \(4, 3\)'):
        count_rows({"x": Header(F32, (8, 3)), "y": Header(F32, (2,))}, model, "f")


def test_an_axis_that_is_missing_is_told_where_inputs_have_no_batch_axis_in_common(signature):
    model = signature(x=("b", 4, "h"), t=(1,))
    headers = {"x": Header(F32, (4, 16)), "t": Header(F32, ())}
    with pytest.raises(DataError, match=r"store it as \(1, 4, 16\): the inputs have no batch axis in common"):
        count_rows(headers, model, "f")
    headers["x"] = Header(F32, (1, 4, 16))
    assert count_rows(headers, model, "f") == 1


def stacked(model, shapes, count):
    """Samples 0, 1, …: every value of a sample is its number."""
    arrays = {
        name: np.broadcast_to(np.arange(count, dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1)), shape)
        for name, shape in shapes.items()
    }
    assert count_rows({name: Header(F32, array.shape) for name, array in arrays.items()}, model, "f") == count
    rows = [take_row(arrays, row, model, "f") for row in range(count)]
    assert all((values == row).all() for row, feed in enumerate(rows) for values in feed.values())
    return {name: values.shape for name, values in rows[-1].items()}


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ({"x": (20, 1, 40), "h": (2, 1, 8)}, {"x": (5, 20, 1, 40), "h": (5, 2, 1, 8)}),
        ({"x": ("T", 1, 40), "h": (1, 1, 8)}, {"x": (5, 20, 1, 40), "h": (5, 1, 1, 8)}),
        ({"x": ("T", 1, 40), "h": (1, 1, 8)}, {"x": (5, 20, 1, 40), "h": (5, 1, 8)}),
        ({"x": (1, 512), "h": (2, 1, 8), "rate": ()}, {"x": (5, 512), "h": (5, 2, 1, 8), "rate": (5,)}),
        ({"x": (64,)}, {"x": (5, 64)}),
        ({"x": (1, 3)}, {"x": (5, 1, 3)}),
        ({"x": ("N", 3)}, {"x": (5, 1, 3)}),
        ({"x": ("N", 3), "y": ("N", 2)}, {"x": (5, 1, 3), "y": (5, 2)}),
    ],
)
def test_samples_are_stacked_along_the_first_axis_whatever_the_inputs(signature, inputs, shapes):
    taken = stacked(signature(**inputs), shapes, 5)
    for name, shape in taken.items():
        assert len(shape) == len(inputs[name])
        assert all(not isinstance(dim, int) or dim == size for dim, size in zip(inputs[name], shape, strict=True))


def test_a_batch_of_several_is_no_sample_of_a_stack(vector):
    with pytest.raises(DataError, match=r"has shape \(5, 2, 3\).*stacked along a new first axis"):
        count_rows({"x": Header(F32, (5, 2, 3))}, vector, "f")


def test_input_of_unknown_rank_takes_any_shape(signature):
    model = signature(x=None)
    assert count_rows({"x": Header(F32, (2, 5, 7))}, model, "f") == 1
    assert take_row({"x": np.ones((2, 5), np.float32)}, 0, model, "f")["x"].shape == (2, 5)


def test_scalar_input_is_fed_as_a_scalar(signature):
    model = signature(x=("N", 3), temperature=())
    headers = {"x": Header(F32, (2, 3)), "temperature": Header(F32, ())}
    assert count_rows(headers, model, "f") == 1


@pytest.mark.parametrize("shape", [(), (4,), (5, 4), (5, 3, 1), (3, 5)])
def test_wrong_shape_names_input_file_and_both_shapes(vector, shape):
    with pytest.raises(DataError) as caught:
        count_rows({"x": Header(F32, shape)}, vector, "calib/0007.npz")
    assert str(caught.value).startswith(f'data: calib/0007.npz: input "x" has shape {shape}, the model expects (N, 3)')
    assert caught.value.exit_code == 4


def test_one_symbol_means_one_size_within_a_feed(pair):
    good = {"ids": Header(I64, (2, 7)), "weight": Header(F32, (2, 7))}
    assert count_rows(good, pair, "f") == 2
    with pytest.raises(DataError, match='dimension "L" is 7 in input "ids" and 6 in input "weight"'):
        count_rows(good | {"weight": Header(F32, (2, 6))}, pair, "f")


def test_batch_symbol_elsewhere_in_a_shape_is_free(signature):
    model = signature(x=("N", "N"))
    assert count_rows({"x": Header(F32, (2, 5))}, model, "f") == 2


def test_inputs_with_different_row_counts_are_refused(pair):
    with pytest.raises(DataError, match='different numbers of samples: "ids" 2, "weight" 3'):
        count_rows({"ids": Header(I64, (2, 7)), "weight": Header(F32, (3, 7))}, pair, "f")


def test_unknown_key_names_the_nearest_input(pair):
    with pytest.raises(DataError, match='key "weigth" is not an input of the model; the nearest input is "weight"'):
        match_inputs(["ids", "weigth"], pair, "f")


def test_a_key_beside_all_inputs_is_to_be_left_out(pair):
    with pytest.raises(DataError, match='key "extra" is not an input of the model; leave it out; the inputs are "ids"'):
        match_inputs(["ids", "weight", "extra"], pair, "f")


def test_a_key_for_an_input_with_a_value_of_its_own_is_told_as_such(bench):
    text = "g (float[N,4] x, float[1] k) => (float[N,4] y) { y = Mul(x, k) }"
    model = signature_of(bench.text(text, k=(1,)))
    with pytest.raises(DataError, match=r'"k" is an input whose value the model holds itself.*remove its initializer'):
        match_inputs(["x", "k"], model, "f")


def test_missing_input_is_named_with_the_keys_found(pair):
    with pytest.raises(DataError, match='input "weight" is missing; found "ids"'):
        match_inputs(["ids"], pair, "f")


def test_label_key_is_told_from_an_input_of_that_name(signature, vector):
    assert match_inputs(["x", "labels"], vector, "f") == "labels"
    assert match_inputs(["label", "x"], vector, "f") == "label"
    assert match_inputs(["x", "labels"], signature(x=("N",), labels=("N",)), "f") is None
    with pytest.raises(DataError, match='both "label" and "labels"'):
        match_inputs(["x", "label", "labels"], vector, "f")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.float64, np.float32),
        (np.float16, np.float32),
        (np.int32, np.int64),
        (np.int64, np.int32),
        (np.uint8, np.int64),
        (np.bool_, np.bool_),
    ],
)
def test_casts_within_a_kind_are_allowed(given, wanted):
    check_dtype(np.dtype(given), TensorSpec("x", np.dtype(wanted), ("N",)), "f")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.uint8, np.float32),
        (np.int64, np.float32),
        (np.float32, np.int64),
        (np.float32, np.uint8),
        (np.bool_, np.int64),
        (np.int64, np.bool_),
        (np.complex64, np.float32),
        ("U4", np.float32),
    ],
)
def test_casts_across_kinds_are_refused(given, wanted):
    with pytest.raises(DataError, match=f"has dtype .*, the model expects {np.dtype(wanted).name}"):
        check_dtype(np.dtype(given), TensorSpec("x", np.dtype(wanted), ("N",)), "f")


def test_pixels_for_a_float_input_come_with_advice(vector):
    with pytest.raises(DataError, match=r"\(x / 255\)\.astype\(float32\)"):
        count_rows({"x": Header(np.dtype(np.uint8), (3,))}, vector, "f")


@pytest.mark.parametrize(
    ("wanted", "given", "do"),
    [
        (("N", 3, 32, 32), (9, 32, 32, 3), "transpose to NCHW, as x.transpose(0, 3, 1, 2) does"),
        (("N", 3, "H", "W"), (32, 48, 3), "transpose to NCHW, as x.transpose(2, 0, 1) does"),
        (("N", 32, 32, 3), (9, 3, 32, 32), "transpose to NHWC, as x.transpose(0, 2, 3, 1) does"),
        (("N", 3, 32, 32), (9, 28, 28, 3), None),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_axes_and_dtype_of_images_are_told_at_once(signature, wanted, given, do, dtype):
    with pytest.raises(DataError) as caught:
        count_rows({"x": Header(np.dtype(dtype), given)}, signature(x=wanted), "f")
    said = str(caught.value)
    assert f'f: input "x" has shape {given}, the model expects ' in said
    assert "transpose" not in said if do is None else do in said
    for each in ("has dtype uint8, the model expects float32", "convert it as in training"):
        assert (each in said) == (dtype is np.uint8)


def test_row_has_the_models_dtype_and_owns_its_values(vector):
    batch = np.arange(6, dtype=np.float64).reshape(2, 3)
    row = take_row({"x": batch}, 1, vector, "f")["x"]
    batch[:] = -1
    assert row.dtype == np.float32
    assert row.flags.c_contiguous
    np.testing.assert_array_equal(row, [[3, 4, 5]])


def test_big_endian_and_fortran_ordered_arrays_give_the_same_values(vector):
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    other = np.asfortranarray(plain.astype(">f4"))
    row = take_row({"x": other}, 1, vector, "f")["x"]
    assert row.dtype.isnative
    np.testing.assert_array_equal(row, plain[1:])


def test_integer_that_does_not_fit_is_refused(signature):
    model = signature(ids=(("N",), np.int32))
    fits = {"ids": np.array([2**31 - 1], np.int64)}
    assert take_row(fits, 0, model, "f")["ids"].dtype == np.int32
    with pytest.raises(DataError, match="int32 cannot hold"):
        take_row({"ids": np.array([2**31], np.int64)}, 0, model, "f")


def test_negative_integer_is_refused_by_an_unsigned_input(signature):
    model = signature(ids=(("N",), np.uint64))
    with pytest.raises(DataError, match="uint64 cannot hold"):
        take_row({"ids": np.array([-1], np.int64)}, 0, model, "f")


def test_finite_double_that_overflows_float32_is_refused(vector):
    with pytest.raises(DataError, match="float32 cannot hold"):
        take_row({"x": np.array([1.0, 1e39, 0.0])}, 0, vector, "f")


def test_minus_infinity_is_let_through_since_masks_are_made_of_it(vector):
    feed = take_row({"x": np.array([0.0, -np.inf, 1.0])}, 0, vector, "f")
    assert feed["x"].tolist() == [[0.0, -np.inf, 1.0]]
    with pytest.raises(DataError, match="float32 cannot hold"):
        take_row({"x": np.array([0.0, -np.inf, -1e39])}, 0, vector, "f")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_value_names_file_input_sample_and_place(vector, bad):
    batch = np.zeros((4, 3), np.float32)
    batch[2, 1] = bad
    take_row({"x": batch}, 1, vector, "calib.npy[1]")
    with pytest.raises(StatisticsError) as caught:
        take_row({"x": batch}, 2, vector, "calib.npy[2]")
    assert caught.value.exit_code == 5
    assert caught.value.fields["sample"] == 2
    assert f'calib.npy[2]: input "x" of sample 2 holds {bad}' in str(caught.value)


@pytest.mark.parametrize("kind", ["U3", object])
def test_text_of_both_kinds_feeds_an_input_of_text(signature, kind):
    model = signature(x=(("N", 2), object))
    array = np.array([["a", "bcd"], ["", "é"]], kind)
    assert count_rows({"x": Header(array.dtype, array.shape)}, model, "f") == 2
    found = take_row({"x": array}, 1, model, "f")["x"]
    assert found.dtype == object
    assert found.tolist() == [["", "é"]]
    assert {type(each) for each in found.flat} == {str}


@pytest.mark.parametrize("kind", [np.float32, "S3"])
def test_what_is_no_text_is_refused_by_an_input_of_text(signature, kind):
    with pytest.raises(DataError, match=r"the model expects text; store text, as numpy.array\(\[...\], dtype=str\)"):
        count_rows({"x": Header(np.dtype(kind), (2,))}, signature(x=(("N",), object)), "f")


def test_a_stack_of_one_input_beside_a_batch_of_another_says_which_is_stacked():
    state = TensorSpec("h", F32, (1, "B", 64))
    signature = Signature((TensorSpec("mel", F32, ("B", 7, 40)), state), ())
    with pytest.raises(DataError) as caught:
        count_rows({"mel": Header(F32, (14, 7, 40)), "h": Header(F32, (14, 1, 1, 64))}, signature, "calib/0000.npz")
    text = 'dimension "B" is 14 in input "mel" and 1 in input "h"; only "h" stacks samples along a new first axis; '
    assert str(caught.value) == f"data: calib/0000.npz: {text}give both one, or neither"
    stacked = {"mel": Header(F32, (14, 1, 7, 40)), "h": Header(F32, (14, 1, 1, 64))}
    assert count_rows(stacked, signature, "calib/0000.npz") == 14
