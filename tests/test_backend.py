"""Backends, kernels and the machinery behind them. What could abort or hang a process runs in one of its own."""

import importlib.util
import os
import signal
import textwrap
import types

import numpy as np
import pytest
from processes import ok, python

import tinyvit as tv
from tinyvit import backend
from tinyvit.backend import KERNELS, BackendError, Kernel, device, prange, xp

has_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture
def new_kernel():
    """Declares kernels that are gone after the test."""
    before = set(KERNELS)
    yield backend.kernel
    for name in set(KERNELS) - before:
        del KERNELS[name]


# ---------------------------------------------------------------------------------------------- choosing


def test_using_restores_also_after_an_exception():
    before = tv.current()
    with tv.using("numpy"):
        assert tv.current() == "numpy"
    with pytest.raises(ZeroDivisionError), tv.using("numpy"):
        raise ZeroDivisionError
    assert tv.current() == before


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'torch'.*numpy, numba, cupy"):
        tv.use("torch")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_missing_cupy_says_how_to_get_it():
    before = tv.current()
    with pytest.raises(BackendError, match=r"pip install 'tinyvit\[cupy13\]'"):
        tv.use("cupy")
    assert tv.current() == before and xp.module is np


def test_missing_numba_says_how_to_get_it():
    done = python("""
        import sys
        sys.modules["numba"] = None
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "numba" else find(name, *a)
        import numpy as np, tinyvit as tv
        assert tv.current() == "numpy"
        x = tv.tensor(np.ones((2, 3), np.float32), requires_grad=True)
        tv.gelu(x).sum().backward()
        assert x.grad.shape == (2, 3)
        try:
            tv.use("numba")
        except tv.BackendError as error:
            print(error)
    """, TINYVIT_BACKEND="")
    assert "pip install numba" in ok(done)
    assert "slower" in done.stderr


@has_numba
@pytest.mark.parametrize(("value", "expected"), [("numpy", "numpy"), ("numba", "numba"), ("", "numba")])
def test_environment_chooses_the_backend(value, expected):
    assert ok(python("import tinyvit as tv; print(tv.current())", TINYVIT_BACKEND=value)).strip() == expected


def test_wrong_backend_in_the_environment_is_an_error_at_import():
    done = python("import tinyvit", TINYVIT_BACKEND="fortran")
    assert done.returncode and "unknown backend 'fortran'" in done.stderr


def test_import_is_light():
    out = ok(python("""
        import sys, tinyvit
        heavy = ("numba", "llvmlite", "matplotlib", "torch", "cupy", "tqdm", "pooch", "safetensors")
        print([m for m in heavy if m in sys.modules])
    """))
    assert out.strip() == "[]"


# ---------------------------------------------------------------------------------------------- which version of a kernel runs


@pytest.fixture
def twice(new_kernel):
    """A kernel whose numba version can be told from its reference: it stands for a compiled function."""
    kernel = new_kernel(_reference)
    kernel.numba(_reference)
    kernel._compiled = lambda x, *rest: ("numba", x)
    return kernel


def _reference(x, *rest):
    return "reference", x


@has_numba
@pytest.mark.parametrize(("x", "version"), [
    (np.ones(3, np.float32), "numba"), (np.ones(3), "reference"), (np.ones(3, np.float16), "reference"),
    (np.ones((0, 3), np.float32), "reference"), (np.float32(1), "reference"), (np.ones((), np.float32), "reference"),
    (np.arange(3), "numba"), (np.ones((4, 4), np.float32).T[::2], "numba"),
], ids=["float32", "float64", "float16", "empty", "scalar", "0-d", "integers", "strided"])
def test_numba_takes_float32_and_the_reference_the_rest(twice, x, version):
    with tv.using("numba"):
        got = twice(x)
        assert got[0] == version
        assert version == "reference" or got[1].flags.c_contiguous
    with tv.using("numpy"):
        assert twice(x)[0] == "reference"


@has_numba
def test_one_argument_of_float64_is_enough_for_the_reference(twice):
    with tv.using("numba"):
        assert twice(np.ones(3, np.float32), np.ones(3))[0] == "reference"
        assert twice(np.ones(3, np.float32), 2.0, None)[0] == "numba"


@has_numba
def test_a_rule_narrows_the_choice_and_records_tell(twice):
    twice.when = lambda x: x.size > 3
    with tv.using("numba"), backend.record_calls() as calls:
        small, large = twice(np.ones(3, np.float32)), twice(np.ones(4, np.float32))
        twice(np.ones(3))
    assert (small[0], large[0]) == ("reference", "numba")
    assert [(k is twice, args[0].size, fast) for k, args, fast in calls] == [(True, 3, False), (True, 4, True)]
    assert not backend._recorders


@has_numba
def test_a_kernel_that_writes_never_gets_a_copy(twice):
    twice.mutates = True
    with tv.using("numba"):
        strided = np.ones((4, 4), np.float32)[:, ::2]
        assert twice(strided)[0] == "reference"


def test_two_modules_cannot_have_kernels_of_one_name(new_kernel):
    new_kernel(_reference)
    new_kernel(_reference)  # a notebook cell that is run again
    foreign = types.FunctionType(_reference.__code__, {"__name__": "elsewhere"}, "_reference")
    with pytest.raises(ValueError, match=r"two kernels are called _reference.*elsewhere"):
        Kernel(foreign)


@device
def _plus_one(v):
    return v + np.float32(1)


@has_numba
def test_kernels_compile_with_prange_and_device_functions(new_kernel):
    def next_number(x):
        return x + 1

    def loops(x):
        y = np.empty_like(x)
        for i in prange(x.size):
            y[i] = _plus_one(x[i])
        return y

    kernel = new_kernel(next_number).numba(loops, flat=True)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tv.using("numba"):
        assert kernel(x).tolist() == (x + 1).tolist() and kernel(x).shape == (2, 3)
        assert kernel(x.T).tolist() == (x.T + 1).tolist()
        assert kernel(np.arange(3.0)).dtype == np.float64
    assert _plus_one(np.float32(1)) == 2, "in plain Python it is the function itself"


# ---------------------------------------------------------------------------------------------- processes and threads

STEP = """
    import numpy as np, tinyvit as tv
    def step():
        rng = np.random.default_rng(0)
        x = tv.tensor(rng.standard_normal((64, 96), dtype=np.float32), requires_grad=True)
        tv.softmax(tv.gelu(x)).sum().backward()
        return x.grad.copy()
"""


ONE_KERNEL = "import numpy as np, tinyvit as tv; tv.softmax(np.zeros((1, 4), np.float32))"


def script(code: str) -> str:
    return textwrap.dedent(STEP) + textwrap.dedent(code)


@has_numba
def test_unwritable_cache_gives_one_warning_and_works():
    done = python("""
        import warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import numpy as np, tinyvit as tv
            for _ in range(2):
                print(tv.softmax(np.zeros((1, 4), np.float32)).tolist())
        print([str(w.message) for w in seen])
    """, TINYVIT_BACKEND="numba", TINYVIT_CACHE="/dev/null/x", HOME="/dev/null", NUMBA_CACHE_DIR="")
    out = ok(done)
    assert out.count("[[0.25, 0.25, 0.25, 0.25]]") == 2
    assert out.count("kernels will be compiled each time") == 1 and "TINYVIT_CACHE" in out and "/dev/null/x" in out


@has_numba
def test_cache_is_used_by_the_next_process(tmp_path):
    found = []
    for _ in range(2):
        ok(python(ONE_KERNEL, TINYVIT_BACKEND="numba", TINYVIT_CACHE=str(tmp_path)))
        found.append({f.name: f.stat().st_mtime_ns for f in tmp_path.rglob("*.nbc")})
    assert found[0] and found[0] == found[1], "the second process compiled again"


@has_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_a_kernel_does_not_hang():
    out = ok(python(script("""
        import multiprocessing, warnings
        expected = step()
        def work(queue):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                queue.put((step(), [str(w.message) for w in caught]))
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        got, said = queue.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0, child.exitcode
        assert np.allclose(got, expected, atol=1e-6) and np.array_equal(step(), expected)
        assert any("forked after a kernel had run" in s and "spawn" in s for s in said), said
        print("both right")
    """), TINYVIT_BACKEND="numba"))
    assert out.strip() == "both right"


@has_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_another_thread_is_in_a_kernel_does_not_hang():
    out = ok(python(script("""
        import multiprocessing, threading, warnings
        expected = step()
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                step()
        def work(queue):
            warnings.simplefilter("ignore", RuntimeWarning)  # that it computes with references
            queue.put(step())
        threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
        [t.start() for t in threads]
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking with threads: the point here
        children = [context.Process(target=work, args=(queue,)) for _ in range(3)]
        [c.start() for c in children]
        assert all(np.allclose(queue.get(timeout=60), expected, atol=1e-6) for _ in children)
        stop.set()
        [t.join() for t in threads]
        print("all right")
    """), TINYVIT_BACKEND="numba"))
    assert out.strip() == "all right"


@has_numba
def test_two_threads_in_parallel_kernels_at_once():
    out = ok(python(script("""
        import threading
        expected = step()
        wrong = []
        def work():
            for _ in range(30):
                if not np.array_equal(step(), expected):
                    wrong.append(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not wrong
        print("alive and right")
    """), TINYVIT_BACKEND="numba"))
    assert out.strip() == "alive and right"


@has_numba
def test_backends_agree_on_a_step():
    results = []
    for name in ("numpy", "numba"):
        with tv.using(name):
            x = tv.tensor(np.random.default_rng(0).standard_normal((5, 7), dtype=np.float32), requires_grad=True)
            y = tv.softmax(tv.gelu(x))
            y.backward(np.random.default_rng(1).standard_normal((5, 7)))
            results.append((y.numpy(), x.grad))
    for a, b in zip(*results):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)


@has_numba
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals by a timer, which Windows does not have")
def test_ctrl_c_inside_a_kernel_is_a_keyboard_interrupt():
    """Not the SystemError that numba makes of one that comes while it wraps up a result."""
    out = ok(python("""
        import gc, signal
        import numpy as np
        import tinyvit as tv

        def interrupt(number, frame):
            raise KeyboardInterrupt

        gc.disable()
        x = tv.tensor(np.random.default_rng(0).standard_normal((2, 2, 64, 16)).astype("f4"))
        tv.scaled_dot_product_attention(x, x, x)  # what compiles it is not what is tested
        signal.signal(signal.SIGALRM, interrupt)
        caught = 0
        for wait in np.linspace(1e-4, 4e-4, 200):
            try:
                signal.setitimer(signal.ITIMER_REAL, wait)
                for _ in range(50):  # (not forever: Python drops an exception that comes while it frees an object)
                    tv.scaled_dot_product_attention(x, x, x)
            except KeyboardInterrupt:
                caught += 1
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print("caught" if caught > 100 else f"caught no more than {caught} of 200")
    """, TINYVIT_BACKEND="numba"))
    assert out.strip() == "caught"
