"""ResNet: sizes, shapes, starts."""

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import models, nn, optim


@pytest.mark.parametrize(("name", "count", "gflop"), [("resnet20", 272_474, 0.082), ("resnet18", 11_173_962, 1.111)])
def test_sizes(name, count, gflop):
    model = models.create(name, rng=np.random.default_rng(0))
    summary = model.summary((1, 3, 32, 32))
    assert model.num_parameters() == summary.parameters == count
    assert summary.gflop == pytest.approx(gflop, abs=0.0006)
    assert model.training and all(not b.any() for n, b in model.named_buffers() if n.endswith("mean"))


def test_every_parameter_gets_a_gradient_and_the_shapes_halve():
    model = models.ResNet((4, 8, 8), 1, num_classes=7, rng=np.random.default_rng(0))
    x = tv.tensor(np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32))
    assert model.features(x).shape == (4, 8, 4, 4) and model(x).shape == (4, 7)
    assert [len(stage[0].shortcut) for stage in model.stages] == [0, 2, 2]
    tv.cross_entropy(model(x), np.array([0, 1, 2, 3])).backward()
    for name, p in model.named_parameters():
        assert np.isfinite(p.grad).all() and p.grad.any(), name


def test_a_block_with_zero_init_begins_as_its_shortcut():
    model = models.ResNet((4, 8), 2, zero_init=True, rng=np.random.default_rng(0))
    x = tv.tensor(np.abs(np.random.default_rng(1).standard_normal((2, 4, 8, 8))).astype(np.float32))
    np.testing.assert_allclose(model.stages[0](x).numpy(), x.numpy(), rtol=1e-6)
    assert models.ResNet((4,), 1).stages[0][0].bn2.weight.numpy().all()


def test_convolutions_start_as_he_et_al_have_it():
    model = models.resnet("resnet20", rng=np.random.default_rng(0))
    assert model.stages[2][1].conv1.weight.numpy().std() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


def test_it_learns_a_few_images_by_heart():
    model = models.ResNet((8, 16), 1, num_classes=4, rng=np.random.default_rng(0))
    x = tv.tensor(np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32))
    optimizer = optim.SGD(optim.param_groups(model, 1e-4), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(40):
        optimizer.zero_grad()
        loss = tv.cross_entropy(model(x), np.arange(8) % 4)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_grey_images_and_wrong_arguments():
    assert models.create("resnet20", num_classes=3, in_channels=1).eval()(np.zeros((1, 1, 28, 28), np.float32)).shape == (1, 3)
    with pytest.raises(ValueError, match="at least one width, block and class, got widths=\\(\\)"):
        models.ResNet(())
    with pytest.raises(ValueError, match="blocks=0"):
        models.ResNet((4,), 0)
    assert isinstance(models.create("resnet18", num_classes=2).fc, nn.Linear)
