"""The marker quick: what has it, and what must not."""

import pytest


def quick(item):
    return item.get_closest_marker("quick") is not None


def test_a_unit_test_is_quick_without_saying_so(request):
    assert quick(request.node)


@pytest.mark.slow
def test_one_that_says_that_it_is_slow_is_not(request):
    assert not quick(request.node)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_single_case_may_be_slow(request, number):
    assert quick(request.node) is (number == 1)


def test_of_all_tests_that_are_running_now_the_quick_ones_are_in_two_folders_and_marked_nothing_dear(request):
    for item in filter(quick, request.session.items):
        assert item.path.relative_to(request.config.rootpath).parts[:2] in {("tests", "unit"), ("tests", "property")}
        assert not {"slow", "long", "zoo", "emulated", "browser"} & {mark.name for mark in item.iter_markers()}
