"""An audit at the end of an epoch, in anybody's training loop."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from worstclass.auditing.audit import attack_names, audit
from worstclass.auditing.data import read_data
from worstclass.auditing.result import AuditResult
from worstclass.errors import AttackError, UserError

Log = Callable[[Mapping[str, float], int], None]
"""Takes numbers by name, and the epoch: `lambda numbers, epoch: wandb.log(dict(numbers), step=epoch)`."""


class EpochAudit:
    """Attack the model on held-out images at the end of an epoch, and measure every class.

        look = EpochAudit((valid_x, valid_y), 8 / 255, every=5, log=log)
        result = look(model, epoch)                   # an AuditResult; None in the epochs between

    `data` is what `worstclass.audit` takes, read once. Give validation images: an epoch that is chosen by test images
    makes their accuracy worthless. There is no preflight, since a network is at chance when it starts; audit once
    before you rely on numbers. Other options are those of `worstclass.audit`. The model is left in its mode.
    """

    def __init__(
        self,
        data: Any,
        eps: float = 8 / 255,
        *,
        attacks: str = "pgd-20",
        every: int = 1,
        limit: int | None = None,
        seed: int = 0,
        image_size: int | None = None,
        test_fraction: float | None = None,
        data_dir: Path | str = Path("data"),
        log: Log | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise UserError(f"every must be a whole number of epochs, not {every!r}.")
        self._data = read_data(
            data, limit=limit, seed=seed, image_size=image_size, test_fraction=test_fraction, data_dir=Path(data_dir)
        )
        self._options: dict[str, Any] = {"attacks": attack_names(attacks), "seed": seed, "checks": False} | options
        self._eps, self._every, self._log = eps, every, log
        self.history: list[tuple[int, dict[str, float]]] = []

    def __call__(self, model: nn.Module, epoch: int) -> AuditResult | None:
        """After epoch number `epoch`, which counts from 1."""
        if epoch % self._every:
            return None
        try:
            result = audit(model, self._data, self._eps, on_note=lambda line: None, **self._options)
        except AttackError as error:  # a network that has hardly learnt; training must go on
            warnings.warn(f"epoch {epoch} was not audited: {error}", stacklevel=2)
            return None
        numbers = class_scalars(result)
        self.history.append((epoch, numbers))
        if self._log is not None:
            self._log(numbers, epoch)
        return result


def class_scalars(result: AuditResult, prefix: str = "audit") -> dict[str, float]:
    """Average, worst class and every class under each attack, by name: `audit/pgd-20/worst`, `audit/pgd-20/class/cat`.

    A class without images has no number.
    """
    numbers: dict[str, float] = {}
    for attack, column in result.card["columns"].items():
        for key in ("average", "worst"):
            numbers[f"{prefix}/{attack}/{key}"] = column[key]["value"]
        for its in column["classes"]:
            if its["value"] is not None:
                numbers[f"{prefix}/{attack}/class/{its['class']}"] = its["value"]
    return numbers
