"""Every example runs, with small limits; the pair of loops differs in the three lines alone."""

import difflib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import worstclass
from scripts import load_script
from tiny import write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.methods import METHODS
from worstclass.files import read_json
from worstclass.report import load_results
from worstclass.runs.run import open_run
from worstclass.theory.certify import certify_training

EXAMPLES = Path(__file__).parents[2] / "examples"
THREE_LINES = [
    "guard = wc.ClassGuard(train.class_counts(10))",
    "loss = guard.weigh(losses, y, logits.argmax(1) == y).mean()",
    "guard.update(valid_logits.argmax(1) == valid_labels, valid_labels)",
]


def load(name: str) -> Any:
    """An example as a module."""
    return load_script(EXAMPLES / f"{name}.py")


@pytest.fixture(autouse=True)
def methods_as_shipped() -> Iterator[None]:
    """A method that an example adds is taken out again."""
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


def test_there_is_a_test_for_every_example() -> None:
    tests = Path(__file__).read_text()
    assert [path.stem for path in sorted(EXAMPLES.glob("*.py")) if f'load("{path.stem}")' not in tests] == []


def test_the_names_of_an_example_are_at_the_top() -> None:
    """`import worstclass as wc`; beside it only modules of the first level, such as `rng`."""
    for path in EXAMPLES.glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if re.match(r"(from|import) worstclass", line)]
        assert lines[:1] == ["import worstclass as wc"], path.name
        assert set(lines[1:]) <= {"from worstclass import rng"}, path.name


def test_the_loops_differ_in_three_lines() -> None:
    plain = (EXAMPLES / "plain_loop.py").read_text().splitlines()[1:]  # without the docstring
    guarded = (EXAMPLES / "worst_class_loop.py").read_text().splitlines()[1:]
    difference = list(difflib.ndiff(plain, guarded))
    added = [line[2:].strip() for line in difference if line.startswith("+ ")]
    removed = [line[2:].strip() for line in difference if line.startswith("- ")]
    assert added == THREE_LINES
    assert removed == ["loss = losses.mean()"]


def test_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        average, worst = load("plain_loop").main(epochs=2, limit=300)
    assert 0 <= worst <= average <= 1
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_worst_class_loop(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        first = load("worst_class_loop").main(epochs=1, limit=300)
        plain = load("plain_loop").main(epochs=1, limit=300)
        average, worst = load("worst_class_loop").main(epochs=2, limit=300)
    assert first == pytest.approx(plain, abs=0.02)  # the first epoch has uniform weights: the same training
    assert 0 <= worst <= average <= 1
    assert all("worst" in line for line in capsys.readouterr().out.splitlines())


def test_class_weights(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("class_weights")
    with torch.random.fork_rng():
        accuracy = example.main(seeds=1, epochs=1)
    assert list(accuracy) == example.CASES
    assert all(each.shape == (1, 10) and 0 <= each.min() <= each.max() <= 1 for each in accuracy.values())
    assert len(capsys.readouterr().out.splitlines()) == len(example.CASES)


def test_the_problems_of_the_example_are_what_they_are_said_to_be() -> None:
    example = load("class_weights")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        train, valid, test = example.make_problem("unbalanced")
        wrong_train, wrong_valid, clean = example.make_problem("mislabelled")
    assert sorted(train.class_counts(10).tolist()) == [round(1000 * 25 ** (-rank / 9)) for rank in range(9, -1, -1)]
    assert torch.equal(train.class_counts(10).argsort(), valid.class_counts(10).argsort())  # held-out as training
    true_train, true_valid = worstclass.split_validation(
        worstclass.open_source("fashion-mini").read("train"), 10, 1 / 11
    )
    changed = []
    for part, true in ((wrong_train, true_train), (wrong_valid, true_valid)):
        assert torch.equal(part.class_counts(10), true.class_counts(10))  # swapped, so classes stay balanced
        wrong = part.y != true.y
        changed.append(int(true.y[wrong].mode().values))
        assert float(wrong[true.y == changed[-1]].double().mean()) == pytest.approx(0.4)
        assert bool(((part.y == changed[-1]) | (true.y == changed[-1]))[wrong].all())
    assert changed[0] == changed[1]
    assert torch.equal(test.y, clean.y)


def test_groups(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("groups")
    with torch.random.fork_rng():
        accuracy = example.main(seeds=1, epochs=1)
        x, group = example.pick(worstclass.open_source("fashion-mini").read("test"), 0.95)
    assert tuple(accuracy) == example.LEARNERS
    assert all(each.shape == (1, 4) and 0 <= each.min() <= each.max() <= 1 for each in accuracy.values())
    assert len(capsys.readouterr().out.splitlines()) == 4
    share = group.bincount(minlength=4) / len(group)
    assert share.tolist() == pytest.approx([0.475, 0.025, 0.025, 0.475], abs=0.03)  # pullovers upright, coats inverted
    assert float(x.flatten(1).mean(1)[group % 2 == 1].mean()) > float(x.flatten(1).mean(1)[group % 2 == 0].mean())


def dafa_weights(soft: NDArray[np.float64], strength: float) -> list[float]:
    """The rule, class by class and pair by pair."""
    weights = []
    for i, row in enumerate(soft):
        given = 0.0
        for j in range(len(soft)):
            if j != i:
                given += row[j] * soft[j][j] if row[i] < soft[j][j] else -soft[j][i] * row[i]
        weights.append(1 + strength * given)
    return weights


def soft_table(seed: int, num_classes: int = 4) -> tuple[worstclass.ClassStats, NDArray[np.float64]]:
    """A table of random probabilities, and their means by class."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(num_classes), 5)
    soft = draw.dirichlet(np.ones(num_classes), size=len(y))
    stats = worstclass.ClassStats(num_classes, extra=("robust_probabilities",))
    columns = {name: torch.zeros(len(y)) for name in stats.columns} | {"robust_probabilities": torch.from_numpy(soft)}
    stats.add(torch.from_numpy(y), **columns)
    return stats, np.stack([soft[y == k].mean(0) for k in range(num_classes)])


def test_add_a_method() -> None:
    example = load("add_a_method")
    assert example.main(epochs=2, limit=400).natural.shape == (10,)
    strategy, other = (example.DAFA(4, strength=1.5, warmup=2) for _ in range(2))
    storage = other.weights.natural.data_ptr()
    strategy.update(*[soft_table(0)[0]] * 2)
    assert strategy.weights.natural.tolist() == [1, 1, 1, 1]  # not before the warm-up ends
    stats, soft = soft_table(1)
    strategy.update(stats, stats)
    expected = dafa_weights(soft, 1.5)
    assert strategy.by_class.tolist() == pytest.approx(expected, abs=1e-12)
    assert sum(expected) == pytest.approx(4)
    strategy.update(*[soft_table(2)[0]] * 2)  # and no more after it
    other.load_state_dict(strategy.state_dict())
    for weights in (strategy.weights, other.weights):
        assert weights.natural.tolist() == weights.radius_scale.tolist() == pytest.approx(expected, abs=1e-6)
        assert weights.robust.tolist() == [1, 1, 1, 1]
    assert other.weights.natural.data_ptr() == storage


def test_the_method_of_the_example_is_reported_and_certified(tmp_path: Path) -> None:
    """By its own name, and with the weights that it played."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    small = {"data": f"npz:{data}", "epochs": 3, "lr_milestones": [], "batch_size": 16, "valid_fraction": 0.25}
    page = load("add_a_method").compare(tmp_path, attack="pgd-2", **small).read_text()
    assert "My DAFA: " in page
    titles = [result.title for result in load_results([tmp_path / "trades", tmp_path / "my-dafa"])]
    assert titles == ["TRADES", "My DAFA"]
    run = open_run(tmp_path / "my-dafa")
    played = [np.array(line["expert_weights"]) for line in run.log]
    assert played[0].tolist() == played[1].tolist() == [1, 0, 0, 0]  # every sample alike: the average
    by_class = np.array(run.log[2]["strategy"]["by_class"])
    assert not np.allclose(by_class, 1)
    assert played[2] == pytest.approx(
        [0, *(by_class / by_class.sum() + 1 / 3) / 2], abs=1e-6
    )  # of both losses' weights
    costs = np.array([line["class_costs"] for line in run.log])
    certificate = certify_training(run)
    assert certificate.parts["weighted average cost"] == pytest.approx((costs * played).sum(1).mean())


def test_the_method_of_the_example_is_swept(tmp_path: Path) -> None:
    load("add_a_method")
    data = write_tiny_npz(tmp_path / "tiny.npz")
    (tmp_path / "sweep.toml").write_text(
        'recipes = ["fashion-mini-trades"]\nattacks = "pgd-2"\n[grid]\nmethod = ["trades", "my-dafa"]\n'
        f'[set]\ndata = "npz:{data}"\nepochs = 1\nbatch_size = 16\nvalid_fraction = 0.25\n'
    )
    arguments = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "sweep"), "--serial"]
    cli.app(arguments, standalone_mode=False)
    jobs = read_json(tmp_path / "sweep" / "sweep.json")["jobs"]
    assert [job["state"] for job in jobs] == ["done", "done"]
    assert len({job["name"] for job in jobs if "dafa" in job["name"]}) == 1


def test_add_an_attack() -> None:
    example = load("add_an_attack")
    accuracy = example.main(epochs=1, limit=440, tries=5)
    assert list(accuracy) == ["clean", "random signs", "PGD-20"]
    assert all(0 <= value <= 1 for value in accuracy.values())


def test_the_attack_of_the_example_keeps_the_laws() -> None:
    attack = load("add_an_attack").RandomSigns(eps=0.1, tries=4)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 1, 8, 8, generator=draw), torch.arange(6) % 3
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    first, again = (attack(model, x, y, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, again)
    radius_scale = torch.tensor([0.0, 0.5, 1, 1, 1, 1])
    distance = (attack(model, x, y, radius_scale=radius_scale) - x).abs().flatten(1).amax(1)
    assert bool((distance <= 0.1 * radius_scale + 1e-6).all())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_add_a_dataset(tmp_path: Path) -> None:
    run = load("add_a_dataset").main(tmp_path, epochs=1)
    assert run.class_names == ["across", "down", "slanted"]
    assert len(run.log) == 1
    assert run.load_model("last")[1] == 1


def test_photos(tmp_path: Path) -> None:
    """The folder has the images of the data set, to the bit."""
    load("photos").main(tmp_path / "photos", per_class=3)
    written, source = worstclass.open_source(f"folder:{tmp_path / 'photos'}"), worstclass.open_source("fashion-mini")
    assert sorted(written.class_names) == sorted(source.class_names)
    images, wanted = written.read("test"), source.read("test")
    k = written.class_names.index("bag")
    assert torch.equal(images.x[images.y == k], wanted.x[wanted.y == source.class_names.index("bag")][:3])


def test_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the example prints works, in the folder of the example."""
    with torch.random.fork_rng():
        command = load("own_model").main(tmp_path, epochs=1, limit=500)
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    cli.app([word.replace("pgd-20", "pgd-2") for word in shlex.split(command)[1:]], standalone_mode=False)
    monkeypatch.delitem(sys.modules, "own_model")
    card = read_json(tmp_path / "judged" / "card.json")
    assert list(card["columns"]) == ["natural", "pgd-2"]
    assert card["columns"]["pgd-2"]["attack"].startswith("PGD(")


def test_audit_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The audit of a model that knows nothing of us; the command gives the same numbers, beside the example."""
    monkeypatch.chdir(EXAMPLES)
    with torch.random.fork_rng():
        result = load("audit_a_model").main(tmp_path, epochs=1, limit=60, attacks="pgd-5")
    printed = capsys.readouterr().out
    assert f"Weakest class under PGD-5: {result.worst.name}" in printed
    assert "strong-attack: run: pgd-5." in printed
    assert (tmp_path / "audit.html").is_file()
    command = (
        f"audit audit_a_model.py:make --weights {tmp_path / 'theirs.safetensors'} --data fashion-mini --limit 60 "
        f"--eps 0.05 --mean 0.286 --std 0.353 --attacks pgd-5 --out {tmp_path / 'again'}"
    )
    cli.app(shlex.split(command), standalone_mode=False)
    assert read_json(tmp_path / "again" / "card.json")["columns"] == result.card["columns"]
