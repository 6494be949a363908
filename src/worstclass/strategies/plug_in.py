"""Class weights in anybody's training loop, in three lines: ClassHedge and ClassGuard.

Both weigh per-sample losses by group, and learn from held-out samples once an epoch. A group is a class, or anything
else that divides the samples: a domain, a camera, a pair of label and background.
"""

import inspect
import math
import operator
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from worstclass.errors import UserError, choose, shown
from worstclass.execution.distributed import of_every_process
from worstclass.inputs.images import INTEGERS
from worstclass.stats import ClassStats
from worstclass.strategies.draws import Draws
from worstclass.strategies.guarded import Guarded
from worstclass.strategies.hedge import Hedge, class_costs, sample_weights

Counts = Tensor | Sequence[float]


class ClassHedge:
    """Worst-class training in your own loop, by WAT's learner.

        hedge = worstclass.ClassHedge(num_classes=10, eta=0.1)
        loss = hedge.weigh(losses, y).mean()          # was losses.mean(); losses is (B,)
        hedge.update(valid_losses, valid_labels)      # once an epoch

    `class_counts` (K,) are the training samples of each class; leave it out where they are equal. With a sampler, give
    the counts that it draws, in proportion: equal ones if it balances. The average beside the classes is then the
    average over what is drawn. `update` warns once if `weigh` saw other shares (`Draws`). In a job of several processes
    every process calls `update`, with the held-out samples of all.
    """

    def __init__(
        self, num_classes: int, eta: float = 0.1, class_counts: Tensor | Sequence[float] | None = None
    ) -> None:
        try:
            num_classes = operator.index(num_classes)
        except TypeError:  # counts, as ClassGuard takes them
            raise UserError(
                f"num_classes must be a whole number, not {shown(num_classes)}: give counts as class_counts=."
            ) from None
        if num_classes < 2:
            raise UserError(f"num_classes must be at least 2, not {num_classes}.")
        if not (math.isfinite(eta) and eta > 0):
            raise UserError(f"eta must be a positive number, not {eta}.")
        counts = _counts(torch.ones(num_classes) if class_counts is None else class_counts)
        if len(counts) != num_classes:
            raise UserError(f"class_counts must be ({num_classes},), a number for each class, not ({len(counts)},).")
        self.num_classes = num_classes
        self._hedge = Hedge(num_classes + 1, eta)
        self._made = {"class_counts": counts, "eta": torch.tensor(float(eta), dtype=torch.float64)}
        self._class_share = counts / counts.sum()
        self._draws = Draws(self._class_share)
        self._by_class = self._sample_weights()

    @property
    def eta(self) -> float:
        """The learning rate of Hedge."""
        return self._hedge.eta

    @property
    def weights(self) -> Tensor:
        """The simplex vector (K + 1,): index 0 is the average, index k + 1 is class k."""
        return self._hedge.weights

    def weigh(self, losses: Tensor, group: Tensor) -> Tensor:
        """Per-sample losses (B,) times the weight of each sample's class; take the mean of the result."""
        index = _check_batch(losses, group, self.num_classes)
        if self._by_class.device != index.device:
            self._by_class = self._by_class.to(index.device)
            self._draws.to(index.device)
        weighed = losses * self._by_class.index_select(0, index)
        if torch.is_grad_enabled():  # a loss that is only looked at is no draw
            self._draws.add(index)
        return weighed

    def update(self, losses: Tensor, group: Tensor) -> None:
        """Play one round with per-sample validation losses (N,); a class without samples counts as average."""
        index = _check_held_out("losses", losses, group, self.num_classes)
        values = losses.detach().double().cpu()
        if not losses.is_floating_point() or _is_right_or_wrong(values):  # that would raise the strongest class
            kind = "only 0 and 1" if losses.is_floating_point() else losses.dtype
            raise UserError(f"update takes losses, floating point, not {kind}; ClassGuard takes what is right.")
        if not bool(values.isfinite().all()):
            raise UserError("a validation loss is not finite: the weights were left as they are.")
        stats = ClassStats(self.num_classes)
        zeros = torch.zeros_like(values)
        stats.add(index, natural_loss=values, robust_loss=zeros, natural_correct=zeros, robust_correct=zeros)
        drawn, held_out = _pooled(self._draws.count, stats.table)
        self._draws.count.copy_(drawn)
        stats.table.copy_(held_out)
        note = self._draws.end(self._by_class)
        self._hedge.update(class_costs(stats))
        self._by_class.copy_(self._sample_weights())
        if note:
            warnings.warn(note, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The cumulative costs, from which everything else follows; what was drawn since the last update, and what
        the learner was made with."""
        state = {"cumulative_cost": self._hedge.cumulative_cost, "drawn": self._draws.count} | self._made
        return {name: value.cpu().clone() for name, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another that was made alike."""
        _check_state(state, self.state_dict(), self._made)
        self._hedge.cumulative_cost.copy_(state["cumulative_cost"])
        self._draws.count.copy_(state.get("drawn", torch.zeros(())))
        self._by_class.copy_(self._sample_weights())

    def _sample_weights(self) -> Tensor:
        return sample_weights(self.weights, self._class_share).float()


class ClassGuard:
    """Raise weak groups in your own loop, with a bound on what the others give up, by the learner `Guarded`.

        guard = worstclass.ClassGuard(class_counts)               # training samples of each group, (K,)
        loss = guard.weigh(losses, y, correct).mean()             # was losses.mean(); losses and correct are (B,)
        guard.update(valid_correct, valid_labels)                 # once an epoch, held-out samples

    It starts from balanced groups and stays in a ball around them. `correct` says which samples the model has right,
    `logits.argmax(1) == y`, on attacked inputs if those are what must hold. With it a group that fails on held-out
    samples alone is told from one that training can mend. Without it a group's training error is taken to be its
    held-out error, shrunk towards the mean over groups as `PRIOR` samples would: few samples still say little, but
    nothing is withheld from a group that cannot be mended. `settings` are those of `Guarded`, but for `sample`.

    With a sampler, give the counts that it draws, in proportion: equal ones if it balances. A sample weighs the share
    of its group in the loss, over its share in `class_counts`: what is balanced by both is balanced twice. `update`
    warns once if `weigh` saw other shares (`Draws`).

    In a job of several processes (torch.distributed) every process calls `update`, with the held-out samples of all:
    it sums what they have tallied in training, and so their weights stay the same.
    """

    def __init__(self, class_counts: Counts, **settings: float) -> None:
        counts = _counts(class_counts)
        made = _check_settings(settings)
        self._made = {"class_counts": counts} | {name: torch.tensor(made[name], dtype=torch.float64) for name in made}
        self.num_groups = len(counts)
        self._learner = Guarded(counts, **settings)  # type: ignore[arg-type]
        self._draws = Draws(self._learner.class_share)
        self._by_group = self._learner.weights.natural.clone()
        self._tally = torch.zeros(self.num_groups, 2, dtype=torch.int64)  # of training: samples, and those right

    @property
    def weights(self) -> Tensor:
        """The simplex vector (K,): the share of each group in the loss."""
        return self._learner.distribution

    def weigh(self, losses: Tensor, group: Tensor, correct: Tensor | None = None) -> Tensor:
        """Per-sample losses (B,) times the weight of each sample's group; take the mean of the result.

        `correct` (B,), bool, is tallied for the next `update`, in place and without waiting for the device.
        """
        index = _check_batch(losses, group, self.num_groups)
        if correct is not None:
            _check_correct(correct, group)
        if self._by_group.device != index.device:
            self._by_group, self._tally = self._by_group.to(index.device), self._tally.to(index.device)
            self._draws.to(index.device)
        weighed = losses * self._by_group.index_select(0, index)
        if correct is not None or torch.is_grad_enabled():  # a loss that is only looked at is no draw
            self._draws.add(index)
        if correct is not None:
            self._tally.index_add_(0, index, torch.stack([torch.ones_like(index), correct.long()], 1))
        return weighed

    def update(self, correct: Tensor, group: Tensor) -> None:
        """Learn from held-out samples, right or wrong (N,); a group without samples is judged by its training error.

        The tally of training starts anew.
        """
        index = _check_held_out("correct", correct, group, self.num_groups)
        _check_correct(correct, group)
        right = index[correct.cpu()]
        held_out = torch.stack([each.bincount(minlength=self.num_groups) for each in (index, right)], 1)
        drawn, held_out = _pooled(torch.cat([self._tally, self._draws.count[:, None]], 1), held_out)
        tally, valid = drawn[:, :2], _table(*held_out.unbind(1))
        self._draws.count.copy_(drawn[:, 2])
        note = self._draws.end(self._by_group)
        self._learner.update(_table(*tally.unbind(1)) if bool(tally.any()) else None, valid)
        self._tally.zero_()
        self._by_group.copy_(self._learner.weights.natural)
        if note:
            warnings.warn(note, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """What the learner knows, the tally of training since the last update, and what the learner was made with."""
        state = self._learner.state_dict() | {"tally": self._tally, "drawn": self._draws.count} | self._made
        return {name: value.cpu().clone() for name, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another that was made alike."""
        _check_state(state, self.state_dict(), self._made)
        self._tally.copy_(state["tally"])
        self._draws.count.copy_(state.get("drawn", torch.zeros(())))
        self._learner.load_state_dict({name: state[name] for name in self._learner.state_dict()})
        self._by_group.copy_(self._learner.weights.natural)


def _pooled(drawn: Tensor, held_out: Tensor) -> tuple[Tensor, Tensor]:
    """What was drawn in training, summed over the processes of a job, and the mean of their tables of held-out samples,
    counts first, which all of them were given: learners that take these stay the same on every process."""
    drawn_by_each, tables = zip(*of_every_process((drawn.cpu(), held_out.double())), strict=True)
    if not all(torch.equal(table[:, 0], tables[0][:, 0]) for table in tables):
        raise UserError("update was given other samples on another process: gather those of all processes on each.")
    return torch.stack(drawn_by_each).sum(0), torch.stack(tables).mean(0)


def _table(seen: Tensor, right: Tensor) -> ClassStats:
    """A class table of so many samples (K,), so many of them right (K,)."""
    table = ClassStats(len(seen))
    table.counts.copy_(seen)
    for column in ("natural_correct", "robust_correct"):
        table.sums(column).copy_(right)
    return table


def _counts(class_counts: Any) -> Tensor:
    """The counts (K,) in float64, if there are two or more and each is a positive number."""
    try:
        counts = torch.as_tensor(class_counts).detach().double().cpu().clone()
    except (TypeError, ValueError, RuntimeError):
        raise UserError("class_counts must hold a number for each group.") from None
    if counts.dim() != 1 or len(counts) < 2:
        raise UserError(f"class_counts must be (K,), for two groups or more, not {tuple(counts.shape)}.")
    bad = (~(counts.isfinite() & (counts > 0))).nonzero().flatten().tolist()
    if bad:
        raise UserError(f"class_counts must be positive numbers; group {bad[0]} has {counts[bad[0]]:g}: leave it out.")
    return counts


def _check_settings(settings: dict[str, Any]) -> dict[str, float]:
    """All settings of `Guarded` for weights, if these are of them, each finite and not negative."""
    signature = inspect.signature(Guarded).parameters.values()
    _, *allowed = (each.name for each in signature if each.name != "sample")  # losses have no draws
    for name, value in settings.items():
        choose("setting", name, allowed)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise UserError(f"{name} must be a number that is not negative, not {value!r}.")
    return {each.name: float(settings.get(each.name, each.default)) for each in signature if each.name in allowed}


def _check_batch(losses: Any, group: Any, num_groups: int) -> Tensor:
    """The groups as an index (B,), if they and the losses are a batch; their values are looked at on a CPU alone.

    To look at values a host waits for its GPU. There, and in a compiled step, a group that is out of range stops in the
    lookup; only -1 would not, which compiled code takes for the last.
    """
    index = _check_group(group, num_groups, values=not torch.compiler.is_compiling())
    if not isinstance(losses, Tensor) or losses.shape != group.shape:
        raise UserError(
            f"losses and group must both be (B,), not {_shown(losses)} and {_shown(group)}: "
            "compute the loss with reduction='none'."
        )
    if not losses.is_floating_point():
        raise UserError(f"losses must be floating point, not {losses.dtype}.")
    return torch.where(index < 0, num_groups, index)


def _check_held_out(name: str, values: Any, group: Any, num_groups: int) -> Tensor:
    """The groups as an index (N,) on the CPU, if they and the values are of one sample or more."""
    if (
        not isinstance(values, Tensor)
        or not isinstance(group, Tensor)
        or values.shape != group.shape
        or not group.numel()
    ):
        raise UserError(
            f"{name} and group must both be (N,), of one sample or more, not {_shown(values)} and {_shown(group)}."
        )
    return _check_group(group.detach().cpu(), num_groups, values=True)


def _check_group(group: Any, num_groups: int, *, values: bool) -> Tensor:
    if not isinstance(group, Tensor) or group.dim() != 1 or group.dtype not in INTEGERS:
        raise UserError(f"group must be (B,) whole numbers such as torch.int64, not {_shown(group)}.")
    if values and len(group) and group.device.type == "cpu":
        low, high = int(group.min()), int(group.max())
        if low < 0 or high >= num_groups:
            raise UserError(f"groups lie in {low}..{high}, expected 0..{num_groups - 1}.")
    return group.long()


def _check_correct(correct: Any, group: Tensor) -> None:
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool or correct.shape != group.shape:
        raise UserError(
            f"correct must be bool, {tuple(group.shape)} as group is, not {_shown(correct)}: logits.argmax(1) == y."
        )


def _is_right_or_wrong(values: Tensor) -> bool:
    """Whether losses (N,) are zeros and ones alone, of either some: what is right, as numbers.

    All alike move no weight, and may be losses: zeros of a saturated network, ones of a hinge loss at its start. Of
    zeros and one or two ones a small set may consist by chance, where losses are rounded to 16 bits; three are too many
    for that.
    """
    ones = int((values == 1).sum())
    return ones >= 3 and 0 < int((values == 0).sum()) == len(values) - ones


def _check_state(state: dict[str, Any], own: dict[str, Tensor], made: Collection[str]) -> None:
    """Raise unless a state has the names and shapes of one's own, and is of a learner made with the same.

    A state from before it held what a learner was made with, and what was drawn, is taken as it is.
    """
    old = not state.keys() & {*made, "drawn"}
    expected = {name: value for name, value in own.items() if not (old and name in {*made, "drawn"})}
    found = {name: torch.as_tensor(value).detach().cpu() for name, value in state.items()}
    problems = [f"it has no {name}" for name in expected if name not in found]
    problems += [f"it has {name}" for name in found if name not in expected]
    for name in (name for name in expected if name in found):
        if found[name].shape != expected[name].shape:
            problems.append(f"{name} is {tuple(found[name].shape)}, here {tuple(expected[name].shape)}")
    if not problems and not old:
        problems = _made_otherwise(found, {name: own[name] for name in made})
    if problems:
        raise UserError(f"this is the state of another learner: {'; '.join(problems[:3])}.")


def _made_otherwise(found: dict[str, Tensor], own: dict[str, Tensor]) -> list[str]:
    """In what the learner of a state differs from one's own; of `class_counts` the proportions matter."""
    problems = []
    for name, here in own.items():
        its = found[name].double()
        scale = here.sum() / its.sum() if name == "class_counts" else 1.0
        if not torch.allclose(its * scale, here, rtol=1e-6, atol=0):
            k = int((its / here).log().abs().argmax()) if here.dim() else None
            where, pair = ("", (its, here)) if k is None else (f"[{k}]", (its[k], here[k]))
            problems.append(f"{name}{where} is {pair[0]:.9g}, here {pair[1]:.9g}")
    return problems


def _shown(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
