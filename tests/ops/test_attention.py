"""Attention beyond its declared cases: masks, rows that may attend to nothing, extreme scores, odd sizes, determinism."""

import math

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv
from tinyvit import backend
from tinyvit.ops import attention_kernels
from tinyvit.ops.attention import attention_backward, attention_forward


@pytest.fixture(params=["numpy", "numba"])
def each_backend(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    with backend.using(request.param):
        yield request.param


def tensors(rng, *shapes, dtype=np.float32):
    return [tv.tensor(rng.standard_normal(s).astype(dtype), requires_grad=True) for s in shapes]


def by_hand(q, k, v, mask=0.0):
    """The definition in float64, with zeros for rows that may attend to nothing."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + mask
    peak = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(peak), 0, peak))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


@pytest.mark.parametrize("shape", [(), (6,), (4, 1), (4, 6), (3, 1, 1), (3, 4, 6), (1, 3, 4, 6), (2, 1, 1, 6), (2, 3, 4, 6)])
def test_masks_broadcast(each_backend, shape, rng):
    q, k, v = tensors(rng, (2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7))
    bias = rng.standard_normal(shape).astype(np.float32)
    assert_close(tv.scaled_dot_product_attention(q, k, v, bias).numpy(), by_hand(q, k, v, bias), 1e-6, "float")
    allowed = bias > 0
    expected = by_hand(q, k, v, np.where(allowed, 0, -np.inf))
    assert_close(tv.scaled_dot_product_attention(q, k, v, allowed).numpy(), expected, 1e-6, "bool")


def test_a_query_that_may_attend_to_nothing_gets_zeros(each_backend, rng):
    q, k, v = tensors(rng, (2, 5, 4), (2, 7, 4), (2, 7, 3))
    mask = np.ones((5, 7), bool)
    mask[2] = False
    y = tv.scaled_dot_product_attention(q, k, v, mask)
    y.backward(np.ones(y.shape))
    assert np.array_equal(y.numpy()[:, 2], np.zeros((2, 3)))
    assert np.array_equal(q.grad[:, 2], np.zeros((2, 4)))
    assert all(np.isfinite(t.grad).all() for t in (q, k, v))
    assert np.array_equal(tv.attention_weights(q, k, mask).numpy()[:, 2], np.zeros((2, 7)))
    closed = tv.scaled_dot_product_attention(q, k, v, np.full((5, 7), -np.inf))
    assert not closed.numpy().any()


def test_a_float_mask_gets_its_gradient(each_backend, rng):
    """A relative position bias (heads, N, N) that is shared by the batch, with places closed by -inf."""
    q, k, v, bias = tensors(rng, (4, 2, 5, 3), (4, 2, 5, 3), (4, 2, 5, 3), (2, 5, 5))
    bias.data[0, 1, 2] = bias.data[1, 3, :4] = -np.inf
    g = rng.standard_normal((4, 2, 5, 3)).astype(np.float32)
    tv.scaled_dot_product_attention(q, k, v, bias).backward(g)
    p = by_hand(q, k, np.broadcast_to(np.eye(5), (4, 2, 5, 5)), bias.numpy())
    dp = g.astype(np.float64) @ v.numpy().swapaxes(-1, -2)
    assert_close(bias.grad, (p * (dp - (p * dp).sum(-1, keepdims=True))).sum(0), 1e-5)
    assert bias.grad[0, 1, 2] == 0


def test_causal_mask_keeps_the_future_out(each_backend, rng):
    q, k, v = tensors(rng, (6, 4), (6, 4), (6, 4))
    y = tv.scaled_dot_product_attention(q, k, v, np.tri(6, dtype=bool))
    assert_close(y.numpy()[0], v.numpy()[0], 1e-7)
    y.backward(np.eye(6, 4, dtype=np.float32))  # only the first 4 queries are looked at
    assert not k.grad[4:].any() and not v.grad[4:].any()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_scores_are_stable(each_backend, size, rng):
    q = tv.tensor(np.full((3, 4), size / 2, np.float32), requires_grad=True)
    k = tv.tensor(np.array([[1, 1, 1, 1], [-1, -1, -1, -1], [1, 1, 1, 1]], np.float32), requires_grad=True)
    v = tv.tensor(np.array([[1.0], [2.0], [4.0]], np.float32), requires_grad=True)
    y = tv.scaled_dot_product_attention(q, k, v)
    assert np.array_equal(y.numpy(), np.full((3, 1), 2.5 if size > 0 else 2.0))
    y.backward(np.ones((3, 1)))
    assert all(np.isfinite(t.grad).all() for t in (q, k, v))


def test_nan_reaches_its_own_row_only(each_backend, rng):
    q, k, v = (rng.standard_normal((5, 4)).astype(np.float32) for _ in range(3))
    q[1] = np.nan
    y = tv.scaled_dot_product_attention(q, k, v).numpy()
    assert np.isnan(y[1]).all() and np.isfinite(np.delete(y, 1, 0)).all()
    bias = np.zeros((5, 5), np.float32)
    bias[2, 3] = np.nan
    assert np.isnan(tv.scaled_dot_product_attention(np.nan_to_num(q), k, v, bias).numpy()[2]).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("N", [1, 3, 5, 16, 17, 65, 130])
def test_kernels_equal_their_references(N, masked, rng):
    pytest.importorskip("numba")
    for h, d, M, packed in ((2, 7, N, True), (1, 16, 19, False), (3, 33, N + 1, False)):
        if packed:
            q = k = v = rng.standard_normal((2, N, 3, h, d), dtype=np.float32)
        else:
            q, k, v = (rng.standard_normal((2, n, 1, h, w), dtype=np.float32) for n, w in ((N, d), (M, d), (M, d + 9)))
        which = np.tile(np.arange(h), (2, 1)) * masked
        mask = rng.standard_normal((h, N, M) if masked else (1, 1, 1)).astype(np.float32) * masked
        if masked:
            mask[rng.random(mask.shape) < 0.3] = -np.inf
        y, peak, weight = attention_forward.reference(q, k, v, mask, which)
        for ours, theirs in zip(attention_forward.compiled(q, k, v, mask, which), (y, peak, weight), strict=True):
            assert_close(ours, theirs, 1e-5, f"forward {h} {d} {M}")
        args = rng.standard_normal(y.shape, dtype=np.float32), q, k, v, mask, which, peak, weight, masked
        results = zip(attention_backward.compiled(*args), attention_backward.reference(*args), strict=True)
        for i, (ours, theirs) in enumerate(results):
            scale = np.linalg.norm(args[0])  # of one key only, every probability is 1 and dq, dk are 0 up to rounding
            assert ours.shape == theirs.shape and np.linalg.norm(ours - theirs) <= 1e-5 * scale, f"backward {i} of {h} {d} {M}"


def test_long_sequences_go_in_groups(rng):
    """More scores than are held at a time: keys' gradients add up over the groups of queries."""
    pytest.importorskip("numba")
    N, M = 300, 1000
    assert N * M > 4 * attention_kernels.SCORES
    q, k, v = (rng.standard_normal((1, n, 1, 1, 8), dtype=np.float32) for n in (N, M, M))
    mask, which = rng.standard_normal((1, N, M), dtype=np.float32), np.zeros((1, 1), int)
    y, peak, weight = attention_forward.reference(q, k, v, mask, which)
    assert_close(attention_forward.compiled(q, k, v, mask, which)[0], y, 1e-5)
    args = rng.standard_normal(y.shape, dtype=np.float32), q, k, v, mask, which, peak, weight, True
    for ours, theirs in zip(attention_backward.compiled(*args), attention_backward.reference(*args), strict=True):
        assert_close(ours, theirs, 1e-5)


def test_two_runs_give_the_same_bits(each_backend, rng):
    qkv, g = rng.standard_normal((5, 65, 96)).astype(np.float32), rng.standard_normal((5, 65, 32)).astype(np.float32)

    def run():
        x = tv.tensor(qkv, requires_grad=True)
        y = tv.multi_head_attention(x, heads=2)
        y.backward(g)
        return y.numpy(), x.grad

    for a, b in zip(run(), run()):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_is_the_transposed_single_one(each_backend, masked, rng):
    B, N, h, d = 3, 9, 4, 5
    one, other = (tv.tensor(a, requires_grad=True) for a in [rng.standard_normal((B, N, 3 * h * d)).astype(np.float32)] * 2)
    mask = rng.random((B, 1, N, N)) < 0.7 if masked else None
    y = tv.multi_head_attention(one, h, mask)
    q, k, v = other.reshape(B, N, 3, h, d).transpose(2, 0, 3, 1, 4)
    z = tv.scaled_dot_product_attention(q, k, v, mask).transpose(0, 2, 1, 3).reshape(B, N, h * d)
    g = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(g)
    z.backward(g)
    assert_close(y.numpy(), z.numpy(), 1e-6)
    assert_close(one.grad, other.grad, 1e-6)


def test_weights_are_what_attention_applies(each_backend, rng):
    q, k, v = tensors(rng, (2, 3, 4), (2, 5, 4), (2, 5, 6))
    for mask in (None, rng.random((3, 5)) < 0.6):
        weights = tv.attention_weights(q, k, mask)
        assert_close((weights @ v).numpy(), tv.scaled_dot_product_attention(q, k, v, mask).numpy(), 1e-6)


def test_masks_keep_the_dtype(rng):
    q, k, v = tensors(rng, (3, 4), (3, 4), (3, 4))
    for mask in (np.zeros((3, 3)), tv.tensor(np.zeros((3, 3)), requires_grad=True), np.ones((3, 3), bool)):
        assert tv.scaled_dot_product_attention(q, k, v, mask).dtype == np.float32


@pytest.mark.parametrize(("shapes", "words"), [
    (((2, 3, 4), (2, 3, 5), (2, 3, 4)), ["last axis", "4", "5"]),
    (((2, 3, 4), (2, 5, 4), (2, 6, 4)), ["one value per key", "5", "6"]),
    (((2, 3, 4), (3, 3, 4), (3, 3, 4)), ["leading axes", "(2,)", "(3,)"]), (((4,), (3, 4), (3, 4)), ["q", "(4,)"])])
def test_errors_name_the_shapes(shapes, words):
    with pytest.raises(ValueError, match="scaled_dot_product_attention") as error:
        tv.scaled_dot_product_attention(*(np.zeros(s, np.float32) for s in shapes))
    assert all(w in str(error.value) for w in words), str(error.value)


def test_mask_and_head_errors():
    x = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"mask of shape \(3, 4\).*axis -1 has 4 for 3"):
        tv.scaled_dot_product_attention(x, x, x, np.zeros((3, 4), bool))
    with pytest.raises(ValueError, match=r"shape \(1, 2, 3, 3\) to scores of shape \(2, 3, 3\).*too many axes"):
        tv.scaled_dot_product_attention(x, x, x, np.zeros((1, 2, 3, 3), bool))
    with pytest.raises(TypeError, match="mask of bool"):
        tv.scaled_dot_product_attention(x, x, x, np.zeros((3, 3), int))
    with pytest.raises(ValueError, match="multiple of 15"):
        tv.multi_head_attention(np.zeros((1, 2, 12), np.float32), heads=5)
