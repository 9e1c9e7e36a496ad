"""Which jobs are selected, and how nested settings become rows."""

from pathlib import Path

from int8cal.batch.jobs import Task, flatten, select_tasks
from int8cal.job import DataSettings, Job


def test_patterns_select_in_the_order_of_the_file():
    tasks = [Task(Job(Path("m.onnx"), DataSettings("d"), name=name), Path("b.yaml")) for name in ("a-kl", "b", "a-max")]
    assert [task.job.name for task in select_tasks(tasks, ["b", "a-m*"])] == ["b", "a-max"]
    assert select_tasks(tasks, []) == tuple(tasks)


def test_nested_settings_become_key_paths_but_for_those_that_are_one_value():
    settings = {"a": {"b": 1, "c": {"d": None}}, "ranges": {"x": [0, 1]}, "empty": {}}
    flat = {"a.b": 1, "a.c.d": None, "ranges.x": [0, 1], "empty": {}}
    assert dict(flatten(settings)) == flat
    del flat["ranges.x"]
    assert dict(flatten(settings, whole=("ranges",))) == flat | {"ranges": {"x": [0, 1]}}
