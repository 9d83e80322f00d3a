"""Archives made in memory, and declared to be the official one."""

import hashlib
import io
import tarfile

from tinyvit.data import download


def tar_of(members):
    """A .tar.gz of (TarInfo, bytes) pairs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def declare(content, monkeypatch):
    """Make `content` the archive that a download is compared with."""
    monkeypatch.setattr(download, "ARCHIVE_BYTES", len(content))
    monkeypatch.setattr(download, "ARCHIVE_SHA256", hashlib.sha256(content).hexdigest())
    return content
