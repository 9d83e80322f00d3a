"""The demo: its contract with those who run it and read its files."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from tinyvit import demo
from tinyvit.data import DataError, Dataset, shapes
from tinyvit.training import History, Progress, load_checkpoint
from tinyvit.training.budget import Cost
from tinyvit.training.contestant import Contestant, Images, compile_kernels
from tinyvit.training.recipes import WIDE_FROM, recipes

has_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture(scope="module")
def tiny_data():
    """Few images, so that an epoch takes a moment."""
    images, labels, _ = shapes.generate(160, 0)
    test_images, test_labels, _ = shapes.generate(40, 1)
    return Dataset("shapes", images, labels, test_images, test_labels, shapes.CLASSES, official=True, note="few shapes")


@pytest.fixture
def run(tiny_data, monkeypatch, tmp_path, capsys):
    """Run the command in this process on the tiny data; returns (exit code, out lines, err lines)."""
    monkeypatch.setattr(demo, "load", lambda name: tiny_data)
    monkeypatch.setattr(demo, "recipes", lambda *args: {k: replace(r, batch=32) for k, r in recipes(*args).items()})

    def run(*arguments, out=tmp_path / "out"):
        code = demo.main([*map(str, arguments), "--out", str(out)])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    run.out = tmp_path / "out"
    return run


def results(run):
    return json.loads((run.out / "results.json").read_text())


def timeless(found):
    """What must be equal in two runs."""
    return [[{k: v for k, v in record.items() if k != "seconds"} for record in model["history"]] for model in found["models"]]


def test_files_and_schema(run):
    code, out, err = run("--epochs", 1.5, "--seed", 3)
    assert code == 0 and not err and out[-1] == str(run.out) and max(map(len, out[:-1])) <= 80
    assert {p.name for p in run.out.iterdir()} == {"vit_accuracy_comparison.png", "vit_training_curves.png", "results.json",
                                                   "vit.safetensors", "resnet.safetensors"}
    found = results(run)
    assert set(found) == {"data", "models", "environment", "seed", "command"}
    assert found["data"] == {"name": "shapes", "official": False, "train": 134, "val": 26, "test": 40}
    assert found["seed"] == 3 and found["command"].startswith("python -m tinyvit.demo --epochs 1.5 --seed 3")
    assert [m["name"] for m in found["models"]] == ["vit", "resnet"]
    for m in found["models"]:
        assert set(m) == {"name", "params", "gflop_forward", "epochs", "seconds", "images_per_second", "val_accuracy",
                          "test_accuracy", "history"}
        assert m["epochs"] == 1.5 and [h["epoch"] for h in m["history"]] == [1, 1.5]
        assert all(set(h) == {"epoch", "train_loss", "val_accuracy", "seconds"} for h in m["history"])
        assert m["val_accuracy"] == m["history"][-1]["val_accuracy"] and 0 <= m["test_accuracy"] <= 1
        assert all(math.isfinite(v) and v > 0 for v in (m["params"], m["gflop_forward"], m["seconds"], m["images_per_second"]))
    assert found["models"][0]["gflop_forward"] == pytest.approx(0.045, abs=0.002)
    assert found["models"][1]["params"] == pytest.approx(0.27e6, rel=0.03)
    assert imread(run.out / "vit_accuracy_comparison.png").shape[:2] == (900, 1600)
    text = "\n".join(out)
    assert "NOT THE OFFICIAL CIFAR-10: few shapes" in text and "val acc" in text and str(run.out) in text


def test_same_seed_same_history_and_stopping_leaves_no_trace(run, monkeypatch):
    assert run("--epochs", 2, "--subset", 100, "--models", "vit,resnet")[0] == 0
    straight = results(run)
    assert run("--epochs", 2, "--subset", 100, "--models", "resnet,vit")[0] == 0
    other_order = results(run)
    assert timeless(straight) == timeless(other_order)[::-1]

    old, calls = Progress.on_step, []

    def stop(self, progress):
        calls.append(progress.step)
        if len(calls) in (3, 7):
            signal.raise_signal(signal.SIGINT)
        old(self, progress)

    monkeypatch.setattr(Progress, "on_step", stop)
    arguments = ("--epochs", 2, "--subset", 100)
    (run.out / "results.json").unlink()
    for extra in ([], ["--resume"]):
        code, _, err = run(*arguments, *extra)
        assert code == 1 and not (run.out / "results.json").exists()
        assert err[-1].startswith("continue with: python -m tinyvit.demo --epochs 2 --subset 100") and "--resume" in err[-1]
    code, out, _ = run(*arguments, "--resume")
    assert code == 0 and any(line.startswith("resuming") for line in out)
    assert timeless(results(run)) == timeless(straight)


def test_minutes_are_divided(run, monkeypatch):
    """With costs that are made up: all of the time is given out, and no more, whatever was used on the way."""
    asked, clock = {}, [100.0]

    def train(contestant, steps, *, hooks, **options):
        asked[contestant.name] = steps, hooks[0].seconds
        contestant.history = History([{"epoch": 2, "train_loss": 1.0, "val_accuracy": 0.5, "images_per_second": 9.0,
                                       "seconds": 1.0}])
        clock[0] += 0.9 * hooks[0].seconds

    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Contestant, "warm_up", lambda self, timed: Cost(0.5, 50, 2.0, 10.0))
    monkeypatch.setattr(Contestant, "train", train)
    code, out, err = run("--minutes", 10)
    assert code == 0 and not err and sum(line.startswith("plan") for line in out) == 2
    left = 600 - demo.WRITING - 20  # without writing and two tests
    shares = {name: recipe.share for name, recipe in recipes("quick", 10).items()}
    part = left * shares["vit"] / (shares["vit"] + shares["resnet"])
    assert asked["vit"][1] == pytest.approx(demo.PLANNED * part)
    used = 0.9 * demo.PLANNED * part
    assert asked["resnet"][1] == pytest.approx(demo.PLANNED * (left - used + 10))  # (the made-up ViT took no time for its test)
    for steps, seconds in asked.values():
        assert 0.98 * seconds < Cost(0.5, 50, 2.0).seconds(steps) <= seconds


def test_a_time_that_is_too_short_is_said(run):
    code, out, err = run("--minutes", 0.001, "--models", "resnet")
    assert code == 0, err
    assert any("too short" in line for line in out)


def test_tune_holds_out_others_and_looks_at_no_test(run):
    code, out, _ = run("--epochs", 0.5, "--models", "resnet", "--tune")
    found = results(run)
    assert code == 0 and found["data"]["test"] == 0 and found["data"]["train"] == 108
    assert found["models"][0]["test_accuracy"] is None and out[-4].rstrip().endswith("-")


def test_resume_with_other_arguments_or_a_damaged_file(run):
    arguments = ("--epochs", 0.5, "--models", "resnet")
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments, "--seed", 1, "--resume")
    assert code == 1 and len(err) == 1 and "seed was 0 there and is 1 now" in err[0]
    path = run.out / "resnet.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    code, _, err = run(*arguments, "--resume")
    assert code == 1 and len(err) == 1 and err[0].startswith("error: ") and "damaged" in err[0]


def test_resume_of_nothing_starts(run):
    code, out, _ = run("--epochs", 0.5, "--models", "resnet", "--resume")
    assert code == 0 and any("nothing" in line for line in out if line.startswith("resuming"))


@pytest.mark.parametrize("arguments", [
    ["--preset", "fast"], ["--models", "vit,alexnet"], ["--models", ","], ["--models", "vit,vit"], ["--minutes", "0"],
    ["--minutes", "-1"], ["--minutes", "nan"], ["--minutes", "soon"], ["--epochs", "0"], ["--epochs", "inf"],
    ["--subset", "0"], ["--subset", "2.5"], ["--subset", "100000"], ["--seed", "-1"], ["--seed", "x"],
    ["--backend", "torch"], ["--models", "pretrained"], ["--weights", "w.npz"], ["--nonsense"], ["stray"], ["--out"],
])
def test_bad_arguments_are_one_line_and_code_2(tiny_data, monkeypatch, arguments, tmp_path, capsys):
    monkeypatch.setattr(demo, "load", lambda name: tiny_data)
    code = demo.main(["--out", str(tmp_path / "new"), *arguments])
    captured = capsys.readouterr()
    assert code == 2 and captured.err.startswith("error: ") and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize("arguments", [["--preset", "fast"], ["--data", "/no/such/folder"], ["--subset", "-3"]])
def test_bad_arguments_from_outside(arguments, tmp_path):
    done = subprocess.run([sys.executable, "-m", "tinyvit.demo", *arguments, "--out", str(tmp_path / "out")],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_out_that_cannot_be_written_is_found_before_training(run, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = run("--epochs", 1, out=tmp_path / "file" / "out")
    assert code == 2 and not out and len(err) == 1 and "--out" in err[0]


def test_damaged_data_are_an_error_of_code_1_in_auto_and_2_when_named(run, monkeypatch):
    def broken(name):
        raise DataError("data_batch_1.bin is truncated")

    monkeypatch.setattr(demo, "load", broken)
    assert run("--epochs", 1)[0] == 1
    code, _, err = run("--epochs", 1, "--data", "/some/folder")
    assert code == 2 and err == ["error: data_batch_1.bin is truncated"]


def test_debug_shows_the_traceback(run, monkeypatch):
    def broken(name):
        raise DataError("data_batch_1.bin is truncated")

    monkeypatch.setattr(demo, "load", broken)
    with pytest.raises(DataError):
        run("--debug")


@has_numba
def test_new_kernels_are_compiled_before_anything_is_measured(run, monkeypatch):
    monkeypatch.setattr(demo, "_kernels_are_new", lambda: True)
    code, out, err = run("--epochs", 0.3)
    assert code == 0 and not err
    begin, end = (next(i for i, line in enumerate(out) if text in line) for text in ("compiling, once", "compiled in"))
    assert begin + 1 == end < next(i for i, line in enumerate(out) if line.startswith("vit "))


@has_numba
def test_compiling_reports_a_process_that_failed(tiny_data, capfd):
    images = Images(tiny_data, np.arange(100), np.arange(100, 140))
    good, other = recipes("quick", 3.0).values()
    assert compile_kernels({"vit": good}, images) == []
    assert compile_kernels({"vit": good, "resnet": replace(other, model="no-such")}, images) == ["resnet"]
    assert "no-such" in capfd.readouterr().err


@has_numba
def test_without_a_cache_all_is_compiled_in_this_process(tiny_data, monkeypatch):
    monkeypatch.setattr("tinyvit.backend._cache_folder", lambda: None)
    built = []
    monkeypatch.setattr(Contestant, "warm_up", lambda self: built.append(self.name))
    assert compile_kernels(recipes("quick", 3.0), Images(tiny_data, np.arange(100), np.arange(100, 140))) == []
    assert built == ["vit", "resnet"]


def test_presets():
    assert recipes("quick", WIDE_FROM - 0.1)["vit"].model == "cifar-quick"
    assert recipes("quick", WIDE_FROM)["vit"].model == "cifar" == recipes("chapter", None)["vit"].model
    assert recipes("chapter", None)["resnet"].model == "resnet18" and demo.parse(["--preset", "chapter"]).epochs == 3
    assert demo.parse([]).minutes == 3 and demo.parse(["--preset", "best"]).minutes > 10
    assert demo.parse(["--epochs", "2"]).minutes is None


def test_validation_is_smaller_below_ten_minutes(monkeypatch):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (9000, 3, 32, 32), dtype=np.uint8), np.arange(9000) % 10
    data = Dataset("cifar10", images, labels, images[:10], labels[:10], tuple("abcdefghij"), official=True, note="")
    monkeypatch.setattr(demo, "load", lambda name: data)
    sizes = {m: len(demo._choose_images(demo.parse(["--minutes", str(m)])).val) for m in (3, 9.9, 10, 60)}
    assert sizes == {3: 1000, 9.9: 1000, 10: 1500, 60: 1500}


@pytest.mark.skipif(os.name == "nt", reason="signals are sent the way of Unix")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_from_outside(tmp_path, number):
    """A real process, a real signal, in the middle of training; then resumed."""
    command = [sys.executable, "-u", "-m", "tinyvit.demo", "--data", "shapes", "--models", "vit", "--subset", "256", "--epochs",
               "40", "--backend", "numpy", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("vit") and "epoch 1 " in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "Traceback" not in err
    assert "continue with: python -m tinyvit.demo" in err and "--resume" in err
    state = load_checkpoint(tmp_path / "out" / "vit.safetensors")
    assert 2 <= state["step"] < state["steps"]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"vit.safetensors"}
