"""ViT: the sizes of the papers, the options, and what can be looked at inside."""

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv
from tinyvit import models, nn, optim
from tinyvit.models.vit import sincos_positions

SMALL = {"image_size": 8, "patch": 4, "num_classes": 5, "width": 16, "depth": 2, "heads": 2, "mlp": 24}


def _images(B=3, size=8, seed=0):
    return tv.tensor(np.random.default_rng(seed).standard_normal((B, 3, size, size)).astype(np.float32))


@pytest.mark.parametrize(("name", "options", "count"), [
    ("ti16", {}, 5_717_416), ("s16", {}, 22_050_664), ("b16", {}, 86_567_656), ("l16", {}, 304_326_632),
    ("h14", {}, 632_045_800), ("b16", {"head": "mlp"}, 87_158_248), ("cifar", {}, 1_803_850), ("cifar-quick", {}, 311_338),
])
def test_parameter_counts(name, options, count):
    with nn.skip_init():
        model = models.vit(name, **options)
    assert model.num_parameters() == count


@pytest.mark.parametrize(("name", "gflop"), [("cifar-quick", 0.045), ("cifar", 0.244)])
def test_operations_of_the_small_presets(name, gflop):
    assert models.create(name).summary((1, 3, 32, 32)).gflop == pytest.approx(gflop, abs=0.0005)


def test_names_are_those_of_timm():
    names = list(models.ViT(**SMALL).state_dict())
    assert names[:4] == ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"]
    block = ["norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias",
             "norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"]
    assert names[4:-4] == [f"blocks.{i}.{n}" for i in range(2) for n in block]
    assert names[-4:] == ["norm.weight", "norm.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize("pos", ["1d", "2d", "sincos", "none"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_every_option_trains_every_parameter(pos, pool, head):
    model = models.ViT(**SMALL, pos=pos, pool=pool, head=head, dropout=0.1, drop_path=0.1, rng=np.random.default_rng(0))
    x, N = _images(), 4 + (pool == "cls")
    assert model.features(x).shape == (3, N, 16) and model(x).shape == (3, 5)
    tv.cross_entropy(model(x), np.array([0, 1, 2])).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.shape == p.shape and np.isfinite(p.grad).all(), name
    assert ("cls_token" in model.state_dict()) == (pool == "cls")
    assert optim.param_groups(model, 0.1)[1]["params"]


def test_the_start_is_that_of_the_papers(rng):
    model = models.ViT(32, 4, num_classes=10, width=64, depth=1, heads=2, mlp=128, rng=rng)
    state = model.state_dict()
    for name in ("head.weight", "pos_embed"):
        assert np.abs(state[name]).max() <= 0.04 and state[name].std() == pytest.approx(0.0176, rel=0.1), name
    for name, fans in (("attn.qkv", 64 + 64), ("attn.proj", 64 + 64), ("mlp.fc1", 64 + 128), ("mlp.fc2", 128 + 64)):
        w = state[f"blocks.0.{name}.weight"]
        assert 0.99 < np.abs(w).max() / (6 / fans) ** 0.5 <= 1 and w.std() == pytest.approx((2 / fans) ** 0.5, rel=0.05), name
    assert all(not v.any() for k, v in state.items() if k.endswith("bias") or k == "cls_token")
    assert 0.12 < np.abs(state["patch_embed.proj.weight"]).max() <= 48**-0.5 + 1e-6


def test_one_seed_makes_one_model():
    a, b, c = (models.create("cifar-quick", rng=np.random.default_rng(s)).state_dict() for s in (3, 3, 4))
    assert all(np.array_equal(v, b[k]) for k, v in a.items()) and not np.array_equal(a["head.weight"], c["head.weight"])


def test_positions_tell_patches_apart_where_there_are_any():
    x = _images().numpy()
    moved = x.copy()
    moved[:, :, :4], moved[:, :, 4:] = x[:, :, 4:], x[:, :, :4]
    for pos in ("1d", "2d", "sincos", "none"):
        model = models.ViT(**SMALL, pos=pos, rng=np.random.default_rng(0)).eval()
        same = np.allclose(model(tv.tensor(x)).numpy(), model(tv.tensor(moved)).numpy(), atol=1e-6)
        assert same == (pos == "none"), pos


def test_two_dimensional_codes_are_a_row_half_and_a_column_half():
    model = models.ViT(**{**SMALL, "image_size": (8, 12)}, pos="2d", rng=np.random.default_rng(0))
    codes = model._grid_codes().numpy().reshape(2, 3, 16)
    assert (codes[:, :, :8] == codes[:, :1, :8]).all() and (codes[:, :, 8:] == codes[:1, :, 8:]).all()
    assert len(np.unique(codes.reshape(6, 16), axis=0)) == 6


def test_sincos_codes():
    codes = sincos_positions(2, 3, 8)
    omega = np.array([1.0, 0.01])
    assert_close(codes[5], np.concatenate([np.sin(omega), np.cos(omega), np.sin(2 * omega), np.cos(2 * omega)]), 1e-6)
    assert codes.shape == (6, 8) and codes.dtype == np.float32
    assert "pos_embed" not in models.ViT(**SMALL, pos="sincos").state_dict()


def test_attention_maps_are_probabilities_of_evaluation_and_change_nothing():
    rng = np.random.default_rng(0)
    model = models.ViT(**SMALL, dropout=0.5, drop_path=0.5, rng=rng)
    before = rng.bit_generator.state
    maps = model.attention_maps(_images())
    assert len(maps) == 2 and all(isinstance(m, np.ndarray) and m.shape == (3, 2, 5, 5) for m in maps)
    for m in maps:
        np.testing.assert_allclose(m.sum(axis=-1), 1, rtol=1e-5)
    assert model.training and rng.bit_generator.state == before
    assert models.ViT(**SMALL, pool="mean").attention_maps(_images())[0].shape == (3, 2, 4, 4)


def test_the_head_sees_the_class_token_or_the_mean():
    model = models.ViT(**SMALL).eval()
    x = _images()
    tokens = model.features(x).numpy()
    assert_close(model(x).numpy(), tokens[:, 0] @ model.head.weight.numpy().T, 1e-5)
    model = models.ViT(**SMALL, pool="mean", head="mlp").eval()
    hidden = np.tanh(model.features(x).numpy().mean(axis=1) @ model.pre_logits.weight.numpy().T)
    assert_close(model(x).numpy(), hidden @ model.head.weight.numpy().T, 1e-5)


def test_stochastic_depth_grows_from_the_first_block_to_the_last():
    model = models.ViT(**{**SMALL, "depth": 3}, drop_path=0.4)
    assert [b.drop_path.p for b in model.blocks] == pytest.approx([0, 0.2, 0.4])


def test_it_learns_a_few_images_by_heart():
    tv.manual_seed(0)
    model, x, y = models.ViT(**SMALL), _images(8), np.arange(8) % 5
    optimizer = optim.AdamW(optim.param_groups(model, 0.01), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = tv.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(("options", "text"), [
    ({"pos": "3d"}, "pos must be one of 1d, 2d, sincos, none, got '3d'"), ({"pool": "max"}, "pool must be one of cls, mean"),
    ({"head": "none"}, "head must be one of linear, mlp"), ({"depth": 0}, "at least 1, got 0 and 5"),
    ({"num_classes": 0}, "at least 1, got 2 and 0"), ({"heads": 3}, "3 heads do not divide the width 16"),
    ({"width": 18, "pos": "sincos"}, "multiple of 4, got 18"), ({"patch": 3}, "patches of 3 do not divide"),
    ({"dropout": 1.0}, r"\[0, 1\)"), ({"drop_path": -0.5}, r"\[0, 1\)"),
])
def test_settings_that_do_not_fit_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        models.ViT(**{**SMALL, **options})


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown ViT 'b17': choose from ti16, s16, b16, l16, h14, cifar"):
        models.vit("b17")
    with pytest.raises(ValueError, match=r"unknown model 'vgg': choose from .*cifar-quick, resnet20, resnet18"):
        models.create("vgg")
    with pytest.raises(ValueError, match=r"unknown ResNet 'resnet50': choose from resnet20, resnet18"):
        models.resnet("resnet50")


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"takes images \(B, 3, 8, 8\), got \(2, 3, 12, 12\)"):
        models.ViT(**SMALL)(_images(2, 12))
