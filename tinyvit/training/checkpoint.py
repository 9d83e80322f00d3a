"""Checkpoints: one safetensors file that holds the arrays and, in its header, everything else as JSON.

One file, replaced as a whole, so arrays and JSON of different moments cannot meet. A checksum over both tells a damaged
file from a good one. No pickle: opening a checkpoint runs no code, and any safetensors tool can read the weights.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import to_numpy
from ..tensor import Tensor
from .files import replacing

FORMAT = "tinyvit-checkpoint-1"
_ARRAY = "$array"  # {"$array": "model/head.weight"} stands in the JSON where an array was


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or belongs to another run; the message says which and what to do."""


def save_checkpoint(path: str | os.PathLike, state: dict[str, Any]) -> None:
    """Write `state`, a tree of dicts (with text keys), lists, numbers, text, None, arrays and tensors.

    The file at `path` is replaced at once, when all is on the disk. Tuples come back as lists.
    Raises TypeError for what does not fit into such a tree, OSError where the folder cannot be written to.
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_take_arrays(state, "", arrays))
    with replacing(path) as temporary:
        temporary.write_bytes(save(arrays, {"format": FORMAT, "state": text, "checksum": _checksum(text, arrays)}))


def load_checkpoint(path: str | os.PathLike) -> dict[str, Any]:
    """The tree that `save_checkpoint` was given. Raises CheckpointError for a missing, damaged or foreign file."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of a training here: it can "
                                      f"hold weights, not continue a run")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged or cut off ({str(error).splitlines()[0]}): delete it "
                              f"and train again") from None
    if header.get("checksum") != _checksum(header.get("state", ""), arrays):
        raise CheckpointError(f"the checkpoint {path} is damaged (its checksum does not fit): delete it and train "
                              f"again")
    return _put_arrays(json.loads(header["state"]), arrays)


def _take_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` with its arrays moved to `arrays` under their path in the tree; what remains is JSON."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a checkpoint holds dicts with text keys, and {path or 'the state'} has keys "
                            f"{list(value)[:3]}")
        return {key: _take_arrays(item, f"{path}/{key}" if path else key, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(item, f"{path}/{i}" if path else str(i), arrays) for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        value = value.detach().data
    if hasattr(value, "dtype"):
        arrays[path] = np.ascontiguousarray(to_numpy(value)).reshape(value.shape)  # a 0-d array would become 1-d
        return {_ARRAY: path}
    raise TypeError(f"a checkpoint holds dicts, lists, numbers, text and arrays, and {path} is of type "
                    f"{type(value).__name__}")


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {key: _put_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_arrays(item, arrays) for item in value]
    return value


def _checksum(text: str, arrays: dict[str, np.ndarray]) -> str:
    crc = zlib.crc32(text.encode())
    for name in sorted(arrays):
        crc = zlib.crc32(arrays[name].tobytes(), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
