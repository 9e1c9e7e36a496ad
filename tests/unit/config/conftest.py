from __future__ import annotations

from pathlib import Path

import pytest

from int8cal.config.load import load_jobs
from int8cal.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty directory that is also the working directory, so that messages show short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(folder):
    """Write text to job.yaml and load its jobs."""

    def load(text: str, overrides: dict[str, object] | None = None, **kwargs):
        (folder / "job.yaml").write_text(text, encoding="utf-8")
        return tuple(located.job for located in load_jobs(Path("job.yaml"), overrides, **kwargs))

    return load


@pytest.fixture
def refused(load):
    """Load text that must be refused, and give the one-line message."""

    def refused(text: str, overrides: dict[str, object] | None = None, **kwargs) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, overrides, **kwargs)
        assert caught.value.exit_code == 2
        message = str(caught.value)
        assert "\n" not in message
        return message

    return refused
