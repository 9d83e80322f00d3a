"""Code in a process of its own: what could abort or hang one, or depends on what is imported first."""

import os
import subprocess
import sys
import textwrap

import tinyvit as tv


def python(code: str, timeout: float = 120, **environment: str | None) -> subprocess.CompletedProcess:
    """Run code in a fresh process, with warnings as errors. A variable that is None is not set there."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(tv.__file__)))
    env = {key: value for key, value in {**os.environ, "PYTHONPATH": root, **environment}.items() if value is not None}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def ok(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout
