"""Training: the step, the loop, and the checkpoint."""

from worstclass.train.loop import EpochRecord, fit, validate
from worstclass.train.state import Plan, State, new_state

__all__ = ["EpochRecord", "Plan", "State", "fit", "new_state", "validate"]
