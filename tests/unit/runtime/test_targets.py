from typing import get_args

import pytest

from int8cal.job import QuantizationSettings, TargetName
from int8cal.numerics.pairs import link
from int8cal.quantization.table import TableSettings
from int8cal.runtime.targets import TARGETS, any_two_meet, links_of, weight_range


def test_every_target_has_a_name_of_the_contract_and_every_built_one_is_offered():
    assert set(TARGETS) == set(get_args(TargetName))
    assert all(name == target.name for name, target in TARGETS.items())


@pytest.mark.parametrize(
    ("target", "weights"),
    [
        ("portable", "paired"),
        ("x86-avx2", "paired"),
        ("x86-vnni", "s8"),
        ("arm64", "s8"),
        ("openvino", "paired"),
        ("tensorrt", "s8"),
    ],
)
def test_a_target_decides_the_weight_range_unless_the_user_does(target, weights):
    assert weight_range(QuantizationSettings(target=target)) == weights
    assert weight_range(QuantizationSettings(target=target, weights="s7")) == "s7"


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_without_a_range_gets_the_targets_own(target):
    assert TableSettings({"target": target}).weights == TARGETS[target].weights
    assert TableSettings({"target": target, "weights": "s7"}).weights == "s7"
    assert TableSettings({}).weights == "paired"


def test_only_targets_that_can_saturate_have_pairs():
    assert {name for name, target in TARGETS.items() if target.orders} == {"portable", "x86-avx2", "openvino"}
    assert all((target.weights == "paired") == bool(target.orders) for target in TARGETS.values())


def test_portable_links_are_the_union_of_both_runtimes():
    expected = link(("flat", "channels"), 9, 3).tolist()
    assert links_of("portable", 9, 3, depthwise=False).tolist() == expected
    assert links_of("x86-avx2", 9, 3, depthwise=False).tolist() == link(("flat",), 9, 3).tolist()


def test_safe_weights_on_an_exact_target_are_safe_everywhere():
    assert links_of("x86-vnni", 9, 3, depthwise=False).tolist() == links_of("portable", 9, 3, depthwise=False).tolist()


def test_depthwise_weights_never_meet():
    assert not links_of("portable", 9, 1, depthwise=True).any()
    assert links_of("portable", 9, 1, depthwise=False).any()


def test_one_input_channel_has_no_fixed_neighbours_where_onednn_may_run():
    assert any_two_meet("portable", (3, 3), 1, depthwise=False)
    assert not any_two_meet("x86-avx2", (3, 3), 1, depthwise=False)
    assert not any_two_meet("portable", (3, 3), 2, depthwise=False)
    assert not any_two_meet("portable", (3, 3), 1, depthwise=True)
    assert not any_two_meet("portable", (1, 5), 1, depthwise=False)
    assert not any_two_meet("portable", (), 1, depthwise=False)
