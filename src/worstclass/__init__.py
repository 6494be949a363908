"""worstclass: adversarial training and robustness evaluation of image classifiers, class by class.

Every name is imported when it is first asked for. The training core needs torch and numpy alone; the command line,
checkpoints, statistics and reports bring more.
"""

from typing import TYPE_CHECKING

from worstclass.inputs.names import VERSION
from worstclass.lazy import importer

__version__ = VERSION

__all__ = [
    "CSL",
    "EMA",
    "FAWA",
    "FRL",
    "METHODS",
    "PGD",
    "SGD",
    "WAT",
    "AWPRule",
    "AdamW",
    "Attack",
    "AuditResult",
    "Augment",
    "ClassGuard",
    "ClassHedge",
    "ClassStats",
    "ClassStrategy",
    "ClassWeights",
    "Classifier",
    "Config",
    "Cosine",
    "Engine",
    "Fixed",
    "Hedge",
    "Images",
    "Losses",
    "Madry",
    "Method",
    "Natural",
    "Objective",
    "OneCycle",
    "Piecewise",
    "Plan",
    "Run",
    "Trades",
    "__version__",
    "adjust_logits",
    "adjust_run",
    "audit",
    "autoattack",
    "evaluate",
    "evaluate_target",
    "fit",
    "load_config",
    "load_results",
    "make_attack",
    "make_model",
    "model_target",
    "new_state",
    "open_run",
    "open_source",
    "run_target",
    "split_validation",
    "to_float",
    "trades_attack",
    "train_run",
    "write_report",
]

if TYPE_CHECKING:
    from worstclass.attacks import PGD, autoattack, make_attack, trades_attack
    from worstclass.auditing.audit import audit
    from worstclass.auditing.result import AuditResult
    from worstclass.config.keys import Config
    from worstclass.config.methods import METHODS, Method
    from worstclass.config.recipe import load_config
    from worstclass.data import Augment, Images, open_source, split_validation, to_float
    from worstclass.evaluation.evaluate import evaluate
    from worstclass.evaluation.targets import evaluate_target, model_target, run_target
    from worstclass.models import make_model
    from worstclass.objectives import Madry, Natural, Trades
    from worstclass.report import load_results, write_report
    from worstclass.runs.adjust import adjust_run
    from worstclass.runs.logit_adjustment import adjust_logits
    from worstclass.runs.run import Run, open_run
    from worstclass.runs.train import train_run
    from worstclass.stats import ClassStats
    from worstclass.strategies import CSL, FRL, WAT, ClassGuard, ClassHedge, Fixed, Hedge
    from worstclass.training import (
        EMA,
        FAWA,
        SGD,
        AdamW,
        AWPRule,
        Cosine,
        Engine,
        OneCycle,
        Piecewise,
        Plan,
        fit,
        new_state,
    )
    from worstclass.types import Attack, Classifier, ClassStrategy, ClassWeights, Losses, Objective
else:
    __getattr__ = importer(
        __name__,
        {
            "attacks": "PGD autoattack make_attack trades_attack",
            "auditing.audit": "audit",
            "auditing.result": "AuditResult",
            "config.keys": "Config",
            "config.recipe": "load_config",
            "data": "Augment Images open_source split_validation to_float",
            "evaluation.evaluate": "evaluate",
            "evaluation.targets": "evaluate_target model_target run_target",
            "config.methods": "METHODS Method",
            "models": "make_model",
            "objectives": "Madry Natural Trades",
            "report": "load_results write_report",
            "runs.adjust": "adjust_run",
            "runs.logit_adjustment": "adjust_logits",
            "runs.run": "Run open_run",
            "runs.train": "train_run",
            "stats": "ClassStats",
            "strategies": "CSL FRL WAT ClassGuard ClassHedge Fixed Hedge",
            "training": "EMA FAWA SGD AWPRule AdamW Cosine Engine OneCycle Piecewise Plan fit new_state",
            "types": "Attack Classifier ClassStrategy ClassWeights Losses Objective",
        },
    )


def __dir__() -> list[str]:
    return __all__
