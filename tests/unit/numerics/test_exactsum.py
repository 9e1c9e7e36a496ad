import numpy as np

from int8cal.numerics import exactsum


def total(*values):
    limbs = exactsum.zeros(1)
    for value in values:
        exactsum.add(limbs, np.array([value]))
    return exactsum.value(limbs)[0]


def test_large_terms_cancel_without_swallowing_a_small_one():
    assert total(1e300 / 1e190, 1.0, -1e300 / 1e190) == 1.0
    assert total(2.0**256, 2.0**-298, -(2.0**256)) == 2.0**-298


def test_the_sum_is_rounded_once_half_to_even():
    assert total(1.0, 2.0**-53) == 1.0
    assert total(1.0, 2.0**-53, 2.0**-80) == 1.0 + 2.0**-52


def test_equal_sums_are_equal_arrays():
    one, other = exactsum.zeros(1), exactsum.zeros(1)
    for value in (5.0, -2.0, -7.0):
        exactsum.add(one, np.array([value]))
    exactsum.add(other, np.array([-4.0]))
    np.testing.assert_array_equal(exactsum.canonical(one), exactsum.canonical(other))
    canonical = exactsum.canonical(one)
    assert (canonical[:, :-1] >= 0).all()
    assert (canonical[:, :-1] < 2**32).all()


def test_many_additions_do_not_need_carries():
    limbs = exactsum.zeros(1)
    for _ in range(1000):
        exactsum.add(limbs, np.array([float(np.finfo(np.float32).max) ** 2]))
    assert exactsum.value(limbs)[0] == float(1000 * int(np.finfo(np.float32).max) ** 2)


def test_a_value_beyond_the_accumulator_is_not_written_outside_it():
    limbs = np.zeros((3, exactsum.LIMBS), np.int64)
    exactsum.add(limbs[1:2], np.array([1e308]))
    exactsum.add(limbs[1:2], np.array([5e-324]))
    assert not limbs.any()


def test_scaling_moves_a_negative_sum_too():
    limbs = exactsum.zeros(2)
    exactsum.add(limbs, np.array([-3.0, 5.0]))
    assert exactsum.value(exactsum.scaled_sums(limbs, np.array([-4, 3]))).tolist() == [-3.0 / 16, 40.0]


def test_few_sums_are_carried_as_many_are():
    rng = np.random.default_rng(3)
    limbs = rng.integers(-(2**62), 2**62, (200, exactsum.LIMBS)) >> rng.integers(0, 62, (200, exactsum.LIMBS))
    limbs[:, -1] >>= 10
    limbs[::3, 5:20] = 0  # what is borrowed goes through all of these
    alone = np.concatenate([exactsum.canonical(row[None]) for row in limbs])
    np.testing.assert_array_equal(alone, exactsum.canonical(limbs))
    assert exactsum.canonical(limbs[:0]).shape == (0, exactsum.LIMBS)
