"""Worst-class adversarial training: plain_loop.py with three lines of worstclass in it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import worstclass as wc

EPS, STEP_SIZE, STEPS = 0.1, 0.03, 5


def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """PGD on cross-entropy, inside the L-inf ball around x and inside [0, 1]."""
    model.eval()
    x_adv = (x + EPS * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(STEPS):
        x_adv.requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
        x_adv = (x_adv.detach() + STEP_SIZE * grad.sign()).clamp(x - EPS, x + EPS).clamp(0, 1)
    return x_adv


def main(epochs: int = 20, limit: int | None = None) -> tuple[float, float]:
    """Train on the first `limit` images; returns the last average and worst-class validation accuracy."""
    torch.manual_seed(1)
    train, valid = wc.split_validation(wc.open_source("fashion-mini").read("train"), num_classes=10, fraction=1 / 11)
    train_set = TensorDataset(wc.to_float(train.x[:limit]), train.y[:limit])
    valid_images, valid_labels = wc.to_float(valid.x), valid.y
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    guard = wc.ClassGuard(train.class_counts(10))
    average = worst = 0.0
    for epoch in range(1, epochs + 1):
        for x, y in DataLoader(train_set, batch_size=100, shuffle=True):
            x_adv = attack(model, x, y)
            model.train()
            logits = model(x_adv)
            losses = F.cross_entropy(logits, y, reduction="none")
            loss = guard.weigh(losses, y, logits.argmax(1) == y).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        valid_adv = attack(model, valid_images, valid_labels)
        with torch.no_grad():
            valid_logits = model(valid_adv)
        valid_losses = F.cross_entropy(valid_logits, valid_labels, reduction="none")
        guard.update(valid_logits.argmax(1) == valid_labels, valid_labels)
        right = (valid_logits.argmax(1) == valid_labels).double()
        average, worst = right.mean().item(), min(right[valid_labels == k].mean().item() for k in range(10))
        print(f"epoch {epoch}  loss {valid_losses.mean():.3f}  average {100 * average:.1f}%  worst {100 * worst:.1f}%")
    return average, worst


if __name__ == "__main__":
    main()
