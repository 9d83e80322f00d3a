"""Figures: of the promised size, with something in them, whole or not there."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from tinyvit import plots


def results(models=2, official=True, records=4, test=True):
    history = [{"epoch": i + 1, "train_loss": 2.3 / (i + 1), "val_accuracy": 0.1 + 0.1 * i, "seconds": 20.0 * (i + 1)}
               for i in range(records)]
    return {"data": {"name": "cifar10", "official": official, "train": 45_000, "val": 1000, "test": 10_000},
            "models": [{"name": name, "params": 270_000, "gflop_forward": 0.08, "epochs": records, "seconds": 80.0,
                        "images_per_second": 300.0, "val_accuracy": 0.6, "test_accuracy": 0.5 if test else None,
                        "history": history} for name in ("vit", "resnet", "something else", "pretrained")[:models]],
            "environment": {}, "seed": 0, "command": ""}


@pytest.mark.parametrize("options", [{}, {"models": 1, "records": 1}, {"models": 4, "official": False},
                                     {"test": False}, {"records": 300}])
def test_size_and_ink(tmp_path, options):
    given = results(**options)
    for draw, shape in ((plots.accuracy_comparison, (900, 1600)), (plots.training_curves, (1000, 1600))):
        path = tmp_path / f"{draw.__name__}.png"
        draw(given, path)
        image = imread(path)
        assert image.shape[:2] == shape
        blue = np.abs(image[..., :3] - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
        assert blue.sum() > 50
    assert sorted(p.name for p in tmp_path.iterdir()) == ["accuracy_comparison.png", "training_curves.png"]


def test_height_of_a_bar(tmp_path):
    """60 % of the way from 0 to 100: the tallest bar's top is where it should be, measured from the axis' grid."""
    heights = {}
    for accuracy in (0.3, 0.6):
        given = results(models=1)
        given["models"][0].update(val_accuracy=accuracy, test_accuracy=0.0)
        plots.accuracy_comparison(given, tmp_path / "a.png")
        image = imread(tmp_path / "a.png")
        blue = np.abs(image[..., :3] - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
        rows = np.flatnonzero(blue.sum(axis=1) > 100)
        heights[accuracy] = rows.max() - rows.min()
    assert heights[0.6] / heights[0.3] == pytest.approx(2.0, abs=0.05)


def test_data_that_are_not_official_look_different(tmp_path):
    plots.accuracy_comparison(results(), tmp_path / "a.png")
    plots.accuracy_comparison(results(official=False), tmp_path / "b.png")
    a, b = imread(tmp_path / "a.png")[..., :3], imread(tmp_path / "b.png")[..., :3]
    warning = np.array([0xB0, 0x00, 0x20]) / 255
    assert (np.abs(b - warning).max(axis=2) < 0.02).sum() > 100 > (np.abs(a - warning).max(axis=2) < 0.02).sum()


def test_an_old_figure_stays_when_drawing_fails(tmp_path):
    path = tmp_path / "a.png"
    plots.accuracy_comparison(results(), path)
    before = path.read_bytes()
    with pytest.raises(KeyError):
        plots.accuracy_comparison({"models": []}, path)
    assert path.read_bytes() == before


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, tinyvit.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
