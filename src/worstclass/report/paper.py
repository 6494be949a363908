"""What the paper reports: every figure of its tables, as data, to be set beside our own."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from worstclass import metrics
from worstclass.config.keys import Config


@dataclass(frozen=True)
class Reported:
    """One cell group of a table: a method under an attack. Accuracies in percent; `class_variance` where it is printed.

    `table` counts as the paper does, its appendix last: 1 is ResNet-18 on CIFAR-10 and CIFAR-100, 2 is WRN-34-10, 3 is
    eta, 4 and 5 are CV against rho.
    """

    table: int
    data: str
    model: str
    method: str
    eta: float | None
    attack: str
    average: float
    worst: float
    class_variance: float | None
    rho: float


@cache
def reported() -> tuple[Reported, ...]:
    """All of Tables 1 to 5."""
    text = files("worstclass").joinpath("paper.csv").read_text()
    return tuple(
        Reported(
            table=int(row["table"]),
            data=row["data"],
            model=row["model"],
            method=row["method"],
            eta=float(row["eta"]) if row["eta"] else None,
            attack=row["attack"],
            average=float(row["average"]),
            worst=float(row["worst"]),
            class_variance=float(row["class_variance"]) if row["class_variance"] else None,
            rho=float(row["rho"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


def printed(config: Config, attack: str, table: int | None = None) -> Reported | None:
    """What the paper prints for this method, data, network and attack, in one of its tables or in the first that has
    it. Its numbers of WAT are from its public code, and stand beside both variants."""
    own = config.average == "none" and not config.awp_gamma and config.base_objective == "trades"
    if not own or config.adjust_budget is not None or abs(config.eps - 8 / 255) > 1e-9:
        return None
    place = (config.data, config.model, config.method, attack)
    for cell in reported():
        if (cell.data, cell.model, cell.method, cell.attack) != place or table not in (None, cell.table):
            continue
        if config.method != "wat" or cell.eta in (None, config.eta):
            return cell
    return None


def recomputed_rho(cell: Reported) -> float:
    """rho by its formula, from the accuracies that the paper prints for the method and for TRADES beside it."""
    place = (cell.table, cell.data, cell.model, cell.attack)
    (base,) = [c for c in reported() if c.method == "trades" and (c.table, c.data, c.model, c.attack) == place]
    return metrics.rho(avg=cell.average, worst=cell.worst, base_avg=base.average, base_worst=base.worst)
