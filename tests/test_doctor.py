"""The doctor answers whatever is missing."""

import subprocess
import sys

import pytest

from tinyvit import doctor


def test_report_says_what_a_bug_report_needs():
    lines = doctor.report()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    for label in ("tinyvit:", "system:", "libraries:", "processor:", "backend:", "BLAS:", "numba:", "kernel cache:", "data:",
                  "GPU:", "environment:"):
        assert any(line.startswith(label) for line in lines), label
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in text and "numpy 2" in text


def test_a_probe_that_fails_is_reported_and_the_others_go_on(monkeypatch):
    def broken():
        raise RuntimeError("the disk\nis on fire")

    monkeypatch.setitem(doctor.PROBES, "BLAS", broken)
    lines = doctor.report()
    assert any(line.startswith("BLAS:") and "RuntimeError: the disk is on fire" in line for line in lines)
    assert any(line.startswith("environment:") for line in lines)


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "LIBRARIES", ("numpy", "no-such-library"))
    assert "no-such-library MISSING" in doctor._libraries()


@pytest.mark.parametrize("setting", [{"TINYVIT_DATA": "/no/such/folder", "TINYVIT_CACHE": "/dev/null/x"},
                                     {"TINYVIT_BACKEND": "numpy"}])
def test_command(setting):
    import os

    done = subprocess.run([sys.executable, "-m", "tinyvit.doctor"], env={**os.environ, **setting}, capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert all(f"{name}={value}" in done.stdout.replace("\n" + " " * 14, " ") for name, value in setting.items())


def test_unknown_argument():
    done = subprocess.run([sys.executable, "-m", "tinyvit.doctor", "--nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
