"""A model that several processes train together, and a state they all start from."""

import torch

from worstclass.errors import TrainingError
from worstclass.models.synced import sync_norms
from worstclass.stats import COLUMNS
from worstclass.team import Team
from worstclass.train.state import State
from worstclass.types import Classifier


def share(model: Classifier, team: Team) -> None:
    """Make a model one that a team trains, in place: the leader's weights, and BatchNorm over the whole batch."""
    if team.alone:
        return
    sync_norms(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(team.follow(tensor))


class GradientSum:
    """Called after a backward, adds up the gradients over the processes, in one exchange for each kind of number: they
    are those of the whole batch then, whose loss is the sum of theirs.

    Parameters that no process uses are found in the first step and left without a gradient, as one process leaves them.
    """

    def __init__(self, model: Classifier, team: Team) -> None:
        self._team = team
        self._named = dict(model.named_parameters())
        self._used: set[str] = set()

    def __call__(self) -> None:
        if self._team.alone:
            return
        found = {name for name, parameter in self._named.items() if parameter.grad is not None}
        self._used = self._used or self._by_any(found)
        if found - self._used:
            raise TrainingError(
                f"'{min(found - self._used)}' has a gradient now and had none in the first step: several processes "
                "can train a model only if its first step uses all that later ones use."
            )
        grads: dict[torch.dtype, list[torch.Tensor]] = {}
        for name in sorted(self._used):
            parameter = self._named[name]
            if parameter.grad is None:  # another process may have used it
                parameter.grad = torch.zeros_like(parameter)
            grads.setdefault(parameter.dtype, []).append(parameter.grad)
        for alike in grads.values():
            total = self._team.sum(torch.cat([grad.flatten() for grad in alike]))
            parts = total.split([grad.numel() for grad in alike])
            torch._foreach_copy_(alike, [part.view(grad.shape) for part, grad in zip(parts, alike, strict=True)])

    def _by_any(self, found: set[str]) -> set[str]:
        counts = torch.tensor([name in found for name in self._named], dtype=torch.int64, device=self._team.device)
        return {name for name, count in zip(self._named, self._team.sum(counts).tolist(), strict=True) if count}


def follow_leader(state: State, team: Team) -> None:
    """Put the leader's optimizer, strategy and place in the run into every process; `share` does it for the model."""
    if team.alone:
        return
    parameters = list(state.model.parameters())
    momenta = {p: buffer for p in parameters if (buffer := state.optimizer.state[p].get("momentum_buffer")) is not None}
    numbers = [state.epoch, state.step, state.seconds, bool(momenta), state.table is not None]
    epoch, step, seconds, has_momenta, has_table = team.follow(torch.tensor(numbers, dtype=torch.float64)).tolist()
    state.epoch, state.step, state.seconds = int(epoch), int(step), seconds
    for parameter in parameters if has_momenta else ():
        momentum = momenta.get(parameter, torch.zeros_like(parameter))
        state.optimizer.state[parameter]["momentum_buffer"] = team.follow(momentum)
    if has_table:
        shape = (len(state.strategy.weights.natural), 1 + len(COLUMNS))
        state.table = team.follow(torch.zeros(shape, dtype=torch.float64) if state.table is None else state.table)
    state.strategy.load_state_dict({key: team.follow(value) for key, value in state.strategy.state_dict().items()})
