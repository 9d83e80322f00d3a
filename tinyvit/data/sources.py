"""Where data come from: a folder, the cache, a download, or the offline set that needs none of them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from . import cifar10, shapes
from .dataset import Dataset
from .download import URL, fetch
from .errors import DataError, DataWarning

VARIABLE = "TINYVIT_DATA"


def load(name: str | os.PathLike = "auto", *, download: bool = True, url: str = URL, timeout: float = 5.0) -> Dataset:
    """The data set called `name`.

    "cifar10": from the folder in $TINYVIT_DATA, else from the cache, else by download into the cache (170 MB, once).
    "auto": the same, and where none of that works the offline set, with a DataWarning; `note` says why.
    "shapes": the offline set, made here in seconds. Anything else: a folder with CIFAR-10's files, or the one above it.

    download: may the network be used? url: of the archive. timeout: seconds until an absent network is given up.

    A DataWarning also goes out for files of CIFAR-10 that are not the official ones. Raises DataError where a folder is
    missing or its files are damaged, and for "cifar10" where there is none to be had.
    """
    asked = os.fspath(name)
    if asked == "shapes":
        return shapes.dataset()
    if asked in ("auto", "cifar10"):
        found, reasons = _find(download, url, timeout)
        if found is None and asked == "cifar10":
            raise DataError(f"CIFAR-10 was not found: {'; '.join(reasons)}; put its folder into {VARIABLE}, connect to a "
                            "network, or use the offline set 'shapes'")
        data = found or shapes.dataset(f"the offline set of shapes, not CIFAR-10, because {'; '.join(reasons)}")
    else:
        data = cifar10.read(_folder(asked))
    if not data.official:
        warnings.warn(data.note, DataWarning, stacklevel=2)
    return data


def where() -> str:
    """What `load("auto")` would take, in a line, found out without reading, downloading or making anything."""
    folder = os.environ.get(VARIABLE)
    if folder and (place := cifar10.locate(Path(folder).expanduser())):
        return f"CIFAR-10 in {place} (${VARIABLE})"
    unused = f"${VARIABLE} ({folder}) holds no CIFAR-10; " if folder else ""
    if place := cifar10.locate(cache_folder()):
        return f"{unused}CIFAR-10 in {place} (the cache)"
    return f"{unused}no CIFAR-10 here: it would be downloaded to {cache_folder()}, or the offline set used"


def cache_folder() -> Path:
    """$TINYVIT_CACHE, or this user's usual folder for caches."""
    import platformdirs

    return Path(os.environ.get("TINYVIT_CACHE") or platformdirs.user_cache_dir("tinyvit"))


def _find(download: bool, url: str, timeout: float) -> tuple[Dataset | None, list[str]]:
    """CIFAR-10, or None and why it is in none of the places where it might be."""
    reasons = []
    folder = os.environ.get(VARIABLE)
    if folder and (place := cifar10.locate(Path(folder).expanduser())):
        return cifar10.read(place), []  # damaged files in a folder that somebody chose are an error, not a reason
    reasons.append(f"{VARIABLE} names {folder!r}, which holds no CIFAR-10" if folder else f"{VARIABLE} is not set")
    cache = cache_folder()
    if cifar10.locate(cache):
        try:
            return cifar10.read(cache), []
        except DataError as error:
            reasons.append(f"the copy in the cache is damaged ({error})")
    else:
        reasons.append(f"the cache {cache} has no CIFAR-10")
    if not download:
        reasons.append("downloading is switched off")
        return None, reasons
    try:
        return cifar10.read(fetch(cache, url=url, timeout=timeout)), []
    except DataError as error:
        reasons.append(f"the download failed ({error})")
    return None, reasons


def _folder(asked: str) -> Path:
    folder = Path(asked).expanduser()
    if not os.path.exists(folder):
        raise DataError(f"no data called {asked!r}: there is no such folder, and the names are auto, cifar10 and shapes")
    if not os.path.isdir(folder):
        raise DataError(f"{asked} is a file; expected the folder that holds CIFAR-10's six files")
    return folder
