"""Every figure. Each function takes plain results, writes one PNG and leaves no state in matplotlib.

Colours are Okabe and Ito's, which most colour-blind readers can tell apart, and never the only difference.
"""

from __future__ import annotations

import os
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
TITLES = {"vit": "ViT", "resnet": "ResNet", "pretrained": "pretrained ViT", "cifar10": "CIFAR-10",
          "shapes": "shapes (the offline set)"}
INK, PALE, WARNING = "#222222", "#707070", "#B00020"


def accuracy_comparison(results: dict[str, Any], path: str | os.PathLike, chance: float = 0.1) -> None:
    """Bars of validation and test accuracy per model, with size and time, to a PNG of 1600 × 900 at `path`.

    results: what `python -m tinyvit.demo` writes to results.json. chance: the accuracy of guessing, 1/K.
    """
    figure = _figure(10, 5.625)
    axes = figure.subplots()
    models = results["models"]
    for i, model in enumerate(models):
        colour = COLOURS[i % len(COLOURS)]
        for offset, key, fill in ((-0.19, "val_accuracy", colour), (0.19, "test_accuracy", _mixed_with_white(colour))):
            if model.get(key) is None:
                continue
            height = 100 * model[key]
            axes.bar(i + offset, height, 0.36, color=fill, edgecolor=colour, linewidth=1.5)
            above = {"textcoords": "offset points", "ha": "center"}
            axes.annotate(f"{height:.1f}", (i + offset, height), (0, 4), fontsize=16, fontweight="bold", color=INK,
                          **above)
            axes.annotate("validation" if key == "val_accuracy" else "test", (i + offset, 0), (0, 6), fontsize=11,
                          color="white" if key == "val_accuracy" else INK, **above)
    axes.axhline(100 * chance, color=INK, linestyle=(0, (4, 3)), linewidth=1.2, zorder=3)
    axes.annotate(f"guessing\n{100 * chance:.0f} %", (0, 100 * chance), (6, 5), textcoords="offset points",
                  xycoords=("axes fraction", "data"), fontsize=10, color=INK)
    axes.set_xticks(range(len(models)), [_label(model) for model in models], fontsize=11.5, color=INK)
    axes.set_xlim(-0.75, len(models) - 0.5)
    axes.set_ylim(0, 106)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("accuracy (%)", fontsize=13)
    axes.grid(axis="y", color="#dddddd")
    _titles(figure, "accuracy", results)
    _save(figure, path)


def training_curves(results: dict[str, Any], path: str | os.PathLike) -> None:
    """Validation accuracy and training loss of every model, by epochs and by minutes, to a PNG of 1600 × 1000."""
    figure = _figure(10, 6.25)
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    for i, model in enumerate(results["models"]):
        history = model["history"]
        style = {"label": _name(model), "color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)],
                 "markersize": 6, "markevery": max(1, len(history) // 20), "linewidth": 2, "clip_on": False}
        for row, (key, scale) in enumerate((("val_accuracy", 100), ("train_loss", 1))):
            known = [record for record in history if record.get(key) is not None]
            values = [scale * record[key] for record in known]
            grid[row, 0].plot([record["epoch"] for record in known], values, **style)
            grid[row, 1].plot([record["seconds"] / 60 for record in known], values, **style)
    for axes in grid.flat:
        axes.grid(color="#e4e4e4")
        axes.set_xlim(left=0)
    grid[0, 0].set_ylabel("validation accuracy (%)", fontsize=12)
    grid[1, 0].set_ylabel("training loss", fontsize=12)
    grid[0, 0].set_ylim(bottom=0)
    grid[1, 0].set_xlabel("epochs", fontsize=12)
    grid[1, 1].set_xlabel("minutes", fontsize=12)
    grid[0, 1].legend(loc="lower right", fontsize=12, frameon=True, framealpha=0.9, edgecolor="none")
    _titles(figure, "learning curves", results)
    _save(figure, path)


def _figure(width: float, height: float):
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), dpi=160, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12), facecolor="white")


def _titles(figure, what: str, results: dict[str, Any]) -> None:
    """Above: data, models and time. Below: the split, and loudly so if the figures cannot be compared with others'."""
    data = results["data"]
    time = _minutes(sum(model["seconds"] for model in results["models"]) / 60)
    name = TITLES.get(data["name"], data["name"])
    figure.suptitle(f"{name}: {what} after {time} of training", x=0.02, ha="left", fontsize=17,
                    fontweight="bold", color=INK)
    note = (f"{data['train']:,} training, {data['val']:,} validation, {data['test']:,} test images; "
            f"seed {results['seed']}")
    if not data["official"]:
        note = f"NOT the official CIFAR-10 data: not comparable with published figures.  {note}"
    figure.supxlabel(note, fontsize=10, color=PALE if data["official"] else WARNING, x=0.02, ha="left")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(PALE)
        axes.tick_params(colors=INK, length=0)
        axes.set_axisbelow(True)


def _label(model: dict[str, Any]) -> str:
    return (f"{_name(model)}\n{_millions(model['params'])} parameters, {model['gflop_forward']:.3f} GFLOP\n"
            f"{model['epochs']:g} {'epoch' if model['epochs'] == 1 else 'epochs'} in {_minutes(model['seconds'] / 60)}")


def _name(model: dict[str, Any]) -> str:
    return TITLES.get(model["name"], model["name"])


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"


def _minutes(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1 else f"{60 * minutes:.0f} seconds"


def _mixed_with_white(colour: str) -> str:
    channels = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.45 * (255 - c)):02x}" for c in channels)


def _save(figure, path: str | os.PathLike) -> None:
    from .training.files import replacing

    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
