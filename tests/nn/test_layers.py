"""Layers: values against plain NumPy, training against evaluation, and arguments that make no sense."""

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv
from tinyvit import nn


def _x(*shape, seed=0):
    return tv.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def test_linear_is_x_times_the_transposed_weight_plus_bias(rng):
    layer, x = nn.Linear(3, 4, rng=rng), _x(2, 5, 3)
    assert_close(layer(x).numpy(), x.numpy() @ layer.weight.numpy().T + layer.bias.numpy(), 1e-6)
    plain = nn.Linear(3, 4, bias=False)
    assert plain.bias is None and list(plain.state_dict()) == ["weight"]
    assert_close(plain(x).numpy(), x.numpy() @ plain.weight.numpy().T, 1e-6)


def test_norms_normalise_and_batch_norm_changes_with_the_mode():
    x = _x(8, 3, 4, 4) * 3.0 + 2.0
    assert_close(nn.LayerNorm(4)(x).numpy().std(axis=-1), np.ones((8, 3, 4)), 1e-4)
    norm = nn.BatchNorm2d(3, momentum=0.5)
    y = norm(x).numpy()
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    mean, var = x.numpy().mean(axis=(0, 2, 3)), x.numpy().var(axis=(0, 2, 3), ddof=1)
    assert_close(norm.running_mean, 0.5 * mean, 1e-5)
    assert_close(norm.running_var, 0.5 + 0.5 * var, 1e-5)
    norm.eval()
    before = norm.running_mean.copy()
    expected = (x.numpy() - norm.running_mean[:, None, None]) / np.sqrt(norm.running_var + 1e-5)[:, None, None]
    assert_close(norm(x).numpy(), expected, 1e-5)
    assert np.array_equal(norm.running_mean, before)


def test_batch_norm_of_one_value_a_channel_is_an_error_only_in_training():
    norm = nn.BatchNorm2d(3)
    with pytest.raises(ValueError, match=r"more than one value a channel"):
        norm(_x(1, 3, 1, 1))
    assert norm.eval()(_x(1, 3, 1, 1)).shape == (1, 3, 1, 1)
    with pytest.raises(ValueError, match=r"\(B, C, H, W\), got shape \(2, 3\)"):
        norm(_x(2, 3))


def test_dropout_keeps_the_mean_in_training_and_everything_in_evaluation():
    drop, x = nn.Dropout(0.5, np.random.default_rng(0)), tv.tensor(np.ones(1_000_000, np.float32))
    y = drop(x).numpy()
    assert set(np.unique(y)) == {0, 2} and abs(y.mean() - 1) < 0.01
    assert drop.eval()(x) is x
    assert nn.Dropout(0.0)(x) is x
    again = nn.Dropout(0.5, np.random.default_rng(0))
    assert np.array_equal(again(x).numpy(), y)


def test_drop_path_drops_whole_examples():
    drop = nn.DropPath(0.25, np.random.default_rng(0))
    y = drop(tv.tensor(np.ones((1000, 3, 2), np.float32))).numpy().reshape(1000, 6)
    assert set(np.unique(y)) == {0, np.float32(4 / 3)} and (y == y[:, :1]).all() and 0.2 < (y == 0).mean() < 0.3
    assert (drop.eval()(tv.tensor(np.ones((5, 2)))).numpy() == 1).all()


def test_small_layers():
    x = _x(2, 3, 4, 4)
    assert np.array_equal(nn.ReLU()(x).numpy(), np.maximum(x.numpy(), 0))
    assert nn.Identity()(x) is x and nn.Flatten()(x).shape == (2, 48)
    assert nn.GELU()(tv.tensor([1.0])).item() == pytest.approx(0.8413447, abs=1e-6)
    assert nn.GELU("tanh")(tv.tensor([1.0])).item() == pytest.approx(0.8411920, abs=1e-6)
    assert_close(nn.GlobalAvgPool2d()(x).numpy(), x.numpy().mean(axis=(2, 3)), 1e-6)
    blocks = x.numpy().reshape(2, 3, 2, 2, 2, 2)
    assert np.array_equal(nn.MaxPool2d(2)(x).numpy(), blocks.max(axis=(3, 5)))
    assert_close(nn.AvgPool2d(2)(x).numpy(), blocks.mean(axis=(3, 5)), 1e-6)
    assert nn.MaxPool2d(3, stride=1, padding=1)(x).shape == (2, 3, 4, 4)
    assert nn.MLP(8, 16)(_x(2, 5, 8)).shape == (2, 5, 8)


def test_conv_takes_pairs_and_groups():
    layer = nn.Conv2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0), groups=2, bias=False)
    assert layer(_x(2, 4, 7, 5)).shape == (2, 6, 4, 5) and layer.weight.shape == (6, 2, 3, 1)


# ------------------------------------------------------------------ the Transformer's parts


@pytest.mark.parametrize(("image", "patch"), [(8, 4), ((4, 6), 2), ((6, 4), (3, 2))])
def test_both_ways_to_embed_patches_agree(image, patch, rng):
    a, b = nn.PatchEmbed(image, patch, 3, 10, rng=rng), nn.PatchEmbed(image, patch, 3, 10, method="conv")
    b.load_state_dict(a.state_dict())
    x = _x(2, 3, *a.image_size)
    assert a(x).shape == (2, a.tokens, 10)
    assert_close(a(x).numpy(), b(x).numpy(), 1e-5)
    a(x).sum().backward()
    b(x).sum().backward()
    assert_close(a.proj.weight.grad, b.proj.weight.grad, 1e-5)
    assert a.summary(x.shape).gflop == b.summary(x.shape).gflop > 0


def test_attention_is_the_formula(rng):
    layer, x = nn.MultiHeadAttention(6, 2, rng=rng), _x(2, 5, 6)
    q, k, v = (layer.qkv(x).numpy().reshape(2, 5, 3, 2, 3).transpose(2, 0, 3, 1, 4))
    s = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(3))
    p = s / s.sum(axis=-1, keepdims=True)
    y = (p @ v).transpose(0, 2, 1, 3).reshape(2, 5, 6)
    assert_close(layer(x).numpy(), y @ layer.proj.weight.numpy().T + layer.proj.bias.numpy(), 1e-5)
    found = layer.attention(x)
    assert_close(found.numpy(), p, 1e-5)
    assert not found.requires_grad


def test_attention_masks_reach_the_block(rng):
    block, x = nn.TransformerBlock(8, 2, 16, rng=rng).eval(), _x(2, 5, 8)
    causal = np.tril(np.ones((5, 5), bool))
    changed = tv.tensor(np.concatenate([x.numpy()[:, :4], _x(2, 1, 8, seed=1).numpy()], axis=1))
    a, b = block(x, causal).numpy(), block(changed, causal).numpy()
    assert_close(a[:, :4], b[:, :4], 1e-6)
    assert not np.allclose(block(x).numpy()[:, :4], block(changed).numpy()[:, :4])
    with pytest.raises(AssertionError):
        assert_close(a, b, 1e-6)
    assert np.triu(block.attn.attention(x, causal).numpy(), 1).max() == 0


def test_drop_path_skips_whole_branches():
    block, x = nn.TransformerBlock(8, 2, 16, drop_path=0.9, rng=np.random.default_rng(0)), _x(50, 3, 8)
    same = (block(x).numpy() == x.numpy()).all(axis=(1, 2))
    assert 0.5 < same.mean() < 1  # 0.9² of the examples skip both branches
    assert not (block.eval()(x).numpy() == x.numpy()).all(axis=(1, 2)).any()


@pytest.mark.parametrize(("make", "text"), [
    (lambda: nn.Linear(0, 3), "Linear: in_features must be an integer of at least 1, got 0"),
    (lambda: nn.Linear(3, 2.5), "out_features must be an integer of at least 1, got 2.5"),
    (lambda: nn.Conv2d(3, 8, 3, groups=2), "groups=2 must divide in_channels=3 and out_channels=8"),
    (lambda: nn.Conv2d(3, 8, "3"), "kernel_size must be an integer or a pair"),
    (lambda: nn.Conv2d(3, 8, 3, stride=(1, 1, 1)), "stride must be an integer or a pair"),
    (lambda: nn.Dropout(1.0), r"Dropout: p .* must be in \[0, 1\), got 1.0"),
    (lambda: nn.DropPath(-0.1), r"DropPath: p .* \[0, 1\), got -0.1"),
    (lambda: nn.Dropout(float("nan")), "got nan"),
    (lambda: nn.BatchNorm2d(0), "channels"),
    (lambda: nn.BatchNorm2d(3, momentum=1.5), "momentum"),
    (lambda: nn.LayerNorm(-1), "width"),
    (lambda: nn.GELU("erf"), "approximate must be 'none' or 'tanh'"),
    (lambda: nn.MultiHeadAttention(64, 5), "5 heads do not divide the width 64: use 2, 4, 8 heads, or .* multiple of 5"),
    (lambda: nn.MultiHeadAttention(64, 0), "heads must be an integer of at least 1"),
    (lambda: nn.PatchEmbed(30, 4), "patches of 4 do not divide the image's height 30: use images of 28 or 32"),
    (lambda: nn.PatchEmbed(2, 4), "do not divide the image's height 2: use images of 4, or another patch size"),
    (lambda: nn.PatchEmbed((32, 30), 4), "width 30"),
    (lambda: nn.PatchEmbed(32, 0), "patch must be an integer of at least 1"),
    (lambda: nn.PatchEmbed(32, 4, method="fft"), "method must be 'linear' or 'conv'"),
    (lambda: nn.TransformerBlock(8, 2, 0), "out_features"),
])
def test_wrong_arguments_are_named_with_the_mend(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"takes images \(B, 3, 8, 8\), got \(2, 3, 16, 16\): resize"):
        nn.PatchEmbed(8, 4)(_x(2, 3, 16, 16))
    with pytest.raises(ValueError, match=r"got \(2, 1, 8, 8\)"):
        nn.PatchEmbed(8, 4)(_x(2, 1, 8, 8))
