"""A download is whole and checked, or it leaves nothing and says why; from a server on this machine."""

import io
import os
import socket
import tarfile
import threading
import time

import pooch
import pytest
from archives import declare, tar_of

from tinyvit.data import DataError, cifar10, download


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "tinyvit"


def empty(cache):
    return not cache.exists() or not list(cache.iterdir())


def fetch(cache, server, **options):
    return download.fetch(cache, url=server.url, **{"timeout": 2.0, "stall": 2.0, **options})


def test_download(cache, server, archive):
    server.content = archive
    place = fetch(cache, server)
    assert place == cache / "cifar-10-batches-bin" and cifar10.read(place).official
    assert [path.name for path in cache.iterdir()] == ["cifar-10-batches-bin"]  # no archive, no temporary folder
    assert len(list(place.iterdir())) == 6


@pytest.mark.parametrize(("way", "message"), [
    ("missing", "127.0.0.1 answered 404 Not Found for http"), ("cut", "broke off"),
    ("silent", "no answer from 127.0.0.1 within 0.3 s"), ("stalls", "no answer from 127.0.0.1 within 0.4 s"),
])
def test_servers_that_fail(cache, server, archive, way, message):
    server.content, server.way = archive, way
    started = time.perf_counter()
    with pytest.raises(DataError, match=message) as caught:
        fetch(cache, server, timeout=0.3, stall=0.4)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 3
    assert empty(cache)


def test_other_bytes(cache, server, archive):
    server.content = archive[:-1] + bytes([archive[-1] ^ 1])
    with pytest.raises(DataError, match="not the official archive: its sha256 differs"):
        fetch(cache, server)
    server.content = b"<html>please log in to this network</html>"
    with pytest.raises(DataError, match="has 42 bytes, expected"):
        fetch(cache, server)
    assert empty(cache)


def test_nobody_there(cache, archive, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DataError, match=r"127\.0\.0\.1 refused the connection"):
        download.fetch(cache, url=f"http://127.0.0.1:{port}/x")
    assert empty(cache)


def test_a_name_service_that_hangs_does_not_hang_us(cache, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    over = threading.Event()

    def hangs(*_, **__):
        over.wait(20)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    started = time.perf_counter()
    with pytest.raises(DataError, match=r"no answer from data.example within 0.2 s"):
        download.fetch(cache, url="https://data.example/x", timeout=0.2)
    assert time.perf_counter() - started < 2
    over.set()
    with pytest.raises(DataError, match=r"data\.example cannot be found, so there is probably no network"):
        download.fetch(cache, url="https://data.example/x", timeout=5)


def test_interrupted(cache, server, archive, monkeypatch):
    def interrupted(self, url, output_file, pooch):
        with open(output_file, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(cache, server)
    assert empty(cache)


def test_what_a_killed_download_left_goes_after_a_day(cache, server, archive):
    server.content = archive
    for name, age in (("old", 100_000), ("new", 100)):
        (cache / f".download-{name}").mkdir(parents=True)
        os.utime(cache / f".download-{name}", (time.time() - age,) * 2)
    fetch(cache, server)
    assert sorted(path.name for path in cache.iterdir()) == [".download-new", "cifar-10-batches-bin"]


def test_several_at_once(cache, server, archive):
    server.content = archive
    places = []
    threads = [threading.Thread(target=lambda: places.append(fetch(cache, server, timeout=10.0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert places == [cache / "cifar-10-batches-bin"] * 4
    assert cifar10.read(places[0]).official and len(list(cache.iterdir())) == 1


def test_damaged_copy_is_replaced(cache, server, archive):
    server.content = archive
    place = fetch(cache, server)
    (place / "data_batch_1.bin").write_bytes(b"short")
    fetch(cache, server)
    assert cifar10.read(place).official and len(list(cache.iterdir())) == 1


def test_cache_that_cannot_be_written(tmp_path, server, archive):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write to the cache .*file.x .*set TINYVIT_CACHE"):
        fetch(tmp_path / "file" / "x", server)
    assert server.gets == 0


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("evil", [
    member("../escaped"), member("cifar-10-batches-bin/../../escaped"), member("/tmp/escaped"),
    member("cifar-10-batches-bin/data_batch_1.bin", tarfile.SYMTYPE, "/etc/passwd"),
    member("cifar-10-batches-bin/data_batch_1.bin", tarfile.LNKTYPE, "../escaped"), member("device", tarfile.CHRTYPE),
    member("pipe", tarfile.FIFOTYPE),
], ids=lambda info: f"{info.name} {info.type!r}")
def test_archives_that_reach_out(cache, server, members, monkeypatch, evil):
    server.content = declare(tar_of([(evil, b""), *members]), monkeypatch)
    with pytest.raises(DataError, match=r"archive was refused: its member .* is a link, a device or outside its folder"):
        fetch(cache, server)
    assert empty(cache)
    assert not list(cache.parent.rglob("escaped"))


def test_archives_with_other_files(cache, server, members, monkeypatch):
    server.content = declare(tar_of(members[1:]), monkeypatch)
    with pytest.raises(DataError, match=r"lacks cifar-10-batches-bin/data_batch_1\.bin"):
        fetch(cache, server)
    short = [(tarfile.TarInfo(members[0][0].name), b"short"), *members[1:]]
    server.content = declare(tar_of(short), monkeypatch)
    with pytest.raises(DataError, match=r"data_batch_1\.bin' has 5 bytes, expected 61,460"):
        fetch(cache, server)
    assert empty(cache)


def test_archives_that_are_none(cache, server, archive, monkeypatch):
    for content in (b"no archive", archive[: len(archive) // 2]):
        server.content = declare(content, monkeypatch)
        with pytest.raises(DataError, match="the archive cannot be unpacked"):
            fetch(cache, server)
    assert empty(cache)


def test_progress_is_shown_on_a_terminal_only(cache, server, archive, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        server.content = archive
        monkeypatch.setattr("sys.stderr", stream)
        fetch(cache, server)
        assert ("CIFAR-10" in stream.getvalue()) == shown
