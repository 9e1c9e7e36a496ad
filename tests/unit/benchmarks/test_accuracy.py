"""The accuracy study on the shipped sample, cut down to a few images, and its verdict on made-up points."""

import json
from dataclasses import asdict, replace
from xml.dom import minidom

import numpy as np
import pytest

import int8cal
from benchmarks.datasets import SAMPLE, Peer, dataset, expand_datasets
from benchmarks.enough import enough
from benchmarks.errors import BenchmarkError
from benchmarks.plot import Curve, curves
from benchmarks.study import ALL, ModelStudy, Point, Task, join, load_study, middle
from benchmarks.study_run import Settings, draw
from benchmarks.study_tables import summary, tables
from int8cal.quantization.corrections.equalization import Equalization


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The sample with 12 images to calibrate on and 30 to test on, in place of the whole."""
    whole = dataset(SAMPLE, tmp_path)
    cut = replace(whole, calib=whole.calib[::17], test=whole.test[::15], labels=whole.labels[::15])
    monkeypatch.setattr("benchmarks.commands.accuracy.dataset", lambda name, zoo: cut)
    return cut


def measured(path):
    return json.loads(path.read_text(encoding="utf-8"))["measurements"][SAMPLE]


@pytest.mark.slow
def test_every_cell_is_measured_and_written(bench, few, tmp_path):
    status, out, err = bench(
        "accuracy", "--models", "sample", "--methods", "auto, percentile 99.9", "--recipes", "fast", "--batch", 2,
        "--batches", "1,2,50", "--repeats", 2, "--threads", 1, "--json", tmp_path / "all.json",
        "--markdown", tmp_path / "table.md", "--plot", tmp_path / "plots",
    )  # fmt: skip
    assert status == 0, err
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == out.rstrip("\n") + "\n"
    stored = measured(tmp_path / "all.json")
    cells = [(point["method"], point["batches"], point["samples"], point["repeat"]) for point in stored["points"]]
    expected = [(ALL, 12, 0), (1, 2, 0), (1, 2, 1), (2, 4, 0), (2, 4, 1)]  # 50 batches are more than there is
    assert cells == [(method, *cell) for method in ("auto", "percentile 99.9") for cell in expected]
    assert all(point["sqnr_db"] > 5 for point in stored["points"])
    assert all(point["task"]["name"] == "top-1" for point in stored["points"])
    assert stored["points"][0]["moved"] == 0
    assert stored["points"][1]["moved"] > 0
    apart = [point["ranges_db"] for point in stored["points"]]
    assert apart[0] is None
    assert any(ratio is not None for ratio in apart[1:5])  # None where few samples leave another node in float
    assert apart[5:] == 5 * [None]
    for part in (
        "Why few samples lose",
        "How many samples are enough",
        "By method",
        "beside other tools",
        "12 calibration samples",
    ):
        assert part in out
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["accuracy-sample-fast.svg"]


def test_pieces_make_one_study(bench, few, tmp_path):
    files = []
    for number, methods in enumerate(("max", "mse")):
        files.append(tmp_path / f"{number}.json")
        status, _, err = bench(
            "accuracy", "--methods", methods, "--models", "sample", "--recipes", "fast", "--batch", 2,
            "--batches", "1", "--repeats", 1, "--json", files[-1],
        )  # fmt: skip
        assert status == 0, err
    status, out, err = bench("accuracy", "--add", files[0], "--add", files[1], "--json", tmp_path / "all.json")
    assert status == 0, err
    assert "fast, max" in out
    assert "fast, mse" in out
    points = [point for file in files for point in measured(file)["points"]]
    assert measured(tmp_path / "all.json")["points"] == points


@pytest.mark.slow
def test_shared_passes_give_the_bits_of_a_single_run(few, monkeypatch):
    from benchmarks.tools import int8cal_study

    runs = []
    own = int8cal_study.collect

    def counted(model, signature, taps, samples, **settings):
        runs.append(len(samples))
        return own(model, signature, taps, samples, **settings)

    monkeypatch.setattr(int8cal_study, "collect", counted)
    passes = int8cal_study.SharedPasses((2, 5))
    made = {
        (size, method): int8cal_study.quantized(few.path, few.calib[:size], "fast", method, passes, 1)
        for size in (5, 12, 2)
        for method in ("auto", "kl")
    }
    assert runs == [2, 3, 7]
    for (size, method), each in made.items():
        table = int8cal.calibrate(few.path, lambda: few.calib[:size], method=method, threads=1)  # noqa: B023 - at once
        again = int8cal.quantize(few.path, replace(table, run=""))  # the model of a study is of no run
        assert each.model.SerializeToString() == again.SerializeToString()


def test_the_figures_are_those_of_evaluate(few):
    from benchmarks.tools.int8cal_study import HeldOut, SharedPasses, quantized

    made = quantized(few.path, few.calib, "fast", "max", SharedPasses(()), 1)
    sqnr_db, task = HeldOut(few, 1).measure(made.model)
    feeds = [{**feed, "labels": np.array(label)} for feed, label in zip(few.test, few.labels, strict=True)]
    report = int8cal.evaluate(few.path, made.model, feeds, latency=False, threads=1)
    metrics = report.evaluation.metrics
    assert sqnr_db == metrics.sqnr_db
    assert (task.fp32, task.int8, task.interval) == (metrics.top1.fp32, metrics.top1.int8, metrics.top1.drop_ci95)
    _, unlabelled = HeldOut(replace(few, labels=None), 1).measure(made.model)
    assert (unlabelled.name, unlabelled.int8) == ("agreement", metrics.agreement)
    low, high = unlabelled.interval
    assert low <= unlabelled.drop <= high


def test_ranges_and_corrections_of_two_tables_are_told_apart(few):
    from benchmarks.tools.int8cal_study import SharedPasses, crossed, quantized

    some, whole = (quantized(few.path, few.calib[:size], "fast", "max", SharedPasses(()), 1).table for size in (3, 12))
    mixed = crossed(few.path, some, whole)
    assert mixed.SerializeToString() != int8cal.quantize(few.path, whole).SerializeToString()
    assert crossed(few.path, whole, whole).SerializeToString() == int8cal.quantize(few.path, whole).SerializeToString()
    rescaled = some.corrected(Equalization({"x": (1,)}))
    assert crossed(few.path, rescaled, whole) is None


def test_a_loss_is_put_down_to_ranges_or_corrections():
    by_ranges = replace(point(5, 29.0), ranges_db=29.1, corrections_db=30.0)
    by_corrections = replace(point(10, 28.0), ranges_db=30.0, corrections_db=28.0)
    text = tables([study(point(ALL, 30.0), by_ranges, by_corrections)])
    assert "1.00 / 0.90 / 0.00" in text
    assert "2.00 / 0.00 / 2.00" in text
    assert "Of 2 worst draws that lose more than 0.5 dB, 1 lose it by their ranges and 1 by" in text


def test_draws_are_seeded_permutations():
    assert sorted(draw(20, 0, 1)) == list(range(20))
    assert draw(20, 0, 1) == draw(20, 0, 1)
    assert draw(20, 0, 1) != draw(20, 0, 2)
    assert draw(20, 0, 1) != draw(20, 1, 1)


def test_only_the_full_study_crosses_recipes_and_methods():
    settings = Settings(("fast", "accurate"), ("auto", "kl"), (5,), 8, 3, 0, 2)
    assert settings.pairs == [("fast", "auto"), ("fast", "kl"), ("accurate", "auto")]
    assert len(replace(settings, full=True).pairs) == 4


def point(batches, sqnr_db, drop=0.0, repeat=0, method="auto", recipe="fast", interval=(-1.0, 1.0)):
    task = Task("top-1", 0.9, 0.9 - drop / 100, drop, interval)
    return Point(recipe, method, batches, 8 * batches or 512, repeat, sqnr_db, task, 1000.0 * batches, 0.01 * batches)


def study(*points, name="net", **facts):
    return ModelStudy(name, 8, 0, 512, 1000, points, **facts)


@pytest.mark.parametrize(
    ("points", "batches"),
    [
        ([point(5, 29.6), point(10, 29.9), point(50, 30.1)], 5),
        ([point(5, 29.4), point(10, 29.9), point(50, 30.1)], 10),
        ([point(5, 29.9), point(10, 29.4), point(50, 30.1)], 50),  # a lucky draw below a bad one is not enough
        ([point(5, 33.0), point(10, 29.9), point(50, 30.1)], 5),  # a gain is no loss
        ([point(5, 30.0, drop=1.2), point(10, 30.0, drop=0.9), point(50, 30.0)], 10),
        ([point(5, 30.0), point(5, 29.0, repeat=1), point(10, 30.0), point(10, 29.6, repeat=1)], 10),
        ([point(5, 30.0), point(10, 30.0), point(50, 29.0)], ALL),
    ],
)
def test_enough_is_near_all_samples_with_every_draw_and_every_larger_number(points, batches):
    found = enough(study(point(ALL, 30.0), *points), "fast", "auto")
    assert found.batches == batches
    ratios = [p.sqnr_db for p in points if p.batches == 10]
    assert found.worst_db[10] == pytest.approx(30.0 - min(ratios))
    assert found.typical_db[10] == pytest.approx(30.0 - np.median(ratios))


def test_without_a_reference_or_fewer_samples_nothing_is_said():
    assert enough(study(point(ALL, 30.0)), "fast", "auto") is None
    assert enough(study(point(5, 30.0)), "fast", "auto") is None
    assert enough(study(point(ALL, None), point(5, 30.0)), "fast", "auto") is None


def test_the_middle_is_a_draw_that_was_run():
    draws = [point(5, 30.0, drop=drop, repeat=repeat) for repeat, drop in enumerate((0.4, -0.1, 0.2))]
    assert middle(draws) is draws[2]
    without = [replace(each, task=None, sqnr_db=ratio) for each, ratio in zip(draws, (1.0, 3.0, 2.0), strict=True)]
    assert middle(without) is without[2]


def test_tables_name_the_best_peer_the_worst_draw_and_what_failed():
    one = study(
        *(point(count, 30.0, drop=0.1) for count in (ALL, 5)), point(5, 29.0, drop=0.7, repeat=1),
        peers={"A": Peer(31.5, 0.8), "B": Peer(20.0, 0.85), "C": Peer(None, None)},
        failed={"accurate, auto": "no"},
    )  # fmt: skip
    other = study(point(ALL, 25.0), point(5, 25.0), point(50, 25.0), name="big")
    text = tables([one, other])
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert ["best peer", "31.50", "-"] in rows
    assert ["which", "A", "-"] in rows
    assert ["best peer", "85.00", "-"] in rows
    assert "0.70 points (net, fast, 5 batches)" in text
    assert "Where samples run out there is a dash: net has 512." in text
    assert "accurate, auto failed: no" in text
    assert "all samples on 1 of 2 models (net)" in text
    assert "5 batches (40 samples) on 1 of 2 models (big)" in text


def test_a_model_without_a_task_is_left_out_of_the_slides_table():
    bare = study(replace(point(ALL, 30.0), task=None), replace(point(5, 30.0), task=None))
    assert "No model has a figure" in summary([bare], (5,))
    assert "30.00" in tables([bare])
    assert "failed: why" in tables([ModelStudy("net", 8, 0, 1, 1, (), {"fast, auto": "why"})])


def test_a_study_survives_its_file_and_later_pieces_win():
    first = study(point(ALL, 30.0), point(5, 29.0), peers={"A": Peer(1.0, None)}, failed={"fast, kl": "no"})
    assert load_study(json.loads(json.dumps(asdict(first)))) == first
    later = study(point(ALL, 31.0), point(ALL, 9.0, method="kl"))
    joined = join([first, later])["net"]
    assert [each.sqnr_db for each in joined.points] == [31.0, 29.0, 9.0]
    assert joined.failed == {}
    with pytest.raises(BenchmarkError, match="net: pieces"):
        join([first, replace(later, batch=25)])


def test_curves_carry_every_point():
    rows = [Curve("auto", ((30, 29, 31), None, (31, 31, 31)), own=True), Curve("a < b", (None, (-5, -5, -5), None))]
    drawn = minidom.parseString(curves("t", "samples", ("40", "80", "all"), rows))  # noqa: S318 - drawn here
    assert len(drawn.getElementsByTagName("circle")) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--models", "resnet50"], 'no model "resnet50" with data'),
        (["--methods", "entropy"], 'no method "entropy"'),
        (["--methods", "percentile many"], 'no method "percentile many"'),
        (["--methods", "kl 5"], 'no method "kl 5"'),
        (["--recipes", "slow"], 'no recipe "slow"'),
        (["--batches", "5,0"], "not a list of positive numbers"),
        (["--models", "zoo:vit", "--zoo", "nowhere"], "the zoo is not at nowhere"),
        (["--add", __file__], "--add"),
    ],
)
def test_a_mistake_is_one_line(bench, arguments, says):
    status, _, err = bench("accuracy", *arguments)
    assert status == 2
    assert len(err.splitlines()) == 1
    assert says in err


def test_the_default_is_the_sample_and_the_zoo_where_it_is(tmp_path):
    assert expand_datasets(None, tmp_path) == (SAMPLE,)
    assert expand_datasets("sample, zoo:vit,sample", tmp_path) == (SAMPLE, "zoo:vit")
    with pytest.raises(BenchmarkError, match="names no model"):
        expand_datasets(",", tmp_path)
