import numpy as np  # noqa: F401 - which brings the library
import pytest
from threadpoolctl import threadpool_info

from int8cal.numerics.products import one_thread_each


def blas_threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_products_have_one_thread_within_and_their_own_again_behind():
    before = blas_threads()
    if not before:
        pytest.skip("threadpoolctl does not know the library of numpy's products here")
    with one_thread_each():
        assert blas_threads() == [1] * len(before)
    assert blas_threads() == before
