"""Which data set `load` gives, and what it says about it."""

import subprocess
import sys

import pytest

from tinyvit.data import DataError, DataWarning, cache_folder, load, shapes, where

NOWHERE = "http://127.0.0.1:9/x"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """No data of this machine, and a small offline set."""
    monkeypatch.delenv("TINYVIT_DATA", raising=False)
    monkeypatch.setenv("TINYVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(shapes, "TRAIN", 60)
    monkeypatch.setattr(shapes, "TEST", 20)


@pytest.mark.parametrize("name", ["auto", "cifar10"])
def test_the_folder_named_by_the_environment(name, folder, monkeypatch):
    for place in (folder, folder.parent):
        monkeypatch.setenv("TINYVIT_DATA", str(place))
        assert load(name, url=NOWHERE).official
        assert where() == f"CIFAR-10 in {folder} ($TINYVIT_DATA)"


def test_damaged_files_in_that_folder_are_an_error(folder, monkeypatch):
    monkeypatch.setenv("TINYVIT_DATA", str(folder))
    (folder / "test_batch.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"test_batch\.bin is empty"):
        load("auto", url=NOWHERE)


def test_the_cache(folder, monkeypatch):
    monkeypatch.setenv("TINYVIT_CACHE", str(folder.parent))
    assert load("auto", url=NOWHERE).official and load("cifar10", url=NOWHERE).official
    assert where() == f"CIFAR-10 in {folder} (the cache)"


def test_a_download_is_kept(server, archive):
    server.content = archive
    assert "downloaded to" in where()
    for _ in range(2):
        data = load("auto", url=server.url)
        assert data.official and str(cache_folder()) in data.note
    assert server.gets == 1


def test_a_damaged_cache_is_downloaded_again(server, archive):
    server.content = archive
    load("cifar10", url=server.url)
    path = cache_folder() / "cifar-10-batches-bin" / "data_batch_1.bin"
    path.write_bytes(b"short")
    with pytest.warns(DataWarning, match="the copy in the cache is damaged .*truncated.*downloading is switched off"):
        assert load("auto", download=False).name == "shapes"
    assert load("auto", url=server.url).official
    assert server.gets == 2


@pytest.mark.parametrize("folder_name", [None, "absent"])
def test_offline(folder_name, tmp_path, monkeypatch):
    if folder_name:
        monkeypatch.setenv("TINYVIT_DATA", str(tmp_path / folder_name))
    with pytest.warns(DataWarning, match=r"the offline set of shapes, not CIFAR-10, because .*127\.0\.0\.1 refused") as caught:
        data = load(url=NOWHERE)
    assert data.name == "shapes" and not data.official and len(data.labels) == 60
    assert ("absent" if folder_name else "TINYVIT_DATA is not set") in data.note
    assert str(caught[0].message) == data.note and caught[0].filename == __file__
    with pytest.raises(DataError, match=r"CIFAR-10 was not found: .*refused the connection.*'shapes'") as error:
        load("cifar10", url=NOWHERE)
    assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, server):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINYVIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(DataWarning, match="cannot write to the cache .*set TINYVIT_CACHE"):
        assert load("auto", url=server.url).name == "shapes"


def test_the_offline_set_asked_for():
    data = load("shapes")  # no warning: it is what was asked for
    assert data.name == "shapes" and not data.official and "made by tinyvit" in data.note
    assert len(data.attributes["color"]) == 60 and len(data.test_attributes["color"]) == 20


def test_unknown_names():
    with pytest.raises(DataError, match=r"no data called 'cifar100'.*auto, cifar10 and shapes"):
        load("cifar100")


def test_import_is_cheap():
    """What only a download needs is imported by a download."""
    code = "import sys, tinyvit.data; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not {"pooch", "tqdm", "requests", "urllib3"} & set(ran.stdout.split())
