"""`python -m tinyvit.doctor`: what a bug report needs, on one screen. Works whatever is missing or broken."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

WIDTH = 80
LABEL = 14  # columns of the label, in front of what was found
LIBRARIES = ("numpy", "numba", "llvmlite", "matplotlib", "safetensors", "pooch", "platformdirs", "tqdm",
             "threadpoolctl")
OPTIONAL = ("torch", "cupy-cuda12x", "cupy-cuda13x", "cupy")
VARIABLES = ("TINYVIT_BACKEND", "TINYVIT_DATA", "TINYVIT_CACHE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
             "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_DISABLE_JIT", "NUMBA_CACHE_DIR")


def main(arguments: list[str] | None = None) -> int:
    """Print the report; the exit code is 0 whatever it says."""
    argparse.ArgumentParser(prog="python -m tinyvit.doctor", description=__doc__).parse_args(arguments)
    print("\n".join(report()))
    return 0


def report() -> list[str]:
    """The lines of the report, none longer than 80 columns. What cannot be found out says why."""
    lines = []
    for label, probe in PROBES.items():
        try:
            found = probe()
        except Exception as error:  # a broken installation is what this command is for
            found = f"unknown: {type(error).__name__}: {' '.join(str(error).split())}"
        first, rest = f"{label + ':':{LABEL}}", " " * LABEL
        lines += textwrap.wrap(found, WIDTH, initial_indent=first, subsequent_indent=rest) or [first]
    return lines


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tinyvit() -> str:
    import tinyvit

    return f"{tinyvit.__version__} in {Path(tinyvit.__file__).parent}"


def _system() -> str:
    return f"Python {platform.python_version()} ({sys.executable}), {platform.platform()}"


def _libraries() -> str:
    return ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in LIBRARIES)


def _optional() -> str:
    found = [f"{name} {version}" for name in OPTIONAL if (version := _version(name))]
    return ", ".join(found) or "none (torch is used for comparisons, CuPy for a GPU)"


def _processor() -> str:
    import numpy as np

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    vectors = np.show_config(mode="dicts")["SIMD Extensions"]  # type: ignore[call-overload]
    features = " ".join([*vectors.get("baseline", ()), *vectors.get("found", ())])
    try:
        import llvmlite.binding as llvm

        name = llvm.get_host_cpu_name()
    except ImportError:
        name = platform.processor() or platform.machine()
    return f"{name}, {available} of {os.cpu_count()} cores usable; {features}"


def _backend() -> str:
    from .backend import current

    return current()


def _blas() -> str:
    from threadpoolctl import threadpool_info

    import tinyvit  # noqa: F401  (loads the libraries to be looked at)

    pools = [f"{pool.get('internal_api')} {pool.get('version')}, {pool.get('num_threads')} threads"
             + (f", {pool['architecture']}" if pool.get("architecture") else "") for pool in threadpool_info()]
    return "; ".join(pools) or "none found"


def _threads() -> str:
    import numba

    from .backend import _load_numba

    _load_numba()

    @numba.njit(parallel=True)
    def touch(n):
        total = 0
        for i in numba.prange(n):
            total += i
        return total

    touch(4)  # numba chooses its threading layer at the first parallel run
    return f"{numba.get_num_threads()} threads, layer {numba.threading_layer()}"


def _kernel_cache() -> str:
    from .backend import _cache_folder

    folder = _cache_folder()
    if folder is None:
        return "none: kernels are compiled anew each time (set TINYVIT_CACHE to a folder you can write to)"
    files = list(folder.glob("**/*.nbc"))
    return f"{folder}, writable, {len(files)} compiled kernels, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"


def _data() -> str:
    from .data import where

    return where()


def _gpu() -> str:
    from .backend import BackendError, _working_cupy

    try:
        cupy = _working_cupy()
    except BackendError as error:
        return str(error)
    device = cupy.cuda.Device()
    free, total = device.mem_info
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    return f"{name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, CuPy {cupy.__version__}"


def _variables() -> str:
    return ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none set"


PROBES: dict[str, Callable[[], str]] = {
    "tinyvit": _tinyvit, "system": _system, "libraries": _libraries, "optional": _optional, "processor": _processor,
    "backend": _backend, "BLAS": _blas, "numba": _threads, "kernel cache": _kernel_cache, "data": _data, "GPU": _gpu,
    "environment": _variables,
}

if __name__ == "__main__":
    sys.exit(main())
