"""Every demo runs to its end, offline and without arguments it needs, and leaves its picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMOS = sorted((ROOT / "demos").glob("[0-9]*.py"))
TRAINING = ("04_attention_map", "05_position_embeddings")
QUICK = ("--data", "shapes", "--steps", "2")
WITHOUT_PICTURE = {"02_gradcheck_catches_a_bug", "07_where_does_nan_come_from"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the demos that train run: one folder, since 05 looks into the ViT that 04 trained."""
    return tmp_path_factory.mktemp("demos")


def run(demo, folder, *arguments):
    setting = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "TINYVIT_BACKEND": "numpy"}  # nothing to compile
    setting |= dict.fromkeys(("DISPLAY", "MPLBACKEND", "TINYVIT_DATA"), "")
    return subprocess.run([sys.executable, "-W", "error", str(demo), *arguments], cwd=folder, env={**os.environ, **setting},
                          capture_output=True, encoding="utf-8", timeout=300, check=False)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.stem)
def test_demo(demo, folder, tmp_path):
    folder = folder if demo.stem in TRAINING else tmp_path
    done = run(demo, folder, *(QUICK if demo.stem in TRAINING else ()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    if demo.stem not in WITHOUT_PICTURE:
        pictures = list((folder / "runs" / "demos").glob(f"{demo.stem[:2]}_*.png"))
        assert len(pictures) == 1 and pictures[0].read_bytes().startswith(b"\x89PNG")
        assert str(pictures[0].relative_to(folder)) in done.stdout


def test_there_are_demos():
    assert len(DEMOS) >= 6
    for demo in DEMOS:
        text = demo.read_text(encoding="utf-8")
        assert text.startswith('"""') and text.count("\n# %% ") >= 4, f"{demo.name} has no cells"
        assert len(text.splitlines()) <= 110, f"{demo.name} is too long to show"
