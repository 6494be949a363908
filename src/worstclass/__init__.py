"""worstclass: train, attack and measure classifiers whose weakest class must hold.

Every name is imported when it is first asked for. The training core needs torch and numpy alone; the command line,
checkpoints, statistics and reports bring more.
"""

from typing import TYPE_CHECKING

from worstclass.lazy import importer

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

if TYPE_CHECKING:
    from worstclass import config as config
    from worstclass import data as data
    from worstclass import evaluate as evaluate
    from worstclass import metrics as metrics
    from worstclass import report as report
    from worstclass import runs as runs
    from worstclass import subjects as subjects
    from worstclass.attacks import PGD, make_attack
    from worstclass.models import make_model
    from worstclass.objectives import Madry, Natural, Trades
    from worstclass.stats import ClassStats
    from worstclass.strategies import CSL, FRL, WAT, ClassHedge, Fixed, Hedge
    from worstclass.train import Plan, fit, new_state
    from worstclass.types import Attack, Classifier, ClassStrategy, ClassWeights, Losses, Objective
else:
    __getattr__ = importer(
        __name__,
        {
            "attacks": "PGD make_attack",
            "models": "make_model",
            "objectives": "Madry Natural Trades",
            "stats": "ClassStats",
            "strategies": "CSL FRL WAT ClassHedge Fixed Hedge",
            "train": "Plan fit new_state",
            "types": "Attack Classifier ClassStrategy ClassWeights Losses Objective",
        }
        | dict.fromkeys(("config", "data", "evaluate", "metrics", "report", "runs", "subjects"), ""),
    )


def __dir__() -> list[str]:
    return __all__
