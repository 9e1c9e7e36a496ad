"""The progress bar is seen on a terminal only, and never changes what passes through it."""

import io
import sys

from int8cal.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_the_iterable_is_passed_on_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    items = iter([1, 2])
    assert ProgressBar()(items, 2, "calibrate") is items
    assert sys.stderr.getvalue() == ""


def test_quiet_shows_nothing_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(ProgressBar(quiet=True)([1, 2], 2, "calibrate")) == [1, 2]
    assert sys.stderr.getvalue() == ""


def test_on_a_terminal_label_and_total_are_shown_on_stderr_only(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(ProgressBar()(iter("abc"), 3, "calibrate")) == ["a", "b", "c"]
    assert "calibrate" in sys.stderr.getvalue()
    assert "/3" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""
