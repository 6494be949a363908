"""Self-distillation: labels and whole runs against a transcription of the published code in float64."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worstclass import rng
from worstclass.attacks import PGD, trades_attack
from worstclass.config.recipe import make_config
from worstclass.data import Augment, Images, epoch_order
from worstclass.errors import UserError
from worstclass.models import SmallCNN
from worstclass.objectives import Madry, Natural, Trades
from worstclass.strategies.fixed import uniform
from worstclass.training import ADR, EMA, Plan, Progress, fit, new_state
from worstclass.training.distillation import SoftLabels
from worstclass.types import Objective

STEPS = 3  # of an epoch
PGD_ATTACK = PGD(eps=0.1, steps=1, step_size=0.1)


def images(size: int = 16 * STEPS) -> Images:
    x = torch.randint(0, 256, (size, 1, 8, 8), generator=rng.generator(0, "images"), dtype=torch.uint8)
    return Images(x, torch.arange(size) % 3)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {"epochs": 2, "batch_size": 16, "lr": 0.125, "seed": 7, "valid_attack": PGD_ATTACK}
    values |= {"average": EMA(0.5), "recalibrate": False, "augment": Augment(crop_padding=0, flip=False)}
    return Plan(**(values | changes))


def published(logits: Any, y: Any, share: float, temperature: float) -> Any:
    """src/adr.py of yuyuwu5/ADR, image by image."""
    labels = np.zeros_like(logits)
    for i, row in enumerate(logits / temperature):
        said = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        part = min(max(share - (said.max() - said[y[i]]), 0.0), 1.0)
        labels[i] = part * said
        labels[i, y[i]] += 1 - part
    return labels


class Given(nn.Module):
    """A network that says what it was given."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits


@pytest.mark.fast
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_labels_are_the_published_ones(share: float, temperature: float) -> None:
    logits = torch.randn(50, 4, dtype=torch.float64, generator=rng.generator(3, "logits")) * 3
    y = torch.arange(50) % 4
    labels = SoftLabels(Given(logits))
    labels.set(share, temperature)
    found = labels(torch.zeros(50, 1), y)
    np.testing.assert_allclose(found.numpy(), published(logits.numpy(), y.numpy(), share, temperature), atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.ones(50, dtype=torch.float64))
    if share == 0:
        torch.testing.assert_close(found, F.one_hot(y, 4).double())


@pytest.mark.fast
def test_half_precision_labels_are_wide() -> None:
    labels = SoftLabels(Given(torch.randn(8, 4, generator=rng.generator(3, "logits")).bfloat16()))
    assert labels(torch.zeros(8, 1), torch.arange(8) % 4).dtype == torch.float32


@pytest.mark.fast
def test_share_and_temperature_move_along_a_cosine() -> None:
    """util/utils.py, cosine_scheduler: step i of n has last + (first - last) (1 + cos(pi i / n)) / 2."""
    rule, epochs, steps = ADR((0.7, 0.95), (2.5, 2.0)), 4, 5
    for i in range(epochs * steps):
        cosine = (1 + math.cos(math.pi * i / (epochs * steps))) / 2
        found = rule.at(Progress(1 + i // steps, epochs, i % steps / steps))
        assert found == pytest.approx((0.95 + (0.7 - 0.95) * cosine, 2.0 + 0.5 * cosine), abs=1e-12)


def test_a_run_is_that_of_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRADES in float64, two epochs, with an average of its own as the teacher, in evaluation mode."""
    for module in ("step", "prepare"):
        monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)
    train, rule, beta = images(), ADR((0.5, 0.9), (2.0, 1.5)), 6.0
    ours, theirs = SmallCNN(3, 1).double(), SmallCNN(3, 1).double()
    theirs.load_state_dict(ours.state_dict())
    teacher = copy.deepcopy(theirs).eval()
    attack = trades_attack(eps=0.1, steps=2, step_size=0.06)
    the_plan = plan(adr=rule)
    list(fit(new_state(ours, uniform(3), the_plan), train, images(9), Trades(beta=beta, attack=attack), the_plan))

    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.125, momentum=0.9, weight_decay=2e-4)
    taken = 0
    for epoch in (1, 2):
        for number, index in enumerate(epoch_order(len(train), seed=7, epoch=epoch).split(16), start=1):
            x, y = train.x[index].double() / 255, train.y[index]
            theirs.eval()
            clean = theirs(x).softmax(1).detach()
            noise = torch.randn(x.shape, generator=rng.generator(7, "train", epoch, number), dtype=x.dtype)
            x_adv = (x + 0.001 * noise).clamp(0, 1)
            for _ in range(2):
                x_adv.requires_grad_()
                (grad,) = torch.autograd.grad(F.kl_div(theirs(x_adv).log_softmax(1), clean, reduction="sum"), x_adv)
                x_adv = (x_adv.detach() + 0.06 * grad.sign()).clamp(x - 0.1, x + 0.1).clamp(0, 1)
            cosine = (1 + math.cos(math.pi * taken / (2 * STEPS))) / 2
            with torch.no_grad():
                said = teacher(x).numpy()
            labels = torch.from_numpy(published(said, y.numpy(), 0.9 - 0.4 * cosine, 1.5 + 0.5 * cosine))
            theirs.train()
            optimizer.zero_grad()
            logits, attacked = theirs(x), theirs(x_adv)
            natural = -(labels * logits.log_softmax(1)).sum(1)
            divergence = F.kl_div(attacked.log_softmax(1), logits.softmax(1), reduction="none").sum(1)
            (natural + beta * divergence).mean().backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimizer.step()
            decay = min(0.5, (1 + taken) / (10 + taken))
            for own, live in zip(teacher.state_dict().values(), theirs.state_dict().values(), strict=True):
                own.copy_(decay * own + (1 - decay) * live if own.is_floating_point() else live)
            taken += 1
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("objective", [Natural(), Madry(attack=PGD_ATTACK), Trades(beta=6.0, attack=PGD_ATTACK)])
def test_a_share_of_nothing_is_training_on_the_labels(objective: Objective) -> None:
    """To rounding: cross-entropy with probabilities adds up zeros."""
    runs = []
    for adr in (None, ADR((0.0, 0.0))):
        torch.manual_seed(0)
        model = SmallCNN(3, 1)
        the_plan = plan(adr=adr, epochs=1)
        list(fit(new_state(model, uniform(3), the_plan), images(), images(9), objective, the_plan))
        runs.append(model.state_dict())
    for name, tensor in runs[0].items():
        torch.testing.assert_close(tensor, runs[1][name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.fast
def test_it_needs_an_average_and_says_so() -> None:
    config = make_config({"average": "ema", "adr_share": [0.7, 0.95]})
    assert config.title == "WAT + EMA + ADR"
    assert config.make_plan().adr == ADR((0.7, 0.95), (2.5, 2.0))
    with pytest.raises(UserError, match="adr_share belongs to average 'ema'; the average here is 'none'"):
        make_config({"adr_share": [0.7, 0.95]})
    with pytest.raises(UserError, match="adr_temperature belongs to adr_share"):
        make_config({"average": "ema", "adr_temperature": [2.5, 2.0]})
    for wrong in ([0.7], [0.7, 1.2], 0.7):
        with pytest.raises(UserError, match="adr_share"):
            make_config({"average": "ema", "adr_share": wrong})
    with pytest.raises(UserError, match="adr needs an average"):
        plan(average=None, adr=ADR((0.7, 0.95)))
    with pytest.raises(UserError, match="adr_share is two numbers"):
        ADR((0.7, 1.5))
    with pytest.raises(UserError, match="adr_temperature is two numbers"):
        ADR((0.7, 0.9), (1.0, 0.0))
