"""Strategies: how the weights of the classes move from epoch to epoch."""

from worstclass.strategies.cfa import CFA
from worstclass.strategies.cfol import CFOL
from worstclass.strategies.csl import CSL
from worstclass.strategies.csr import CSR
from worstclass.strategies.dafa import DAFA
from worstclass.strategies.faal import FAAL
from worstclass.strategies.fixed import Fixed, focus, uniform
from worstclass.strategies.frl import FRL
from worstclass.strategies.guarded import Guarded
from worstclass.strategies.hedge import Hedge, expert_weights
from worstclass.strategies.plug_in import ClassGuard, ClassHedge
from worstclass.strategies.targeted import TRIX, FairTAT
from worstclass.strategies.wat import WAT

__all__ = [
    "CFA",
    "CFOL",
    "CSL",
    "CSR",
    "DAFA",
    "FAAL",
    "FRL",
    "TRIX",
    "WAT",
    "ClassGuard",
    "ClassHedge",
    "FairTAT",
    "Fixed",
    "Guarded",
    "Hedge",
    "expert_weights",
    "focus",
    "uniform",
]
