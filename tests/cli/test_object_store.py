"""Data at s3://, gs:// and http://, from a server of this machine: the bytes of the same files here, and read by workers."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

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
    """Two servers of s3:// with the data, by port, and the list of what each was asked for."""
    s3fs = pytest.importorskip("s3fs", reason="fsspec reads s3:// with s3fs")
    server = pytest.importorskip("moto.server", reason="moto is the server of s3:// here")
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


class Asked(http.server.BaseHTTPRequestHandler):
    """A folder as a web server shows it, with ranges, and as Google's JSON API for objects does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        own, asked = urllib.parse.unquote(url.path).strip("/"), dict(urllib.parse.parse_qsl(url.query))
        root = self.server.root
        api, of_bucket, name = own.rpartition("storage/v1/b/bucket/o")
        if not of_bucket:
            api, name = "download", own
        name = name.strip("/")
        if of_bucket and not name:
            names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.npy"))]
            found = [self._described(each) for each in names if each.startswith(asked.get("prefix", ""))]
            self._answer(json.dumps({"kind": "storage#objects", "items": found}).encode(), "application/json")
        elif (root / name).is_dir() and not of_bucket:
            links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in sorted((root / name).iterdir()))
            self._answer(links.encode(), "text/html")
        elif not (root / name).is_file():
            self.send_error(404)
        elif "download" in api or asked.get("alt") == "media":
            self.server.read.add(name)
            self._answer((root / name).read_bytes(), "application/octet-stream")
        else:
            self._answer(json.dumps(self._described(name)).encode(), "application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _described(self, name: str) -> dict[str, str]:
        size = (self.server.root / name).stat().st_size
        return {"kind": "storage#object", "name": name, "bucket": "bucket", "size": str(size), "generation": "1"}

    def _answer(self, content: bytes, kind: str) -> None:
        wanted, whole = self.headers.get("Range", ""), len(content)
        self.send_response(206 if wanted else 200)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or whole), whole - 1)
            content = content[begin : end + 1]
            self.send_header("Content-Range", f"bytes {begin}-{end}/{whole}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def servers(folder):
    """Two web servers with the data."""
    found = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked) for _ in range(2)]
    for each in found:
        each.root, each.read = folder, set()
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield found
    for each in found:
        each.shutdown()
        each.server_close()


def at(server, kind: str) -> tuple[str, dict[str, str]]:
    """Return the data's URL on a server, and the environment that it takes."""
    address = f"http://127.0.0.1:{server.server_port}"
    if kind == "http":
        pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")
        return f"{address}/data", {}
    pytest.importorskip("gcsfs", reason="fsspec reads gs:// with gcsfs")
    return "gs://bucket/data", {"STORAGE_EMULATOR_HOST": address}


@pytest.mark.parametrize("kind", ["http", "gs"])
def test_web_servers_give_the_bytes_of_the_same_files_here(folder, servers, kind):
    url, environment = at(servers[0], kind)
    found = calibrated(folder, f"there-{kind}", url, **environment)
    assert found == {name: (folder / "here" / name).read_bytes() for name in WRITTEN}
    assert len(servers[0].read) == SAMPLES


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["http", "gs"])
def test_workers_of_a_cluster_read_web_servers_themselves(folder, servers, monkeypatch, kind):
    """Of gs:// they know one server and the driver another."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    of_workers, of_driver = servers
    for name, value in at(of_workers, kind)[1].items():
        monkeypatch.setenv(name, value)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=10**8)
    try:
        address = ray.get_runtime_context().gcs_address
        url, environment = at(of_driver, kind)
        found = calibrated(folder, f"cluster-{kind}", url, "--engine", "ray", "--address", address, **environment)
    finally:
        ray.shutdown()
    assert found == {name: (folder / "here" / name).read_bytes() for name in WRITTEN}
    assert len((of_driver if kind == "http" else of_workers).read) == SAMPLES
