"""worstclass: train, attack and measure classifiers whose weakest class must hold.

Importing it needs torch and numpy alone; the command line, checkpoints, statistics and reports bring more.
"""

import importlib
from types import ModuleType

from worstclass.attacks import PGD, make_attack
from worstclass.models import make_model
from worstclass.objectives import Madry, Natural, Trades
from worstclass.stats import ClassStats
from worstclass.strategies import CSL, FRL, WAT, ClassHedge, Fixed, Hedge
from worstclass.train.loop import fit
from worstclass.train.state import Plan, new_state
from worstclass.types import Attack, Classifier, ClassStrategy, ClassWeights, Losses, Objective

__version__ = "0.1.0"

__all__ = [
    "CSL",
    "FRL",
    "PGD",
    "WAT",
    "Attack",
    "ClassHedge",
    "ClassStats",
    "ClassStrategy",
    "ClassWeights",
    "Classifier",
    "Fixed",
    "Hedge",
    "Losses",
    "Madry",
    "Natural",
    "Objective",
    "Plan",
    "Trades",
    "__version__",
    "fit",
    "make_attack",
    "make_model",
    "new_state",
]

_ON_DEMAND = ("config", "evaluate", "metrics", "report", "runs", "subjects")


def __getattr__(name: str) -> ModuleType:
    """`worstclass.metrics` and its like, imported when they are first asked for: they bring more than torch."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"worstclass.{name}")
    raise AttributeError(f"module 'worstclass' has no attribute '{name}'")
