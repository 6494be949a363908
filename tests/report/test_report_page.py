"""The page: what is on it, of whom, and its gallery."""

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from copied_runs import copy_run, set_outcomes
from tiny import tiny_run
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.files import read_json, write_json
from worstclass.report import group_results, load_results, write_report
from worstclass.report.answer import answers, comparison
from worstclass.report.gallery import make_gallery
from worstclass.report.page import page_data
from worstclass.report.tables import notes, rows
from worstclass.runs.run import open_run
from worstclass.runs.saver import ABOUT


def test_page(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    written = write_report(results, tmp_path / "report.html")
    names = {path.name for path in written}
    assert {"report.html", "classwise-pgd-5.png", "classwise-natural.svg", "training.png"} <= names
    assert all(path.stat().st_size > 1000 for path in written)
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 3_000_000
    for row in rows(results):
        for cell in row:
            assert cell in page
    groups = group_results(results)
    for answer in answers(groups, "pgd-5"):
        assert all(part in page for part in (answer.weakest, answer.worst, answer.taken, answer.confused))
    assert comparison(groups, "pgd-5") in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", markup)  # nothing is loaded from anywhere
    assert markup.count("<img ") == 3 * markup.count('<div class="three">')


def test_the_data_of_the_page_are_those_of_the_cards(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    write_report(results, tmp_path / "report.html")
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', (tmp_path / "report.html").read_text()
    )
    assert found is not None
    data = json.loads(found[1])
    assert data == json.loads(json.dumps(page_data(results)))
    for run, result in zip(data["runs"], results, strict=True):
        for name, column in result.card["columns"].items():
            shown = run["columns"][name]
            assert shown["average"]["value"] == pytest.approx(column["average"]["value"], abs=1e-5)
            assert [c["low"] for c in shown["classes"]] == pytest.approx(
                [c["low"] for c in column["classes"]], abs=1e-5
            )
            diagonal = [row[k] for k, row in enumerate(shown["confusion"])]
            assert diagonal == pytest.approx([c["value"] for c in column["classes"]], abs=1e-4)
        assert run["log"]["class_weights"] == [
            pytest.approx(line["class_weights"], abs=1e-4) for line in open_run(result.folder).log
        ]


def test_what_training_took_is_on_the_page(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    write_report(results, tmp_path / "report.html", hourly_price=3600.0, gallery=False)
    page = (tmp_path / "report.html").read_text()
    seconds = sum(line["seconds"] for line in open_run(folders[0]).log)
    assert f"2 epochs in {seconds:.0f} s of training on" in page
    assert f"{seconds:.2f} at 3600 an hour" in page
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_what_to_know_of_a_run_is_on_the_page(folders: list[Path], tmp_path: Path) -> None:
    """Of its data, of its base, and how its weights concentrate: wholly, in the last epoch."""
    run = copy_run(folders[1], tmp_path / "run")
    base = {"shipped": 0.0, "verdict": "no <b>better</b>."}
    write_json(run / ABOUT, read_json(run / ABOUT) | {"base": base})
    card = read_json(run / CARD)
    card["about"]["mix"] = 0.0
    write_json(run / CARD, card)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for key in ("class_weights", "class_robust_weights"):
        log[-1][key] = [3.0, 0.0, 0.0]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    write_report(load_results([folders[0], run]), tmp_path / "report.html", gallery=False)
    page = (tmp_path / "report.html").read_text()
    answer = "<h3>WAT</h3>\n<p>These weights are those of the base (TRADES): class weights gained too little for"
    assert answer in page
    assert page.count("These weights are those of the base") == 1
    assert "<li>Compared with its base: no &lt;b&gt;better&lt;/b&gt;.</li>" in page
    assert "3.0 in the first epoch, 1.0 at the least, 1.0 in the last (of 3)" in page
    assert "<li>3 of 3 classes have fewer than 20 validation images" in page
    assert "<li>Few classes have most of the weight (effective number 1.0 of 3)" in page


def test_the_page_speaks_of_all_checks_where_a_strong_attack_was_run(folders: list[Path], tmp_path: Path) -> None:
    findings = [{"name": "logits", "passed": True, "seen": "outputs are not probabilities"}]
    strong = {"name": "strong-attack", "passed": True, "seen": "run: autoattack"}
    runs = [copy_run(folders[0], tmp_path / name) for name in ("none", "some", "all")]
    for run, found in zip(runs, ([], findings, [*findings, strong]), strict=True):
        write_json(run / CARD, read_json(run / CARD) | {"findings": found})
    write_report(load_results(runs), tmp_path / "report.html", gallery=False)
    page = (tmp_path / "report.html").read_text()
    assert "<p>TRADES (none): no checks were run. Accuracy under PGD-5 is an upper bound.</p>" in page
    assert "<p>TRADES (some): no check failed. Accuracy under PGD-5 is an upper bound.</p>" in page
    assert "<p>TRADES (all): all 2 checks passed.</p>" in page


def test_only_what_can_be_compared_is_shown_together(folders: list[Path], tmp_path: Path) -> None:
    """Without a vanilla run too: other images, and another part of the data."""
    run = open_run(folders[1])
    evaluate_target(run_target(run, part="valid"), ["pgd-5"], tmp_path / "valid")
    for name in ("recipe.toml", "run.json", "log.jsonl"):
        shutil.copy(run.folder / name, tmp_path / "valid")
    with pytest.raises(UserError, match="on other images and cannot be compared\\."):
        load_results([folders[1], tmp_path / "valid"])


def test_the_gallery_is_of_what_was_evaluated(folders: list[Path], tmp_path: Path) -> None:
    """The part and the checkpoint of the card; and nothing if they have changed since."""
    run = tiny_run(tmp_path)
    evaluate_target(run_target(run, part="valid"), ["pgd-5"], run.folder)
    (result,) = load_results([run.folder])
    pictures = make_gallery(result, "pgd-5").pictures
    valid = {bytes(image.numpy().tobytes()) for image in run_target(run, part="valid").images.x[:, 0]}
    assert pictures
    for picture in pictures:
        clean = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.clean.partition(",")[2]))))
        assert clean.tobytes() in valid
    result.card["about"]["weights"] = "0" * 64
    assert "no longer those that were evaluated" in make_gallery(result, "pgd-5").note


def test_a_base_that_is_not_shown_is_on_the_plane(folders: list[Path]) -> None:
    alone, both = load_results([folders[1]], base=folders[0]), load_results(folders)
    found, shown = page_data(alone)["base"], page_data(both)["base"]
    assert (found["title"], shown["title"]) == ("TRADES (trades)", "TRADES")
    assert "rho is against TRADES (trades)." in notes(alone)
    assert found["columns"]["pgd-5"] == pytest.approx(shown["columns"]["pgd-5"])
    assert page_data([result for result in both if not result.is_base])["base"] is not None


def test_a_class_without_images_is_no_reason_to_fail(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    for result in results:
        keep = result.outcomes.labels != 0
        few = Outcomes(result.outcomes.labels[keep], {k: v[keep] for k, v in result.outcomes.predictions.items()})
        shutil.copytree(result.folder, tmp_path / result.folder.name)
        set_outcomes(tmp_path / result.folder.name, few)
    shown = load_results([tmp_path / folder.name for folder in folders])
    write_report(shown, tmp_path / "report.html", gallery=False)
    assert "a class has no image in this part of the data" in (tmp_path / "report.html").read_text()
    assert page_data(shown)["runs"][0]["columns"]["pgd-5"]["classes"][0]["value"] is None


def test_data_are_not_downloaded_for_pictures(tmp_path: Path) -> None:
    wat = Path(__file__).parents[2] / "results" / "cifar10-resnet18-wat-seed1"
    shutil.copytree(wat, tmp_path / "run")
    (tmp_path / "run" / "selected.safetensors").write_bytes(b"")
    (result,) = load_results([tmp_path / "run"])
    assert "cifar10 is not in" in make_gallery(result, "pgd-100", data_dir=tmp_path / "data").note
    assert not (tmp_path / "data").exists()


def test_a_gallery_without_weights_says_so(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "bare")
    for name in ("selected.safetensors", "last.safetensors"):
        (tmp_path / "bare" / name).unlink()
    (result,) = load_results([tmp_path / "bare"])
    gallery = make_gallery(result, "pgd-5")
    assert gallery.pictures == ()
    assert "no weights" in gallery.note
    write_report([result], tmp_path / "report.html")
    assert "has no weights" in (tmp_path / "report.html").read_text()


def test_the_gallery_shows_what_fools(folders: list[Path], tmp_path: Path) -> None:
    """Decoded again, the images are those of the test set; the sums are within eps of them and taken for another."""
    run = tiny_run(tmp_path)
    evaluate_target(run_target(run), ["pgd-5"], run.folder)
    (result,) = load_results([run.folder])
    gallery = make_gallery(result, "pgd-5")
    target = run_target(run)
    tests = {bytes(image.numpy().tobytes()) for image in target.images.x[:, 0]}

    def decoded(uri: str) -> Any:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))

    assert gallery.pictures
    for picture in gallery.pictures:
        clean, adversarial = decoded(picture.clean), decoded(picture.adversarial)
        assert clean.tobytes() in tests
        assert np.abs(adversarial.astype(int) - clean).max() <= 255 * run.config.eps + 1
        assert picture.clean_prediction == gallery.weakest
    assert any(picture.adversarial_prediction != gallery.weakest for picture in gallery.pictures)


def test_page_escapes_names(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    evil = "<script>alert(1)</script>"
    for result in results:
        result.card["class_names"][0] = evil
        for column in result.columns.values():
            column["worst"]["class"] = evil
    write_report(results, tmp_path / "report.html", gallery=False)
    page = (tmp_path / "report.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert page.count("</script>") == 6  # ours: the data, two libraries, and the page's own three


def test_somebody_elses_model_has_a_page_too(folders: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    """Without a recipe, a log or a gallery, alone and beside a run of ours."""
    (tmp_path / "theirs.py").write_text(
        "from worstclass.models import SmallCNN\n"
        "def build(num_classes, in_channels):\n    return SmallCNN(num_classes, in_channels)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = open_run(folders[0])
    model, _ = run.load_model()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    target = model_target("theirs:build", weights=tmp_path / "w.safetensors", data=run.config.data, eps=run.config.eps)
    evaluate_target(target, ["pgd-5"], tmp_path / "audit")
    for folders_shown in ([tmp_path / "audit"], [folders[0], tmp_path / "audit"]):
        results = load_results(folders_shown)
        assert results[-1].title == "audit"
        write_report(results, tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text()
        assert "trained elsewhere, weights" in page
        assert "theirs:build" in page
        assert page_data(results)["runs"][-1]["log"] is None
        assert ("no weights" in page, "evaluation alone, without a model" in page) == (False, True)
        sections = re.findall("<h2 id=.(.*?).>", page)
        assert (sections[-1] == "theory") == (len(results) == 2)  # those that we trained
        assert page.count(" the worst of the classes, each at its best epoch") == len(results) - 1
    against = results[1].columns["pgd-5"]["against_base"]
    assert against["average_difference"]["value"] == against["worst_difference"]["value"] == 0  # the same weights
