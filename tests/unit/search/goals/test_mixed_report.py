import pytest

from int8cal.search.goals.mixed import PrecisionMix
from int8cal.search.goals.mixed_report import outcome_of


@pytest.mark.parametrize("holds", [True, False])
def test_time_is_said_to_be_an_estimate(holds):
    taken = PrecisionMix(floats=("a", "b"), planes=("c",), percent=58.4)
    text = outcome_of(taken, 60.0, 90.0, holds=holds)
    assert "2 layers in float and 1 second plane, an estimated 58.4 % more time" in text
    assert holds or text.endswith("about 90 % would be needed by estimate")
