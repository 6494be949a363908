"""A model that several processes train together, and a state they all start from."""

import torch
from torch import Tensor

from worstclass.distributed import Team
from worstclass.models.sync_batchnorm import sync_norms
from worstclass.stats import COLUMNS
from worstclass.training.state import State, as_given, as_tensors
from worstclass.types import Classifier


def share(model: Classifier, team: Team) -> None:
    """Make a model one that a team trains, in place: the leader's weights, and BatchNorm over the whole batch."""
    if team.alone:
        return
    named = [*model.named_parameters(), *model.named_buffers()]
    shapes = str([(name, tensor.shape, tensor.dtype) for name, tensor in named])
    team.check_same(shapes, "the processes have made different models: other names, shapes or kinds of number.")
    sync_norms(model)
    with torch.no_grad():
        for _, tensor in named:
            tensor.copy_(team.broadcast(tensor))


def sum_gradients(model: Classifier, team: Team) -> None:
    """Add up the gradients over the processes, in one exchange for each kind of number: they are those of the whole
    batch then, whose loss is the sum of theirs. A parameter that was not used has gradient zero: another process may
    have used it."""
    if team.alone:
        return
    grads: dict[torch.dtype, list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            grads.setdefault(parameter.dtype, []).append(parameter.grad)
    for alike in grads.values():
        total = team.all_reduce(torch.cat([grad.flatten() for grad in alike]))
        parts = total.split([grad.numel() for grad in alike])
        torch._foreach_copy_(alike, [part.view(grad.shape) for part, grad in zip(parts, alike, strict=True)])


def follow_leader(state: State, team: Team) -> None:
    """Put the leader's optimizer, strategy and place in the run into every process; `share` does it for the model."""
    if team.alone:
        return
    parameters = list(state.model.parameters())
    momenta = {p: buffer for p in parameters if (buffer := state.optimizer.state[p].get("momentum_buffer")) is not None}
    numbers = [state.epoch, state.step, state.seconds, bool(momenta), state.table is not None]
    epoch, step, seconds, has_momenta, has_table = team.broadcast(torch.tensor(numbers, dtype=torch.float64)).tolist()
    state.epoch, state.step, state.seconds = int(epoch), int(step), seconds
    for parameter in parameters if has_momenta else ():
        momentum = momenta.get(parameter, torch.zeros_like(parameter))
        state.optimizer.state[parameter]["momentum_buffer"] = team.broadcast(momentum)
    if has_table:
        shape = (len(state.strategy.weights.natural), 1 + len(COLUMNS))
        state.table = team.broadcast(torch.zeros(shape, dtype=torch.float64) if state.table is None else state.table)
    own = state.strategy.state_dict()
    tensors = as_tensors(own, type(state.strategy).__name__)
    state.strategy.load_state_dict(as_given({key: team.broadcast(value) for key, value in tensors.items()}, own))
