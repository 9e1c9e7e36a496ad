"""The Dockerfile: what it promises, its commands outside a container, and, where buildah and a base image are, the image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()


def instructions(text: str) -> list[tuple[str, str]]:
    """Read a Dockerfile: each instruction and the rest of its line; none here goes over several lines."""
    lines = (line.strip() for line in text.splitlines())
    return [tuple(line.split(maxsplit=1)) for line in lines if line and not line.startswith("#")]


def stages(text: str) -> list[list[tuple[str, str]]]:
    """Cut instructions at FROM; what stands before the first one is left out."""
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions(text):
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


BUILD, FINAL = stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_the_image_runs_the_command_as_no_root_and_holds_no_tools_of_the_build():
    final = dict(FINAL)
    assert final["USER"] not in {"root", "0"}
    assert [name for name, _ in FINAL].index("USER") < [name for name, _ in FINAL].index("ENTRYPOINT")
    assert final["ENTRYPOINT"] == '["int8cal"]'
    assert [rest for name, rest in FINAL if name == "COPY"] == ["--from=build /opt/int8cal /opt/int8cal"]
    assert {dict(stage)["FROM"].split()[0] for stage in (BUILD, FINAL)} == {"${PYTHON}"}


def test_the_base_has_a_version():
    arguments = dict(
        rest.split("=", 1) for name, rest in instructions((ROOT / "Dockerfile").read_text()) if name == "ARG"
    )
    assert re.fullmatch(r"[\w./-]+:3\.\d+[\w.-]*", arguments["PYTHON"])


def test_what_is_copied_exists_and_is_not_left_out():
    copied = [word for name, rest in BUILD if name == "COPY" for word in rest.split()[:-1]]
    allowed = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert IGNORED[0] == "*"
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied if name != "int8cal")  # CI tests without the package's source


def test_both_stages_look_for_compiled_loops_in_the_same_place():
    variables = [set(re.findall(r"NUMBA_\w+=\S+", dict(stage)["ENV"])) for stage in (BUILD, FINAL)]
    assert variables[0] == variables[1] != set()


@pytest.mark.slow
def test_its_commands_compile_the_loops_once(tmp_path):
    """Run the stage's RUN lines in a folder, with this Python for the one that they would install."""
    bin_folder = tmp_path / "opt" / "bin"
    bin_folder.mkdir(parents=True)
    for name, text in {"python": f'exec "{sys.executable}" "$@"', "pip": f'echo "$@" > "{tmp_path}/pip.txt"'}.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    shutil.copytree(ROOT / "sample_data", tmp_path / "source" / "sample_data")

    def here(text: str) -> str:
        moved = text.replace("/opt/int8cal", str(tmp_path / "opt")).replace("/source", str(tmp_path / "source"))
        return moved.replace("/tmp/sample", str(tmp_path / "sample")).replace("python3 -m venv", "true")  # noqa: S108 - the one inside

    variables = dict(each.split("=", 1) for each in here(dict(BUILD)["ENV"]).split())
    runs = [here(rest) for name, rest in BUILD if name == "RUN"]
    for run in runs:
        done = subprocess.run(["sh", "-ec", run], env=os.environ | variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "pip.txt").read_text().split()[-1] == str(tmp_path / "source")
    compiled = {path: path.stat().st_mtime_ns for path in (tmp_path / "opt" / "loops").rglob("*.nb?")}
    assert len(compiled) >= 10
    shutil.rmtree(tmp_path / "sample")
    subprocess.run(["sh", "-ec", runs[-1]], env=os.environ | variables, check=True, capture_output=True)
    assert compiled == {path: path.stat().st_mtime_ns for path in (tmp_path / "opt" / "loops").rglob("*.nb?")}


@pytest.mark.long
@pytest.mark.skipif(
    not (shutil.which("buildah") and "INT8CAL_BASE_IMAGE" in os.environ),
    reason="takes buildah, and INT8CAL_BASE_IMAGE: a local image with Python and its venv",
)
def test_the_image_is_built_and_calibrates_the_sample(tmp_path):
    """`docs/releasing.md` says how; the host's certificates and pip.conf are lent to the build, and are not in the image."""
    lent = [Path(path) for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    volumes = [word for path in lent for word in ("--volume", f"{path}:{path}:ro")]
    build = ["buildah", "bud", "--isolation", "chroot", "--network", "host", *volumes, "--tag", "int8cal-test"]
    build += ["--build-arg", f"PYTHON={os.environ['INT8CAL_BASE_IMAGE']}", str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    container = subprocess.run(
        ["buildah", "from", "int8cal-test"], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
        tmp_path.chmod(0o777)
        run = ["buildah", "run", "--isolation", "chroot", "--volume", f"{tmp_path}:/work", container]
        calibrate = ["int8cal", "calibrate", "sample_data/model.onnx", "--data", "sample_data/calib", "--no-latency"]
        done = subprocess.run([*run, "--", *calibrate], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "model-int8" / "report.html").stat().st_uid == 1000
    finally:
        subprocess.run(["buildah", "rm", container], check=True, capture_output=True)
