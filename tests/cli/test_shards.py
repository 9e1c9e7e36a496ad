"""`int8cal calibrate --shard K/N`, `merge`, and `calibrate --stats`: the bytes of one run over everything."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parent))

from control_flow import branches, feeds, save_feeds
from small_batch import fill
from small_models import photo_classifier, save_photos

from int8cal.calibration.statistics import Statistics

SAME = ("net.int8.onnx", "net.table.json", "net.stats.npz")
QUICK = ("--no-latency", "--quiet")


@pytest.fixture
def work(tmp_path):
    fill(tmp_path)
    return tmp_path


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in SAME}


def count(call, shards, *arguments, model="net.onnx"):
    for number in range(1, shards + 1):
        done = call("calibrate", model, *arguments, "--shard", f"{number}/{shards}", "--quiet")
        assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    "data",
    [("--data", "data"), ("--data", "data", "--samples", "11", "--seed", "5"), ("--data", "feeds:some")],
    ids=["files", "some of them", "function"],
)
def test_shards_add_up_to_the_bytes_of_one_run(call, work, data):
    count(call, 3, *data)
    files = sorted((work / "net-shards").iterdir())
    assert [path.name for path in files] == [f"net.{number}-of-3.stats.npz" for number in (1, 2, 3)]
    sizes = [Statistics.load(path).samples for path in files]
    assert max(sizes) - min(sizes) <= 1
    done = call("merge", *reversed(files), "-o", "sum.stats.npz")
    assert (done.code, done.err) == (0, "")
    assert call("calibrate", "net.onnx", *data, *QUICK, "-o", "whole").code == 0
    assert call("calibrate", "net.onnx", *data, *QUICK, "--stats", "sum.stats.npz", "-o", "from-shards").code == 0
    assert bytes_of(work / "from-shards") == bytes_of(work / "whole")
    assert (work / "sum.stats.npz").read_bytes() == (work / "whole" / "net.stats.npz").read_bytes()
    assert sum(sizes) == Statistics.load(work / "whole" / "net.stats.npz").samples


@pytest.mark.newest  # older versions of onnx do not parse the names of nodes
def test_a_branch_that_only_some_shards_run_is_in_the_sum(call, tmp_path):
    onnx.save(branches(), tmp_path / "net.onnx")
    save_feeds(tmp_path / "data", feeds(5, flag=True) + feeds(1, seed=8, flag=False))
    count(call, 3, "--data", "data")
    assert call("merge", *sorted((tmp_path / "net-shards").iterdir()), "-o", "sum.stats.npz").code == 0
    assert call("calibrate", "net.onnx", "--data", "data", *QUICK, "-o", "whole").code == 0
    done = call("calibrate", "net.onnx", "--data", "data", *QUICK, "--stats", "sum.stats.npz", "-o", "from-shards")
    assert done.code == 0
    assert bytes_of(tmp_path / "from-shards") == bytes_of(tmp_path / "whole")


def test_the_yaml_names_the_shard_and_the_command_line_wins(call, work):
    (work / "job.yaml").write_text("model: net.onnx\ndata: data\ncalibration: {shard: 2/12}\noutput: {dir: parts}\n")
    done = call("calibrate", "--config", "job.yaml")
    assert (done.code, done.out) == (0, "wrote parts/net.02-of-12.stats.npz: 2 samples, shard 2/12\n")
    assert call("calibrate", "--config", "job.yaml", "--shard", "12/12").code == 0
    assert [path.name for path in sorted((work / "parts").iterdir())] == [
        "net.02-of-12.stats.npz",
        "net.12-of-12.stats.npz",
    ]
    done = call("run", "job.yaml")
    assert done.code == 2
    assert "job.yaml:3:22: calibration.shard: a shard gives statistics alone" in done.message


def test_a_shard_is_refused_where_it_lies_already_and_replaced_with_overwrite(call, work):
    count(call, 1, "--data", "data")
    (file,) = (work / "net-shards").iterdir()
    before = file.read_bytes()
    file.write_bytes(b"mine")
    done = call("calibrate", "net.onnx", "--data", "data", "--shard", "1/1")
    assert (done.code, file.read_bytes()) == (2, b"mine")
    assert f"{file.relative_to(work)}: exists" in done.message
    count(call, 1, "--data", "data", "--overwrite")
    assert file.read_bytes() == before
    assert list((work / "net-shards").iterdir()) == [file]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--shard", "0/3"), 2, '--shard: expected "K/N" with K from 1 to N, such as "3/16", got "0/3"'),
        (("--shard", "4/3"), 2, '"K/N" with K from 1 to N'),
        (("--shard", "third"), 2, '"K/N" with K from 1 to N'),
        (("--shard", "25/30"), 4, "data: shard 25/30 holds no sample; make no more shards than there are samples"),
        (("--shard", "1/2", "--stats", "a.stats.npz"), 2, "leave --shard or --stats out"),
        (("--shard", "1/2", "--json"), 2, "--shard writes statistics alone"),
        (("--shard", "1/2", "--junit", "a.xml"), 2, "--shard writes statistics alone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_shard_that_cannot_be_is_one_line(call, work, arguments, code, text):
    before = sorted(work.iterdir())
    done = call("calibrate", "net.onnx", "--data", "data", *arguments)
    assert done.code == code
    assert text in done.err
    assert sorted(work.iterdir()) == before


def test_options_of_what_comes_behind_the_sum_are_told_to_have_no_effect(call, work):
    given = ("--gate", "sqnr_db>=99", "--eval-data", "data", "--recipe", "accurate", "--no-latency", "--samples", "9")
    done = call("calibrate", "net.onnx", "--data", "data", "--shard", "1/3", *given)
    assert done.code == 0
    assert done.err.startswith(
        "int8cal: warning: --shard counts samples alone; without effect here: --recipe, --eval-data, --gate; give that to "
        "the run that takes the sum by --stats\n"
    )
    (work / "job.yaml").write_text("model: net.onnx\ndata: data\nevaluation: {gates: ['sqnr_db>=99']}\n")
    done = call("calibrate", "--config", "job.yaml", "--shard", "2/3")  # one file for all parts
    assert (done.code, "without effect" in done.err) == (0, False)


def test_merge_tells_which_shards_are_missing(call, work):
    count(call, 5, "--data", "data")
    count(call, 2, "--data", "data", "-o", "halves")
    parts = {number: f"net-shards/net.{number}-of-5.stats.npz" for number in range(1, 6)}
    done = call("merge", parts[1], parts[4], "-o", "some.stats.npz")
    others = "; merge them too, or ranges follow the others alone"
    assert done.err == f"int8cal: warning: 3 of 5 shards missing: 2, 3, 5{others}\n"
    assert done.out.endswith(" samples from 2 files, 2 of 5 shards\n")
    done = call("merge", "some.stats.npz", parts[2], parts[3], parts[5], "-o", "all.stats.npz")
    assert done.err == ""
    done = call("merge", "halves/net.1-of-2.stats.npz", parts[2], "-o", "odd.stats.npz")
    assert done.err == "int8cal: warning: these are shards of 2 and 5; samples may count twice\n"


def test_merge_tells_what_counts_twice(call, work):
    count(call, 3, "--data", "data")
    parts = [f"net-shards/net.{number}-of-3.stats.npz" for number in (1, 2, 3)]
    assert call("merge", *parts, "-o", "all.stats.npz").code == 0
    assert call("merge", *parts[:2], "-o", "some.stats.npz").code == 0
    for files, text in (
        ((parts[0], parts[0]), f"{parts[0]} holds the same samples as {parts[0]}; they count twice"),
        (("some.stats.npz", parts[1]), "shard 2/3 is there more than once; its samples count twice"),
        (
            (parts[1], "all.stats.npz"),
            f"all that was counted in {parts[1]}, shard 2/3, is in all.stats.npz too; its samples count twice",
        ),
    ):
        done = call("merge", *files, "-o", "sum.stats.npz", "--overwrite")
        assert done.code == 0
        assert f"int8cal: warning: {text}" in done.err.splitlines()
    assert call("calibrate", "net.onnx", "--data", "feeds:some", *QUICK, "-o", "other").code == 0
    done = call("merge", parts[1], "other/net.stats.npz", "-o", "sum.stats.npz", "--overwrite")
    assert (done.code, "twice" in done.err) == (0, False)


def test_shards_that_hold_copies_of_one_sample_merge(call, work):
    (work / "copies").mkdir()
    for name in ("a", "b"):
        np.save(work / "copies" / f"{name}.npy", np.arange(8, dtype=np.float32))
    count(call, 2, "--data", "copies")
    done = call("merge", *sorted((work / "net-shards").iterdir()), "-o", "sum.stats.npz")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "other",
    [("data", "--samples", "12"), ("data", "--samples", "11", "--seed", "5"), ("more", "--samples", "11")],
    ids=["samples", "seed", "files"],
)
def test_shards_of_other_samples_do_not_merge(call, work, other):
    shutil.copytree(work / "data", work / "more")
    shutil.copy(work / "more" / "0.npy", work / "more" / "3.npy")
    given = ("calibrate", "net.onnx", "--quiet", "-o", "parts")
    assert call(*given, "--data", "data", "--samples", "11", "--shard", "1/2").code == 0
    assert call(*given, "--data", *other, "--shard", "2/2").code == 0
    done = call("merge", "parts/net.1-of-2.stats.npz", "parts/net.2-of-2.stats.npz", "-o", "sum.stats.npz")
    assert done.code == 5
    assert "shards of different sets of samples do not add (other files, --samples or --seed)" in done.message
    # the same files elsewhere are the same samples
    shutil.copytree(work / "data", work / "elsewhere")
    assert call(*given, "--data", "elsewhere", "--samples", "11", "--shard", "2/2", "--overwrite").code == 0
    assert call("merge", "parts/net.1-of-2.stats.npz", "parts/net.2-of-2.stats.npz", "-o", "sum.stats.npz").code == 0


def test_what_is_made_of_some_shards_says_so_everywhere(call, work):
    count(call, 3, "--data", "data")
    assert call("merge", "net-shards/net.1-of-3.stats.npz", "-o", "some.stats.npz").code == 0
    given = ("calibrate", "net.onnx", "--data", "data", "--no-latency", "--stats", "some.stats.npz")
    done = call(*given, "-o", "out")
    told = (
        "some.stats.npz: 2 of 3 shards missing: 2, 3: ranges follow the other alone; merge the statistics of all shards"
    )
    assert done.code == 0
    assert f"int8cal: warning: {told}\n" in done.err
    assert done.out.startswith("Result    check the data; ")
    report = json.loads((work / "out/report.json").read_text())
    assert told in report["warnings"]
    assert "shards" in [each["check"] for each in report["findings"]]
    assert json.loads((work / "out/net.table.json").read_text())["data"]["shards"] == ["1/3"]
    assert "of shards 1/3 alone" in call("inspect", "out/net.table.json").out
    for file in ("some.stats.npz", "out/net.stats.npz"):
        assert "shards       1/3; 2 of 3 shards missing: 2, 3\n" in call("inspect", file).out
    strict = call(*given, "-o", "strict", "--strict")
    assert (strict.code, "data: shards: some.stats.npz: 2 of 3" in strict.err) == (4, True)
    assert not (work / "strict").exists()


def test_statistics_of_otherwise_preprocessed_images_say_what_differs(call, tmp_path):
    onnx.save(photo_classifier(), tmp_path / "net.onnx")
    save_photos(tmp_path / "data", 4, seed=0)
    given = ("calibrate", "net.onnx", "--data", "data", "--resize", "224x224", "--no-latency")
    for number, scale in ((1, "1/255"), (2, "1/128")):
        assert call(*given, "--scale", scale, "--shard", f"{number}/2", "--quiet").code == 0
    parts = [f"net-shards/net.{number}-of-2.stats.npz" for number in (1, 2)]
    done = call("merge", *parts, "-o", "sum.stats.npz")
    assert done.code == 5
    told = "shards with different preprocessing do not add (scale 0.00392156862745098 and not 0.0078125)"
    assert f"{parts[0]} and {parts[1]}: {told}" in done.message
    assert call(*given, "--scale", "1/255", "-o", "own").code == 0
    same = call(*given, "--scale", "1/255", "--stats", "own/net.stats.npz", "-o", "same")
    assert (same.code, "preprocessed otherwise" in same.err) == (0, False)
    other = call(*given, "--scale", "1/128", "--stats", "own/net.stats.npz", "-o", "other")
    assert other.code == 0
    told = (
        "samples are preprocessed otherwise than those of own/net.stats.npz, whose ranges are taken: "
        "scale 0.0078125 and not 0.00392156862745098; "
    )
    assert f"warning: {told}" in other.err
    assert told in (tmp_path / "other/report.json").read_text()
