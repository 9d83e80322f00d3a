"""The loop: it stops and continues without a trace, it says what goes wrong, and it knows nothing of images and labels."""

import contextlib
import math
import signal

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import nn, optim
from tinyvit.data import Loader, standard_augment
from tinyvit.training import (
    CheckpointError,
    Hook,
    Interrupted,
    TrainingError,
    classification,
    evaluate,
    fit,
    load_checkpoint,
)
from tinyvit.training.interrupt import stopping_at_once

PER_EPOCH = 4


@pytest.fixture(autouse=True)
def references():
    """The loop does not care what computes, and references need no compiling; the demo's tests use the kernels."""
    with tv.using("numpy"):
        yield


class Tiny(nn.Module):
    """Enough for a test: dropout, so that a generator matters, and batch norm, so that buffers do."""

    def __init__(self, seed=0, width=8):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1, rng=rng)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2, rng=rng)
        self.head = nn.Linear(width, 5, rng=rng)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return self.head(self.drop(x.mean(axis=(2, 3))))


def images(count=64, seed=0):
    """Noise, the brighter the higher the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, count)
    return (rng.integers(0, 120, (count, 3, 8, 8)) + 30 * labels[:, None, None, None]).astype(np.uint8), labels


def make(kind="adamw", seed=0):
    model = Tiny(seed)
    loader = Loader(*images(), 16, shuffle=True, augment=standard_augment(crop=2), seed=seed)
    if kind == "adamw":
        return model, loader, optim.AdamW(model.parameters(), lr=0.01)
    return model, loader, optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def train(kind="adamw", steps=3 * PER_EPOCH + 2, model=None, hooks=(), **options):
    """A training with everything on; returns (model, history)."""
    model_, loader, optimizer = make(kind)
    model = model or model_
    val = Loader(*images(40, 1), 20, shuffle=False)
    history = fit(model, loader, optimizer, loss=classification(0.1), steps=steps, clip=1.0, progress=False, hooks=hooks,
                  schedule=options.pop("schedule", lambda step: 1 - step / steps),
                  evaluate=lambda: {f"val_{k}": v for k, v in evaluate(model, val.epoch(0)).items()}, **options)
    return model, history


def timeless(history):
    return [{k: v for k, v in record.items() if k not in ("seconds", "images_per_second")} for record in history]


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


class StopAt(Hook):
    """Ctrl-C (or another signal) in the middle of a training."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def on_step(self, run):
        if run.step == self.step:
            signal.raise_signal(self.number)


def test_history_and_learning():
    model, loader, optimizer = make()
    history = fit(model, loader, optimizer, loss=classification(), epochs=30, progress=False)
    assert [record["epoch"] for record in history] == list(range(1, 31))
    assert history[-1]["train_loss"] < 0.9 * history[0]["train_loss"]
    assert history.column("seconds") == sorted(history.column("seconds"))
    assert history.last("train_accuracy") > history[0]["train_accuracy"] and model.training


def test_epochs_may_be_a_fraction():
    _, history = train(steps=PER_EPOCH + 2)
    assert history.column("epoch") == [1, 1.5]


def test_two_runs_are_equal_bit_for_bit():
    (a, first), (b, second) = train(), train()
    assert timeless(first) == timeless(second) and same_weights(a, b)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("stop", [1, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 2, 3 * PER_EPOCH + 1])
def test_resume_is_as_if_nothing_had_happened(tmp_path, kind, stop):
    path = tmp_path / "c.safetensors"
    straight, expected = train(kind)
    with pytest.raises(Interrupted, match=f"after step {stop} of") as caught:
        train(kind, hooks=[StopAt(stop)], checkpoint=path)
    assert caught.value.checkpoint == path
    resumed, history = train(kind, checkpoint=path, resume=True)
    assert timeless(history) == timeless(expected) and same_weights(straight, resumed)


def test_resume_after_an_epoch_and_when_all_is_done(tmp_path):
    path = tmp_path / "c.safetensors"
    straight, expected = train(checkpoint=path)
    again, history = train(checkpoint=path, resume=True)
    assert list(history) == list(expected) and same_weights(straight, again)


def test_stopped_twice(tmp_path):
    path = tmp_path / "c.safetensors"
    straight, expected = train()
    for stop in (3, 9):
        with pytest.raises(Interrupted):
            train(hooks=[StopAt(stop)], checkpoint=path, resume=True)
    resumed, history = train(checkpoint=path, resume=True)
    assert timeless(history) == timeless(expected) and same_weights(straight, resumed)


def test_stopped_while_evaluating(tmp_path):
    path = tmp_path / "c.safetensors"
    straight, expected = train()
    model, loader, optimizer = make()

    def evaluate_and_stop():
        signal.raise_signal(signal.SIGINT)
        return {}

    with pytest.raises(Interrupted):
        fit(model, loader, optimizer, loss=classification(0.1), steps=14, clip=1.0, progress=False, checkpoint=path,
            schedule=lambda step: 1 - step / 14, evaluate=evaluate_and_stop)
    resumed, history = train(checkpoint=path, resume=True)
    assert timeless(history) == timeless(expected) and same_weights(straight, resumed)


def test_sigterm_saves_too_and_handlers_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(hooks=[StopAt(2, signal.SIGTERM)], checkpoint=tmp_path / "c.safetensors")
    assert load_checkpoint(tmp_path / "c.safetensors")["step"] == 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_without_a_checkpoint_a_stop_is_still_a_stop():
    with pytest.raises(KeyboardInterrupt) as caught:
        train(hooks=[StopAt(2)])
    assert caught.value.checkpoint is None


def test_stopping_at_once_does_not_end_the_step():
    with stopping_at_once(), pytest.raises(KeyboardInterrupt) as caught:
        train(hooks=[StopAt(2)])
    assert not isinstance(caught.value, Interrupted)


def test_stopping_at_once_survives_an_exception_that_python_drops():
    class StopInACallback(StopAt):
        def on_step(self, run):
            with contextlib.suppress(KeyboardInterrupt):
                super().on_step(run)

    with stopping_at_once(), pytest.raises(KeyboardInterrupt):
        train(hooks=[StopInACallback(2)])


def test_average_of_weights_is_evaluated_and_resumed(tmp_path):
    def run(**options):
        model, loader, optimizer = make()
        ema = optim.EMA(model, 0.8)
        seen = []
        fit(model, loader, optimizer, loss=classification(), steps=10, progress=False, ema=ema,
            evaluate=lambda: seen.append(model.head.weight.numpy().copy()) or {}, **options)
        return model, seen

    straight, seen = run()
    assert not np.array_equal(seen[-1], straight.head.weight.numpy())
    path = tmp_path / "c.safetensors"
    with pytest.raises(Interrupted):
        run(hooks=[StopAt(5)], checkpoint=path)
    resumed, rest = run(checkpoint=path, resume=True)
    assert same_weights(straight, resumed)
    np.testing.assert_array_equal(rest[-1], seen[-1])


def test_schedule_scales_the_rate_of_every_group_and_leaves_it_as_it_was():
    model, loader, _ = make()
    optimizer = optim.SGD([{"params": list(model.parameters())[:2], "lr": 0.2}, {"params": list(model.parameters())[2:]}],
                          lr=0.1)
    rates = []

    class Note(Hook):
        def on_step(self, run):
            rates.append([group["lr"] for group in run.optimizer.param_groups])

    fit(model, loader, optimizer, loss=classification(), steps=3, progress=False, hooks=[Note()],
        schedule=lambda step: 1 / (1 + step))
    np.testing.assert_allclose(rates, [[0.2, 0.1], [0.1, 0.05], [0.2 / 3, 0.1 / 3]])
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.1]


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(("value", "word"), [(math.nan, "nan"), (math.inf, "inf")])
def test_a_loss_that_is_no_number_stops_and_says_where(value, word, clip, tmp_path):
    model, loader, optimizer = make()
    path = tmp_path / "c.safetensors"

    def loss(model, batch):
        loss.calls += 1
        value_ = classification()(model, batch)[0]
        return value_ * (value if loss.calls == PER_EPOCH + 2 else 1.0)

    loss.calls = 0
    with pytest.raises(TrainingError, match=f"loss became {word} in epoch 2, step 2 of 4 ") as caught:
        fit(model, loader, optimizer, loss=loss, epochs=3, progress=False, checkpoint=path, clip=clip)
    assert "\n" not in str(caught.value)
    assert load_checkpoint(path)["step"] == PER_EPOCH


def test_a_gradient_that_is_no_number_stops_and_says_where():
    model, loader, optimizer = make()
    model.head.weight.register_hook(lambda g: g * math.nan)
    with pytest.raises(TrainingError, match=r"in epoch 1, step 1 of 4 \(step 1 in all\): the gradient of parameter"):
        fit(model, loader, optimizer, loss=classification(), epochs=1, progress=False, clip=1.0)


def test_other_tasks_than_images_and_labels():
    """Batches are dicts of two views, the loader is a list, the loss has no metrics."""
    rng = np.random.default_rng(0)
    batches = [{"a": rng.standard_normal((6, 4)).astype(np.float32), "b": rng.standard_normal((6, 4)).astype(np.float32)}
               for _ in range(3)]
    model = nn.Linear(4, 2, rng=rng)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def views_agree(model, batch):
        difference = model(batch["a"]) - model(batch["b"])
        return (difference * difference).mean()

    history = fit(model, batches, optimizer, loss=views_agree, epochs=4, progress=False)
    assert len(history) == 4 and history[-1]["train_loss"] < history[0]["train_loss"]
    assert set(history[0]) == {"epoch", "train_loss", "images_per_second", "seconds"}


def test_hooks_are_called_and_remembered(tmp_path):
    class Count(Hook):
        def __init__(self):
            self.steps, self.calls = 0, []

        def on_start(self, run): self.calls.append("start")
        def on_epoch(self, run, record): record["steps"] = self.steps
        def on_end(self, run): self.calls.append("end")
        def on_step(self, run): self.steps += 1
        def state_dict(self): return {"steps": self.steps}
        def load_state_dict(self, state): self.steps = state["steps"]

    first, second = Count(), Count()
    with pytest.raises(Interrupted):
        train(hooks=[first, StopAt(6)], checkpoint=tmp_path / "c")
    _, history = train(hooks=[second], checkpoint=tmp_path / "c", resume=True)
    assert history.column("steps") == [4, 8, 12, 14] and second.calls == ["start", "end"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "c"
    train(steps=4, checkpoint=path, config={"seed": 0})
    with pytest.raises(CheckpointError, match="seed was 0 there and is 1 now"):
        train(steps=4, checkpoint=path, config={"seed": 1}, resume=True)
    with pytest.raises(CheckpointError, match="another model or optimiser") as caught:
        train(steps=4, checkpoint=path, config={"seed": 0}, resume=True, model=Tiny(width=6))
    assert "\n" not in str(caught.value)


def test_training_on_after_the_end(tmp_path):
    path = tmp_path / "c"
    constant = {"schedule": lambda step: 1.0, "checkpoint": path}
    straight, expected = train(steps=12, schedule=lambda step: 1.0)
    train(steps=8, **constant)
    longer, history = train(steps=12, **constant, resume=True)
    assert timeless(history) == timeless(expected) and same_weights(straight, longer)
    train(steps=6, **constant)
    with pytest.raises(CheckpointError, match="ended inside an epoch"):
        train(steps=12, **constant, resume=True)


@pytest.mark.parametrize(("options", "message"), [
    ({}, "one of epochs= and steps="),
    ({"epochs": 1, "steps": 3}, "one of epochs= and steps="),
    ({"epochs": 0}, "at least one step"),
    ({"steps": -2}, "at least one step"),
])
def test_arguments_that_make_no_sense(options, message):
    model, loader, optimizer = make()
    with pytest.raises(ValueError, match=message):
        fit(model, loader, optimizer, loss=classification(), progress=False, **options)


def test_a_loader_that_breaks_its_promise():
    class Short(list):
        def __len__(self):
            return 5

    model, loader, optimizer = make()
    with pytest.raises(ValueError, match=r"promised 5 batches \(its len\) and gave 4"):
        fit(model, Short(loader.epoch(0)), optimizer, loss=classification(), epochs=1, progress=False)
    with pytest.raises(ValueError, match="no batch"):
        fit(model, [], optimizer, loss=classification(), epochs=1, progress=False)


def test_evaluate_counts_right_and_keeps_the_mode():
    class Fixed(nn.Module):
        def forward(self, x):
            assert not self.training and not tv.is_grad_enabled()
            return tv.tensor(np.eye(5, dtype=np.float32)[x[:, 0, 0, 0].astype(int)] * 5)

    x = np.zeros((4, 3, 2, 2), np.float32)
    x[:, 0, 0, 0] = [0, 1, 2, 3]
    labels = np.array([0, 1, 2, 4])
    model = Fixed()
    found = evaluate(model, [(x[:3], labels[:3]), (x[3:], labels[3:])])
    assert found["accuracy"] == 0.75 and model.training
    logits = np.eye(5)[[0, 1, 2, 3]] * 5
    expected = np.mean(np.log(np.exp(logits).sum(1)) - logits[range(4), labels])
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="no image"):
        evaluate(model, [])


def test_plain_progress(capsys, monkeypatch):
    monkeypatch.setattr("tinyvit.training.progress.PLAIN_EVERY", 0.0)
    monkeypatch.setattr("tinyvit.training.loop.READ_EVERY", 0.0)
    model, loader, optimizer = make()
    fit(model, loader, optimizer, loss=classification(), epochs=2, evaluate=lambda: {"val_accuracy": 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and max(map(len, lines)) <= 80
    assert lines[0].startswith("epoch 1 step 1/4 loss ") and lines[0].endswith(" left") and "img/s" in lines[0]
    assert lines[9].startswith("epoch 2") and "val 50.0 %" in lines[9]


def test_moving_progress():
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    from tinyvit.training import Progress

    screen = Terminal()
    model, loader, optimizer = make()
    fit(model, loader, optimizer, loss=classification(), epochs=2, progress=Progress("tiny   ", screen))
    shown = [line for piece in screen.getvalue().split("\n") for line in piece.split("\r")]
    assert any("epoch 2 step 4/4" in line for line in shown) and max(len(line) for line in shown) <= 80
    assert sum(line.startswith("tiny   epoch 1 ") and "img/s" in line for line in shown) >= 1
