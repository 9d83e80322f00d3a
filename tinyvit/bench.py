"""`python -m tinyvit.bench [all|train|infer] [--json FILE]`: our step against PyTorch's, in one run, in turns.

Both sides use all cores, the same batch and the same optimiser; PyTorch runs in a process of its own and is given its faster
memory format (contiguous or channels last) and its fused AdamW. Machines drift, so the two are timed in turns and the ratio
is what counts: `ratio` = PyTorch's time / our time, above 1 where we are faster. GFLOP count 2 per multiply-add, matrix
products and convolutions only, and 3 times the forward pass for a training step.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import backend, models, optim
from .autograd import no_grad
from .registry import FUNCTIONS as F
from .tensor import Tensor

MODELS = ("vit", "resnet18", "resnet20")
BATCH = 128
SETTLE = 0.3  # seconds before each step, since OpenMP's threads spin for a while after their last work


@dataclass
class Result:
    """One line of the table; times are the minimum over the steps, in milliseconds."""

    name: str
    mode: str
    ours_ms: float
    ours_median_ms: float
    torch_ms: float | None
    ratio: float | None
    gflops: float
    share_of_sgemm: float


def sgemm_gflops(size: int = 2048, repeats: int = 5) -> float:
    """This machine's own float32 matrix product, through NumPy's BLAS: the ceiling for everything else."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    best = min(_seconds(lambda: a @ b) for _ in range(repeats))
    return 2 * size**3 / best / 1e9


def _seconds(step: Callable) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def our_step(name: str, train: bool) -> tuple[Callable, float]:
    """One training or inference step of ours on random images, and the GFLOP of a forward pass of one image."""
    model = models.create("cifar" if name == "vit" else name, rng=np.random.default_rng(0))
    optimizer = optim.AdamW(model.parameters()) if name == "vit" else optim.SGD(model.parameters(), 0.1, momentum=0.9)
    gflop = model.summary((1, 3, 32, 32)).gflop
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((BATCH, 3, 32, 32), dtype=np.float32))
    y = rng.integers(0, 10, BATCH)
    model.train(train)

    def training() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def inference() -> None:
        with no_grad():
            model(x)

    return (training if train else inference), gflop


class Peer:
    """PyTorch's step, in a process of its own: neither side's threads are in the other's way, nor its settings.

    Start it once for a model; each `step()` runs one step there and returns its seconds.
    """

    def __init__(self, name: str, train: bool):
        environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tinyvit.torch_peers", name, "train" if train else "infer", str(BATCH)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def step(self) -> list[float]:
        """Seconds of one step in each memory format."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"PyTorch's side of the benchmark ended early, with exit code {self.process.wait()}")
        return [float(s) for s in answer.split()]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def compare(name: str, train: bool, steps: int, sgemm: float, with_torch: bool) -> Result:
    """Time both sides in turns after two warm-up steps each."""
    ours, gflop = our_step(name, train)
    peer = Peer(name, train) if with_torch else None
    our_seconds, peer_seconds = [], []
    for _ in range(steps + 2):
        time.sleep(SETTLE)
        our_seconds.append(_seconds(ours))
        if peer is not None:
            time.sleep(SETTLE)
            peer_seconds.append(min(peer.step()))
    if peer is not None:
        peer.close()
    best = min(our_seconds[2:])
    torch_best = min(peer_seconds[2:], default=None)
    rate = gflop * BATCH * (3 if train else 1) / best
    return Result(name, "train" if train else "infer", best * 1e3, float(np.median(our_seconds[2:])) * 1e3,
                  None if torch_best is None else torch_best * 1e3, None if torch_best is None else torch_best / best,
                  rate, rate / sgemm)


def _line(r: Result) -> str:
    peer = f"{r.torch_ms:9.1f} {r.ratio:6.2f}" if r.torch_ms is not None and r.ratio is not None else f"{'-':>9} {'-':>6}"
    return f"{r.name:9} {r.mode:5} {r.ours_ms:9.1f} {peer} {r.gflops:8.0f} {r.share_of_sgemm:8.0%}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tinyvit.bench", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("mode", nargs="?", default="all", choices=("all", "train", "infer"))
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--steps", type=int, default=5, help="counted steps of each side (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table there")
    given = parser.parse_args(arguments)
    names = given.models.split(",")
    unknown = [n for n in names if n not in MODELS]
    if unknown or given.steps < 1:
        parser.error(f"unknown model {unknown[0]!r}: choose from {', '.join(MODELS)}" if unknown
                     else "--steps must be at least 1")
    with_torch = importlib.util.find_spec("torch") is not None
    version = (f"PyTorch {importlib.metadata.version('torch')}" if with_torch
               else "PyTorch is not installed (pip install 'tinyvit[bench]'): ours alone")
    sgemm = sgemm_gflops()
    print(f"backend {backend.current()}; {version}; batch {BATCH}; sgemm {sgemm:.0f} GFLOP/s")
    print(f"{'model':9} {'mode':5} {'ours ms':>9} {'torch ms':>9} {'ratio':>6} {'GFLOP/s':>8} {'of sgemm':>8}")
    results = []
    for name in names:
        for train in (True, False):
            if given.mode in ("all", "train" if train else "infer"):
                results.append(compare(name, train, given.steps, sgemm, with_torch))
                print(_line(results[-1]), flush=True)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"sgemm_gflops": sgemm, "cases": [asdict(r) for r in results]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
