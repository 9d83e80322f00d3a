"""CIFAR-10 from files: 50,000 training and 10,000 test images of ten classes (Krizhevsky 2009).

The binary layout is six files of 10,000 records, each a label byte and the 3,072 bytes of the red, green and blue planes,
row by row. The python layout is six pickles with the same images in the same order. Both come from
https://www.cs.toronto.edu/~kriz/.
"""

from __future__ import annotations

import hashlib
from os.path import isfile  # unlike Path.is_file, False for what may not be looked at
from pathlib import Path

import numpy as np

from .dataset import Dataset
from .errors import DataError
from .unpickle import load_plain

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORDS = 10_000  # in each file
PIXELS = 3 * 32 * 32

# Of the files of the binary layout.
SHA256 = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"  # the folders in the official archives


def file_bytes() -> int:
    """The size of one file of the binary layout."""
    return RECORDS * (1 + PIXELS)


def locate(folder: Path) -> Path | None:
    """The folder with CIFAR-10's files in either layout: `folder` itself, or one in it under its official name."""
    for place in (folder, folder / BINARY, folder / PYTHON):
        if any(isfile(place / name) or isfile(place / f"{name}.bin") for name in SHA256):
            return place
    return None


def read(folder: Path) -> Dataset:
    """CIFAR-10 from a folder, which holds the six files of one layout or the folder of an unpacked archive.

    Files with other bytes than the official ones are read too; then `official` is False and `note` names the files.
    Raises DataError where files are missing, of a wrong size or with labels outside 0..9.
    """
    place = locate(folder)
    if place is None:
        raise DataError(f"{folder} holds no CIFAR-10: expected data_batch_1.bin to data_batch_5.bin and test_batch.bin, or the "
                        "same without .bin from the python version; give their folder, or the one above it")
    suffix = ".bin" if any(isfile(place / f"{name}.bin") for name in SHA256) else ""
    paths = {name: place / f"{name}{suffix}" for name in SHA256}
    missing = [path.name for path in paths.values() if not isfile(path)]
    if missing:
        raise DataError(f"{place} lacks {', '.join(missing)}; expected all six files of CIFAR-10: copy or download them again")

    images, labels = np.empty((6 * RECORDS, 3, 32, 32), np.uint8), np.empty(6 * RECORDS, np.int64)
    foreign = []
    for number, (name, path) in enumerate(paths.items()):
        records = _binary_records(path) if suffix else _python_records(path)
        if hashlib.sha256(records.data).hexdigest() != SHA256[name]:
            foreign.append(path.name)
        part = slice(number * RECORDS, (number + 1) * RECORDS)
        labels[part] = records[:, 0]
        images[part] = records[:, 1:].reshape(-1, 3, 32, 32)
    train = slice(0, 5 * RECORDS)
    test = slice(5 * RECORDS, 6 * RECORDS)
    return Dataset("cifar10", images[train], labels[train], images[test], labels[test], CLASSES,
                   official=not foreign, note=_note(place, foreign))


def _note(place: Path, foreign: list[str]) -> str:
    if not foreign:
        return f"CIFAR-10, the official files, from {place}"
    what = f"{foreign[0]} is not the official file" if len(foreign) == 1 else f"{', '.join(foreign)} are not the official files"
    return f"CIFAR-10 from {place}, where {what}: accuracies cannot be compared with published ones"


def _binary_records(path: Path) -> np.ndarray:
    """The records of a file of the binary layout, uint8 (RECORDS, 3073): a label and its pixels."""
    try:
        size = path.stat().st_size  # before reading, in case it is huge
        raw = path.read_bytes() if size == file_bytes() else b""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if size != file_bytes():
        fault = "empty" if not size else "truncated" if size < file_bytes() else "too long"
        raise DataError(f"{path} is {fault}: it has {size:,} bytes, expected {file_bytes():,} ({RECORDS:,} records of "
                        f"{1 + PIXELS:,}); copy or download it again")
    records = np.frombuffer(raw, np.uint8).reshape(RECORDS, 1 + PIXELS)
    _check_labels(records[:, 0], path)
    return records


def _python_records(path: Path) -> np.ndarray:
    """The same records from a file of the python layout, which has the same bytes in another wrapping."""
    batch = load_plain(path)
    pixels, labels = batch.get("data"), batch.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (RECORDS, PIXELS):
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"'data' in {path} is {found}; expected an array uint8 ({RECORDS}, {PIXELS}): it is another file")
    try:
        labels = np.asarray(labels)
    except ValueError:  # a list of lists of different lengths
        labels = np.empty(0)
    if labels.shape != (RECORDS,) or labels.dtype.kind not in "iu":
        raise DataError(f"'labels' in {path} are {labels.dtype} {labels.shape}; expected {RECORDS} whole numbers: it is "
                        "another file")
    _check_labels(labels, path)
    return np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)


def _check_labels(labels: np.ndarray, path: Path) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
    if len(wrong):
        raise DataError(f"record {wrong[0]} of {path} has label {labels[wrong[0]]}; expected 0 to {len(CLASSES) - 1}: the file "
                        "is damaged or another one; copy or download it again")
