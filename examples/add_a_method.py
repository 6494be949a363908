"""Add a method: a class strategy of your own, trained through `worstclass.fit`, or by name through recipes."""

from pathlib import Path
from typing import Any, Literal

import torch

import worstclass
from worstclass.attacks import trades_attack
from worstclass.data import Images, open_source, split_validation
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.methods import METHODS, Method
from worstclass.report import load_results, write_report
from worstclass.runs.train import train_run


class Focal:
    """A sample of class k weighs K * softmax(sharpness * robust error)_k, from the last validation alone."""

    source: Literal["train", "valid"] = "valid"

    def __init__(self, num_classes: int, *, sharpness: float) -> None:
        self.sharpness = sharpness
        self.robust_error = torch.zeros(num_classes, dtype=torch.float64)
        self.weights = worstclass.ClassWeights.uniform(num_classes)

    def update(self, stats: worstclass.ClassStats) -> None:
        self.robust_error.copy_(1 - stats.mean("robust_correct"))  # an absent class counts as average
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"robust_error": self.robust_error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.robust_error.copy_(state["robust_error"])
        self._write()

    def _write(self) -> None:
        by_class = len(self.robust_error) * torch.softmax(self.sharpness * self.robust_error, 0)
        self.weights.set(natural=by_class, robust=by_class)  # in place: the storage never changes


METHODS["focal"] = Method("Focal", lambda config, counts: Focal(len(counts), sharpness=1.0))


def compare(folder: Path, attack: str = "pgd-20", **settings: object) -> Path:
    """Train it and TRADES by recipes, attack both, and write the report that compares them."""
    for method in ("trades", "focal"):
        config = worstclass.load_config("fashion-mini-trades", method=method, **settings)
        run = train_run(config, folder / method)
        evaluate_target(run_target(run), [attack], run.folder)
    write_report(load_results([folder / "trades", folder / "focal"]), folder / "report.html")
    return folder / "report.html"


def main(epochs: int = 12, limit: int | None = None, sharpness: float = 1.0) -> worstclass.ClassWeights:
    """Train on the first `limit` images and return the last weights."""
    source = open_source("fashion-mini")
    train, valid = split_validation(source.read("train"), source.num_classes, 1 / 11)
    train, valid = Images(train.x[:limit], train.y[:limit]), Images(valid.x[:limit], valid.y[:limit])
    strategy: worstclass.ClassStrategy = Focal(source.num_classes, sharpness=sharpness)
    objective = worstclass.Trades(beta=6, attack=trades_attack(eps=0.1, steps=7, step_size=0.03))
    plan = worstclass.Plan(
        epochs=epochs,
        batch_size=128,
        lr=0.1,
        lr_milestones=(0.75, 0.9),
        valid_attack=worstclass.PGD(eps=0.1, steps=20, step_size=0.025),
    )
    model = worstclass.make_model("small-cnn", num_classes=source.num_classes, in_channels=1, seed=plan.seed)
    state = worstclass.new_state(model, strategy, plan)
    for record in worstclass.fit(state, train, valid, objective, plan):
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
