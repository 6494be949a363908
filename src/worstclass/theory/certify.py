"""The certificates of a run: what its log and its outcomes say about the paper's theorems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from torch import nn

from worstclass.data import to_float
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import ANY, NATURAL, Outcomes
from worstclass.evaluation.saved import OUTCOMES, check_comparable, load_evaluation
from worstclass.evaluation.targets import run_target
from worstclass.inputs.names import runs_user_code
from worstclass.metrics.measures import Floats
from worstclass.runs.run import Run
from worstclass.theory.theorems import CLAIMS, Assumption, Certificate, theorem1, theorem2, theorem3


def certify_run(
    run: Run,
    *,
    others: Sequence[Path] = (),
    delta: float = 0.05,
    gamma: float = 1.0,
    data_dir: Path = Path("data"),
    allow_code: bool = False,
) -> list[Certificate]:
    """One certificate for each theorem that can be computed; those that cannot apply say so.

    `others` are folders with evaluations of more classifiers on the same images, say of the last epoch: theorem 2 then
    speaks about all of them. `gamma` is the margin of theorem 3, which is for linear models.
    """
    return [
        certify_training(run),
        certify_outcomes(run.folder, run.class_names, others=others, delta=delta),
        _certify_linear(run, delta, gamma, data_dir, allow_code),
    ]


def certify_training(run: Run) -> Certificate:
    """Theorem 1, from the class losses and weights in the log."""
    log = run.log
    if not log:
        raise UserError(f"{run.folder} has no epoch in its log yet.")
    costs = np.array([line["class_costs"] for line in log])
    return theorem1(costs, eta=run.config.eta, weights=_played(run))


def certify_outcomes(
    folder: Path, class_names: Sequence[str], *, others: Sequence[Path] = (), delta: float = 0.05
) -> Certificate:
    """Theorem 2, from the images that the strongest attack at hand fools."""
    if not others and not (folder / OUTCOMES).is_file():
        return _not_applicable(2, "evaluated", f"{folder} has no outcomes: worstclass evaluate {folder}")
    read = [load_evaluation(each) for each in (folder, *others)]
    card, own = read[0]
    for other, (its, _) in zip(others, read[1:], strict=True):
        check_comparable(card["about"], its["about"], str(other))
    evaluations = [outcomes for _, outcomes in read]
    if len(np.unique(own.labels)) < len(class_names):
        return _not_applicable(2, "every class has images", "a class has no image in this part of the data")
    attack = strongest(evaluations)
    losses = np.stack([each.predictions[attack] != each.labels for each in evaluations])
    unseen = card["about"].get("part") == "test"
    seen = "test images: no part in training or selection" if unseen else "validation images chose weights and epoch"
    return theorem2(
        losses,
        own.labels,
        num_classes=len(class_names),
        delta=delta,
        independent=(unseen, seen),
        exact_loss=(False, f"what is bounded is the risk under {attack}; a stronger attack may exist"),
    )


def strongest(evaluations: Sequence[Outcomes]) -> str:
    """The attack, known for all, under which the first of them is right least often."""
    own = evaluations[0]
    names = [name for name in own.predictions if not name.endswith(ANY)]
    names = [name for name in names if all(name in each.predictions for each in evaluations)]
    return min(names, key=lambda name: (np.mean(own.predictions[name] == own.labels), name == NATURAL))


def linear_rows(model: nn.Module) -> Floats | None:
    """The weights (K, d) of a model that is one linear map without bias of its flattened image; None for any other."""
    leaves = [part for part in model.modules() if not list(part.children())]
    maps = [part for part in leaves if isinstance(part, nn.Linear)]
    plain = all(isinstance(part, nn.Linear | nn.Flatten | nn.Identity) for part in leaves)
    wrapped = all(isinstance(part, nn.Sequential) or part in leaves for part in model.modules())
    if not (plain and wrapped and len(maps) == 1 and maps[0].bias is None):
        return None
    return np.asarray(maps[0].weight.detach().double().cpu().numpy())


def _certify_linear(run: Run, delta: float, gamma: float, data_dir: Path, allow_code: bool) -> Certificate:
    model = run.config.model
    if not runs_user_code(model):
        return _not_applicable(3, "linear", f"the network is {model}")
    if not allow_code:
        return _not_applicable(3, "linear", f"{model} is code of your own; pass --allow-code to look at it")
    target = run_target(run, data_dir=data_dir, allow_code=True)
    rows = linear_rows(target.model)
    if rows is None:
        return _not_applicable(3, "linear", f"{model} is not one linear map without bias")
    x = to_float(target.images.x).flatten(1).double().numpy()
    return theorem3(rows, x, target.images.y.numpy(), eps=target.eps, gamma=gamma, delta=delta)


def _played(run: Run) -> Floats:
    """The weights (T, K + 1) of the average and of each class, as the strategy played them. (The reference variant of
    WAT then trains with other multiples of them; the theorem does not depend on how a classifier was trained.)"""
    return np.array([line.get("expert_weights") or _played_before(run, line) for line in run.log])


def _played_before(run: Run, line: Mapping[str, Any]) -> list[float]:
    """From a line of an older log, which has them only in other words; its classes are taken to be of equal size."""
    if "cumulative_cost" in line["strategy"]:
        return [float(weight) for weight in softmax(run.config.eta * np.array(line["strategy"]["cumulative_cost"]))]
    classes = np.array(line["class_weights"])
    if np.ptp(classes) < 1e-6:
        return [1.0] + [0.0] * len(classes)
    return [0.0, *(float(weight) for weight in classes / classes.sum())]


def _not_applicable(theorem: int, name: str, seen: str) -> Certificate:
    return Certificate(theorem, CLAIMS[theorem], None, None, (Assumption(name, False, seen),))
