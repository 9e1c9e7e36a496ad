"""The commands of docs/how-to/other-runtimes.md, run as they stand there."""

import importlib.util
import re
import shlex
import shutil

import pytest

from int8cal.cli.main import main


def commands(sample):
    text = (sample.parent / "docs" / "how-to" / "other-runtimes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_every_example_runs(sample, sample_run, tmp_path, monkeypatch):
    shutil.copytree(sample_run, tmp_path / "model-int8")
    shutil.copytree(sample, tmp_path / "sample_data")
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("openvino") is None:
        wanted = [each for each in commands(sample) if "model.xml" not in each]
    else:
        wanted = commands(sample)
    assert len(wanted) >= 10
    for arguments in wanted:
        assert main(arguments) == 0, arguments


@pytest.mark.parametrize("line", ["/pixels/Mul_output: 3c010205"])
def test_the_lines_shown_are_those_of_the_sample(sample, sample_run, tmp_path, line):
    assert main(["table", str(sample_run / "model.table.json"), "--to", "tensorrt", "-o", str(tmp_path / "c")]) == 0
    assert line in (tmp_path / "c").read_text().splitlines()
    assert line in (sample.parent / "docs" / "how-to" / "other-runtimes.md").read_text(encoding="utf-8")
