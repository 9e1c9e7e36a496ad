"""Real pretrained models, where the zoo is at hand: INT8CAL_ZOO names its folder, by default ../shared/zoo."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ZOO = Path(os.environ.get("INT8CAL_ZOO", Path(__file__).parents[3] / "shared" / "zoo"))


@pytest.fixture(scope="session")
def zoo():
    if not (ZOO / "zoo.py").is_file():
        pytest.skip("the zoo of pretrained models is not here (INT8CAL_ZOO)")
    spec = importlib.util.spec_from_file_location("zoo", ZOO / "zoo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module
    spec.loader.exec_module(module)
    return module
