"""Make the figures of the documentation: `python docs/figures.py`. Two show a ViT that is trained for them, for some minutes.

That wants CIFAR-10. Arguments are passed on to the demos that train it, such as `--checkpoint runs/demo/vit.safetensors`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LONGER = ["--data", "cifar10", "--steps", "400"]
DEMOS = {  # demo -> its picture, and what the documentation calls it
    "03_conv_is_im2col_matmul": "conv-is-im2col-matmul",
    "04_attention_map": "attention-map",
    "05_position_embeddings": "position-embeddings",
}


def neuron(file: Path) -> None:
    """The graph of the first lesson."""
    sys.path.insert(0, str(HERE.parent))
    import tinyvit as tv

    w, b = tv.tensor(0.5, requires_grad=True), tv.tensor(-0.2, requires_grad=True)
    u = w * 1.5 + b
    y = u.tanh()
    loss = (y - 1.0) ** 2
    tv.show_graph(loss).save(file)


def main() -> None:
    figures = HERE / "figures"
    figures.mkdir(exist_ok=True)
    neuron(figures / "graph-of-a-neuron.png")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    for demo, name in DEMOS.items():
        command = [sys.executable, str(HERE.parent / "demos" / f"{demo}.py")]
        if name != "conv-is-im2col-matmul":
            command += LONGER + sys.argv[1:]
        subprocess.run(command, check=True, env=environment)
        shutil.copy(f"runs/demos/{demo}.png", figures / f"{name}.png")


if __name__ == "__main__":
    main()
