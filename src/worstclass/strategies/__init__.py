"""Strategies: how the weights of the classes move from epoch to epoch."""

from worstclass.strategies.csl import CSL
from worstclass.strategies.fixed import Fixed, focus, uniform
from worstclass.strategies.frl import FRL
from worstclass.strategies.hedge import ClassHedge, Hedge, expert_weights
from worstclass.strategies.wat import WAT

__all__ = ["CSL", "FRL", "WAT", "ClassHedge", "Fixed", "Hedge", "expert_weights", "focus", "uniform"]
