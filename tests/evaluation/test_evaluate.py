"""Evaluation: outcomes that do not depend on batching, checks that speak, a card that holds every measure."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tiny import tiny_config, tiny_run, write_tiny_npz
from worstclass.attacks import APGD, PGD, Ensemble, Square, pgd
from worstclass.data import Images, open_source
from worstclass.errors import AttackError, UserError
from worstclass.evaluation.card import make_card
from worstclass.evaluation.evaluate import batch_that_fits, check_inside, evaluate, memory_of_a_gradient
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES, load_card, load_evaluation
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.files import read_json, write_json
from worstclass.metrics import per_class_accuracy
from worstclass.report import load_results
from worstclass.runs.run import Run, fingerprint, open_run
from worstclass.runs.saver import ABOUT, SELECTED
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors
from worstclass.types import Norm


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("evaluate"))


def test_outcomes_and_card(run: Run, tmp_path: Path) -> None:
    target = run_target(run)
    card = evaluate_target(target, ["natural", "pgd-5", "cw-5"], tmp_path)
    outcomes = Outcomes.load(tmp_path / OUTCOMES)
    assert set(outcomes.predictions) == {"natural", "pgd-5", "pgd-5/any", "cw-5", "cw-5/any"}
    assert np.array_equal(outcomes.labels, open_source(run.config.data).read("test").y.numpy())
    assert json.loads((tmp_path / CARD).read_text()) == card
    with torch.no_grad():
        predicted = target.model(target.images.x.float() / 255).argmax(1).numpy()
    assert np.array_equal(outcomes.predictions["natural"], predicted)
    for name in ("natural", "pgd-5", "cw-5"):
        column = card["columns"][name]
        accuracy = per_class_accuracy(outcomes.labels, outcomes.predictions[name], 3)
        assert [c["value"] for c in column["classes"]] == pytest.approx(accuracy.tolist())
        assert column["worst"]["value"] == pytest.approx(accuracy.min())
        assert column["worst"]["class"] == f"row {accuracy.argmin()}"
        for measure in (column["average"], column["worst"], *column["classes"]):
            assert measure["low"] <= measure["value"] <= measure["high"]
        for measure in (column["class_variance"], column["worst_tenth"]):  # mirrored: the value may be outside
            assert 0 <= measure["low"] <= measure["high"] <= 1
    stronger = card["columns"]["pgd-5"]["any_iterate"]
    assert stronger["average"]["value"] <= card["columns"]["pgd-5"]["average"]["value"]
    about = card["about"]
    assert (about["eps"], about["seed"], about["part"], about["checkpoint"]) == (0.05, 0, "test", "selected")
    assert about["recipe"]["method"] == "trades"
    assert set(card["versions"]) >= {"worstclass", "torch", "python"}
    assert card["columns"]["pgd-5"]["attack"].startswith("PGD(eps=0.05, steps=5")


def test_batch_size_does_not_matter(run: Run) -> None:
    target = run_target(run)
    attacks = {"pgd-5": pgd(5, eps=0.05)}
    whole = evaluate(target.model, target.images, attacks, seed=3)
    parts = evaluate(target.model, target.images, attacks, seed=3, batch_size=7)
    assert whole.labels.tolist() == parts.labels.tolist()
    for name in whole.predictions:
        assert np.array_equal(whole.predictions[name], parts.predictions[name])


def test_what_an_image_takes_is_measured() -> None:
    """The image and the ReLU's values, once each; not the weights, and not what other layers see of the same memory."""
    x = torch.rand(6, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    assert memory_of_a_gradient(model, x) == 4 * (64 + 4 * 64)
    assert memory_of_a_gradient(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False), x) == 0
    assert batch_that_fits(model, Images((255 * x).byte(), torch.zeros(6, dtype=torch.int64))) == 500


def test_equal_evaluations_give_equal_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        evaluate_target(run_target(run), ["pgd-5"], tmp_path / name)
    for file in (CARD, OUTCOMES):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_rho_against_a_base(run: Run, tmp_path: Path) -> None:
    evaluate_target(run_target(run), ["pgd-5"], tmp_path / "base")
    card = evaluate_target(run_target(run, checkpoint="last"), ["pgd-5"], tmp_path / "run", base=tmp_path / "base")
    assert {"rho", "average_difference", "worst_difference", "p_value"} <= set(card["columns"]["pgd-5"]["against_base"])
    with pytest.raises(UserError, match="not been evaluated under cw"):
        evaluate_target(run_target(run), ["cw"], tmp_path / "a", base=tmp_path / "base")
    with pytest.raises(UserError, match="other images"):
        evaluate_target(run_target(run, part="valid"), ["pgd-5"], tmp_path / "b", base=tmp_path / "base")
    with pytest.raises(UserError, match="has not been evaluated"):
        evaluate_target(run_target(run), ["pgd-5"], tmp_path / "c", base=tmp_path)


def test_a_second_evaluation_adds_to_the_first(run: Run, tmp_path: Path) -> None:
    """The same weights on the same images: columns are added, as if all had been asked for at once."""
    evaluate_target(run_target(run), ["pgd-5"], tmp_path / "twice")
    twice = evaluate_target(run_target(run), ["cw-5"], tmp_path / "twice")
    once = evaluate_target(run_target(run), ["pgd-5", "cw-5"], tmp_path / "once")
    assert twice == once
    assert Outcomes.load(tmp_path / "twice" / OUTCOMES).predictions.keys() == {
        "natural",
        "pgd-5",
        "pgd-5/any",
        "cw-5",
        "cw-5/any",
    }


def test_an_evaluation_of_something_else_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    evaluate_target(run_target(run), ["pgd-5"], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=r"evaluation of something else \(other images, part; see its card.json\)"):
        evaluate_target(run_target(run, part="valid"), ["pgd-5"], tmp_path)
    with pytest.raises(UserError, match=r"evaluation of something else \(other seed;"):
        evaluate_target(run_target(run), ["pgd-5"], tmp_path, seed=9)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = train_run(run.config, tmp_path / "other")
    with pytest.raises(UserError, match="holds another run"):
        evaluate_target(run_target(run), ["pgd-5"], other.folder)


def test_a_run_that_has_gone_on_is_evaluated_anew(tmp_path: Path) -> None:
    """What its card says is past; before, the folder of the run was refused."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    longer = tiny_config(data, epochs=2, select="last")
    run = train_run(longer, tmp_path / "run")
    card = evaluate_target(run_target(run), ["pgd-5"], run.folder)
    whole = run_target(run)
    past = dict(whole.about) | {"epoch": 1, "weights": "0" * 64}
    write_json(run.folder / CARD, card | {"about": card["about"] | past})
    again = evaluate_target(whole, ["fgsm"], run.folder)
    assert again["about"]["epoch"] == 2
    assert [*again["columns"]] == ["natural", "fgsm"]
    write_json(run.folder / CARD, again | {"about": again["about"] | {"weights": "0" * 64}})
    with pytest.raises(UserError, match=r"something else \(other weights;"):  # the same epoch has other weights
        evaluate_target(whole, ["fgsm"], run.folder)


def test_a_base_that_differs_in_more_than_the_method_is_named(tmp_path: Path) -> None:
    base, other = tiny_run(tmp_path, "base", weight_decay=0.0), tiny_run(tmp_path, "other", weight_decay=0.001, seed=9)
    evaluate_target(run_target(base), ["natural"], base.folder)
    heard: list[str] = []
    evaluate_target(run_target(other), ["natural"], other.folder, base=base.folder, on_note=heard.append)
    (line,) = (each for each in heard if "differs" in each)
    settings = "weight_decay (0.001, not 0)"
    assert line == f"this evaluation differs from {base.folder} in more than the method: {settings}."
    last = run_target(other, checkpoint="last")
    evaluate_target(last, ["natural"], tmp_path / "last", base=base.folder, seed=7, on_note=heard.append)
    settings += ", epoch (last, not selected), seed of the attacks (7, not 0)"
    assert heard[-1] == f"this evaluation differs from {base.folder} in more than the method: {settings}."
    shutil.copytree(base.folder, moved := tmp_path / "moved")
    write_json(moved / ABOUT, read_json(moved / ABOUT) | {"data_digest": "0" * 64})
    evaluate_target(run_target(other), ["natural"], other.folder, base=moved, on_note=heard.append)
    assert heard[-1].endswith("training images (others of that name).")


def test_what_a_card_contradicts_is_made_anew(run: Run, tmp_path: Path) -> None:
    """A column that is asked for again is measured; another that card and outcomes do not agree in is dropped."""
    out = tmp_path / "out"
    whole = evaluate_target(run_target(run), ["pgd-5", "fgsm", "pgd-3"], out)
    for name in ("pgd-5", "fgsm"):
        card = read_json(out / CARD)
        card["columns"][name]["average"]["value"] += 0.1
        write_json(out / CARD, card)
    with pytest.raises(UserError, match="not of one evaluation"):
        load_evaluation(out)
    again = evaluate_target(run_target(run), ["pgd-5"], out)
    assert {*again["columns"]} == {"natural", "pgd-5", "pgd-3"}
    assert all(again["columns"][name] == whole["columns"][name] for name in again["columns"])
    assert load_evaluation(out)[0] == again


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    data = write_tiny_npz(tmp_path / "tiny.npz")
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    with np.load(data) as archive:
        arrays = dict(archive)
    np.savez(data, **(arrays | {"x_test": arrays["x_test"][:, :, :6]}))
    with pytest.raises(UserError, match=r"images of \[1, 8, 8\]"):
        run_target(run)


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_found(run: Run, tmp_path: Path) -> None:
    """Header, weights, names: whatever the bit, the file is refused in one line."""
    content = (run.folder / SELECTED).read_bytes()
    rng = np.random.default_rng(0)
    places = [*range(0, 2000, 50), *rng.integers(len(content), size=60).tolist()]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "x.safetensors").write_bytes(damaged)
        with pytest.raises(UserError, match=r"x\.safetensors"):
            load_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("content", ["{}", "[]", "null", "{", ""])
def test_damaged_json_is_named(content: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    evaluate_target(run_target(open_run(folder)), ["pgd-5"], folder)
    (folder / CARD).write_text(content)
    with pytest.raises(UserError, match=r"card\.json"):
        load_results([folder])
    (folder / ABOUT).write_text(content)
    with pytest.raises(UserError, match=r"run\.json"):
        open_run(folder)


def test_runs_that_cannot_be_compared_are_refused(run: Run, tmp_path: Path) -> None:
    """Another radius, or other images with the same labels: no rho, before any attack has run."""
    evaluate_target(run_target(run), ["pgd-5"], tmp_path / "base")
    target = run_target(run)
    with pytest.raises(UserError, match="another eps"):
        evaluate_target(replace(target, eps=0.01), ["pgd-5"], tmp_path / "a", base=tmp_path / "base")
    brighter = Images(target.images.x + 1, target.images.y)
    about = dict(target.about) | {"images": fingerprint(brighter)}
    with pytest.raises(UserError, match="other images"):
        evaluate_target(
            replace(target, images=brighter, about=about), ["pgd-5"], tmp_path / "b", base=tmp_path / "base"
        )


def test_rho_is_kept_when_columns_are_added(run: Run, tmp_path: Path) -> None:
    evaluate_target(run_target(run, checkpoint="last"), ["pgd-5"], tmp_path / "base")
    first = evaluate_target(run_target(run), ["pgd-5"], tmp_path / "run", base=tmp_path / "base")
    later = evaluate_target(run_target(run), ["cw-5"], tmp_path / "run")
    assert later["columns"]["pgd-5"] == first["columns"]["pgd-5"]


def test_a_column_that_the_base_lacks_has_no_rho(run: Run, tmp_path: Path) -> None:
    """Asked for, or measured before: what both have is compared, and the rest is named before anything is attacked."""
    evaluate_target(run_target(run), ["pgd-5"], tmp_path / "base")
    evaluate_target(run_target(run), ["cw-5"], tmp_path / "run")
    heard: list[str] = []

    def note(line: str) -> None:
        heard.append(line)
        assert "pgd-5" not in load_card(tmp_path / "run")["columns"]

    card = evaluate_target(run_target(run), ["pgd-5", "fgsm"], tmp_path / "run", base=tmp_path / "base", on_note=note)
    assert heard == [f"{tmp_path / 'base'} has not been evaluated under fgsm, cw-5: no rho there."]
    compared = {name for name, column in card["columns"].items() if "against_base" in column}
    assert compared == {"natural", "pgd-5"}
    assert load_card(tmp_path / "run") == card


def test_a_class_without_images_is_named(run: Run, tmp_path: Path) -> None:
    target, heard = run_target(run), list[str]()
    some = replace(target, images=target.images.select(target.images.y != 1))
    card = evaluate_target(some, ["natural"], tmp_path / "run", on_note=heard.append)
    assert heard == ["1 of 3 classes have no images ('row 1'): nothing is known of them."]
    assert card["columns"]["natural"]["worst"]["class"] != "row 1"


def test_a_card_says_against_which_base_and_has_one(run: Run, tmp_path: Path) -> None:
    for name, checkpoint in (("first", "selected"), ("second", "last")):
        attacks = ["pgd-5", "cw-5"] if name == "first" else ["pgd-5"]
        target = run_target(run, checkpoint="last" if checkpoint == "last" else "selected")
        evaluate_target(target, attacks, tmp_path / name)
    weights = {name: load_card(tmp_path / name)["about"]["weights"] for name in ("first", "second")}
    out = tmp_path / "run"
    card = evaluate_target(run_target(run), ["pgd-5", "cw-5"], out, base=tmp_path / "first")
    assert card["base"]["folder"] == "first"
    assert card["base"]["weights"] == weights["first"]
    assert card["base"]["seed"] == run.config.seed
    assert card["base"]["recipe"]["method"] == run.config.method
    kept = evaluate_target(run_target(run), ["fgsm"], out)  # without one: what was compared stays, and says with what
    assert kept["base"] == card["base"]
    assert "against_base" not in kept["columns"]["fgsm"]
    assert kept["columns"]["cw-5"]["against_base"] == card["columns"]["cw-5"]["against_base"]
    other = evaluate_target(run_target(run), ["pgd-5"], out, base=tmp_path / "second")
    assert other["base"]["folder"] == "second"
    assert {name for name, column in other["columns"].items() if "against_base" in column} == {"natural", "pgd-5"}
    unknown = read_json(out / CARD)
    del unknown["base"]  # as cards once were
    write_json(out / CARD, unknown)
    again = evaluate_target(run_target(run), ["fgsm"], out)
    assert "base" not in again
    assert not any("against_base" in column for column in again["columns"].values())


def test_a_model_of_nans_gets_no_card(run: Run, tmp_path: Path) -> None:
    target = run_target(run)
    with torch.no_grad():
        next(target.model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        evaluate_target(target, ["natural"], tmp_path / "out")
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_validation_part_is_the_split_of_training(run: Run) -> None:
    assert len(run_target(run, part="valid").images) == run.about["valid_images"]


class Cheat(PGD):
    """An attack that breaks a rule of its choice."""

    def search(self, model: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Any:
        from worstclass.attacks.pgd import Found

        delta = {1: 0.06, 2: 0.0, 3: 0.0}[self.steps]
        x_adv = x + delta * torch.where(x < 0.5, 1, -1)
        if self.steps == 2:
            x_adv = x_adv.clone()
            x_adv[0, 0, 0, 0] = -0.01 if x[0, 0, 0, 0] < 0.04 else x[0, 0, 0, 0]
            x_adv[0, 0, 0, 1] = float("nan")
        return Found(x_adv, x_adv)


def test_an_attack_that_breaks_its_rules_is_an_error(run: Run) -> None:
    target = run_target(run)
    with pytest.raises(AttackError, match=r"left its linf ball: distance 0\.06"):
        evaluate(target.model, target.images, {"cheat": Cheat(eps=0.05, steps=1, step_size=0)})
    with pytest.raises(AttackError, match="left"):  # NaN is nowhere
        evaluate(target.model, target.images, {"cheat": Cheat(eps=0.05, steps=2, step_size=0)})
    x = torch.full((2, 1, 4, 4), 0.999)
    with pytest.raises(AttackError, match=r"left the image range"):
        check_inside(x, x + 0.01, PGD(eps=0.05, steps=1, step_size=0), "cheat")
    with pytest.raises(AttackError, match="left its l2 ball"):
        check_inside(x, x - 0.02, PGD(eps=0.05, steps=1, step_size=0, norm="l2"), "cheat")


class Own:
    """An attack of somebody's own, which may do as `then` does with the model and its images."""

    eps, norm = 0.05, "linf"

    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]) -> None:
        self.then = then

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        return self.then(model, x)


@pytest.mark.parametrize(
    ("then", "match"),
    [
        (lambda model, x: x.copy_(1 - x), "left its linf ball"),  # measured from what it wrote, it would be at 0
        (lambda model, x: (model.train(), x)[1], "changed the mode of the model"),
        (lambda model, x: x.double(), r"in torch\.float32 on cpu, as it was given, not .*float64"),
    ],
)
def test_an_attack_of_ones_own_cannot_hide_what_it_does(
    run: Run, then: Callable[[nn.Module, Tensor], Tensor], match: str
) -> None:
    target = run_target(run)
    attacks: dict[str, Any] = {"own": Own(then)}
    with pytest.raises(AttackError, match=match):
        evaluate(target.model, target.images, attacks)
    assert not any(module.training for module in target.model.modules())


class Helped(nn.Module):
    """Right only when the image has been moved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        moved = ((x * 255) % 1).flatten(1).amax(1) > 1e-3
        return self.scale * torch.stack([moved.float(), 1 - moved.float()], dim=1) + 0 * x.flatten(1).sum(
            1, keepdim=True
        )


def test_an_attack_that_helps_is_an_error() -> None:
    images = Images(torch.full((10, 1, 4, 4), 100, dtype=torch.uint8), torch.zeros(10, dtype=torch.long))
    with pytest.raises(AttackError, match="helps the model"):
        evaluate(Helped(), images, {"pgd-2": pgd(2, eps=0.05)})


def test_anybodys_model(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory of the user's with safetensors weights gives what the run gives."""
    (tmp_path / "somebody.py").write_text(
        "from worstclass.models import SmallCNN\n"
        "def make(num_classes, in_channels):\n    return SmallCNN(num_classes, in_channels)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model, _ = run.load_model()
    save_file(dict(model.state_dict()), tmp_path / "weights.safetensors")
    target = model_target("somebody:make", weights=tmp_path / "weights.safetensors", data=run.config.data, eps=0.05)
    theirs = evaluate_target(target, ["pgd-5"], tmp_path / "theirs")
    ours = evaluate_target(run_target(run), ["pgd-5"], tmp_path / "ours")
    assert theirs["columns"] == ours["columns"]


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_saved_from_a_wrapper(wrapper: str, run: Run, tmp_path: Path) -> None:
    """DataParallel and torch.compile put a prefix before every name; one before some of them is another network's."""
    own = dict(run.load_model()[0].state_dict())
    prefixed = {f"{wrapper}{name}": tensor for name, tensor in own.items()}
    save_file(prefixed, tmp_path / "wrapped.safetensors")
    save_file({**own, wrapper + "more": torch.zeros(1)}, tmp_path / "other.safetensors")
    take = partial(model_target, "small-cnn", data=run.config.data, eps=0.05)
    assert take(weights=tmp_path / "wrapped.safetensors").about["weights"] == run_target(run).about["weights"]
    with pytest.raises(UserError, match="another architecture"):
        take(weights=tmp_path / "other.safetensors")


def test_any_attack_with_a_ball_can_be_evaluated(run: Run) -> None:
    class Half:
        """Whitens, within its ball."""

        eps: float = 0.05
        norm: Norm = "linf"

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Tensor:
            return (x + 0.05).clamp(0, 1)

    target = run_target(run)
    outcomes = evaluate(target.model, target.images, {"half": Half()}, batch_size=9)
    with torch.no_grad():
        predicted = target.model((target.images.x / 255 + 0.05).clamp(0, 1)).argmax(1).numpy()
    assert np.array_equal(outcomes.predictions["half"], predicted)
    assert set(outcomes.predictions) == {"natural", "half"}


def test_what_broke_a_sample_is_stored(run: Run, tmp_path: Path) -> None:
    target = run_target(run)
    attack = Ensemble(attacks={"apgd-ce": APGD(eps=0.05, steps=5), "square": Square(eps=0.05, queries=20)})
    outcomes = evaluate(target.model, target.images, {"both": attack})
    outcomes.save(tmp_path / "o.npz")
    loaded = Outcomes.load(tmp_path / "o.npz")
    assert loaded.broken_by.keys() == {"both"}
    assert np.array_equal(loaded.broken_by["both"], outcomes.broken_by["both"])
    wrong = loaded.predictions["both"] != loaded.labels
    assert np.array_equal(wrong, loaded.broken_by["both"] != "")
    assert np.array_equal(loaded.predictions["natural"] != loaded.labels, loaded.broken_by["both"] == "natural")
    card = make_card(loaded, target.class_names, {"both": attack}, about={})
    counts = card["columns"]["both"]["broken_by"]
    assert list(counts) == ["natural", "apgd-ce", "square", "standing"]
    assert sum(counts.values()) == 60
    assert counts["standing"] / 60 == pytest.approx(card["columns"]["both"]["average"]["value"])


def test_the_card_says_in_which_precision_was_searched(run: Run, tmp_path: Path) -> None:
    card = evaluate_target(run_target(run), ["apgd-ce", "pgd-5"], tmp_path)
    assert card["columns"]["apgd-ce"]["search_precision"] == "fp32"
    assert card["columns"]["pgd-5"]["search_precision"] == "fp32"
    assert "search_precision" not in card["columns"]["natural"]
    later = evaluate_target(run_target(run), ["cw-5"], tmp_path)
    assert later["columns"]["apgd-ce"]["search_precision"] == "fp32"
