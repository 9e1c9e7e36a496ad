from __future__ import annotations

import os

import pytest

from int8cal.errors import OutputError
from int8cal.report import document, files
from int8cal.report.document import report_to_json
from int8cal.report.html import report_to_html
from int8cal.report.markdown import report_to_markdown


def test_the_three_reports_are_written_and_nothing_else(report, tmp_path):
    files.write_reports(report, tmp_path / "new" / "out")
    written = {path.name: path.read_bytes().decode() for path in (tmp_path / "new" / "out").iterdir()}
    assert written == {
        "report.json": report_to_json(report),
        "report.md": report_to_markdown(report),
        "report.html": report_to_html(report),
    }
    assert files.load_report(tmp_path / "new" / "out" / "report.json").samples == 900


def test_a_view_that_fails_leaves_the_old_reports(report, tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text("old")

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "report_to_json", fail)
    with pytest.raises(KeyboardInterrupt):
        files.write_reports(report, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert (tmp_path / "report.json").read_text() == "old"


def test_an_interruption_before_the_move_leaves_the_old_report(report, tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("old")

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        files.write_reports(report, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]


def test_a_file_in_the_place_of_the_directory_is_an_output_error(report, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="cannot be made"):
        files.write_reports(report, tmp_path / "out")


def test_a_report_is_laid_out_once_for_all_of_its_views(report, tmp_path, monkeypatch):
    calls = []
    lay_out = document._json_of
    monkeypatch.setattr(document, "_json_of", lambda each: calls.append(each) or lay_out(each))
    files.write_reports(report, tmp_path)
    assert calls == [report]
