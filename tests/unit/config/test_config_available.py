from dataclasses import replace
from pathlib import Path

import pytest

from int8cal.config.available import AVAILABLE, require_available
from int8cal.errors import ConfigError
from int8cal.job import CalibrationSettings, DataSettings, Job, QuantizationSettings

JOB = Job(Path("m.onnx"), DataSettings("d"), name="m")


def test_the_defaults_are_available():
    require_available(JOB)


@pytest.mark.parametrize(
    ("section", "settings", "told"),
    [
        ("quantization", QuantizationSettings(target="abacus"), "use portable or x86-avx2 or x86-vnni or arm64"),
        ("quantization", QuantizationSettings(target="abacus"), 'quantization.target "abacus" is not available'),
        ("calibration", CalibrationSettings(engine="ray"), "use local"),
    ],
)
def test_what_is_not_built_is_refused_with_what_is(section, settings, told):
    with pytest.raises(ConfigError) as caught:
        require_available(replace(JOB, **{section: settings}))
    assert told in str(caught.value)
    assert caught.value.exit_code == 2


def test_every_row_of_the_table_names_a_setting():
    for section, key in AVAILABLE:
        assert hasattr(getattr(JOB, section), key)
