"""The YAML files under configs/ are what users copy: each must load, and mean what its comments say."""

from pathlib import Path

import pytest

from int8cal.config.load import load_jobs, require_available

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_examples_are_there():
    assert {path.name for path in CONFIGS.glob("*.yaml")} >= {"minimal.yaml", "imagenet-style.yaml", "batch.yaml"}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_loads_and_is_available(path):
    for job in (located.job for located in load_jobs(path)):
        require_available(job)


def test_the_batch_example_makes_the_jobs_its_comments_promise():
    jobs = tuple(located.job for located in load_jobs(CONFIGS / "batch.yaml"))
    assert [job.name for job in jobs] == [
        "model-auto",
        "model-percentile",
        "model-narrow-weights-auto",
        "model-narrow-weights-percentile",
    ]


def test_the_imagenet_example_preprocesses_both_data_sets_alike():
    (job,) = (located.job for located in load_jobs(CONFIGS / "imagenet-style.yaml"))
    assert job.evaluation.data is not None
    assert job.evaluation.data.preprocess == job.data.preprocess
