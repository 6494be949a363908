"""The paper's three theorems as computed certificates: both sides of each inequality, and whether its assumptions hold.

A certificate is worth what its assumptions are, so each is checked and stated. Where a proof does not carry what the
theorem says, the bound that it does carry is beside it, and a note says why.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from worstclass.errors import UserError
from worstclass.metrics.measures import Floats

DRAWS = 1000  # of signs, for Rademacher terms
CLAIMS = {
    1: "the worst of the classes, each at its best epoch <= weighted average cost + log(K + 1) / (T eta)",
    2: "worst-class robust risk <= its empirical value + 2 * complexity + 3 sqrt(log(2 K / delta) / (2 n_k))",
    3: "worst-class robust error <= K * margin errors + complexity + radius term + confidence term",
}
UNION = (
    "The paper's proof takes the largest of K bounds, each of probability 1 - delta; all of them hold with that "
    "probability only if each has delta / K. The bound here has; the one printed has not, and is smaller."
)


@dataclass(frozen=True)
class Assumption:
    """One condition of a theorem, and what was found."""

    name: str
    holds: bool
    seen: str


@dataclass(frozen=True)
class Certificate:
    """`left <= right`, if all assumptions hold; `parts` are the terms and what else was measured.

    With a `confidence`, what is bounded is the population's risk, and `left` is that of the sample. A theorem that
    cannot speak about the target has no sides.
    """

    theorem: int
    claim: str
    left: float | None
    right: float | None
    assumptions: tuple[Assumption, ...]
    parts: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    confidence: float | None = None

    @property
    def applies(self) -> bool:
        """Whether every assumption holds."""
        return all(assumption.holds for assumption in self.assumptions)

    @property
    def verdict(self) -> str:
        """One sentence: what the numbers say, and what that is worth."""
        if self.left is None or self.right is None:
            return (
                "It does not apply: " + "; ".join(f"{a.name}: {a.seen}" for a in self.assumptions if not a.holds) + "."
            )
        if self.confidence is None:
            sides = (
                f"{self.left:.4f} <= {self.right:.4f}: " + ("true" if self.left <= self.right else "NOT true") + " here"
            )
        else:
            sides = f"At most {self.right:.4f} in the population (confidence {self.confidence:g}), {self.left:.4f} here"
        return sides + ("." if self.applies else ", but an assumption fails, so the theorem does not promise it.")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {"applies": self.applies, "verdict": self.verdict}


def hedge_weights(costs: ArrayLike, *, eta: float) -> Floats:
    """The weights (T, N) that Hedge plays in each round, given the costs (T, N): heavier where it has cost more."""
    costs = np.asarray(costs, dtype=np.float64)
    before = np.vstack([np.zeros_like(costs[:1]), np.cumsum(costs, axis=0)[:-1]])
    return np.asarray(softmax(eta * before, axis=1))


def regret(costs: ArrayLike, weights: ArrayLike) -> float:
    """What the best single expert in hindsight would have collected, less what the weights did."""
    costs, weights = np.asarray(costs, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    return float(costs.sum(0).max() - (weights * costs).sum())


def regret_bound(costs: ArrayLike, *, eta: float) -> float:
    """Hedge's regret is never more than this: log(N) / eta + eta / 8 * the squared range of each round."""
    costs = np.asarray(costs, dtype=np.float64)
    return log(costs.shape[1]) / eta + eta / 8 * float((np.ptp(costs, axis=1) ** 2).sum())


def theorem1(costs: ArrayLike, *, eta: float, weights: ArrayLike | None = None) -> Certificate:
    """Worst class, best epoch: max_k min_t c_k(f^t) <= the weighted average of the costs + log(N) / (T eta).

    `costs` (T, N) are the validation losses of the average and of each class; `weights` (T, N) those that were played,
    Hedge's own unless given. Costs are rescaled by their largest, B, for the assumptions, which makes eta into eta B;
    both sides are in the units of the costs.
    """
    costs = np.asarray(costs, dtype=np.float64)
    if costs.ndim != 2 or not len(costs) or not np.isfinite(costs).all():
        raise UserError("costs must be a table of finite numbers, one row for each epoch.")
    hedge = hedge_weights(costs, eta=eta)
    played = hedge if weights is None else np.asarray(weights, dtype=np.float64)
    rounds, experts = costs.shape
    bound = max(float(costs.max()), 1e-12)
    scaled_eta = eta * bound
    mean, least = costs.mean(0), costs.min(0)
    slack = mean * (1 - scaled_eta) - least if scaled_eta < 1 else -np.ones(experts)
    apart = float(np.abs(played - hedge).max())
    left = float(least.max())
    average, term = float((played * costs).sum(1).mean()), log(experts) / (rounds * eta)
    assumptions = (
        Assumption("costs in [0, 1] once divided by the largest", bool((costs >= 0).all()), f"largest {bound:.3f}"),
        Assumption(
            "eta, times that largest, is at most 1/2", scaled_eta <= 0.5, f"{eta:g} x {bound:.3f} = {scaled_eta:.3f}"
        ),
        Assumption(
            "mean over epochs >= least / (1 - eta), for the average and every class",
            bool((slack >= 0).all()),
            f"holds for {int((slack >= 0).sum())} of {experts}",
        ),
        Assumption("the weights are Hedge's", apart < 1e-6, f"furthest apart {apart:.2g}"),
    )
    return Certificate(
        theorem=1,
        claim=CLAIMS[1],
        left=left,
        right=average + term,
        assumptions=assumptions,
        parts={
            "weighted average cost": average,
            "log(K + 1) / (T eta)": term,
            "regret": regret(costs, played),
            "regret bound of Hedge": regret_bound(costs, eta=eta),
            "worst class of the epoch with the least worst class": float(costs.max(1).min()),
        },
        notes=(
            "The left side takes the best epoch of each class on its own: no single classifier need have it. "
            "The last number is that of one classifier.",
        ),
    )


def massart(losses: ArrayLike) -> float:
    """A bound on the Rademacher complexity of finitely many loss vectors (F, n): largest norm * sqrt(2 log F) / n."""
    losses = np.asarray(losses, dtype=np.float64)
    return float(np.sqrt((losses**2).sum(1)).max() * sqrt(2 * log(len(losses))) / losses.shape[1])


def rademacher(losses: ArrayLike, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """The Rademacher complexity of finitely many loss vectors (F, n) by Monte Carlo over signs, and its standard error.

    Each draw of signs is used with its opposite, so that a single loss vector has exactly none.
    """
    losses = np.asarray(losses, dtype=np.float64)
    if len(losses) == 1:
        return 0.0, 0.0
    generator = np.random.default_rng(seed)
    values = np.empty(draws)
    for index in range(draws):
        sums = losses @ generator.choice((-1.0, 1.0), size=losses.shape[1]) / losses.shape[1]
        values[index] = (sums.max() - sums.min()) / 2
    return float(values.mean()), float(values.std(ddof=1) / sqrt(draws))


def theorem2(
    losses: ArrayLike,
    labels: ArrayLike,
    *,
    num_classes: int,
    which: int = 0,
    delta: float = 0.05,
    independent: tuple[bool, str] = (True, "as the caller says"),
    exact_loss: tuple[bool, str] = (True, "as the caller says"),
    draws: int = DRAWS,
    seed: int = 0,
) -> Certificate:
    """Worst-class robust risk in the population, from robust losses in [0, 1] of finitely many classifiers on a sample.

    `losses` is (F, n) for F classifiers on images with these `labels`; the certificate is for classifier `which`.
    `independent` says whether the classifiers were fixed before the sample was seen, `exact_loss` whether the losses
    are the true maxima over the ball: no attack proves that, so under attack alone it is (False, why).
    """
    losses, labels = np.asarray(losses, dtype=np.float64), np.asarray(labels)
    counts = np.bincount(labels, minlength=num_classes)
    if losses.ndim != 2 or losses.shape[1] != len(labels) or (counts == 0).any():
        raise UserError("losses must be (classifiers, images), with images of every class.")
    parts = [losses[:, labels == k] for k in range(num_classes)]
    empirical = max(float(part[which].mean()) for part in parts)
    drawn = [rademacher(part, draws=draws, seed=seed) for part in parts]
    complexity = max(value + 2 * error for value, error in drawn)
    size = len(labels)
    term = 3 * sqrt(num_classes * log(2 / delta) / (2 * size))
    sound = 3 * sqrt(log(2 * num_classes / delta) / (2 * int(counts.min())))
    assumptions = (
        Assumption("losses in [0, 1]", bool(((losses >= 0) & (losses <= 1)).all()), f"largest {losses.max():.3f}"),
        _equal_sizes(counts),
        Assumption("classifiers fixed before the sample was seen", *independent),
        Assumption("losses are the true maxima over the ball", *exact_loss),
    )
    return Certificate(
        theorem=2,
        claim=CLAIMS[2],
        left=empirical,
        right=empirical + 2 * complexity + sound,
        assumptions=assumptions,
        parts={
            "classifiers": float(len(losses)),
            "Rademacher complexity, by signs": complexity,
            "Rademacher complexity, Massart": max(massart(part) for part in parts),
            "confidence term": sound,
            "bound as printed": empirical + 2 * complexity + term,
        },
        notes=(UNION,),
        confidence=1 - delta,
    )


def _equal_sizes(counts: NDArray[np.int64]) -> Assumption:
    equal = bool((counts == counts[0]).all())
    return Assumption("classes of equal size", equal, f"{counts.min()} to {counts.max()} images")


def linear_robust_error(weights: ArrayLike, x: ArrayLike, y: ArrayLike, *, eps: float) -> NDArray[np.bool_]:
    """Whether some point of each sample's L-inf ball is not classified as y by argmax <w_k, x>; ties are errors."""
    return _linear_margin(weights, x, y, eps=eps) <= 0


def _linear_margin(weights: ArrayLike, x: ArrayLike, y: ArrayLike, *, eps: float) -> Floats:
    """The least margin over the ball: min over k != y of <w_y - w_k, x> - eps ||w_k - w_y||_1."""
    weights, x, y = np.asarray(weights, dtype=np.float64), np.asarray(x, dtype=np.float64), np.asarray(y)
    scores = x @ weights.T
    distance = np.abs(weights[:, None] - weights[None]).sum(2)
    rivals = scores + eps * distance[y]
    rivals[np.arange(len(y)), y] = -np.inf
    return np.asarray(scores[np.arange(len(y)), y] - rivals.max(1))


def theorem3(
    weights: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    eps: float,
    gamma: float,
    bound: float | None = None,
    p: float = 2.0,
    delta: float = 0.05,
    draws: int = DRAWS,
    seed: int = 0,
) -> Certificate:
    """Worst-class robust error of a linear classifier argmax <w_k, x>, with `weights` (K, d), from a sample.

    `bound` is W, the largest p-norm that rows may have, fixed beforehand; left out, that of these very rows, and the
    assumption is then stated as failing. The expectations over signs are by Monte Carlo, two standard errors added.
    """
    weights, x, y = np.asarray(weights, dtype=np.float64), np.asarray(x, dtype=np.float64), np.asarray(y)
    classes, dimension = weights.shape
    counts = np.bincount(y, minlength=classes)
    if (counts == 0).any() or p < 1:
        raise UserError("theorem 3 needs images of every class, and p at least 1.")
    dual = np.inf if p == 1 else p / (p - 1) if np.isfinite(p) else 1.0
    norms = np.linalg.norm(weights, ord=p, axis=1)
    largest = float(norms.max()) if bound is None else bound
    errors = _linear_margin(weights, x, y, eps=eps) <= gamma
    spread = max(_signed_norm(x[y == k], dual, draws, seed) for k in range(classes))
    size = len(y)
    empirical = classes * float(errors.mean())
    complexity = 2 * largest * classes**3 / (gamma * size) * spread
    radius = 2 * largest * classes**2 * eps * dimension ** (1 / dual) / (gamma * sqrt(size))
    term = 3 * sqrt(classes * log(2 / delta) / (2 * size))
    union = 3 * sqrt(log(2 * classes / delta) / (2 * int(counts.min())))
    robust = linear_robust_error(weights, x, y, eps=eps)
    worst = max(float(robust[y == k].mean()) for k in range(classes))
    right = empirical + complexity + radius + union
    assumptions = (
        Assumption("linear, without bias", True, f"{classes} rows of {dimension}"),
        _equal_sizes(counts),
        Assumption(
            f"rows of {p:g}-norm at most W, fixed beforehand",
            bound is not None and bool((norms <= bound + 1e-12).all()),
            f"largest {norms.max():.3g}, W " + ("taken from these rows" if bound is None else f"= {bound:g}"),
        ),
    )
    return Certificate(
        theorem=3,
        claim=CLAIMS[3],
        left=worst,
        right=right,
        assumptions=assumptions,
        parts={
            "K times the share with margin at most gamma": empirical,
            "complexity term": complexity,
            "radius term": radius,
            "confidence term": union,
            "bound as printed": empirical + complexity + radius + term,
        },
        notes=(
            *(["The bound is above one: it says nothing."] if right > 1 else []),
            UNION,
        ),
        confidence=1 - delta,
    )


def _signed_norm(x: Floats, order: float, draws: int, seed: int) -> float:
    """E || sum_i s_i x_i || over random signs, with two standard errors."""
    generator = np.random.default_rng(seed)
    signs = generator.choice((-1.0, 1.0), size=(draws, len(x)))
    norms = np.linalg.norm(signs @ x, ord=order, axis=1)
    return float(norms.mean() + 2 * norms.std(ddof=1) / sqrt(draws))


def certificate_lines(certificates: Sequence[Certificate]) -> list[str]:
    """For a terminal: each claim, what it comes to, its assumptions, its parts."""
    lines = []
    for each in certificates:
        lines += [f"Theorem {each.theorem}: {each.claim}", f"  {each.verdict}"]
        lines += [f"  {'holds' if a.holds else 'FAILS'}  {a.name} ({a.seen})" for a in each.assumptions]
        lines += [f"  {name}: {value:.4g}" for name, value in each.parts.items()]
        lines += [f"  Note: {note}" for note in each.notes]
    return lines
