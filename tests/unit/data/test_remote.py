"""Data at URLs are the samples of the same files on this machine."""

import functools
import http.server
import threading
import zipfile

import numpy as np
import pytest
from PIL import Image

from int8cal.data.find import find
from int8cal.data.opening import open_feeds
from int8cal.data.remote import is_url
from int8cal.errors import DataError, Int8calError, UsageError
from int8cal.graph.signature import Signature, TensorSpec
from int8cal.job import DataSettings

FLOAT = np.dtype(np.float32)
ARRAY = Signature((TensorSpec("x", FLOAT, ("N", 3, 4)),), ())
IMAGE = Signature((TensorSpec("x", FLOAT, ("N", 3, 8, 8)),), ())


@pytest.fixture(scope="module")
def remote():
    """The libraries of the extra `remote`."""
    pytest.importorskip("upath", reason="the extra remote is not installed")
    return pytest.importorskip("fsspec")


@pytest.fixture
def folder(tmp_path):
    """Images in class folders, and arrays of each kind; hidden files beside them."""
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for index in range(2):
            pixels = random.integers(0, 255, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{index}.png")
    (tmp_path / "npy" / "deep").mkdir(parents=True)
    (tmp_path / "npz").mkdir()
    for index in range(3):
        values = random.normal(size=(2, 3, 4)).astype(np.float32)
        np.save(tmp_path / "npy" / "deep" / f"{index}.npy", values)
        np.savez_compressed(tmp_path / "npz" / f"{index}.npz", x=values)
    np.save(tmp_path / "npy" / ".hidden.npy", values)
    return tmp_path


def url(remote, folder, kind, name):
    """Copy a folder to where a URL of this kind finds it."""
    files = [path for path in (folder / name).rglob("*") if path.is_file()]
    if kind == "file":
        return (folder / name).as_uri()
    if kind == "zip":
        archive = folder / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as stored:
            for path in files:
                stored.write(path, path.relative_to(folder).as_posix())
        return f"zip://{name}::{archive.as_uri()}"
    memory = remote.filesystem("memory")
    for path in files:
        memory.pipe(f"/{folder.name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"memory://{folder.name}/{name}"


def samples(text, signature):
    return list(open_feeds(DataSettings(text), signature))


@pytest.mark.parametrize("kind", ["file", "memory", "zip"])
@pytest.mark.parametrize("name", ["images", "npy", "npz"])
def test_a_folder_gives_the_samples_that_it_gives_here(remote, folder, kind, name):
    signature = IMAGE if name == "images" else ARRAY
    text = url(remote, folder, kind, name)
    here, there = samples(str(folder / name), signature), samples(text, signature)
    assert [each.fingerprint for each in there] == [each.fingerprint for each in here]
    assert [each.label for each in there] == [each.label for each in here]
    assert len(here) == (4 if name == "images" else 6)
    assert all("://" in each.origin for each in there)


@pytest.mark.parametrize(("pattern", "count"), [("npy/**/*.npy", 6), ("npy/deep/[01].npy", 4), ("npy/deep", 6)])
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_glob_chooses_the_files_that_it_chooses_here(remote, folder, kind, pattern, count):
    base = url(remote, folder, kind, "npy").removesuffix("/npy")
    assert len(samples(f"{base}/{pattern}", ARRAY)) == count == len(samples(str(folder / pattern), ARRAY))


def test_a_file_is_a_source(remote, folder):
    text = f"{url(remote, folder, 'memory', 'npy')}/deep/1.npy"
    assert [each.origin for each in samples(text, ARRAY)] == [f"{text}[0]", f"{text}[1]"]


def test_a_web_server_is_read(remote, folder):
    pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            there = samples(f"http://127.0.0.1:{server.server_port}/images/cat/1.png", IMAGE)
        finally:
            server.shutdown()
    here = samples(str(folder / "images" / "cat" / "1.png"), IMAGE)
    assert [each.fingerprint for each in there] == [each.fingerprint for each in here]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory://nothing/here", "memory://nothing/here: does not exist"),
        ("memory://nothing/*.npy", "memory://nothing/*.npy: matches no file"),
        ("memory://words/a.txt", "holds .txt files, which are not read at a URL"),
    ],
)
def test_what_is_not_there_is_told(remote, text, message):
    remote.filesystem("memory").pipe("/words/a.txt", b"a\n")
    with pytest.raises(DataError) as caught:
        find(text)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_file_system_that_is_not_known_is_told(remote):
    with pytest.raises(Int8calError, match="nosuch://x/y"):
        find("nosuch://x/y")


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "upath", None)
    with pytest.raises(UsageError) as caught:
        find("s3://bucket/calib")
    assert str(caught.value).startswith(
        "usage: s3://bucket/calib: data at a URL need fsspec, which is not installed; pip"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [("s3://b/c", True), ("zip://d::s3://b/c.zip", True), ("C:/x", False), ("a.b:c", False), ("datasets:x", False)],
)
def test_urls_are_told_from_other_sources(text, told):
    assert is_url(text) is told
