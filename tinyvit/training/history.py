"""What a training writes down: one record per epoch."""

from __future__ import annotations

from typing import Any


class History(list):
    """A list of records, one dict per epoch, with these keys and what metrics ("train_NAME") and `evaluate` add.

    "epoch": how many epochs are done (2, or 2.4 where training ended inside one); "train_loss": the mean over the
    epoch's images; "seconds": since training began, evaluations included; "images_per_second": the same, without them.

    >>> history = History([{"epoch": 1, "train_loss": 2.1}, {"epoch": 2, "train_loss": 1.7}])
    >>> history.column("train_loss")
    [2.1, 1.7]
    """

    def column(self, key: str) -> list[Any]:
        """One value of every record, None where a record lacks it."""
        return [record.get(key) for record in self]

    def last(self, key: str) -> Any:
        """The value of the last record that has it. Raises KeyError where none has."""
        for record in reversed(self):
            if key in record:
                return record[key]
        raise KeyError(key)


class Average:
    """Running means of losses and metrics, weighted with the number of images of each batch.

    Values may still be on a GPU: `add` keeps them, `read` brings them over and sums in the order of the steps, so the
    result does not depend on when it is read.
    """

    def __init__(self):
        self.sums: dict[str, float] = {}
        self.count = 0
        self._waiting: list[tuple[int, int, dict[str, Any]]] = []

    def add(self, step: int, count: int, values: dict[str, Any]) -> None:
        self._waiting.append((step, count, values))

    def __len__(self) -> int:
        """How many batches wait to be read."""
        return len(self._waiting)

    def read(self) -> list[tuple[int, float]]:
        """Sum up what waits; returns (step, loss) of each."""
        losses = []
        for step, count, values in self._waiting:
            for name, value in values.items():
                number = float(value)
                self.sums[name] = self.sums.get(name, 0.0) + number * count
                if name == "loss":
                    losses.append((step, number))
            self.count += count
        self._waiting = []
        return losses

    def means(self) -> dict[str, float]:
        """The mean of each value over the images read so far."""
        return {name: total / self.count for name, total in self.sums.items()} if self.count else {}

    def state_dict(self) -> dict[str, Any]:
        """The sums, after `read`."""
        return {"sums": dict(self.sums), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.count = dict(state["sums"]), state["count"]
