"""On a GPU: AutoAttack searches in low precision, and what it finds holds in strict float32. Skipped without a GPU."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from worstclass.attacks import APGD, FAB, PGD, Ensemble, Square, cw, pgd, trades_attack
from worstclass.attacks.active_set import ActiveSet, Search
from worstclass.attacks.search_model import Recorded, Strict, recorded, search_model
from worstclass.data import Images, to_float
from worstclass.evaluation.evaluate import LARGEST_BATCH, batch_that_fits, evaluate
from worstclass.execution.backend import Precision
from worstclass.models import make_model
from worstclass.objectives import kl_divergence
from worstclass.training.engine import Engine, OneGraph

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
DEVICE = torch.device("cuda")
EPS = 1 / 255
ATTACK = Ensemble(
    attacks={
        "apgd-ce": APGD(eps=EPS, steps=20),
        "apgd-t": APGD(eps=EPS, steps=20, loss="targeted-dlr", targets=3),
        "fab-t": FAB(eps=EPS, steps=20, targets=3),
        "square": Square(eps=EPS, queries=100),
    }
)


@pytest.fixture(scope="module")
def many() -> Images:
    """Noise with a brightened row for each class; so many that 0.3 points of accuracy are 19 images."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (6400,), generator=generator)
    x = torch.randint(0, 200, (6400, 3, 32, 32), generator=generator)
    x[torch.arange(6400), :, 3 * y] += 12
    return Images(x.to(torch.uint8), y)


@pytest.fixture(scope="module")
def trained(many: Images) -> tuple[torch.nn.Module, Images]:
    """A network that has learned to tell the rows, and a tenth of the images: some of it holds and some does not."""
    images = many.select(torch.arange(640))
    generator = torch.Generator().manual_seed(1)
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for part in torch.randperm(6400, generator=generator).split(128):
            optimizer.zero_grad()
            logits = model(to_float(many.x[part].cuda()))
            F.cross_entropy(logits, many.y[part].cuda()).backward()
            optimizer.step()
    return model.eval().requires_grad_(False), images


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_search_in_low_precision_finds_what_float32_finds(
    precision: Precision, trained: tuple[torch.nn.Module, Images]
) -> None:
    model, images = trained
    strict = evaluate(model, images, {"aa": ATTACK}).broken_by["aa"]
    fast = evaluate(model, images, {"aa": ATTACK}, precision=precision)
    print(f"{precision}: standing {(fast.broken_by['aa'] == '').sum()}, strict {(strict == '').sum()} of {len(strict)}")
    assert ((fast.broken_by["aa"] == "") == (strict == "")).mean() >= 0.98
    assert ((fast.predictions["aa"] != fast.labels) == (fast.broken_by["aa"] != "")).all()


def assert_as_strong(attack: str, held: dict[str, NDArray[np.bool_]], *, within: float = 0.003) -> None:
    """Two ways to search are at most 0.3 points apart, or so far as is given, by the images that hold: without an
    attack, and in each way."""
    (_, natural), (_, strict), (way, low) = held.items()
    print(f"{attack}: {strict.mean():.4f} in fp32, {low.mean():.4f} in {way}, of {natural.mean():.4f}; ", end="")
    print(f"{(strict & ~low).sum()} and {(low & ~strict).sum()} images hold in one alone")
    assert 0.2 < strict.mean() < natural.mean() - 0.1
    assert abs(strict.mean() - low.mean()) <= within


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_pgd_in_low_precision_is_as_strong(
    precision: Precision, trained: tuple[torch.nn.Module, Images], many: Images
) -> None:
    model, _ = trained
    attack = {"pgd-20": pgd(20, eps=EPS)}
    strict, low = (evaluate(model, many, attack, precision=kind) for kind in ("fp32", precision))
    columns = {"natural": strict.predictions["natural"]}
    columns |= {"fp32": strict.predictions["pgd-20"], precision: low.predictions["pgd-20"]}
    assert_as_strong("PGD-20", {name: predicted == strict.labels for name, predicted in columns.items()})


def held_against(attack: PGD, model: torch.nn.Module, many: Images) -> dict[str, NDArray[np.bool_]]:
    """The images that hold: without the attack, with it in float32, and with it as the fast engine of training shows it
    the model, compiled and in bfloat16; strict float32 is the judge. The KL that it reaches is the same within 3%."""
    judge, engine = Strict(model), Engine(fast=True, precision="bf16")
    view = engine.attacked(model, to_float(many.x[:640].cuda()))
    seen, held, kl = view(), torch.zeros(3, len(many), dtype=torch.bool), torch.zeros(3)
    assert isinstance(seen, OneGraph)
    for part in torch.arange(len(many)).split(640):
        x, y = to_float(many.x[part].cuda()).contiguous(memory_format=torch.channels_last), many.y[part].cuda()
        strict = attack(judge, x, y, generator=torch.Generator(DEVICE).manual_seed(1))
        with engine.context(DEVICE):
            low = attack(seen, x, y, generator=torch.Generator(DEVICE).manual_seed(1))
        logits = [judge(each) for each in (x, strict, low)]
        held[:, part] = torch.stack([each.argmax(1) == y for each in logits]).cpu()
        kl += torch.stack([kl_divergence(logits[0], each).sum() for each in logits]).cpu()
    print(f"KL {kl[1] / len(many):.4f} in fp32, {kl[2] / len(many):.4f} in the fast engine's bf16")
    assert abs(kl[1] - kl[2]) < 0.03 * kl[1]
    return dict(zip(("natural", "fp32", "the fast engine's bf16"), held.numpy(), strict=True))


@pytest.mark.filterwarnings("default")  # the compiler warns of its own imports
def test_the_attack_of_training_is_as_strong_in_bfloat16(trained: tuple[torch.nn.Module, Images], many: Images) -> None:
    assert_as_strong("PGD-20", held_against(pgd(20, eps=EPS), trained[0], many))


@pytest.mark.filterwarnings("default")
def test_the_attack_of_trades_is_as_strong_in_bfloat16(trained: tuple[torch.nn.Module, Images], many: Images) -> None:
    """By the KL it climbs. It starts where KL is least, and a little noise decides where it goes: with another
    start a fifth of the images and more end otherwise. So those that hold are to differ by three standard errors at
    most (McNemar's). tests/training/test_unrounded.py guards the last layer: it matters where a network is flat."""
    held = held_against(trades_attack(eps=2 * EPS, step_size=EPS / 2), trained[0], many)
    _, strict, low = held.values()
    assert_as_strong("TRADES", held, within=3 * (strict != low).sum() ** 0.5 / len(many))


def test_attacks_of_an_evaluation_are_captured(
    trained: tuple[torch.nn.Module, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGD's and CW's: all their steps are replayed, whole batches of them."""
    model, images = trained
    replayed, forward = list[bool](), Recorded.forward

    def watched(self: Recorded, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            replayed.append(x.shape == self.shape)
        return forward(self, x)

    monkeypatch.setattr(Recorded, "forward", watched)
    evaluate(model, images, {"pgd-20": pgd(20, eps=EPS), "cw": cw(eps=EPS)}, precision="bf16", batch_size=320)
    assert replayed == [True] * 2 * (20 + cw(eps=EPS).steps)


def test_what_is_captured_is_the_model(trained: tuple[torch.nn.Module, Images]) -> None:
    model, images = trained
    x = to_float(images.x.cuda())
    view = search_model(model, x, precision="bf16")
    replayed = recorded(view, x)
    assert isinstance(replayed, Recorded)
    for scale in (1.0, 0.5):  # what was recorded is not repeated, other images have other gradients
        slopes = []
        for its in (view, replayed):
            moved = (scale * x).requires_grad_()
            slopes.append(torch.autograd.grad(its(moved).logsumexp(1).sum(), moved)[0].clone())
        assert float((slopes[0] - slopes[1]).norm() / slopes[0].norm()) < 0.01


def test_every_break_is_confirmed(trained: tuple[torch.nn.Module, Images]) -> None:
    model, images = trained
    x, y = to_float(images.x.cuda()), images.y.cuda()
    broken = ATTACK.eliminate(search_model(model, x, precision="bf16"), x, y, judge=Strict(model))
    assert torch.equal(Strict(model)(broken.x_adv).argmax(1) != y, broken.by != -1)


@pytest.mark.parametrize("name", list(ATTACK.attacks))
def test_no_sync_between_two_looks(
    name: str, trained: tuple[torch.nn.Module, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises where the host would wait for the device, except while claims are judged."""
    model, images = trained
    x, y = to_float(images.x.cuda()), images.y.cuda()
    view = search_model(model, x, precision="bf16")
    usual_run, usual_settle = Search.run, Search.settle

    def settle(self: Search, active: ActiveSet) -> ActiveSet:
        torch.cuda.set_sync_debug_mode("default")
        active = usual_settle(self, active)
        torch.cuda.set_sync_debug_mode("error")
        return active

    def run(self: Search, *arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            usual_run(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Search, "settle", settle)
    monkeypatch.setattr(Search, "run", run)
    ATTACK.attacks[name].breaks(view, x, y, judge=Strict(model))


def test_as_many_images_at_a_time_as_fit(
    trained: tuple[torch.nn.Module, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = trained
    free, whole = torch.cuda.mem_get_info()
    assert batch_that_fits(model, images) == LARGEST_BATCH or free < 2**36
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, whole))
    few = batch_that_fits(model, images)
    x = to_float(images.x[:few].cuda()).requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(model(x).sum(), x)
    used = torch.cuda.max_memory_allocated() - before
    print(f"{few} images in {used / 2**20:.0f} MiB")
    assert 2**28 < used < 2**30
    assert evaluate(model, images, {}).predictions["natural"].shape == (640,)
