"""`python -m tinyvit.demo`: a ViT and a ResNet trained on the same images, compared in a table and two figures."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import platform
import shlex
import signal
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__, backend, plots
from .data import DataError, DataWarning, load
from .training.budget import Cost, Pace, share
from .training.checkpoint import load_checkpoint
from .training.contestant import Contestant, Images, compile_kernels
from .training.files import why_not_writable, write_json
from .training.interrupt import Interrupted
from .training.recipes import MODELS, PRESETS, Recipe, recipes

BUDGET = 3.0  # minutes, where neither --minutes nor --epochs is given
CHAPTER_EPOCHS, BEST_MINUTES = 3.0, 60.0
SMALL_VALIDATION, SMALL_BELOW = 1000, 10.0  # validation images of a budget below that many minutes
WRITING = 4.0  # seconds for figures and results
PLANNED = 0.97  # part of a model's time that is planned for; the rest is for a machine that slows down
LEAST_STEPS, MOST_EPOCHS = 20, 200  # whatever the time
MEASURED = 2.0  # seconds of training steps that a plan is made from
SETS = ("auto", "cifar10", "shapes")


class UsageError(Exception):
    """Bad arguments: one line, exit code 2."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(f"{message} (see python -m tinyvit.demo --help)")


def _positive(kind: type):
    def convert(text: str):
        value = kind(text)
        if not (math.isfinite(value) and value > 0):
            raise ValueError
        return value

    convert.__name__ = f"positive {'whole number' if kind is int else 'number'}"  # what argparse calls it in its error
    return convert


def _seed(text: str) -> int:
    if int(text) < 0:
        raise ValueError
    return int(text)


_seed.__name__ = "seed (a whole number from 0)"


def _model_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(f"unknown model {name!r}: the models are {', '.join(MODELS)}")
    if not names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} should name one or more different models, as in vit,resnet")
    return names


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options. Raises UsageError for those that make no sense."""
    p = _Parser(prog="python -m tinyvit.demo", description=__doc__, allow_abbrev=False)
    add = p.add_argument
    add("--data", default="auto", metavar="auto|cifar10|shapes|DIR",
        help="which images (default: auto: CIFAR-10, else an offline set)")
    add("--minutes", type=_positive(float), metavar="M", help=f"time for everything (default: {BUDGET:g})")
    add("--epochs", type=_positive(float), metavar="E", help="train each model for E epochs, however long that takes")
    add("--preset", choices=PRESETS, default="quick", help="which models and settings (default: quick)")
    add("--models", type=_model_names, default="vit,resnet", metavar="NAMES", help="default: vit,resnet")
    add("--subset", type=_positive(int), metavar="N", help="train on N images only")
    add("--seed", type=_seed, default=0, metavar="S", help="the same seed gives the same result (default: 0)")
    add("--backend", choices=("auto", *backend.BACKENDS), default="auto", help="auto: a GPU if there is one, else numba")
    add("--resume", action="store_true", help="continue the run in --out where it was stopped")
    add("--tune", action="store_true",
        help="validate on other images, to choose settings without a look at the validation and test images")
    add("--weights", metavar="FILE", help="weights for --models pretrained")
    add("--out", default="runs/demo", metavar="DIR", help="where figures and results go (default: runs/demo)")
    add("--debug", action="store_true", help="show a traceback where something fails")
    options = p.parse_args(arguments)
    if options.weights is not None or "pretrained" in options.models:
        raise UsageError("this version cannot read pretrained weights yet: leave out --weights and 'pretrained'")
    if options.epochs is None and options.minutes is None:
        if options.preset == "chapter":
            options.epochs = CHAPTER_EPOCHS
        else:
            options.minutes = BEST_MINUTES if options.preset == "best" else BUDGET
    options.started = time.perf_counter()
    options.command = shlex.join(["python", "-m", "tinyvit.demo", *arguments])
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with _sigterm_like_ctrl_c():
            compare(parse(arguments))
    except KeyboardInterrupt as stop:
        saved = isinstance(stop, Interrupted) and stop.checkpoint is not None
        print(f"\n{stop if saved else 'stopped: nothing was trained'}", file=sys.stderr)
        return 1
    except Exception as error:
        if "--debug" in arguments:
            raise
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


@contextlib.contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def compare(options: argparse.Namespace) -> None:
    """Everything: choose, plan, train, test, write."""
    out = Path(options.out)
    if reason := why_not_writable(out):
        raise UsageError(f"cannot write to --out {out}: {reason.lower()}; choose a folder you can write to")
    _choose_backend(options.backend)
    images = _choose_images(options)
    chosen = recipes(options.preset, options.minutes, backend.current() == "cupy")
    _print_header(options, images)
    if _kernels_are_new():
        _compile({name: chosen[name] for name in options.models}, images)
    contestants = [Contestant(name, chosen[name], images, options.seed) for name in options.models]
    _print_models(options, contestants)
    if not options.resume:
        for name in MODELS:
            _checkpoint(out, name).unlink(missing_ok=True)
    try:
        results = [_train(contestant, steps, hooks, options, images)
                   for contestant, steps, hooks in _schedule(contestants, options)]
    except KeyboardInterrupt as stop:
        if not any(_checkpoint(out, name).exists() for name in options.models):
            raise
        what = stop if isinstance(stop, Interrupted) and stop.checkpoint is not None else "stopped"
        resume = "" if options.resume else " --resume"
        raise Interrupted(f"{what}\ncontinue with: {options.command}{resume}", out) from None
    _write(results, options, images, out)


def _checkpoint(out: Path, name: str) -> Path:
    return out / f"{name}.safetensors"


# ---------------------------------------------------------------------------------------------- choices


def _choose_backend(name: str) -> None:
    try:
        if name != "auto":
            backend.use(name)
        elif "TINYVIT_BACKEND" not in os.environ and importlib.util.find_spec("cupy") is not None:
            with contextlib.suppress(backend.BackendError):  # CuPy without a GPU: what is in use stays
                backend.use("cupy")
    except backend.BackendError as error:
        raise UsageError(str(error)) from None


def _choose_images(options: argparse.Namespace) -> Images:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the header says it louder
            data = load(options.data)
    except DataError as error:
        if options.data not in SETS:
            raise UsageError(str(error)) from None
        raise
    train, val = data.split(tune=options.tune)
    if options.subset is not None:
        try:
            train = data.subset(options.subset, options.seed, tune=options.tune)
        except ValueError as error:
            raise UsageError(f"--subset: {error}") from None
    if options.minutes is not None and options.minutes < SMALL_BELOW:
        val = val[:SMALL_VALIDATION]
    return Images(data, train, val, test=not options.tune)


# ---------------------------------------------------------------------------------------------- time


def _schedule(contestants: list[Contestant], options: argparse.Namespace) -> Iterator[tuple[Contestant, int, list[Pace]]]:
    """Each contestant when its turn comes, the number of its steps, and the guard of its time if there is a budget."""
    out = Path(options.out)
    saved = {c.name: load_checkpoint(_checkpoint(out, c.name)) for c in contestants
             if options.resume and _checkpoint(out, c.name).exists()}
    if options.resume:
        print(f"resuming  {', '.join(saved) if saved else f'nothing: {out} has no checkpoint of these models'}")
    if options.epochs is not None:
        for c in contestants:
            if c.name not in saved:
                c.warm_up()
            yield c, max(1, round(options.epochs * len(c.loader))), []
        return

    spent = sum(state["seconds"] for state in saved.values())
    costs = {c.name: c.warm_up(MEASURED) for c in contestants if c.name not in saved}

    def parts() -> dict[str, float]:
        left = 60 * options.minutes - spent - (time.perf_counter() - options.started) - WRITING
        return share(left, costs, {c.name: c.recipe.share for c in contestants})

    plan = {name: _steps(costs[name], part) for name, part in parts().items()}
    _print_plan(options, plan, costs)
    for c in contestants:
        if c.name in saved:
            yield c, saved[c.name]["asked_steps"], [Pace(math.inf, Cost(0.0, len(c.loader), 0.0), 0)]
        else:
            part = parts()[c.name]
            cost = costs.pop(c.name)
            yield c, _steps(cost, part), [Pace(PLANNED * (part - cost.test), cost, MOST_EPOCHS * cost.steps_per_epoch,
                                               say=lambda line: print(line, flush=True))]


def _steps(cost: Cost, seconds: float) -> int:
    steps = cost.steps(PLANNED * (seconds - cost.test) + cost.test)
    return max(LEAST_STEPS, min(steps, MOST_EPOCHS * cost.steps_per_epoch))


def _kernels_are_new() -> bool:
    if backend.current() != "numba":
        return False
    folder = backend._cache_folder()
    return folder is None or not any(folder.glob("**/*.nbc"))


def _compile(chosen: dict[str, Recipe], images: Images) -> None:
    begun = time.perf_counter()
    _print_pair("kernels", "compiling, once for all runs: a minute or two ...")
    for name in compile_kernels(chosen, images):
        _print_pair("", f"the process that compiled for {name} failed: its kernels are compiled on the way")
    _print_pair("", f"compiled in {time.perf_counter() - begun:.0f} s")


# ---------------------------------------------------------------------------------------------- training, results


def _train(contestant: Contestant, steps: int, hooks: list[Pace], options: argparse.Namespace,
           images: Images) -> dict[str, Any]:
    config = {"model": contestant.name, "recipe": contestant.recipe.as_dict(), "data": images.data.name,
              "train": len(images.train), "val": len(images.val), "preset": options.preset, "minutes": options.minutes,
              "epochs": options.epochs, "subset": options.subset, "seed": options.seed, "tune": options.tune,
              "backend": backend.current()}
    contestant.train(steps, checkpoint=_checkpoint(Path(options.out), contestant.name), resume=options.resume,
                     config=config, hooks=hooks, title=f"{contestant.name:7}")
    return contestant.result()


def _write(models: list[dict[str, Any]], options: argparse.Namespace, images: Images, out: Path) -> None:
    results = {
        "data": {"name": images.data.name, "official": images.official, "train": len(images.train),
                 "val": len(images.val), "test": images.test_size},
        "models": models,
        "environment": _environment(),
        "seed": options.seed,
        "command": options.command,
    }
    plots.accuracy_comparison(results, out / "vit_accuracy_comparison.png", chance=1 / len(images.data.classes))
    plots.training_curves(results, out / "vit_training_curves.png")
    write_json(out / "results.json", results)
    _print_table(models)
    print(f"\ndone in {(time.perf_counter() - options.started) / 60:.1f} minutes; figures and results.json are in\n{out}")


def _environment() -> dict[str, Any]:
    return {"tinyvit": __version__, "python": platform.python_version(), "numpy": np.__version__,
            "platform": platform.platform(), "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "backend": backend.current()}


# ---------------------------------------------------------------------------------------------- the terminal


def _print_header(options: argparse.Namespace, images: Images) -> None:
    data = images.data
    print(f"tinyvit {__version__}: {' against '.join(options.models)}, preset {options.preset}, seed {options.seed}, "
          f"backend {backend.current()}")
    if images.official:
        _print_pair("data", data.note)
    else:
        print("!" * 80)
        print("\n".join(textwrap.wrap(f"NOT THE OFFICIAL CIFAR-10: {data.note}", 80, initial_indent="!! ",
                                      subsequent_indent="!! ")))
        print("!" * 80)
    tests = f"{images.test_size:,} for the test" if images.test else "and no test, since --tune looks at none"
    _print_pair("images", f"{len(images.train):,} to train on, {len(images.val):,} for validation, {tests}")


def _print_models(options: argparse.Namespace, contestants: list[Contestant]) -> None:
    for c in contestants:
        _print_pair(c.name, f"{c.recipe.model}, {c.params / 1e6:.2f} M parameters, {c.gflop:.3f} GFLOP forward an image")
    if backend.current() == "cupy" and options.preset == "quick":
        _print_pair("", "larger models than on a CPU, since there is a GPU")
    if options.epochs is not None:
        _print_pair("plan", f"{options.epochs:g} epochs each, however long that takes")


def _print_plan(options: argparse.Namespace, plan: dict[str, int], costs: dict[str, Cost]) -> None:
    for name, steps in plan.items():
        epochs = f"{steps / costs[name].steps_per_epoch:.1f} epochs ({steps:,} steps)"
        _print_pair("plan", f"{name}: {epochs} in {costs[name].seconds(steps) / 60:.1f} of {options.minutes:g} minutes")
        if steps == LEAST_STEPS:
            _print_pair("", f"{options.minutes:g} minutes are too short: this goes over, and teaches the model little")


def _print_pair(label: str, text: str) -> None:
    print("\n".join(textwrap.wrap(text, 80, initial_indent=f"{label:10}", subsequent_indent=" " * 10)), flush=True)


def _print_table(models: list[dict[str, Any]]) -> None:
    print(f"\n{'model':12}{'params':>9}{'GFLOP':>8}{'epochs':>8}{'img/s':>8}{'minutes':>9}{'val acc':>10}{'test acc':>10}")
    for m in models:
        test = f"{100 * m['test_accuracy']:.1f} %" if m["test_accuracy"] is not None else "-"
        print(f"{m['name']:12}{m['params'] / 1e6:>7.2f} M{m['gflop_forward']:>8.3f}{m['epochs']:>8g}"
              f"{m['images_per_second']:>8.0f}{m['seconds'] / 60:>9.1f}{100 * m['val_accuracy']:>8.1f} %{test:>10}")


if __name__ == "__main__":
    sys.exit(main())
