"""A model that several processes train together, and a state they all start from."""

import torch
from torch import Tensor

from worstclass.execution.distributed import Team
from worstclass.models.sync_batchnorm import sync_norms
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
    """Put every part of the leader's state, and its place in the run, into every process."""
    if team.alone:
        return
    given = {name: part.state_dict() for name, part in state.parts().items()}
    tensors = {name: as_tensors(own, name) for name, own in given.items()}
    shapes = str([(name, key, each.shape, each.dtype) for name, own in tensors.items() for key, each in own.items()])
    team.check_same(shapes, "the processes have made different models: other names, shapes or kinds of number.")
    place = torch.tensor([state.epoch, state.step, state.seconds], dtype=torch.float64)
    epoch, step, seconds = team.broadcast(place).tolist()
    state.epoch, state.step, state.seconds = int(epoch), int(step), seconds
    for name, part in state.parts().items():
        leaders = {key: team.broadcast(value) for key, value in tensors[name].items()}
        part.load_state_dict(as_given(leaders, given[name]))
