"""Stopping politely: Ctrl-C or SIGTERM ends the step in progress, not the process, so that a checkpoint is written."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM. `checkpoint` is where it was saved, or None where it was not."""

    def __init__(self, message: str, checkpoint: Path | None = None):
        super().__init__(message)
        self.checkpoint = checkpoint


_at_once = ContextVar("at_once", default=False)


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """Inside this block a stop raises KeyboardInterrupt: for work that can be thrown away, such as evaluation."""
    token = _at_once.set(True)
    try:
        yield
    finally:
        _at_once.reset(token)


class Stop:
    """Whether somebody asked to stop. A second Ctrl-C does not wait; neither does the first in `stopping_at_once()`.

    `requested` is set in any case: Python drops the exception where C code calls back, as LLVM does when it compiles.
    """

    def __init__(self):
        self.requested = False

    def handle(self, number: int, frame) -> None:
        if self.requested or _at_once.get():
            self.requested = True
            raise KeyboardInterrupt
        self.requested = True
        os.write(2, b"\nstopping after this step ...\n")  # print() is not safe inside a signal handler


@contextlib.contextmanager
def catching_stop() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into `stop.requested` for a `with` block. Does nothing outside the main thread."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
