"""Models of other libraries: the logits of the network they were made from, and the attacks that they can take."""

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robust_cnn import load_cnn
from tiny import tiny_run, write_tiny_npz
from worstclass.auditing.audit import audit, audit_target
from worstclass.cli import main as cli
from worstclass.errors import UserError
from worstclass.evaluation.targets import Target, evaluate_target, model_target
from worstclass.export import export_run
from worstclass.inputs.names import check_given_model, check_model_name
from worstclass.models import Normalized, make_model

X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tiny_npz(tmp_path / "tiny.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def target(name: str, **options: Any) -> Target:
    return model_target(name, weights=None, data="npz:tiny.npz", eps=0.05, **options)


def test_torchscript_needs_consent_and_has_gradients(here: Path) -> None:
    model = load_cnn("tiny_cnn", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on the future of TorchScript
        torch.jit.save(torch.jit.trace(model, X), "net.pt")
    with pytest.raises(UserError, match=r"a TorchScript file is code; pass --allow-code"):
        target("torchscript:net.pt")
    loaded = target("torchscript:net.pt", allow_code=True)
    torch.testing.assert_close(loaded.model(X), model(X))
    result = audit_target(loaded, ["pgd-5"], on_note=lambda line: None)
    expected = audit(model, "npz:tiny.npz", 0.05, attacks="pgd-5")
    assert result.average.value == pytest.approx(expected.average.value, abs=0.05)


def test_frozen_torchscript_is_refused_in_a_line(here: Path) -> None:
    """Its weights are constants: two files of one name could not be told apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen = torch.jit.freeze(torch.jit.trace(load_cnn("tiny_cnn", 3), X))
        torch.jit.save(frozen, "frozen.pt")
    with pytest.raises(UserError, match="the model is frozen TorchScript"):
        target("torchscript:frozen.pt", allow_code=True)
    with pytest.raises(UserError, match="the model is frozen TorchScript"):
        audit(frozen, "npz:tiny.npz", 0.05, attacks="natural")


class BlackBox(nn.Module):
    """A model without gradients, as an ONNX file is one."""

    gradient_free = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = load_cnn("tiny_cnn", 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.inner(x)
        return logits


def test_without_gradients_only_black_box_attacks_are_run(here: Path) -> None:
    """Attacks by gradients would find nothing, and call that robust. `checks=False` does not switch it off."""
    for checks in (True, False):
        with pytest.raises(UserError, match="has no gradients, which autoattack needs: attack with square"):
            audit(BlackBox().eval(), "npz:tiny.npz", 0.05, checks=checks)
    notes: list[str] = []
    result = audit(BlackBox().eval(), "npz:tiny.npz", 0.05, attacks="square", limit=12, on_note=notes.append)
    assert result.attack == "square"
    assert any("no gradient leads" in line for line in notes)
    assert "attacks-harm" in [finding.name for finding in result.findings if not finding.passed]  # checks were not made


def test_onnx_through_onnxruntime(here: Path) -> None:
    """The real libraries: a file that we wrote, its logits, its attacks, and its SHA-256 as what was measured."""
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library)
    run = tiny_run(here)
    export_run(run, here / "net", to="onnx")
    loaded = target("onnx:net/model.onnx")
    torch.testing.assert_close(loaded.model(X), load_cnn("tiny_cnn", 3)(X), rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="attack with square"):
        evaluate_target(loaded, ["pgd-2"], here / "out")
    result = audit_target(loaded, ["square"], on_note=lambda line: None)
    assert result.average.value <= result.under("natural")[0].value
    assert set(loaded.model.state_dict()) == {"sha256"}


def test_onnx_of_a_fixed_batch_size(here: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalMaxPool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])],
        "maximum",
        [helper.make_tensor_value_info("x", kind, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", kind, [2, 3])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, "fixed.onnx")
    model = make_model("onnx:fixed.onnx", num_classes=3, in_channels=3, pretrained=True)
    x = torch.rand(5, 3, 4, 4)
    assert torch.equal(model(x), x.amax((2, 3)))


def test_timm_by_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library. A name builds a network for the data at hand; a pretrained one brings its normalisation."""
    timm = pytest.importorskip("timm")
    one, two = (make_model("timm:resnet10t", num_classes=3, in_channels=1, seed=1) for _ in range(2))
    assert one(torch.rand(2, 1, 32, 32)).shape == (2, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    with pytest.raises(UserError, match="model 'timm:resnot'"):
        make_model("timm:resnot", num_classes=3, in_channels=1)

    def created(name: str, pretrained: bool = False) -> nn.Module:
        """Without a network there are no weights to fetch."""
        assert (name, pretrained) == ("hf-hub:somebody/net", True)
        model: nn.Module = real("resnet10t", num_classes=3, in_chans=3)
        return model

    real = timm.create_model
    monkeypatch.setattr(timm, "create_model", created)
    for name in ("hf-hub:somebody/net", "timm:hf-hub:somebody/net"):
        model = make_model(name, num_classes=3, in_channels=3, pretrained=True)
        assert isinstance(model, Normalized)
        assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_robustbench_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for its `load_model`: its real one downloads weights."""
    asked: list[dict[str, str]] = []

    def load_model(**given: str) -> nn.Module:
        asked.append(given)
        return load_cnn("tiny_cnn", 3)

    top, utils = ModuleType("robustbench"), ModuleType("robustbench.utils")
    vars(utils).update(load_model=load_model)
    monkeypatch.setitem(sys.modules, "robustbench", top)
    monkeypatch.setitem(sys.modules, "robustbench.utils", utils)
    for name in ("robustbench:Carmon2019Unlabeled", "robustbench:cifar100/L2/Net"):
        make_model(name, num_classes=3, in_channels=1, pretrained=True)
    assert asked == [
        {"model_name": "Carmon2019Unlabeled", "dataset": "cifar10", "threat_model": "Linf"},
        {"model_name": "Net", "dataset": "cifar100", "threat_model": "L2"},
    ]
    with pytest.raises(UserError, match="unknown threat model"):
        make_model("robustbench:cifar10/linf/Net", num_classes=3, in_channels=1, pretrained=True)


@pytest.mark.parametrize("name", ["torchscript:net.pt", "onnx:net.onnx", "robustbench:Net"])
def test_finished_models_are_not_trained(name: str) -> None:
    assert check_given_model(name) == name
    with pytest.raises(UserError, match="audit or evaluate it"):
        check_model_name(name)


@pytest.mark.parametrize(
    ("name", "extra"), [("timm:resnet18", "timm"), ("robustbench:Net", "robustbench"), ("onnx:here.onnx", "onnx")]
)
def test_a_library_that_is_missing_is_one_line(
    name: str, extra: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("timm", "robustbench", "robustbench.utils", "onnxruntime"):
        monkeypatch.setitem(sys.modules, module, None)
    Path("here.onnx").write_bytes(b"")
    with pytest.raises(UserError, match=rf"pip install 'worstclass\[{extra}\]'"):
        make_model(name, num_classes=3, in_channels=1, pretrained=True)


def test_the_command_says_what_does_not_go_together(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.pt").write_bytes(b"")
    Path("w.safetensors").write_bytes(b"")
    rows = {
        "audit timm:resnet18 --data npz:tiny.npz --mean 0.5 --std 0.5": "normalises as its configuration says",
        "audit onnx:gone.onnx --data npz:tiny.npz": "there is no file gone.onnx",
        "audit torchscript:net.pt --data npz:tiny.npz": "pass --allow-code if you trust it",
        "audit torchscript:net.pt --data npz:tiny.npz --allow-code": "not a readable TorchScript file",
        "audit torchscript:net.pt --data npz:tiny.npz --weights w.safetensors": "brings its weights",
        "evaluate torchscript:net.pt --data npz:tiny.npz": "give --eps and --out too",
    }
    for line, words in rows.items():
        monkeypatch.setattr(sys, "argv", ["worstclass", *line.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2, line
        assert words in capsys.readouterr().err, line
