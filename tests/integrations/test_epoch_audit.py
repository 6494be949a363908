"""An audit at the end of an epoch: the numbers of `audit`, the model as it was, and nothing in between."""

from pathlib import Path

import pytest
import torch

import worstclass
from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.errors import AttackError, UserError
from worstclass.integrations import epoch_audit
from worstclass.integrations.epoch_audit import EpochAudit, class_scalars


def test_every_second_epoch(tmp_path: Path) -> None:
    data = f"npz:{write_tiny_npz(tmp_path / 'tiny.npz')}"
    model = load_cnn("tiny_cnn", 3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    heard: list[tuple[int, dict[str, float]]] = []
    look = EpochAudit(
        data, 0.05, attacks="pgd-5", every=2, limit=30, log=lambda numbers, epoch: heard.append((epoch, dict(numbers)))
    )
    results = [look(model, epoch) for epoch in (1, 2, 3, 4)]
    assert [result is not None for result in results] == [False, True, False, True]
    assert [epoch for epoch, _ in heard] == [2, 4]
    assert look.history == heard
    expected = worstclass.audit(model.eval(), data, 0.05, attacks="pgd-5", limit=30, checks=False)
    assert heard[0][1] == class_scalars(expected)
    assert heard[0][1]["audit/pgd-5/worst"] == expected.worst.value
    assert heard[0][1][f"audit/pgd-5/class/{expected.worst.name}"] == expected.worst.value
    assert results[1] is not None
    assert results[1].card["about"]["data"] == data
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_wrong_rhythm_is_refused() -> None:
    with pytest.raises(UserError, match="every must be a whole number"):
        EpochAudit("fashion-mini", every=0)


def test_an_attack_that_helps_an_early_network_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def helps(*given: object, **options: object) -> None:
        raise AttackError("attack 'pgd-20' helps the model")

    monkeypatch.setattr(epoch_audit, "audit", helps)
    look = EpochAudit((torch.rand(4, 1, 8, 8), torch.arange(4) % 2), 0.05)
    with pytest.warns(UserWarning, match="epoch 1 was not audited: attack 'pgd-20' helps"):
        assert look(load_cnn("tiny_cnn", 3), 1) is None
    assert look.history == []
