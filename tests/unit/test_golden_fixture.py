"""The golden comparison itself: a comparison that cannot fail would keep nothing."""

import pytest

STORED = "Usage: int8cal\n\n  --help\n"


@pytest.fixture
def stored(golden, tmp_path):
    (tmp_path / "help.txt").write_text(STORED, encoding="utf-8")
    return type(golden)(tmp_path, regen=False)


def test_equal_text_passes(stored):
    stored("help.txt", STORED)


@pytest.mark.parametrize(
    "planted",
    [STORED.replace("--help", "--hepl"), STORED + "\n", STORED.rstrip("\n"), STORED.replace("  --", " --"), ""],
    ids=["one letter", "one more line", "no last newline", "one space less", "empty"],
)
def test_a_planted_difference_fails(stored, planted):
    with pytest.raises(pytest.fail.Exception, match="regen-golden"):
        stored("help.txt", planted)


def test_the_failure_shows_the_changed_line(stored):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-Usage: int8cal.*\+Usage: int8kal"):
        stored("help.txt", STORED.replace("int8cal", "int8kal"))


def test_a_missing_file_fails_instead_of_being_created(stored):
    with pytest.raises(pytest.fail.Exception, match="does not exist"):
        stored("new.txt", STORED)
    assert not (stored.root / "new.txt").exists()


def test_regeneration_writes_the_text(stored):
    writing = type(stored)(stored.root, regen=True)
    writing("sub/new.txt", STORED)
    stored("sub/new.txt", STORED)
