"""Idle threads of OpenBLAS leave the cores to others, whichever of NumPy and tinyvit is imported first."""

import os

import pytest
from processes import ok, python
from threadpoolctl import threadpool_info

IDLE = """
    {imports}
    import numpy as np
    a = np.ones((512, 512), np.float32)
    a @ a
    before = time.process_time()
    time.sleep(0.2)
    print(time.process_time() - before)
"""


def busy_seconds(imports: str, timeout: str | None = None) -> float:
    """Processor time of a process that sleeps for 0.2 seconds after a product."""
    return float(ok(python(IDLE.format(imports=imports), OPENBLAS_THREAD_TIMEOUT=timeout)))


@pytest.fixture(scope="module")
def spinning():
    """Skips where there is nothing to mend."""
    pools = [pool for pool in threadpool_info() if pool["internal_api"] == "openblas" and pool["num_threads"] > 1]
    if not any(pool["threading_layer"] == "pthreads" for pool in pools) or os.name != "posix":
        pytest.skip("needs a NumPy with OpenBLAS and two threads")
    if busy_seconds("import time") < 0.02:
        pytest.skip("this OpenBLAS does not spin")


@pytest.mark.parametrize("imports", ["import time, tinyvit", "import time, numpy, tinyvit",
                                     "import time, numpy; numpy.ones((512, 512)) @ numpy.ones((512, 512)); import tinyvit"])
def test_idle_threads_sleep(spinning, imports):
    assert busy_seconds(imports) < 0.02


def test_what_is_set_already_stays(spinning):
    assert busy_seconds("import time, numpy, tinyvit", timeout="27") > 0.02
