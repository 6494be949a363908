"""Do no harm, checked: a run that learns no class weights is trained beside one that does, and the better one ships.

The base goes on from an epoch of the run, plain, to the end. Both are then read on validation, and so are the networks
between them, whose weights are interpolated. Shipped is the one whose worst tenth of the classes is highest among those
that keep to the budget: at most so much of the average is given up, as far as validation can tell, and each point of it
buys at least `PRICE` points of the worst tenth. Where none does, that is the base.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.config.keys import Config
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config, merge
from worstclass.data import Images, to_float
from worstclass.errors import UserError
from worstclass.files import write_json
from worstclass.inputs.radius import trades_step
from worstclass.metrics.percentages import percent
from worstclass.metrics.tail import has_many, worst_tenth
from worstclass.runs.notes import SURE
from worstclass.runs.run import Run, build_model, open_run
from worstclass.runs.saver import ABOUT, LAST, SELECTED
from worstclass.runs.shipped import TOO_LITTLE
from worstclass.stats import ClassStats
from worstclass.strategies.guarded import PRIOR, class_cost
from worstclass.training.checkpoint import SELECTED_PART, load_tensors, load_weights, save_tensors, section

if TYPE_CHECKING:
    from worstclass.metrics.measures import Measure

BASE = "base"  # its folder, in that of the run
MIXES = (0.0, 0.25, 0.5, 0.75, 0.85, 0.9, 0.95, 1.0)  # of the run's weights in the base's; its gain is near 1
PRICE = 2.0
TRAINING_IMAGES = 100  # a class, read beside validation
SLACK = 0.1  # of readings: tighter than the learner's, whose costs may be too high for a class; an average may not
BATCH = 500


class Reading(NamedTuple):
    """A network between base and run: its share of the run, and its robust accuracies over classes."""

    mix: float
    average: float  # all classes alike
    tail: float  # the worst tenth
    error: float = 0.0  # standard error of the average's difference to the base


def check_base(config: Config, fork_epoch: int) -> None:
    """Raise where a run that goes on from an epoch of another cannot have a base."""
    if fork_epoch >= base_epoch(config):
        raise UserError(
            f"base_start = {config.base_start:g} is epoch {base_epoch(config)}: "
            f"a run that goes on from epoch {fork_epoch} must have it later."
        )


def base_config(config: Config) -> Config:
    """The same recipe, learning no class weights; its attack is the same even where the method has a step of its own.

    Of a method that starts from balanced classes, with these: unbalanced data alone would make it look good.
    """
    left_out = ("base_start", "budget", "ship", "adjust_budget")
    values = {key: value for key, value in config.recipe().items() if key not in left_out}
    if "attack_step_size" in config.used_keys and config.step_size != trades_step(config.eps):
        values["attack_step_size"] = config.step_size
    mode = METHODS[config.method].balanced(config)
    if mode is None:
        return make_config(merge(values, {"method": config.base_objective}))
    return make_config(merge(values, {"method": "fixed", "class_weights": "balanced", "fixed_mode": mode}))


def base_epoch(config: Config) -> int:
    """The epoch that the base goes on from."""
    assert config.base_start is not None
    return min(max(round(config.base_start * config.epochs), 1), config.epochs - 1)


def choose(readings: list[Reading], budget: float) -> Reading:
    """The one to ship; the first reading is the base's. Above the budget is what exceeds it by a standard error."""
    base = readings[0]
    best = base
    for each in readings[1:]:
        given_up = max(base.average - each.average, 0.0)
        gained = each.tail - base.tail
        if given_up - each.error <= budget and gained >= PRICE * given_up and each.tail > best.tail:
            best = each
    return best


def settle(
    run: Run,
    train: Images,
    valid: Images,
    device: torch.device,
    on_compare: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Read run and base on validation, write what ships as the run's selected weights, and say it in run.json.

    `on_compare(done, total)` hears how many of the networks are read, none of them first.
    """
    config, folder = run.config, run.folder
    ours, own_header = _selected(folder)
    base, base_header = _selected(folder / BASE)
    model = build_model(config, run.about["num_classes"], run.about["in_channels"], None).to(device).eval()
    num_classes = run.about["num_classes"]
    counts = train.class_counts(num_classes).double().cpu()
    attack = config.make_plan().valid_attack
    known = _first_of_each(train, num_classes, TRAINING_IMAGES)
    readings, answers = [], {}
    for done, mix in enumerate(MIXES):
        on_compare(done, len(MIXES))
        load_weights(model, mixed(base, ours, mix), folder)
        trained, answers[mix] = (predictions(model, images, attack, seed=config.seed) for images in (known, valid))
        tables = _table(known.y.cpu(), trained, num_classes), _table(valid.y.cpu(), answers[mix], num_classes)
        accuracy = 1 - class_cost(tables[0], tables[1], counts, prior=PRIOR, slack=SLACK)
        error = standard_error(valid.y.cpu(), answers[mix], answers[0.0], num_classes)
        readings.append(Reading(mix, float(accuracy.mean()), worst_tenth(accuracy.numpy()), error))
    on_compare(len(MIXES), len(MIXES))
    chosen = choose(readings, config.budget) if config.ship == "better" else readings[-1]
    said = verdict(valid.y.cpu(), answers[chosen.mix], answers[0.0], num_classes, chosen.mix)
    header = base_header if chosen.mix == 0 else own_header
    weights = {f"model.{name}": tensor for name, tensor in mixed(base, ours, chosen.mix).items()}
    save_tensors(folder / SELECTED, weights, header | {"mix": chosen.mix})
    about = run.about | {
        "base": {
            "title": open_run(folder / BASE).config.title,
            "epoch": base_epoch(config),
            "readings": [reading._asdict() for reading in readings],
            "shipped": chosen.mix,
            **said,
        }
    }
    write_json(folder / ABOUT, about)
    return about


def mixed(base: dict[str, Tensor], ours: dict[str, Tensor], mix: float) -> dict[str, Tensor]:
    """Weights and statistics between two networks; whole numbers, such as counts of batches, are not mixed."""
    if mix in (0.0, 1.0):
        return ours if mix else base
    return {
        name: torch.lerp(base[name], tensor, mix) if tensor.is_floating_point() else tensor
        for name, tensor in ours.items()
    }


def predictions(model: nn.Module, images: Images, attack: PGD, *, seed: int) -> Tensor:
    """What a network takes images for under attack (N,), on the CPU."""
    device = next(model.parameters()).device
    generator = rng.generator(seed, "base", device=device)
    found = []
    for x, y in zip(images.x.split(BATCH), images.y.split(BATCH), strict=True):
        x, y = to_float(x.to(device)), y.to(device)
        attacked = attack(model, x, y, generator=generator)
        with torch.no_grad():
            found.append(model(attacked).argmax(1).cpu())
    return torch.cat(found)


def standard_error(y: Tensor, found: Tensor, base: Tensor, num_classes: int) -> float:
    """Of the difference between two averages over classes, as `class_cost` reads them with its `PRIOR`.

    One variance serves all classes, since few images of a class say nothing of its own: the share of validation images
    that one network has right and the other has not.
    """
    differ = ((found == y) != (base == y)).double().mean()
    images = y.bincount(minlength=num_classes).double()
    return float((differ * (images / (images + PRIOR).square()).sum()).sqrt() / num_classes)


def average_difference(y: Tensor, found: Tensor, base: Tensor) -> "Measure":
    """Of two networks' averages over classes, all alike as `budget` counts them, with a 95% interval; the variance is
    that of `standard_error`."""
    from worstclass.metrics.measures import Measure

    gained = (found == y).double() - (base == y).double()
    by_class = [gained[y == k] for k in y.unique()]
    value = float(torch.stack([each.mean() for each in by_class]).mean())
    images = torch.tensor([len(each) for each in by_class]).double()
    reach = SURE * float((gained.abs().mean() * (1 / images).sum()).sqrt()) / len(by_class)
    return Measure(value, max(value - reach, -1.0), min(value + reach, 1.0))


def verdict(y: Tensor, shipped: Tensor, base: Tensor, num_classes: int, mix: float) -> dict[str, Any]:
    """The paired difference to the base on validation, with its interval, and one sentence on it.

    The worst class decides; of many classes, the worst tenth: a class that nothing mends would hide it.
    """
    from worstclass.metrics.measures import compare

    found = compare(y.numpy(), shipped.numpy(), base.numpy(), num_classes)
    many = has_many(num_classes)
    average = average_difference(y, shipped, base)
    worst = found.worst_tenth_difference if many else found.worst_difference
    if mix == 0:
        word = f"the base is kept: {TOO_LITTLE}"
    elif worst.low > 0:
        word = "better than the base"
    elif worst.high < 0:
        word = "worse than the base"
    else:
        word = "no significant difference to the base"
    numbers = ", ".join(
        f"{name} {percent(each.value, sign=True)} [{percent(each.low, sign=True)}, {percent(each.high, sign=True)}]"
        for name, each in (("worst tenth" if many else "worst class", worst), ("average over classes", average))
    )
    how = {0.0: "", 1.0: ""}.get(mix, f" (weights {100 * mix:.0f}% of the way from the base)")
    sentence = f"{word}{how}." if mix == 0 else f"{word}{how}: {numbers} on validation."
    return {
        "verdict": sentence,
        "average_difference": list(average),
        "worst_difference": list(found.worst_difference),
        "worst_tenth_difference": list(found.worst_tenth_difference),
    }


def _selected(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights that a run selected by itself, and what is known of them."""
    tensors, header = load_tensors(folder / LAST)
    return section(tensors, SELECTED_PART), header["best"]


def _first_of_each(images: Images, num_classes: int, count: int) -> Images:
    """The first images of each class."""
    keep = [torch.nonzero(images.y == k).flatten()[:count] for k in range(num_classes)]
    return images.select(torch.cat(keep))


def _table(y: Tensor, predicted: Tensor, num_classes: int) -> ClassStats:
    stats, zeros = ClassStats(num_classes), torch.zeros(len(y))
    stats.add(y, natural_loss=zeros, robust_loss=zeros, natural_correct=zeros, robust_correct=(predicted == y).float())
    return stats
