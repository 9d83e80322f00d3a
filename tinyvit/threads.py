"""How long idle threads of OpenBLAS and OpenMP keep a core busy; imported first, since both read it once, when loaded.

Both let their threads spin after a piece of work, in case the next one comes at once. Here BLAS products and numba kernels
take turns on the same cores, so that each would wait for the other's spinning threads: on two cores a training step of a
ViT takes about 1.5 times as long. OPENBLAS_THREAD_TIMEOUT is a power of two of clock ticks, GOMP_SPINCOUNT counts rounds,
enough to bridge the gap between two kernels. What is set already stays.
"""

import os

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
