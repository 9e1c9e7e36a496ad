"""Parts of sentences."""

from int8cal.phrases import counted, quoted


def test_one_thing_is_told_in_the_singular():
    assert [counted(number, "layer") for number in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
    assert [counted(number, "copy", "copies") for number in (1, 3)] == ["1 copy", "3 copies"]


def test_names_are_listed_in_quotation_marks():
    assert quoted(name for name in ("a", "b c")) == '"a", "b c"'
    assert quoted([]) == ""
