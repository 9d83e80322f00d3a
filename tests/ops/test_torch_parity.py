"""Every public op agrees with PyTorch, value and gradient, on every case it declares. Skipped without torch."""

import numpy as np
import pytest
from compare import TOLERANCE, assert_close
from opcases import ALL, IDS, Run

from tinyvit.registry import CASES

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'tinyvit[bench]' for the parity tests")
F = torch.nn.functional


def _t(array, like=None):
    t = torch.as_tensor(np.array(array))
    return t.to(like.dtype) if like is not None and t.is_floating_point() else t


def _axes(x, axis):
    return tuple(range(x.ndim)) if axis is None else axis


def _max(x, axis=None, keepdims=False):
    if axis is not None:
        return x.max(dim=axis, keepdim=keepdims).values
    return x.max().reshape((1,) * x.ndim) if keepdims else x.max()


def _var(x, axis=None, keepdims=False, ddof=0):  # torch.var warns on an empty result
    axes = _axes(x, axis)
    centred = x - x.mean(axes, keepdim=True)
    squares = (centred * centred).sum(axes, keepdim=keepdims)
    return squares / (x.numel() / max(squares.numel(), 1) - ddof if x.numel() else 1)


def _squeeze(x, axis=None):
    return x.squeeze() if axis is None else x.squeeze(axis)


def _index(index):
    if isinstance(index, tuple):
        return tuple(torch.as_tensor(i) if isinstance(i, list) else i for i in index)
    if isinstance(index, list):
        return torch.as_tensor(index, dtype=torch.long)
    return _t(index) if isinstance(index, np.ndarray) else index


def _getitem(x, index):
    if isinstance(index, slice) and index.step == -1:  # PyTorch has no negative steps
        return x.flip(0)
    return x[_index(index)]


def _pad(x, widths, value=0.0):
    pairs = np.broadcast_to(np.asarray(widths), (x.ndim, 2))
    return F.pad(x, [int(n) for pair in pairs[::-1] for n in pair], value=value)


def _cross_entropy(x, target, label_smoothing=0.0, reduction="mean"):
    target, classes = _t(target, x), x.shape[-1]
    soft = target.is_floating_point()
    losses = F.cross_entropy(x.reshape(-1, classes), target.reshape(-1, classes) if soft else target.reshape(-1),
                             label_smoothing=label_smoothing, reduction=reduction)
    return losses.reshape(x.shape[:-1]) if reduction == "none" else losses


def _layer_norm(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _batch_norm(x, weight, bias, running_mean=None, running_var=None, training=True, momentum=0.1, eps=1e-5):
    mean, var = (None if r is None else _t(r, x) for r in (running_mean, running_var))
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)


def _dropout(x, p, rng):
    return x * torch.as_tensor(rng.random(x.shape, np.float32) >= p).to(x.dtype) / (1 - p) if p else x


def _drop_path(x, p, rng):
    kept = rng.random((x.shape[0],) + (1,) * (x.ndim - 1), np.float32) >= p
    return x * torch.as_tensor(kept).to(x.dtype) / (1 - p)


def _attention(q, k, v, *mask, **params):
    mask = mask[0] if mask else params.get("mask")
    mask = _t(mask, q) if isinstance(mask, np.ndarray) else mask
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if mask is not None and mask.dtype == torch.bool:  # zeros for a row that may attend to nothing, whatever the version
        out = torch.where(mask.any(-1, keepdim=True), out, torch.zeros_like(out))
    return out


def _multi_head_attention(qkv, heads, mask=None):
    B, N, D3 = qkv.shape
    q, k, v = qkv.reshape(B, N, 3, heads, D3 // 3 // heads).permute(2, 0, 3, 1, 4)
    return _attention(q, k, v, mask=mask).transpose(1, 2).reshape(B, N, D3 // 3)


def _attention_weights(q, k, mask=None):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        mask = _t(mask, q)
        scores = scores.masked_fill(~mask, -np.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


def _pair(n):
    return n if isinstance(n, tuple) else (n, n)


def _patchify(x, patch):
    (ph, pw), (B, C, H, W) = _pair(patch), x.shape
    return x.reshape(B, C, H // ph, ph, W // pw, pw).permute(0, 2, 4, 1, 3, 5).reshape(B, (H // ph) * (W // pw), C * ph * pw)


def _unpatchify(tokens, patch, height, width, **_):
    (ph, pw), B = _pair(patch), tokens.shape[0]
    grid = tokens.reshape(B, height // ph, width // pw, -1, ph, pw)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(B, -1, height, width)


# A public op that is missing here fails test_every_public_op_has_a_counterpart.
COUNTERPARTS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": torch.neg, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum, "clip": lambda x, low=None, high=None: x.clamp(low, high),
    "where": lambda a, b, condition: torch.where(_t(condition), a, b),
    "astype": lambda x, dtype: x.to(getattr(torch, dtype)),
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "abs": torch.abs, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu, "gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate), "silu": F.silu,
    "erf": torch.erf,
    "sum": lambda x, axis=None, keepdims=False: x.sum(_axes(x, axis), keepdim=keepdims),
    "mean": lambda x, axis=None, keepdims=False: x.mean(_axes(x, axis), keepdim=keepdims),
    "var": _var,
    "max": _max, "min": lambda x, axis=None, keepdims=False: -_max(-x, axis, keepdims),
    "logsumexp": lambda x, axis=None, keepdims=False: torch.logsumexp(x, _axes(x, axis), keepdim=keepdims),
    "norm": lambda x, axis=None, keepdims=False: torch.linalg.vector_norm(x, dim=axis, keepdim=keepdims),
    "reshape": lambda x, shape: x.reshape(shape),
    "flatten": lambda x, start_axis=0: x.reshape(1) if x.ndim == 0 else x.flatten(start_axis),
    "transpose": lambda x, axes=None: x.permute(axes or tuple(range(x.ndim))[::-1]),
    "permute": lambda x, axes: x.permute(axes), "swapaxes": lambda x, axis1, axis2: x.swapaxes(axis1, axis2),
    "squeeze": _squeeze, "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "broadcast_to": lambda x, shape: x.broadcast_to(shape),
    "concat": lambda pieces, axis=0: torch.cat(pieces, axis), "stack": lambda pieces, axis=0: torch.stack(pieces, axis),
    "split": lambda x, sections, axis=0: x.split(
        x.shape[axis] // sections if isinstance(sections, int) else list(sections), axis),
    "unbind": lambda x, axis=0: x.unbind(axis),
    "getitem": _getitem, "pad": _pad, "flip": lambda x, axis=None: x.flip(_axes(x, axis)),
    "roll": lambda x, shift, axis=None: x.roll(shift, axis),
    "softmax": lambda x, axis=-1: x.softmax(axis), "log_softmax": lambda x, axis=-1: x.log_softmax(axis),
    "cross_entropy": _cross_entropy,
    "kl_div": lambda log_q, p, reduction="batchmean": F.kl_div(log_q, p, reduction=reduction),
    "mse": lambda x, target, reduction="mean": F.mse_loss(x, target, reduction=reduction),
    "layer_norm": _layer_norm, "batch_norm": _batch_norm, "dropout": _dropout, "drop_path": _drop_path,
    "matmul": torch.matmul, "linear": F.linear, "embedding": lambda weight, indices: F.embedding(_t(indices), weight),
    "scaled_dot_product_attention": _attention, "multi_head_attention": _multi_head_attention,
    "attention_weights": _attention_weights, "patchify": _patchify, "unpatchify": _unpatchify,
    "conv2d": F.conv2d, "max_pool2d": lambda x, kernel, stride=None, padding=0: F.max_pool2d(x, kernel, stride, padding),
    "avg_pool2d": lambda x, kernel, stride=None, padding=0: F.avg_pool2d(x, kernel, stride, padding),
    "global_avg_pool2d": lambda x: x.mean((2, 3)),
}


def test_every_public_op_has_a_counterpart():
    assert set(COUNTERPARTS) == set(CASES)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "case"), ALL, ids=IDS)
def test_value_and_gradient(name, case, dtype):
    run = Run(name, case, np.dtype(dtype))
    outputs = run.apply(*run.inputs)
    run.backward(outputs)

    theirs = [torch.tensor(np.array(a), requires_grad=True) for a in run.arrays]
    function, params = COUNTERPARTS[name], run.params()
    expected = function(theirs, **params) if case.sequence else function(*theirs, **params)
    expected = expected if isinstance(expected, tuple) else (expected,)
    loss = sum((y * torch.as_tensor(run.upstream(y.shape, i)).to(y.dtype)).sum() for i, y in enumerate(expected))
    gradients = torch.autograd.grad(loss, theirs, allow_unused=True)

    assert len(outputs) == len(expected)
    for y, e in zip(outputs, expected):
        assert_close(y.numpy(), e.detach().numpy(), TOLERANCE[dtype], "value")
    for i, (t, g) in enumerate(zip(run.inputs, gradients)):
        want = np.zeros(t.shape) if g is None else g.numpy()
        got = np.zeros(t.shape) if t.grad is None else t.grad
        assert_close(got, want, TOLERANCE[dtype], f"gradient of input {i}")
