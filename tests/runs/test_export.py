"""An export gives the logits of the run, bit by bit or within rounding, and its card holds what was measured."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tiny import put_weights, tiny_run
from worstclass.auditing.preflight import preflight
from worstclass.cli import main as cli
from worstclass.config.recipe import make_config, merge
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.export import export_run, load_export
from worstclass.export.model_card import model_card
from worstclass.models import Normalized, SmallCNN
from worstclass.runs.run import Run, open_run

X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Evaluated."""
    run = tiny_run(tmp_path_factory.mktemp("exported"))
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    return run


def front(text: str) -> dict[str, Any]:
    """The front matter of a card, as YAML reads it."""
    yaml = pytest.importorskip("yaml")
    _, matter, _ = text.split("---\n", 2)
    read: dict[str, Any] = yaml.safe_load(matter)
    return read


def test_safetensors_gives_the_same_logits_bit_by_bit(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", to="safetensors")
    expected = run.load_model()[0](X)
    assert torch.equal(load_export(tmp_path / "out")(X), expected)
    plain = SmallCNN(3, 1)  # without us: the same class, and its state_dict
    plain.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert torch.equal(plain.eval()(X), expected)


def test_an_audit_on_images_of_another_size_says_so(run: Run, tmp_path: Path) -> None:
    """A network with pooling takes them, and answers worse."""
    export_run(run, tmp_path / "out", to="safetensors")
    model = load_export(tmp_path / "out")
    told = "the model was trained on images of (1, 8, 8), these are (1, 16, 16)"
    for network in (model, Normalized(model, [0.3], [0.2])):
        for size, found in ((8, []), (16, ["shape"])):
            images = Images(torch.rand(6, 1, size, size), torch.arange(6) % 3)
            lines = [line for line in preflight(network, images, num_classes=3, eps=0.1) if line.name == "shape"]
            assert [line.name for line in lines if line.text.startswith(told)] == found == [line.name for line in lines]


def test_a_normalised_network_too(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, normalize=True)
    model = Normalized(SmallCNN(3, 1), [0.3], [0.2])
    put_weights(run, model)
    export_run(run, tmp_path / "out", to="safetensors")
    assert torch.equal(load_export(tmp_path / "out")(X), model.eval()(X))


def test_onnx_gives_the_same_logits_but_for_rounding(run: Run, tmp_path: Path) -> None:
    """With onnxruntime, for batches of any size."""
    for library in ("onnx", "onnxscript"):
        pytest.importorskip(library)
    runtime = pytest.importorskip("onnxruntime")
    written = export_run(run, tmp_path / "out", to="onnx")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in written)
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    model, _ = run.load_model()
    for some in (X, X[:1], X[:2]):
        (found,) = session.run(["logits"], {"images": some.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(some).detach(), rtol=1e-4, atol=1e-4)


def test_timm_reads_what_is_written_for_it(tmp_path: Path) -> None:
    """`timm.create_model("local-dir:FOLDER")`: the same logits, mean and standard deviation in its configuration."""
    timm = pytest.importorskip("timm")
    run = tiny_run(tmp_path)
    made = Normalized(timm.create_model("resnet10t", num_classes=3, in_chans=1), [0.25], [0.5])
    recipe = run.folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"small-cnn"', '"timm:resnet10t"').replace("normalize = false", ""))
    recipe.write_text(recipe.read_text() + "normalize = true\n")
    put_weights(run, made)
    with pytest.raises(UserError, match="--allow-code"):
        export_run(open_run(run.folder), tmp_path / "out", to="timm")
    export_run(open_run(run.folder), tmp_path / "out", to="timm", allow_code=True)
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert model.pretrained_cfg["mean"] == (0.25,) or list(model.pretrained_cfg["mean"]) == [0.25]
    assert torch.equal(model((X - 0.25) / 0.5), made.eval()(X))


def test_a_network_that_timm_does_not_have_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="timm has no architecture for model 'small-cnn'"):
        export_run(run, tmp_path / "out", to="timm")
    assert not (tmp_path / "out").exists()


def test_the_card_holds_every_class_and_says_what_was_measured(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", to="safetensors")
    text = (tmp_path / "out" / "README.md").read_text()
    card = json.loads((run.folder / "card.json").read_text())
    for its in card["columns"]["pgd-2"]["classes"]:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {its['class']} | {its['images']} |")]
        assert f"{100 * its['value']:.1f} [{100 * its['low']:.1f}, {100 * its['high']:.1f}]" in row
    for words in ("L-inf radius 0.05", "eps=0.05", "PGD-2", "upper bound", 'method = "trades"', "worstclass 0.1.0"):
        assert words in text, words
    assert str(run.folder.parent) not in text  # no path of this machine
    matter = front(text)
    assert matter["pipeline_tag"] == "image-classification"
    assert "license" not in matter
    (index,) = matter["model-index"]
    values = {metric["name"]: metric["value"] for metric in index["results"][0]["metrics"]}
    worst = card["columns"]["pgd-2"]["worst"]["value"]
    assert values["Worst-class accuracy (PGD-2, L-inf 0.05)"] == pytest.approx(worst, abs=1e-4)


@pytest.mark.parametrize("name", ["{}/own.py:make", "hf:{}/own@test", "npz:{}/own.npz", "folder:{}/own"])
def test_no_folder_of_this_machine_is_in_a_card(name: str, run: Run, tmp_path: Path) -> None:
    named = name.format(tmp_path)
    changed = {"data": named} | ({"model": named} if named.endswith(":make") else {})
    own = replace(run, config=make_config(merge(run.config.recipe(), changed)))
    config = {"model": own.config.model, "version": "0", "epoch": 1, "checkpoint": "selected"}
    card = json.loads((run.folder / "card.json").read_text())
    text = model_card(own, config, card | {"about": card["about"] | {"data": named}}, "safetensors")
    assert "own" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(("strong", "said"), [(None, ""), (True, "Trustworthy: all 2 checks passed."), (False, "Not")])
def test_a_card_speaks_of_trust_where_a_strong_attack_was_run(strong: bool | None, said: str, run: Run) -> None:
    card = json.loads((run.folder / "card.json").read_text())
    card["findings"] = [{"name": "logits", "passed": True, "seen": "outputs are not probabilities"}]
    if strong is not None:
        card["findings"].append({"name": "strong-attack", "passed": strong, "seen": "run: pgd-2"})
    config = {"model": "small-cnn", "version": "0", "epoch": 1, "checkpoint": "selected"}
    text = model_card(run, config, card, "safetensors")
    assert said in text
    assert ("rustworthy" in text) == (strong is not None)
    assert ("Accuracy under PGD-2 is an upper bound." in text) == (strong is not True)


@pytest.mark.parametrize(
    ("mix", "scale", "title", "note"),
    [
        (1.0, 0.5, "", ""),
        (0.0, 0.5, " (weights of its base)", "These weights are those of the base (TRADES): class weights gained too"),
        (0.85, 0.5, " (85% of the way from its base)", "Weights 85% of the way from its base (TRADES)."),
        (1.0, 0.0, " (no adjustment kept)", "The logits are not adjusted: no bias raised the weakest classes"),
    ],
)
def test_the_card_says_what_ships_of_the_method(mix: float, scale: float, title: str, note: str, run: Run) -> None:
    about = run.about | {"base": {"shipped": mix}, "adjustment": {"scale": scale}}
    recipe = run.config.recipe() | {"method": "guarded", "epochs": 2, "base_start": 0.5, "adjust_budget": 0.1}
    best = Run(run.folder, make_config(recipe), about)
    card = json.loads((run.folder / "card.json").read_text())
    config = {"model": "small-cnn", "version": "0", "epoch": 1, "checkpoint": "selected"}
    text = model_card(best, config, card, "safetensors")
    name = "Guarded, with base + adjusted"
    assert f"# small-cnn, {name}{title}, on npz:tiny.npz\n" in text
    assert front(text)["model-index"][0]["name"] == f"small-cnn {name}{title}"
    assert f"Weights of epoch 1 (selected). {note}".rstrip() in text
    last = model_card(best, config | {"checkpoint": "last"}, card, "safetensors")
    assert f"# small-cnn, {name}, on npz:tiny.npz\n" in last
    assert "Weights of epoch 1 (last).\n" in last


def test_the_card_says_what_images_the_network_takes(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", to="safetensors")
    shape = " x ".join(map(str, X.shape[1:]))
    assert f"Trained on images of {shape} (C x H x W).\n" in (tmp_path / "out" / "README.md").read_text()


def test_numbers_of_other_weights_are_not_told(run: Run, tmp_path: Path) -> None:
    """Neither the run's own evaluation after its weights changed, nor one that was named."""
    other = tiny_run(tmp_path)
    put_weights(other, SmallCNN(3, 1))
    export_run(other, tmp_path / "out", to="safetensors")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "Not measured" in text
    assert "model-index" not in text
    with pytest.raises(UserError, match="evaluation of other weights"):
        export_run(other, tmp_path / "two", to="safetensors", evaluation=run.folder)


def test_names_cannot_break_out_of_the_card(run: Run, tmp_path: Path) -> None:
    """Class names come from a file: they are text in the table and in the front matter."""
    card = json.loads((run.folder / "card.json").read_text())
    evil = ["a | b", "<script>", "---"]
    card["class_names"] = evil
    for column in card["columns"].values():
        column["worst"] |= {"class": "<script>", "ties": 1}
    config = {"model": "small-cnn", "version": "0", "epoch": 1, "checkpoint": "selected"}
    text = model_card(run, config, card, "safetensors")
    assert "| a \\| b |" in text
    assert "| <script>" not in text
    assert front(text)["library_name"] == "worstclass"


def test_a_folder_in_use_is_not_written_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="not an empty folder"):
        export_run(run, tmp_path, to="safetensors")


@pytest.mark.parametrize(("key", "value"), [("model", "os:system"), ("num_classes", 10**9), ("in_channels", 7)])
def test_a_forged_configuration_builds_nothing(key: str, value: object, run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", to="safetensors")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=r"allow_code|damaged"):
        load_export(tmp_path / "out")


def test_weights_of_another_network_are_refused(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "out", to="safetensors")
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "out" / "model.safetensors")
    with pytest.raises(UserError, match="another architecture"):
        load_export(tmp_path / "out")


def test_the_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["worstclass", "export", str(run.folder)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert {path.name for path in (tmp_path / "exports" / "run-safetensors").iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    assert "Exported: exports/run-safetensors/model.safetensors" in capsys.readouterr().out.replace("\n", "")
