"""Plain training, balanced classes, ClassHedge and ClassGuard on an unbalanced and on a mislabelled problem."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import worstclass as wc

CASES = [("unbalanced", learner) for learner in ("plain", "balanced", "ClassHedge", "ClassGuard")]
CASES += [("mislabelled", learner) for learner in ("plain", "ClassHedge", "ClassGuard")]  # balanced as it is


def unbalanced(y: Tensor, order: Tensor) -> Tensor:
    """The images to keep: all of the first class in `order`, a 25th of the last, and steps in between."""
    members = [(y == k).nonzero().flatten() for k in order]
    return torch.cat([each[: round(len(each) * 25 ** (-rank / 9))] for rank, each in enumerate(members)])


def mislabelled(y: Tensor, wrong: int) -> Tensor:
    """Labels, 40% of those of one class wrong: swapped with the labels of random images of other classes."""
    labels, number = y.clone(), round(0.4 * int((y == wrong).sum()))
    parts = ((y == wrong).nonzero().flatten(), (y != wrong).nonzero().flatten())
    own, others = (each[torch.randperm(len(each))[:number]] for each in parts)
    labels[own], labels[others] = y[others], y[own]
    return labels


def make_problem(name: str) -> tuple[wc.Images, wc.Images, wc.Images]:
    """Training, held-out and test images; test images are clean and balanced, held-out ones are as training's."""
    source = wc.open_source("fashion-mini")
    train, valid = wc.split_validation(source.read("train"), 10, 1 / 11)
    if name == "unbalanced":
        order = torch.randperm(10)
        train, valid = (part.select(unbalanced(part.y, order)) for part in (train, valid))
    else:
        wrong = int(torch.randint(10, ()))
        train, valid = (wc.Images(part.x, mislabelled(part.y, wrong)) for part in (train, valid))
    return train, valid, source.read("test")


def fit(learner: str, train: wc.Images, valid: wc.Images, epochs: int) -> nn.Module:
    """A network after `epochs` epochs. What differs between learners is in the lines that ask for one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    counts = train.class_counts(10)
    hedge, guard = wc.ClassHedge(10, class_counts=counts), wc.ClassGuard(counts)
    for _ in range(epochs):
        for index in torch.randperm(len(train)).split(200):
            logits, y = model(wc.to_float(train.x[index])), train.y[index]
            losses = F.cross_entropy(logits, y, reduction="none")
            if learner == "ClassHedge":
                losses = hedge.weigh(losses, y)
            if learner in ("balanced", "ClassGuard"):
                losses = guard.weigh(losses, y, logits.argmax(1) == y)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            logits = model(wc.to_float(valid.x))
        if learner == "ClassHedge":
            hedge.update(F.cross_entropy(logits, valid.y, reduction="none"), valid.y)
        if learner == "ClassGuard":  # a guard that is never updated keeps the classes balanced
            guard.update(logits.argmax(1) == valid.y, valid.y)
    return model


def main(seeds: int = 3, epochs: int = 10) -> dict[tuple[str, str], Tensor]:
    """Test accuracies (seeds, 10) by problem and learner; a seed chooses classes, images and network."""
    accuracy = {}
    for name, learner in CASES:
        rows = []
        for seed in range(1, seeds + 1):
            torch.manual_seed(seed)
            train, valid, test = make_problem(name)
            right = (fit(learner, train, valid, epochs)(wc.to_float(test.x)).argmax(1) == test.y).double()
            rows.append(torch.stack([right[test.y == k].mean() for k in range(10)]))
        accuracy[name, learner] = torch.stack(rows)
        average, worst = 100 * accuracy[name, learner].mean(), 100 * accuracy[name, learner].amin(1)
        by_seed = " ".join(f"{each:.1f}" for each in worst.tolist())
        print(f"{name:12s} {learner:11s} average {average:.1f}%  worst class {worst.mean():.1f}% ({by_seed})")
    return accuracy


if __name__ == "__main__":
    main()
