"""What contributors expect of a repository works: workflow, pre-commit, nox sessions, changelog fragments."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PARTS = re.search(r"^known=\((.+)\)$", CI, re.MULTILINE)[1].split()


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def steps():
    return [step for job in load(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]


def test_the_workflow_has_what_github_asks_for():
    workflow = load(".github/workflows/ci.yml")
    assert {"pull_request", "push"} == set(workflow[True])  # YAML reads the key "on" as true
    for job in workflow["jobs"].values():
        assert {"runs-on", "steps", "timeout-minutes"} <= set(job)
        assert job.get("needs", "quick") in workflow["jobs"]
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        assert "${{" not in step.get("run", "")


def test_the_workflow_runs_every_part_of_ci_and_nothing_else():
    runs = [step["run"].split() for step in steps() if "run" in step]
    assert {command for command, *_ in runs} == {".ci/run"}
    assert {part for _, *parts in runs for part in parts} == set(PARTS)
    assert all(f"if asked {part}" in CI for part in PARTS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_ci_refuses_a_part_that_it_does_not_have():
    done = subprocess.run(["bash", ROOT / ".ci" / "run", "lint", "lnit"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == f"there is no part lnit; the parts are: {' '.join(PARTS)}\n"


def test_the_commit_hooks_are_the_installed_tools_and_fetch_nothing():
    (local,) = load(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["id"]: hook["language"] for hook in local["hooks"]} == dict.fromkeys(
        ("ruff", "ruff-format", "mypy"), "system"
    )
    extra = PROJECT["project"]["optional-dependencies"]["dev"]
    for hook in local["hooks"]:
        assert any(re.match(rf"{hook['entry'].split()[0]}\b", each) for each in extra)


def test_pre_commit_takes_the_commit_hooks():
    clientlib = pytest.importorskip("pre_commit.clientlib")
    clientlib.load_config(str(ROOT / ".pre-commit-config.yaml"))


def test_nox_has_a_session_for_each_job_of_a_contributor():
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    sessions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    assert sessions.keys() == {"lint", "quick", "tests", "oldest", "docs"}
    assert all(ast.get_docstring(node) for node in sessions.values())


def test_nox_and_ci_ask_the_same_of_the_minimum_versions():
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    asked = ast.literal_eval(assigned["OLDEST"])
    line = next(each for each in CI.splitlines() if "oldest_tests=(" in each)
    words = subprocess.run(
        ["bash", "-c", f'{line}; printf "%s\\n" "${{oldest_tests[@]}}"'], capture_output=True, text=True
    )
    assert tuple(words.stdout.splitlines()) == asked


def test_every_fragment_is_of_a_known_kind():
    kinds = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    table = (ROOT / "changelog.d" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == kinds
    for path in (ROOT / "changelog.d").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(r"(\d+|\+[\w-]+)\.(\w+)\.md", path.name)[2] in kinds
            assert path.read_text(encoding="utf-8").strip()[:1] not in {"", "-", "#"}


def test_a_release_puts_fragments_between_the_head_and_the_last_version(tmp_path):
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "7.fixed.md").write_text("Zero samples are refused.\n")
    (tmp_path / "changelog.d" / "+sensors.added.md").write_text("Data from sensors.\n")
    before = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.0.0", "--date", "2030-01-02"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    after = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    head, made, rest = after.partition(
        "## [9.0.0] - 2030-01-02\n\n### Added\n\n- Data from sensors.\n\n### Fixed\n\n- Zero samples are refused. (#7)\n"
    )
    assert made, done.stdout + done.stderr + after[:600]
    assert head.startswith("# Changelog")
    assert [line for line in (head + rest).splitlines() if line] == [line for line in before.splitlines() if line]
