"""The action, the workflows under docs/examples and the pre-commit hooks: sound YAML, and commands that run on the sample."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from page_blocks import ROOT

import int8cal

sys.path.append(str(ROOT / "tests" / "cli"))

import forking
from forking import Forks

EXAMPLES = ROOT / "docs" / "examples"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
# what a runner and the steps set for their scripts: int8cal takes its options from the command line
_OF_SCRIPTS = {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "PULL_REQUEST", "INT8_TOKEN", "CI_MERGE_REQUEST_IID"}
_OF_SCRIPTS |= {"CI_API_V4_URL", "CI_PROJECT_ID", "CI_DEFAULT_BRANCH", "EXTRAS", "SOURCE", "MODEL", "DATA", "CONFIG"}
_OF_SCRIPTS |= {"GATES", "OPTIONS", "OUTPUT"}
_SHIMS = {
    "int8cal": 'exec env {unset} "{python}" -I "{forking}" call "{door}" "$@"',
    "pip": "exit 0  # what is installed is tested",
    "gh": 'echo "gh $*" >> calls.txt',
    # stands in for GitLab: hands out main's report, takes a comment
    "curl": 'echo "curl $*" >> calls.txt; while [ $# -gt 0 ]; do [ "$1" = --output ] && cp main.json "$2"; shift; done',
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    shims = tmp_path_factory.mktemp("bin")
    source = str(Path(int8cal.__file__).parents[1])
    environment = os.environ | {"PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source}
    forks = Forks(shims, {name: value for name, value in environment.items() if name not in _OF_SCRIPTS})
    called = {"python": sys.executable, "forking": forking.__file__, "door": forks.door}
    called["unset"] = " ".join(f"-u {name}" for name in sorted(_OF_SCRIPTS))
    for name, text in _SHIMS.items():
        (shims / name).write_text(f"#!/bin/sh\n{text.format(**called)}\n")
        (shims / name).chmod(0o755)
    yield environment
    forks.close()


def bash(script, folder, environment, **extra):
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment | extra, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def load(name):
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def github(tmp_path_factory, environment):
    """Run the steps as on a push to main, and then as on a pull request, with what main left in the cache."""
    folder = tmp_path_factory.mktemp("github")
    shutil.copytree(ROOT / "sample_data", folder / "sample_data")
    steps = load("github-actions.yml")["jobs"]["int8"]["steps"]
    extra = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "PULL_REQUEST": "7"}
    on_main = {"Calibrate and hold the gates", "Show the reports", "Keep the report for later pull requests"}
    both = []
    for only in (on_main, None):
        both += [
            (step.get("name", step["run"]), *bash(step["run"], folder, environment, **extra))
            for step in steps
            if "run" in step and (only is None or step.get("name") in only)
        ]
    return folder, both


@pytest.mark.slow
def test_every_step_of_the_github_workflow_runs_on_main_and_on_a_pull_request(github):
    folder, done = github
    assert [(name, output) for name, code, output in done if code] == []
    assert len(done) == 3 + 6
    assert (folder / "int8-cache" / "model.stats.npz").is_file()
    assert "Verdict  no regression" in next(output for name, _, output in done if name == "Compare with main")
    assert (folder / "calls.txt").read_text().splitlines() == [
        "gh pr comment 7 --body-file int8/report.md --edit-last --create-if-none"
    ]
    assert (folder / "summary.md").read_text(encoding="utf-8").count("<!-- int8cal report -->") == 2


@pytest.mark.slow
def test_the_gitlab_job_runs_compares_and_comments(github, tmp_path, environment):
    done_before, _ = github
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    shutil.copy(done_before / "int8" / "report.json", tmp_path / "main.json")
    job = load("gitlab-ci.yml")["int8"]
    variables = {"INT8_TOKEN": "t", "CI_MERGE_REQUEST_IID": "3", "CI_API_V4_URL": "https://x/api", "CI_PROJECT_ID": "1"}
    code, output = bash("\n".join(job["script"]), tmp_path, environment, CI_DEFAULT_BRANCH="main", **variables)
    assert code == 0, output
    assert "Verdict" in output
    assert bash("\n".join(job["after_script"]), tmp_path, environment, **variables)[0] == 0
    fetched, posted = (tmp_path / "calls.txt").read_text().splitlines()
    assert fetched.endswith("https://x/api/projects/1/jobs/artifacts/main/raw/int8/report.json?job=int8")
    assert "body@int8/report.md" in posted
    for name in job["artifacts"]["reports"]["junit"]:
        assert {part.tag for part in ET.parse(tmp_path / name).iter()} & {"failure", "error"} == set()


@pytest.mark.slow
def test_the_gitlab_job_runs_without_a_token(tmp_path, environment):
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    job = load("gitlab-ci.yml")["int8"]
    code, output = bash("\n".join(job["script"]), tmp_path, environment)
    assert code == 0, output
    assert not (tmp_path / "int8" / "compare.md").exists()
    assert bash("\n".join(job["after_script"]), tmp_path, environment)[0] == 0


def test_the_workflow_has_what_github_asks_for():
    workflow = load("github-actions.yml")
    assert {"pull_request", "push"} == set(workflow[True])  # YAML reads the key "on" as true
    for step in workflow["jobs"]["int8"]["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        # what a workflow reads from outside goes through the environment: a script must hold no expression
        assert "${{" not in step.get("run", "")


def test_every_figure_in_a_gate_of_the_examples_exists():
    from int8cal.evaluation.gates import parse_gate
    from int8cal.report.regressions import parse_limit

    texts = [(EXAMPLES / name).read_text(encoding="utf-8") for name in ("github-actions.yml", "gitlab-ci.yml")]
    gates = [gate for text in texts for gate in re.findall(r"--gate '([^']+)'", text)]
    limits = [limit for text in texts for limit in re.findall(r"--limit '([^']+)'", text)]
    assert [parse_gate(gate).text for gate in gates] == gates
    assert [parse_limit(limit).text for limit in limits] == limits
    assert len(gates) >= 6
    assert len(limits) >= 2


ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def run_action(folder, environment, **inputs):
    """Run the steps of action.yml as a runner does, with its expressions filled in; return the exit code, output and outputs."""
    assert inputs.keys() <= ACTION["inputs"].keys()
    values = {f"inputs.{name}": inputs.get(name, each["default"]) for name, each in ACTION["inputs"].items()}
    values |= {"github.action_path": str(ROOT)}

    def fill(text):
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)

    failed, printed = 0, ""
    for number, step in enumerate(ACTION["runs"]["steps"]):
        if failed and step.get("if") != "${{ !cancelled() }}":
            continue
        written = folder / f"output-{number}"
        files = {"GITHUB_OUTPUT": str(written), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
        variables = {name: fill(text) for name, text in step["env"].items()}
        code, output = bash(step["run"], folder, environment, **files, **variables)
        failed, printed = failed or code, printed + output
        if written.exists():
            lines = (line.partition("=") for line in written.read_text().splitlines())
            values |= {f"steps.{step['id']}.outputs.{name}": value for name, _, value in lines}
    return failed, printed, {name: fill(each["value"]) for name, each in ACTION["outputs"].items()}


@pytest.fixture
def runner(tmp_path, environment):
    """A checkout with the sample, and a runner whose Python notes what it is told to install."""
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    shims = tmp_path / "bin"
    shims.mkdir()
    (shims / "python").write_text('#!/bin/sh\necho "$*" >> installed.txt\n')
    (shims / "python").chmod(0o755)
    return tmp_path, environment | {"PATH": f"{shims}{os.pathsep}{environment['PATH']}"}


@pytest.mark.slow
def test_the_action_calibrates_and_says_where_the_report_is(runner):
    folder, environment = runner
    given = {"model": "sample_data/model.onnx", "data": "sample_data/calib", "output": "my reports"}
    given |= {
        "gates": "agreement>=0.9\n\nsqnr_db_ci95.lo>=20\n",
        "options": "--no-latency\n--samples=40",
        "extras": "metrics",
    }
    code, printed, outputs = run_action(folder, environment, **given)
    assert code == 0, printed
    assert (folder / "installed.txt").read_text() == f"-m pip install {ROOT}[metrics]\n"
    assert {name: Path(path).name for name, path in outputs.items()} == {
        "model": "model.int8.onnx",
        "report": "report.html",
        "json": "report.json",
        "junit": "junit.xml",
    }
    assert all((folder / path).is_file() for path in outputs.values())
    assert (folder / "summary.md").read_text(encoding="utf-8").startswith("<!-- int8cal report -->")
    assert len(ET.parse(folder / outputs["junit"]).findall(".//testcase")) >= 2


@pytest.mark.slow
def test_the_action_fails_with_the_gate_and_still_shows_the_report(runner):
    folder, environment = runner
    given = {"config": "sample_data/sample.yaml", "gates": "sqnr_db>=90", "options": "--no-latency"}
    code, printed, outputs = run_action(folder, environment, **given)
    assert code == 7, printed
    assert (folder / outputs["report"]).is_file()
    assert "sqnr_db" in (folder / "summary.md").read_text(encoding="utf-8")
    assert (folder / "installed.txt").read_text() == f"-m pip install {ROOT}\n"


def test_the_action_has_what_github_asks_for():
    assert {"name", "description", "inputs", "outputs", "runs"} <= ACTION.keys()
    assert ACTION["runs"]["using"] == "composite"
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"  # a composite action has no default
        assert "${{" not in step["run"]  # an input is text of others: a script must hold no expression
    named = {
        name
        for step in ACTION["runs"]["steps"]
        for text in step["env"].values()
        for name in re.findall(r"inputs\.(\w+)", text)
    }
    assert named == ACTION["inputs"].keys()


def hooks():
    return {hook["id"]: hook for hook in yaml.safe_load(HOOKS.read_text(encoding="utf-8"))}


def test_the_hooks_are_what_pre_commit_takes():
    known = {"id", "name", "description", "entry", "language", "types", "files", "require_serial", "args"}
    for hook in hooks().values():
        assert {"id", "name", "entry", "language", "files"} <= set(hook) <= known
        assert hook["language"] == "python"
        re.compile(hook["files"])
    clientlib = pytest.importorskip("pre_commit.clientlib")
    clientlib.load_manifest(str(HOOKS))


@pytest.mark.parametrize(
    ("hook", "name", "matches"),
    [
        ("int8cal-config", "int8cal.yaml", True),
        ("int8cal-config", "configs/int8cal-bert.yml", True),
        ("int8cal-config", "configs/batch.yaml", False),
        ("int8cal-config", "my-int8cal.yaml", False),
        ("int8cal-audit", "models/net.int8.onnx", True),
        ("int8cal-audit", "models/net.onnx", False),
    ],
)
def test_the_hooks_take_the_files_that_they_are_for(hook, name, matches):
    assert bool(re.search(hooks()[hook]["files"], name)) is matches


def call(hook, files, folder, environment):
    command = [*hook["entry"].split(), *hook.get("args", []), *map(str, files)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory, environment):
    """Int8 models of the sample: one that cannot saturate, one that can."""
    folder = tmp_path_factory.mktemp("models")
    job = f"int8cal calibrate {ROOT}/sample_data/model.onnx --data {ROOT}/sample_data/calib --samples 8 --no-latency -q"
    code, output = bash(f"{job} -o safe\n{job} -o unsafe --weights s8", folder, environment)
    assert code == 0, output
    return folder / "safe" / "model.int8.onnx", folder / "unsafe" / "model.int8.onnx"


@pytest.mark.slow
def test_the_audit_hook_takes_many_models_and_names_those_that_can_saturate(models, tmp_path, environment):
    safe, unsafe = models
    hook = hooks()["int8cal-audit"]
    assert call(hook, [safe], tmp_path, environment) == (0, "", "")
    assert call(hook, [safe, safe], tmp_path, environment) == (0, "", "")
    code, out, err = call(hook, [unsafe, safe, ROOT / "sample_data" / "model.onnx"], tmp_path, environment)
    assert (code, out) == (7, "")
    first, second = err.splitlines()
    assert str(unsafe) in first
    assert "unsafe_channels<=0" in first
    assert str(ROOT / "sample_data" / "model.onnx") in second


@pytest.mark.slow
def test_the_configuration_hook_takes_a_good_file_and_refuses_a_bad_one(tmp_path, environment):
    hook = hooks()["int8cal-config"]
    if "--dry-run" not in bash("int8cal run --help", tmp_path, environment)[1]:
        pytest.skip("this version has no int8cal run --dry-run")
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    (tmp_path / "int8cal.yaml").write_text("model: sample_data/model.onnx\ndata: sample_data/calib\n")
    (tmp_path / "int8cal-bad.yaml").write_text("model: sample_data/model.onnx\ndatta: sample_data/calib\n")
    assert call(hook, ["int8cal.yaml"], tmp_path, environment)[0] == 0
    code, _, err = call(hook, ["int8cal-bad.yaml"], tmp_path, environment)
    assert code == 2
    assert "int8cal-bad.yaml" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8cal-bad.yaml", "int8cal.yaml", "sample_data"]
