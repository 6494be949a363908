"""Runs that are older than a key of their recipe stay what they were."""

import json
from pathlib import Path

import pytest

from tiny import tiny_config, write_tiny_npz
from worstclass.config.keys import Config
from worstclass.config.recipe import load_config, read_stored
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.evaluation.run_notes import run_notes, start_notes
from worstclass.evaluation.saved import CARD, load_card
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import write_json
from worstclass.inputs.names import RECIPE
from worstclass.runs.adjust import adjust_run
from worstclass.runs.finished import is_trained
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, read_about
from worstclass.runs.train import train_run
from worstclass.sweep.jobs import attacks_left, refuse_other_recipe


def without(text: str, key: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key} ="))


@pytest.fixture
def old(tmp_path: Path) -> Run:
    """Of 40 images a class it holds out 4, where 8 would be held out now; its recipe says nothing of that."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    run = train_run(tiny_config(data, epochs=1, valid_fraction=0.1, valid_min=0), tmp_path / "run")
    recipe = run.folder / RECIPE
    assert "valid_min = 0\n" in recipe.read_text()
    recipe.write_text(without(recipe.read_text(), "valid_min"))
    about = read_about(run.folder)
    del about["recipe_digest"]  # younger too
    write_json(run.folder / ABOUT, about)
    return open_run(run.folder)


def valid_of(run: Run) -> Images:
    return run_target(run, part="valid").images


def test_it_is_split_as_it_was(old: Run) -> None:
    assert old.config.valid_min == 0
    assert load_config(str(old.folder / RECIPE)).valid_min == 20  # as a recipe for a new run
    assert valid_of(old).class_counts(3).tolist() == [4, 4, 4]


def test_it_is_resumed_as_it_was(old: Run) -> None:
    longer = (old.folder / RECIPE).read_text().replace("epochs = 1\n", "epochs = 2\n")
    (old.folder / RECIPE).write_text(longer)
    run = open_run(old.folder)
    assert len(train_run(run.config, run.folder, resume=True).log) == 2
    assert open_run(old.folder).about["valid_images"] == 12


def test_a_recipe_that_was_edited_is_refused(tmp_path: Path) -> None:
    """By whatever opens a run: its epochs, and its numbers, are of another. Put back, it can be opened."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    run = train_run(tiny_config(data, epochs=2, base_start=0.5), tmp_path / "run")
    recipe = run.folder / RECIPE
    text = recipe.read_text()
    adjust_run(run, tmp_path / "adjusted")  # a recipe of its own
    assert open_run(tmp_path / "adjusted").config.adjust_budget is not None
    for old, new in (("eps = 0.05", "eps = 0.001"), ("epochs = 2", "epochs = 3")):
        assert old in text
        recipe.write_text(text.replace(old, new))
        with pytest.raises(UserError, match="was changed since the run began"):
            open_run(run.folder)
        with pytest.raises(UserError, match="was changed since the run began"):
            train_run(run.config, run.folder, resume=True)  # that it is done already hides nothing
    recipe.write_text(text)
    assert len(train_run(open_run(run.folder).config, run.folder, resume=True).log) == 2


def test_another_split_than_it_was_trained_with_is_an_error(old: Run) -> None:
    recipe = old.folder / RECIPE
    recipe.write_text(recipe.read_text() + "valid_min = 20\n")
    with pytest.raises(UserError, match=r"was validated on 12 images; .* gives 24 here"):
        valid_of(open_run(old.folder))


def test_it_has_no_counts_and_is_no_reason_to_fail(old: Run) -> None:
    """Nothing is said of data that it does not tell of; where it goes on, they are known."""
    about = read_about(old.folder)
    for key in ("class_counts", "valid_in_train", "valid_shift"):
        del about[key]
    write_json(old.folder / ABOUT, about)
    run = open_run(old.folder)
    assert start_notes(run) == run_notes(run) == []
    (run.folder / RECIPE).write_text((run.folder / RECIPE).read_text().replace("epochs = 1\n", "epochs = 2\n"))
    train_run(open_run(run.folder).config, run.folder, resume=True)
    assert open_run(run.folder).about["class_counts"] == {"train": [36] * 3, "valid": [4] * 3}


def test_counts_of_other_classes_are_damage(old: Run) -> None:
    about = read_about(old.folder)
    for broken in ({"class_counts": {"train": [1, 2], "valid": [1, 2, 3]}}, {"valid_shift": [1.0]}):
        write_json(old.folder / ABOUT, about | broken)
        with pytest.raises(UserError, match=r"run\.json is damaged: . numbers for 3 classes"):
            open_run(old.folder)


def test_its_card_is_added_to(old: Run) -> None:
    """A card has the recipe too, without the key."""
    evaluate_target(run_target(old), ["pgd-2"], old.folder)
    card = load_card(old.folder)
    for key in ("valid_min", "norm"):
        del card["about"]["recipe"][key]
    (old.folder / CARD).write_text(json.dumps(card))
    assert attacks_left(old, ["pgd-2", "pgd-3"]) == ["pgd-3"]
    assert {*evaluate_target(run_target(old), ["pgd-3"], old.folder)["columns"]} == {"natural", "pgd-2", "pgd-3"}


def test_a_sweep_that_says_the_same_goes_on(old: Run) -> None:
    assert is_trained(old)
    refuse_other_recipe(old, Config(**read_stored(old.folder)))
    with pytest.raises(UserError, match="valid_min = 0, here 20"):
        refuse_other_recipe(old, load_config(str(old.folder / RECIPE)))
