"""A model that several processes train together, and a state they all start from."""

import torch
from torch.nn.parallel import DistributedDataParallel

from worstclass.models.synced import sync_norms
from worstclass.stats import COLUMNS
from worstclass.team import Team
from worstclass.train.state import State
from worstclass.types import Classifier


def shared(model: Classifier, team: Team) -> Classifier:
    """The model as it is trained: the leader's weights, gradients averaged over the processes, BatchNorm over the
    whole batch. Attacks and validation go to the model itself, where nothing is exchanged."""
    if team.alone:
        return model
    sync_norms(model)
    wrapped = DistributedDataParallel(model, static_graph=True)  # static: a parameter may go unused
    wrapped.require_forward_param_sync = False  # two forwards before one backward: buffers must not be written between
    return wrapped


def follow_leader(state: State, team: Team) -> None:
    """Put the leader's optimizer, strategy and place in the run into every process; `shared` does it for the model."""
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
