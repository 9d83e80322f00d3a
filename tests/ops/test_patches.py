"""patchify and unpatchify: order, inverse, agreement with a strided convolution, errors."""

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv


def test_order_of_patches_and_of_values_in_a_patch():
    x = np.arange(2 * 4 * 6, dtype=np.float32).reshape(1, 2, 4, 6)
    tokens = tv.patchify(x, (2, 3)).numpy()
    assert tokens.shape == (1, 4, 12)
    for n, (row, column) in enumerate([(0, 0), (0, 3), (2, 0), (2, 3)]):
        assert np.array_equal(tokens[0, n], x[0, :, row:row + 2, column:column + 3].reshape(-1))


@pytest.mark.parametrize("patch", [1, 2, 4, (2, 1), (4, 8)])
def test_unpatchify_is_the_inverse(patch, rng):
    x = rng.standard_normal((3, 2, 4, 8))
    assert np.array_equal(tv.unpatchify(tv.patchify(x, patch), patch, 4, 8).numpy(), x)


def test_an_empty_batch_comes_back_as_one():
    assert tv.unpatchify(tv.patchify(np.zeros((0, 3, 4, 4), np.float32), 2), 2, 4, 4).shape == (0, 3, 4, 4)


def test_patch_embedding_is_a_strided_convolution(rng):
    """Values and gradients of conv2d with stride P and of patchify + linear agree, with the same weight reshaped."""
    image, weight, bias = rng.standard_normal((2, 3, 8, 12)), rng.standard_normal((5, 3, 4, 4)), rng.standard_normal(5)
    one, other = ([tv.tensor(a, requires_grad=True) for a in (image, weight, bias)] for _ in range(2))
    by_conv = tv.conv2d(*one, stride=4).reshape(2, 5, 6).swapaxes(1, 2)
    x, w, b = other
    by_linear = tv.linear(tv.patchify(x, 4), w.reshape(5, -1), b)
    assert_close(by_linear.numpy(), by_conv.numpy(), 1e-12)
    g = rng.standard_normal(by_conv.shape)
    by_conv.backward(g)
    by_linear.backward(g)
    for s, t in zip(one, other):
        assert_close(t.grad, s.grad, 1e-12)


def test_errors():
    x = np.zeros((1, 3, 30, 32), np.float32)
    with pytest.raises(ValueError, match=r"an image size the patch does not divide: 30x32 with patch 4x4 \(axis 2.*32x32"):
        tv.patchify(x, 4)
    with pytest.raises(ValueError, match="axis 3: 32 is not a multiple of 5"):
        tv.patchify(x, 5)
    with pytest.raises(ValueError, match=r"\(B, C, H, W\)"):
        tv.patchify(x[0], 2)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        tv.patchify(x, 0)
    with pytest.raises(ValueError, match=r"needs 64 tokens.*got 65.*class tokens"):
        tv.unpatchify(np.zeros((1, 65, 48), np.float32), 4, 32, 32)
    with pytest.raises(ValueError, match=r"C·4·4"):
        tv.unpatchify(np.zeros((1, 64, 50), np.float32), 4, 32, 32)
    with pytest.raises(ValueError, match="does not divide: 30x32"):
        tv.unpatchify(np.zeros((1, 64, 48), np.float32), 4, 30, 32)
