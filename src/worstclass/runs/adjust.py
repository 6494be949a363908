"""A run whose logits are adjusted after training, by its own validation images: in place, or as a run of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from worstclass.config.recipe import make_config, to_toml
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.files import keep_previous, write_atomic, write_json
from worstclass.inputs.names import RECIPE
from worstclass.metrics.percentages import percent
from worstclass.runs.finished import is_trained
from worstclass.runs.logit_adjustment import SURE, Adjustment, add_bias, adjust_logits, last_layer
from worstclass.runs.run import Run, open_data, valid_images
from worstclass.runs.saver import ABOUT, LAST, LOG, SELECTED, recipe_digest
from worstclass.runs.seen import SEEN
from worstclass.training.checkpoint import load_header, save_tensors, weights_of


def adjust_run(
    run: Run,
    out: Path | str,
    *,
    budget: float = 0.05,
    data_dir: Path | str = Path("data"),
    device: torch.device | str = "cpu",
    allow_code: bool = False,
    on_attack: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Adjust the logits of a trained run, and write the result as a run of its own into a new folder.

    It is what the same recipe with `adjust_budget` would have given. The run itself stays as it was.
    `on_attack(done, total)` hears how many attacks on the validation images are done.
    """
    out = Path(out)
    config = make_config(run.config.recipe() | {"adjust_budget": budget})
    if run.config.adjust_budget is not None:
        raise UserError(f"{run.folder} is adjusted already: adjust_budget is {run.config.adjust_budget:g} there.")
    if not is_trained(run):
        raise UserError(f"{run.folder} is not trained to its end: worstclass train --resume {run.folder} goes on.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: choose another --out.")
    valid = valid_images(run, open_data(run.config, allow_code=allow_code, data_dir=data_dir))
    recipe = to_toml(config).encode()
    about = {key: value for key, value in run.about.items() if key != "keep"}
    about |= {"adjusted_run": run.folder.name, "recipe_digest": recipe_digest(recipe)}
    copy = Run(out, config, about)
    found = _find(run, valid, torch.device(device), budget, allow_code, on_attack)
    out.mkdir(parents=True, exist_ok=True)
    for name in (LAST, SEEN):
        keep_previous(run.folder / name, out / name)
    write_atomic(out / LOG, (run.folder / LOG).read_bytes())
    about = _write(run, copy, found)
    write_atomic(out / RECIPE, recipe)  # last: a folder with a recipe is a run
    return Run(out, config, about)


def adjust_selected(
    run: Run,
    valid: Images,
    device: torch.device,
    *,
    allow_code: bool,
    on_attack: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Adjust the selected weights of a run in place, as the end of its training; returns what run.json says now."""
    assert run.config.adjust_budget is not None
    return _write(run, run, _find(run, valid, device, run.config.adjust_budget, allow_code, on_attack))


def _find(
    run: Run,
    valid: Images,
    device: torch.device,
    budget: float,
    allow_code: bool,
    on_attack: Callable[[int, int], None],
) -> Adjustment:
    model = run.load_model(allow_code=allow_code)[0].to(device)
    return adjust_logits(
        model,
        valid,
        run.config.make_plan().valid_attack,
        num_classes=run.about["num_classes"],
        budget=budget,
        seed=run.config.seed,
        class_names=run.class_names,
        on_attack=on_attack,
    )


def _write(run: Run, copy: Run, found: Adjustment) -> dict[str, Any]:
    """The weights that ship, and what was done to them."""
    model, _ = run.load_model(allow_code=True)  # consent was given when it was loaded first
    if found.scale:
        add_bias(last_layer(model, len(found.bias)), found.bias)
    header = {key: value for key, value in load_header(run.folder / SELECTED).items() if key != "digest"}
    weights = {f"model.{name}": tensor for name, tensor in weights_of(model).items()}
    save_tensors(copy.folder / SELECTED, weights, header | {"adjusted": found.scale})
    about = copy.about | {"adjustment": found.as_dict() | {"verdict": verdict(found)}}
    write_json(copy.folder / ABOUT, about)
    return about


def verdict(found: Adjustment) -> str:
    """One sentence on what the half of the validation images that accepts says."""
    before, after = (next(each for each in found.readings if each.scale == scale) for scale in (0.0, found.scale))
    if not found.scale:
        return f"none: no bias raised the weakest classes by more than {SURE:g} standard error, for its price."
    numbers = ", ".join(
        f"{name} {percent(old)} to {percent(new)}"
        for name, old, new in (
            ("worst class", before.worst, after.worst),
            ("average", before.average, after.average),
        )
    )
    return f"{100 * found.scale:.0f}% of the bias is kept: {numbers} on the validation images that did not choose it."
