"""Hooks: what else happens during a training. `fit` calls them; they see the `Run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import Run


class Hook:
    """Override what you need; each method is called with the training in progress.

    >>> class Note(Hook):
    ...     def on_epoch(self, run, record):
    ...         record["learning_rate"] = run.optimizer.groups[0]["lr"]

    A hook that remembers something gives it to `state_dict`, so that a resumed training continues with it.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step, also of a resumed training."""

    def on_step(self, run: Run) -> None:
        """After every step of the optimiser."""

    def on_report(self, run: Run) -> None:
        """After the losses so far were read: `run.means()` is up to date."""

    def on_epoch(self, run: Run, record: dict[str, Any]) -> None:
        """After an epoch and its evaluation, before the record goes into the history and the checkpoint is written."""

    def on_end(self, run: Run) -> None:
        """When training stops, for whatever reason."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
