"""How long idle threads of OpenBLAS and OpenMP keep a core busy; imported first, since both read it once, when loaded.

Both let their threads spin after a piece of work, in case the next one comes at once. Here BLAS products and numba kernels
take turns on the same cores, so that each would wait for the other's spinning threads: on two cores a training step takes
up to twice as long. OPENBLAS_THREAD_TIMEOUT is a power of two of clock ticks, GOMP_SPINCOUNT counts rounds, enough to
bridge the gap between two kernels. What is set already stays.
"""

import ctypes
import os
import sys

RESTART = "openblas_read_env", "blas_thread_shutdown_", "blas_thread_init"  # what OpenBLAS itself calls around a fork


def restart_openblas() -> None:
    """Make a NumPy that was loaded before tinyvit read the variable: OpenBLAS does so when it starts its threads."""
    from threadpoolctl import threadpool_info

    for pool in threadpool_info():
        if pool["internal_api"] == "openblas" and pool["threading_layer"] == "pthreads":
            library = ctypes.CDLL(pool["filepath"])
            if all(hasattr(library, name) for name in RESTART):
                for name in RESTART:
                    getattr(library, name)()


os.environ.setdefault("GOMP_SPINCOUNT", "30000")
if "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    if "numpy" in sys.modules and os.name == "posix":  # on Windows its threads do not spin
        restart_openblas()
