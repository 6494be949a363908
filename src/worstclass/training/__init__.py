"""Training: the step, the loop, and the checkpoint."""

from worstclass.training.engine import Engine
from worstclass.training.loop import EpochRecord, fit, validate
from worstclass.training.state import Plan, State, new_state

__all__ = ["Engine", "EpochRecord", "Plan", "State", "fit", "new_state", "validate"]
