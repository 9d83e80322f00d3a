"""Whole models agree with the same models in PyTorch, values and every parameter's gradient. Skipped without torch."""

import numpy as np
import pytest
from compare import TOLERANCE, assert_close

import tinyvit as tv
from tinyvit import models, optim

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinyvit[bench]' for the parity tests")
from tinyvit import torch_peers  # noqa: E402  (imports torch)

PAIRS = {
    "vit": (lambda: models.ViT(16, 4, num_classes=10, width=24, depth=3, heads=3, mlp=48, rng=np.random.default_rng(0)),
            lambda: torch_peers.ViT(24, 3, 3, 48, 4, 16), 16),
    "resnet20": (lambda: models.resnet("resnet20", rng=np.random.default_rng(0)), torch_peers.resnet20, 16),
}


def _pair(name, dtype):
    make, make_peer, size = PAIRS[name]
    ours, theirs = make().astype(dtype), make_peer().to(getattr(torch, dtype))
    rng = np.random.default_rng(1)
    state = {k: v + 0.1 * rng.standard_normal(v.shape).astype(dtype) for k, v in ours.state_dict().items()}
    state |= {k: np.abs(v) + 0.5 for k, v in state.items() if k.endswith("running_var")}
    ours.load_state_dict(state)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    return ours, theirs, rng.standard_normal((4, 3, size, size)).astype(dtype), rng.integers(0, 10, 4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", PAIRS)
def test_values_gradients_and_running_statistics(name, dtype):
    ours, theirs, x, y = _pair(name, dtype)
    tolerance = TOLERANCE[dtype]
    logits, peer_logits = ours(tv.tensor(x)), theirs(torch.from_numpy(x))
    assert logits.dtype == dtype
    assert_close(logits.numpy(), peer_logits.detach().numpy(), tolerance, "logits in training")
    tv.cross_entropy(logits, y).backward()
    torch.nn.functional.cross_entropy(peer_logits, torch.from_numpy(y)).backward()
    gradients = {n: p.grad.numpy() for n, p in theirs.named_parameters()}
    assert {n for n, _ in ours.named_parameters()} == set(gradients)
    # As one vector: a bias before a norm has a gradient that is zero but for rounding.
    assert_close(np.concatenate([p.grad.ravel() for _, p in ours.named_parameters()]),
                 np.concatenate([gradients[n].ravel() for n, _ in ours.named_parameters()]), tolerance, "all gradients")
    for n, p in ours.named_parameters():
        if np.linalg.norm(gradients[n]) > 1e-3 * np.sqrt(p.size):
            assert_close(p.grad, gradients[n], 3 * tolerance, f"gradient of {n}")
    for n, b in ours.named_buffers():
        assert_close(b, theirs.state_dict()[n].numpy(), tolerance, n)
    peer_logits = theirs.eval()(torch.from_numpy(x)).detach()
    assert_close(ours.eval()(tv.tensor(x)).numpy(), peer_logits.numpy(), tolerance, "evaluation")


def test_three_steps_of_training_stay_together():
    ours, theirs, x, y = _pair("vit", "float64")
    a = optim.AdamW(ours.parameters(), lr=1e-3)
    b = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    for _ in range(3):
        a.zero_grad()
        b.zero_grad()
        tv.cross_entropy(ours(tv.tensor(x)), y).backward()
        torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        a.step()
        b.step()
    state = theirs.state_dict()
    for n, v in ours.state_dict().items():
        # Adam divides by the gradient's size, so where that is rounding only (the key's bias), so is the step.
        if not n.endswith("qkv.bias"):
            assert_close(v, state[n].numpy(), 1e-8, n)
