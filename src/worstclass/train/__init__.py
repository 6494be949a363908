"""Training: the step, the loop, and the checkpoint."""

from worstclass.train.loop import EpochRecord, Plan, State, fit, new_state, validate

__all__ = ["EpochRecord", "Plan", "State", "fit", "new_state", "validate"]
