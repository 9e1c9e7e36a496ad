from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.calibration.collector import Collector
from int8cal.calibration.ranges import TensorEntry
from int8cal.calibration.statistics import Statistics, TensorStatistics
from int8cal.evaluation.result import LayerSaturation, LayerScales, Saturation
from int8cal.graph.taps import Tap
from int8cal.quantization.table import CalibrationTable, TableSettings, WeightEntry
from int8cal.report.document import document_of
from int8cal.report.file_lines import statistics_lines, table_lines
from int8cal.report.screen import Screen
from int8cal.report.terminal import report_lines

ESCAPE = "\x1b"


@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(1, 50), st.booleans())
def test_every_bar_is_as_wide_as_asked(first, second, width, blocks):
    screen = Screen(blocks=blocks)
    low, high = sorted((first, second))
    assert len(screen.bar(first, width)) == width
    assert len(screen.part(low, high, width, middle=(low + high) / 2)) == width
    assert blocks or (screen.bar(first, width) + screen.part(low, high, width)).isascii()


@given(st.lists(st.floats(0, 1)))
def test_in_a_sparkline_what_is_not_nothing_shows(shares):
    for blocks in (True, False):
        line = Screen(blocks=blocks).sparkline(shares)
        assert [cell != " " for cell in line] == [share > 0 for share in shares]


ROWS = [("layer", "op", "why"), ("/a/b", "Conv", "the gates hold without it"), ("/a/c", "Gemm", "")]


def test_a_table_that_is_too_wide_breaks_its_last_column():
    assert Screen(width=40).table(ROWS) == [
        "layer  op    why",
        "/a/b   Conv  the gates hold without it",
        "/a/c   Gemm",
    ]
    assert Screen(width=30).table(ROWS)[1:3] == ["/a/b   Conv  the gates hold", "             without it"]


def test_a_table_without_room_for_columns_has_values_behind_their_heads():
    assert Screen(width=24).table(ROWS) == [
        "layer",
        "/a/b: op Conv, why the",
        "    gates hold without",
        "    it",
        "/a/c: op Gemm",
    ]
    assert Screen(width=24, rows=1).table(ROWS, "layer")[-2:] == ["... 1 more layer; --all", "    shows every row"]
    assert Screen(width=10, whole_names=True).table(ROWS) == Screen(width=99).table(ROWS)


def test_a_longer_bar_is_more():
    lengths = [Screen(blocks=False).bar(share, 20).count("#") for share in (0.0, 0.3, 0.6, 1.0)]
    assert lengths == [0, 6, 12, 20]


def test_a_part_lies_where_it_is():
    assert Screen(blocks=False).part(0.25, 0.75, 8) == "..====.."
    assert Screen(blocks=False).part(0.5, 0.5, 4) == "..=."
    assert Screen(blocks=False).part(0.0, 1.0, 5, middle=0.5) == "==|=="


def test_lists_are_cut_only_where_a_screen_has_an_end(build):
    document = document_of(build(60))
    short, whole = report_lines(document, Screen(rows=5)), report_lines(document)
    assert "... 55 more layers; --all shows every row" in short
    assert len(whole) == len(short) + 54
    assert not any("more layer" in line for line in whole)


@pytest.mark.parametrize("sort", ["", "worst", "order", "name"])
def test_layers_are_ordered_as_asked(build, sort):
    document = document_of(build(20))
    lines = report_lines(document, Screen(width=300, sort=sort))
    start = next(i for i, line in enumerate(lines) if "layer, " in line)
    rows = [re.search(r"(\S+)  (\S+) \(", line) for line in lines[start + 1 : start + 21]]
    shown = [row[2] for row in rows if row[1] != "-"]
    names = [layer.tensor for layer in document.layers if layer.clipped is not None]
    worst = {layer.tensor: layer.sqnr_db if layer.sqnr_db is not None else 999 for layer in document.layers}
    wanted = {"order": names, "name": sorted(names)}.get(sort, sorted(names, key=worst.__getitem__))
    assert shown == wanted


def test_a_glob_picks_layers(build):
    lines = report_lines(document_of(build(20)), Screen(only="*block.1*"))
    head = next(number for number, line in enumerate(lines) if "layer, " in line)
    shown = [line for line in lines[head:] if "features" in line]
    assert shown
    assert all("block.1" in line for line in shown)


def test_colour_only_adds_to_the_text(build):
    plain, painted = (report_lines(document_of(build(12)), Screen(colour=colour)) for colour in (False, True))
    assert not any(ESCAPE in line for line in plain)
    assert any(ESCAPE in line for line in painted)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == plain


def test_a_layer_says_that_it_can_saturate(report):
    layer = report.evaluation.layers[0]
    unsafe = LayerSaturation(
        node=layer.node,
        op_type="Conv",
        weight="w",
        verdict="unsafe",
        why="",
        channels=8,
        unsafe_channels=3,
        unsafe_pairs=4,
        worst_sum=140,
    )
    evaluation = replace(report.evaluation, saturation=Saturation("portable", 3, 8, 4, (unsafe,)))
    lines = report_lines(document_of(replace(report, evaluation=evaluation)))
    (line,) = [line for line in lines[1:] if "can saturate" in line]
    assert "3 of 8 channels" in line
    assert layer.op_type in line


def test_weights_of_a_report_are_drawn_on_one_axis(report):
    weights = tuple(
        LayerScales(name, "Conv", "w", "", WeightEntry("int8", 0, "s7", scales))
        for name, scales in (("even", (1.0, 1.0)), ("uneven", (0.1, 1.0, 10.0)))
    )
    lines = report_lines(document_of(replace(report, weights=weights)), Screen(width=100, blocks=False))
    start = next(i for i, line in enumerate(lines) if "max/min" in line)
    assert [line.split()[1].count("=") + line.split()[1].count("|") for line in lines[start + 1 : start + 3]] == [24, 1]
    assert "uneven" in lines[start + 1]


def test_narrow_screens_leave_columns_out_for_the_sake_of_names():
    entry = TensorEntry("uint8", 0.5, 3, -1.5, 126.0, "kl", 130.0, (-2.0, 130.0), 0.001, "calibrated")
    table = CalibrationTable({"name": "m"}, {"samples": 2}, TableSettings(), {"a" * 40: entry}, {})
    narrow, wide, piped = (
        table_lines(table, "t", screen)
        for screen in (Screen(width=80), Screen(width=140), Screen(width=60, whole_names=True))
    )
    assert "uint8" not in narrow[-1]
    assert "uint8" in wide[-1]
    assert len(narrow[-1]) <= 80
    assert len(wide[-1]) <= 140
    assert piped[-1].endswith("a" * 40)


def tensor_of(values):
    collector = Collector(Tap("t"))
    collector.add(np.asarray(values, np.float32), "sample")
    return collector.result()


def test_statistics_show_where_values_lie():
    rare = TensorStatistics(np.array([], np.int64), np.array([], np.int64), 5, 0.0, 0.0)
    signed = tensor_of([-4.0, -3.9, -3.8, 4.0])
    unseen = TensorStatistics(np.array([], np.int64), np.array([], np.int64), 0, np.inf, -np.inf)
    statistics = Statistics("0" * 64, 7, 2, {"signed": signed, "rare": rare, "unseen": unseen})
    lines = statistics_lines(statistics, "s", Screen(blocks=False, whole_names=True))
    assert lines[1].startswith("samples      2 ")
    bar = lines[-3][-2 - len("signed") - 24 : -2 - len("signed")]
    assert [place for place, cell in enumerate(bar) if cell != " "] == [0, 23]
    assert bar[0] == "@"
    assert bar[-1] != "@"  # three values there, one here
    assert [line.split()[-1] for line in lines[-3:]] == ["signed", "rare", "unseen"]


@given(st.lists(st.text("abc-", min_size=1, max_size=30), max_size=40).map(" ".join), st.integers(60, 120))
def test_long_lines_break_between_words_and_lose_none(text, width):
    screen = Screen(width=width)
    lines = screen.aligned([("label", text)])
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines).split() == ["label", *text.split()]
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert len(Screen(width=width, whole_names=True).aligned([("label", text)])) == 1


def test_nodes_that_a_table_leaves_out_are_counted_and_listed_where_all_rows_are():
    settings = {
        "method": "ncnn",
        "left_without_range": {"/a": "no scale", "/b": "no range"},
        "preprocess": {"resize": 8},
    }
    table = CalibrationTable({"name": "m"}, {"samples": 0}, TableSettings(settings), {}, {}, warnings=("word " * 40,))
    short, whole = (table_lines(table, "t", Screen(width=80, rows=rows)) for rows in (30, None))
    told = "settings     method ncnn, left_without_range 2 nodes, preprocess.resize 8"
    assert told in short
    assert told in whole
    assert not any("/a" in line for line in short)
    assert [line.split() for line in whole if "/a" in line] == [["left_without_range", "/a:", "no", "scale"]]
    assert max(map(len, short)) <= 80
    assert sum("word" in line for line in short) == 4


@pytest.mark.parametrize(
    ("low", "high", "drawn"),
    [
        (0.2, 0.6, "..====...."),
        (-3, 0.5, "=====....."),
        (0.5, np.inf, ".....====="),
        (-np.inf, np.nan, "=........."),
        (9, 9, ".........="),
    ],
)
def test_a_part_ends_at_the_edge_of_the_whole(low, high, drawn):
    assert Screen(blocks=False).part(low, high, 10) == drawn
