"""Pickles are read without running what they name."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tinyvit.data import DataError
from tinyvit.data.unpickle import load_plain


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def dump(path, value, protocol=2):
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("hide", [lambda x: x, lambda x: {"data": x}, lambda x: {"data": [np.zeros(3), {"deep": x}]}])
def test_code_is_refused_and_not_run(tmp_path, hide):
    victim = tmp_path / "victim"
    for function, arguments in ((os.mkdir, (str(victim),)), (Path.touch, (victim,)), (exec, (f"open({str(victim)!r}, 'w')",))):
        path = dump(tmp_path / "batch", hide(Runs(function, *arguments)))
        with pytest.raises(DataError, match="was refused, and nothing in it was run") as caught:
            load_plain(path)
        assert "\n" not in str(caught.value)
        assert not victim.exists()


@pytest.mark.parametrize("value", [
    np.array([print, len], object), np.zeros(2, "V8"), np.zeros(2, [("a", "O")]), np.array(["text"]), complex(1, 2),
], ids=str)
def test_only_plain_arrays_are_data(tmp_path, value):
    with pytest.raises(DataError, match="refused"):
        load_plain(dump(tmp_path / "batch", {"data": value}))


@pytest.mark.parametrize("raw", [  # the last but three wants nine numbers from one byte
    b"", b"nonsense", pickle.dumps({"data": np.zeros(100)})[:-30], pickle.dumps({"data": np.zeros(100)})[:40],
    b"cnumpy\ndtype\n)\x81.",  # __new__ of something that is no class here
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I9\ntNI00\nS'x'\ntb.",
    b"(dVdata\ncnumpy.core.multiarray\n_reconstruct\n(NNNtRs.",  # an array that is never filled
    b"\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00a\x85R.",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
])
def test_damaged_pickles(tmp_path, raw):
    with pytest.raises(DataError):
        load_plain(dump(tmp_path / "batch", raw))


def test_codecs_other_than_latin1_are_refused(tmp_path):
    with pytest.raises(DataError, match="codec"):
        load_plain(dump(tmp_path / "batch", b"c_codecs\nencode\n(Vabc\nVrot13\ntR."))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", [np.arange(6, dtype=np.uint8).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
                                   np.arange(4, dtype=">i4"), np.zeros((0, 3), np.float32), np.array([True, False])], ids=str)
def test_arrays_come_back(tmp_path, array, protocol):
    found = load_plain(dump(tmp_path / "batch", {"a": array, "b": b"\xff\x00", "n": np.float32(0.5), "t": "é"}, protocol))
    assert np.array_equal(found["a"], array) and found["a"].dtype == array.dtype
    assert found["b"] == b"\xff\x00" and found["n"] == 0.5 and found["t"] == "é"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        load_plain(tmp_path / "absent")
