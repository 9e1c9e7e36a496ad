"""What the views show of the saturation audit."""

import json
from dataclasses import replace

import pytest
from made_reports import CLEAN, FOUND

from int8cal.errors import ConfigError
from int8cal.report.document import document_of, report_to_json
from int8cal.report.files import load_report
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown
from int8cal.report.summary import summary_lines
from int8cal.report.terminal import report_lines


@pytest.fixture
def audited(report):
    return replace(report, evaluation=replace(report.evaluation, saturation=FOUND))


def test_every_view_shows_how_many_channels_can_saturate_and_where(audited, tmp_path):
    text = report_to_json(audited)
    found = json.loads(text)["saturation"]
    assert (found["unsafe_channels"], found["channels"], found["unsafe_pairs"]) == (3, 26, 7)
    assert [layer["node"] for layer in found["layers"]] == ["conv|1", "fc"]
    (tmp_path / "report.json").write_text(text)
    document = load_report(tmp_path / "report.json")
    assert any("Can saturate" in line and "3 of 26 channels" in line for line in report_lines(document))
    assert "; 3 channels can saturate" in summary_lines(audited)[0]
    markdown = report_to_markdown(audited)
    assert "| <code>conv&#124;1</code> | Conv | 3 | 16 |" in markdown
    assert "fc" not in markdown.split("Can saturate on x86")[1].split("</details>")[0]
    assert "conv|1</code> (Conv): 3 of 16" in report_to_html(audited)


def test_a_clean_model_is_said_to_be_clean(audited):
    clean = replace(audited, evaluation=replace(audited.evaluation, saturation=CLEAN))
    assert any("Can saturate" in line and "no channel" in line for line in report_lines(document_of(clean)))
    assert "saturate" not in summary_lines(clean)[0]
    assert "<summary>Can saturate" not in report_to_markdown(clean)


def test_a_malformed_layer_is_named(audited, tmp_path):
    document = json.loads(report_to_json(audited))
    del document["saturation"]["layers"][1]["unsafe_channels"]
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"saturation\.layers\.1\.unsafe_channels is missing"):
        load_report(tmp_path / "report.json")
