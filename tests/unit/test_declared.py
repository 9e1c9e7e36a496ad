"""What the declarations of a job's settings keep to, so that all that is made from them can rely on it."""

from collections import Counter

import pytest

from int8cal.declared import all_declared, alternatives, declared
from int8cal.job import Job

SETTINGS = list(all_declared())
# evaluation.data has the settings of data, and their flags in `int8cal evaluate`
OWN = [each for each in SETTINGS if not each.path.startswith("evaluation.data.")]


def test_every_setting_is_listed_with_its_default():
    found = {each.path: each.default for each in SETTINGS}
    assert found["calibration.percentile"] == 99.99
    assert found["evaluation.data.seed"] == 0
    assert found["evaluation.labels"] is None
    assert [each.name for each in declared()] == list(Job.__dataclass_fields__)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.path)
def test_a_setting_says_what_it_is_and_has_one_kind_of_value(setting):
    assert setting.option.about.endswith((".", ")"))
    assert len(alternatives(setting.hint)) == (2 if setting.form in {"size", "nodes"} else 1)


def test_no_two_settings_share_a_flag_or_a_keyword():
    flags = Counter(flag for each in OWN for flag in each.option.flag.split())
    assert [flag for flag, count in flags.items() if count > 1] == []
    keywords = Counter(
        each.option.keyword or each.name for each in OWN if each.option.api and each.path.count(".") == 1
    )
    assert [keyword for keyword, count in keywords.items() if count > 1] == []


def test_every_flag_has_its_place_in_the_help():
    assert [each.path for each in SETTINGS if bool(each.option.flag) != (each.option.group is not None)] == []


def test_limits_are_those_of_numbers():
    limited = [each for each in OWN if (each.option.gt, each.option.ge, each.option.le) != (None, None, None)]
    assert {kind for each in limited for kind in alternatives(each.hint)} == {int, float}


def test_what_tables_hold_depends_on_a_setting_beside_it():
    for part in declared():
        for each in declared(part.section) if part.section else ():
            beside = {one.name for one in declared(part.section)}
            assert each.option.recorded in {"", "always"} | beside
