"""Numbers of options are written as gates and JSON have them, whatever else Python reads as one."""

import pytest


@pytest.mark.parametrize("text", ["1_0", "\u0661\u0660"])
@pytest.mark.parametrize("option", ["--samples", "--percentile", "--scale", "--mean", "--resize", "--fill"])
def test_underscores_and_digits_of_other_scripts_are_refused(call, option, text):
    given = f"state={text}" if option == "--fill" else text
    done = call("calibrate", "model.onnx", "--data", "data", option, given)
    assert done.code == 2
    assert text in done.err
    assert "model.onnx" not in done.err


@pytest.mark.parametrize("text", ["1_0", "\u0661\u0660"])
@pytest.mark.parametrize("arguments", [("run", "--jobs"), ("audit", "--samples"), ("audit", "--threads")])
def test_so_they_are_in_options_that_are_no_settings(call, arguments, text):
    done = call(*arguments, text, "missing")
    assert done.code == 2
    assert text in done.err
    assert "missing" not in done.err
