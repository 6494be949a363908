"""Lightning callbacks: the class learner fed from validation, and an audit at the end of an epoch.

They work with `lightning` and with `pytorch_lightning`: the one that is imported already, or else that is installed.
"""

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from worstclass.errors import UserError
from worstclass.execution.distributed import of_every_process
from worstclass.inputs.factories import need
from worstclass.integrations.epoch_audit import EpochAudit, class_scalars
from worstclass.strategies import ClassGuard

LIBRARIES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    for name in LIBRARIES:
        if name in sys.modules:
            return sys.modules[name].Callback
    there = [name for name in LIBRARIES if importlib.util.find_spec(name.partition(".")[0])]
    return need([*there, LIBRARIES[0]][0], "a callback for Lightning", "lightning").Callback


if TYPE_CHECKING:
    Base = object
else:
    Base = _base()


class GuardCallback(Base):
    """Update a `ClassGuard` once an epoch with what `validation_step` returns, and keep its state in checkpoints.

    `training_step` weighs: `guard.weigh(losses, y, logits.argmax(1) == y).mean()`. `validation_step` returns a dict
    with `correct` (B,), bool, and `group` (B,). Weights are logged as `class_weight/NAME`.
    """

    def __init__(self, guard: ClassGuard, names: list[str] | None = None) -> None:
        super().__init__()
        self.guard = guard
        self.names = [str(k) for k in range(guard.num_groups)] if names is None else list(names)
        if len(self.names) != guard.num_groups:
            raise UserError(f"there are {guard.num_groups} groups and {len(self.names)} names.")
        self._seen: list[tuple[Tensor, Tensor]] = []

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._seen = []

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not isinstance(outputs, dict) or not {"correct", "group"} <= outputs.keys():
            raise UserError("validation_step must return a dict with 'correct' and 'group', (B,) each, for ClassGuard.")
        with torch.inference_mode(False):  # what validation computes cannot be used in training
            self._seen.append((outputs["correct"].detach().cpu().clone(), outputs["group"].detach().cpu().clone()))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        seen, self._seen = self._seen, []
        if trainer.sanity_checking or trainer.state.fn != "fit" or not seen:  # trainer.validate() teaches nothing
            return
        with torch.inference_mode(False):
            parts = [part for its in of_every_process(seen) for part in its]
            self.guard.update(*(torch.cat([part[place] for part in parts]) for place in (0, 1)))
            weights = self.guard.weights.tolist()
        numbers = {f"class_weight/{name}": weight for name, weight in zip(self.names, weights, strict=True)}
        pl_module.log_dict(numbers, rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        return {"guard": self.guard.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.guard.load_state_dict(state_dict["guard"])


class AuditCallback(Base):
    """Audit the network at the end of a training epoch, and log average, worst class and every class.

    `look` is an `EpochAudit`; `network(module)` is what is attacked, by default the LightningModule itself, whose
    `forward` takes images in [0, 1]. With several processes the first one audits and the others wait.
    """

    def __init__(self, look: EpochAudit, network: Callable[[Any], nn.Module] | None = None) -> None:
        super().__init__()
        self.look, self._network = look, network

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            model = pl_module if self._network is None else self._network(pl_module)
            result = self.look(model, trainer.current_epoch + 1)
            if result is not None:
                pl_module.log_dict(class_scalars(result), rank_zero_only=True)
        trainer.strategy.barrier()
