"""Training: the step, the loop, and the checkpoint."""

from worstclass.training.averaging import EMA, FAWA
from worstclass.training.awp import AWPRule
from worstclass.training.distillation import ADR
from worstclass.training.engine import Engine
from worstclass.training.loop import EpochRecord, fit, validate
from worstclass.training.optimizers import SGD, AdamW
from worstclass.training.schedules import AttackSteps, Cosine, OneCycle, Piecewise, Progress, Schedule, WarmUp
from worstclass.training.state import Plan, State, new_state

__all__ = [
    "ADR",
    "EMA",
    "FAWA",
    "SGD",
    "AWPRule",
    "AdamW",
    "AttackSteps",
    "Cosine",
    "Engine",
    "EpochRecord",
    "OneCycle",
    "Piecewise",
    "Plan",
    "Progress",
    "Schedule",
    "State",
    "WarmUp",
    "fit",
    "new_state",
    "validate",
]
