"""The parts of a plan, each against an oracle: AWP, optimizers, schedules, label smoothing, the L2 ball."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny import tiny_config, write_tiny_npz
from worstclass import rng
from worstclass.attacks import PGD, trades_attack
from worstclass.data import Augment, Images, epoch_order, open_source, split_validation
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.models import SmallCNN, make_model
from worstclass.objectives import Madry, Natural, Trades
from worstclass.runs.train import train_run
from worstclass.strategies import uniform
from worstclass.training import (
    SGD,
    AdamW,
    AttackSteps,
    AWPRule,
    Cosine,
    OneCycle,
    Piecewise,
    Plan,
    Progress,
    Schedule,
    WarmUp,
    fit,
    new_state,
)
from worstclass.training.optimizers import Optimizer, OptimizerRule
from worstclass.training.schedules import ramp
from worstclass.types import Classifier, Losses

STEPS = 3  # of an epoch, on the images below


def plan(**changes: Any) -> Plan:
    attack = PGD(eps=0.1, steps=1, step_size=0.1)
    values: dict[str, Any] = {"epochs": 1, "batch_size": 16, "lr": 0.125, "valid_attack": attack}
    return Plan(**(values | changes))


def images(size: int = 16 * STEPS, seed: int = 0) -> Images:
    x = torch.randint(0, 256, (size, 1, 8, 8), generator=rng.generator(seed, "images"), dtype=torch.uint8)
    return Images(x, torch.arange(size) % 3)


class ProxyAWP:
    """As its authors' code has it (csdongxian/AWP, utils_awp.py): a second network is moved by one step of SGD up the
    loss, and the difference of the two, layer by layer scaled to the layer's norm, is the perturbation."""

    def __init__(self, model: nn.Module, gamma: float) -> None:
        self.model, self.proxy, self.gamma = model, copy.deepcopy(model), gamma
        self.optimizer = torch.optim.SGD(self.proxy.parameters(), lr=0.01)

    def calculate(self, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
        self.proxy.load_state_dict(self.model.state_dict())
        self.proxy.train()
        self.optimizer.zero_grad()
        (-loss(self.proxy)).backward()  # type: ignore[no-untyped-call,unused-ignore]
        self.optimizer.step()
        moves = {}
        for (name, old), new in zip(self.model.state_dict().items(), self.proxy.state_dict().values(), strict=True):
            if old.dim() > 1:
                difference = new - old
                moves[name] = old.norm() / (difference.norm() + 1e-20) * difference
        return moves

    @torch.no_grad()
    def add(self, moves: dict[str, Tensor], sign: float) -> None:
        for name, parameter in self.model.named_parameters():
            if name in moves:
                parameter.add_(sign * self.gamma * moves[name])


@pytest.mark.parametrize(("warmup", "every"), [(0, 1), (1, 1), (0, 2)])
def test_awp_is_its_authors(warmup: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRADES with class weights, in float64, against plain PyTorch with a proxy network. The epochs of the warm-up, and
    all steps but every so many, are without; BatchNorm's statistics are those of the pass that is descended from."""
    for module in ("step", "prepare"):
        monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)
    train, gamma, beta = images(), 0.05, 6.0
    natural, robust = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([1.5, 0.25, 1.0])
    ours, theirs = SmallCNN(3, 1).double(), SmallCNN(3, 1).double()
    theirs.load_state_dict(ours.state_dict())
    strategy = uniform(3)
    strategy.weights.set(natural=natural, robust=robust)
    attack = trades_attack(eps=0.1, steps=2, step_size=0.06)
    the_plan = plan(epochs=2, seed=7, awp=AWPRule(gamma, warmup, every), augment=Augment(crop_padding=0, flip=False))
    list(fit(new_state(ours, strategy, the_plan), train, images(9), Trades(beta=beta, attack=attack), the_plan))

    awp = ProxyAWP(theirs, gamma)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.125, momentum=0.9, weight_decay=2e-4)
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

            def loss(model: nn.Module, x: Tensor = x, x_adv: Tensor = x_adv, y: Tensor = y) -> Tensor:
                logits, attacked = model(x), model(x_adv)
                divergence = F.kl_div(attacked.log_softmax(1), logits.softmax(1), reduction="none").sum(1)
                total = natural[y] * F.cross_entropy(logits, y, reduction="none") + robust[y] * beta * divergence
                return total.mean()

            perturbed = epoch > warmup and number in range(1, STEPS + 1, every)
            moves = awp.calculate(loss) if perturbed else {}
            awp.add(moves, 1.0)
            theirs.train()
            optimizer.zero_grad()
            loss(theirs).backward()  # type: ignore[no-untyped-call,unused-ignore]
            optimizer.step()
            awp.add(moves, -1.0)
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=name)


def network() -> nn.Module:
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)
    return nn.Sequential(*layers).double()


def gradients(model: nn.Module, step: int) -> list[Tensor]:
    generator = rng.generator(step, "gradients")
    return [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in model.parameters()]


OPTIMIZERS: dict[str, tuple[OptimizerRule, Callable[[Any, float], torch.optim.Optimizer]]] = {
    "sgd": (
        SGD(momentum=0.9, weight_decay=0.01),
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.01, fused=False, foreach=False),
    ),
    "nesterov": (
        SGD(momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.8, nesterov=True, weight_decay=0.01, foreach=False),
    ),
    "plain": (
        SGD(momentum=0.0, weight_decay=0.0),
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.0, weight_decay=0.0, foreach=False),
    ),
    "adamw": (
        AdamW(betas=(0.8, 0.99), weight_decay=0.1),
        lambda p, lr: torch.optim.AdamW(p, lr=lr, betas=(0.8, 0.99), weight_decay=0.1, fused=False, foreach=False),
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("clip", [None, 1.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_torchs(name: str, clip: float | None) -> None:
    """Five steps by given gradients, the rate halved on the way; after three of them the state goes through a dict."""
    rule, make = OPTIMIZERS[name]
    ours, theirs = network(), network()
    theirs.load_state_dict(ours.state_dict())
    optimizer, reference = Optimizer(ours, rule, 0.25, clip), make(theirs.parameters(), 0.25)
    storage = {key: tensor.data_ptr() for key, tensor in optimizer.state_dict().items()}
    for step in range(5):
        if step == 3:
            kept = {key: tensor.clone() for key, tensor in optimizer.state_dict().items()}
            optimizer = Optimizer(ours, rule, 0.25, clip)
            storage = {key: tensor.data_ptr() for key, tensor in optimizer.state_dict().items()}
            optimizer.load_state_dict(kept)
            optimizer.set_lr(0.125)
            reference.param_groups[0]["lr"] = 0.125
        for model in (ours, theirs):
            for parameter, grad in zip(model.parameters(), gradients(model, step), strict=True):
                parameter.grad = grad
        if clip is not None:
            total = torch.stack([grad.square().sum() for grad in gradients(theirs, step)]).sum().sqrt()
            assert total > clip
            for parameter in theirs.parameters():
                assert parameter.grad is not None
                parameter.grad *= clip / (total + 1e-6)  # as torch.nn.utils.clip_grad_norm_ says
        optimizer.step()
        reference.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert storage == {key: tensor.data_ptr() for key, tensor in optimizer.state_dict().items()}
    for key, parameter in theirs.named_parameters():
        own = {k.removeprefix(f"{key}."): v for k, v in optimizer.state_dict().items() if k.startswith(f"{key}.")}
        reference_state = {k: v for k, v in reference.state[parameter].items() if v is not None}
        assert own.keys() == reference_state.keys()
        for part, tensor in reference_state.items():
            torch.testing.assert_close(own[part], tensor, rtol=1e-12, atol=1e-12, check_dtype=False)


@pytest.mark.fast
def test_small_gradients_are_not_clipped() -> None:
    model = network()
    optimizer, before = Optimizer(model, SGD(momentum=0.0, weight_decay=0.0), 1.0, 1e3), copy.deepcopy(model)
    for parameter, grad in zip(model.parameters(), gradients(model, 0), strict=True):
        parameter.grad = grad
    optimizer.step()
    for one, other, grad in zip(model.parameters(), before.parameters(), gradients(model, 0), strict=True):
        torch.testing.assert_close(one, other - grad, rtol=1e-12, atol=1e-12)


def one_cycle(done: float) -> float:
    """Two half cosines: from 1/25 up to 1 at 0.25, and down to 1/250000."""
    low, way = (1 / 25, done / 0.25) if done < 0.25 else (1 / 250_000, (1 - done) / 0.75)
    return low + (1 - low) * math.sin(math.pi * way / 2) ** 2


SCHEDULES: dict[str, tuple[Schedule, Callable[[int, float], float]]] = {
    "piecewise": (Piecewise((0.5, 0.75), 0.1), lambda epoch, done: 0.1 ** ((epoch >= 2) + (epoch >= 3))),
    "cosine": (Cosine(), lambda epoch, done: math.cos(math.pi * done / 2) ** 2),
    "one-cycle": (OneCycle(0.25), lambda epoch, done: one_cycle(done)),
    "warm-up": (WarmUp(Cosine(), 1.5), lambda e, done: math.cos(math.pi * done / 2) ** 2 * min(1, 4 * done / 1.5)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_follows_its_schedule_step_by_step(name: str) -> None:
    """In a real run of four epochs, by the rate that the optimizer reads; the record has that of the last step."""
    schedule, formula = SCHEDULES[name]
    the_plan = plan(epochs=4, schedule=schedule)
    state = new_state(SmallCNN(3, 1), uniform(3), the_plan)
    rates: list[float] = []
    run = fit(
        state, images(), images(9), Natural(), the_plan, on_step=lambda *_: rates.append(float(state.optimizer.lr))
    )
    last = [record.lr for record in run]
    wanted = [0.125 * formula(1 + step // STEPS, step / (4 * STEPS)) for step in range(4 * STEPS)]
    assert rates == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert last == pytest.approx(wanted[STEPS - 1 :: STEPS], rel=1e-9)


@pytest.mark.fast
def test_how_schedules_go() -> None:
    points = [Progress(epoch, 50, share / 10) for epoch in range(1, 51) for share in range(10)]
    cosine, cycle = [Cosine()(at) for at in points], [OneCycle(0.3)(at) for at in points]
    assert cosine[0] == 1
    assert all(later < before for before, later in pairwise(cosine))
    top = cycle.index(max(cycle))
    assert points[top].done == pytest.approx(0.3)
    assert (cycle[0], cycle[top]) == pytest.approx((1 / 25, 1.0))
    assert 0 < cycle[-1] < 1e-3
    assert all(before < later for before, later in pairwise(cycle[: top + 1]))
    assert all(before > later for before, later in pairwise(cycle[top:]))
    rise = [ramp(at, 2.5) for at in points]
    assert rise[:26] == pytest.approx([step / 25 for step in range(26)])
    assert set(rise[25:]) == {1.0}
    assert ramp(points[0], 0.0) == 1.0


@pytest.mark.fast
def test_one_cycle_is_torchs_but_for_where_its_ends_are() -> None:
    """torch's reaches them at a step, ours at a share of the run: the same within a step's difference."""
    total = 1000
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=total, pct_start=0.25, cycle_momentum=False
    )
    for step in range(total):
        ours = OneCycle(0.25)(Progress(1 + step // 10, 100, step % 10 / 10))
        assert ours == pytest.approx(theirs.get_last_lr()[0], abs=0.01)
        optimizer.step()
        theirs.step()


@dataclass(frozen=True, kw_only=True)
class Spy:
    """An attack that notes how it is called, and changes nothing."""

    steps: int = 5
    step_size: float = 0.5
    seen: list[tuple[int, float, Tensor | None]] = field(default_factory=list)

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, radius_scale: Tensor | None = None, **_: Any
    ) -> Tensor:
        self.seen.append((self.steps, self.step_size, None if radius_scale is None else radius_scale.clone()))
        return x


def test_the_attack_of_training_changes_on_the_way() -> None:
    """Its steps by epoch, its radius by step; validation has the last attack and the full radius throughout."""
    spy, scales = Spy(), torch.tensor([0.5, 1.0, 2.0])
    schedule = AttackSteps((1, 3, 5), (0.9, 0.7, 0.5), (0.5, 0.75))
    the_plan, strategy = plan(epochs=4, radius_warmup=1.5, attack_steps=schedule), uniform(3)
    strategy.weights.set(radius_scale=scales)
    train = images()
    list(fit(new_state(SmallCNN(3, 1), strategy, the_plan), train, images(9), Madry(attack=spy), the_plan))
    trained = [call for call in spy.seen if call[2] is not None]
    validated = [call for call in spy.seen if call[2] is None]
    assert [call[:2] for call in validated] == [(5, 0.5)] * 4
    by_epoch = [(1, 0.9), (3, 0.7), (5, 0.5), (5, 0.5)]
    assert [call[:2] for call in trained] == [by_epoch[step // STEPS] for step in range(4 * STEPS)]
    for step, (_, _, found) in enumerate(trained):
        order = epoch_order(len(train), seed=the_plan.seed, epoch=1 + step // STEPS)
        y = train.y[order.split(16)[step % STEPS]]
        assert found is not None
        torch.testing.assert_close(found, scales[y] * min(1, step / STEPS / 1.5))


@pytest.mark.fast
def test_nesterov_needs_momentum() -> None:
    with pytest.raises(UserError, match="nesterov needs a momentum above 0"):
        SGD(momentum=0.0, nesterov=True)


@pytest.mark.fast
def test_what_has_no_steps_cannot_change_them() -> None:
    schedule = AttackSteps((1, 3), (0.9, 0.7), (0.5,))
    with pytest.raises(UserError, match="early_attack_steps"):
        schedule.objective(Natural(), 0)
    with pytest.raises(UserError, match="one milestone fewer"):
        AttackSteps((1, 3), (0.9, 0.7), (0.5, 0.7))


@pytest.mark.fast
@pytest.mark.parametrize("kind", ["natural", "pgd-at", "trades"])
def test_label_smoothing(kind: str) -> None:
    """-sum_j q_j log p_j with q = (1 - s) onehot + s / K, on the cross-entropy alone."""
    smoothing, spy = 0.2, Spy()
    objective: Any = {
        "natural": Natural(label_smoothing=smoothing),
        "pgd-at": Madry(attack=spy, label_smoothing=smoothing),
        "trades": Trades(beta=2.0, attack=spy, label_smoothing=smoothing),
    }[kind]
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    x, x_adv, y = torch.rand(5, 1, 2, 2).double(), torch.rand(5, 1, 2, 2).double(), torch.tensor([0, 1, 2, 0, 1])
    losses: Losses = objective.losses(model, x, x_adv, y)
    for i in range(5):
        logits = model((x_adv if kind == "pgd-at" else x)[i : i + 1])[0].tolist()
        log_sum = math.log(sum(math.exp(z) for z in logits))
        q = [(1 - smoothing) * (j == int(y[i])) + smoothing / 3 for j in range(3)]
        wanted = -sum(share * (z - log_sum) for share, z in zip(q, logits, strict=True))
        found = losses.robust if kind == "pgd-at" else losses.natural
        assert found[i].item() == pytest.approx(wanted, rel=1e-12)
    if kind == "trades":
        plain = Trades(beta=2.0, attack=spy).losses(model, x, x_adv, y)
        assert torch.equal(losses.robust, plain.robust)


def test_label_smoothing_reaches_every_objective() -> None:
    for method in ("natural", "pgd-at", "trades", "wat"):
        config = tiny_config(Path("none.npz"), method=method, label_smoothing=0.3)
        assert config.make_objective().label_smoothing == 0.3  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.mark.parametrize("method", ["trades", "pgd-at"])
def test_training_in_l2(method: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both attacks end in the L2 ball, by the radius of each class. That of L-inf reaches eight times as far."""
    eps, scales = 0.8, torch.tensor([0.5, 1.0, 1.5])
    config = tiny_config(data, method=method, norm="l2", eps=eps, attack_steps=5, attack_step_size=0.4, epochs=1)
    moved: list[tuple[Tensor, Tensor]] = []
    usual = PGD.__call__

    def watched(self: PGD, model: Any, x: Tensor, y: Tensor, **given: Any) -> Tensor:
        x_adv = usual(self, model, x, y, **given)
        scale = given.get("radius_scale")
        moved.append(((x_adv - x).flatten(1), eps * (torch.ones(len(y)) if scale is None else scale)))
        return x_adv

    monkeypatch.setattr(PGD, "__call__", watched)
    train, valid = split_validation(open_source(config.data).read("train"), 3, 0.25)
    strategy = uniform(3)
    strategy.weights.set(radius_scale=scales)
    model = make_model("small-cnn", num_classes=3, in_channels=1, seed=1)
    list(fit(new_state(model, strategy, config.make_plan()), train, valid, config.make_objective(), config.make_plan()))
    assert len(moved) == 5 + 2  # five batches; the attack of the losses and that of the accuracy, on validation
    for delta, radius in moved:
        length = delta.norm(dim=1)
        assert (length <= radius * (1 + 1e-5)).all()
        assert (length > 0).any()


def test_a_run_in_l2_is_evaluated_in_l2(data: Path, tmp_path: Path) -> None:
    settings = {"method": "pgd-at", "norm": "l2", "eps": 0.8, "attack_step_size": 0.5, "epochs": 1}
    run = train_run(tiny_config(data, **settings), tmp_path / "run")
    target = run_target(run)
    assert (target.norm, target.eps) == ("l2", 0.8)
    card = evaluate_target(target, ["pgd-20"], tmp_path / "evaluation")
    assert (card["about"]["norm"], card["about"]["eps"]) == ("l2", 0.8)
