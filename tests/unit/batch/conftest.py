import shutil
from pathlib import Path

import pytest

from int8cal.job import DataSettings, Job

SAMPLE = Path(__file__).parents[3] / "sample_data"


@pytest.fixture
def job(tmp_path):
    """A job "a" on the sample model and two classes of its images, in a folder of its own."""
    shutil.copytree(SAMPLE / "calib" / "0", tmp_path / "d" / "0")
    shutil.copytree(SAMPLE / "calib" / "1", tmp_path / "d" / "1")
    shutil.copy(SAMPLE / "model.onnx", tmp_path / "m.onnx")
    (tmp_path / "l.csv").write_text("file,label\n")
    return Job(tmp_path / "m.onnx", DataSettings(str(tmp_path / "d")), name="a")
