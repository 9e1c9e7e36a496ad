"""Paths that nothing can be written to are refused before any work, each with what to do."""

from pathlib import Path

import pytest

from int8cal.errors import OutputError
from int8cal.io.paths import exists, require_apart, require_free


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    return tmp_path


LONG = "n" * 300


@pytest.mark.parametrize(
    ("path", "directory", "what"),
    [
        (LONG, True, "longer than 255 bytes"),
        (LONG, False, "longer than 255 bytes"),
        (f"res/{LONG}", True, "longer than 255 bytes"),
        (f"{LONG}/out", True, "longer than 255 bytes"),
        ("ü" * 128, True, "longer than 255 bytes"),
        ("/".join(["n" * 200] * 25), True, "too long"),
        ("loop", True, "leads to itself"),
        ("loop", False, "leads to itself"),
        ("loop/out", True, "leads to itself"),
        ("dangling", True, "is a link to nowhere, which does not exist"),
        ("dangling/out", True, "is a link to nowhere, which does not exist"),
        ("dangling/file", False, "is a link to nowhere, which does not exist"),
    ],
)
def test_a_path_that_cannot_be_is_refused(here, path, directory, what):
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=what) as caught:
            require_free(Path(path), overwrite=overwrite, directory=directory)
        assert caught.value.exit_code == 2
        assert caught.value.do
        assert len(str(caught.value)) < 250


def test_a_file_may_be_written_through_a_link(here):
    require_free(Path("dangling"), overwrite=False)


def test_names_of_the_greatest_length_are_taken(here):
    require_free(Path("n" * 255), overwrite=False, directory=True)


def test_a_link_to_itself_is_nothing(here):
    assert not exists(Path("loop"))
    assert not exists(Path(LONG))
    require_apart([Path("loop")], [Path("other")])
    with pytest.raises(OutputError, match="also an input"):
        require_apart([Path("loop")], [Path("loop")])
