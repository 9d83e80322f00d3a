"""Files that are whole or not there: written beside their place, then renamed onto it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """A temporary path in the folder of `path`; what is written to it replaces `path` at the end of the block.

    Readers see the old file or the new one, never a part, even if the machine stops in between. Where the block raises,
    the old file stays and the temporary one goes.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())  # the bytes must be on the disk before the name points to them
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all. Raises ValueError for NaN and inf, which JSON lacks."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def why_not_writable(folder: str | os.PathLike) -> str | None:
    """Make `folder` and try a file in it: None if that works, else the reason in a few words."""
    folder = Path(folder)
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None
