"""From attacks to per-sample outcomes, checked as they run and kept as they come."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worstclass.attacks import APGD, PGD, Ensemble, FirstSuccess
from worstclass.attacks.active_set import predict, refuse_nan
from worstclass.attacks.ball import distance
from worstclass.attacks.ensemble import NATURAL_ERROR, STANDING
from worstclass.attacks.search_model import Passes, SearchModel, Strict, recorded, search_model
from worstclass.data import Images, to_float
from worstclass.errors import AttackError, UserError, choose, shown
from worstclass.evaluation.outcomes import ANY, NATURAL, STANDS, Ints, Outcomes, Progress
from worstclass.execution.backend import Precision, allow_tf32, on
from worstclass.execution.distributed import ALONE, Team
from worstclass.inputs.images import TOLERANCE, check_labels, check_logits, refuse_frozen, tensor_of, values_known
from worstclass.rng import PerSample
from worstclass.types import BallAttack, Classifier

BATCH, LARGEST_BATCH = 500, 5000  # images at a time, and at most; a GPU is not busy with few
MEMORY = 0.5  # of what is free on a GPU
TRIED_IMAGES = 32  # to find out what they need
COPIES = 10  # of an image, that an attack keeps
FORWARD_ONLY_ROWS = 4  # a batch without gradients may be this many times larger


class Event(NamedTuple):
    """How far an attack is: `done` of `total` units of work, and the samples that stand, where it takes them out."""

    attack: str
    done: float
    total: float
    standing: int | None = None


Notify = Callable[[Event], None]


def evaluate(
    model: Classifier,
    images: Images,
    attacks: Mapping[str, BallAttack],
    *,
    seed: int = 0,
    batch_size: int | None = None,
    precision: Precision = "fp32",
    progress: Progress | None = None,
    notify: Notify | None = None,
    passes: Passes | None = None,
    must_harm: bool = True,
    team: Team = ALONE,
) -> Outcomes:
    """Predictions on clean images and under each attack, in evaluation mode; afterwards each layer has its own again.

    Random starts are a function of (seed, sample), so the verdicts do not depend on the batch size, which is
    `batch_that_fits` unless given. An attack that leaves its ball or [0, 1], or (with `must_harm`) after which the
    model is right more often, is an `AttackError`.
    Attacks search in `precision`, those that stop at the first success (AutoAttack and its parts) on a faster view of
    the model, and PGD too unless it is fp32; the model itself, in strict float32, judges what they find.
    `progress` keeps what is done, and an evaluation that was stopped goes on from there. `passes` adds up what attacks
    that stop at the first success cost. Of a `team` each process attacks a part of the images, and all return the
    same outcomes; progress and passes are each one's own.
    """
    _check_arguments(model, images, attacks, batch_size)
    choose("precision", precision, get_args(Precision))
    with evaluation_mode(model), values_known():
        batch_size = batch_that_fits(model, images) if batch_size is None else batch_size
        trial = _Trial(model, images, seed, batch_size, progress or Progress(), notify or (lambda _: None), team)
        with allow_tf32(False), on(trial.a_batch().device):  # no TF32 in a number that is reported
            outcomes = _evaluate(trial, attacks, precision, passes)
    if must_harm and (helping := outcomes.helping()):
        line = next(iter(helping.values()))
        raise AttackError(f"{line} The gradients are likely masked, or the radius is too small to matter.")
    return outcomes


@contextmanager
def evaluation_mode(model: Classifier) -> Iterator[None]:
    """Evaluation mode in the body; afterwards each layer is in the mode it had, whatever ended the body."""
    refuse_frozen(model)
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _check_arguments(
    model: Classifier, images: Images, attacks: Mapping[str, BallAttack], batch_size: int | None
) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"evaluate takes a torch.nn.Module, not {type(model).__name__}.")
    own = tensor_of(model)
    if own is not None and torch.finfo(own.dtype).eps > TOLERANCE:
        raise UserError(
            f"the model is in {own.dtype}, whose rounding is no small part of a radius: evaluate model.float()."
        )
    if not isinstance(images, Images):
        raise UserError(f"evaluate takes worstclass.data.Images(x, y), not {type(images).__name__}.")
    if not isinstance(attacks, Mapping):
        raise UserError(
            f"evaluate takes attacks by name, such as {{'pgd-20': make_attack('pgd-20', eps=8 / 255)}}, "
            f"not {type(attacks).__name__}."
        )
    for name, attack in attacks.items():
        if name == NATURAL or str(name).endswith(ANY):
            raise UserError(f"an attack cannot be called '{name}': evaluate has a column of that name itself.")
        if not (callable(attack) and hasattr(attack, "eps") and hasattr(attack, "norm")):
            raise UserError(
                f"'{name}' must be an attack with eps and norm, such as make_attack gives, not {shown(attack)}."
            )
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be at least 1, not {batch_size}.")


def _evaluate(
    trial: "_Trial", attacks: Mapping[str, BallAttack], precision: Precision, passes: Passes | None
) -> Outcomes:
    natural = trial.natural()
    labels = trial.images.y.cpu().numpy()
    outcomes = Outcomes(labels, {NATURAL: natural})
    for name, attack in attacks.items():
        if isinstance(attack, FirstSuccess):
            attack = Ensemble(attacks={name: attack})
        if isinstance(attack, Ensemble):
            elimination = _Elimination(trial, name, attack, natural, precision)
            outcomes.predictions[name], outcomes.broken_by[name] = elimination.run()
            if passes is not None:
                elimination.add_passes(passes)
        elif isinstance(attack, PGD):
            outcomes.predictions[name], outcomes.predictions[name + ANY] = trial.search(name, attack, precision)
        else:
            outcomes.predictions[name] = trial.call(name, attack)
    return outcomes


@dataclass(frozen=True)
class _Trial:
    """One model on one set of images, batch by batch."""

    model: Classifier
    images: Images
    seed: int
    batch_size: int
    progress: Progress
    notify: Notify
    team: Team

    @property
    def own(self) -> Ints:
        """The images that this process attacks: every so many-th, so that classes in order are spread evenly."""
        return np.arange(self.team.rank, len(self.images), self.team.size)

    def gather(self, values: Ints) -> Ints:
        """The values of all images, of which each process has its own."""
        if self.team.alone:
            return values
        whole = np.zeros_like(values)
        whole[self.own] = values[self.own]
        return _numpy(self.team.all_reduce(torch.from_numpy(whole).to(self.team.device)))

    def natural(self) -> Ints:
        """Predictions on clean images."""
        if len(self.images) == 0:
            raise UserError("there are no images to evaluate on.")
        predicted = np.zeros(len(self.images), dtype=np.int64)
        sound = True
        for rows in self.split(self.own):
            x, y = self.at(rows)
            logits = predict(self.model, x)
            check_logits(logits, len(y))
            check_labels(self.images.y, len(self.images), logits.shape[1])  # of all images: all processes agree
            sound = sound and bool(logits.isfinite().all())
            predicted[rows] = _numpy(logits.argmax(1))
        if int(self.team.all_reduce(torch.tensor(int(not sound), device=self.team.device))):
            raise UserError("the model returns logits that are not finite on clean images: nothing can be measured.")
        return self.gather(predicted)

    def search(self, name: str, attack: PGD, precision: Precision) -> tuple[Ints, Ints]:
        """Predictions on the last iterate, and on the first that fools; or on the last again, where the model itself
        is not fooled by what fooled its view."""
        last, first = (self._predictions(f"{name} {attack!r} {kind}") for kind in ("last", "any"))
        with allow_tf32(precision == "tf32"):
            view = self.model if precision == "fp32" else recorded(self.view(precision), self.a_batch())
        for rows in self._todo(name, last):
            x, y = self.at(rows)
            with allow_tf32(precision == "tf32"):
                found = attack.search(view, x, y, generator=PerSample(self.seed, "evaluate", rows.tolist()))
            self._record(name, attack, first, rows, x, found.any)
            self._record(name, attack, last, rows, x, found.last)
            first[rows] = np.where(first[rows] == _numpy(y), last[rows], first[rows])
        return self.gather(last), self.gather(first)

    def call(self, name: str, attack: BallAttack) -> Ints:
        """Predictions on what any attack returns."""
        predicted = self._predictions(f"{name} {attack!r}")
        for rows in self._todo(name, predicted):
            x, y = self.at(rows)
            given, modes = x.clone(), _modes(self.model)  # the ball is around images that no attack can write into
            x_adv = attack(self.model, given, y, generator=PerSample(self.seed, "evaluate", rows.tolist()))
            if _modes(self.model) != modes:
                raise AttackError(f"attack '{name}' changed the mode of the model: it must not call train() or eval().")
            self._record(name, attack, predicted, rows, x, x_adv)
        return self.gather(predicted)

    def view(self, precision: Precision, *, as_it_is: bool = False) -> SearchModel:
        """The model as a search sees it."""
        return search_model(self.model, self.a_batch(), precision=precision, as_it_is=as_it_is)

    def a_batch(self) -> Tensor:
        return self.at(np.arange(min(len(self.images), self.batch_size)))[0]

    def at(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Images and labels on the model's device."""
        return as_input(self.model, self.images.select(torch.from_numpy(rows).to(self.images.y.device)))

    def split(self, rows: Ints, size: int | None = None) -> list[Ints]:
        size = size or self.batch_size
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _predictions(self, what: str) -> Ints:
        return self.progress.array(what, np.full(len(self.images), -1))

    def _todo(self, name: str, predicted: Ints) -> Iterator[Ints]:
        """Batches without a prediction yet; each is saved once the caller is back for the next."""
        own = self.own
        self.notify(Event(name, int((predicted[own] >= 0).sum()), len(own)))
        for rows in self.split(own[predicted[own] < 0]):
            yield rows
            self.progress.save()
            self.notify(Event(name, int((predicted[own] >= 0).sum()), len(own)))

    def _record(self, name: str, attack: BallAttack, predicted: Ints, rows: Ints, x: Tensor, x_adv: Tensor) -> None:
        check_inside(x, x_adv, attack, name)
        predicted[rows] = _numpy(refuse_nan(predict(self.model, x_adv), f"images of '{name}'").argmax(1))

    def check_around(self, attack: BallAttack) -> None:
        """Try a random corner of the ball of each image: a model that returns NaN there is not worth an hour."""
        generator = torch.Generator().manual_seed(self.seed)
        for rows in self.split(self.own, FORWARD_ONLY_ROWS * self.batch_size):
            x, _ = self.at(rows)
            step = attack.eps if attack.norm == "linf" else attack.eps / x[0].numel() ** 0.5
            signs = (2 * torch.randint(0, 2, x.shape, generator=generator) - 1).to(x)
            with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):  # a model may draw
                refuse_nan(predict(self.model, (x + step * signs).clamp(0, 1)), "images near the clean ones")


class _Elimination:
    """An ensemble on the samples of a trial: which stand, and how many attacks each has been through."""

    def __init__(self, trial: _Trial, name: str, attack: Ensemble, natural: Ints, precision: Precision) -> None:
        self.trial, self.name, self.attack, self.precision = trial, name, attack, precision
        trial.check_around(attack)
        labels = trial.images.y.cpu().numpy()
        start = np.where(natural == labels, STANDING, NATURAL_ERROR)
        self.by = trial.progress.array(f"{name} {attack!r} by", start)
        self.predicted = trial.progress.array(f"{name} {attack!r} predicted", natural)
        self.passed = trial.progress.array(f"{name} {attack!r} passed", np.zeros_like(labels))
        random = any(isinstance(part, APGD) and part.eot > 1 for part in attack.attacks.values())
        self.model = trial.view(precision, as_it_is=random)  # a trace may freeze a draw
        self.judge = Strict(trial.model)
        num_classes = predict(trial.model, trial.at(np.arange(1))[0]).shape[1]
        self.work = [part.work(num_classes) for part in attack.attacks.values()]
        self.total = sum(self.work) * int((start[trial.own] == STANDING).sum())

    def run(self) -> tuple[Ints, NDArray[np.str_]]:
        """Predictions, wrong where a sample was broken, and what broke each."""
        for number in range(len(self.work)):
            for rows in self._batches(number):
                self._attack(number, rows)
                self.trial.progress.save()
        names = np.array([*self.attack.attacks, NATURAL, STANDS])  # -2 and -1 count from the end
        return self.trial.gather(self.predicted), names[self.trial.gather(self.by)]

    def add_passes(self, passes: Passes) -> None:
        for counted in (self.model.passes, self.judge.passes):
            passes.forward += counted.forward
            passes.backward += counted.backward

    def _batches(self, number: int) -> list[Ints]:
        """The samples that an attack has yet to try. Without gradients nothing is kept for a backward pass."""
        rows = self.trial.own
        rows = rows[(self.by[rows] == STANDING) & (self.passed[rows] == number)]
        part = list(self.attack.attacks.values())[number]
        return self.trial.split(rows, self.trial.batch_size * (1 if part.uses_gradients else FORWARD_ONLY_ROWS))

    def _attack(self, number: int, rows: Ints) -> None:
        """One attack on one batch."""
        part_name, part = list(self.attack.attacks.items())[number]
        to_come = np.array([sum(self.work[stage:]) for stage in range(len(self.work) + 1)])
        own = self.trial.own
        others = np.setdiff1d(own[self.by[own] == STANDING], rows)
        ahead_of_others = int(to_come[self.passed[others]].sum())

        def look(share: float, standing: int) -> None:
            ahead = ahead_of_others + standing * (to_come[number] - share * self.work[number])
            done = self.total - float(ahead)
            self.trial.notify(Event(f"{self.name}: {part_name}", done, self.total, len(others) + standing))

        x, y = self.trial.at(rows)
        source = PerSample(self.trial.seed, f"evaluate/{part_name}", rows.tolist())
        with allow_tf32(self.precision == "tf32"):
            broken = part.breaks(
                self.model, x, y, generator=source, judge=self.judge, rows=self.trial.batch_size, look=look
            )
        check_inside(x, broken.x_adv, part, self.name)
        self.passed[rows] = number + 1
        hit = rows[_numpy(broken.found) != 0]
        if len(hit):
            self.by[hit] = number
            self.predicted[hit] = _numpy(broken.predicted[broken.found])


def batch_that_fits(model: Classifier, images: Images) -> int:
    """Images at a time: 500, and on a GPU as many as half of its free memory takes, up to 5000."""
    x, _ = as_input(model, images.select(torch.arange(min(TRIED_IMAGES, len(images)), device=images.y.device)))
    if not x.is_cuda or len(x) == 0:
        return BATCH
    with on(x.device), torch.random.fork_rng([x.device]):  # a model may draw
        each = memory_of_a_gradient(model, x) + FORWARD_ONLY_ROWS * COPIES * x[0].nbytes
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
    return max(1, min(int(MEMORY * free / each), LARGEST_BATCH))


def memory_of_a_gradient(model: Classifier, x: Tensor) -> float:
    """Bytes that a model keeps of each image for a gradient to it, in its own precision; its weights do not count."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(x.detach().requires_grad_())
    total = sum(size for place, size in kept.items() if place not in weights)
    del logits  # until here it held what was kept, each in a place of its own
    return total / len(x)


def as_input(model: Classifier, images: Images) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels as the model takes them: on its device, in its precision."""
    own = tensor_of(model)
    like = torch.zeros((), device=images.y.device) if own is None else own
    return to_float(images.x.to(like.device), like.dtype), images.y.to(like.device)


def check_inside(x: Tensor, x_adv: Tensor, attack: BallAttack, name: str) -> None:
    """Raise unless every image is inside the attack's ball and inside [0, 1]."""
    expected, found = (
        f"{tuple(each.shape)} in {each.dtype} on {each.device}" if isinstance(each, Tensor) else type(each).__name__
        for each in (x, x_adv)
    )
    if found != expected:
        raise AttackError(f"attack '{name}' must return images of {expected}, as it was given, not {found}.")
    furthest = float(distance(x_adv - x, attack.norm).max())
    if not furthest <= attack.eps + TOLERANCE * (1 if attack.norm == "linf" else 10):
        raise AttackError(
            f"attack '{name}' left its {attack.norm} ball: distance {furthest:.6g}, eps {attack.eps:.6g}."
        )
    low, high = float(x_adv.min()), float(x_adv.max())
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        raise AttackError(f"attack '{name}' left the image range [0, 1]: {low:.6g}..{high:.6g}.")


def _modes(model: Classifier) -> list[bool]:
    return [module.training for module in model.modules()]


def _numpy(values: Tensor) -> Ints:
    return np.asarray(values.cpu().numpy(), dtype=np.int64)
