"""Data at s3://, from a server of this machine: the bytes of the same files here, and read by the workers of a cluster."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("s3fs", reason="fsspec reads s3:// with s3fs")
server = pytest.importorskip("moto.server", reason="moto is the server of s3:// here")

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
WRITTEN = ("net.int8.onnx", "net.stats.npz")
SAMPLES = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A layer with its data, and its results on the same files here."""
    folder, random = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    weight = numpy_helper.from_array(random.normal(size=(16, 8)).astype(np.float32), "w")
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size]) for name, size in (("x", 16), ("y", 8))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "layer")], "net", ends[:1], ends[1:], [weight]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    (folder / "data").mkdir()
    for index in range(SAMPLES):
        np.save(folder / "data" / f"{index:02}.npy", random.normal(size=(1, 16)).astype(np.float32))
    calibrated(folder, "here", "data")
    return folder


def calibrated(folder, output, data, *more, **environment) -> dict[str, bytes]:
    command = [sys.executable, "-m", "int8cal", "calibrate", "net.onnx", "--data", data, "-o", output]
    command += ["--no-latency", "--recipe", "fast", "--threads", "1", *more]
    others = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=others | KEYS | environment
    )
    assert done.returncode == 0, done.stderr
    return {name: (folder / output / name).read_bytes() for name in WRITTEN}


@pytest.fixture
def stores(folder, monkeypatch):
    """Two servers with the data, by address, and the list of what each was asked for."""
    import s3fs
    import werkzeug.serving

    asked: dict[int, list[str]] = {}
    monkeypatch.setattr(
        werkzeug.serving.WSGIRequestHandler,
        "log_request",
        lambda handler, *_: asked.setdefault(handler.server.server_port, []).append(
            f"{handler.command} {handler.path}"
        ),
    )
    servers = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        servers.append(server.ThreadedMotoServer("127.0.0.1", port))
        servers[-1].start()
        store = s3fs.S3FileSystem(
            key=KEYS["AWS_ACCESS_KEY_ID"],
            secret=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=f"http://127.0.0.1:{port}",
            skip_instance_cache=True,
        )
        if not store.exists("bucket"):
            store.mkdir("bucket")
        for path in (folder / "data").iterdir():
            store.pipe_file(f"bucket/calib/{path.name}", path.read_bytes())
        asked[port] = []
    yield asked
    for each in servers:
        each.stop()


def files_read(asked) -> set[str]:
    return {line.partition("?")[0] for line in asked if line.startswith("GET /bucket/calib/")}


def test_a_bucket_gives_the_bytes_of_the_same_files_here(folder, stores):
    port = next(iter(stores))
    found = calibrated(folder, "there", "s3://bucket/calib", AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    assert found == {name: (folder / "here" / name).read_bytes() for name in WRITTEN}
    assert len(files_read(stores[port])) == SAMPLES


@pytest.mark.ray
def test_workers_of_a_cluster_read_a_bucket_themselves(folder, stores, monkeypatch):
    """They know one server and the driver another, so what each is asked for tells who read it."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    of_workers, of_driver = stores
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{of_workers}"}.items():
        monkeypatch.setenv(name, value)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=10**8)
    try:
        address = ray.get_runtime_context().gcs_address
        found = calibrated(
            folder,
            "cluster",
            "s3://bucket/calib",
            *("--engine", "ray", "--address", address),
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{of_driver}",
        )
    finally:
        ray.shutdown()
    assert found == {name: (folder / "here" / name).read_bytes() for name in WRITTEN}
    assert len(files_read(stores[of_workers])) == SAMPLES
