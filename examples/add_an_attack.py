"""Add an attack: a random search without gradients, called as PGD is, and checked against its ball."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import worstclass as wc
from worstclass import rng


@dataclass(frozen=True, kw_only=True)
class RandomSigns:
    """Try corners of the L-inf ball, eps * (+1 or -1) for each pixel, and keep the one of highest loss."""

    eps: float
    tries: int

    def __call__(
        self,
        model: wc.Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: rng.Randomness = None,
    ) -> Tensor:
        generator = generator or rng.generator(0, "random-signs", device=x.device)
        radius = self.eps * (torch.ones_like(y, dtype=x.dtype) if radius_scale is None else radius_scale).view(
            -1, 1, 1, 1
        )
        best, best_loss = x, torch.full_like(y, -torch.inf, dtype=x.dtype)
        with torch.no_grad():
            for _ in range(self.tries):
                signs = (2 * rng.uniform(x, generator) - 1).sign()
                x_adv = (x + radius * signs).clamp(0, 1)
                loss = F.cross_entropy(model(x_adv), y, reduction="none")
                better = loss > best_loss
                best = torch.where(better.view(-1, 1, 1, 1), x_adv, best)
                best_loss = torch.where(better, loss, best_loss)
        return best


def check(attack: RandomSigns, x: Tensor, x_adv: Tensor) -> None:
    """Inside the ball and inside [0, 1], as every attack must be."""
    assert float((x_adv - x).abs().max()) <= attack.eps + 1e-6
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1


def train_natural(images: wc.Images, epochs: int) -> wc.Classifier:
    """A model to attack, trained on clean images."""
    plan = wc.Plan(epochs=epochs, batch_size=128, lr=0.05, valid_attack=wc.PGD(eps=0.1, steps=1, step_size=0.1))
    train, valid = wc.split_validation(images, 10, 1 / 11)
    model = wc.make_model("small-cnn", num_classes=10, in_channels=1, seed=plan.seed)
    uniform = wc.Fixed(torch.ones(10), torch.full((10,), 0.1))
    state = wc.new_state(model, uniform, plan)
    for _ in wc.fit(state, train, valid, wc.Natural(), plan):
        pass
    return model.eval()


def main(epochs: int = 3, limit: int | None = None, tries: int = 50) -> dict[str, float]:
    """Attack the validation images; returns the accuracy on clean images and under each attack."""
    images = wc.open_source("fashion-mini").read("train")
    images = wc.Images(images.x[:limit], images.y[:limit])
    model = train_natural(images, epochs)
    _, valid = wc.split_validation(images, 10, 1 / 11)
    x, y = wc.to_float(valid.x), valid.y
    signs = RandomSigns(eps=0.05, tries=tries)
    attacks: dict[str, wc.Attack] = {
        "random signs": signs,
        "PGD-20": wc.make_attack("pgd-20", eps=0.05),
    }
    adversarial = {name: attack(model, x, y) for name, attack in attacks.items()}
    check(signs, x, adversarial["random signs"])
    accuracy = {}
    for name, inputs in ({"clean": x} | adversarial).items():
        with torch.no_grad():
            right = (model(inputs).argmax(1) == y).double()
        accuracy[name] = right.mean().item()
        worst = min(right[y == k].mean().item() for k in range(10))
        print(f"{name:12s}  average {100 * accuracy[name]:.1f}%  worst {100 * worst:.1f}%")
    return accuracy


if __name__ == "__main__":
    main()
