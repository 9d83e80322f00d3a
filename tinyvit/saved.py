"""Arrays kept for backward, and the proof that nobody changed them in between.

A backward pass computed from an array that was written to after the forward pass is wrong, and silently so. NumPy keeps
no version counter, so an array that somebody outside the engine can reach is fingerprinted when it is saved, and checked
when backward reads it. Reachable ("exposed") are the arrays handed out by `Tensor.data`, `numpy()` or `np.asarray`, and
arrays the caller passed to an op. All others are only ever seen by the engine, which never writes in place, and cost nothing.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Set

import numpy as np

from .backend import to_numpy


def memory_of(array):
    """The array that owns the memory: `array` itself, or the one it is a view of."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "dtype"):
        array = array.base
    return array


def _fingerprint(array) -> int:
    return zlib.crc32(np.ascontiguousarray(to_numpy(array)).view(np.uint8).data) if array.size else 0


_VOID = -1  # a mark that no fingerprint equals


class Saved:
    """One array an op keeps for its backward."""

    __slots__ = ("__weakref__", "array", "mark")

    def __init__(self, array, outside: Set[int] = frozenset()):
        """outside: ids of arrays owning memory that the caller of the op can write to."""
        self.array = array
        self.mark: int | None = None
        if array is not None:
            _watch(self, id(memory_of(array)) in outside)

    def changed(self) -> bool:
        """Whether somebody wrote to the array since it was saved."""
        return self.mark is not None and _fingerprint(self.array) != self.mark


class _Memory:
    """What is known of one block of memory: whether the outside can reach it, and who has saved it."""

    __slots__ = ("exposed", "owner", "saved")

    def __init__(self, owner, key: int):
        # The callback drops the entry with the block; it also keeps the id from being mistaken for a later array's.
        self.owner = weakref.ref(owner, lambda _: _known.pop(key, None))
        self.exposed = False
        self.saved: weakref.WeakSet[Saved] = weakref.WeakSet()


_known: dict[int, _Memory] = {}
_lock = threading.RLock()


def _entry(array) -> _Memory:
    owner = memory_of(array)
    found = _known.get(id(owner))
    if found is None or found.owner() is not owner:
        found = _known[id(owner)] = _Memory(owner, id(owner))
    return found


def _watch(saved: Saved, exposed: bool) -> None:
    with _lock:
        memory = _entry(saved.array)
        memory.exposed |= exposed
        if memory.exposed:
            saved.mark = _fingerprint(saved.array)
        else:
            memory.saved.add(saved)


def expose(array) -> None:
    """Note that somebody outside can now write to `array`: what is saved of its memory is fingerprinted first."""
    with _lock:
        memory = _entry(array)
        if not memory.exposed:
            memory.exposed = True
            for saved in memory.saved:
                saved.mark = _fingerprint(saved.array)
            memory.saved.clear()


def overwritten(array) -> None:
    """Note that the package itself writes into `array` (an optimiser its parameters): whatever a graph saved of it is void.

    Costs nothing where no graph is alive, and unlike `expose` does not have the array watched from here on.
    """
    with _lock:
        found = _known.get(id(memory_of(array)))
        if found is not None:
            for saved in found.saved:
                saved.mark = _VOID
            found.saved.clear()  # so that `expose` does not give them a mark again
