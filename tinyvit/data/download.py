"""Fetching CIFAR-10 into the cache: whole and checked, or not at all."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import cifar10
from .errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_BYTES = 170_052_171
ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
TEMPORARY = ".download-"


def fetch(cache: Path, *, url: str = URL, timeout: float = 5.0, stall: float = 30.0) -> Path:
    """Download CIFAR-10 (170 MB) and return its folder in `cache`, with six files in the binary layout.

    timeout: seconds to the first answer, looking up the name included; offline, this is how long it takes to fail.
    stall: seconds without a byte after which a download that has begun is given up.

    The archive's size and sha256 are checked before anything is unpacked, everything is done in a folder of its own beside
    the final one, and that is renamed at the end: an interrupted download leaves nothing behind that looks like data, and of
    two processes at once the second uses what the first has put there. Raises DataError with the reason in a phrase.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=cache, ignore_cleanup_errors=True) as name:
            work = Path(name)
            _check_answers(url, timeout)
            _download(url, work / "archive.tar.gz", timeout, stall)
            _unpack(work / "archive.tar.gz", work / cifar10.BINARY)
            return _put_in_place(work / cifar10.BINARY, cache / cifar10.BINARY)
    except OSError as error:
        raise DataError(f"cannot write to the cache {cache} ({error.strerror or error}); set TINYVIT_CACHE to a folder you can "
                        "write to") from None


def complete(folder: Path) -> bool:
    """Are all six files there, each of the right size?"""
    paths = [folder / f"{name}.bin" for name in cifar10.SHA256]
    return all(path.is_file() and path.stat().st_size == cifar10.file_bytes() for path in paths)


def _sweep(cache: Path) -> None:
    """Remove what downloads left that were killed more than a day ago."""
    for left in cache.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # somebody else may be doing the same
            if time.time() - left.stat().st_mtime > 86_400:
                shutil.rmtree(left)


def _check_answers(url: str, timeout: float) -> None:
    """Raise DataError unless the server answers in time.

    In a thread, because nothing else bounds the look-up of a name, which can hang for a minute on a half-connected laptop.
    """
    import requests

    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            requests.head(url, timeout=timeout, allow_redirects=True).close()  # any status: the download itself reports it
            outcome.append(None)
        except Exception as error:  # reported by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout + 0.5)
    error = outcome[0] if outcome else requests.Timeout()
    if error is not None:
        raise DataError(_reason(error, url, timeout))


def _download(url: str, target: Path, timeout: float, stall: float) -> None:
    import pooch
    import requests
    from tqdm import tqdm

    bar: Any = tqdm(total=ARCHIVE_BYTES, desc="CIFAR-10", unit="B", unit_scale=True, ncols=79, leave=False, file=sys.stderr,
                    disable=None)  # None: shown on a terminal only
    with bar, contextlib.ExitStack() as responses:

        def remember(response: requests.Response, *_: Any, **__: Any) -> None:  # pooch leaves it open when a download fails
            responses.callback(response.close)

        get = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=(timeout, stall), hooks={"response": remember})
        try:
            get(url, str(target), None)
        except requests.RequestException as error:
            raise DataError(_reason(error, url, stall)) from None
    size = target.stat().st_size
    if size != ARCHIVE_BYTES:
        raise DataError(f"what {_host(url)} sent has {size:,} bytes, expected {ARCHIVE_BYTES:,}: the download broke off, or a "
                        "page came instead of the file")
    if pooch.file_hash(str(target)) != ARCHIVE_SHA256:
        raise DataError(f"what {_host(url)} sent is not the official archive: its sha256 differs")


def _unpack(archive: Path, target: Path) -> None:
    """The six files and the list of classes out of the archive. Raises DataError for members that no data archive has."""
    wanted = {f"{cifar10.BINARY}/{name}.bin": cifar10.file_bytes() for name in cifar10.SHA256}
    target.mkdir()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in member.name.split("/"):
                    raise DataError(f"the archive was refused: its member {member.name!r} is a link, a device or outside its "
                                    "folder")
                if member.name not in wanted:
                    continue
                if member.size != wanted.pop(member.name):
                    raise DataError(f"the archive was refused: its member {member.name!r} has {member.size:,} bytes, expected "
                                    f"{cifar10.file_bytes():,}")
                source = tar.extractfile(member)
                assert source is not None  # it is a plain file
                with source, open(target / Path(member.name).name, "xb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"the archive cannot be unpacked: {error}") from None
    if wanted:
        raise DataError(f"the archive was refused: it lacks {', '.join(sorted(wanted))}")


def _put_in_place(made: Path, target: Path) -> Path:
    """Rename the folder onto its place; a folder that another process has put there in the meantime is as good."""
    try:
        made.rename(target)
    except OSError:  # there is one already
        if complete(target):
            return target
        target.rename(made.with_name("damaged"))  # goes with the temporary folder
        made.rename(target)
    return target


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _reason(error: Exception, url: str, seconds: float) -> str:
    """Why a download failed, in a phrase for people instead of urllib3's chain of causes."""
    import requests

    host, text = _host(url), str(error)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{host} answered {error.response.status_code} {error.response.reason} for {url}"
    if isinstance(error, requests.Timeout) or "timed out" in text:
        return f"no answer from {host} within {seconds:g} s"
    if isinstance(error, requests.exceptions.SSLError):
        return f"no secure connection to {host}: its certificate was not accepted"
    if "resolve" in text or "getaddrinfo" in text:
        return f"{host} cannot be found, so there is probably no network"
    if "refused" in text:
        return f"{host} refused the connection"
    if "unreachable" in text:
        return f"{host} cannot be reached, so there is probably no network"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the connection to {host} broke off"
    return f"{host} gave no file ({type(error).__name__})"
