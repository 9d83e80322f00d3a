"""CIFAR-10 with 20 records a file instead of 10,000, and a web server that serves or spoils its archive."""

import hashlib
import pickle
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from archives import declare, tar_of
from hypothesis import settings

from tinyvit.data import cifar10

settings.register_profile("tinyvit", deadline=None, max_examples=50)  # no deadline: a busy machine is not a fault
settings.load_profile("tinyvit")

RECORDS = 20


@pytest.fixture
def records(monkeypatch):
    """{file name: uint8 (20, 3073)}, declared to be the official CIFAR-10."""
    rng = np.random.default_rng(3)
    made = {}
    for name in cifar10.SHA256:
        labels = rng.permutation(np.arange(RECORDS) % 10).astype(np.uint8)
        made[name] = np.column_stack([labels, rng.integers(0, 256, (RECORDS, 3072), dtype=np.uint8)])
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)
    monkeypatch.setattr(cifar10, "SHA256", {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in made.items()})
    return made


@pytest.fixture
def folder(records, tmp_path):
    """A folder in the binary layout."""
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for name, rows in records.items():
        (place / f"{name}.bin").write_bytes(rows.tobytes())
    return place


@pytest.fixture
def python_folder(records, tmp_path):
    """A folder in the python layout, keys as bytes as Python 2 wrote them."""
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for name, rows in records.items():
        batch = {b"batch_label": b"a batch", b"labels": rows[:, 0].tolist(), b"data": rows[:, 1:].copy(), b"filenames": [b"x"]}
        (place / name).write_bytes(pickle.dumps(batch, protocol=2))
    return place


@pytest.fixture
def members(records):
    """The members of the official archive."""
    names = {f"cifar-10-batches-bin/{name}.bin": rows.tobytes() for name, rows in records.items()}
    return [(tarfile.TarInfo(name), content) for name, content in {**names, "cifar-10-batches-bin/readme.html": b"hi"}.items()]


@pytest.fixture
def archive(members, monkeypatch):
    """The official archive in memory."""
    return declare(tar_of(members), monkeypatch)


class Server(ThreadingHTTPServer):
    """Serves `content` in one of several ways: "whole", "missing", "cut", "silent", "stalls"."""

    daemon_threads = True
    content = b""
    way = "whole"
    gets = 0

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/cifar-10-binary.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self):
        if self.server.way == "silent":
            self.server.over.wait(20)
            return
        self.send_response(404 if self.server.way == "missing" else 200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()

    def do_GET(self):
        self.server.gets += 1
        self.do_HEAD()
        whole = self.server.way in ("whole", "missing")
        self.wfile.write(self.server.content[: None if whole else len(self.server.content) // 2])
        if self.server.way == "stalls":
            self.wfile.flush()
            self.server.over.wait(20)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        made.over.set()
        made.shutdown()
        thread.join()
