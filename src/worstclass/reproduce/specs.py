"""What the paper's tables and figures consist of, and what they are called."""

from dataclasses import dataclass
from typing import Literal

FORMATS = ("text", "markdown", "latex", "csv")
"""Of a table."""

Measure = Literal["average", "worst", "class_variance", "rho"]
METHODS = ("trades", "frl-rw", "frl-rwrm", "csl", "wat", "wat-reference")
ALL = ("natural", "pgd-100", "cw", "autoattack")


@dataclass(frozen=True)
class TableSpec:
    """What a table of the paper consists of."""

    number: int
    title: str
    settings: tuple[tuple[str, str], ...]
    recipes: tuple[str, ...]
    attacks: tuple[str, ...]
    measures: tuple[Measure, ...]


OTHERS = ("trades", "csl", "frl-rw", "frl-rwrm")
WEIGHTS = tuple(f"fixed-cat{weight:g}" for weight in (0.05, 0.1, 0.15, 0.2, 0.25))
RESNET = ("cifar10", "resnet18")
ETAS = ("trades", "wat-eta0.01", "wat-eta0.05", "wat", "wat-eta0.5")
TABLES = {
    "table1": TableSpec(
        1,
        "Every method with ResNet-18 on CIFAR-10 and CIFAR-100",
        (RESNET, ("cifar100", "resnet18")),
        METHODS,
        ALL,
        ("average", "worst", "rho"),
    ),
    "table2": TableSpec(
        2,
        "Every method with WideResNet-34-10 on CIFAR-10",
        (("cifar10", "wrn34-10"),),
        METHODS,
        ALL,
        ("average", "worst", "rho"),
    ),
    "table3": TableSpec(3, "WAT under several eta", (RESNET,), ETAS, ALL, ("average", "worst", "rho")),
    "table4": TableSpec(
        4, "CV against rho under CW", (RESNET,), METHODS, ("cw",), ("average", "worst", "class_variance", "rho")
    ),
    "table5": TableSpec(
        5,
        "CV against rho on clean images, under PGD-100 and AutoAttack (appendix)",
        (RESNET,),
        METHODS,
        ("natural", "pgd-100", "autoattack"),
        ("average", "worst", "class_variance", "rho"),
    ),
}


@dataclass(frozen=True)
class FigureSpec:
    """What a figure of the paper consists of."""

    number: int
    title: str
    recipes: tuple[str, ...]
    attack: str


FIGURES = {
    "figure2": FigureSpec(2, "Class-wise robustness of PGD-AT and TRADES under PGD-20", ("pgd-at", "trades"), "pgd-20"),
    "figure3": FigureSpec(3, "Average and worst class against the weight of class 4, under PGD-20", WEIGHTS, "pgd-20"),
    "figure4": FigureSpec(4, "WAT against each other method, class by class, under CW", ("wat", *OTHERS), "cw"),
    "figure5": FigureSpec(5, "The same under PGD-100 (appendix)", ("wat", *OTHERS), "pgd-100"),
    "figure6": FigureSpec(6, "The same under AutoAttack (appendix)", ("wat", *OTHERS), "autoattack"),
}
