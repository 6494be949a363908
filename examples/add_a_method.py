"""Add a method: a class strategy of your own, trained through `worstclass.fit`, or by name through recipes."""

from pathlib import Path
from typing import Any

import torch

import worstclass as wc


class DAFA:
    """DAFA's rule (Lee et al., 2024): from the probabilities under attack of one epoch of training, weight and radius
    move from each class to the harder ones that it is confused with. The weights of all classes still sum to K.

    With S_ij the mean probability of class j for images of class i,
    W_i = 1 + strength * sum_{j != i} (S_ij S_jj where S_ii < S_jj, else -S_ji S_ii).
    """

    tables = ("robust_probabilities",)  # asks for this K x K table beside the usual columns

    def __init__(self, num_classes: int, *, strength: float = 1.0, warmup: int = 8) -> None:
        self.strength, self.warmup, self.epoch = strength, warmup, 0
        self.by_class = torch.ones(num_classes, dtype=torch.float64)
        self.weights = wc.ClassWeights.uniform(num_classes)

    def update(self, train: wc.ClassStats, valid: wc.ClassStats) -> None:
        self.epoch += 1
        if self.epoch == self.warmup:
            taken_for = train.matrix("robust_probabilities")
            right = taken_for.diagonal()
            given = torch.where(right[:, None] < right, taken_for * right, -taken_for.T * right[:, None])
            self.by_class.copy_(1 + self.strength * given.fill_diagonal_(0).sum(1))
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "by_class": self.by_class}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.by_class.copy_(state["by_class"])
        self._write()

    def _write(self) -> None:
        self.weights.set(natural=self.by_class, radius_scale=self.by_class)  # in place: the storage never changes


wc.METHODS["my-dafa"] = wc.Method("My DAFA", lambda config, counts: DAFA(len(counts), warmup=2 * config.epochs // 3))


def compare(folder: Path, attack: str = "pgd-20", **settings: object) -> Path:
    """Train it and TRADES by recipes, attack both, and write the report that compares them."""
    for method in ("trades", "my-dafa"):
        config = wc.load_config("fashion-mini-trades", method=method, **settings)
        run = wc.train_run(config, folder / method)
        wc.evaluate_target(wc.run_target(run), [attack], run.folder)
    wc.write_report(wc.load_results([folder / "trades", folder / "my-dafa"]), folder / "report.html")
    return folder / "report.html"


def main(epochs: int = 12, limit: int | None = None, strength: float = 1.0) -> wc.ClassWeights:
    """Train on the first `limit` images and return the last weights."""
    source = wc.open_source("fashion-mini")
    train, valid = wc.split_validation(source.read("train"), source.num_classes, 1 / 11)
    train, valid = wc.Images(train.x[:limit], train.y[:limit]), wc.Images(valid.x[:limit], valid.y[:limit])
    strategy: wc.ClassStrategy = DAFA(source.num_classes, strength=strength, warmup=2 * epochs // 3)
    objective = wc.Trades(beta=6, attack=wc.trades_attack(eps=0.1, steps=7, step_size=0.03))
    plan = wc.Plan(
        epochs=epochs,
        batch_size=128,
        lr=0.1,
        schedule=wc.Piecewise((0.75, 0.9)),
        valid_attack=wc.PGD(eps=0.1, steps=20, step_size=0.025),
    )
    model = wc.make_model("small-cnn", num_classes=source.num_classes, in_channels=1, seed=plan.seed)
    state = wc.new_state(model, strategy, plan)
    for record in wc.fit(state, train, valid, objective, plan):
        accuracy = record.valid.mean("robust_correct")
        worst, heaviest = int(accuracy.argmin()), int(strategy.weights.natural.argmax())
        print(
            f"epoch {record.epoch}  average {100 * float(record.valid.overall('robust_correct')):.1f}%  "
            f"worst {100 * accuracy[worst]:.1f}% {source.class_names[worst]}  "
            f"heaviest next {source.class_names[heaviest]} {strategy.weights.natural[heaviest]:.2f}"
        )
    return strategy.weights


if __name__ == "__main__":
    main()
