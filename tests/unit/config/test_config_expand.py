"""Batches: defaults, globs, the matrix, names and output directories."""

from pathlib import Path

import pytest

from int8cal.calibrating import files_of
from int8cal.config.expand import require_distinct_outputs
from int8cal.errors import ConfigError
from int8cal.job import DataSettings, Job, OutputSettings


@pytest.fixture
def models(folder):
    """Create empty model files; loading a configuration never opens them."""

    def models(*names: str) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()

    return models


def test_a_job_merges_over_the_defaults_key_by_key(load):
    (job,) = load(
        "defaults: {data: {path: d, samples: 8}, quantization: {ranges: {x: [0, 1]}}}\n"
        "jobs:\n- {model: a.onnx, data: {samples: 4}, quantization: {ranges: {y: [0, 2]}}}\n"
    )
    assert (job.data.path, job.data.samples) == ("d", 4)
    assert job.quantization.ranges == {"x": (0, 1), "y": (0, 2)}


def test_a_glob_makes_one_job_per_model_in_sorted_order(load, models):
    models("zoo/c.onnx", "zoo/a.onnx", "zoo/b.onnx", "zoo/readme.txt", "zoo/dir.onnx/x")
    jobs = load("defaults: {data: d}\njobs: [{model: zoo/*.onnx}]\n")
    assert [str(job.model) for job in jobs] == ["zoo/a.onnx", "zoo/b.onnx", "zoo/c.onnx"]
    assert [job.name for job in jobs] == ["a", "b", "c"]


def test_a_glob_that_matches_nothing_is_an_error_with_its_place(refused):
    message = refused("defaults: {data: d}\njobs:\n- model: a.onnx\n- {model: zoo/*.onnx}\n")
    assert 'job.yaml:4:11: jobs[1].model: no file matches "zoo/*.onnx"' in message


def test_a_bad_glob_of_the_defaults_is_placed_there(refused):
    assert "job.yaml:1:19: defaults.model" in refused("defaults: {model: 'z*'}\njobs: [{data: d}]\n")


def test_a_bad_glob_of_the_matrix_is_placed_there(refused):
    assert "job.yaml:2:18: matrix.model[0]" in refused("jobs: [{data: d}]\nmatrix: {model: ['z*']}\n")


def test_an_existing_file_with_brackets_in_its_name_is_no_glob(load, models):
    models("net[1].onnx")
    assert [str(job.model) for job in load("model: 'net[1].onnx'\ndata: d\n")] == ["net[1].onnx"]


def test_brackets_in_the_directory_of_the_file_are_no_glob(folder, models):
    from int8cal.config.load import load_jobs

    models("runs [old]/a.onnx", "runs [old]/b.onnx")
    (folder / "runs [old]" / "job.yaml").write_text("model: '*.onnx'\ndata: d\n")
    assert [located.job.name for located in load_jobs(Path("runs [old]/job.yaml"))] == ["a", "b"]


def test_the_matrix_is_the_product_of_its_values_in_order(load):
    jobs = load(
        "defaults: {data: d}\njobs: [{model: a.onnx}]\n"
        "matrix: {calibration.method: [kl, max], calibration.percentile: [99, 99.9]}\n"
    )
    assert [(job.calibration.method, job.calibration.percentile) for job in jobs] == [
        ("kl", 99),
        ("kl", 99.9),
        ("max", 99),
        ("max", 99.9),
    ]
    assert [job.name for job in jobs] == [
        "a-kl-percentile99",
        "a-kl-percentile99.9",
        "a-max-percentile99",
        "a-max-percentile99.9",
    ]
    assert [str(job.output.dir) for job in jobs] == [f"{job.name}-int8" for job in jobs]


def test_the_matrix_multiplies_a_single_job_too(load):
    jobs = load("model: a.onnx\ndata: d\nmatrix: {quantization.weights: [s8, s7]}\n")
    assert [job.quantization.weights for job in jobs] == ["s8", "s7"]


def test_a_matrix_of_models_or_names_adds_nothing_to_the_names(load):
    jobs = load("data: d\nmatrix: {model: [a.onnx, b.onnx]}\n")
    assert [job.name for job in jobs] == ["a", "b"]
    jobs = load("data: d\nmodel: m.onnx\nmatrix: {name: [x, y]}\n")
    assert [job.name for job in jobs] == ["x", "y"]


def test_the_matrix_wins_over_a_job(load):
    (job,) = load("model: a.onnx\ndata: d\ncalibration: {method: kl}\nmatrix: {calibration.method: [max]}\n")
    assert job.calibration.method == "max"


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (
            "{calibration.methd: [kl]}",
            'job.yaml:3:10: matrix.calibration.methd: unknown key "methd"; did you mean "method"?',
        ),
        ("{calibration.method: [kl, klm]}", "job.yaml:3:35: matrix.calibration.method[1]: expected one of"),
        ("{calibration.method: kl}", "matrix.calibration.method: expected a list"),
        (
            "{calibration.method: [kl, max, kl]}",
            "job.yaml:3:30: matrix.calibration.method: value 3 stood there before; remove it; its jobs would run twice",
        ),
        ("{calibration.method: []}", "matrix.calibration.method: expected at least 1 entry"),
        ("{data.preprocess.resize: [0]}", "matrix.data.preprocess.resize[0]: expected a number of pixels"),
        ("[kl]", "matrix: expected a mapping"),
    ],
)
def test_a_mistake_in_the_matrix_is_placed_there(refused, matrix, message):
    assert message in refused(f"model: a.onnx\ndata: d\nmatrix: {matrix}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: {data: d}\n", "job.yaml:1:1: defaults: defaults without jobs"),
        ("jobs: []\n", "jobs: expected at least 1 entry"),
        (
            "jobs: [{data: d}]\nmodel: x\n",
            "job.yaml:2:1: model: a file with jobs or defaults takes no settings beside them",
        ),
        ("jobs:\n- {data: d}\n", "job.yaml:2:3: jobs[0]: model is missing"),
        ("jobs:\n- {model: m}\n", "job.yaml:2:3: jobs[0]: data is missing"),
        ("jobs:\n- {mdoel: m}\n", 'job.yaml:2:4: jobs[0].mdoel: unknown key "mdoel"; did you mean "model"?'),
        ("jobs:\n- 5\n", "job.yaml:2:3: jobs[0]: expected a mapping, got 5"),
        ("jobs:\n- {defaults: {}}\n", 'unknown key "defaults"'),
    ],
)
def test_a_malformed_batch_is_refused(refused, text, message):
    assert message in refused(text)


def test_models_of_one_name_are_told_apart_by_their_directories(load, models):
    models("r18/model.onnx", "r50/model.onnx")
    jobs = load("defaults: {data: d}\njobs: [{model: '*/model.onnx'}]\n")
    assert [job.name for job in jobs] == ["r18-model", "r50-model"]
    assert [str(job.output.dir) for job in jobs] == ["r18-model-int8", "r50-model-int8"]


def test_every_job_has_its_own_name(load):
    jobs = load(
        "defaults: {data: d}\njobs: [{model: a.onnx}, {model: a.onnx}, {model: a.onnx, name: b}, {model: b.onnx}]\n"
    )
    assert [job.name for job in jobs] == ["a", "a-2", "b", "b-2"]
    assert len({job.output.dir for job in jobs}) == 4


def test_name_in_the_output_directory_stands_for_the_job(load):
    jobs = load("defaults: {data: d, output: {dir: 'out/{name}'}}\njobs: [{model: a.onnx}, {model: b.onnx, name: c}]\n")
    assert [str(job.output.dir) for job in jobs] == ["out/a", "out/c"]


def test_two_jobs_with_one_output_directory_are_refused(refused):
    message = refused("defaults: {data: d, output: {dir: out}}\njobs:\n- model: a.onnx\n- model: b.onnx\n")
    assert 'job.yaml:4:3: jobs[1]: jobs "a" and "b" would both write to out; write "dir: results/{name}"' in message


def test_output_directories_are_compared_as_places_not_as_text(refused):
    text = "defaults: {data: d}\njobs:\n- {model: a.onnx, output: {dir: out}}\n- {model: b.onnx, output: {dir: x/../out/}}\n"
    assert "would both write to" in refused(text)


def test_jobs_of_two_files_with_one_directory_are_refused():
    jobs = [
        Job(Path("x/a.onnx"), DataSettings("d"), name="a"),
        Job(Path("b.onnx"), DataSettings("d"), output=OutputSettings(Path("a-int8")), name="a"),
    ]
    with pytest.raises(ConfigError, match="would both write to a-int8"):
        require_distinct_outputs(jobs, ["one.yaml", "two.yaml"])


def test_the_default_directory_is_compared_as_it_is_written_to_also_of_a_model_that_is_not_called_onnx():
    version = Job(Path("x/net.v2"), DataSettings("d"), name="net")
    assert files_of(version)[0] == Path("net.v2-int8")
    jobs = [version, Job(Path("b.onnx"), DataSettings("d"), output=OutputSettings(Path("net.v2-int8")), name="b")]
    with pytest.raises(ConfigError, match=r"would both write to net\.v2-int8"):
        require_distinct_outputs(jobs, ["one.yaml", "two.yaml"])


def test_jobs_are_named_as_their_files_are(load):
    jobs = load("defaults: {data: d}\njobs: [{model: net.v1}, {model: net.v2}]\n")
    assert [(job.name, str(files_of(job)[0])) for job in jobs] == [("net.v1", "net.v1-int8"), ("net.v2", "net.v2-int8")]


def test_a_model_whose_stem_is_a_directory_names_no_job(load, refused, models):
    models("...onnx", "..onnx")
    for model, stem in (("...onnx", ".."), ("..onnx", ".")):
        text = f"model: {model}\ndata: d\noutput: {{dir: 'res/{{name}}'}}\n"
        assert f'the job is called "{stem}"' in refused(text)
        (job,) = load(f"{text}name: a\n")
        assert str(job.output.dir) == "res/a"


def test_many_jobs_of_one_name_are_numbered_up_to_the_limit(load, refused):
    jobs = load(
        "defaults: {data: d, output: {dir: 'r/{name}'}}\n"
        f"jobs: [{'{model: a.onnx}, ' * 100}]\nmatrix: {{data.seed: {list(range(100))}}}\n"
    )
    assert len({job.name for job in jobs}) == 10_000
    message = refused(f"defaults: {{data: d}}\njobs: [{'{model: a.onnx}, ' * 10_001}]\n")
    assert "job.yaml:2:1: jobs: makes 10,001 jobs or more" in message


def test_globs_count_towards_the_limit(refused, models, monkeypatch):
    monkeypatch.setattr("int8cal.config.expand.JOB_LIMIT", 3)
    models("a.onnx", "b.onnx")
    message = refused("model: '*.onnx'\ndata: d\nmatrix: {calibration.method: [kl, max]}\n")
    assert "job.yaml:3:1: matrix: makes 4 jobs or more, at most 3 are taken" in message
