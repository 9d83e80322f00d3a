"""Checkpoints: what goes in comes out, whole or not at all, and a damaged file is told from a good one."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tinyvit as tv
from tinyvit.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from tinyvit.training.files import replacing, why_not_writable, write_json


@pytest.fixture
def state():
    rng = np.random.default_rng(0)
    model = {"a.weight": rng.standard_normal((3, 4)).astype(np.float32), "scalar": np.array(2.5), "none": None}
    return {"model": model, "step": 7, "loss": 0.1 + 0.2, "generators": [rng.bit_generator.state],
            "empty": np.zeros((0, 3), np.float32), "nested": [{"m": np.arange(6).reshape(2, 3).T}, "text", True],
            "counts": np.int64(3)}


def test_comes_back_equal(tmp_path, state):
    save_checkpoint(tmp_path / "c.safetensors", state)
    back = load_checkpoint(tmp_path / "c.safetensors")
    assert back["step"] == 7 and back["loss"] == 0.1 + 0.2 and back["counts"] == 3 and back["model"]["none"] is None
    assert back["generators"] == state["generators"]
    assert back["nested"][1:] == ["text", True]
    for mine, theirs in ((back["model"]["a.weight"], state["model"]["a.weight"]), (back["empty"], state["empty"]),
                         (back["model"]["scalar"], np.array(2.5)), (back["nested"][0]["m"], state["nested"][0]["m"])):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_array_equal(mine, theirs)


def test_tensors_become_arrays(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", {"w": tv.tensor([1.0, 2.0], requires_grad=True)})
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "c.safetensors")["w"], [1.0, 2.0])


def test_other_tools_can_read_the_arrays(tmp_path, state):
    save_checkpoint(tmp_path / "c.safetensors", state)
    np.testing.assert_array_equal(load_file(tmp_path / "c.safetensors")["model/a.weight"], state["model"]["a.weight"])


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, state, monkeypatch):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, state)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, {"step": 8})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["c.safetensors"]


@pytest.mark.parametrize("value", [{1: 2}, {"f": print}, {"s": {1, 2}}])
def test_refuses_what_does_not_fit(tmp_path, value):
    with pytest.raises(TypeError, match="a checkpoint holds"):
        save_checkpoint(tmp_path / "c.safetensors", value)
    assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "none.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_file(tmp_path, state, keep):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, state)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [-1, -40, 300])
def test_one_changed_byte(tmp_path, state, place):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, state)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_weights_of_somebody_else_are_no_checkpoint(tmp_path):
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "w.safetensors")


def test_replacing_keeps_the_old_file_when_the_block_raises(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half(temporary):
        temporary.write_text("ne")
        raise RuntimeError

    with pytest.raises(RuntimeError), replacing(path) as temporary:
        half(temporary)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_why_not_writable(tmp_path):
    assert why_not_writable(tmp_path / "new" / "folder") is None
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path / "file" / "folder")
