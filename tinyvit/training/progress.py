"""What a training looks like in the terminal: one line that moves, or plain lines where nothing can move."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from .hooks import Hook

if TYPE_CHECKING:
    from .loop import Run

PLAIN_EVERY = 10.0  # seconds between plain lines


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress(Hook):
    """Epoch, step, loss, accuracy, images a second and time left, and one line that stays for every epoch."""

    def __init__(self, title: str = "", stream=None):
        self.title = title
        self.stream = stream if stream is not None else sys.stderr if sys.stderr.isatty() else sys.stdout
        self._bar: Any = None
        self._first, self._shown, self._started = 0, 0.0, 0.0

    def on_start(self, run: Run) -> None:
        self._first, self._started, self._shown = run.step, time.perf_counter(), time.perf_counter()
        if self.stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=run.steps, initial=run.step, file=self.stream, ncols=80, nrows=24, leave=False,
                             bar_format="{desc} |{bar}|", mininterval=0)

    def on_report(self, run: Run) -> None:
        line = self._line(run)
        if self._bar is not None:
            self._bar.total, self._bar.n = run.steps, run.step
            self._bar.set_description_str(line, refresh=True)
        elif time.perf_counter() - self._shown >= PLAIN_EVERY:
            self._shown = time.perf_counter()
            print(line, file=self.stream, flush=True)

    def on_epoch(self, run: Run, record: dict[str, Any]) -> None:
        parts = [f"{self.title}epoch {record['epoch']:<5g} loss {record['train_loss']:.3f}"]
        parts += [f"{kind} {100 * record[f'{kind}_accuracy']:4.1f} %" for kind in ("train", "val")
                  if f"{kind}_accuracy" in record]
        parts += [f"{run.images_per_second:6.0f} img/s", clock(record["seconds"])]
        line = "   ".join(parts)
        self._shown = time.perf_counter()
        if self._bar is not None:
            self._bar.write(line, file=self.stream)
        else:
            print(line, file=self.stream, flush=True)

    def on_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, run: Run) -> str:
        """At most 68 columns, so that a short bar fits beside it."""
        means, place = run.means(), run.step - len(run.history) * run.steps_per_epoch
        accuracy = f" acc {100 * means['accuracy']:.0f} %" if "accuracy" in means else ""
        done, elapsed = run.step - self._first, time.perf_counter() - self._started
        left = clock(elapsed / done * (run.steps - run.step)) if done else "?"
        return (f"{self.title}epoch {len(run.history) + 1} step {place}/{run.steps_per_epoch} "
                f"loss {means.get('loss', 0):.3f}{accuracy} {run.images_per_second:.0f} img/s {left} left")
