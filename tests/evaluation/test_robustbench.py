"""A model of RobustBench's zoo: what RobustBench publishes stands beside our numbers, where the two compare."""

import json
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.auditing.audit import audit, audit_target
from worstclass.auditing.result import AuditResult
from worstclass.errors import UserError
from worstclass.evaluation.targets import model_target
from worstclass.models.robustbench import published

ENTRY = {"eps": "8/255", "clean_acc": "89.69", "reported": "62.5", "autoattack_acc": "59.53"}
ROW = (
    "| <sub>**35**</sub> | <sub><sup>**{}**</sup></sub> | <sub>*[A paper](https://arxiv.org/abs/1905.13736)*</sub> "
    "| <sub>{}%</sub> | <sub>{}%</sub> | <sub>WideResNet-28-10</sub> | <sub>NeurIPS 2019</sub> |"
)
HEAD = (
    "| <sub>#</sub> | <sub>Model ID</sub> | <sub>Paper</sub> | <sub>Clean accuracy</sub> | <sub>Robust accuracy</sub> "
    "| <sub>Architecture</sub> | <sub>Venue</sub> |\n|:---:|---|---|:---:|:---:|:---:|:---:|"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with model_info/, as a clone of RobustBench has it, and a stand-in for what loads its models."""
    write_tiny_npz(tmp_path / "tiny.npz")
    monkeypatch.chdir(tmp_path)
    write_entry("cifar10/Linf/Net", ENTRY)
    top, utils = ModuleType("robustbench"), ModuleType("robustbench.utils")
    vars(utils).update(load_model=lambda **given: load_cnn("tiny_cnn", 3))
    monkeypatch.setitem(sys.modules, "robustbench", top)
    monkeypatch.setitem(sys.modules, "robustbench.utils", utils)
    return tmp_path


def write_entry(name: str, record: Any) -> None:
    path = Path("model_info", f"{name}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def audited(name: str, eps: float, **options: Any) -> AuditResult:
    target = model_target(name, weights=None, data="npz:tiny.npz", eps=eps, **options)
    return audit_target(target, "natural", checks=False)


def test_its_average_stands_beside_ours(here: Path) -> None:
    result = audited("robustbench:Net", 8 / 255)
    line = "RobustBench reports 59.5 average under AutoAttack, 89.7 on clean images (cifar10, L-inf radius 8/255, "
    assert f"\n{line}all test images)." in str(result)
    assert "RobustBench reports 59.5" in result._repr_html_()
    assert "does not compare" not in str(result)
    result.save(here / "kept")
    assert line in str(AuditResult.load(here / "kept"))
    in_memory = audit(load_cnn("tiny_cnn", 3), "npz:tiny.npz", attacks="natural", checks=False, name="robustbench:Net")
    assert line in str(in_memory)


def test_another_threat_model_does_not_compare(here: Path) -> None:
    assert "does not compare with L-inf radius 0.05 here." in str(audited("robustbench:Net", 0.05))
    assert "does not compare with L2 radius 0.5 here." in str(audited("robustbench:Net", 0.5, norm="l2"))


def test_an_audit_goes_on_where_nothing_is_published_any_more(here: Path) -> None:
    """What others publish does not tell one model from another."""
    target = model_target("robustbench:Net", weights=None, data="npz:tiny.npz", eps=0.05)
    audit_target(target, "natural", checks=False, cache=here / "cache")
    (here / "model_info/cifar10/Linf/Net.json").unlink()
    target = model_target("robustbench:Net", weights=None, data="npz:tiny.npz", eps=0.05)
    assert "robustbench" not in target.about
    assert list(audit_target(target, "pgd-2", checks=False, cache=here / "cache").card["columns"]) == [
        "natural",
        "pgd-2",
    ]


@pytest.mark.parametrize(
    "record",
    [
        {**ENTRY, "autoattack_acc": "n/a"},
        {**ENTRY, "autoattack_acc": "159.5"},
        {**ENTRY, "autoattack_acc": "nan"},
        {**ENTRY, "eps": "8/0"},
        {"eps": "8/255"},
        [1],
    ],
)
def test_what_cannot_be_read_is_not_shown(here: Path, record: Any) -> None:
    write_entry("cifar10/Linf/Net", record)
    assert published("robustbench:Net") is None


def test_names_lead_to_their_leaderboard(here: Path) -> None:
    write_entry("cifar100/L2/Net", {**ENTRY, "eps": "0.5", "autoattack_acc": "30"})
    found = published("robustbench:cifar100/L2/Net")
    assert found == {
        "data": "cifar100",
        "norm": "l2",
        "eps": 0.5,
        "attack": "AutoAttack",
        "clean": pytest.approx(0.8969),
        "robust": pytest.approx(0.3),
    }
    (here / "elsewhere.json").write_text(json.dumps(ENTRY))
    names = ("robustbench:Nut", "robustbench:../../../elsewhere", "robustbench:../Linf/Net", "timm:Net", "Net", "")
    assert [name for name in names if published(name) is not None] == []
    with pytest.raises(UserError, match="unknown threat model"):
        published("robustbench:cifar10/corruptions/Net")


def test_a_card_with_a_damaged_entry_is_refused(here: Path) -> None:
    audited("robustbench:Net", 8 / 255).save(here / "kept")
    card = json.loads((here / "kept" / "card.json").read_text())
    card["about"]["robustbench"]["robust"] = 59.53
    (here / "kept" / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="damaged: 'about': 'robustbench': 'robust'"):
        AuditResult.load(here / "kept")


def test_the_tables_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's has no model_info; its description has the tables, in this form."""
    info = tmp_path / "robustbench-1.1.1.dist-info"
    info.mkdir()
    tables = [
        "Name: robustbench\nVersion: 1.1.1\n\n# RobustBench\n",
        f"### CIFAR-10\n\n#### Linf, eps=8/255\n{HEAD}",
        ROW.format("Net", 89.69, 59.53),
        f"\n#### L2, eps=0.5\n{HEAD}",
        ROW.format("Net", 90, 70),
        "\n#### Common Corruptions\n| <sub>#</sub> | <sub>Model ID</sub> | <sub>Clean accuracy</sub> |\n|---|---|---|",
        "| 1 | Blurred | 90% |",
        f"\n### CIFAR-100\n\n#### Linf, eps=8/255 \n\n{HEAD}",
        ROW.format("Net", 60, 30),
    ]
    (info / "METADATA").write_text("\n".join(tables))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = ("Net", "cifar10/L2/Net", "cifar100/Linf/Net", "cifar100/L2/Net", "Blurred", "Nut")
    found = [published(f"robustbench:{name}") for name in names]
    assert [each and (each["norm"], each["eps"], each["robust"]) for each in found] == [
        ("linf", 8 / 255, 0.5953),
        ("l2", 0.5, 0.7),
        ("linf", 8 / 255, 0.3),
        None,
        None,
        None,
    ]
    assert found[0] is not None
    assert found[0]["attack"] == "the strongest attack known to it"


def test_the_tables_of_the_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        metadata.metadata("robustbench")
    except metadata.PackageNotFoundError:
        pytest.skip("needs robustbench")
    monkeypatch.chdir(tmp_path)
    known = published("robustbench:Carmon2019Unlabeled")
    assert known is not None
    assert (known["clean"], known["robust"]) == (pytest.approx(0.8969), pytest.approx(0.5953))
    imagenet = published("robustbench:imagenet/Linf/Engstrom2019Robustness")
    assert imagenet is not None
    assert imagenet["eps"] == 4 / 255
