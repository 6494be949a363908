"""The methods after WAT, each against an independent float64 transcription of its formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from worstclass.attacks import PGD
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config
from worstclass.errors import UserError
from worstclass.execution.distributed import ALONE
from worstclass.objectives import BAT
from worstclass.stats import COLUMNS, MATRICES, ClassStats
from worstclass.strategies import CFA, CFOL, CSR, DAFA, FAAL, TRIX, FairTAT
from worstclass.strategies.csr import pair_weights
from worstclass.strategies.dafa import BOUNDS, project
from worstclass.strategies.faal import worst_weights
from worstclass.types import ClassStrategy, Losses

pytestmark = pytest.mark.fast

K = 5
Floats = NDArray[np.float64]
OWN = {"dafa": "warmup", "cfa": "start"}
MAKERS: dict[str, Callable[[], ClassStrategy]] = {
    "dafa": lambda: DAFA(K, warmup=2),
    "dafa-refresh": lambda: DAFA(K, strength=3.0, warmup=1, refresh=0.5, part="valid"),
    "dafa-level": lambda: DAFA(K, warmup=1, refresh=0.5, part="valid", level=2.0),
    "cfa": lambda: CFA(K, beta=6.0, start=2),
    "faal": lambda: FAAL(K),
    "cfol": lambda: CFOL(K, eta=0.01),
    "cfol-weight": lambda: CFOL(K, eta=0.01, mode="weight"),
    "csr": lambda: CSR(K),
    "csr-valid": lambda: CSR(K, part="valid", diagonal=False),
    "fair-tat": lambda: FairTAT(K),
    "trix": lambda: TRIX(K),
}


def samples(seed: int, size: int = 200, absent: tuple[int, ...] = ()) -> tuple[Floats, NDArray[np.int64]]:
    """Random logits, right more often than not, and labels."""
    draw = np.random.default_rng(seed)
    y = draw.integers(K, size=size)
    y = y[~np.isin(y, absent)]
    return draw.normal(size=(len(y), K)) + 1.5 * np.eye(K)[y] * draw.uniform(size=K)[y][:, None], y


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def table(seed: int, absent: tuple[int, ...] = ()) -> ClassStats:
    """A class table with every column that can be asked for."""
    logits, y = samples(seed, absent=absent)
    soft, hard = torch.from_numpy(softmax(logits)), torch.from_numpy(np.eye(K)[logits.argmax(1)])
    columns: dict[str, Tensor] = {name: torch.from_numpy(logits.argmax(1) == y).double() for name in COLUMNS}
    columns |= {name: soft if name.endswith("probabilities") else hard for name in MATRICES}
    stats = ClassStats(K, extra=MATRICES)
    stats.add(torch.from_numpy(y), **columns)
    return stats


def losses(seed: int, size: int = 64) -> tuple[Losses, Tensor]:
    """A batch as an objective gives it."""
    logits, y = samples(seed, size)
    draw = np.random.default_rng(seed + 1)
    natural, robust = (torch.from_numpy(draw.exponential(size=len(y))) for _ in range(2))
    robust_logits = torch.from_numpy(logits)
    return Losses(natural, robust, robust_logits + 0.1, robust_logits), torch.from_numpy(y)


def everything(strategy: ClassStrategy) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in strategy.weights.tensors().values()])


def live(strategy: Any, seed: int) -> None:
    """A step and an epoch."""
    batch, y = losses(seed)
    if hasattr(strategy, "observe"):
        strategy.observe(batch, y, ALONE)
    strategy.update(table(seed, absent=(seed % K,) if seed % 3 == 0 else ()), table(seed + 100))


@pytest.mark.parametrize("name", MAKERS)
def test_laws(name: str) -> None:
    """Finite, not negative, storage kept, and a state that is enough to go on from."""
    strategy, other = MAKERS[name](), MAKERS[name]()
    storage = [tensor.data_ptr() for tensor in strategy.weights.tensors().values()]
    for seed in range(20):
        live(strategy, seed)
        assert everything(strategy).isfinite().all()
        assert (everything(strategy) >= 0).all()
    assert storage == [tensor.data_ptr() for tensor in strategy.weights.tensors().values()]
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in strategy.state_dict().items()}
    other.load_state_dict(state)
    assert torch.equal(everything(strategy), everything(other))
    for each in (strategy, other):
        live(each, 77)
    assert torch.equal(everything(strategy), everything(other))
    batch, y = losses(3)
    reduced = [getattr(each, "reduce", each.weights.reduce)(batch, y, *rest(each, y)) for each in (strategy, other)]
    assert reduced[0].isfinite()
    assert torch.equal(*reduced)


def rest(strategy: object, y: Tensor) -> tuple[Any, ...]:
    return (y, ALONE) if hasattr(strategy, "reduce") else ()


def permuted(stats: ClassStats, order: list[int]) -> ClassStats:
    """The table of the same samples, class k called order.index(k)."""
    other = ClassStats(K, extra=MATRICES)
    columns = [0, *range(1, 1 + len(COLUMNS))]
    for start in range(1 + len(COLUMNS), stats.table.shape[1], K):
        columns += [start + k for k in order]
    other.table.copy_(stats.table[order][:, columns])
    return other


@pytest.mark.parametrize("name", MAKERS)
def test_permuting_the_classes_permutes_the_weights(name: str) -> None:
    order = [3, 0, 4, 1, 2]
    one: Any = MAKERS[name]()
    other: Any = MAKERS[name]()
    batch, y = losses(5)
    moved = torch.tensor([order.index(int(label)) for label in y])
    shuffled = Losses(batch.natural, batch.robust, batch.natural_logits[:, order], batch.robust_logits[:, order])
    for seed in range(4):
        stats, valid = table(seed), table(seed + 50)
        one.update(stats, valid)
        other.update(permuted(stats, order), permuted(valid, order))
        for each, its, labels in ((one, batch, y), (other, shuffled, moved)):
            if hasattr(each, "observe"):
                each.observe(its, labels, ALONE)
    for key, tensor in one.weights.tensors().items():
        expected = tensor[order][:, order] if tensor.dim() == 2 else tensor[order]
        assert torch.allclose(other.weights.tensors()[key], expected, atol=1e-6), key
    if hasattr(one, "reduce"):
        assert float(one.reduce(batch, y, y, ALONE)) == pytest.approx(
            float(other.reduce(shuffled, moved, moved, ALONE)), abs=1e-9
        )


def soft_means(seed: int) -> Floats:
    logits, y = samples(seed)
    return np.stack([softmax(logits)[y == k].mean(0) for k in range(K)])


def dafa(soft: Floats, strength: float) -> list[float]:
    """The rule, pair by pair."""
    weights = []
    for i in range(K):
        given = 0.0
        for j in range(K):
            if j != i:
                given += soft[i, j] * soft[j, j] if soft[i, i] < soft[j, j] else -soft[j, i] * soft[i, i]
        weights.append(1 + strength * given)
    return weights


def test_dafa() -> None:
    """Nothing until the warm-up ends, then the rule on that epoch's table of training, for good."""
    strategy = DAFA(K, strength=1.5, warmup=2)
    strategy.update(table(0), table(1))
    assert strategy.weights.natural.tolist() == strategy.weights.radius_scale.tolist() == [1] * K
    for seed in (2, 3):
        strategy.update(table(seed), table(9))
    expected = dafa(soft_means(2), 1.5)
    assert strategy.weights.natural.tolist() == pytest.approx(expected, abs=1e-6)
    assert strategy.weights.radius_scale.tolist() == pytest.approx(expected, abs=1e-6)
    assert strategy.weights.robust.tolist() == [1] * K
    assert sum(expected) == pytest.approx(K)


def test_dafa_read_anew() -> None:
    strategy = DAFA(K, warmup=1, refresh=0.75, part="valid")
    soft = soft_means(0)
    strategy.update(table(8), table(0))
    for seed in (1, 2):
        strategy.update(table(8), table(seed))
        soft = 0.75 * soft + 0.25 * soft_means(seed)
    assert strategy.weights.natural.tolist() == pytest.approx(dafa(soft, 1.0), abs=1e-6)


def test_dafa_with_given_weights() -> None:
    """They come after the warm-up, whatever the table; levelling begins at them."""
    given = [0.7, 0.9, 1.0, 1.1, 1.3]
    plain, levelled = (DAFA(K, warmup=2, part="valid", given=given, level=level) for level in (0.0, 0.5))
    for strategy in (plain, levelled):
        strategy.update(table(8), table(0))
        assert strategy.weights.natural.tolist() == strategy.weights.radius_scale.tolist() == [1] * K
        strategy.update(table(8), table(1))
    assert plain.weights.natural.tolist() == plain.weights.radius_scale.tolist() == pytest.approx(given)
    raised = np.array(given) + levelled.multiplier.numpy()
    assert levelled.multiplier.any()
    assert levelled.weights.natural.tolist() == pytest.approx((raised - raised.mean() + 1).tolist(), abs=1e-6)


def test_dafa_levelled() -> None:
    """Multipliers against the mean of the two worst of five classes; the weights then lie in their bounds."""
    strategy = DAFA(K, strength=0.1, warmup=1, refresh=0.75, part="valid", level=0.5)
    multiplier, soft = np.zeros(K), soft_means(0)
    for seed in range(3):
        strategy.update(table(8), table(seed))
        soft = 0.75 * soft + 0.25 * soft_means(seed)
        logits, y = samples(seed)
        accuracy = np.array([(logits[y == k].argmax(1) == k).mean() for k in range(K)])
        multiplier = np.clip(multiplier + 0.5 * (np.sort(accuracy)[:2].mean() - accuracy), 0, 1)
    raised = np.array(dafa(soft, 0.1)) + multiplier
    expected = raised - multiplier.mean()
    assert multiplier.any()
    assert expected.min() > BOUNDS[0]
    assert expected.max() < BOUNDS[1]
    assert strategy.weights.natural.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert strategy.weights.radius_scale.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert strategy.weights.robust.tolist() == [1] * K


@given(st.lists(st.floats(-5, 8), min_size=2, max_size=30))
def test_levelled_weights_are_bounded_and_sum_to_the_number_of_classes(values: list[float]) -> None:
    """And are the nearest such: who is inside of the bounds has moved as far as every other, who is at one as much or
    less."""
    weights = torch.tensor(values, dtype=torch.float64)
    found = project(weights, *BOUNDS)
    assert float(found.sum()) == pytest.approx(len(values), abs=1e-9)
    assert float(found.min()) >= BOUNDS[0]
    assert float(found.max()) <= BOUNDS[1]
    inside = (found > BOUNDS[0]) & (found < BOUNDS[1])
    lowered = (weights - found)[inside]
    if len(lowered):
        assert float(lowered.max() - lowered.min()) < 1e-9
        assert bool((weights - found <= lowered[0] + 1e-9)[found == BOUNDS[0]].all())
        assert bool((weights - found >= lowered[0] - 1e-9)[found == BOUNDS[1]].all())


def test_cfa() -> None:
    """The loss of a batch is the mean of (CE + beta_k KL) / (1 + beta_k)."""
    beta, strategy = 6.0, CFA(K, beta=6.0, radius=0.3, share=0.5, start=2)
    batch, y = losses(4)
    plain = sum(float(n + r) / (1 + beta) for n, r in zip(batch.natural, batch.robust, strict=True)) / len(y)
    assert float(strategy.weights.reduce(batch, y)) == pytest.approx(plain, rel=1e-6)
    strategy.update(table(0), table(9))
    assert strategy.weights.radius_scale.tolist() == [1] * K
    strategy.update(table(1), table(9))
    logits, labels = samples(1)
    accuracy = [float((logits[labels == k].argmax(1) == k).mean()) for k in range(K)]
    expected = 0.0
    for k, natural, robust in zip(y.tolist(), batch.natural.tolist(), batch.robust.tolist(), strict=True):
        scaled = (0.5 + accuracy[k]) * beta
        expected += (natural + scaled * robust / beta) / (1 + scaled) / len(y)  # `robust` is beta * KL
    assert float(strategy.weights.reduce(batch, y)) == pytest.approx(expected, rel=1e-6)
    assert strategy.weights.radius_scale.tolist() == pytest.approx([0.3 + a for a in accuracy], abs=1e-6)


@pytest.mark.parametrize("method", ["dafa", "cfa"])
def test_on_pgd_at(method: str) -> None:
    """Its only loss is the adversarial one: DAFA weighs that by W, CFA leaves it alone; radii as ever."""
    config = make_config({"method": method, "objective": "pgd-at"} | {f"{method}_{OWN[method]}": 1})
    strategy = config.make_strategy(torch.ones(K))
    strategy.update(table(2), table(9))
    batch, y = losses(4)
    only = batch._replace(natural=torch.zeros_like(batch.natural))
    weights = dafa(soft_means(2), 1.0) if method == "dafa" else [1.0] * K
    expected = sum(weights[k] * float(loss) for k, loss in zip(y.tolist(), only.robust, strict=True)) / len(y)
    assert float(strategy.weights.reduce(only, y)) == pytest.approx(expected, rel=1e-6)
    assert strategy.weights.radius_scale.tolist() != [1] * K


@pytest.mark.parametrize("objective", ["bat", "natural"])
def test_an_aim_is_not_ignored(objective: str) -> None:
    perturb = make_config({"method": "wat", "objective": objective}).make_objective().perturb
    with pytest.raises(UserError, match=f"objective '{objective}' cannot aim"):
        perturb(nn.Flatten(), torch.rand(2, 1, 4, 4), torch.tensor([0, 1]), target=torch.tensor([1, 0]))


def test_methods_that_aim_say_so() -> None:
    """A recipe is refused by it, before anything is written."""
    for name, method in METHODS.items():
        required = {"class_weights": "balanced"} if name == "fixed" else {}
        weights = make_config({"method": name, **required}).make_strategy(torch.ones(K)).weights
        assert method.aims == (weights.targets is not None)


def divergence(p: Floats) -> float:
    return float(-np.log(len(p)) - np.log(p).mean())


@pytest.mark.parametrize("tau", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_faal_finds_the_worst_weights(seed: int, tau: float) -> None:
    """On the boundary of the ball, and no point that a solver or chance finds in it is worse."""
    draw = np.random.default_rng(seed)
    gains = draw.normal(size=K) * 10.0 ** draw.integers(-2, 3)
    p = worst_weights(torch.from_numpy(gains), tau).numpy()
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert divergence(p) == pytest.approx(tau, rel=1e-6)
    unit = gains / np.abs(gains).max()
    found = minimize(
        lambda q: -unit @ q,
        np.full(K, 1 / K),
        bounds=[(1e-9, 1)] * K,
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1},
            {"type": "ineq", "fun": lambda q: tau - divergence(q)},
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert unit @ p >= unit @ found.x - 1e-5
    others = draw.dirichlet(np.ones(K), size=20000)
    inside = -np.log(K) - np.log(others).mean(1) <= tau
    assert not inside.any() or (others[inside] @ unit).max() <= unit @ p + 1e-9


def test_faal_of_equal_gains_is_uniform() -> None:
    assert worst_weights(torch.zeros(K, dtype=torch.float64), 0.5).tolist() == pytest.approx([1 / K] * K)


def test_faal() -> None:
    """(K / B) sum_i p_{y_i} loss_i, with p of the margins summed by class."""
    batch, y = losses(6)
    soft = softmax(batch.robust_logits.numpy())
    gains = np.zeros(K)
    for row, label in zip(soft, y.tolist(), strict=True):
        gains[label] += max(row[j] for j in range(K) if j != label) - row[label]
    p = worst_weights(torch.from_numpy(gains), 0.5)
    total = [float(p[label] * (n + r)) for label, n, r in zip(y, batch.natural, batch.robust, strict=True)]
    assert float(FAAL(K, tau=0.5).reduce(batch, y, y, ALONE)) == pytest.approx(K / len(y) * sum(total), rel=1e-9)


@pytest.mark.parametrize("mode", ["sample", "weight"])
def test_cfol(mode: Any) -> None:
    """EXP3, sample by sample, all of a batch with the p before it."""
    strategy, w = CFOL(K, eta=0.02, gamma=0.4, mode=mode), np.zeros(K)
    for seed in range(6):
        batch, y = losses(seed)
        strategy.observe(batch, y, ALONE)
        p = 0.4 / K + 0.6 * softmax(w[None])[0]
        for label, predicted in zip(y.tolist(), batch.robust_logits.argmax(1).tolist(), strict=True):
            w[label] += 0.02 * (predicted != label) / p[label]
    p = 0.4 / K + 0.6 * softmax(w[None])[0]
    if mode == "sample":
        assert strategy.weights.sampling is not None
        assert strategy.weights.sampling.tolist() == pytest.approx(p.tolist(), abs=1e-6)
        assert strategy.weights.natural.tolist() == [1] * K
    else:
        assert strategy.weights.sampling is None
        assert strategy.weights.natural.tolist() == pytest.approx((K * p).tolist(), abs=1e-5)
        assert strategy.weights.robust.tolist() == strategy.weights.natural.tolist()


def test_csr() -> None:
    """The rank-one part of the errors by power iteration, and the loss sample by sample."""
    strategy = CSR(K, alpha=0.3)
    strategy.update(table(2), table(9))
    logits, y = samples(2)
    errors = np.zeros((K, K))
    for predicted, label in zip(logits.argmax(1), y, strict=True):
        errors[predicted, label] += predicted != label
    right = np.ones(K)
    for _ in range(3000):
        right = errors.T @ (errors @ right)
        right /= np.linalg.norm(right)
    left = errors @ right
    outer = np.outer(left / np.linalg.norm(left), right)
    wanted = 0.01 + 2 * (outer - outer.min()) / (outer.max() - outer.min())
    assert strategy.pair.numpy() == pytest.approx(wanted, abs=1e-6)
    batch, labels = losses(7)
    total = 0.0
    for row, label, natural, robust in zip(batch.robust_logits.numpy(), labels.tolist(), *batch[:2], strict=True):
        entropy = -np.log(softmax(row[None])[0][label])
        total += 0.7 * float(natural) + float(robust) + 0.3 * wanted[row.argmax(), label] * entropy
    assert float(strategy.reduce(batch, labels, labels, ALONE)) == pytest.approx(total / len(labels), rel=1e-6)


def test_csr_without_errors_or_diagonal() -> None:
    assert pair_weights(torch.eye(K)).tolist() == torch.ones(K, K).tolist()
    assert pair_weights(torch.ones(K, K)).tolist() == torch.ones(K, K).tolist()  # and not rounding, stretched
    weights = pair_weights(torch.rand(K, K, generator=torch.Generator().manual_seed(0)), diagonal=False)
    assert weights.diagonal().tolist() == pytest.approx([0.01] * K)


def test_fair_tat() -> None:
    strategy = FairTAT(K, sharpness=2.0, radius=0.5)
    strategy.update(table(3), table(9))
    logits, y = samples(3)
    wrong = logits.argmax(1) != y
    landed = np.bincount(logits.argmax(1)[wrong], minlength=K) / wrong.sum()
    assert strategy.weights.targets is not None
    for label, row in enumerate(strategy.weights.targets.tolist()):
        drawn = [np.exp(2 * landed[j]) if j != label else 0.0 for j in range(K)]
        assert row == pytest.approx([each / sum(drawn) for each in drawn], abs=1e-6)
    accuracy = [float((~wrong)[y == k].mean()) for k in range(K)]
    assert strategy.weights.radius_scale.tolist() == pytest.approx([0.5 + a for a in accuracy], abs=1e-6)


def test_trix() -> None:
    strategy = TRIX(K, strength=2.0)
    strategy.update(table(9), table(4))
    logits, y = samples(4)
    accuracy = np.array([float((logits[y == k].argmax(1) == k).mean()) for k in range(K)])
    assert strategy.weights.targets is not None
    for label, row in enumerate(strategy.weights.targets.tolist()):
        strong = accuracy[label] > accuracy.mean()
        assert row == pytest.approx([strong / (K - 1) if j != label else 0 for j in range(K)], abs=1e-6)
    expected = np.maximum(1 + 2 * (accuracy.mean() - accuracy), 0.1).tolist()
    for vector in (strategy.weights.natural, strategy.weights.robust, strategy.weights.radius_scale):
        assert vector.tolist() == pytest.approx(expected, abs=1e-6)


class Wavy(nn.Module):
    """A small model whose prediction turns more than once along an ascent."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(16, 3, bias=False).double()
        nn.init.normal_(self.linear.weight, std=4.0, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = torch.sin(3 * self.linear(self.flatten(x)))
        return logits


def test_bat() -> None:
    """Sample by sample, as the public code's two early stops say, along one ascent from the image itself."""
    model, draw = Wavy(), torch.Generator().manual_seed(2)
    x, y = torch.rand(40, 1, 4, 4, dtype=torch.float64, generator=draw), torch.randint(3, (40,), generator=draw)
    y[::2] = model(x[::2]).argmax(1)  # half of them right at first
    settings: dict[str, Any] = {"eps": 0.01, "step_size": 0.01 / 3, "start": "none"}
    attack = PGD(steps=3, **settings)
    pair = BAT(beta=6.0, attack=attack).perturb(model, x, y)
    kinds = set()
    for number in range(len(x)):
        image, label = x[number : number + 1], y[number : number + 1]
        iterates = [PGD(steps=steps, **settings)(model, image, label) for steps in range(attack.steps + 1)]
        fails = [int(model(each).argmax()) != int(label) for each in iterates[:-1]]
        first = fails.index(True) if any(fails) else None
        right = iterates[-1] if first is None else iterates[max(first - 1, 0)]
        later = [i for i in range(len(fails)) if fails[i] and first is not None and i > first]
        wrong = iterates[later[0]] if later else iterates[-1]
        kinds.add((first is None, bool(later)))
        assert torch.allclose(pair[number, 0], right[0], atol=1e-12)
        assert torch.allclose(pair[number, 1], wrong[0], atol=1e-12)
    assert kinds == {(True, False), (False, True), (False, False)}  # never wrong, again and again, or once
    found = BAT(beta=6.0, attack=attack).losses(model, x, pair, y)
    clean, correct, fooled = (softmax(model(each).detach().numpy()) for each in (x, pair[:, 0], pair[:, 1]))
    for i, label in enumerate(y.tolist()):
        robust = 6 * (clean[i] * np.log(clean[i] / fooled[i])).sum()
        robust += sum((p * np.log(3 * p)).sum() for p in (correct[i], fooled[i]))
        assert float(found.natural[i].detach()) == pytest.approx(-np.log(correct[i][label]))
        assert float(found.robust[i].detach()) == pytest.approx(robust)
